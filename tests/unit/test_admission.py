"""What a tenant's pod template may hold: each case changes one thing in a template that is allowed."""

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template, check_role
from trainmaster.protocol.jobs import Role

RESTRICTED = AdmissionPolicy()
BASELINE = AdmissionPolicy(level="baseline")
GONE = object()
"""Leaves the field out."""

_SAFE_CONTEXT: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SAFE_POD: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "nightly"}},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "example/train:1", "securityContext": copy.deepcopy(_SAFE_CONTEXT)}],
        "initContainers": [
            {"name": "fetch", "image": "example/fetch:1", "securityContext": copy.deepcopy(_SAFE_CONTEXT)}
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}


def pod_with(*path: str | int, value: Any) -> dict[str, Any]:
    """Return the safe pod with one place changed; mappings on the way are made, and index 0 of a missing list too."""
    pod = copy.deepcopy(_SAFE_POD)
    at: Any = pod
    for step, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(step, int):
            if step == len(at):
                at.append(empty)
            at = at[step]
        else:
            at = at.setdefault(step, empty)
    last = path[-1]
    if value is GONE:
        del at[last]
    elif isinstance(last, int) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return pod


def spec_with(*path: str | int, value: Any) -> dict[str, Any]:
    return pod_with("spec", *path, value=value)


def context_with(*path: str | int, value: Any) -> dict[str, Any]:
    return spec_with("containers", 0, "securityContext", *path, value=value)


def volume(kind: str, **source: Any) -> dict[str, Any]:
    return spec_with("volumes", 0, value={"name": "data", kind: source})


def paths(template: Any, policy: AdmissionPolicy) -> list[str]:
    return [mistake.path for mistake in check_pod_template(template, policy)]


