"""Objects of a run follow its size, on the fake API server: those of its scheduler, and those by which members find each other."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import (
    RUNS,
    SUCCEEDS,
    WAITS_FOR_GATE,
    A,
    Part,
    is_at,
    resize_run,
    restarts,
    start_run,
    stop_run,
    until,
    until_state,
)
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.errors import NotFoundError
from trainmaster_agent.kube.paths import CONFIG_MAPS, SERVICES
from trainmaster_agent.placement.kueue import workloads
from trainmaster_agent.placement.volcano import POD_GROUPS

KUEUE = {"scheduler": "kueue", "defaultQueue": "default"}
VOLCANO = {"scheduler": "volcano", "schedulerName": "default-scheduler"}


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as server:
        server.serve("scheduling.volcano.sh/v1beta1", ["podgroups", "queues"])
        yield server


@pytest.fixture
async def lab(kube: FakeKube) -> AsyncIterator[KubeLab]:
    with two_nodes(kube) as nodes:
        made = lab_on(kube, nodes, placement=VOLCANO)
        await made.open()
        yield made
        await made.close()


async def group_of(lab: KubeLab) -> dict[str, Any]:
    spec: dict[str, Any] = (await lab.api.get(POD_GROUPS, NAMESPACE, A))["spec"]
    return {name: spec[name] for name in ("minMember", "minTaskMember", "minResources")}


def needs(members: int) -> dict[str, Any]:
    return {
        "minMember": members,
        "minTaskMember": {"worker": members},
        "minResources": {"cpu": f"{members}"},
    }


async def test_a_group_wants_no_more_members_than_its_run_has_now(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4)))
    await until_state(lab, A, RunState.RUNNING)
    assert await group_of(lab) == needs(4)
    for generation, size in ((2, 1), (3, 3)):
        await lab.runtime.resize(resize_run(A, size, generation))
        await until(lab, A, is_at(size))
    assert await group_of(lab) == needs(3)


async def test_a_member_that_starts_again_is_not_held_back_for_others_that_have_succeeded(kube: FakeKube) -> None:
    again = {"action": "restartMember", "limit": 1}
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, placement={"scheduler": "volcano", "schedulerName": "default-scheduler"})
        await lab.open()
        try:
            parts = (Part(SUCCEEDS, count=2), Part(WAITS_FOR_GATE, name="again"))
            await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again))
            await until(lab, A, lambda status: [one.state for one in status.members].count("succeeded") == 2)
            nodes.fail(NAMESPACE, f"{A}-again-0", 3)
            await until(lab, A, lambda status: restarts(status, "again") == [1] and lab.living(A) == 1)
            assert await group_of(lab) == {"minMember": 1, "minTaskMember": {"again": 1}, "minResources": {"cpu": "1"}}
            lab.open_gate(A)
            await until_state(lab, A, RunState.SUCCEEDED)
        finally:
            await lab.close()


async def test_what_holds_pods_back_is_removed_with_them(kube: FakeKube) -> None:
    kube.serve("kueue.x-k8s.io/v1beta2", ["workloads", "localqueues", "topologies"])
    workload = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": A}, "spec": {}}
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, placement=KUEUE)
        await lab.open()
        try:
            await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
            await until_state(lab, A, RunState.RUNNING)
            await lab.api.create(workloads("v1beta2"), NAMESPACE, workload)
            await lab.runtime.stop(stop_run(A))
            await until_state(lab, A, RunState.CANCELLED)
            with pytest.raises(NotFoundError):
                await lab.api.get(workloads("v1beta2"), NAMESPACE, A)
        finally:
            await lab.close()


async def test_no_member_starts_again_where_its_scheduler_keeps_the_failed_pod(kube: FakeKube) -> None:
    kube.serve("kueue.x-k8s.io/v1beta2", ["workloads", "localqueues", "topologies"])
    restarts_members = {Capability.MEMBER_RESTART, Capability.GANG_RESTART}
    with two_nodes(kube) as nodes:
        for placement, offered in ((KUEUE, set()), ({"scheduler": "gates"}, restarts_members)):
            lab = lab_on(kube, nodes, placement=placement)
            await lab.open()
            try:
                assert restarts_members & {*(await lab.runtime.capacity()).capabilities} == offered
            finally:
                await lab.close()


async def test_a_group_follows_also_after_the_agent_has_started_again(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.runtime.resize(resize_run(A, 2, 2))
    await until(lab, A, is_at(2))
    await lab.restart()
    await until(lab, A, is_at(2))
    await lab.runtime.resize(resize_run(A, 5, 3))
    await until(lab, A, is_at(5))
    assert await group_of(lab) == needs(4), "those without which the job does not start"


async def addresses_of(lab: KubeLab) -> list[str]:
    listed = await lab.api.get(CONFIG_MAPS, NAMESPACE, f"{A}-roster")
    return [line.partition(".")[0] for line in listed["data"]["addresses"].splitlines()]


async def test_members_that_come_later_find_the_others(lab: KubeLab) -> None:
    """A run that starts with one member has no list of them and no service, which those that join it mount and are named by."""
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    for generation, size in ((2, 3), (3, 2), (4, 4)):
        await lab.runtime.resize(resize_run(A, size, generation))
        await until(lab, A, is_at(size))
        if generation != 3:
            assert await addresses_of(lab) == [f"worker-{index}" for index in range(size)]
    assert (await lab.api.get(SERVICES, NAMESPACE, A))["spec"]["clusterIP"] == "None"
