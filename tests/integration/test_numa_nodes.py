"""Members with a NUMA policy are kept on nodes that enforce it, where the scheduler sees to zones by the policies of nodes alone."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, A, B, Part, start_run, until_over, until_state
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.waiting import eventually
from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.paths import NODE_RESOURCE_TOPOLOGIES, PODS

KAI = {"scheduler": "kai", "schedulerName": "default-scheduler", "numa": True}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ONE_ZONE = {"numa": "singleNode"}


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as server:
        server.serve("scheduling.run.ai/v2alpha2", ["podgroups"])
        server.serve(NODE_RESOURCE_TOPOLOGIES.version, [NODE_RESOURCE_TOPOLOGIES.plural])
        yield server


@pytest.fixture
async def lab(kube: FakeKube) -> AsyncIterator[KubeLab]:
    with two_nodes(kube) as nodes:
        made = lab_on(kube, nodes, placement=KAI)
        await made.open()
        yield made
        await made.close()


async def report(lab: KubeLab, node: str, policy: str) -> None:
    """Report the policy of a node, and wait until the agent knows."""
    cpu = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}
    body = {
        "metadata": {"name": node},
        "attributes": [{"name": "topologyManagerPolicy", "value": policy}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }
    await lab.api.create(NODE_RESOURCE_TOPOLOGIES, None, body)

    async def is_known() -> bool:
        return bool(await _with_zones(lab))

    await eventually(is_known, 30)


async def _with_zones(lab: KubeLab) -> list[Any]:
    groups = (await lab.runtime.capacity()).groups
    return [group for group in groups if group.numa is not None and group.numa.policy in STRICT_NUMA]


async def affinity_of(lab: KubeLab, run: str) -> dict[str, Any]:
    pod = await lab.api.get(PODS, NAMESPACE, f"{run}-worker-0")
    node: dict[str, Any] = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return node


async def test_members_with_a_policy_may_have_only_nodes_that_enforce_it(lab: KubeLab) -> None:
    await report(lab, "node-1", "single-numa-node")
    await lab.runtime.start(start_run(lab, A, Part(RUNS), topology=ONE_ZONE))
    await until_state(lab, A, RunState.RUNNING)
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    assert (await affinity_of(lab, A))[REQUIRED] == {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, B, RunState.RUNNING)
    assert REQUIRED not in await affinity_of(lab, B), "without a policy any node will do"


async def test_where_no_policy_is_reported_any_node_will_do(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS), topology=ONE_ZONE))
    await until_state(lab, A, RunState.RUNNING)
    assert REQUIRED not in await affinity_of(lab, A)


async def test_a_run_is_returned_where_no_node_has_its_policy(lab: KubeLab) -> None:
    await report(lab, "node-0", "single-numa-node")
    await lab.api.patch(
        NODE_RESOURCE_TOPOLOGIES, None, "node-0", {"attributes": [{"name": "topologyManagerPolicy", "value": "none"}]}
    )

    async def is_known() -> bool:
        return not await _with_zones(lab)

    await eventually(is_known, 30)
    await lab.runtime.start(start_run(lab, A, Part(RUNS), topology=ONE_ZONE))
    status = await until_over(lab, A)
    assert status.state is RunState.RETURNED
    assert status.message == "topology.numa singleNode is requested, and no node here reports that policy"
