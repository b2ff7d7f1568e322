"""The Pod Security Standards, levels baseline and restricted, as of Kubernetes 1.36.

Standards: https://kubernetes.io/docs/concepts/security/pod-security-standards/
They apply equally to containers, init containers and ephemeral containers. Kubernetes relaxes some for pods with
``hostUsers: false`` and for Windows pods; here nothing is relaxed, because a cluster without user
namespaces silently drops that field, and members run on Linux.
"""

# ruff: noqa: SIM905 -- lists of words are read more easily than one name a line

from collections.abc import Callable
from dataclasses import dataclass

from trainmaster.protocol.json_limits import JsonNode, shown

BASELINE_CAPABILITIES = frozenset(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE "
    "SETFCAP SETGID SETPCAP SETUID SYS_CHROOT".split()
)
RESTRICTED_VOLUMES = frozenset(
    "configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret".split()
)
BASELINE_VOLUMES = RESTRICTED_VOLUMES | frozenset(
    "awsElasticBlockStore azureDisk azureFile cephfs cinder fc flexVolume flocker gcePersistentDisk gitRepo glusterfs "
    "iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume".split()
)
SAFE_SYSCTLS = frozenset(
    "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports "
    "net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout "
    "net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time net.ipv4.tcp_rmem "
    "net.ipv4.tcp_syncookies net.ipv4.tcp_wmem".split()
)
SELINUX_TYPES = frozenset(("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"))
_PROFILES = ("RuntimeDefault", "Localhost")
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_ANNOTATIONS = ("seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod template that the standards check."""

    annotations: JsonNode
    spec: JsonNode
    containers: tuple[JsonNode, ...]

    @property
    def context(self) -> JsonNode:
        return self.spec.get("securityContext")

    @property
    def contexts(self) -> tuple[JsonNode, ...]:
        """The security contexts of the pod and of every container."""
        return (self.context, *(container.get("securityContext") for container in self.containers))


def read_pod(template: JsonNode) -> Pod:
    spec = template.get("spec")
    kinds = ("containers", "initContainers", "ephemeralContainers")
    containers = tuple(container for kind in kinds for container in spec.get(kind).items())
    return Pod(template.get("metadata").get("annotations"), spec, containers)


def volume_sources(pod: Pod) -> list[tuple[str, JsonNode]]:
    """Return the type and the content of every volume."""
    volumes = pod.spec.get("volumes").items()
    return [(kind, source) for volume in volumes for kind, source in volume.fields() if kind != "name"]


def _host_namespaces(pod: Pod) -> None:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(name).flag():
            pod.spec.get(name).refuse("must be false: pods may not share the host's namespaces")


def _privileged(pod: Pod) -> None:
    for container in pod.containers:
        privileged = container.get("securityContext").get("privileged")
        if privileged.flag():
            privileged.refuse("must be false: privileged containers are not isolated from the host")


def _host_process(pod: Pod) -> None:
    for context in pod.contexts:
        flag = context.get("windowsOptions").get("hostProcess")
        if flag.flag():
            flag.refuse("must be false: HostProcess containers are not isolated from the host")


def _capabilities(pod: Pod) -> None:
    for container in pod.containers:
        for added in container.get("securityContext").get("capabilities").get("add").items():
            name = added.text()
            if name is not None and name not in BASELINE_CAPABILITIES:
                added.refuse(f"capability {shown(name)} may not be added")


def _volumes(pod: Pod) -> None:
    for kind, source in volume_sources(pod):
        if kind == "hostPath":
            source.refuse("hostPath volumes are not allowed: they give access to the node's files")
        elif kind not in BASELINE_VOLUMES:
            source.refuse("is an unknown type of volume")


def _host_ports(pod: Pod) -> None:
    for container in pod.containers:
        for port in container.get("ports").items():
            if port.get("hostPort").whole():
                port.get("hostPort").refuse("must be 0 or left out: pods may not use ports of the host")


def _app_armor(pod: Pod) -> None:
    for context in pod.contexts:
        _profile(context.get("appArmorProfile"))
    for key, value in pod.annotations.fields():
        if key.startswith(_APPARMOR_ANNOTATION):
            _old_profile(value, ("", "runtime/default"))


def _seccomp(pod: Pod) -> None:
    for context in pod.contexts:
        _profile(context.get("seccompProfile"))
    for key, value in pod.annotations.fields():
        if key.startswith(_SECCOMP_ANNOTATIONS):
            _old_profile(value, ("runtime/default", "docker/default"))


def _profile(profile: JsonNode) -> None:
    if profile.is_set and profile.get("type").text() not in _PROFILES:
        profile.get("type").refuse(f"must be one of {', '.join(_PROFILES)}")


def _old_profile(value: JsonNode, allowed: tuple[str, ...]) -> None:
    text = value.text()
    if text is not None and text not in allowed and not text.startswith("localhost/"):
        value.refuse("must be runtime/default or localhost/NAME")


def _selinux(pod: Pod) -> None:
    for context in pod.contexts:
        options = context.get("seLinuxOptions")
        kind = options.get("type").text()
        if kind is not None and kind not in SELINUX_TYPES:
            options.get("type").refuse(f"must be one of {', '.join(sorted(SELINUX_TYPES - {''}))}, or left out")
        for name in ("user", "role"):
            if options.get(name).text():
                options.get(name).refuse("must be left out")


def _proc_mount(pod: Pod) -> None:
    for container in pod.containers:
        mount = container.get("securityContext").get("procMount")
        if mount.text() not in (None, "Default"):
            mount.refuse("must be Default or left out")


def _sysctls(pod: Pod) -> None:
    for sysctl in pod.context.get("sysctls").items():
        name = sysctl.get("name")
        if name.text() not in SAFE_SYSCTLS:
            name.refuse(f"is not a safe sysctl; safe are {', '.join(sorted(SAFE_SYSCTLS))}")


def _probe_hosts(pod: Pod) -> None:
    for container in pod.containers:
        lifecycle = container.get("lifecycle")
        probes = [container.get(name) for name in ("livenessProbe", "readinessProbe", "startupProbe")]
        for probe in (*probes, lifecycle.get("postStart"), lifecycle.get("preStop")):
            for way in ("httpGet", "tcpSocket"):
                if probe.get(way).get("host").text():
                    probe.get(way).get("host").refuse("must be left out: the kubelet may probe only this pod")


def _restricted_volumes(pod: Pod) -> None:
    for kind, source in volume_sources(pod):
        if kind in BASELINE_VOLUMES - RESTRICTED_VOLUMES:
            source.refuse(f"must be one of these types of volume: {', '.join(sorted(RESTRICTED_VOLUMES))}")


def _privilege_escalation(pod: Pod) -> None:
    for container in pod.containers:
        flag = container.get("securityContext").get("allowPrivilegeEscalation")
        if flag.flag() is not False:
            flag.refuse("must be set to false")


def _non_root(pod: Pod) -> None:
    of_pod = pod.context.get("runAsNonRoot")
    whole_pod = of_pod.flag()
    if whole_pod is False:
        of_pod.refuse("must be true")
    for container in pod.containers:
        own = container.get("securityContext").get("runAsNonRoot")
        answer = own.flag()
        if answer is False or (answer is None and not whole_pod):
            own.refuse("must be set to true, here or for the whole pod in spec.securityContext")


def _non_root_user(pod: Pod) -> None:
    for context in pod.contexts:
        if context.get("runAsUser").whole() == 0:
            context.get("runAsUser").refuse("must not be 0, which is root")


def _restricted_seccomp(pod: Pod) -> None:
    whole_pod = pod.context.get("seccompProfile").is_set
    for container in pod.containers:
        own = container.get("securityContext").get("seccompProfile")
        if not own.is_set and not whole_pod:
            own.get("type").refuse(
                f"must be set to one of {', '.join(_PROFILES)}, here or for the whole pod in spec.securityContext"
            )


def _restricted_capabilities(pod: Pod) -> None:
    for container in pod.containers:
        capabilities = container.get("securityContext").get("capabilities")
        if "ALL" not in [dropped.text() for dropped in capabilities.get("drop").items()]:
            capabilities.get("drop").refuse("must hold ALL")
        for added in capabilities.get("add").items():
            name = added.text()
            if name in BASELINE_CAPABILITIES and name != "NET_BIND_SERVICE":
                added.refuse("only NET_BIND_SERVICE may be added")


BASELINE: tuple[Callable[[Pod], None], ...] = (
    _host_namespaces,
    _privileged,
    _host_process,
    _capabilities,
    _volumes,
    _host_ports,
    _app_armor,
    _selinux,
    _proc_mount,
    _seccomp,
    _sysctls,
    _probe_hosts,
)
"""Controls of the level baseline; each adds a mistake to the document for what it refuses."""

RESTRICTED: tuple[Callable[[Pod], None], ...] = (
    *BASELINE,
    _restricted_volumes,
    _privilege_escalation,
    _non_root,
    _non_root_user,
    _restricted_seccomp,
    _restricted_capabilities,
)
"""Controls of the level restricted: those of baseline and additional ones."""
