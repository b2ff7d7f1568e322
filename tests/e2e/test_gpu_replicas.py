"""Parts of GPUs on nodes whose device plugin divides them: replicas of time-slicing or MPS, by the real kube-scheduler."""

import asyncio
from collections import Counter
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

SHARED, WHOLE = "nvidia.com/gpu.shared", "nvidia.com/gpu"
COMMON = {"cpu": "8", "memory": "16Gi", "pods": "50"}


def a_job(name: str, **needs: Any) -> dict[str, Any]:
    template: dict[str, Any] = {"image": "sim", "command": ["sim", "gate", "end"], "resources": {"cpu": "100m"}}
    if "gpus" in needs:
        template["resources"][WHOLE] = needs["gpus"]
    else:
        template["gpu"] = needs
    return {"kind": "Job", "name": name, "queue": "default", "roles": [{"name": "main", "template": template}]}


async def test_members_get_replicas_that_are_large_enough_and_no_more_than_there_are(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name, replicas, resource, count in (
        ("quarters", "4", SHARED, "8"),
        ("halves", "2", SHARED, "4"),
        ("whole", "1", WHOLE, "2"),
    ):
        labels = {"nvidia.com/gpu.replicas": replicas, "kind": name}
        await cluster.kubelet.add_node(name, allocatable=COMMON | {resource: count}, labels=labels)
    installed = await install_agent(cluster.plane, "north")
    stage = KubeStage(tmp_path, [KubeCluster("north", installed.kubeconfig, installed.config)])
    try:
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            await _run(cluster, client)
    finally:
        await asyncio.to_thread(stage.stop)


async def _run(cluster: Cluster, client: Client) -> None:
    async def submit(*specs: dict[str, Any]) -> list[str]:
        return list(await asyncio.to_thread(client.submit, list(specs)))

    async def nodes() -> Counter[tuple[str, str]]:
        """Return how many members of each sort run on each node."""
        pods = (await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]
        return Counter(
            (pod["metadata"]["name"].partition("-")[0], pod["spec"].get("nodeName", ""))
            for pod in pods
            if pod["status"].get("phase") == "Running"
        )

    async def running(many: int) -> bool:
        return sum((await nodes()).values()) == many

    await submit(*(a_job(f"half-{number}", fraction="0.5") for number in range(6)))
    await eventually(lambda: running(4), 60)
    await submit(*(a_job(f"quarter-{number}", fraction="0.2") for number in range(10)), a_job("one", gpus=2))
    await eventually(lambda: running(13), 60)
    assert await nodes() == {("half", "halves"): 4, ("quarter", "quarters"): 8, ("one", "whole"): 1}
    (large,) = await submit(a_job("large", fraction="0.6"))
    said = ""

    async def is_told() -> bool:
        nonlocal said
        said = str(await asyncio.to_thread(client.why, large))
        return "part of nvidia.com/gpu" in said

    await eventually(is_told, 30)
    assert "needs 0.6 part of nvidia.com/gpu on one node, the best node has 0" in said
    cluster.kubelet.open_gate("end")
    await eventually(lambda: _are_over(client, 17), 120)


async def _are_over(client: Client, many: int) -> bool:
    jobs = await asyncio.to_thread(lambda: list(client.jobs()))
    return sum(str(job.state) == "succeeded" for job in jobs) == many
