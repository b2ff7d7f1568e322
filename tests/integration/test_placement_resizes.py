"""Objects of in-cluster schedulers follow the size of a run, on the fake API server."""

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
    until,
    until_state,
)
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.states import RunState
from trainmaster_agent.placement.volcano import POD_GROUPS


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as server:
        server.serve("scheduling.volcano.sh/v1beta1", ["podgroups", "queues"])
        yield server


async def group_of(lab: KubeLab) -> dict[str, Any]:
    spec: dict[str, Any] = (await lab.api.get(POD_GROUPS, NAMESPACE, A))["spec"]
    return {name: spec[name] for name in ("minMember", "minTaskMember", "minResources")}


def needs(members: int) -> dict[str, Any]:
    return {
        "minMember": members,
        "minTaskMember": {"worker": members},
        "minResources": {"cpu": f"{members}"},
    }


async def test_a_group_wants_no_more_members_than_its_run_has_now(kube: FakeKube) -> None:
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, placement={"scheduler": "volcano", "schedulerName": "default-scheduler"})
        await lab.open()
        try:
            await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4)))
            await until_state(lab, A, RunState.RUNNING)
            assert await group_of(lab) == needs(4)
            for generation, size in ((2, 1), (3, 3)):
                await lab.runtime.resize(resize_run(A, size, generation))
                await until(lab, A, is_at(size))
            assert await group_of(lab) == needs(3)
        finally:
            await lab.close()


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


async def test_no_member_starts_again_where_its_scheduler_keeps_the_failed_pod(kube: FakeKube) -> None:
    kube.serve("kueue.x-k8s.io/v1beta2", ["workloads", "localqueues", "topologies"])
    restarts_members = {Capability.MEMBER_RESTART, Capability.GANG_RESTART}
    with two_nodes(kube) as nodes:
        kueue = {"scheduler": "kueue", "defaultQueue": "default"}
        for placement, offered in ((kueue, set()), ({"scheduler": "gates"}, restarts_members)):
            lab = lab_on(kube, nodes, placement=placement)
            await lab.open()
            try:
                assert restarts_members & {*(await lab.runtime.capacity()).capabilities} == offered
            finally:
                await lab.close()


async def test_a_group_follows_also_after_the_agent_has_started_again(kube: FakeKube) -> None:
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, placement={"scheduler": "volcano", "schedulerName": "default-scheduler"})
        await lab.open()
        try:
            await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4)))
            await until_state(lab, A, RunState.RUNNING)
            await lab.runtime.resize(resize_run(A, 2, 2))
            await until(lab, A, is_at(2))
            await lab.restart()
            await until(lab, A, is_at(2))
            await lab.runtime.resize(resize_run(A, 5, 3))
            await until(lab, A, is_at(5))
            assert await group_of(lab) == needs(4), "those without which the job does not start"
        finally:
            await lab.close()