def _claimed(name: str, *, storage: str = "1Gi", metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """Return an ephemeral volume with a claim of its own."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, **spec}
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"metadata": metadata or {}, "spec": claim}}}


def _claim_with(**fields: Any) -> dict[str, Any]:
    return spec_with("volumes", 0, value=_claimed("data", **fields))


def _tolerating(key: str, **fields: Any) -> dict[str, Any]:
    return spec_with("tolerations", value=[{"key": key, "operator": "Exists", **fields}])


_CLAIM = "spec.volumes[0].ephemeral.volumeClaimTemplate"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _node_term(expression: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


_CONTEXT = "spec.containers[0].securityContext"

REFUSED_AT_EVERY_LEVEL: dict[str, tuple[dict[str, Any], str]] = {
    "the host's network": (spec_with("hostNetwork", value=True), "spec.hostNetwork"),
    "the host's processes": (spec_with("hostPID", value=True), "spec.hostPID"),
    "the host's IPC": (spec_with("hostIPC", value=True), "spec.hostIPC"),
    "a flag as a string is no flag": (spec_with("hostPID", value="false"), "spec.hostPID"),
    "a privileged container": (context_with("privileged", value=True), f"{_CONTEXT}.privileged"),
    "a privileged init container": (
        spec_with("initContainers", 0, "securityContext", "privileged", value=True),
        "spec.initContainers[0].securityContext.privileged",
    ),
    "a privileged ephemeral container": (
        spec_with("ephemeralContainers", 0, value={"securityContext": {**_SAFE_CONTEXT, "privileged": True}}),
        "spec.ephemeralContainers[0].securityContext.privileged",
    ),
    "a capability beyond the default ones": (
        context_with("capabilities", "add", value=["SYS_ADMIN"]),
        f"{_CONTEXT}.capabilities.add[0]",
    ),
    "the raw network": (context_with("capabilities", "add", value=["NET_RAW"]), f"{_CONTEXT}.capabilities.add[0]"),
    "a path of the host": (volume("hostPath", path="/"), "spec.volumes[0].hostPath"),
    "a volume of unknown type": (volume("wormhole"), "spec.volumes[0].wormhole"),
    "a volume of two types": (
        spec_with("volumes", 0, value={"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}),
        "spec.volumes[0]",
    ),
    "a port of the host": (
        spec_with("containers", 0, "ports", value=[{"containerPort": 80, "hostPort": 80}]),
        "spec.containers[0].ports[0].hostPort",
    ),
    "a HostProcess container": (
        context_with("windowsOptions", "hostProcess", value=True),
        f"{_CONTEXT}.windowsOptions.hostProcess",
    ),
    "a HostProcess pod": (
        spec_with("securityContext", "windowsOptions", value={"hostProcess": True}),
        "spec.securityContext.windowsOptions.hostProcess",
    ),
    "no seccomp": (context_with("seccompProfile", value={"type": "Unconfined"}), f"{_CONTEXT}.seccompProfile.type"),
    "an empty seccomp profile": (context_with("seccompProfile", value={}), f"{_CONTEXT}.seccompProfile.type"),
    "no seccomp, in the old way": (
        pod_with("metadata", "annotations", "seccomp.security.alpha.kubernetes.io/pod", value="unconfined"),
        'metadata.annotations["seccomp.security.alpha.kubernetes.io/pod"]',
    ),
    "no AppArmor": (context_with("appArmorProfile", value={"type": "Unconfined"}), f"{_CONTEXT}.appArmorProfile.type"),
    "no AppArmor, in the old way": (
        pod_with("metadata", "annotations", "container.apparmor.security.beta.kubernetes.io/main", value="unconfined"),
        'metadata.annotations["container.apparmor.security.beta.kubernetes.io/main"]',
    ),
    "an SELinux type": (context_with("seLinuxOptions", value={"type": "spc_t"}), f"{_CONTEXT}.seLinuxOptions.type"),
    "an SELinux user": (context_with("seLinuxOptions", value={"user": "system_u"}), f"{_CONTEXT}.seLinuxOptions.user"),
    "an SELinux role for the pod": (
        spec_with("securityContext", "seLinuxOptions", value={"role": "sysadm_r"}),
        "spec.securityContext.seLinuxOptions.role",
    ),
    "an open /proc": (context_with("procMount", value="Unmasked"), f"{_CONTEXT}.procMount"),
    "a sysctl of the whole host": (
        spec_with("securityContext", "sysctls", value=[{"name": "kernel.msgmax", "value": "1"}]),
        "spec.securityContext.sysctls[0].name",
    ),
    "a sysctl without a name": (
        spec_with("securityContext", "sysctls", value=[{"value": "1"}]),
        "spec.securityContext.sysctls[0].name",
    ),
    "a probe of another host": (
        spec_with("containers", 0, "livenessProbe", value={"httpGet": {"host": "10.0.0.1", "port": 80}}),
        "spec.containers[0].livenessProbe.httpGet.host",
    ),
    "a hook that calls another host": (
        spec_with("containers", 0, "lifecycle", "preStop", value={"tcpSocket": {"host": "10.0.0.1", "port": 80}}),
        "spec.containers[0].lifecycle.preStop.tcpSocket.host",
    ),
    "a node of its choice": (spec_with("nodeName", value="node-7"), "spec.nodeName"),
    "a scheduler of its choice": (spec_with("schedulerName", value="default-scheduler"), "spec.schedulerName"),
    "a Kubernetes priority class": (
        spec_with("priorityClassName", value="system-node-critical"),
        "spec.priorityClassName",
    ),
    "a Kubernetes priority": (spec_with("priority", value=2_000_000_000), "spec.priority"),
    "a preemption policy": (spec_with("preemptionPolicy", value="PreemptLowerPriority"), "spec.preemptionPolicy"),
    "a scheduling gate": (spec_with("schedulingGates", value=[{"name": "mine"}]), "spec.schedulingGates"),
    "somebody else's gang": (spec_with("schedulingGroup", value={"podGroupName": "theirs"}), "spec.schedulingGroup"),
    "a namespace": (pod_with("metadata", "namespace", value="kube-system"), "metadata.namespace"),
    "an owner": (pod_with("metadata", "ownerReferences", value=[]), "metadata.ownerReferences"),
    "a finalizer": (pod_with("metadata", "finalizers", value=["example.com/stay"]), "metadata.finalizers"),
    "a name": (pod_with("metadata", "name", value="mine"), "metadata.name"),
    "a service account": (spec_with("serviceAccountName", value="builder"), "spec.serviceAccountName"),
    "a service account by the old field": (spec_with("serviceAccount", value="builder"), "spec.serviceAccount"),
    "a service account's token": (
        spec_with("automountServiceAccountToken", value=True),
        "spec.automountServiceAccountToken",
    ),
    "a projected token": (
        volume("projected", sources=[{"serviceAccountToken": {"path": "token"}}]),
        "spec.volumes[0].projected.sources[0].serviceAccountToken",
    ),
    "a certificate of the service account": (
        volume("projected", sources=[{"podCertificate": {"keyType": "ED25519"}}]),
        "spec.volumes[0].projected.sources[0].podCertificate",
    ),
    "a secret as a volume": (volume("secret", secretName="db"), "spec.volumes[0].secret.secretName"),
    "a secret volume without a name": (volume("secret"), "spec.volumes[0].secret.secretName"),
    "a projected secret": (
        volume("projected", sources=[{"secret": {"name": "db"}}]),
        "spec.volumes[0].projected.sources[0].secret.name",
    ),
    "a secret for a storage driver": (
        volume("csi", driver="d", nodePublishSecretRef={"name": "db"}),
        "spec.volumes[0].csi.nodePublishSecretRef.name",
    ),
    "a secret in one variable": (
        spec_with(
            "containers", 0, "env", value=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]
        ),
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    "a secret as variables": (
        spec_with("initContainers", 0, "envFrom", value=[{"secretRef": {"name": "db"}}]),
        "spec.initContainers[0].envFrom[0].secretRef.name",
    ),
    "a secret to pull images": (
        spec_with("imagePullSecrets", value=[{"name": "hub"}]),
        "spec.imagePullSecrets[0].name",
    ),
    "a runtime class": (spec_with("runtimeClassName", value="kata"), "spec.runtimeClassName"),
    "a variable of Trainmaster's": (
        spec_with("containers", 0, "env", value=[{"name": "TRAINMASTER_RUN_TOKEN", "value": "9"}]),
        "spec.containers[0].env[0].name",
    ),
    "a label of Kueue's": (
        pod_with("metadata", "labels", "kueue.x-k8s.io/queue-name", value="gold"),
        'metadata.labels["kueue.x-k8s.io/queue-name"]',
    ),
    "a label below a reserved domain": (
        pod_with("metadata", "labels", "scheduling.volcano.sh/queue-name", value="gold"),
        'metadata.labels["scheduling.volcano.sh/queue-name"]',
    ),
    "a reserved label without a value, which Kubernetes keeps": (
        pod_with("metadata", "labels", "kueue.x-k8s.io/queue-name", value=None),
        'metadata.labels["kueue.x-k8s.io/queue-name"]',
    ),
    "a label of Trainmaster's": (
        pod_with("metadata", "labels", "trainmaster.dev/run", value="x"),
        'metadata.labels["trainmaster.dev/run"]',
    ),
    "the label of all pods of agents": (
        pod_with("metadata", "labels", "app.kubernetes.io/managed-by", value="trainmaster"),
        'metadata.labels["app.kubernetes.io/managed-by"]',
    ),
    "a label of Trainmaster's for a claim": (
        _claim_with(metadata={"labels": {"trainmaster.dev/run": "x"}}),
        f'{_CLAIM}.metadata.labels["trainmaster.dev/run"]',
    ),
    "an annotation of YuniKorn's for a claim": (
        _claim_with(metadata={"annotations": {"yunikorn.apache.org/x": "x"}}),
        f'{_CLAIM}.metadata.annotations["yunikorn.apache.org/x"]',
    ),
    "an annotation of YuniKorn's": (
        pod_with("metadata", "annotations", "yunikorn.apache.org/task-groups", value="[]"),
        'metadata.annotations["yunikorn.apache.org/task-groups"]',
    ),
    "an annotation of KAI's without a domain": (
        pod_with("metadata", "annotations", "pod-group-name", value="theirs"),
        "metadata.annotations.pod-group-name",
    ),
    "a label that is no string": (pod_with("metadata", "labels", "team", value=7), "metadata.labels.team"),
    "no container": (spec_with("containers", value=[]), "spec.containers"),
    "containers that are no list": (spec_with("containers", value="main"), "spec.containers"),
    "a container that is nothing": (spec_with("containers", 1, value=None), "spec.containers[1]"),
    "a container that is a string": (spec_with("containers", 1, value="main"), "spec.containers[1]"),
    "a field of the pod that is not known": (spec_with("hostEverything", value=True), "spec.hostEverything"),
    "a field of a container that is not known": (
        spec_with("containers", 0, "root", value=True),
        "spec.containers[0].root",
    ),
    "a field of a security context that is not known": (context_with("root", value=True), f"{_CONTEXT}.root"),
    "a field beside metadata and spec": (pod_with("status", value={}), "status"),
    "a quantity that is none": (
        spec_with("containers", 0, "resources", "requests", "cpu", value="many"),
        "spec.containers[0].resources.requests.cpu",
    ),
    "a node selector that is no mapping": (spec_with("nodeSelector", value=["ssd"]), "spec.nodeSelector"),
    "a node selector without a value": (spec_with("nodeSelector", value={"disk": None}), "spec.nodeSelector.disk"),
    "a toleration that is nothing": (spec_with("tolerations", value=[None]), "spec.tolerations[0]"),
    "a toleration that is no mapping": (spec_with("tolerations", value=["all"]), "spec.tolerations[0]"),
    "a toleration with an operator that is none": (
        spec_with("tolerations", value=[{"key": "gpu", "operator": "Sometimes"}]),
        "spec.tolerations[0].operator",
    ),
    "a toleration with an effect that is none": (
        spec_with("tolerations", value=[{"key": "gpu", "operator": "Exists", "effect": "Never"}]),
        "spec.tolerations[0].effect",
    ),
}

REFUSED_WHEN_RESTRICTED: dict[str, tuple[dict[str, Any], str]] = {
    "a network file system": (volume("nfs", server="s", path="/"), "spec.volumes[0].nfs"),
    "privilege escalation": (
        context_with("allowPrivilegeEscalation", value=True),
        f"{_CONTEXT}.allowPrivilegeEscalation",
    ),
    "silence on privilege escalation": (
        context_with("allowPrivilegeEscalation", value=GONE),
        f"{_CONTEXT}.allowPrivilegeEscalation",
    ),
    "a pod that may be root": (
        spec_with("securityContext", "runAsNonRoot", value=False),
        "spec.securityContext.runAsNonRoot",
    ),
    "silence on root": (spec_with("securityContext", "runAsNonRoot", value=GONE), f"{_CONTEXT}.runAsNonRoot"),
    "a container that may be root": (context_with("runAsNonRoot", value=False), f"{_CONTEXT}.runAsNonRoot"),
    "root by number": (context_with("runAsUser", value=0), f"{_CONTEXT}.runAsUser"),
    "root by number for the pod": (
        spec_with("securityContext", "runAsUser", value=0),
        "spec.securityContext.runAsUser",
    ),
    "silence on seccomp": (
        spec_with("securityContext", "seccompProfile", value=GONE),
        f"{_CONTEXT}.seccompProfile.type",
    ),
    "capabilities that are kept": (context_with("capabilities", value=GONE), f"{_CONTEXT}.capabilities.drop"),
    "capabilities that are only partly dropped": (
        context_with("capabilities", "drop", value=["NET_RAW"]),
        f"{_CONTEXT}.capabilities.drop",
    ),
    "a default capability": (context_with("capabilities", "add", value=["CHOWN"]), f"{_CONTEXT}.capabilities.add[0]"),
}

ALLOWED_WHEN_RESTRICTED: dict[str, dict[str, Any]] = {
    "the safe pod": copy.deepcopy(_SAFE_POD),
    "no metadata": pod_with("metadata", value=GONE),
    "fields that are null": spec_with("hostNetwork", value=None),
    "false where false is meant": spec_with("hostNetwork", value=False),
    "low ports": context_with("capabilities", "add", value=["NET_BIND_SERVICE"]),
    "a container's own seccomp profile": context_with(
        "seccompProfile", value={"type": "Localhost", "localhostProfile": "profiles/train.json"}
    ),
    "an SELinux type for containers": context_with("seLinuxOptions", value={"type": "container_t"}),
    "a safe sysctl": spec_with("securityContext", "sysctls", value=[{"name": "net.ipv4.tcp_rmem", "value": "1"}]),
    "an AppArmor profile of the node": context_with(
        "appArmorProfile", value={"type": "Localhost", "localhostProfile": "train"}
    ),
    "a user by number": context_with("runAsUser", value=1000),
    "a port of the pod": spec_with("containers", 0, "ports", value=[{"containerPort": 80, "hostPort": 0}]),
    "a probe of itself": spec_with("containers", 0, "livenessProbe", value={"httpGet": {"port": 80, "path": "/"}}),
    "names for addresses": spec_with("hostAliases", value=[{"ip": "10.0.0.1", "hostnames": ["store"]}]),
    "the default service account without token": spec_with("serviceAccountName", value="default"),
    "an image as a volume": volume("image", reference="example/weights:1"),
    "a well-known label that nothing acts on": pod_with("metadata", "labels", "app.kubernetes.io/part-of", value="b"),
    "a node that does not answer, for as long as Kubernetes says": spec_with(
        "tolerations",
        value=[
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for state in ("not-ready", "unreachable")
        ],
    ),
    "volumes of the default class, up to the most together": spec_with(
        "volumes", value=[_claimed("a", storage="512Gi"), _claimed("b", storage="512Gi")]
    ),
    "a toleration": spec_with(
        "tolerations", value=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}]
    ),
    "quantities as numbers": spec_with("containers", 0, "resources", "requests", value={"cpu": 2, "memory": "4Gi"}),
}


@pytest.mark.parametrize("policy", [RESTRICTED, BASELINE], ids=["restricted", "baseline"])
@pytest.mark.parametrize(("template", "path"), REFUSED_AT_EVERY_LEVEL.values(), ids=REFUSED_AT_EVERY_LEVEL.keys())
def test_refused_at_every_level(template: dict[str, Any], path: str, policy: AdmissionPolicy) -> None:
    assert path in paths(template, policy)


@pytest.mark.parametrize(("template", "path"), REFUSED_WHEN_RESTRICTED.values(), ids=REFUSED_WHEN_RESTRICTED.keys())
def test_refused_when_restricted_and_allowed_by_baseline(template: dict[str, Any], path: str) -> None:
    assert path in paths(template, RESTRICTED)
    assert paths(template, BASELINE) == []


@pytest.mark.parametrize("template", ALLOWED_WHEN_RESTRICTED.values(), ids=ALLOWED_WHEN_RESTRICTED.keys())
def test_allowed_when_restricted(template: dict[str, Any]) -> None:
    assert check_pod_template(template, RESTRICTED) == ()
    assert check_pod_template(template, BASELINE) == ()


def test_user_namespaces_relax_nothing_because_a_cluster_may_drop_them() -> None:
    template = context_with("runAsUser", value=0)
    template["spec"]["hostUsers"] = False
    assert paths(template, RESTRICTED) == [f"{_CONTEXT}.runAsUser"]


def test_every_container_may_say_for_itself_that_it_is_not_root() -> None:
    template = spec_with("securityContext", value=GONE)
    for kind in ("containers", "initContainers"):
        for container in template["spec"][kind]:
            container["securityContext"] |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert check_pod_template(template, RESTRICTED) == ()


def test_a_template_that_says_nothing_of_the_token_is_allowed_as_the_agent_leaves_it_out() -> None:
    assert check_pod_template(spec_with("automountServiceAccountToken", value=GONE), RESTRICTED) == ()


STRUCTURES: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "a port that is a word": (("containers", 0, "ports"), [{"containerPort": "http"}], "ports[0].containerPort"),
    "a port beyond the last": (("containers", 0, "ports"), [{"containerPort": 65536}], "ports[0].containerPort"),
    "a variable without a name": (("containers", 0, "env"), [{"value": "x"}], "env[0].name"),
    "a variable from two places": (
        ("containers", 0, "env"),
        [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "env[0].valueFrom",
    ),
    "a node term without values": (
        ("affinity",),
        _node_term({"key": "gpu", "operator": "In"}),
        "nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    "a node term of no known operator": (
        ("affinity",),
        _node_term({"key": "gpu", "operator": "in", "values": ["a"]}),
        "matchExpressions[0].operator",
    ),
    "terms that are a word": (
        ("affinity",),
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": "x"}}},
        "nodeSelectorTerms",
    ),
    "a claim that the pod does not have": (
        ("containers", 0, "resources"),
        {"claims": [{"name": "no"}]},
        "claims[0].name",
    ),
    "a mount of no volume": (("containers", 0, "volumeMounts"), [{"name": "no", "mountPath": "/x"}], "[0].name"),
    "two containers of one name": (("initContainers", 0, "name"), "main", "initContainers[0].name"),
    "a container without an image": (("containers", 0, "image"), GONE, "containers[0].image"),
    "a number as text": (("securityContext", "runAsUser"), "1000", "runAsUser"),
    "a user beyond the last": (("securityContext", "fsGroup"), 2**31, "fsGroup"),
    "a request above its limit": (
        ("containers", 0, "resources"),
        {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
        "resources.requests.cpu",
    ),
    "a probe of two kinds": (
        ("containers", 0, "livenessProbe"),
        {"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}},
        "livenessProbe",
    ),
    "a value for a toleration that takes none": (
        ("tolerations",),
        [{"key": "gpu", "operator": "Exists", "value": "x"}],
        "tolerations[0].value",
    ),
    "a label that is no label": (("nodeSelector",), {"disk type": "ssd"}, 'nodeSelector["disk type"]'),
    "an address that is none": (("hostAliases",), [{"ip": "10.0.0", "hostnames": ["a"]}], "hostAliases[0].ip"),
    "an unknown field far inside": (("volumes", 0, "emptyDir"), {"size": "1Gi"}, "emptyDir.size"),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_template_that_makes_no_pod_is_refused_where_it_is_wrong(case: str) -> None:
    path, value, where = STRUCTURES[case]
    found = paths(spec_with(*path, value=value), RESTRICTED)
    assert len(found) == 1
    assert found[0].endswith(where)


_POD_TERM = {"labelSelector": {"matchLabels": {"team": "vision"}}, "topologyKey": "zone"}


def _pod_rule(kind: str, **fields: Any) -> dict[str, Any]:
    return spec_with("affinity", value={kind: {REQUIRED: [{**_POD_TERM, **fields}]}})


ALLOWED_BY_NAME: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a config map as a volume": (
        volume("configMap", name="train-conf"),
        "configMap.name",
        {"config_maps": ("train-*",)},
    ),
    "a config map in a projected volume": (
        volume("projected", sources=[{"configMap": {"name": "train-conf"}}]),
        "configMap.name",
        {"config_maps": ("train-conf",)},
    ),
    "a config map as environment": (
        spec_with("containers", 0, "envFrom", value=[{"configMapRef": {"name": "train-conf"}}]),
        "configMapRef.name",
        {"config_maps": ("*",)},
    ),
    "a variable of a config map": (
        spec_with(
            "containers", 0, "env", value=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
        ),
        "configMapKeyRef.name",
        {"config_maps": ("c",)},
    ),
    "a claim": (volume("persistentVolumeClaim", claimName="datasets"), "claimName", {"claims": ("datasets",)}),
    "a copy of a claim": (
        volume(
            "ephemeral",
            volumeClaimTemplate={
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "dataSource": {"kind": "PersistentVolumeClaim", "name": "datasets"},
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            },
        ),
        "dataSource.name",
        {"claims": ("data*",)},
    ),
    "a CSI driver": (volume("csi", driver="secrets.example.com"), "csi.driver", {"csi_drivers": ("secrets.*",)}),
    "a claim that exists": (
        spec_with("resourceClaims", value=[{"name": "gpu", "resourceClaimName": "big"}]),
        "resourceClaimName",
        {"resource_claims": ("big",)},
    ),
    "a claim of a device": (
        spec_with("resourceClaims", value=[{"name": "gpu", "resourceClaimTemplateName": "big"}]),
        "resourceClaimTemplateName",
        {"resource_claims": ("big",)},
    ),
    "an annotation of Multus": (
        pod_with("metadata", "annotations", "k8s.v1.cni.cncf.io/networks", value="storage"),
        '["k8s.v1.cni.cncf.io/networks"]',
        {"annotations": ("k8s.v1.cni.cncf.io/networks",)},
    ),
    "an annotation of CRI-O": (
        pod_with("metadata", "annotations", "io.kubernetes.cri-o.userns-mode", value="auto"),
        '["io.kubernetes.cri-o.userns-mode"]',
        {"annotations": ("io.kubernetes.cri-o.*",)},
    ),
    "a label of a workload identity": (
        pod_with("metadata", "labels", "azure.workload.identity/use", value="true"),
        '["azure.workload.identity/use"]',
        {"labels": ("azure.workload.identity/*",)},
    ),
    "a label of an unknown domain": (
        pod_with("metadata", "labels", "notvolcano.sh/a", value="b"),
        '["notvolcano.sh/a"]',
        {"labels": ("notvolcano.sh/*",)},
    ),
    "a label by which services find pods of a Deployment": (
        pod_with("metadata", "labels", "app.kubernetes.io/created-by", value="b"),
        '["app.kubernetes.io/created-by"]',
        {"labels": ("app.kubernetes.io/*",)},
    ),
    "a label without a domain by which rights are granted": (
        pod_with("metadata", "labels", "aadpodidbinding", value="admin"),
        "labels.aadpodidbinding",
        {"labels": ("aadpodidbinding",)},
    ),
    "an annotation of a claim by which data is copied": (
        _claim_with(metadata={"annotations": {"k8s.io/CloneRequest": "other/claim"}}),
        'metadata.annotations["k8s.io/CloneRequest"]',
        {"annotations": ("k8s.io/*",)},
    ),
    "an annotation of a claim by which data is imported": (
        _claim_with(metadata={"annotations": {"cdi.kubevirt.io/storage.import.endpoint": "http://10.0.0.1"}}),
        'metadata.annotations["cdi.kubevirt.io/storage.import.endpoint"]',
        {"annotations": ("cdi.kubevirt.io/*",)},
    ),
    "a label of a claim": (
        _claim_with(metadata={"labels": {"istio.io/x": "y"}}),
        'metadata.labels["istio.io/x"]',
        {"labels": ("istio.io/*",)},
    ),
    "a huge volume": (_claim_with(storage="900Pi"), "spec.resources.requests.storage", {"most_volume_size": "1Ei"}),
    "a huge volume, by its limit": (
        _claim_with(resources={"requests": {"storage": "1Gi"}, "limits": {"storage": "900Pi"}}),
        "spec.resources.limits.storage",
        {"most_volume_size": "1Ei"},
    ),
    "volumes that are huge together": (
        spec_with("volumes", value=[_claimed(name, storage="400Gi") for name in ("a", "b", "c")]),
        "volumes[2].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
        {"most_volume_size": "1200Gi"},
    ),
    "a storage class": (
        _claim_with(storageClassName="fast-ssd"),
        "spec.storageClassName",
        {"storage_classes": ("fast-*",)},
    ),
    "a class of a volume's attributes": (
        _claim_with(volumeAttributesClassName="gold"),
        "spec.volumeAttributesClassName",
        {"storage_classes": ("gold",)},
    ),
    "the taint of somebody's nodes": (
        _tolerating("dedicated"),
        "tolerations[0].key",
        {"tolerations": ("dedicated",)},
    ),
    "the taint of nodes that are emptied": (
        _tolerating("node.kubernetes.io/unschedulable"),
        "tolerations[0].key",
        {"tolerations": ("node.kubernetes.io/*",)},
    ),
    "a node that does not answer, for ever": (
        _tolerating("node.kubernetes.io/unreachable", effect="NoExecute"),
        "tolerations[0]",
        {"tolerations": ("node.kubernetes.io/unreachable",)},
    ),
    "a node that does not answer, for long": (
        _tolerating("node.kubernetes.io/not-ready", effect="NoExecute", tolerationSeconds=301),
        "tolerations[0]",
        {"tolerations": ("node.kubernetes.io/not-ready",)},
    ),
    "a start on a node that does not answer": (
        _tolerating("node.kubernetes.io/not-ready", effect="NoSchedule"),
        "tolerations[0]",
        {"tolerations": ("node.kubernetes.io/not-ready",)},
    ),
    "every taint": (
        spec_with("tolerations", value=[{"operator": "Exists"}]),
        "tolerations[0]",
        {"tolerations": ("*",)},
    ),
    "the taint of control planes": (
        spec_with("tolerations", value=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]),
        "tolerations[0].key",
        {"tolerations": ("node-role.kubernetes.io/*",)},
    ),
    "nodes of the control plane": (
        spec_with("nodeSelector", value={"node-role.kubernetes.io/control-plane": ""}),
        'control-plane"]',
        {"node_labels": ("node-role.kubernetes.io/control-plane",)},
    ),
    "nodes of the control plane by affinity": (
        spec_with("affinity", value=_node_term({"key": "node-role.kubernetes.io/master", "operator": "Exists"})),
        "matchExpressions[0].key",
        {"node_labels": ("*",)},
    ),
    "more containers": (
        spec_with(
            "containers",
            value=[
                {"name": f"c{number}", "image": "x", "securityContext": copy.deepcopy(_SAFE_CONTEXT)}
                for number in range(16)
            ],
        ),
        "spec.containers",
        {"most_containers": 17},
    ),
}


@pytest.mark.parametrize("case", ALLOWED_BY_NAME)
def test_refused_unless_the_policy_names_it(case: str) -> None:
    template, where, allowed = ALLOWED_BY_NAME[case]
    found = paths(template, RESTRICTED)
    assert len(found) == 1
    assert found[0].endswith(where)
    assert check_pod_template(template, AdmissionPolicy(**allowed)) == ()


NEVER_ALLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "pods of other namespaces kept away": (_pod_rule("podAntiAffinity", namespaceSelector={}), "namespaceSelector"),
    "pods of a named namespace": (_pod_rule("podAffinity", namespaces=["kube-system"]), "namespaces"),
    "all pods kept away": (_pod_rule("podAntiAffinity", labelSelector={}), "labelSelector"),
    "pods of others kept away": (
        _pod_rule("podAntiAffinity", labelSelector={"matchLabels": {"team": "speech"}}),
        "matchLabels.team",
    ),
    "all pods with a label kept away": (
        _pod_rule("podAntiAffinity", labelSelector={"matchExpressions": [{"key": "team", "operator": "Exists"}]}),
        "matchExpressions[0]",
    ),
    "a volume of somebody": (
        volume("ephemeral", volumeClaimTemplate={"spec": {"volumeName": "pv-1"}}),
        "spec.volumeName",
    ),
    "pods of other runs kept away": (
        _pod_rule("podAntiAffinity", mismatchLabelKeys=["trainmaster.dev/run"]),
        "mismatchLabelKeys[0]",
    ),
    "a volume without a class, for which an existing one is taken": (
        _claim_with(storageClassName=""),
        "spec.storageClassName",
    ),
    "data of another namespace": (
        volume(
            "ephemeral",
            volumeClaimTemplate={
                "spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "d", "namespace": "other"}}
            },
        ),
        "dataSourceRef.namespace",
    ),
}


@pytest.mark.parametrize("case", NEVER_ALLOWED)
def test_refused_whatever_the_policy_names(case: str) -> None:
    template, where = NEVER_ALLOWED[case]
    everything = AdmissionPolicy(
        claims=("*",),
        config_maps=("*",),
        node_labels=("*",),
        tolerations=("*",),
        labels=("*",),
        storage_classes=("*",),
        most_volume_size="1Ei",
    )
    found = paths(template, everything)
    assert len(found) == 1
    assert found[0].endswith(where)


def test_a_gang_may_keep_its_own_members_apart_and_stay_off_control_planes() -> None:
    apart = _pod_rule("podAntiAffinity")
    apart["spec"]["affinity"] |= _node_term(
        {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
    )
    assert check_pod_template(apart, RESTRICTED) == ()


def test_images_are_held_to_the_beginnings_that_a_policy_names_in_templates_of_both_kinds() -> None:
    policy = AdmissionPolicy(images=("example/*",))
    pod = spec_with("containers", 0, "image", value="evil/miner:1")
    assert paths(pod, policy) == ["spec.containers[0].image"]
    assert paths(volume("image", reference="docker.io/evil/x:1"), policy) == ["spec.volumes[0].image.reference"]
    assert paths(volume("image", reference="example/weights:1"), policy) == []
    role = Role.model_validate({"name": "main", "template": {"image": "evil/miner:1", "command": ["x"]}})
    assert [one.path for one in check_role(role, policy)] == ["template.image"]
    assert check_role(role, RESTRICTED) == ()


def test_a_plain_template_is_held_to_the_same_nodes_as_a_pod() -> None:
    role = Role.model_validate(
        {
            "name": "main",
            "template": {
                "tolerations": [{"operator": "Exists"}],
                "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
                "nodeAffinity": [{"key": "kubernetes.io/role", "operator": "In", "values": ["master"]}],
            },
        }
    )
    assert [one.path for one in check_role(role, RESTRICTED)] == [
        "template.tolerations[0]",
        'template.nodeSelector["node-role.kubernetes.io/control-plane"]',
        "template.nodeAffinity[0].key",
    ]


def test_what_is_refused_says_what_is_allowed_and_what_to_ask_an_admin_for() -> None:
    (toleration,) = check_pod_template(_tolerating("dedicated"), AdmissionPolicy(tolerations=("spot", "team-a-*")))
    assert toleration.message == (
        "taint 'dedicated' may not be tolerated here; allowed are spot, team-a-*. An admin can allow more in tolerations of "
        "the admission policy"
    )
    (storage_class,) = check_pod_template(_claim_with(storageClassName="gold"), RESTRICTED)
    assert "the cluster's default" in storage_class.message
    assert "storageClasses of the admission policy" in storage_class.message
    (label,) = check_pod_template(pod_with("metadata", "labels", "istio.io/x", value="y"), RESTRICTED)
    assert "Istio acts on it" in label.message
    assert "app.kubernetes.io/name" in label.message
    (managed,) = check_pod_template(
        pod_with("metadata", "labels", "app.kubernetes.io/managed-by", value="me"), AdmissionPolicy(labels=("*",))
    )
    assert "is set by the agent" in managed.message


def test_a_plain_template_may_tolerate_the_taints_of_accelerators_alone() -> None:
    def refused(key: str) -> list[str]:
        template = {"tolerations": [{"key": key, "operator": "Exists", "effect": "NoExecute"}]}
        role = Role.model_validate({"name": "main", "template": template})
        return [one.path for one in check_role(role, RESTRICTED)]

    assert refused("nvidia.com/gpu") == refused("gpu") == refused("spot") == []
    assert refused("dedicated") == ["template.tolerations[0].key"]
    assert refused("node.kubernetes.io/unreachable") == ["template.tolerations[0]"], "it cannot say for how long"


@pytest.mark.parametrize("pattern", ["", "a*b", "**", "a b"])
def test_a_pattern_is_a_name_or_a_beginning(pattern: str) -> None:
    with pytest.raises(ValidationError):
        AdmissionPolicy(secrets=(pattern,))


def test_an_allowed_service_account_may_have_its_token() -> None:
    template = volume("projected", sources=[{"serviceAccountToken": {"path": "token"}}])
    template["spec"] |= {"serviceAccountName": "trainer", "automountServiceAccountToken": True}
    assert check_pod_template(template, AdmissionPolicy(service_accounts=("trainer",))) == ()
    assert len(check_pod_template(template, RESTRICTED)) == 3


def test_an_allowed_account_does_not_lend_its_right_to_another_one() -> None:
    template = spec_with("serviceAccountName", value="trainer")
    template["spec"] |= {"serviceAccount": "builder", "automountServiceAccountToken": True}
    policy = AdmissionPolicy(service_accounts=("trainer",))
    assert paths(template, policy) == ["spec.serviceAccount", "spec.automountServiceAccountToken"]


def test_allowed_secrets_may_be_used_wherever_a_secret_can_be() -> None:
    template = volume("secret", secretName="db")
    template["spec"]["imagePullSecrets"] = [{"name": "hub"}]
    template["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "db"}}]
    assert check_pod_template(template, AdmissionPolicy(secrets=("db", "hub"))) == ()
    assert len(check_pod_template(template, AdmissionPolicy(secrets=("db",)))) == 1


def test_a_policy_narrows_the_types_of_volumes() -> None:
    policy = AdmissionPolicy(volume_types=("emptyDir",))
    assert check_pod_template(_SAFE_POD, policy) == ()
    assert paths(volume("persistentVolumeClaim", claimName="c"), policy) == [
        "spec.volumes[0].persistentVolumeClaim",
        "spec.volumes[0].persistentVolumeClaim.claimName",
    ]


def test_a_list_of_volume_types_does_not_widen_the_level() -> None:
    policy = AdmissionPolicy(level="baseline", volume_types=("hostPath",))
    assert paths(volume("hostPath", path="/"), policy) == ["spec.volumes[0].hostPath"]


def test_an_allowed_runtime_class_may_be_used() -> None:
    template = spec_with("runtimeClassName", value="kata")
    assert check_pod_template(template, AdmissionPolicy(runtime_classes=("kata",))) == ()


def test_each_mistake_is_told_once_and_at_most_a_hundred_of_them() -> None:
    mistakes = check_pod_template(spec_with("containers", value=["x"] * 1000), RESTRICTED)
    assert len(mistakes) == len(set(mistakes)) == 100


def test_a_huge_template_is_refused_without_looking_at_it() -> None:
    template = spec_with("containers", 0, "args", value=["x"] * 10_000)
    assert [mistake.message for mistake in check_pod_template(template, RESTRICTED)] == [
        "has too many values for a pod template"
    ]


_WORDS = (
    "metadata spec labels annotations containers initContainers ephemeralContainers securityContext capabilities add "
    "drop volumes projected sources secret hostPath env envFrom valueFrom secretKeyRef secretRef name resources "
    "requests limits cpu overhead ports hostPort sysctls seccompProfile type nodeSelector tolerations "
    "livenessProbe httpGet host"
)
_words = st.sampled_from(_WORDS.split())
_any_text = st.text(st.characters(), max_size=8)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _any_text | _words | st.just("9" * 5000)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words | _any_text, inner, max_size=5),
    max_leaves=40,
)


@given(_json, st.sampled_from([RESTRICTED, BASELINE]))
def test_arbitrary_json_is_judged_and_never_raises(document: Any, policy: AdmissionPolicy) -> None:
    for template in (document, {"spec": document}, {"spec": {"containers": [document], "volumes": [document]}}):
        mistakes = check_pod_template(template, policy)
        assert mistakes
        json.dumps([mistake.model_dump() for mistake in mistakes], ensure_ascii=False).encode()


@given(_json, st.sampled_from(["containers", "initContainers", "volumes", "securityContext", "tolerations"]))
def test_arbitrary_json_in_a_safe_pod_never_raises(document: Any, place: str) -> None:
    check_pod_template(spec_with(place, value=document), RESTRICTED)
