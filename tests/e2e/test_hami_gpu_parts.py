"""Parts of GPUs by the real HAMi: many jobs at a time share GPUs, no GPU is ever shared by more than fit on it, and whole ones are not
shared.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.api import ApiError
from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, need_programs, open_cluster
from tests.cluster.schedulers import ASSETS, assets_of, installed
from tests.waiting import beside, eventually
from trainmaster.client.http import Client

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
if assets_of("hami") is None:
    pytest.skip(f"{ASSETS} names no folder with hami", allow_module_level=True)

GPU, MEMORY, PERCENT, CORES = (f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores"))
NODES, GPUS, MIB, PLACES = 10, 4, 80_000, 10
NODE = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(GPUS * PLACES)}
LABELS = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": str(MIB)}
LOCK, REGISTER = "hami.io/mutex.lock", "hami.io/node-nvidia-register"
HANDSHAKE, PHASE = "hami.io/node-handshake", "hami.io/bind-phase"
ALLOCATED = "hami.io/vgpu-devices-allocated"
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook"
JOBS_OF_ALL = 300
OTHERS = (8_000, 20_000, 40_000, 79_999)
"""MiB of the pods of others."""


class Has(NamedTuple):
    """A pod's part of one GPU, as HAMi wrote it."""

    gpu: str
    mib: int
    cores: int


def parts_of(pod: dict[str, Any]) -> list[Has]:
    """Return a living pod's parts of GPUs."""
    if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
        return []
    text = (pod["metadata"].get("annotations") or {}).get(ALLOCATED, "")
    words = [one.split(",") for container in text.split(";") for one in container.split(":") if one]
    return [Has(f"{pod['spec']['nodeName']}/{uuid}", int(mib), int(cores)) for uuid, _, mib, cores in words]


