"""Pods of runs that the agent has no record of, on the fake API server: another agent's, or of records that were deleted."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, STUBBORN, A, Behaviour, Part, start_run, stop_run, until_state
from tests.fake_kube.patches import MERGE
from tests.fake_kube.resources import PODS
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.pods import LABEL_HOLDER
from trainmaster_agent.runtime.kubernetes import leftovers, orphans

OTHER_HOME = "agent-2"


class Environment:
    """Two agents with one key and namespaces of their own, in one cluster."""

    def __init__(self, kube: FakeKube, first: KubeLab, second: KubeLab) -> None:
        self.kube = kube
        self.first = first
        self.second = second

    async def start(self, behaviour: Behaviour = RUNS) -> None:
        await self.first.open()
        await self.first.runtime.renew(self.first.now())
        await self.first.runtime.start(start_run(self.first, A, Part(behaviour, 2)))
        await until_state(self.first, A, RunState.RUNNING)
        await self.second.open()

    async def clear(self, grace: float) -> None:
        """Ask the second agent until it is sure that nothing of the run is left."""

        async def is_gone() -> bool:
            return await self.second.runtime.verify_absent(stop_run(A, grace=grace), "here")

        assert not await is_gone(), "members are alive"
        await eventually(is_gone, 20)


@pytest.fixture
async def testbed() -> AsyncIterator[Environment]:
    async with fake_cluster() as kube:
        kube.add_namespace(OTHER_HOME)
        with two_nodes(kube) as nodes:
            testbed = Environment(kube, lab_on(kube, nodes), lab_on(kube, nodes, home=OTHER_HOME))
            yield testbed
            for lab in (testbed.first, testbed.second):
                await lab.close()


async def test_two_agents_of_one_cluster_are_two_holders_in_one_place(testbed: Environment) -> None:
    await testbed.start()
    first, second = testbed.first.runtime, testbed.second.runtime
    assert first.holder != second.holder
    assert first.place == second.place != ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_PATIENCE", 0.01)
    monkeypatch.setattr(leftovers, "_FIRST_LOOK_SECONDS", 0.01)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Holders of what an agent looked at that clears away what others have made."""
    out: list[str] = []
    real = orphans.KnownRecords.may_be_here

    def noted(records: orphans.KnownRecords, holder: str) -> bool:
        if holder != records.holder:
            out.append(holder)
        return real(records, holder)

    monkeypatch.setattr(orphans.KnownRecords, "may_be_here", noted)
    return out


@pytest.mark.usefixtures("quick")
async def test_an_agent_that_the_dispatcher_has_not_answered_clears_nothing_away(
    testbed: Environment, requests: list[str]
) -> None:
    """It is the second one with its key, and refused: what the first one runs has no record here."""
    await testbed.start()
    await asyncio.sleep(0.2)
    assert not requests
    assert testbed.first.living(A) == 2


@pytest.mark.usefixtures("quick")
async def test_an_agent_that_is_served_leaves_alone_what_other_records_hold(
    testbed: Environment, requests: list[str]
) -> None:
    """The dispatcher calls such a run orphaned: it goes on, until somebody ends it or its own agent is back."""
    await testbed.start()
    await testbed.second.runtime.renew(testbed.second.now())

    async def has_looked() -> bool:
        return requests.count(testbed.first.runtime.holder) > 10

    await eventually(has_looked)
    await asyncio.sleep(0.2)
    assert testbed.first.living(A) == 2


@pytest.mark.usefixtures("quick")
async def test_pods_of_an_older_release_without_any_record_are_cleared_away(testbed: Environment) -> None:
    """They do not say in which records their run is."""
    await testbed.start()
    await testbed.first.kubernetes.close()
    for index in range(2):
        without = {"metadata": {"labels": {LABEL_HOLDER: None}}}
        testbed.kube.verbs.patch(PODS, NAMESPACE, f"{A}-worker-{index}", MERGE, without)
    await testbed.second.runtime.renew(testbed.second.now())

    async def are_gone() -> bool:
        return testbed.first.living(A) == 0

    await eventually(are_gone, 20)


@pytest.mark.parametrize("behaviour", [RUNS, STUBBORN])
async def test_pods_of_another_agents_run_are_found_and_ended_when_they_are_to_stop(
    testbed: Environment, behaviour: Behaviour
) -> None:
    await testbed.start(behaviour)
    await testbed.first.kubernetes.close()
    await testbed.clear(grace=1)
    assert testbed.first.living(A) == 0


async def test_a_run_of_which_there_are_no_pods_is_absent_and_a_held_one_is_not(testbed: Environment) -> None:
    await testbed.start()
    assert not await testbed.first.runtime.verify_absent(stop_run(A), "here")
    assert await testbed.second.runtime.verify_absent(stop_run("none-0000001-r1"), "here")


async def test_pods_of_an_agent_with_another_name_are_alive_and_left_alone() -> None:
    """An agent that was given another name found none of its earlier pods, and its runs were started a second time."""
    async with fake_cluster() as kube:
        kube.add_namespace(OTHER_HOME)
        with two_nodes(kube) as nodes:
            testbed = Environment(kube, lab_on(kube, nodes), lab_on(kube, nodes, home=OTHER_HOME, cluster="renamed"))
            await testbed.start()
            await testbed.first.kubernetes.close()
            for _ in range(3):
                assert not await testbed.second.runtime.verify_absent(stop_run(A, grace=0), "here")
                await asyncio.sleep(0.2)
            assert testbed.first.living(A) == 2
            for lab in (testbed.first, testbed.second):
                await lab.close()
