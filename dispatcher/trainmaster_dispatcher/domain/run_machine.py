"""The state machine of a run: one attempt of a job on one cluster.

    leased ──▶ accepted ──▶ pending ──▶ running ──▶ stopping ──▶ succeeded | failed | cancelled | suspended
       │           │            │           │           ▲         | preempted | returned | lost
       └───────────┴────────────┴───────────┴───────────┘
                 any of them may go to any later one

Every forward jump is legal, because an agent may first be heard when the run has already succeeded. Reports carry a sequence
number per run: one that is not newer than the last applied changes nothing. A newer report that moves back within one
generation, or leaves a terminal state that its agent itself had reported, is illegal: the two sides disagree.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from trainmaster.protocol.states import RunState, StopCause


class ReportVerdict(StrEnum):
    """The result of a report."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    STALE = "stale"
    ILLEGAL = "illegal"


class Run(NamedTuple):
    """The state of a run in the machine. ``known`` means that its agent has reported it at least once."""

    state: RunState = RunState.LEASED
    generation: int = 1
    seq: int = 0
    known: bool = False
    stop_cause: StopCause | None = None

    @property
    def is_live(self) -> bool:
        return not self.state.is_terminal


@dataclass(frozen=True, slots=True)
class Report:
    """The part of an agent's report that moves the machine."""

    state: RunState
    generation: int
    seq: int


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The verdict on a report, the run after it and the states passed, the new one last."""

    verdict: ReportVerdict
    run: Run
    passed: tuple[RunState, ...] = ()
    why: str = ""


_PATH = (RunState.LEASED, RunState.ACCEPTED, RunState.PENDING, RunState.RUNNING)
_RAN = (RunState.SUCCEEDED, RunState.FAILED)
"""Ends that imply that the run was running; a run that stops, or ends otherwise, may never have had its members."""


@cache
def states_passed(before: RunState, after: RunState) -> tuple[RunState, ...]:
    """Return the states between two on the way forward, including ``after``. ``running`` is passed only on the way to
    an end that implies it."""
    last_rank = after.rank if after.rank <= RunState.RUNNING.rank or after in _RAN else before.rank
    between = tuple(state for state in _PATH if before.rank < state.rank < last_rank)
    return (*between, after)


def apply(run: Run, report: Report) -> RunOutcome:
    """Return the outcome of a report by the run's agent. Total: every run and report has an outcome."""
    if report.generation > run.generation:
        return RunOutcome(ReportVerdict.ILLEGAL, run, why=f"the dispatcher never issued generation {report.generation}")
    if report.seq <= run.seq:
        same = report.seq == run.seq and report.state is run.state
        return RunOutcome(ReportVerdict.DUPLICATE if same else ReportVerdict.STALE, run)
    heard = run._replace(seq=report.seq, known=True)
    if run.state.is_terminal:
        # A run that the dispatcher declared lost may still be reported by its agent; one that its agent ended may not
        # live again.
        ended_by_agent = run.state is not RunState.LOST
        if report.state is run.state:
            return RunOutcome(ReportVerdict.DUPLICATE, heard)
        if ended_by_agent and report.generation == run.generation:
            return RunOutcome(ReportVerdict.ILLEGAL, run, why=f"{run.state} is final, it cannot become {report.state}")
        return RunOutcome(ReportVerdict.STALE, run)
    if report.state is run.state:
        return RunOutcome(ReportVerdict.DUPLICATE, heard)
    if report.state.rank < run.state.rank:
        if report.generation < run.generation:
            return RunOutcome(ReportVerdict.STALE, heard)
        if run.state is RunState.STOPPING:
            # The agent knows of the stop but its members are still at an earlier state; the stop remains requested.
            return RunOutcome(ReportVerdict.STALE, heard)
        return RunOutcome(ReportVerdict.ILLEGAL, run, why=f"{run.state} cannot go back to {report.state}")
    return RunOutcome(ReportVerdict.APPLIED, heard._replace(state=report.state), states_passed(run.state, report.state))


def ask_stop(run: Run, cause: StopCause) -> Run:
    """Return the run after the dispatcher decided to stop it. A cancel outranks a suspend or preemption in progress,
    never the reverse."""
    if run.state.is_terminal:
        return run
    if run.stop_cause is not None and (cause is not StopCause.CANCEL or run.stop_cause is StopCause.CANCEL):
        return run
    return run._replace(state=RunState.STOPPING, generation=run.generation + 1, stop_cause=cause)


def hasten(run: Run) -> Run:
    """Return the run after the dispatcher decided to leave its members less time than the stop in progress does."""
    return run._replace(generation=run.generation + 1)


def ask_resize(run: Run) -> Run:
    """Return the run after the dispatcher decided on other sizes; only a run that is not being stopped."""
    return run._replace(generation=run.generation + 1)


def give_up(run: Run) -> Run:
    """Return the run after the dispatcher declared it lost."""
    return run if run.state.is_terminal else run._replace(state=RunState.LOST)
