"""The state machine of a job.

                 ┌────────────── a run ended without settling it ──────────────┐
                 ▼                                                             │
    held ◀──▶ queued ──▶ dispatched ──▶ running ──▶ succeeded | failed | cancelled
      ▲                       │            │
      └───────────────────────┴────────────┘   suspended, back-off, unplaceable

A cancel or suspend of a job with a live run is a wish until the run has ended: the job shows as ``cancelling`` or ``suspending``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import DependencyFailure, FailureCategory, HoldCause, JobState, RunState, Wish

RETURNS_IN_A_ROW = 5
"""This number of returned runs in a row, without one that started, makes a job unplaceable."""
RETURNS_FOR_ROOM = 20
"""From this number on, returned runs that only lacked free capacity, as it was in pieces, are followed by the longest pauses."""
LOSSES_WHILE_UP = 3
"""From this loss on, lost runs on clusters that stayed reachable, and lost nodes, count as failures."""
_COOL_DOWN_SECONDS = 30.0
_MOST_COOL_DOWN_SECONDS = 600.0
_COOL_DOWN_FOR_ROOM_SECONDS = 3600.0

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.HELD: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.HELD}),
    JobState.QUEUED: frozenset({JobState.DISPATCHED, JobState.RUNNING, JobState.HELD, JobState.CANCELLED}),
    JobState.DISPATCHED: frozenset(
        {JobState.RUNNING, JobState.QUEUED, JobState.HELD, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.HELD, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}
"""The states that may follow each state; leaving ``failed`` or ``cancelled`` takes a person's ``retry``. An array whose
elements are jobs goes from ``queued`` to ``running``: it has no run (``domain/element_jobs.py``).
"""


class Job(NamedTuple):
    """The state of a job in the machine. ``hold_until`` and ``eligible_at`` are in seconds since the epoch.

    ``awaits_jobs``: it has conditions on other jobs that are not all met. ``eligible_at``: since then the job waits for its turn, or
    will; None: since its submission.
    """

    state: JobState = JobState.QUEUED
    hold_cause: HoldCause | None = None
    hold_until: float | None = None
    wish: Wish | None = None
    attempt: int = 0
    retries_used: int = 0
    losses: int = 0
    returns: int = 0
    message: str = ""
    eligible_at: float | None = None
    awaits_jobs: bool = False

    def moved(self, state: JobState) -> "Job":
        """Return the job in another state, without the values that belonged to the old one."""
        if state not in TRANSITIONS[self.state]:
            raise ProblemError(Code.WRONG_STATE, f"a {self.state} job cannot become {state}")
        return self._replace(state=state, hold_cause=None, hold_until=None)

    def held(self, cause: HoldCause, until: float | None = None, message: str = "") -> "Job":
        return self.moved(JobState.HELD)._replace(hold_cause=cause, hold_until=until, message=message)


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The end of a job's live run, as far as the job is concerned."""

    state: RunState
    category: FailureCategory | None = None
    exit_code: int | None = None
    message: str = ""
    cluster_stayed_up: bool = False
    """For a lost run: whether its cluster was in contact, so that the network cannot be the cause."""
    lacks_room: bool = False
    """For a returned run: whether it only lacked free capacity, so that waiting may help."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The job after a run ended, and for how many seconds its cluster is left out for the job."""

    job: Job
    cool_down_seconds: float = 0.0


def dispatch(job: Job) -> Job:
    """Return the job after the scheduler assigned it to a cluster: the next attempt begins."""
    return job.moved(JobState.DISPATCHED)._replace(attempt=job.attempt + 1, message="", awaits_jobs=False)


def adopt(job: Job, attempt: int) -> Job:
    """Return the waiting job as dispatched: the store was restored, and an agent has run ``attempt`` of the job."""
    waiting = job if job.state is JobState.QUEUED else job.moved(JobState.QUEUED)
    return waiting.moved(JobState.DISPATCHED)._replace(attempt=attempt, message="", awaits_jobs=False, eligible_at=None)


def run_started(job: Job) -> Job:
    """Return the job after its run reached the gang minimum."""
    return job.moved(JobState.RUNNING)._replace(returns=0) if job.state is JobState.DISPATCHED else job


