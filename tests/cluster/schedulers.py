"""Schedulers of other projects, as each ships them, on the control plane of a test; nothing is downloaded or built here.

``TRAINMASTER_SCHEDULER_ASSETS`` names a folder with a folder for each of them. A folder has the programs of one release under the
names that they have in the project's images, the objects of the project's chart or manifests, and the release:

    volcano/       VERSION  manifests/*.yaml  vc-scheduler vc-controller-manager vc-webhook-manager
    kai/           VERSION  manifests/*.yaml  scheduler binder podgrouper podgroupcontroller queuecontroller
    coscheduling/  VERSION  manifests/*.yaml  kube-scheduler controller
    yunikorn/      VERSION  manifests/*.yaml  yunikorn-scheduler
    kueue/         VERSION  manifests/*.yaml  manager

Programs run as the administrator, as processes instead of pods, with the configuration of the manifests. What a project's own
installation would do with pods (Deployments, Services, Jobs of its chart, KAI's operator) is done here by starting its programs.
"""

import asyncio
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Daemon, reserve_port
from tests.waiting import eventually

ASSETS = "TRAINMASTER_SCHEDULER_ASSETS"
_FAST = ("--kube-api-qps=1000", "--kube-api-burst=2000")
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "CustomResourceDefinition": _CRD,
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
}
"""The objects that are created at first, in this order. Webhooks are created once who answers them runs."""
_QUEUES_OF_KAI = "/apis/scheduling.run.ai/v2/queues"


@dataclass
class Installed:
    """A scheduler that runs on a control plane."""

    name: str
    version: str
    placement: dict[str, Any]
    """The ``placement`` of the agent's configuration for it."""
    plane: ControlPlane
    assets: Path
    folder: Path
    namespace: str
    documents: list[dict[str, Any]]
    daemons: dict[str, Daemon] = field(default_factory=dict)
    """By program."""

    def config(self, name: str, key: str) -> str:
        """Return an entry of a ConfigMap of the manifests."""
        for one in self.documents:
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name:
                return str(one["data"][key])
        raise KeyError(f"{self.name} ships no ConfigMap {name}")

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def run(self, program: str, *words: object, behind: tuple[str, ...] = (), **environment: str) -> Daemon:
        """Start a program as the administrator of the cluster. ``behind``: a command that runs it."""
        variables = {"KUBECONFIG": str(self.plane.kubeconfig), "POD_NAMESPACE": self.namespace, **environment}
        daemon = Daemon(
            [*behind, str(self.assets / program), *map(str, words)],
            self.folder / f"{program}.log",
            os.environ | variables,
        )
        self.daemons[program] = daemon
        daemon.start()
        return daemon

    async def answers(self, program: str, port: int) -> None:
        """Wait until a program listens. Raises RuntimeError if it ends."""
        daemon = self.daemons[program]

        async def listens() -> bool:
            if not daemon.alive:
                raise RuntimeError(f"{program} of {self.name} ended; {daemon.log} ends with\n{daemon.last_words()}")
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await eventually(listens, 60)

    async def restart(self, program: str) -> None:
        """Kill a program with SIGKILL and start it again."""
        await self.daemons[program].stop(signal.SIGKILL)
        self.daemons[program].start()

    async def create_webhooks(self, port: int, *names: str) -> None:
        """Create the webhooks of the manifests, all or those whose configurations have these names, with the program that listens on
        ``port`` to answer them; also conversions between versions of a kind.
        """
        async with self.plane.client() as api:
            for one in self.documents:
                if one["kind"].endswith("WebhookConfiguration") and (not names or one["metadata"]["name"] in names):
                    for webhook in one["webhooks"]:
                        webhook["clientConfig"] = self._answered_by(port, webhook["clientConfig"])
                    await api.post(f"{_WEBHOOKS}/{one['kind'].lower()}s", one)

    def _answered_by(self, port: int, client: Mapping[str, Any]) -> dict[str, Any]:
        path = client.get("service", {}).get("path", "/")
        return {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": b64encode(self.plane.ca_file.read_bytes()).decode(),
        }

    async def create_objects(self, conversions: int | None = None) -> None:
        """Create the kinds, PriorityClasses and configuration of the manifests, and wait until the kinds are served.

        ``conversions``: the port on which a program converts between versions of kinds.
        """
        async with self.plane.client() as api:
            with suppress(ApiError):
                await api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            for kind, path in _PATHS.items():
                for one in self.documents:
                    if one["kind"] == kind:
                        namespace = one["metadata"].get("namespace", self.namespace)
                        webhook = (one.get("spec") or {}).get("conversion", {}).get("webhook")
                        if webhook and conversions is not None:
                            webhook["clientConfig"] = self._answered_by(conversions, webhook["clientConfig"])
                        await api.post(path.format(namespace=namespace), one)
            await eventually(lambda: _are_served(api), 30)


