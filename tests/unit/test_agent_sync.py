"""What the agent's loop says again, and what it does not conclude too early."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.test_agent_log_tails import CLUSTER, LEASE, ScriptedDispatcher, order
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, DesiredAnswer, StartRun, StopRun, SyncAnswer, SyncRequest
from trainmaster.protocol.errors import UnreachableError
from trainmaster.protocol.states import StopCause
from trainmaster_agent import sync
from trainmaster_agent.runtime.port import RuntimeAwayError
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_agent.sync import Agent

RUN = order(1).run


class Away(SimulatedRuntime):
    """Does not know yet whether it holds a run, and says of its cluster that it is closed."""

    def __init__(self) -> None:
        super().__init__(CLUSTER)
        self.is_unsure = True
        self.closed = ""

    async def stop(self, stop: StopRun) -> None:
        if self.is_unsure:
            raise RuntimeAwayError("whether it was recorded is not known")
        await super().stop(stop)

    async def capacity(self) -> CapacityReport:
        return (await super().capacity()).model_copy(update={"closed": self.closed})


class Stopping(ScriptedDispatcher):
    """Wants a run stopped that it does not know, and loses the first report of a closed cluster."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.lost = 0

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        if request.capacity is not None and request.capacity.closed and not self.lost:
            self.lost += 1
            raise UnreachableError("cut off")
        return await super().sync(request)

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer:
        await asyncio.sleep(0.05)
        stop = StopRun(run=RUN, generation=2, cause=StopCause.CANCEL, grace_seconds=1)
        return DesiredAnswer(version=1, stop=(stop,) if after < 1 else ())


class Late(ScriptedDispatcher):
    """Reads its orders before it hears of the end of a run, and sends them once that end was settled and the run forgotten."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        super().__init__(lambda *_: None)
        self.runtime = runtime
        self.answers = 0

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer:
        async def is_forgotten() -> bool:
            return RUN in self.reported and RUN not in self.runtime.held()

        if self.answers == 0:
            await self.runtime.start(order(1))
            await eventually(is_forgotten)
        else:
            await asyncio.sleep(0.05)
        self.answers += 1
        return DesiredAnswer(version=self.answers, start=(order(1),) if self.answers <= 2 else ())


@pytest.fixture
async def runtime() -> AsyncIterator[Away]:
    runtime = Away()
    await runtime.open()
    yield runtime
    await runtime.close()


async def test_capacity_that_did_not_arrive_is_said_again_and_a_run_is_called_off_only_for_certain(
    runtime: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_CAPACITY_SECONDS", 0.1)
    dispatcher, stop = Stopping(), asyncio.Event()
    task = asyncio.create_task(Agent(dispatcher, runtime, lease_hint=LEASE).run(stop))

    async def told_closed() -> bool:
        return any(request.capacity is not None and request.capacity.closed for request in dispatcher.syncs)

    async def heard() -> bool:
        return bool(dispatcher.syncs)

    try:
        await eventually(heard)
        runtime.closed = "the API server does not answer"
        await eventually(told_closed)
        assert dispatcher.lost == 1
        await asyncio.sleep(0.5)
        assert RUN not in dispatcher.reported, "it may be held after all"
        runtime.is_unsure = False
        await dispatcher.until_reported(RUN)
    finally:
        stop.set()
        await task


async def test_an_order_that_is_older_than_the_end_of_its_run_starts_nothing_again() -> None:
    """It would be a second copy of that run, beside the next run of its job."""
    runtime, stop = SimulatedRuntime(CLUSTER), asyncio.Event()
    await runtime.open()
    started: list[str] = []
    start = runtime.start

    async def noted(run: StartRun) -> None:
        started.append(run.run)
        await start(run)

    runtime.start = noted  # type: ignore[method-assign]
    dispatcher = Late(runtime)
    task = asyncio.create_task(Agent(dispatcher, runtime, lease_hint=LEASE).run(stop))

    async def has_answered() -> bool:
        return dispatcher.answers > 3

    try:
        await eventually(has_answered)
    finally:
        stop.set()
        await task
        await runtime.close()
    assert started == [RUN]
    assert dispatcher.reported == [RUN]
