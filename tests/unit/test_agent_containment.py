"""An unexpected error while one run or message is handled by the agent's loop ends that handling and nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.unit.test_agent_log_tails import CLUSTER, LEASE, ScriptedDispatcher, order
from tests.waiting import eventually
from trainmaster.protocol.agent import (
    CapacityReport,
    DesiredAnswer,
    OpenStream,
    ResizeRun,
    RunReport,
    StartRun,
    StopRun,
    SyncAnswer,
    SyncRequest,
)
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster_agent import containment, sync
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.runtime.port import LogSlice, RunStatus, RuntimeAwayError, RuntimeRefusedError
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_agent.sync import Agent

ODD, PLAIN = order(1), order(2)


class Odd(SimulatedRuntime):
    """Raises ``error`` in the methods named in ``broken``, where they are told of one run, for that run alone."""

    def __init__(self, *broken: str, error: Exception | None = None) -> None:
        super().__init__(CLUSTER)
        self.broken = set(broken)
        self.error = error or LookupError("an odd run")
        self.calls = 0

    def _check(self, method: str, run: str = ODD.run) -> None:
        if method in self.broken and run == ODD.run:
            self.calls += 1
            raise self.error

    async def start(self, run: StartRun) -> None:
        self._check("start", run.run)
        await super().start(run)

    async def stop(self, stop: StopRun) -> None:
        self._check("stop", stop.run)
        await super().stop(stop)

    async def resize(self, resize: ResizeRun) -> None:
        self._check("resize", resize.run)
        await super().resize(resize)

    async def forget(self, run: str) -> None:
        self._check("forget", run)
        await super().forget(run)

    async def renew(self, asked_at: float) -> None:
        self._check("renew")
        await super().renew(asked_at)

    async def capacity(self) -> CapacityReport:
        self._check("capacity")
        return await super().capacity()

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        self._check("read_log", run)
        return await super().read_log(run, role, index, offset, limit)


class Wanting(ScriptedDispatcher):
    """Wants both runs started, the odd one first, and what ``more`` says, until a version is acted upon."""

    def __init__(self, **more: Any) -> None:
        super().__init__(lambda *_: None)
        self.answer = DesiredAnswer(version=1, start=(ODD, PLAIN), **more)
        self.reports: dict[str, RunReport] = {}
        self.capacity: list[CapacityReport] = []
        self.settles = True

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        answer = await super().sync(request)
        self.reports |= {report.run: report for report in request.runs}
        if request.capacity is not None:
            self.capacity.append(request.capacity)
        return answer

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer:
        await asyncio.sleep(0.02)
        return self.answer if after < 1 else DesiredAnswer(version=after)


@pytest.fixture
async def runtimes() -> AsyncIterator[list[SimulatedRuntime]]:
    opened: list[SimulatedRuntime] = []
    yield opened
    for runtime in opened:
        await runtime.close()


async def serve(runtime: SimulatedRuntime, dispatcher: Wanting, *until_reported: str) -> None:
    """Run an agent until the ends of these runs were reported."""
    stop = asyncio.Event()
    task = asyncio.create_task(Agent(dispatcher, runtime, lease_hint=LEASE).run(stop))
    try:
        await dispatcher.until_reported(*until_reported)
        assert not task.done()
    finally:
        stop.set()
        await task


async def opened(runtimes: list[SimulatedRuntime], *broken: str, error: Exception | None = None) -> Odd:
    runtime = Odd(*broken, error=error)
    await runtime.open()
    runtimes.append(runtime)
    return runtime


@pytest.mark.parametrize("error", [LookupError("odd"), RuntimeRefusedError("no run id"), OSError("odd")], ids=repr)
async def test_a_run_that_cannot_be_started_has_failed_and_the_next_one_starts(
    error: Exception, runtimes: list[SimulatedRuntime]
) -> None:
    runtime, dispatcher = await opened(runtimes, "start", error=error), Wanting()
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    report = dispatcher.reports[ODD.run]
    assert report.state is RunState.FAILED
    assert report.end is not None
    assert report.end.category is FailureCategory.CONFIG
    assert str(error) in report.end.message
    assert dispatcher.reports[PLAIN.run].state is RunState.SUCCEEDED


async def test_a_run_that_cannot_be_recorded_keeps_no_other_from_being_started_stopped_or_resized(
    runtimes: list[SimulatedRuntime],
) -> None:
    runtime = await opened(runtimes, "start", error=RuntimeAwayError("not now"))
    dispatcher = Wanting(stop=(StopRun(run="gamma-0000003-r1", generation=2, cause=StopCause.CANCEL, grace_seconds=1),))
    stop = asyncio.Event()
    task = asyncio.create_task(Agent(dispatcher, runtime, lease_hint=LEASE).run(stop))

    async def asked_again() -> bool:
        return runtime.calls > 2

    try:
        await dispatcher.until_reported(PLAIN.run, "gamma-0000003-r1")
        await eventually(asked_again)
    finally:
        stop.set()
        await task
    assert ODD.run not in dispatcher.reports


@pytest.mark.parametrize("method", ["stop", "resize"])
async def test_orders_that_raise_are_tried_again_and_leave_the_others_alone(
    method: str, runtimes: list[SimulatedRuntime]
) -> None:
    long = ODD.model_copy(update={"spec": {**ODD.spec, "roles": [_runs_long(ODD.spec["roles"][0])]}})
    stops = tuple(
        StopRun(run=run, generation=3, cause=StopCause.CANCEL, grace_seconds=1) for run in (ODD.run, "gamma-0000003-r1")
    )
    resize = ResizeRun(run=ODD.run, generation=2, sizes={"worker": 2}, grace_seconds=1)
    runtime = await opened(runtimes, method)
    dispatcher = Wanting(stop=stops, resize=(resize,))
    dispatcher.answer = dispatcher.answer.model_copy(update={"start": (long, PLAIN)})
    if method == "resize":
        await serve(runtime, dispatcher, ODD.run, PLAIN.run, "gamma-0000003-r1")
        assert dispatcher.reports[ODD.run].state is RunState.CANCELLED
    else:
        await serve(runtime, dispatcher, PLAIN.run, "gamma-0000003-r1")
        assert not runtime.held()[ODD.run].state.is_terminal
    assert runtime.calls >= 1


def _runs_long(role: dict[str, Any]) -> dict[str, Any]:
    return {**role, "template": {**role["template"], "env": {"SIM_RUN_TIME": "1h"}}}


@pytest.mark.parametrize("method", ["forget", "renew", "read_log"])
async def test_errors_of_the_runtime_end_no_session(method: str, runtimes: list[SimulatedRuntime]) -> None:
    runtime, dispatcher = await opened(runtimes, method), Wanting()
    stream = OpenStream(stream="s1", run=ODD.run, follow=True)
    dispatcher.answer = dispatcher.answer.model_copy(update={"streams": (stream,)})
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    assert runtime.calls > 0


async def test_the_lease_is_renewed_though_capacity_cannot_be_told_and_the_cluster_says_why(
    runtimes: list[SimulatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_CAPACITY_SECONDS", 0.05)
    runtime, dispatcher = await opened(runtimes, "capacity"), Wanting()
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    assert dispatcher.capacity[0].closed == "the agent cannot report its cluster's capacity: LookupError: an odd run"
    assert dispatcher.capacity[0].groups == ()


async def test_a_status_that_cannot_be_reported_is_reported_without_what_is_odd(
    runtimes: list[SimulatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, dispatcher = await opened(runtimes), Wanting()
    original = sync._report

    def broken(status: RunStatus, ended_ago: float = 0.0) -> RunReport:
        if status.run == ODD.run:
            raise LookupError("an odd status")
        return original(status, ended_ago)

    monkeypatch.setattr(sync, "_report", broken)
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    assert "LookupError: an odd status" in dispatcher.reports[ODD.run].message


async def test_a_cluster_that_raises_while_it_starts_a_run_does_not_hold_it(
    runtimes: list[SimulatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, dispatcher = await opened(runtimes), Wanting()
    original = runtime.cluster._place

    def broken(run: Any, plan: Any) -> bool:
        if run.id == ODD.run:
            raise LookupError("an odd run")
        return original(run, plan)

    monkeypatch.setattr(runtime.cluster, "_place", broken)
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    assert dispatcher.reports[ODD.run].state is RunState.FAILED
    assert dispatcher.reports[PLAIN.run].state is RunState.SUCCEEDED


async def test_an_answer_that_breaks_the_loop_is_asked_for_again(
    runtimes: list[SimulatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, dispatcher = await opened(runtimes), Wanting()
    tries = []
    original = Agent._take_answer

    async def broken(self: Agent, *args: Any) -> None:
        tries.append(1)
        if len(tries) <= 2:
            raise LookupError("an odd answer")
        await original(self, *args)

    monkeypatch.setattr(Agent, "_take_answer", broken)
    await serve(runtime, dispatcher, ODD.run, PLAIN.run)
    assert len(tries) > 2


def test_the_words_of_an_error_are_bounded_and_its_traceback_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "_logged_at", {})
    moments = iter((0.0, 1.0, 61.0))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            words = contain("test", ValueError("x" * 100_000), run="r", clock=lambda: next(moments))
    assert len(words) == 300
    assert containment.words_of(ValueError("\ud800")).encode() == b"ValueError: ?"
    assert [record.exc_info is not None for record in caplog.records] == [True, False, True]


async def test_a_loop_begins_again_after_an_error_with_growing_pauses_and_counts_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containment, "_FIRST_PAUSE", 0.001)
    counted: list[str] = []
    containment.observe(counted.append)
    began = 0

    async def loop() -> None:
        nonlocal began
        began += 1
        if began < 5:
            raise LookupError("odd")
        raise RuntimeAwayError("passes")

    with pytest.raises(RuntimeAwayError):
        await containment.run_for_ever("a loop", loop, RuntimeAwayError)
    assert (began, counted.count("a loop")) == (5, 4)


class OddApi:
    """Raises once what no API server answers; then gives the Lease."""

    def __init__(self) -> None:
        self.calls = 0

    async def get(self, *_: Any) -> dict[str, Any]:
        self.calls += 1
        if self.calls == 1:
            raise LookupError("odd")
        return {"spec": {"holderIdentity": "me"}}


async def test_one_odd_reading_of_the_lease_does_not_spoil_those_after_it() -> None:
    """Each later reading raised the first one's error again, for ever: nothing could be created any more."""
    lease = LeaseKeeper(cast("ApiServer", OddApi()), "ns", "lease", "me", 3600.0)
    lease._renewed_at = lease._clock()
    with pytest.raises(LookupError):
        await lease.confirm()
    await lease.confirm()
