"""What an agent says of runs that it was asked to stop and does not hold."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.test_agent_log_tails import CLUSTER
from tests.waiting import eventually
from trainmaster.protocol.agent import NOT_HELD_SEQ, Absence, StopRun
from trainmaster.protocol.states import RunState, StopCause
from trainmaster_agent.absences import Absences
from trainmaster_agent.runtime.port import RuntimeAwayError
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime

RUN, OTHER = "alpha-0000001-r1", "beta-0000002-r1"


class Searching(SimulatedRuntime):
    """Answers each question about a run with the next of its answers, which may be an error."""

    def __init__(self) -> None:
        super().__init__(CLUSTER)
        self.answers: dict[str, list[bool | Exception]] = {}
        self.verified: list[tuple[str, int, str]] = []

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        self.verified.append((stop.run, stop.generation, installation))
        answers = self.answers[stop.run]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def runtime() -> Searching:
    return Searching()


@pytest.fixture
def changed() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def absences(runtime: Searching, changed: asyncio.Event) -> AsyncIterator[Absences]:
    absences = Absences(runtime, changed.set, look_again=0.001)
    yield absences
    await absences.close()


def stop(run: str = RUN, generation: int = 2, cause: StopCause = StopCause.CANCEL) -> StopRun:
    return StopRun(run=run, generation=generation, cause=cause, grace_seconds=1)


async def test_it_is_unrecorded_at_first_and_verified_once_the_runtime_is_sure(
    absences: Absences, runtime: Searching, changed: asyncio.Event
) -> None:
    runtime.answers[RUN] = [False, False, True]
    absences.add(stop(cause=StopCause.SUSPEND), "here")
    (report,) = absences.reports()
    assert (report.absence, report.state, report.seq) == (Absence.UNRECORDED, RunState.SUSPENDED, NOT_HELD_SEQ)
    assert not report.is_held
    await changed.wait()
    (report,) = absences.reports()
    assert report.absence is Absence.VERIFIED
    assert runtime.verified == [(RUN, 2, "here")] * 3
    absences.drop(RUN)
    assert absences.reports() == []


async def test_a_run_that_cannot_be_looked_for_does_not_hold_up_the_others(
    absences: Absences, runtime: Searching, changed: asyncio.Event
) -> None:
    runtime.answers[RUN] = [RuntimeAwayError("away"), ValueError("a mistake"), OSError("no such thing"), True]
    runtime.answers[OTHER] = [True]
    absences.add(stop(), "here")
    absences.add(stop(OTHER), "here")

    async def are_verified() -> bool:
        return {report.absence for report in absences.reports()} == {Absence.VERIFIED}

    await eventually(are_verified)


async def test_a_newer_stop_is_what_is_said_and_looked_for(
    absences: Absences, runtime: Searching, changed: asyncio.Event
) -> None:
    runtime.answers[RUN] = [False]
    absences.add(stop(cause=StopCause.SUSPEND), "here")
    absences.add(stop(generation=3), "here")
    absences.add(stop(generation=2, cause=StopCause.SUSPEND), "here")
    (report,) = absences.reports()
    assert (report.generation, report.state) == (3, RunState.CANCELLED)

    async def is_asked_for_the_newer() -> bool:
        return (RUN, 3, "here") in runtime.verified

    await eventually(is_asked_for_the_newer)
    runtime.answers[RUN] = [True]
    await changed.wait()
    absences.add(stop(generation=4), "here")
    (report,) = absences.reports()
    assert (report.generation, report.absence) == (4, Absence.VERIFIED), "what is gone stays gone"