def settle(job: Job, ending: RunEnding, retries: Retries, now: float) -> Settled:
    """Return the job after its live run ended. ``now`` in seconds since the epoch."""
    settled = _settle(job._replace(wish=None), ending, retries, now)
    if job.wish is Wish.CANCEL and settled.job.state is not JobState.SUCCEEDED:
        return Settled(job._replace(wish=None, message=job.message or "cancelled").moved(JobState.CANCELLED))
    if job.wish is Wish.SUSPEND and not settled.job.state.is_terminal:
        return Settled(settled.job.held(HoldCause.SUSPENDED, message=job.message), settled.cool_down_seconds)
    return settled


def _settle(job: Job, ending: RunEnding, retries: Retries, now: float) -> Settled:
    match ending.state:
        case RunState.SUCCEEDED:
            return Settled(job.moved(JobState.SUCCEEDED)._replace(message=ending.message))
        case RunState.CANCELLED:
            return Settled(job.moved(JobState.CANCELLED)._replace(message=ending.message or "cancelled"))
        case RunState.SUSPENDED:
            return Settled(job.held(HoldCause.SUSPENDED))
        case RunState.PREEMPTED:
            # The reason was recorded when the run was stopped; the agent only knows that it was stopped.
            return Settled(job.moved(JobState.QUEUED)._replace(message=job.message or ending.message or "preempted"))
        case RunState.RETURNED:
            return _returned(job._replace(returns=job.returns + 1), ending)
        case RunState.LOST:
            return Settled(_lost(job, ending))
        case RunState.FAILED if ending.category is FailureCategory.NODE_LOST:
            return Settled(_node_lost(job, ending, retries, now))
        case RunState.FAILED:
            return Settled(_failed(job, ending, retries, now))
        case _:
            raise ValueError(f"a run in state {ending.state} has not ended")


def _returned(job: Job, ending: RunEnding) -> Settled:
    if job.returns >= RETURNS_IN_A_ROW and not ending.lacks_room:
        said = f"; the last one said: {ending.message}" if ending.message else ""
        message = f"returned {job.returns} times in a row{said}"
        return Settled(job.held(HoldCause.UNPLACEABLE, message=message))
    seconds = min(_COOL_DOWN_SECONDS * 2 ** (job.returns - 1), _MOST_COOL_DOWN_SECONDS)
    if job.returns >= RETURNS_FOR_ROOM:
        # What is free may stay in pieces for long, and capacity is held for each attempt; but room changes, so it is never given up.
        seconds = _COOL_DOWN_FOR_ROOM_SECONDS
    return Settled(job.moved(JobState.QUEUED)._replace(message=ending.message), cool_down_seconds=seconds)


def _lost(job: Job, ending: RunEnding) -> Job:
    losses = job.losses + (1 if ending.cluster_stayed_up else 0)
    job = job._replace(losses=losses)
    if ending.cluster_stayed_up and losses >= LOSSES_WHILE_UP:
        detail = f"; {ending.message}" if ending.message else ""
        message = f"lost {losses} times while the cluster stayed up{detail}"
        return job.moved(JobState.FAILED)._replace(message=message)
    return job.moved(JobState.QUEUED)._replace(message=ending.message or "lost")


def _node_lost(job: Job, ending: RunEnding, retries: Retries, now: float) -> Job:
    """Queue the job again: a node that crashes is not the job's fault. After repeated crashes, the job may be their cause."""
    losses = job.losses + 1
    job = job._replace(losses=losses)
    if losses < LOSSES_WHILE_UP:
        return job.moved(JobState.QUEUED)._replace(message=ending.message or "its node was lost")
    detail = f"; {ending.message}" if ending.message else ""
    return _failed(
        job, replace(ending, message=f"lost {losses} times while the cluster stayed up{detail}"), retries, now
    )


def _failed(job: Job, ending: RunEnding, retries: Retries, now: float) -> Job:
    if job.retries_used >= retries.limit or not is_retried(ending, retries):
        return job.moved(JobState.FAILED)._replace(message=ending.message)
    used = job.retries_used + 1
    seconds = min(parse_duration(retries.back_off) * 2 ** (used - 1), parse_duration(retries.most_back_off))
    job = job._replace(retries_used=used)
    if seconds <= 0:
        return job.moved(JobState.QUEUED)._replace(message=ending.message)
    return job.held(HoldCause.BACK_OFF, now + seconds, ending.message)


