"""Parts of GPUs by the real KAI: many jobs at a time share GPUs, and no GPU is ever shared by more than fit on it."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.api import ApiError
from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, need_programs, open_cluster
from tests.cluster.schedulers import ASSETS, RESERVATIONS_OF_KAI, admit_gpu_parts, assets_of, installed
from tests.waiting import beside, eventually
from trainmaster.client.http import Client
from trainmaster_agent.capacity.shared_gpus import GPU_GROUP

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
_FOLDER = assets_of("kai")
if _FOLDER is None or not (_FOLDER / "admission").exists():
    pytest.skip(f"{ASSETS} names no folder with kai and its admission", allow_module_level=True)

GPU = "nvidia.com/gpu"
NODES, GPUS, MIB = 10, 4, 80_000
NODE = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(GPUS)}
LABELS = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": str(MIB)}
INDEX = "run.ai/reserve_for_gpu_index"
JOBS_OF_ALL = 1000


class Sharing:
    """The system with one cluster, whose GPUs KAI shares, and what is seen of them."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.most_on_a_gpu = 0
        """The most thousandths of one GPU that pods had at a time."""
        self.most_at_a_time = 0
        """The most pods with a part of a GPU at a time."""
        self.looks = 0
        self.failed_binds: set[str] = set()
        """Names of KAI's BindRequests whose first attempt failed: the scheduler gives their parts to others."""

    async def hold_gpus(self) -> None:
        """Name the index of each GPU that KAI holds, as KAI's own program in the pod that holds it does."""
        path = f"/api/v1/namespaces/{RESERVATIONS_OF_KAI}/pods"
        indexes: dict[str, int] = defaultdict(int)
        while True:
            for pod in (await self.cluster.api.get(path))["items"]:
                metadata, node = pod["metadata"], pod["spec"].get("nodeName")
                if node and INDEX not in (metadata.get("annotations") or {}):
                    index = indexes[node] = (indexes[node] + 1) % GPUS
                    patch = {"metadata": {"annotations": {INDEX: str(index)}}}
                    with suppress(ApiError):  # its last pod has ended, and it is gone
                        await self.cluster.api.patch(f"{path}/{metadata['name']}", patch, kind="merge")
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Look at all GPUs again and again: what their pods have of each, and how many GPUs of a node are in use."""
        while True:
            pods = (await self.cluster.api.get("/api/v1/pods"))["items"]
            self.looks += 1
            parts, whole = Counter[str](), Counter[str]()
            many = 0
            for pod in pods:
                metadata, spec = pod["metadata"], pod["spec"]
                if pod["status"].get("phase") in ("Succeeded", "Failed") or not spec.get("nodeName"):
                    continue
                requests = spec["containers"][0].get("resources", {}).get("requests", {})
                whole[spec["nodeName"]] += int(requests.get(GPU, 0))
                annotations, group = metadata.get("annotations") or {}, _group_of(pod)
                if group and metadata["namespace"] == JOBS:
                    many += 1
                    parts[group] += _thousandths(annotations)
            assert max(whole.values(), default=0) <= GPUS, whole
            for group, part in parts.items():
                assert part <= 1000, "\n".join(_on_gpu(pod) for pod in pods if _group_of(pod) == group)
            binds = (await self.cluster.api.get("/apis/scheduling.run.ai/v1alpha2/bindrequests"))["items"]
            self.failed_binds |= {
                one["metadata"]["name"] for one in binds if (one.get("status") or {}).get("failedAttempts")
            }
            self.most_on_a_gpu = max(self.most_on_a_gpu, *parts.values(), 0)
            self.most_at_a_time = max(self.most_at_a_time, many)
            await asyncio.sleep(0.2)

    async def free_gpus(self) -> int:
        """Return the whole GPUs that the agent reports as free beside its own members."""
        groups = (await asyncio.to_thread(self.client.cluster, "north")).groups
        return sum(group.count * group.free.get(GPU, 0) for group in groups)


def _group_of(pod: dict[str, Any]) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(GPU_GROUP)


def _on_gpu(pod: dict[str, Any]) -> str:
    """Return what there is to know of a pod that shares a GPU, for messages."""
    metadata, status = pod["metadata"], pod["status"]
    times = {one["type"]: one["lastTransitionTime"] for one in status.get("conditions", ())}
    known = {key: metadata.get(key) for key in ("name", "creationTimestamp", "deletionTimestamp", "annotations")}
    return f"{known} on {pod['spec'].get('nodeName')}, {status.get('phase')}, {times}"


def _thousandths(annotations: dict[str, str]) -> int:
    if "gpu-fraction" in annotations:
        return round(float(annotations["gpu-fraction"]) * 1000)
    return round(int(annotations["gpu-memory"]) / MIB * 1000)


@pytest.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[Sharing]:
    for folder in ("plane", "kai", "stage"):
        (tmp_path / folder).mkdir()
    async with AsyncExitStack() as stack:
        plane = await ControlPlane.start(tmp_path / "plane")
        stack.push_async_callback(plane.stop)
        it = await stack.enter_async_context(installed("kai", plane, tmp_path / "kai"))
        await admit_gpu_parts(it)
        cluster = await stack.enter_async_context(open_cluster(plane))
        await cluster.kubelet.add_nodes("node", NODES, allocatable=NODE, labels=LABELS)
        agent = await install_agent(
            plane,
            "north",
            *("config.placement.scheduler=kai", "config.placement.defaultQueue=jobs", "config.capacity.gpuSharing=kai"),
        )
        stage = KubeStage(tmp_path / "stage", [KubeCluster("north", agent.kubeconfig, agent.config)])
        stack.push_async_callback(asyncio.to_thread, stage.stop)
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            found = Sharing(cluster, client)
            async with beside(found.hold_gpus(), found.look()):
                yield found


def a_job(number: int, chance: random.Random) -> dict[str, Any]:
    template: dict[str, Any] = {
        "image": "sim",
        "command": ["sim", "sleep", str(chance.choice((5, 15, 30))), "succeed"],
        "resources": {"cpu": "100m", "memory": "16Mi"},
    }
    kind = chance.random()
    if kind < 0.1:
        template["resources"][GPU] = 1
    elif kind < 0.2:
        template["gpu"] = {"memory": f"{chance.randint(1_000, MIB - 1)}Mi"}
    else:
        template["gpu"] = {"fraction": f"0.{chance.randint(1, 99):02}"}
    return {
        "kind": "Job",
        "name": f"part-{number}",
        "queue": "default",
        "roles": [{"name": "main", "template": template}],
    }


async def test_a_thousand_jobs_with_random_parts_share_the_gpus_and_none_has_more_than_it_fits(
    sharing: Sharing,
) -> None:
    await eventually(lambda: _is(sharing, NODES * GPUS), 60)
    chance = random.Random(7)
    specs = [a_job(number, chance) for number in range(JOBS_OF_ALL)]
    ids = await asyncio.to_thread(sharing.client.submit, specs)
    ended = await asyncio.to_thread(sharing.client.wait, ids, timeout=1200)
    assert Counter(str(one.state) for one in ended) == {"succeeded": JOBS_OF_ALL}
    print(
        f"\n{JOBS_OF_ALL} jobs on {NODES * GPUS} GPUs, looked at {sharing.looks} times: at most {sharing.most_on_a_gpu}"
        f" thousandths of a GPU, {sharing.most_at_a_time} parts at a time; {len(sharing.failed_binds)} failed to bind at first"
    )
    assert sharing.most_at_a_time > NODES
    assert 900 < sharing.most_on_a_gpu <= 1000
    await eventually(lambda: _is(sharing, NODES * GPUS), 60)
    left = (await sharing.cluster.api.get(f"/api/v1/namespaces/{RESERVATIONS_OF_KAI}/pods"))["items"]
    assert left == []


async def _is(sharing: Sharing, gpus: int) -> bool:
    return await sharing.free_gpus() == gpus
