"""TPU slices, and network devices beside GPUs: quota, fit and charge, with members placed by the real kube-scheduler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.waiting import eventually
from trainmaster.client.http import Client

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

PATIENCE = 90.0
COMMON = {"cpu": "96", "memory": "512Gi", "pods": "50"}
TPU, GPU, RDMA = "google.com/tpu", "nvidia.com/gpu", "rdma/hca_shared_devices_a"
POOL = "cloud.google.com/gke-nodepool"
SLICE = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "cloud.google.com/gke-accelerator-count": "4",
}
ONE_HOST = SLICE | {"cloud.google.com/gke-tpu-topology": "2x2"}
TAINT = {"key": TPU, "value": "present", "effect": "NoSchedule"}
TOLERATED = {"key": TPU, "operator": "Exists", "effect": "NoSchedule"}


@asynccontextmanager
async def system(cluster: Cluster, folder: Path, *sets: str) -> AsyncIterator[Client]:
    """Run the product with the cluster's agent, and wait until its nodes are reported."""
    installed = await install_agent(cluster.plane, "north", *sets)
    stage = KubeStage(folder, [KubeCluster("north", installed.kubeconfig, installed.config)])
    try:
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            try:
                yield client
            finally:
                await _cancel_all(cluster, client)
    finally:
        await asyncio.to_thread(stage.stop)


async def _cancel_all(cluster: Cluster, client: Client) -> None:
    """Cancel all jobs, and wait until their pods are gone: another test has the same namespace for jobs."""
    for job in await asyncio.to_thread(lambda: list(client.jobs())):
        await asyncio.to_thread(client.cancel, job.id)

    async def gone() -> bool:
        return not (await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]

    await eventually(gone, PATIENCE)


def gang(name: str, replicas: int, resources: dict[str, str], queue: str = "default", **fields: Any) -> dict[str, Any]:
    role = {"name": "worker", "replicas": replicas}
    template = {"image": "sim", "command": ["sim", "gate", name], "resources": {"cpu": "1"} | resources}
    template |= {key: fields.pop(key) for key in ("nodeSelector", "tolerations") if key in fields}
    return {"kind": "Job", "name": name, "queue": queue, "roles": [role | {"template": template}], **fields}


async def placed(cluster: Cluster) -> dict[str, list[str]]:
    """Return the nodes of the members of each job that run, by its name."""
    found: dict[str, list[str]] = {}
    for pod in (await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]:
        if pod["status"].get("phase") == "Running":
            name = pod["metadata"]["name"].partition("-")[0]
            found.setdefault(name, []).append(pod["spec"]["nodeName"])
    return {name: sorted(nodes) for name, nodes in found.items()}


async def until_running(cluster: Cluster, **many: int) -> dict[str, list[str]]:
    """Return the nodes once each job has as many members as that, and no other job has any."""
    found: dict[str, list[str]] = {}

    async def reached() -> bool:
        nonlocal found
        found = await placed(cluster)
        return {name: len(nodes) for name, nodes in found.items()} == many

    try:
        await eventually(reached, PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"not {many}, but {found}") from error
    return found


