"""The kube-scheduler of the agent's chart that fills nodes, as its ServiceAccount, on a real control plane."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.chart import JOBS, NAMESPACE, helm, install_agent
from tests.cluster.control_plane import SCHEDULER
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.cluster.processes import Daemon, reserve_port
from tests.waiting import eventually
from trainmaster.client.http import Client

PROGRAMS = need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

NODES, GPU = 6, "nvidia.com/gpu"
ACCOUNT = f"{NAMESPACE}-scheduler"
GATES = ("GenericWorkload=true", "GangScheduling=true", "TopologyAwareWorkloadScheduling=true")
PACKS = ("packingScheduler.enabled=true", "packingScheduler.image=kube-scheduler:test")


def a_job(name: str, members: int) -> dict[str, Any]:
    resources = {"cpu": "1", "memory": "1Gi", GPU: "1"}
    template = {"image": "sim", "command": ["sim", "gate", "end"], "resources": resources}
    roles = [{"name": "main", "replicas": members, "template": template}]
    return {"kind": "Job", "name": name, "queue": "default", "roles": roles}


@asynccontextmanager
async def packing_scheduler(cluster: Cluster, folder: Path) -> AsyncIterator[Path]:
    """Run what the chart's Deployment runs; yield the path of its log. It finds the API server by a file, not by being in a pod."""
    namespace = f"/api/v1/namespaces/{NAMESPACE}"
    config = yaml.safe_load((await cluster.api.get(f"{namespace}/configmaps/{ACCOUNT}"))["data"]["scheduler.yaml"])
    deployment = await cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{ACCOUNT}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    kubeconfig = await cluster.plane.service_account_kubeconfig(NAMESPACE, ACCOUNT, 24 * 3600)
    file = folder / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config | {"clientConnection": {"kubeconfig": str(kubeconfig)}}))
    changed = {"--config": file, "--secure-port": reserve_port()}
    words = [word.partition("=") for word in container["args"]]
    options = [f"{name}={changed.get(name, value)}" for name, _, value in words]
    daemon = Daemon([str(PROGRAMS / SCHEDULER), *options], folder / "scheduler.log")
    daemon.start()
    try:
        yield daemon.log
        assert daemon.alive
    finally:
        await daemon.stop()


@pytest.mark.parametrize(("packs", "used"), [(True, 2), (False, NODES)], ids=["packing", "as shipped"])
@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_nodes_are_filled_one_after_the_other(
    cluster: Cluster, tmp_path: Path, scheduler: str, packs: bool, used: int
) -> None:
    for index in range(NODES):
        await cluster.kubelet.add_node(f"n{index}", allocatable={"cpu": "64", "memory": "64Gi", GPU: "8"})
    gates = [f"packingScheduler.featureGates[{index}]={gate}" for index, gate in enumerate(GATES)]
    placement = (f"config.placement.scheduler={scheduler}", "config.placement.preferPlannedNodes=false")
    installed = await install_agent(cluster.plane, "north", *placement, *((*PACKS, *gates) if packs else ()))
    stage = KubeStage(tmp_path, [KubeCluster("north", installed.kubeconfig, installed.config)])
    try:
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            if not packs:
                found = await _nodes_of_jobs(cluster, client)
            else:
                async with packing_scheduler(cluster, tmp_path) as log:
                    found = await _nodes_of_jobs(cluster, client)
                said = log.read_text()
                assert "forbidden" not in said, said[-4000:]
    finally:
        await asyncio.to_thread(stage.stop)
    assert len(set(found)) == used


async def _nodes_of_jobs(cluster: Cluster, client: Client) -> list[str]:
    """Run twelve jobs of one member, one after the other, and a gang of four; return the nodes of their members, and end them."""
    pods = f"/api/v1/namespaces/{JOBS}/pods"

    async def nodes() -> list[str]:
        return [
            pod["spec"]["nodeName"]
            for pod in (await cluster.api.get(pods))["items"]
            if pod["status"].get("phase") == "Running"
        ]

    many = 0
    for name, members in (*((f"one-{number}", 1) for number in range(12)), ("gang", 4)):
        await asyncio.to_thread(client.submit, [a_job(name, members)])
        many += members

        async def run(many: int = many) -> bool:
            return len(await nodes()) == many

        await eventually(run, 60)
    found = await nodes()
    for job in await asyncio.to_thread(lambda: list(client.jobs())):
        await asyncio.to_thread(client.cancel, job.id)

    async def gone() -> bool:
        return not (await cluster.api.get(pods))["items"]

    await eventually(gone, 60)
    return found
