"""Gangs on a real scheduler: all or nothing, in one rack where that is asked for, and nothing left behind.

The agent acts under the very role that its chart gives it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import waiting
from tests.cluster.agent import agent
from tests.cluster.api import ApiError
from tests.cluster.chart import JOBS, NAMESPACE, helm
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.conformance.runtime_suite import eventually
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.port import RunStatus

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

RUN = "gang-0000001-r1"
NODE = {"cpu": "1", "memory": "4Gi", "pods": "20"}
RACK = "topology.example.com/rack"


def a_gang(size: int, **spec: Any) -> StartRun:
    role = {
        "name": "worker",
        "replicas": size,
        "template": {"image": "sim", "command": ["sim", "gate", RUN], "resources": {"cpu": "1"}},
    }
    return StartRun(
        run=RUN,
        job="gang-0000001",
        queue="default/team",
        attempt=1,
        token=1,
        generation=1,
        spec={"name": "gang", "queue": "default/team", "roles": [role], **spec},
        sizes={"worker": size},
        placement_timeout_seconds=300,
    )


async def until(runtime: KubernetesRuntime, holds: Callable[[RunStatus], bool], seconds: float = 60) -> RunStatus:
    await eventually(lambda: holds(runtime.held()[RUN]), f"the run comes that far: {runtime.held()[RUN]}", seconds)
    return runtime.held()[RUN]


async def nothing_is_left(cluster: Cluster, runtime: KubernetesRuntime) -> None:
    """Acknowledge the end of the run, and wait until no object of it exists in the API server."""
    await runtime.forget(RUN)
    kinds = (
        ("api/v1", "pods"),
        ("api/v1", "services"),
        ("api/v1", "configmaps"),
        ("apis/scheduling.k8s.io/v1alpha2", "podgroups"),
    )

    async def left() -> list[str]:
        found = []
        for base, kind in kinds:
            items = (await cluster.api.get(f"/{base}/namespaces/{JOBS}/{kind}"))["items"]
            ours = [one["metadata"] for one in items if "trainmaster.dev/run" in (one["metadata"].get("labels") or {})]
            found += [f"{kind}/{metadata['name']}" for metadata in ours]
        records = await cluster.api.get(
            f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"labelSelector": "trainmaster.dev/run"}
        )
        found += [f"record {one['metadata']['name']}" for one in records["items"]]
        return found

    for _ in range(600):
        if not await left():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"left in the API server: {await left()}")


def started(cluster: Cluster) -> int:
    return len(cluster.kubelet.started({"trainmaster.dev/run": RUN}))


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_nine_members_wait_for_a_ninth_node_and_then_all_start(cluster: Cluster, scheduler: str) -> None:
    await cluster.kubelet.add_nodes("node", 8, allocatable=NODE)
    async with agent(cluster, scheduler) as runtime:
        await runtime.start(a_gang(9))
        await until(runtime, lambda status: status.state is RunState.PENDING and bool(status.message))
        await asyncio.sleep(3)  # what must not happen would have happened by now
        assert (runtime.held()[RUN].state, started(cluster)) == (RunState.PENDING, 0)
        print(f"\n{scheduler}: {runtime.held()[RUN].message}")
        await cluster.kubelet.add_node("late", allocatable=NODE)
        await until(runtime, lambda status: status.state is RunState.RUNNING)
        assert started(cluster) == 9
        cluster.kubelet.open_gate(RUN)
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.SUCCEEDED, 9)
        await nothing_is_left(cluster, runtime)


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_a_gang_that_must_share_a_rack_waits_for_one_with_room(cluster: Cluster, scheduler: str) -> None:
    for rack in ("a", "b"):
        await cluster.kubelet.add_nodes(f"rack-{rack}", 4, allocatable=NODE, labels={RACK: rack})
    levels = {"capacity": {"levels": [{"level": "rack", "label": RACK}]}}
    async with agent(cluster, scheduler, **levels) as runtime:
        await runtime.start(a_gang(5, topology={"required": "rack"}))
        await until(runtime, lambda status: status.state is RunState.PENDING and bool(status.message))
        await asyncio.sleep(3)
        assert (runtime.held()[RUN].state, started(cluster)) == (RunState.PENDING, 0), "eight nodes, four to a rack"
        print(f"\n{scheduler}: {runtime.held()[RUN].message}")
        await cluster.kubelet.add_node("fifth", allocatable=NODE, labels={RACK: "b"})
        await until(runtime, lambda status: status.state is RunState.RUNNING)
        nodes = {life.node for life in cluster.kubelet.started({"trainmaster.dev/run": RUN})}
        assert nodes == {"rack-b-0", "rack-b-1", "rack-b-2", "rack-b-3", "fifth"}
        cluster.kubelet.open_gate(RUN)
        assert (await until(runtime, lambda status: status.state.is_terminal)).state is RunState.SUCCEEDED
        await nothing_is_left(cluster, runtime)


OTHER = "gang-0000002-r1"


async def nodes_of(cluster: Cluster, runtime: KubernetesRuntime, start: StartRun) -> list[str]:
    """Start a run; return the node of each of its members."""
    await runtime.start(start)
    try:
        await eventually(lambda: runtime.held()[start.run].state is RunState.RUNNING, f"{start.run} runs", 30)
    except AssertionError as error:
        raise AssertionError(f"{start.run}: {runtime.held()[start.run]}") from error
    return sorted(life.node for life in cluster.kubelet.started({"trainmaster.dev/run": start.run}))


async def all_end(cluster: Cluster, runtime: KubernetesRuntime) -> None:
    cluster.kubelet.open_gate(RUN)
    for run in list(runtime.held()):
        await eventually(lambda run=run: runtime.held()[run].state.is_terminal, f"{run} ends", 60)  # type: ignore[misc]
        await runtime.forget(run)
    await nothing_is_left(cluster, runtime)


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_members_fill_nodes_in_use_and_leave_empty_ones_free(cluster: Cluster, scheduler: str) -> None:
    """kube-scheduler alone would place each member on the emptiest node."""
    await cluster.kubelet.add_nodes("node", 6, allocatable={"cpu": "4", "memory": "16Gi", "pods": "20"})
    async with agent(cluster, scheduler) as runtime:
        first = await nodes_of(cluster, runtime, a_gang(3))
        assert len(set(first)) == 1, "three members of 1 CPU on one node of 4"
        again = await nodes_of(cluster, runtime, a_gang(5).model_copy(update={"run": OTHER}))
        assert (again.count(first[0]), len(set(again))) == (1, 2), "one beside the first gang, and a node of four"
        await all_end(cluster, runtime)


async def test_where_planned_nodes_are_not_preferred_members_are_spread(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 6, allocatable={"cpu": "4", "memory": "16Gi", "pods": "20"})
    async with agent(cluster, "native", placement={"preferPlannedNodes": False}) as runtime:
        assert len(set(await nodes_of(cluster, runtime, a_gang(3)))) > 1
        await all_end(cluster, runtime)


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_exclusive_members_have_nodes_for_themselves(cluster: Cluster, scheduler: str) -> None:
    """kube-scheduler alone would place a member beside the pod of others, and others beside members."""
    await cluster.kubelet.add_nodes("node", 3, allocatable={"cpu": "4", "memory": "16Gi", "pods": "20"})
    await cluster.run("theirs", "gate", "theirs", cpu="100m", nodeName="node-1")
    alone = a_gang(2, topology={"exclusive": "node"})
    async with agent(cluster, scheduler) as runtime:
        await eventually(lambda: any(one.occupied for one in runtime.inventory.report().groups), "their pod counts", 30)
        assert "exclusiveNodes" in (await runtime.capacity()).capabilities
        assert await nodes_of(cluster, runtime, alone) == ["node-0", "node-2"]
        assert await nodes_of(cluster, runtime, a_gang(3).model_copy(update={"run": OTHER})) == ["node-1"] * 3
        third = alone.model_copy(
            update={"run": "gang-0000003-r1", "sizes": {"worker": 1}, "placement_timeout_seconds": 5}
        )
        await runtime.start(third)
        await eventually(lambda: runtime.held()[third.run].state.is_terminal, "the third is returned", 60)
        assert runtime.held()[third.run].state is RunState.RETURNED
        assert "without other members" in runtime.held()[third.run].message
        await all_end(cluster, runtime)


GPU = "nvidia.com/gpu"
ZONES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


@pytest.fixture
async def zones(cluster: Cluster) -> AsyncIterator[None]:
    """Let the API server take NodeResourceTopologies."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    document = yaml.safe_load((Path(__file__).parents[1] / "crds/noderesourcetopology.yaml").read_text())
    with suppress(ApiError):  # an earlier test has created it
        await cluster.api.post(path, document)

    async def is_served() -> bool:
        with suppress(ApiError):
            return bool(await cluster.api.get(ZONES))
        return False

    await waiting.eventually(is_served)
    yield
    await cluster.api.delete(ZONES)


