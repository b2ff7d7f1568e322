"""Pools that a real Cluster Autoscaler grows. Its provider ``kwok`` creates the nodes, which the simulated kubelet plays.

Needs the program ``cluster-autoscaler``, built with ``-tags kwok``, in the folder that ``TRAINMASTER_AUTOSCALER_ASSETS`` names.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.api import ApiError
from tests.cluster.chart import JOBS, NAMESPACE, helm, install_agent
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.cluster.nodes import Shape, node_object
from tests.cluster.processes import Daemon, reserve_port
from tests.waiting import eventually, eventually_sync
from trainmaster.client.http import Client
from trainmaster.protocol.tenants import JobView

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the charts with", allow_module_level=True)
PROGRAM = shutil.which("cluster-autoscaler", path=os.environ.get("TRAINMASTER_AUTOSCALER_ASSETS") or "/nonexistent")
if PROGRAM is None:
    pytest.skip(
        "TRAINMASTER_AUTOSCALER_ASSETS names no folder with the program cluster-autoscaler", allow_module_level=True
    )
__all__ = ["cluster", "plane"]

LABEL, GROUP, MOST = "test/group", "big", 2
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
REQUESTS = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{JOBS}/provisioningrequests"
KWOK = "kwok.x-k8s.io/node"
"""Annotation of the nodes that the provider creates."""
SMALL = {"cpu": "1", "memory": "2Gi", "pods": "20"}
BIG = {"cpu": "4", "memory": "8Gi", "pods": "20"}
CAPACITY = {
    "scalePools": [{"name": GROUP, "labels": {LABEL: GROUP}, "resources": {"cpu": "3900m", "memory": "8Gi"}}],
}
"""The group has no nodes at first, so the configuration says what one offers, but not how many there may be."""


def provider_objects() -> list[dict[str, Any]]:
    """Return the ConfigMaps that the provider reads: its settings, and a node of its only group."""
    settings = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": LABEL},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
    }
    template = node_object("template", Shape(BIG, {LABEL: GROUP}), 1)
    template["metadata"]["annotations"] = {"cluster-autoscaler.kwok.nodegroup/max-count": str(MOST)}
    nodes = {"apiVersion": "v1", "kind": "List", "items": [template]}
    data: dict[str, dict[str, Any]] = {
        "kwok-provider-config": {"config": settings},
        "kwok-provider-templates": {"templates": nodes},
    }
    return [
        {"metadata": {"name": name}, "data": {key: json.dumps(value) for key, value in values.items()}}
        for name, values in data.items()
    ]


@asynccontextmanager
async def autoscaler(cluster: Cluster, folder: Path) -> AsyncIterator[Daemon]:
    """Run a Cluster Autoscaler that looks each second and removes nodes soon after they are idle."""
    for made in provider_objects():
        await cluster.api.post(CONFIG_MAPS, made)
    cluster.kubelet.adopt(KWOK)
    kubeconfig = str(cluster.plane.kubeconfig)
    environment = {"KUBECONFIG": kubeconfig, "KWOK_PROVIDER_MODE": "local", "POD_NAMESPACE": "kube-system"}
    options = {
        "cloud-provider": "kwok",
        "kubeconfig": kubeconfig,
        "namespace": "kube-system",
        "address": f"127.0.0.1:{reserve_port()}",
        "leader-elect": "false",
        "enable-provisioning-requests": "true",
        "scan-interval": "1s",
        "scale-down-delay-after-add": "1s",
        "scale-down-unneeded-time": "3s",
        "node-delete-delay-after-taint": "0s",
        "skip-nodes-with-system-pods": "false",
    }
    words = ["env", *(f"{key}={value}" for key, value in environment.items()), str(PROGRAM)]
    daemon = Daemon([*words, *(f"--{key}={value}" for key, value in options.items())], folder / "autoscaler.log")
    daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()
        for name in ("kwok-provider-config", "kwok-provider-templates", "cluster-autoscaler-status"):
            with suppress(ApiError):
                await cluster.api.delete(f"{CONFIG_MAPS}/{name}")


async def conditions_of_requests(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the answers of the autoscaler to all ProvisioningRequests."""
    found = (await cluster.api.get(REQUESTS))["items"]
    return [condition for one in found for condition in one["status"]["conditions"]]


def gang(name: str, members: int) -> dict[str, Any]:
    """Return a gang of which each member needs a node of the group for itself, and runs until the gate is open."""
    template = {"image": "sim", "command": ["sim", "gate", "go", "succeed"], "resources": {"cpu": "3"}}
    return {"name": name, "queue": "default", "roles": [{"name": "worker", "replicas": members, "template": template}]}