class Sharing:
    """The system with one cluster, whose GPUs HAMi shares, and what is seen of them."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.most_on_a_gpu = self.most_at_a_time = self.most_pods_on_a_gpu = 0
        """The most MiB of one GPU that pods had at a time, pods with parts at a time, and pods on one GPU."""
        self.whole = 0
        """The most GPUs that pods had for themselves at a time."""
        self.looks = 0

    async def register(self, node: str) -> None:
        """Write what HAMi's device plugin on a node writes of its GPUs."""
        gpus = [
            {
                "id": f"GPU-{number}",
                "index": number,
                "count": PLACES,
                "devmem": MIB,
                "devcore": 100,
                "type": "NVIDIA-A100-SXM4-80GB",
                "mode": "hami-core",
                "health": True,
            }
            for number in range(GPUS)
        ]
        await self._annotate(node, {REGISTER: json.dumps(gpus)})

    async def _annotate(self, node: str, annotations: dict[str, str | None]) -> None:
        await self.cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}}, kind="merge")

    async def play_device_plugins(self) -> None:
        """Answer handshakes, and complete the binding of each pod, as HAMi's device plugins do on all nodes."""
        turn = 0
        while True:
            if turn % 300 == 0:
                for number in range(NODES):
                    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
                    await self._annotate(f"node-{number}", {HANDSHAKE: f"Reported_{now}"})
            turn += 1
            for node in (await self.cluster.api.get("/api/v1/nodes"))["items"]:
                metadata = node["metadata"]
                words = (metadata.get("annotations") or {}).get(LOCK, "").split(",")
                if len(words) == 3:
                    await self._complete(metadata["name"], words[1], words[2])
            await asyncio.sleep(0.05)

    async def _complete(self, node: str, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        with suppress(ApiError):  # the pod is gone: HAMi itself takes away such a lock
            pod = await self.cluster.api.get(path)
            annotations = pod["metadata"].get("annotations") or {}
            if pod["spec"].get("nodeName") == node and annotations.get(PHASE) == "allocating":
                done = {"metadata": {"annotations": {PHASE: "success"}}}
                await self.cluster.api.patch(path, done, kind="merge")
                await self._annotate(node, {LOCK: None})

    async def look(self) -> None:
        """Look at all GPUs again and again: what the pods on each have together."""
        while True:
            pods = (await self.cluster.api.get("/api/v1/pods"))["items"]
            self.looks += 1
            mib, cores, on = Counter[str](), Counter[str](), Counter[str]()
            alone = set[str]()
            many = 0
            for pod in pods:
                parts = parts_of(pod)
                many += bool(parts)
                wanted = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
                if pod["metadata"]["namespace"] == JOBS and parts:
                    assert len(parts) == int(wanted[GPU]), pod["metadata"]["name"]
                for one in parts:
                    mib[one.gpu] += one.mib
                    cores[one.gpu] += one.cores
                    on[one.gpu] += 1
                    if wanted.get(PERCENT) == "100":
                        assert (one.mib, one.cores) == (MIB, 100)
                        alone.add(one.gpu)
            assert max(mib.values(), default=0) <= MIB, mib
            assert max(cores.values(), default=0) <= 100, cores
            assert max(on.values(), default=0) <= PLACES, on
            assert [gpu for gpu in alone if on[gpu] != 1] == []
            self.most_on_a_gpu = max(self.most_on_a_gpu, *mib.values(), 0)
            self.most_pods_on_a_gpu = max(self.most_pods_on_a_gpu, *on.values(), 0)
            self.most_at_a_time = max(self.most_at_a_time, many)
            self.whole = max(self.whole, len(alone))
            await asyncio.sleep(0.2)

    async def report(self) -> tuple[int, list[int]]:
        """Return the whole GPUs that the agent reports as free beside its own members, and what is free of those of others."""
        groups = (await asyncio.to_thread(self.client.cluster, "north")).groups
        shared = [one for group in groups if group.sharing for one in group.sharing.open * group.count]
        return sum(group.count * group.free.get(GPU, 0) for group in groups), sorted(shared)


@pytest.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[Sharing]:
    for folder in ("plane", "hami", "stage"):
        (tmp_path / folder).mkdir()
    async with AsyncExitStack() as stack:
        plane = await ControlPlane.start(tmp_path / "plane")
        stack.push_async_callback(plane.stop)
        cluster = await stack.enter_async_context(open_cluster(plane))
        await cluster.kubelet.add_nodes("node", NODES, allocatable=NODE, labels=LABELS)
        await stack.enter_async_context(installed("hami", plane, tmp_path / "hami"))
        agent = await install_agent(
            plane,
            "north",
            *("config.placement.scheduler=gates", "config.capacity.gpuSharing=hami", "config.patience.opened=2m"),
        )
        stage = KubeStage(tmp_path / "stage", [KubeCluster("north", agent.kubeconfig, agent.config)])
        stack.push_async_callback(asyncio.to_thread, stage.stop)
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            found = Sharing(cluster, client)
            for number in range(NODES):
                await found.register(f"node-{number}")
            async with beside(found.play_device_plugins(), found.look()):
                yield found


def other(number: int, mib: int) -> dict[str, Any]:
    """Return a pod of somebody else with some of a GPU's memory; the scheduler is the cluster's default one."""
    container = {
        "name": "main",
        "image": "sim",
        "command": ["sim", "gate", "end"],
        "resources": {"limits": {GPU: "1", MEMORY: str(mib)}},
    }
    return {"metadata": {"name": f"other-{number}"}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def a_job(number: int, chance: random.Random) -> dict[str, Any]:
    words = ["sim", "sleep", str(chance.choice((5, 15, 30))), "succeed"]
    template: dict[str, Any] = {"image": "sim", "command": words, "resources": {"cpu": "100m", "memory": "16Mi"}}
    role: dict[str, Any] = {"name": "main", "template": template}
    fraction = f"0.{chance.randint(1, 999):03}"
    kind = chance.random()
    if kind < 0.12:
        template["resources"][GPU] = chance.choice((1, 1, 2))
    elif kind < 0.3:
        template["gpu"] = {"memory": f"{chance.randint(1_000, MIB - 1)}Mi"}
    elif kind < 0.4:
        asks = chance.choice(
            (
                {GPU: "1", PERCENT: str(chance.randint(1, 99)), CORES: "20"},
                {GPU: "1", MEMORY: str(chance.randint(1, MIB))},
                {GPU: "1", CORES: "30"},
                {MEMORY: "3000"},
            )
        )
        container = {
            "name": "main",
            "image": "sim",
            "command": words,
            "resources": {"limits": asks},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        secure = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        role = {"name": "main", "podTemplate": {"spec": {"containers": [container], "securityContext": secure}}}
    else:
        template["gpu"] = {"fraction": fraction}
        role["replicas"] = chance.choice((1, 1, 1, 2))
    return {"kind": "Job", "name": f"part-{number}", "queue": "default", "roles": [role]}


async def test_hundreds_of_jobs_with_random_parts_share_the_gpus_and_none_has_more_than_it_fits(
    sharing: Sharing,
) -> None:
    async def is_reported(whole: int, shared: list[int]) -> bool:
        return await sharing.report() == (whole, shared)

    async def run(specs: list[dict[str, Any]]) -> Counter[str]:
        ids = await asyncio.to_thread(sharing.client.submit, specs)
        return Counter(str(one.state) for one in await asyncio.to_thread(sharing.client.wait, ids, timeout=900))

    await eventually(lambda: is_reported(NODES * GPUS, []), 60)
    for number, mib in enumerate(OTHERS):
        made = await sharing.cluster.api.post(sharing.cluster.pods, other(number, mib))
        assert made["spec"]["schedulerName"] == "hami-scheduler", "HAMi's webhook did not see the pod"

    async def others_run() -> bool:
        return list((await sharing.cluster.phases()).values()) == ["Running"] * len(OTHERS)

    await eventually(others_run, 90)
    on = Counter[str]()
    for pod in (await sharing.cluster.api.get(sharing.cluster.pods))["items"]:
        on.update({one.gpu: one.mib for one in parts_of(pod)})
    assert sum(on.values()) == sum(OTHERS)
    left = sorted((MIB - mib) * 1000 // MIB for mib in on.values())
    await eventually(lambda: is_reported(NODES * GPUS - len(on), [one for one in left if one]), 60)
    chance = random.Random(7)
    specs = [a_job(number, chance) for number in range(JOBS_OF_ALL)]
    half = JOBS_OF_ALL // 2
    ended = await run(specs[:half])
    # What the agent itself requests is enough.
    await sharing.cluster.api.delete(WEBHOOK)
    ended += await run(specs[half:])
    print(
        f"\n{JOBS_OF_ALL} jobs on {NODES * GPUS} GPUs, looked at {sharing.looks} times: at most {sharing.most_on_a_gpu} MiB of a GPU,"
        f" {sharing.most_pods_on_a_gpu} pods on one, {sharing.most_at_a_time} pods and {sharing.whole} whole GPUs at a time"
    )
    assert ended == {"succeeded": JOBS_OF_ALL}
    assert sharing.most_at_a_time > NODES
    assert sharing.whole > 1
    assert 0.9 * MIB < sharing.most_on_a_gpu <= MIB
    await eventually(lambda: is_reported(NODES * GPUS - len(on), [one for one in left if one]), 60)