async def test_a_member_is_pinned_to_a_node_of_which_a_zone_is_free(cluster: Cluster, zones: None) -> None:
    """kube-scheduler knows of no zones: either node has four free devices, the first one two in each zone."""
    devices = {"cpu": "16", "memory": "64Gi", "pods": "20", GPU: "8"}
    for name, free in (("split", (2, 2)), ("whole", (0, 4))):
        await cluster.kubelet.add_node(name, allocatable=devices)
        parts = [{"name": GPU, "capacity": "4", "allocatable": "4", "available": str(left)} for left in free]
        await cluster.api.post(
            ZONES,
            {
                "apiVersion": "topology.node.k8s.io/v1alpha2",
                "kind": "NodeResourceTopology",
                "metadata": {"name": name},
                "topologyPolicies": ["SingleNUMANodeContainerLevel"],
                "zones": [
                    {"name": f"node-{number}", "type": "Node", "resources": [part]} for number, part in enumerate(parts)
                ],
            },
        )
    role = {
        "name": "worker",
        "replicas": 1,
        "template": {"image": "sim", "command": ["sim", "gate", RUN], "resources": {"cpu": "1", GPU: "4"}},
    }
    start = a_gang(1, roles=[role], topology={"numa": "singleNode"})
    async with agent(cluster, "gates", placement={"numa": True}) as runtime:
        assert "numa" in (await runtime.capacity()).capabilities
        assert await nodes_of(cluster, runtime, start) == ["whole"]
        pods = (await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]
        assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"kubernetes.io/hostname": "whole"}]
        second = start.model_copy(update={"run": OTHER, "placement_timeout_seconds": 5})
        await runtime.start(second)
        await eventually(lambda: runtime.held()[OTHER].state.is_terminal, "the second is returned", 60)
        assert "within the NUMA zones of a node" in runtime.held()[OTHER].message
        await all_end(cluster, runtime)