async def _are_served(api: ApiClient) -> bool:
    kinds = (await api.get(_CRD))["items"]
    conditions = ((one.get("status") or {}).get("conditions") or [] for one in kinds)
    return all(any(each["type"] == "Established" and each["status"] == "True" for each in of) for of in conditions)


async def _volcano(it: Installed) -> None:
    await it.create_objects()
    conf = it.write("volcano-scheduler.conf", it.config("volcano-scheduler-configmap", "volcano-scheduler.conf"))
    port, health = reserve_port(), reserve_port()
    common = (f"--kubeconfig={it.plane.kubeconfig}", "--logtostderr", "--leader-elect=false", *_FAST)
    it.run(
        "vc-scheduler",
        *common,
        f"--scheduler-conf={conf}",
        "--schedule-period=1s",
        f"--listen-address=127.0.0.1:{reserve_port()}",
        f"--healthz-address=127.0.0.1:{health}",
        "--enable-healthz=true",
        f"--plugins-dir={it.folder}",
        f"--cache-dump-dir={it.folder}",
        DEBUG_SOCKET_DIR=str(it.folder),
    )
    it.run(
        "vc-controller-manager",
        *common,
        f"--listen-address=127.0.0.1:{reserve_port()}",
        "--sharding-configmap=volcano-sharding-configmap",
        "--sharding-configmap-namespace=volcano-system",
        KUBE_POD_NAMESPACE=it.namespace,
        HELM_RELEASE_NAME="volcano",
    )
    await it.answers("vc-scheduler", health)
    admission = it.write("volcano-admission.conf", it.config("volcano-admission-configmap", "volcano-admission.conf"))
    certificates = it.plane.certificates
    names = ("queues-mutate", "queues-validate", "podgroups-validate")
    await it.create_webhooks(port, *(f"volcano-admission-service-{name}" for name in names))
    it.run(
        "vc-webhook-manager",
        f"--kubeconfig={it.plane.kubeconfig}",
        "--logtostderr",
        "--enabled-admission=/podgroups/validate,/queues/mutate,/queues/validate",
        f"--tls-cert-file={certificates.server}",
        f"--tls-private-key-file={certificates.server_key}",
        f"--ca-cert-file={certificates.authority}",
        f"--admission-conf={admission}",
        f"--webhook-namespace={it.namespace}",
        "--webhook-service-name=volcano-admission-service",
        f"--port={port}",
    )
    await it.answers("vc-webhook-manager", port)
    async with it.plane.client() as api:

        async def is_open() -> bool:
            with suppress(ApiError):
                queue = await api.get("/apis/scheduling.volcano.sh/v1beta1/queues/default")
                return (queue.get("status") or {}).get("state") == "Open"
            return False

        await eventually(is_open, 30)


async def _kai(it: Installed) -> None:
    await it.create_objects()
    async with it.plane.client() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "kai-resource-reservation"}})
        for one in it.documents:
            if one["kind"] == "Queue":
                await api.post(_QUEUES_OF_KAI, one)
        # The queues that the chart makes owe nothing (their quota is 0), so that what is not preemptible never starts in them.
        owed = {resource: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for resource in ("cpu", "gpu", "memory")}
        for name, parent in (("all", {}), ("jobs", {"parentQueue": "all"})):
            spec = {"resources": owed, **parent}
            queue = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
            await api.post(_QUEUES_OF_KAI, queue)
    port = reserve_port()
    fast = ("--qps=1000", "--burst=2000")
    it.run(
        "scheduler",
        "--scheduler-name=kai-scheduler",
        "--namespace=kai-scheduler",
        "--nodepool-label-key=kai.scheduler/node-pool",
        "--queue-label-key=kai.scheduler/queue",
        f"--listen-address=127.0.0.1:{port}",
        f"--plugin-server-port={reserve_port()}",
        *fast,
    )
    for program, more in (
        ("binder", ()),
        ("podgrouper", ()),
        ("podgroupcontroller", ("--enable-podgroup-webhook=false",)),
    ):
        metrics, probe = reserve_port(), reserve_port()
        it.run(
            program,
            "--scheduler-name=kai-scheduler",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probe}",
            *fast,
            *more,
        )
    it.run("queuecontroller", "--enable-webhook=false", f"--metrics-listen-address=127.0.0.1:{reserve_port()}", *fast)
    await it.answers("scheduler", port)