def is_retried(ending: RunEnding, retries: Retries) -> bool:
    """Return whether the policy lets this kind of failure be tried again; the number of attempts left is not considered."""
    if ending.category is not None and ending.category not in retries.categories:
        return False
    if retries.exit_codes and ending.category is FailureCategory.EXIT:
        return ending.exit_code in retries.exit_codes
    return True


def cancel(job: Job, why: str = "") -> Job:
    """Return the job after a person cancelled it; unchanged if it is being cancelled or has ended already.

    ``why``: the reason, where it was no person.
    """
    if job.state.is_terminal or job.wish is Wish.CANCEL:
        return job
    if job.state.has_live_run:
        return job._replace(wish=Wish.CANCEL, message=why)
    return job.moved(JobState.CANCELLED)._replace(message=why or "cancelled while it waited")


def suspend(job: Job, cause: HoldCause = HoldCause.USER, why: str = "") -> Job:
    """Return the job after a person suspended it. Raises ProblemError if it has ended or is being cancelled.

    ``why``: the reason, where it was no person.
    """
    if job.state.is_terminal:
        raise ProblemError(Code.WRONG_STATE, f"the job has {job.state}; only a job that has not ended can be suspended")
    if job.wish is Wish.CANCEL:
        raise ProblemError(Code.WRONG_STATE, "the job is being cancelled")
    if job.state.has_live_run:
        return job._replace(wish=Wish.SUSPEND, message=why)
    if job.state is JobState.HELD and job.hold_cause in (HoldCause.USER, HoldCause.SUSPENDED):
        return job
    return job.held(cause, message=why)


def resume(job: Job, now: float) -> Job:
    """Return a held job after a person resumed it at ``now``, in seconds since the epoch: queued, or held until its start time.

    One that waits for its start time, or for other jobs, is queued. Raises ProblemError if there is nothing to resume.
    """
    if job.wish is Wish.SUSPEND:
        raise ProblemError(Code.WRONG_STATE, "the job is still being suspended; resume it when it is held")
    if job.state is not JobState.HELD:
        raise ProblemError(Code.WRONG_STATE, f"the job is {job.state}, not held")
    if job.hold_cause in (HoldCause.START_TIME, HoldCause.DEPENDENCY):
        return job.moved(JobState.QUEUED)._replace(message="", eligible_at=now, awaits_jobs=False)
    if job.awaits_jobs:
        return job.held(HoldCause.DEPENDENCY)._replace(returns=0)
    if job.eligible_at is not None and job.eligible_at > now:
        return job.held(HoldCause.START_TIME, job.eligible_at)._replace(returns=0)
    return job.moved(JobState.QUEUED)._replace(returns=0, message="")


def release(job: Job) -> Job:
    """Return the job after its hold ended by itself."""
    return job.moved(JobState.QUEUED) if job.state is JobState.HELD else job


def conditions_met(job: Job, now: float) -> Job:
    """Return the job after all its conditions on other jobs are met: queued, or held until its start time."""
    if job.eligible_at is not None and job.eligible_at > now:
        return job.held(HoldCause.START_TIME, job.eligible_at)._replace(awaits_jobs=False)
    return job.moved(JobState.QUEUED)._replace(message="", eligible_at=now, awaits_jobs=False)


def condition_failed(job: Job, on_failure: DependencyFailure, message: str) -> Job:
    """Return the job after one of its conditions on other jobs can no longer be met."""
    if on_failure is DependencyFailure.HOLD:
        return job._replace(message=message)
    return job.moved(JobState.CANCELLED)._replace(message=message)


def retry(job: Job, now: float) -> Job:
    """Return an ended job after a person requested one more try at ``now``, in seconds since the epoch: it waits for nothing else.

    Raises ProblemError unless it failed or was cancelled.
    """
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        raise ProblemError(Code.WRONG_STATE, f"the job is {job.state}; only a failed or cancelled job can be retried")
    return job.moved(JobState.QUEUED)._replace(
        retries_used=0,
        losses=0,
        returns=0,
        message="",
        awaits_jobs=False,
        eligible_at=None if job.eligible_at is None else min(job.eligible_at, now),
    )
