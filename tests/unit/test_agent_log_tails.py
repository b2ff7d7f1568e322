"""Tails are kept before a run's end is reported, and never hold up the lease."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.waiting import eventually
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.protocol.agent import (
    DesiredAnswer,
    OutputAnswer,
    OutputPush,
    StartRun,
    StreamPush,
    SyncAnswer,
    SyncRequest,
)
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.member_use import UsePush
from trainmaster_agent.member_streams import StreamLine
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_agent.sync import Agent

LEASE = 0.6
CLUSTER = FleetCluster.model_validate(
    {"name": "lab", "groups": [{"name": "cpu", "count": 40, "resources": {"cpu": "4", "memory": "8Gi"}}]}
)


def order(number: int, members: int = 1) -> StartRun:
    template = {
        "command": ["simulated"],
        "env": {"SIM_RUN_TIME": "0s", "SIM_OUTPUT": f"output of {number}\n"},
        "resources": {"cpu": "1"},
    }
    return StartRun(
        run=f"alpha-{number:07d}-r1",
        job=f"alpha-{number:07d}",
        queue="team",
        attempt=1,
        token=1,
        generation=1,
        spec={
            "kind": "Job",
            "name": "alpha",
            "queue": "team",
            "roles": [{"name": "worker", "replicas": members, "template": template}],
        },
        sizes={"worker": members},
        placement_timeout_seconds=60,
    )


class ScriptedDispatcher:
    """Answers every sync, wants nothing, and takes tails as ``on_push`` says."""

    def __init__(self, on_push: Callable[[str, int], Any]) -> None:
        self.on_push = on_push
        self.syncs: list[SyncRequest] = []
        self.pushed: dict[str, list[StreamPush]] = {}
        self.tries: dict[str, int] = {}
        self.reported: list[str] = []
        self.send_full = False
        self.away_until = 0.0

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        self.check_away()
        self.syncs.append(request)
        over = [report.run for report in request.runs if report.state.is_terminal]
        self.reported += over
        return SyncAnswer(
            number=request.number,
            lease_seconds=LEASE,
            epoch="e",
            settled=tuple(over),
            send_full=self.send_full and not request.full,
        )

    def check_away(self) -> None:
        if asyncio.get_running_loop().time() < self.away_until:
            raise UnreachableError("refused")

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer:
        await asyncio.sleep(wait)
        return DesiredAnswer(version=after)

    async def push(self, stream: str, body: StreamPush) -> None:
        self.tries[stream] = self.tries.get(stream, 0) + 1
        result = self.on_push(stream, self.tries[stream])
        if result is not None:
            await result
        self.pushed.setdefault(stream, []).append(body)

    async def store_output(self, run: str, body: OutputPush) -> OutputAnswer:
        raise AssertionError("output of simulated members is not sent to be stored")

    async def report_use(self, body: UsePush) -> None:
        raise AssertionError("this dispatcher takes no reports of use")

    async def connect(self, stream: str, session: str) -> StreamLine:
        raise AssertionError("nobody opens streams to simulated members")

    async def until_reported(self, *runs: str) -> None:
        async def look() -> bool:
            return set(runs) <= set(self.reported)

        await eventually(look, 20)


@pytest.fixture
async def runtime() -> AsyncIterator[SimulatedRuntime]:
    runtime = SimulatedRuntime(CLUSTER)
    await runtime.open()
    yield runtime
    await runtime.close()


async def hold(dispatcher: ScriptedDispatcher, runtime: SimulatedRuntime, *until_reported: str) -> None:
    """Run an agent until the ends of these runs were reported."""
    stop = asyncio.Event()
    task = asyncio.create_task(Agent(dispatcher, runtime, lease_hint=LEASE).run(stop))
    try:
        await dispatcher.until_reported(*until_reported)
    finally:
        stop.set()
        await task


def texts(pushes: list[StreamPush]) -> list[str]:
    return [chunk.data for push in pushes for chunk in push.chunks]


async def test_the_tail_is_there_before_the_end_is_told(runtime: SimulatedRuntime) -> None:
    seen: list[bool] = []
    dispatcher = ScriptedDispatcher(lambda run, _: seen.append(run in dispatcher.reported))
    await runtime.start(order(1, members=3))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    assert seen == [False]
    assert texts(dispatcher.pushed["alpha-0000001-r1"]) == ["output of 1\n"] * 3


async def test_a_push_that_hangs_holds_up_neither_the_lease_nor_other_runs(runtime: SimulatedRuntime) -> None:
    dispatcher = ScriptedDispatcher(lambda run, _: asyncio.Event().wait() if run == "alpha-0000001-r1" else None)
    for number in range(1, 31):
        await runtime.start(order(number))
    others = [f"alpha-{number:07d}-r1" for number in range(2, 31)]
    await hold(dispatcher, runtime, "alpha-0000001-r1", *others)
    assert dispatcher.reported[-1] == "alpha-0000001-r1", "its end was told last, once its tail was given up"
    assert set(dispatcher.pushed) == set(others)
    assert len(dispatcher.syncs) >= 4, "syncs went on while it hung, for a sync waits a sixth of the lease for tails"


async def test_a_store_that_is_away_for_a_moment_loses_no_tail(runtime: SimulatedRuntime) -> None:
    def away(_: str, tries: int) -> None:
        if tries == 1:
            raise UnreachableError("refused")
        if tries == 2:
            raise ProblemError(Code.STORE_AWAY, "the store is away")

    dispatcher = ScriptedDispatcher(away)
    await runtime.start(order(1))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    assert texts(dispatcher.pushed["alpha-0000001-r1"]) == ["output of 1\n"]


async def test_a_dispatcher_that_is_away_for_many_leases_gets_the_tail_when_it_is_back(
    runtime: SimulatedRuntime,
) -> None:
    dispatcher = ScriptedDispatcher(lambda _run, _tries: dispatcher.check_away())
    dispatcher.away_until = asyncio.get_running_loop().time() + 5 * LEASE
    await runtime.start(order(1))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    assert texts(dispatcher.pushed["alpha-0000001-r1"]) == ["output of 1\n"]


async def test_a_refused_tail_is_not_offered_again(runtime: SimulatedRuntime) -> None:
    def refuse(run: str, _: int) -> None:
        raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {run}")

    dispatcher = ScriptedDispatcher(refuse)
    await runtime.start(order(1))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    assert dispatcher.tries == {"alpha-0000001-r1": 1}


async def test_runs_that_ended_before_the_agent_started_have_their_tails_sent_once_its_session_is_known(
    runtime: SimulatedRuntime,
) -> None:
    def refuse_unknown(_run: str, _tries: int) -> None:
        if not dispatcher.syncs:
            raise ProblemError(Code.NOT_FOUND, "no session of this cluster has this name")

    dispatcher = ScriptedDispatcher(refuse_unknown)
    await runtime.start(order(1))

    async def has_ended() -> bool:
        return all(status.state.is_terminal for status in runtime.held().values())

    await eventually(has_ended)
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    assert texts(dispatcher.pushed["alpha-0000001-r1"]) == ["output of 1\n"]
    assert len(dispatcher.syncs) == 2, "its end is told by the second sync, without the pause between syncs"


async def test_a_full_sync_names_every_run_even_without_its_tail(runtime: SimulatedRuntime) -> None:
    dispatcher = ScriptedDispatcher(lambda _run, _tries: asyncio.Event().wait())
    dispatcher.send_full = True
    await runtime.start(order(1))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    first = next(request for request in dispatcher.syncs if request.full)
    assert [report.run for report in first.runs] == ["alpha-0000001-r1"]


async def test_the_tails_of_a_large_gang_go_in_pieces(
    runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster_agent.log_tails._PUSH_BYTES", 50)
    dispatcher = ScriptedDispatcher(lambda _run, _tries: None)
    await runtime.start(order(1, members=20))
    await hold(dispatcher, runtime, "alpha-0000001-r1")
    pushes = dispatcher.pushed["alpha-0000001-r1"]
    assert len(pushes) == 4
    assert len({(chunk.role, chunk.index) for push in pushes for chunk in push.chunks}) == 20
