"""The state machine of a job: what every end of a run means for it, and what people may do."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import FailureCategory, HoldCause, JobState, RunState, Wish
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.domain.job_machine import (
    LOSSES_WHILE_UP,
    RETURNS_IN_A_ROW,
    TRANSITIONS,
    Job,
    RunEnding,
    Settled,
    cancel,
    dispatch,
    release,
    resume,
    retry,
    run_started,
    settle,
    suspend,
)

NOW = 1_000_000.0
RUNNING = Job(state=JobState.RUNNING, attempt=1)
DISPATCHED = Job(state=JobState.DISPATCHED, attempt=1)
NEVER = Retries()
TWICE = Retries(limit=2, back_off="2s", most_back_off="3s")
ENDS = tuple(state for state in RunState if state.is_terminal)


def failed(
    category: FailureCategory | None = FailureCategory.EXIT, code: int | None = 1, message: str = ""
) -> RunEnding:
    return RunEnding(RunState.FAILED, category, code if category is FailureCategory.EXIT else None, message)


def lost(*, up: bool) -> RunEnding:
    return RunEnding(RunState.LOST, cluster_stayed_up=up)


def cancelling(job: Job = RUNNING) -> Job:
    return job._replace(wish=Wish.CANCEL)


def suspending(job: Job = RUNNING) -> Job:
    return job._replace(wish=Wish.SUSPEND)


SETTLED: dict[str, tuple[Job, RunEnding, Retries, Job]] = {
    "a run that succeeded ends the job": (
        RUNNING,
        RunEnding(RunState.SUCCEEDED, message="done"),
        NEVER,
        Job(JobState.SUCCEEDED, attempt=1, message="done"),
    ),
    "a run may succeed before it was seen to run": (
        DISPATCHED,
        RunEnding(RunState.SUCCEEDED),
        NEVER,
        Job(JobState.SUCCEEDED, attempt=1),
    ),
    "a cancelled run cancels the job": (
        cancelling(),
        RunEnding(RunState.CANCELLED),
        NEVER,
        Job(JobState.CANCELLED, attempt=1, message="cancelled"),
    ),
    "a run that succeeded before the cancel reached it has succeeded": (
        cancelling(),
        RunEnding(RunState.SUCCEEDED),
        NEVER,
        Job(JobState.SUCCEEDED, attempt=1),
    ),
    "a run that failed while it was cancelled is not tried again": (
        cancelling(),
        failed(),
        TWICE,
        Job(JobState.CANCELLED, attempt=1, message="cancelled"),
    ),
    "a run that was lost while it was cancelled is not tried again": (
        cancelling(),
        lost(up=False),
        NEVER,
        Job(JobState.CANCELLED, attempt=1, message="cancelled"),
    ),
    "a run that was returned while it was cancelled is not tried again": (
        cancelling(DISPATCHED),
        RunEnding(RunState.RETURNED),
        NEVER,
        Job(JobState.CANCELLED, attempt=1, message="cancelled"),
    ),
    "a suspended run holds the job": (
        suspending(),
        RunEnding(RunState.SUSPENDED),
        NEVER,
        Job(JobState.HELD, HoldCause.SUSPENDED, attempt=1),
    ),
    "a preempted run holds a job that a person wants suspended": (
        suspending(),
        RunEnding(RunState.PREEMPTED),
        NEVER,
        Job(JobState.HELD, HoldCause.SUSPENDED, attempt=1),
    ),
    "a run that failed while it was suspended has used a retry": (
        suspending(),
        failed(),
        TWICE,
        Job(JobState.HELD, HoldCause.SUSPENDED, attempt=1, retries_used=1),
    ),
    "a run that failed for good while it was suspended has failed": (
        suspending(),
        failed(message="exit 1"),
        NEVER,
        Job(JobState.FAILED, attempt=1, message="exit 1"),
    ),
    "a run that was returned too often while it was suspended is suspended": (
        suspending(DISPATCHED._replace(returns=RETURNS_IN_A_ROW - 1)),
        RunEnding(RunState.RETURNED),
        NEVER,
        Job(JobState.HELD, HoldCause.SUSPENDED, attempt=1, returns=RETURNS_IN_A_ROW),
    ),
    "a preempted run queues the job and uses no retry": (
        RUNNING,
        RunEnding(RunState.PREEMPTED),
        NEVER,
        Job(JobState.QUEUED, attempt=1, message="preempted"),
    ),
    "a lost run queues the job and uses no retry": (
        RUNNING,
        lost(up=False),
        NEVER,
        Job(JobState.QUEUED, attempt=1, message="lost"),
    ),
    "a loss while the cluster stayed up is counted": (
        RUNNING,
        lost(up=True),
        NEVER,
        Job(JobState.QUEUED, attempt=1, losses=1, message="lost"),
    ),
    "too many losses while the cluster stayed up are a failure": (
        RUNNING._replace(losses=LOSSES_WHILE_UP - 1),
        lost(up=True),
        NEVER,
        Job(JobState.FAILED, attempt=1, losses=3, message="lost 3 times while the cluster stayed up"),
    ),
    "a lost node queues the job and uses no retry": (
        RUNNING,
        failed(FailureCategory.NODE_LOST, message="node n3 crashed"),
        NEVER,
        Job(JobState.QUEUED, attempt=1, losses=1, message="node n3 crashed"),
    ),
    "a lost node is no matter of the retry policy at first": (
        RUNNING._replace(losses=1),
        failed(FailureCategory.NODE_LOST, message="node n3 crashed"),
        Retries(limit=1, categories=(FailureCategory.EXIT,)),
        Job(JobState.QUEUED, attempt=1, losses=2, message="node n3 crashed"),
    ),
    "a job that loses its nodes again and again has failed": (
        RUNNING._replace(losses=LOSSES_WHILE_UP - 1),
        failed(FailureCategory.NODE_LOST, message="node n3 crashed"),
        NEVER,
        Job(
            JobState.FAILED,
            attempt=1,
            losses=3,
            message="lost 3 times while the cluster stayed up; node n3 crashed",
        ),
    ),
    "after many lost nodes the retry policy decides": (
        RUNNING._replace(losses=LOSSES_WHILE_UP),
        failed(FailureCategory.NODE_LOST),
        TWICE,
        Job(
            JobState.HELD,
            HoldCause.BACK_OFF,
            NOW + 2,
            attempt=1,
            retries_used=1,
            losses=4,
            message="lost 4 times while the cluster stayed up",
        ),
    ),
    "losses with the cluster never become a failure": (
        RUNNING._replace(losses=LOSSES_WHILE_UP),
        lost(up=False),
        NEVER,
        Job(JobState.QUEUED, attempt=1, losses=LOSSES_WHILE_UP, message="lost"),
    ),
    "a returned run queues the job and uses no retry": (
        DISPATCHED,
        RunEnding(RunState.RETURNED, message="no room"),
        NEVER,
        Job(JobState.QUEUED, attempt=1, returns=1, message="no room"),
    ),
    "too many returns in a row make the job unplaceable": (
        DISPATCHED._replace(returns=RETURNS_IN_A_ROW - 1),
        RunEnding(RunState.RETURNED, message="no room"),
        NEVER,
        Job(
            JobState.HELD,
            HoldCause.UNPLACEABLE,
            attempt=1,
            returns=5,
            message="returned 5 times in a row; the last one said: no room",
        ),
    ),
    "a failed run without retries fails the job": (
        RUNNING,
        failed(message="exit code 1"),
        NEVER,
        Job(JobState.FAILED, attempt=1, message="exit code 1"),
    ),
    "a failed run with retries waits a moment": (
        RUNNING,
        failed(message="exit code 1"),
        TWICE,
        Job(JobState.HELD, HoldCause.BACK_OFF, NOW + 2, attempt=1, retries_used=1, message="exit code 1"),
    ),
    "the wait doubles up to its limit": (
        RUNNING._replace(retries_used=1),
        failed(),
        TWICE,
        Job(JobState.HELD, HoldCause.BACK_OFF, NOW + 3, attempt=1, retries_used=2),
    ),
    "the last retry was used": (
        RUNNING._replace(retries_used=2),
        failed(),
        TWICE,
        Job(JobState.FAILED, attempt=1, retries_used=2),
    ),
    "without a back-off the job is queued at once": (
        RUNNING,
        failed(),
        Retries(limit=1, back_off="0s"),
        Job(JobState.QUEUED, attempt=1, retries_used=1),
    ),
}


@pytest.mark.parametrize(("job", "ending", "retries", "after"), SETTLED.values(), ids=SETTLED)
def test_settling(job: Job, ending: RunEnding, retries: Retries, after: Job) -> None:
    assert settle(job, ending, retries, NOW).job == after


RETRIED: dict[str, tuple[RunEnding, Retries, bool]] = {
    "an exit": (failed(), Retries(), True),
    "a signal": (failed(FailureCategory.SIGNAL), Retries(), True),
    "out of memory": (failed(FailureCategory.OOM), Retries(), True),
    "an eviction": (failed(FailureCategory.EVICTED), Retries(), True),
    "a lost node": (failed(FailureCategory.NODE_LOST), Retries(), True),
    "no image": (failed(FailureCategory.IMAGE), Retries(), False),
    "a bad configuration": (failed(FailureCategory.CONFIG), Retries(), False),
    "its deadline": (failed(FailureCategory.DEADLINE), Retries(), False),
    "its deadline where the job says so": (
        failed(FailureCategory.DEADLINE),
        Retries(categories=(FailureCategory.DEADLINE,)),
        True,
    ),
    "an exit where the job names others": (failed(), Retries(categories=(FailureCategory.OOM,)), False),
    "an exit code that is named": (failed(code=42), Retries(exit_codes=(42, 43)), True),
    "an exit code that is not named": (failed(code=1), Retries(exit_codes=(42, 43)), False),
    "a signal though exit codes are named": (failed(FailureCategory.SIGNAL), Retries(exit_codes=(42,)), True),
    "a failure of unknown kind": (failed(None), Retries(), True),
}


@pytest.mark.parametrize(("ending", "retries", "again"), RETRIED.values(), ids=RETRIED)
def test_a_run_that_failed_by_this_is_tried_again(ending: RunEnding, retries: Retries, again: bool) -> None:
    assert job_machine.is_retried(ending, retries) is again


def test_a_run_that_only_lacked_room_is_always_tried_again() -> None:
    job, pauses = DISPATCHED, []
    for _ in range(100):
        settled = settle(job, RunEnding(RunState.RETURNED, lacks_room=True), NEVER, NOW)
        pauses.append(settled.cool_down_seconds)
        assert settled.job.state is JobState.QUEUED
        job = settled.job._replace(state=JobState.DISPATCHED)
    assert (pauses[:6], pauses[6:19], pauses[19:]) == ([30, 60, 120, 240, 480, 600], [600] * 13, [3600] * 81)


def test_the_pauses_after_returns_grow() -> None:
    job, pauses = DISPATCHED, []
    for _ in range(RETURNS_IN_A_ROW):
        settled = settle(job, RunEnding(RunState.RETURNED), NEVER, NOW)
        pauses.append(settled.cool_down_seconds)
        job = settled.job._replace(state=JobState.DISPATCHED)
    assert pauses == [30, 60, 120, 240, 0]


def test_only_returned_runs_leave_their_cluster_out_for_a_while() -> None:
    for state in ENDS:
        assert (settle(RUNNING, RunEnding(state), NEVER, NOW).cool_down_seconds > 0) is (state is RunState.RETURNED)


def test_a_run_that_started_ends_the_row_of_returns() -> None:
    assert run_started(DISPATCHED._replace(returns=4)) == Job(JobState.RUNNING, attempt=1, returns=0)
    assert run_started(RUNNING._replace(returns=4)) == RUNNING._replace(returns=4)


def test_a_run_that_has_not_ended_settles_nothing() -> None:
    for state in RunState:
        if not state.is_terminal:
            with pytest.raises(ValueError, match="has not ended"):
                settle(RUNNING, RunEnding(state), NEVER, NOW)


# -- the transitions

ALLOWED = {
    JobState.HELD: {"held", "queued", "cancelled"},
    JobState.QUEUED: {"dispatched", "running", "held", "cancelled"},
    JobState.DISPATCHED: {"running", "queued", "held", "succeeded", "failed", "cancelled"},
    JobState.RUNNING: {"queued", "held", "succeeded", "failed", "cancelled"},
    JobState.SUCCEEDED: set(),
    JobState.FAILED: {"queued"},
    JobState.CANCELLED: {"queued"},
}


@pytest.mark.parametrize(("before", "after"), list(product(JobState, JobState)))
def test_the_table_of_transitions(before: JobState, after: JobState) -> None:
    assert (after in TRANSITIONS[before]) is (after.value in ALLOWED[before])
    job = Job(before, HoldCause.USER if before is JobState.HELD else None, attempt=3)
    if after.value in ALLOWED[before]:
        assert job.moved(after) == Job(after, attempt=3)
    else:
        with pytest.raises(ProblemError) as caught:
            job.moved(after)
        assert caught.value.code is Code.WRONG_STATE


def test_a_dispatch_begins_the_next_attempt() -> None:
    assert dispatch(Job(attempt=4, message="old")) == Job(JobState.DISPATCHED, attempt=5)


def test_a_hold_ends_once() -> None:
    held = Job(JobState.HELD, HoldCause.BACK_OFF, NOW, attempt=1)
    assert release(held) == Job(attempt=1)
    assert release(RUNNING) == RUNNING


# -- what people may do

HELD = Job(JobState.HELD, HoldCause.USER)
REFUSED = "refused"
STEERED: dict[str, tuple[str, Job, Job | str]] = {
    "cancel a queued job": ("cancel", Job(), Job(JobState.CANCELLED, message="cancelled while it waited")),
    "cancel a held job": ("cancel", HELD, Job(JobState.CANCELLED, message="cancelled while it waited")),
    "cancel a running job": ("cancel", RUNNING, cancelling()),
    "cancel a dispatched job": ("cancel", DISPATCHED, cancelling(DISPATCHED)),
    "cancel a job twice": ("cancel", cancelling(), cancelling()),
    "cancel a job that is being suspended": ("cancel", suspending(), cancelling()),
    "cancel a job that has ended": ("cancel", Job(JobState.FAILED), Job(JobState.FAILED)),
    "suspend a queued job": ("suspend", Job(), HELD),
    "suspend a running job": ("suspend", RUNNING, suspending()),
    "suspend a job twice": ("suspend", suspending(), suspending()),
    "suspend a held job": ("suspend", HELD, HELD),
    "suspend a suspended job": (
        "suspend",
        Job(JobState.HELD, HoldCause.SUSPENDED),
        Job(JobState.HELD, HoldCause.SUSPENDED),
    ),
    "suspend a job that waits for its retry": ("suspend", Job(JobState.HELD, HoldCause.BACK_OFF, NOW), HELD),
    "suspend a job that is being cancelled": ("suspend", cancelling(), REFUSED),
    "suspend a job that has ended": ("suspend", Job(JobState.SUCCEEDED), REFUSED),
    "resume a held job": ("resume", HELD, Job()),
    "resume an unplaceable job": ("resume", Job(JobState.HELD, HoldCause.UNPLACEABLE, returns=5, message="x"), Job()),
    "resume a job that is still being suspended": ("resume", suspending(), REFUSED),
    "resume a queued job": ("resume", Job(), REFUSED),
    "resume a running job": ("resume", RUNNING, REFUSED),
    "resume a held job before its start time": (
        "resume",
        HELD._replace(eligible_at=NOW + 1),
        Job(JobState.HELD, HoldCause.START_TIME, NOW + 1, eligible_at=NOW + 1),
    ),
    "resume a suspended job before its start time": (
        "resume",
        Job(JobState.HELD, HoldCause.SUSPENDED, eligible_at=NOW + 1, message="x"),
        Job(JobState.HELD, HoldCause.START_TIME, NOW + 1, eligible_at=NOW + 1),
    ),
    "resume a held job after its start time": ("resume", HELD._replace(eligible_at=NOW - 1), Job(eligible_at=NOW - 1)),
    "resume a job that waits for its start time": (
        "resume",
        Job(JobState.HELD, HoldCause.START_TIME, NOW + 1, eligible_at=NOW + 1),
        Job(eligible_at=NOW),
    ),
    "retry a failed job": (
        "retry",
        Job(JobState.FAILED, attempt=3, retries_used=2, losses=3, message="x"),
        Job(attempt=3),
    ),
    "retry a cancelled job": ("retry", Job(JobState.CANCELLED, attempt=1), Job(attempt=1)),
    "retry a job that was cancelled before its start time": (
        "retry",
        Job(JobState.CANCELLED, eligible_at=NOW + 9, awaits_jobs=True),
        Job(eligible_at=NOW),
    ),
    "retry a job that has succeeded": ("retry", Job(JobState.SUCCEEDED), REFUSED),
    "retry a running job": ("retry", RUNNING, REFUSED),
}


@pytest.mark.parametrize(("action", "job", "after"), STEERED.values(), ids=STEERED)
def test_a_person_may(action: str, job: Job, after: Job | str) -> None:
    acts: dict[str, Callable[[Job], Job]] = {
        "cancel": cancel,
        "suspend": suspend,
        "resume": partial(resume, now=NOW),
        "retry": partial(retry, now=NOW),
    }
    act = acts[action]
    if isinstance(after, Job):
        assert act(job) == after
        return
    with pytest.raises(ProblemError) as caught:
        act(job)
    assert caught.value.code is Code.WRONG_STATE


endings = st.builds(
    RunEnding,
    state=st.sampled_from(ENDS),
    category=st.none() | st.sampled_from(FailureCategory),
    exit_code=st.none() | st.integers(0, 255),
    cluster_stayed_up=st.booleans(),
)
live_jobs = st.builds(
    Job,
    state=st.sampled_from([JobState.DISPATCHED, JobState.RUNNING]),
    wish=st.none() | st.sampled_from(Wish),
    attempt=st.integers(1, 99),
    retries_used=st.integers(0, 1000),
    losses=st.integers(0, 5),
    returns=st.integers(0, 5),
)
policies = st.builds(
    Retries,
    limit=st.integers(0, 1000),
    exit_codes=st.lists(st.integers(1, 255), max_size=2).map(tuple),
    categories=st.lists(st.sampled_from(FailureCategory), max_size=4).map(tuple),
    back_off=st.sampled_from(["0s", "2s", "3650d"]),
)


@given(live_jobs, endings, policies)
def test_every_end_of_a_run_settles_every_job(job: Job, ending: RunEnding, retries: Retries) -> None:
    settled: Settled = settle(job, ending, retries, NOW)
    after = settled.job
    assert after.state in TRANSITIONS[job.state]
    assert not after.state.has_live_run
    assert after.wish is None
    assert after.attempt == job.attempt
    assert (after.hold_cause is not None) is (after.state is JobState.HELD)
    assert after.retries_used <= max(job.retries_used, retries.limit)
    assert 0 <= settled.cool_down_seconds <= 600
    if after.hold_until is not None:
        assert after.hold_cause is HoldCause.BACK_OFF
        assert NOW < after.hold_until <= NOW + 600
    if job.wish is Wish.CANCEL:
        assert after.state in (JobState.CANCELLED, JobState.SUCCEEDED)
    if job.wish is Wish.SUSPEND:
        assert after.state.is_terminal or after.hold_cause is HoldCause.SUSPENDED
    if ending.state not in (RunState.FAILED,):
        assert after.retries_used == job.retries_used