async def _coscheduling(it: Installed) -> None:
    await it.create_objects()
    config = yaml.safe_load(it.config("scheduler-config", "scheduler-config.yaml"))
    config["clientConnection"] = {"kubeconfig": str(it.plane.kubeconfig), "qps": 1000, "burst": 2000}
    path, port, probe = it.write("scheduler-config.yaml", yaml.safe_dump(config)), reserve_port(), reserve_port()
    certificates = it.plane.certificates
    it.run(
        "kube-scheduler",
        f"--config={path}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={certificates.server}",
        f"--tls-private-key-file={certificates.server_key}",
        f"--authentication-kubeconfig={it.plane.kubeconfig}",
        f"--authorization-kubeconfig={it.plane.kubeconfig}",
    )
    it.run(
        "controller",
        f"--kubeconfig={it.plane.kubeconfig}",
        f"--metricsAddr=127.0.0.1:{reserve_port()}",
        f"--probeAddr=127.0.0.1:{probe}",
        "--qps=1000",
        "--burst=2000",
    )
    await it.answers("kube-scheduler", port)
    await it.answers("controller", probe)


async def _yunikorn(it: Installed) -> None:
    await it.create_objects()
    # Its port of the REST API is not a setting: one instance at a time.
    it.run("yunikorn-scheduler", NAMESPACE=it.namespace)
    await it.answers("yunikorn-scheduler", 9080)


def _with_etc(upper: Path, work: Path) -> tuple[str, ...]:
    """Return the command that runs a program with files added to ``/etc``, in a mount namespace of its own."""
    mount = f'mount -t overlay overlay -o lowerdir=/etc,upperdir={upper},workdir={work} /etc && exec "$0" "$@"'
    return "unshare", "--mount", "sh", "-c", mount


async def _kueue(it: Installed) -> None:
    port, probe = reserve_port(), reserve_port()
    config = yaml.safe_load(it.config("kueue-manager-config", "controller_manager_config.yaml"))
    keys = it.folder / "webhook"
    keys.mkdir()
    certificates = it.plane.certificates
    (keys / "tls.crt").write_bytes(certificates.server.read_bytes())
    (keys / "tls.key").write_bytes(certificates.server_key.read_bytes())
    config |= {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probe}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(keys)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},  # it wants certificates at a place of its own
    }
    await it.create_objects(conversions=port)
    path = it.write("controller_manager_config.yaml", yaml.safe_dump(config))
    # The folder of the certificates of its metrics is not a setting: the program sees them there, and nothing else does.
    upper, work, metrics = it.folder / "etc", it.folder / "work", it.folder / "etc/kueue/metrics/certs"
    for folder in (metrics, work):
        folder.mkdir(parents=True)
    for key in keys.iterdir():
        (metrics / key.name).write_bytes(key.read_bytes())
    it.run("manager", f"--config={path}", "--zap-log-level=2", behind=_with_etc(upper, work))
    await it.answers("manager", port)
    await it.create_webhooks(port)


@dataclass(frozen=True)
class _Shipped:
    namespace: str
    placement: dict[str, Any]
    start: Callable[[Installed], Awaitable[None]]


_SHIPPED = {
    "volcano": _Shipped("volcano-system", {}, _volcano),
    "kai": _Shipped("kai-scheduler", {"defaultQueue": "jobs"}, _kai),
    "coscheduling": _Shipped("scheduler-plugins", {}, _coscheduling),
    "yunikorn": _Shipped("yunikorn", {}, _yunikorn),
    "kueue": _Shipped("kueue-system", {"defaultQueue": "default"}, _kueue),
}


def assets_of(name: str) -> Path | None:
    """Return the folder of a scheduler, or None without one."""
    folder = Path(os.environ.get(ASSETS) or "/nonexistent") / name
    return folder if (folder / "VERSION").exists() else None


def released(name: str) -> str:
    """Return the release of a scheduler; empty without its folder."""
    folder = assets_of(name)
    return (folder / "VERSION").read_text().strip() if folder else ""


@asynccontextmanager
async def installed(name: str, plane: ControlPlane, folder: Path) -> AsyncIterator[Installed]:
    """Run a scheduler on a control plane. Raises RuntimeError without its folder, or where it does not start."""
    assets = assets_of(name)
    if assets is None:
        raise RuntimeError(f"{ASSETS} names no folder with {name}/VERSION")
    shipped = _SHIPPED[name]
    documents = [
        one
        for path in sorted((assets / "manifests").glob("*.yaml"))
        for one in yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if one
    ]
    it = Installed(
        name=name,
        version=released(name),
        placement={"scheduler": name, **shipped.placement},
        plane=plane,
        assets=assets,
        folder=folder,
        namespace=shipped.namespace,
        documents=documents,
    )
    try:
        await shipped.start(it)
        yield it
    finally:
        await asyncio.gather(*(daemon.stop(signal.SIGKILL) for daemon in it.daemons.values()))
