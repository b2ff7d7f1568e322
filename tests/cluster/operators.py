"""Operators of other projects on the control plane of a test, as ``tests.cluster.shipped`` runs them.

``TRAINMASTER_OPERATOR_ASSETS`` names a folder with a folder for each of them:

    jobset/             VERSION  manifests/*.yaml  examples/  manager
    training-operator/  VERSION  manifests/*.yaml  examples/  manager
    mpi-operator/       VERSION  manifests/*.yaml  examples/  mpi-operator
    trainer/            VERSION  manifests/*.yaml  examples/  manager
    lws/                VERSION  manifests/*.yaml  examples/  manager
    kuberay/            VERSION  manifests/*.yaml  examples/  manager
    appwrapper/         VERSION  manifests/*.yaml  examples/  manager
    spark-operator/     VERSION  manifests/*.yaml  examples/  spark-operator, and spark/ with Spark's bin/spark-submit
    kubernetes/         VERSION  examples/

``examples/`` are manifests of the project's repository as they are there. ``manifests/`` of trainer have its ClusterTrainingRuntimes.
Spark's programs need Java on PATH. AppWrapper's controller listens on port 9443, and cannot be told another: one instance at a time.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import reserve_port
from tests.cluster.shipped import Installed, Shipped, folder_of, release_of, running
from tests.waiting import eventually

ASSETS = "TRAINMASTER_OPERATOR_ASSETS"
KUBERNETES = "kubernetes"
"""The folder of the examples of Kubernetes itself, whose controllers are those of the control plane."""
_RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
_PORT_OF_APPWRAPPER = 9443
_CERTIFICATES = "/tmp/k8s-webhook-server"


def _configured(
    it: Installed, config_map: str, webhook: Mapping[str, Any] | None = None, **fields: Any
) -> tuple[Path, int]:
    """Write the configuration that is shipped, with ports of this machine and without elections and certificates of its own.

    Returns its path, and the port of its webhooks.
    """
    port = reserve_port()
    config: dict[str, Any] = yaml.safe_load(it.config(config_map, "controller_manager_config.yaml"))
    config |= {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{reserve_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "host": "127.0.0.1", **(webhook or {})},
        "leaderElection": {"leaderElect": False},
        **fields,
    }
    return it.write("controller_manager_config.yaml", yaml.safe_dump(config)), port


async def _manager(it: Installed, config_map: str, webhook: Mapping[str, Any] | None = None, **fields: Any) -> None:
    """Start a controller manager that reads a configuration, and its webhooks."""
    path, port = _configured(it, config_map, webhook, **fields)
    await it.create_objects()
    it.run("manager", f"--config={path}", TMPDIR=str(it.folder))
    await it.answers("manager", port)
    await it.create_webhooks(port)


async def _without_internal_certificates(it: Installed, config_map: str, **fields: Any) -> None:
    keys = it.serving_certificates()
    await _manager(it, config_map, {"certDir": str(keys)}, internalCertManagement={"enable": False}, **fields)


async def _jobset(it: Installed) -> None:
    gates = {"RestartJob": True, "InPlaceRestart": True}  # alpha, and in its examples
    await _without_internal_certificates(it, "jobset-manager-config", featureGates=gates)


async def _lws(it: Installed) -> None:
    await _without_internal_certificates(it, "lws-manager-config")


async def _trainer(it: Installed) -> None:
    it.serving_certificates()
    await _manager(it, "kubeflow-trainer-config", certManagement={"enable": False})
    async with it.plane.client() as api:
        for one in it.documents:
            if one["kind"] == "ClusterTrainingRuntime":
                await _created(api.post, _RUNTIMES, one)


async def _created(post: Any, path: str, document: dict[str, Any]) -> None:
    """Create an object whose webhook may have just been made known."""

    async def is_created() -> bool:
        with suppress(ApiError):
            await post(path, document)
            return True
        return False

    await eventually(is_created, 20)


async def _training_operator(it: Installed) -> None:
    """Start it where the folder that its certificates have to be in, which is not a setting, is one of its own."""
    port, probe = reserve_port(), reserve_port()
    await it.create_objects()
    keys = it.serving_certificates().parent
    mount = f'mkdir -p {_CERTIFICATES} && mount --bind {keys} {_CERTIFICATES} && exec "$0" "$@"'
    it.run(
        "manager",
        f"--webhook-server-port={port}",
        "--metrics-bind-address=0",
        f"--health-probe-bind-address=127.0.0.1:{probe}",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        behind=("unshare", "--mount", "sh", "-c", mount),
        MY_POD_NAMESPACE=it.namespace,
    )
    await it.answers("manager", port)
    await it.create_webhooks(port, prefix="test-")


async def _mpi_operator(it: Installed) -> None:
    await it.create_objects()
    probe = reserve_port()
    it.run(
        "mpi-operator",
        f"--kubeConfig={it.plane.kubeconfig}",
        f"--lock-namespace={it.namespace}",
        f"--monitoring-port={probe}",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    )
    await it.answers("mpi-operator", probe)


async def _kuberay(it: Installed) -> None:
    await it.create_objects()
    probe = reserve_port()
    it.run(
        "manager",
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{probe}",
    )
    await it.answers("manager", probe)


async def _appwrapper(it: Installed) -> None:
    """Start it with the names of other webhook configurations, so that it does not write certificates of its own into these."""
    config = yaml.safe_load(it.config("appwrapper-operator-config", "config.yaml"))
    probe = reserve_port()
    config["controllerManager"] = {
        "health": {"bindAddress": f"127.0.0.1:{probe}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": False,
    }
    config["certManagement"] = {
        "namespace": it.namespace,
        "certificateDir": str(it.serving_certificates()),
        "certificateName": "appwrapper-ca",
        "certificateOrg": "appwrapper",
        "mutatingWebhookConfigName": "none",
        "validatingWebhookConfigName": "none",
        "webhookServiceName": "appwrapper-webhook-service",
        "webhookSecretName": "appwrapper-webhook-server-cert",
    }
    for one in it.documents:
        if one["kind"] == "ConfigMap":
            one["data"]["config.yaml"] = yaml.safe_dump(config)
    await it.create_objects()
    it.run("manager", TMPDIR=str(it.folder), NAMESPACE=it.namespace)
    await it.answers("manager", _PORT_OF_APPWRAPPER)
    await it.create_webhooks(_PORT_OF_APPWRAPPER)


async def _spark_operator(it: Installed) -> None:
    """Start its controller, without webhooks: the agent writes what they would."""
    await it.create_objects()
    probe, server = reserve_port(), urlsplit(it.plane.url)
    it.run(
        "spark-operator",
        "controller",
        "start",
        "--namespaces=",
        "--controller-threads=3",  # each starts a JVM
        "--enable-ui-service=true",
        f"--health-probe-bind-address=127.0.0.1:{probe}",
        SPARK_HOME=str(it.assets / "spark"),
        KUBERNETES_SERVICE_HOST=str(server.hostname),
        KUBERNETES_SERVICE_PORT=str(server.port),
    )
    await it.answers("spark-operator", probe)


_SHIPPED = {
    "jobset": Shipped("jobset-system", _jobset),
    "training-operator": Shipped("kubeflow", _training_operator),
    "mpi-operator": Shipped("mpi-operator", _mpi_operator),
    "trainer": Shipped("kubeflow-system", _trainer),
    "lws": Shipped("lws-system", _lws),
    "kuberay": Shipped("kuberay-operator", _kuberay),
    "appwrapper": Shipped("appwrapper-system", _appwrapper),
    "spark-operator": Shipped("spark-operator", _spark_operator),
}
"""In the order in which they start: Trainer makes JobSets."""
OPERATORS = tuple(_SHIPPED)
CONTROLLERS = "statefulset-controller,deployment-controller,replicaset-controller"
"""Controllers of Kubernetes that operators need beside those that a control plane of tests has."""


def present(*names: str) -> list[str]:
    """Return those of the operators, all unless some are named, that are in the folder, in the order in which they start."""
    return [name for name in OPERATORS if name in (names or OPERATORS) and folder_of(ASSETS, name)]


def released(name: str) -> str:
    """Return the release of an operator; empty without its folder."""
    return release_of(ASSETS, name)


def examples_of(name: str) -> list[Path]:
    """Return the manifests of a project's repository; none without its folder."""
    folder = folder_of(ASSETS, name)
    return sorted((folder / "examples").iterdir()) if folder else []


@asynccontextmanager
async def operators(plane: ControlPlane, folder: Path, names: Sequence[str]) -> AsyncIterator[dict[str, Installed]]:
    """Run operators on a control plane. Raises RuntimeError without their folders, or where one does not start."""
    async with AsyncExitStack() as stack:
        found = {}
        for name in names:
            (folder / name).mkdir(parents=True)
            found[name] = await stack.enter_async_context(running(ASSETS, name, _SHIPPED[name], plane, folder / name))
        yield found
