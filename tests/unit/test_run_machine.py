"""The state machine of a run: what every report does to it."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.states import RunState, StopCause
from trainmaster_dispatcher.domain.run_machine import (
    Report,
    ReportVerdict,
    Run,
    apply,
    ask_stop,
    give_up,
    states_passed,
)

LIVE = tuple(state for state in RunState if not state.is_terminal)
ENDS = tuple(state for state in RunState if state.is_terminal)
S = RunState

MOVES: dict[str, tuple[Run, Report, ReportVerdict, RunState]] = {
    "the first word of an agent": (Run(), Report(S.ACCEPTED, 1, 1), ReportVerdict.APPLIED, S.ACCEPTED),
    "a step forward": (Run(S.PENDING, seq=2), Report(S.RUNNING, 1, 3), ReportVerdict.APPLIED, S.RUNNING),
    "a run first heard of when it has succeeded": (
        Run(),
        Report(S.SUCCEEDED, 1, 9),
        ReportVerdict.APPLIED,
        S.SUCCEEDED,
    ),
    "the same report again": (Run(S.RUNNING, seq=3), Report(S.RUNNING, 1, 3), ReportVerdict.DUPLICATE, S.RUNNING),
    "the same state with news": (Run(S.RUNNING, seq=3), Report(S.RUNNING, 1, 4), ReportVerdict.DUPLICATE, S.RUNNING),
    "an older report": (Run(S.RUNNING, seq=3), Report(S.PENDING, 1, 2), ReportVerdict.STALE, S.RUNNING),
    "an older report that says it ended": (
        Run(S.RUNNING, seq=3),
        Report(S.FAILED, 1, 2),
        ReportVerdict.STALE,
        S.RUNNING,
    ),
    "a newer report that goes back": (Run(S.RUNNING, seq=3), Report(S.PENDING, 1, 4), ReportVerdict.ILLEGAL, S.RUNNING),
    "a stop that nobody asked for": (
        Run(S.RUNNING, seq=3),
        Report(S.CANCELLED, 2, 4),
        ReportVerdict.ILLEGAL,
        S.RUNNING,
    ),
    "an agent that has not heard of the stop yet": (
        Run(S.STOPPING, 2, 3, stop_cause=StopCause.CANCEL),
        Report(S.RUNNING, 1, 4),
        ReportVerdict.STALE,
        S.STOPPING,
    ),
    "an agent that has heard of the stop, its members not yet": (
        Run(S.STOPPING, 2, 3, stop_cause=StopCause.CANCEL),
        Report(S.RUNNING, 2, 4),
        ReportVerdict.STALE,
        S.STOPPING,
    ),
    "a run that ended before the stop reached it": (
        Run(S.STOPPING, 2, 3, stop_cause=StopCause.CANCEL),
        Report(S.SUCCEEDED, 1, 4),
        ReportVerdict.APPLIED,
        S.SUCCEEDED,
    ),
    "the end that was asked for": (
        Run(S.STOPPING, 2, 3, stop_cause=StopCause.CANCEL),
        Report(S.CANCELLED, 2, 4),
        ReportVerdict.APPLIED,
        S.CANCELLED,
    ),
    "an end told again": (Run(S.FAILED, seq=3), Report(S.FAILED, 1, 4), ReportVerdict.DUPLICATE, S.FAILED),
    "a dead run that lives again": (Run(S.FAILED, seq=3), Report(S.RUNNING, 1, 4), ReportVerdict.ILLEGAL, S.FAILED),
    "a dead run that ends otherwise": (
        Run(S.FAILED, seq=3),
        Report(S.SUCCEEDED, 1, 4),
        ReportVerdict.ILLEGAL,
        S.FAILED,
    ),
    "a run that was given up and runs": (Run(S.LOST, seq=3), Report(S.RUNNING, 1, 4), ReportVerdict.STALE, S.LOST),
    "a run that was given up and succeeded": (
        Run(S.LOST, seq=3),
        Report(S.SUCCEEDED, 1, 4),
        ReportVerdict.STALE,
        S.LOST,
    ),
}


@pytest.mark.parametrize(("run", "report", "verdict", "state"), MOVES.values(), ids=MOVES)
def test_a_report_of(run: Run, report: Report, verdict: ReportVerdict, state: RunState) -> None:
    outcome = apply(run, report)
    assert (outcome.verdict, outcome.run.state) == (verdict, state)
    assert bool(outcome.why) is (verdict is ReportVerdict.ILLEGAL)
    assert bool(outcome.passed) is (verdict is ReportVerdict.APPLIED)


@pytest.mark.parametrize(("before", "after"), list(product(LIVE, RunState)))
def test_the_table_of_transitions(before: RunState, after: RunState) -> None:
    """Within one generation every forward jump is legal and every step back is not, save that a stop is waited for."""
    outcome = apply(Run(before, seq=1), Report(after, 1, 2))
    if after.rank > before.rank:
        assert (outcome.verdict, outcome.run.state) == (ReportVerdict.APPLIED, after)
    elif after is before:
        assert (outcome.verdict, outcome.run.state) == (ReportVerdict.DUPLICATE, before)
    else:
        assert outcome.run.state is before
        assert outcome.verdict is (ReportVerdict.STALE if before is S.STOPPING else ReportVerdict.ILLEGAL)


PASSED: dict[str, tuple[RunState, RunState, tuple[RunState, ...]]] = {
    "one step": (S.LEASED, S.ACCEPTED, (S.ACCEPTED,)),
    "from the start to running": (S.LEASED, S.RUNNING, (S.ACCEPTED, S.PENDING, S.RUNNING)),
    "from the start to success": (S.LEASED, S.SUCCEEDED, (S.ACCEPTED, S.PENDING, S.RUNNING, S.SUCCEEDED)),
    "from pending to failure": (S.PENDING, S.FAILED, (S.RUNNING, S.FAILED)),
    "a return never ran": (S.ACCEPTED, S.RETURNED, (S.RETURNED,)),
    "a stop of members that never ran": (S.ACCEPTED, S.STOPPING, (S.STOPPING,)),
    "a cancel before it ran": (S.LEASED, S.CANCELLED, (S.CANCELLED,)),
    "a loss": (S.RUNNING, S.LOST, (S.LOST,)),
    "success while it was stopped": (S.STOPPING, S.SUCCEEDED, (S.SUCCEEDED,)),
}


@pytest.mark.parametrize(("before", "after", "passed"), PASSED.values(), ids=PASSED)
def test_the_states_passed_on(before: RunState, after: RunState, passed: tuple[RunState, ...]) -> None:
    assert states_passed(before, after) == passed


def test_the_states_passed_rise_without_a_gap_or_repeat() -> None:
    for before, after in product(LIVE, RunState):
        if after.rank > before.rank:
            ranks = [before.rank, *(state.rank for state in states_passed(before, after))]
            assert all(low < high for low, high in pairwise(ranks))


STOPS: dict[str, tuple[list[StopCause], StopCause, int]] = {
    "a cancel": ([StopCause.CANCEL], StopCause.CANCEL, 2),
    "a cancel twice": ([StopCause.CANCEL, StopCause.CANCEL], StopCause.CANCEL, 2),
    "a cancel over a suspend": ([StopCause.SUSPEND, StopCause.CANCEL], StopCause.CANCEL, 3),
    "a cancel over a preemption": ([StopCause.PREEMPT, StopCause.CANCEL], StopCause.CANCEL, 3),
    "a suspend after a cancel": ([StopCause.CANCEL, StopCause.SUSPEND], StopCause.CANCEL, 2),
    "a suspend after a preemption": ([StopCause.PREEMPT, StopCause.SUSPEND], StopCause.PREEMPT, 2),
    "a preemption after a suspend": ([StopCause.SUSPEND, StopCause.PREEMPT], StopCause.SUSPEND, 2),
}


@pytest.mark.parametrize(("causes", "cause", "generation"), STOPS.values(), ids=STOPS)
def test_stopping_by(causes: list[StopCause], cause: StopCause, generation: int) -> None:
    run = Run(S.RUNNING, seq=7)
    for requested in causes:
        run = ask_stop(run, requested)
    assert (run.state, run.stop_cause, run.generation, run.seq) == (S.STOPPING, cause, generation, 7)


def test_what_has_ended_is_neither_stopped_nor_given_up() -> None:
    for state in ENDS:
        assert ask_stop(Run(state), StopCause.CANCEL) == Run(state)
        assert give_up(Run(state)) == Run(state)
    for state in LIVE:
        assert give_up(Run(state)).state is S.LOST


runs = st.builds(
    Run,
    state=st.sampled_from(RunState),
    generation=st.integers(1, 3),
    seq=st.integers(0, 4),
    known=st.booleans(),
    stop_cause=st.none() | st.sampled_from(StopCause),
)
reports = st.builds(Report, state=st.sampled_from(RunState), generation=st.integers(0, 4), seq=st.integers(0, 6))


@given(runs, reports)
def test_every_report_has_an_outcome_and_none_goes_back(run: Run, report: Report) -> None:
    outcome = apply(run, report)
    assert outcome.run.state.rank >= run.state.rank
    assert outcome.run.seq >= run.seq
    assert (outcome.run.generation, outcome.run.stop_cause) == (run.generation, run.stop_cause)
    if not run.is_live:
        assert outcome.run.state is run.state
    if outcome.verdict is ReportVerdict.APPLIED:
        assert outcome.run.state is report.state is outcome.passed[-1]
        assert outcome.run.known
    else:
        assert outcome.run.state is run.state
    if outcome.verdict is ReportVerdict.ILLEGAL:
        assert outcome.run == run


@given(runs, reports)
def test_a_report_heard_twice_is_heard_once(run: Run, report: Report) -> None:
    once = apply(run, report)
    twice = apply(once.run, report)
    assert twice.run == once.run
    assert twice.verdict is not ReportVerdict.APPLIED