class PooledSystem:
    """Calls of the dispatcher's clients, each in a thread: the kubelet needs the event loop."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def submit(self, spec: dict[str, Any]) -> str:
        def call() -> str:
            with Client(self._url, ADMIN_KEY) as client:
                (job,) = client.submit([spec])
                return job

        return await asyncio.to_thread(call)

    async def until_pool(self, nodes: int, more: int) -> None:
        """Wait until the pool has ``nodes`` nodes and may get ``more``."""

        def call() -> None:
            with Client(self._url, ADMIN_KEY) as client:

                def is_so() -> bool:
                    (pool,) = client.clusters()[0].pools
                    return (pool.nodes, pool.most, pool.count) == (nodes, MOST, more)

                eventually_sync(is_so, 60, every=0.2)

        await asyncio.to_thread(call)

    async def until_reason(self, job: str, words: str) -> str:
        """Return why a job waits, once the sentence contains ``words``."""

        def call() -> str:
            with Client(self._url, ADMIN_KEY) as client:
                eventually_sync(lambda: words in client.why(job).sentence, 30, every=0.2)
                return client.why(job).sentence

        return await asyncio.to_thread(call)

    async def until_state(self, job: str, state: str) -> JobView:
        def call() -> JobView:
            with Client(self._url, ADMIN_KEY) as client:
                eventually_sync(lambda: client.job(job).state == state, 60, every=0.2)
                return client.job(job)

        return await asyncio.to_thread(call)

    async def messages(self, job: str) -> str:
        def call() -> str:
            with Client(self._url, ADMIN_KEY) as client:
                return "\n".join(str(event.message) for event in client.events(job))

        return await asyncio.to_thread(call)

    async def cancel(self, job: str) -> None:
        def call() -> None:
            with Client(self._url, ADMIN_KEY) as client:
                client.cancel(job)

        await asyncio.to_thread(call)


ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


@pytest.fixture
async def requests(cluster: Cluster) -> None:
    """Let the API server take ProvisioningRequests."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    document = yaml.safe_load((Path(__file__).parents[1] / "crds/provisioningrequest.yaml").read_text())
    try:
        await cluster.api.post(path, document)
    except ApiError as error:
        if error.status != 409:
            raise

    async def is_served() -> bool:
        groups = (await cluster.api.get("/apis"))["groups"]
        return any(group["name"] == "autoscaling.x-k8s.io" for group in groups)

    await eventually(is_served)


@pytest.mark.usefixtures("requests")
@pytest.mark.parametrize(
    ("scheduler", "asks_by"),
    [("gates", None), ("native", None), ("gates", ATOMIC)],
    ids=["gates", "native", "requests"],
)
async def test_a_gang_gets_nodes_from_the_autoscaler_and_one_that_needs_more_than_there_may_be_is_not_sent(
    cluster: Cluster, tmp_path: Path, scheduler: str, asks_by: str | None
) -> None:
    await cluster.kubelet.add_nodes("small", 1, allocatable=SMALL)
    chosen = () if asks_by is None else (f"config.capacity.autoscaler.provisioningRequest={asks_by}",)
    installed = await install_agent(cluster.plane, "north", *chosen)
    capacity = {**CAPACITY, "autoscaler": {"nodeLabel": LABEL, "provisioningRequest": asks_by}}
    config = {**installed.config, "capacity": capacity, "tombstone": "1s"}
    config["placement"] = {**config.get("placement", {}), "scheduler": scheduler}
    stage = KubeStage(tmp_path / "stage", [KubeCluster("north", installed.kubeconfig, config)])
    async with autoscaler(cluster, tmp_path) as program:
        try:
            await asyncio.to_thread(stage.start)
            system = PooledSystem(stage.urls[0])
            await system.until_pool(0, MOST)
            fits, too_large = await system.submit(gang("fits", MOST)), await system.submit(gang("too-large", MOST + 1))
            await system.until_state(fits, "running")
            assert f"its pool {GROUP} grows for it" in await system.messages(fits)
            lives = cluster.kubelet.living()
            assert len({life.node for life in lives}) == MOST
            answers = {(one["type"], one["status"]) for one in await conditions_of_requests(cluster)}
            assert answers >= ({("Provisioned", "True")} if asks_by else set())
            await system.until_pool(MOST, 0)
            full = f"pool {GROUP} has the most nodes that it may have, {MOST}"
            assert "no more of them can come now" in await system.until_reason(too_large, full)
            cluster.kubelet.open_gate("go")
            await system.until_state(fits, "succeeded")
            await system.until_pool(0, MOST)
            assert (await system.until_state(too_large, "queued")).runs == []
            await system.cancel(too_large)
        except AssertionError as error:
            error.add_note(program.last_words(60))
            raise
        finally:
            stage.stop()
        nodes = [one["metadata"]["name"] for one in (await cluster.api.get("/api/v1/nodes"))["items"]]
        assert nodes == ["small-0"]

        async def nothing_is_left() -> bool:
            pods = await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods")
            records = await cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps")
            kept = [one["metadata"]["name"] for one in records["items"] if one["metadata"]["name"].startswith("fits")]
            templates = await cluster.api.get(f"/api/v1/namespaces/{JOBS}/podtemplates")
            requests = await cluster.api.get(REQUESTS)
            return not (pods["items"] or kept or templates["items"] or requests["items"])

        await eventually(nothing_is_left)
