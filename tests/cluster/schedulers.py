"""Schedulers of other projects on the control plane of a test, as ``tests.cluster.shipped`` runs them.

``TRAINMASTER_SCHEDULER_ASSETS`` names a folder with a folder for each of them:

    volcano/       VERSION  manifests/*.yaml  vc-scheduler vc-controller-manager vc-webhook-manager
    kai/           VERSION  manifests/*.yaml  scheduler binder podgrouper podgroupcontroller queuecontroller [admission]
    coscheduling/  VERSION  manifests/*.yaml  kube-scheduler controller
    yunikorn/      VERSION  manifests/*.yaml  yunikorn-scheduler
    kueue/         VERSION  manifests/*.yaml  manager
    hami/          VERSION  manifests/*.yaml  scheduler

HAMi extends kube-scheduler: that of ``KUBEBUILDER_ASSETS`` runs with the configuration of HAMi's chart.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import yaml

from tests.cluster.api import ApiError
from tests.cluster.control_plane import SCHEDULER, ControlPlane, assets
from tests.cluster.processes import reserve_port
from tests.cluster.shipped import Installed, Shipped, folder_of, release_of, running
from tests.waiting import eventually

ASSETS = "TRAINMASTER_SCHEDULER_ASSETS"
_FAST = ("--kube-api-qps=1000", "--kube-api-burst=2000")
RESERVATIONS_OF_KAI = "kai-resource-reservation"
"""Namespace of the pods by which KAI holds GPUs that others share."""
_QUEUES_OF_KAI = "/apis/scheduling.run.ai/v2/queues"


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
        await api.post("/api/v1/namespaces", {"metadata": {"name": RESERVATIONS_OF_KAI}})
        await api.post(
            f"/api/v1/namespaces/{RESERVATIONS_OF_KAI}/serviceaccounts", {"metadata": {"name": RESERVATIONS_OF_KAI}}
        )
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
        f"--scheduler-conf={it.write('scheduler.conf', '')}",
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


async def admit_gpu_parts(it: Installed) -> None:
    """Start KAI's program that admits pods with parts of GPUs, and create its webhooks as KAI's operator does."""
    port = reserve_port()
    it.serving_certificates()
    it.run(
        "admission",
        "--gpu-sharing-enabled",
        "--gpu-fraction-runtime-class-name=",
        f"--webhook-addr={port}",
        f"--metrics-bind-address=127.0.0.1:{reserve_port()}",
        f"--health-probe-bind-address=127.0.0.1:{reserve_port()}",
        TMPDIR=str(it.folder),
    )
    await it.answers("admission", port)
    for kind, path, operations in (
        ("MutatingWebhookConfiguration", "/mutate--v1-pod", ["CREATE"]),
        ("ValidatingWebhookConfiguration", "/validate--v1-pod", ["CREATE", "UPDATE"]),
    ):
        webhook = {
            "name": "admission.run.ai",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {"service": {"path": path}},
            "matchConditions": [{"name": "kai", "expression": "object.spec.schedulerName == 'kai-scheduler'"}],
            "rules": [{"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }
        name = f"{kind.partition('Webhook')[0].lower()}-kai-admission"
        it.documents.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": name},
                "webhooks": [webhook],
            }
        )
    await it.create_webhooks(port)


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
    keys = it.serving_certificates()
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


async def _hami(it: Installed) -> None:
    await it.create_objects()
    port, health = reserve_port(), reserve_port()
    certificates = it.plane.certificates
    it.run(
        "scheduler",
        f"--http_bind=127.0.0.1:{port}",
        f"--cert_file={certificates.server}",
        f"--key_file={certificates.server_key}",
        "--scheduler-name=hami-scheduler",
        f"--metrics-bind-address=127.0.0.1:{reserve_port()}",
        f"--device-config-file={it.write('devices.yaml', it.config('hami-scheduler-device', 'device-config.yaml'))}",
        "--kube-qps=1000",
        "--kube-burst=2000",
    )
    await it.answers("scheduler", port)
    config = yaml.safe_load(it.config("hami-scheduler", "config.yaml"))
    config["leaderElection"] = {"leaderElect": False}
    config["clientConnection"] = {"kubeconfig": str(it.plane.kubeconfig), "qps": 1000, "burst": 2000}
    config["extenders"][0]["urlPrefix"] = f"https://127.0.0.1:{port}"
    it.run(
        SCHEDULER,
        f"--config={it.write('scheduler.yaml', yaml.safe_dump(config))}",
        f"--secure-port={health}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={certificates.server}",
        f"--tls-private-key-file={certificates.server_key}",
        f"--authentication-kubeconfig={it.plane.kubeconfig}",
        f"--authorization-kubeconfig={it.plane.kubeconfig}",
        of=assets(SCHEDULER),
    )
    await it.answers(SCHEDULER, health)
    await it.create_webhooks(port)


_SHIPPED = {
    "volcano": Shipped("volcano-system", _volcano),
    "kai": Shipped("kai-scheduler", _kai, {"defaultQueue": "jobs"}),
    "coscheduling": Shipped("scheduler-plugins", _coscheduling),
    "yunikorn": Shipped("yunikorn", _yunikorn),
    "kueue": Shipped("kueue-system", _kueue, {"defaultQueue": "default"}),
    "hami": Shipped("hami-system", _hami, {"scheduler": "gates"}),
}


def assets_of(name: str) -> Path | None:
    """Return the folder of a scheduler, or None without one."""
    return folder_of(ASSETS, name)


def released(name: str) -> str:
    """Return the release of a scheduler; empty without its folder."""
    return release_of(ASSETS, name)


@asynccontextmanager
async def installed(name: str, plane: ControlPlane, folder: Path) -> AsyncIterator[Installed]:
    """Run a scheduler on a control plane. Raises RuntimeError without its folder, or where it does not start."""
    shipped = _SHIPPED[name]
    placement = {"scheduler": name, **shipped.placement}
    async with running(ASSETS, name, replace(shipped, placement=placement), plane, folder) as it:
        yield it