async def until_why(client: Client, job: str, *words: str) -> str:
    said = ""

    async def reached() -> bool:
        nonlocal said
        said = str(await asyncio.to_thread(client.why, job))
        return all(word in said for word in words)

    try:
        await eventually(reached, 30)
    except AssertionError as error:
        raise AssertionError(f"no {words} in {said}") from error
    return said


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_a_gang_has_one_tpu_slice_for_itself(cluster: Cluster, tmp_path: Path, scheduler: str) -> None:
    for pool, labels, hosts in (("a", SLICE, 4), ("b", SLICE, 4), ("c", ONE_HOST, 6)):
        for index in range(hosts):
            allocatable, taints = COMMON | {TPU: "4"}, [TAINT]
            await cluster.kubelet.add_node(
                f"{pool}{index}", allocatable=allocatable, labels=labels | {POOL: pool}, taints=taints
            )
    await cluster.kubelet.add_node("plain", allocatable=COMMON, labels={POOL: "plain"})

    def on_a_slice(name: str, replicas: int = 4, **selector: str) -> dict[str, Any]:
        return gang(
            name,
            replicas,
            {TPU: "4"},
            topology={"required": "slice"},
            nodeSelector=selector,
            tolerations=[TOLERATED],
        )

    async with system(cluster, tmp_path, f"config.placement.scheduler={scheduler}") as client:
        await limit(client, {f"{TPU}@product=tpu-v5-lite-podslice": {"limit": 48}})
        _, _, second, _, large = await asyncio.to_thread(
            client.submit,
            [
                on_a_slice("half", 2, **{"cloud.google.com/gke-tpu-topology": "4x4"}),
                on_a_slice("first"),
                on_a_slice("second"),
                on_a_slice("third"),
                on_a_slice("large", 5),
            ],
        )
        nodes = await until_running(cluster, half=2, first=4)
        pools = {name: {node[0] for node in nodes[name]} for name in nodes}
        assert sorted(pools.values(), key=sorted) == [{"a"}, {"b"}]
        await until_used(client, {TPU: "24", f"{TPU}@product=tpu-v5-lite-podslice": "24"})
        await until_why(client, second, "slice")
        await until_why(client, large, "slice")
        cluster.kubelet.open_gate("half")
        nodes = await until_running(cluster, first=4, second=4)
        assert {node[0] for node in nodes["second"]} == pools["half"]
        cluster.kubelet.open_gate("first")
        nodes = await until_running(cluster, second=4, third=4)
        assert {node[0] for node in nodes["third"]} == pools["first"]
        await until_why(client, large, "slice")


async def test_network_devices_are_counted_beside_gpus_and_kept_for_those_who_ask_for_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    gpus = COMMON | {GPU: "8"}
    for index in range(2):
        await cluster.kubelet.add_node(f"fast{index}", allocatable=gpus | {RDMA: "2"})
        await cluster.kubelet.add_node(f"slow{index}", allocatable=gpus)
    async with system(cluster, tmp_path) as client:
        await limit(client, {RDMA: {"limit": 2}})
        await asyncio.to_thread(client.submit, [gang("plain", 2, {GPU: "8"})])
        nodes = await until_running(cluster, plain=2)
        assert nodes == {"plain": ["slow0", "slow1"]}
        _, later, much = await asyncio.to_thread(
            client.submit,
            [
                gang("fast", 2, {GPU: "4", RDMA: "1"}),
                gang("later", 1, {GPU: "4", RDMA: "1"}),
                gang("much", 1, {GPU: "4", RDMA: "3"}),
            ],
        )
        nodes = await until_running(cluster, plain=2, fast=2)
        assert {node[:4] for node in nodes["fast"]} == {"fast"}
        await until_used(client, {GPU: "24", RDMA: "2"})
        await until_why(client, later, RDMA, "limit")
        await until_why(client, much, RDMA)
        cluster.kubelet.open_gate("fast")
        nodes = await until_running(cluster, plain=2, later=1)
        assert nodes["later"][0].startswith("fast")
        await until_used(client, {GPU: "20", RDMA: "1"})


async def limit(client: Client, resources: dict[str, Any]) -> None:
    await asyncio.to_thread(client.apply, [{"kind": "Queue", "path": "default", "resources": resources}])


async def until_used(client: Client, devices: dict[str, str]) -> None:
    found: dict[str, str] = {}

    async def reached() -> bool:
        nonlocal found
        found = await used(client)
        return found == devices

    try:
        await eventually(reached, 30)
    except AssertionError as error:
        raise AssertionError(f"not {devices}, but {found}") from error


async def used(client: Client) -> dict[str, str]:
    """Return the devices that queue ``default`` uses, by flavor, as quantities."""
    queue = next(one for one in await asyncio.to_thread(client.queues, usage=True) if one.path == "default")
    assert queue.usage is not None
    return {name: amount for name, amount in queue.usage.used.items() if "/" in name}
