"""Spans of jobs and their runs, from what the store has of them once something has ended. Pure.

A span names queue, cluster and states, and never what a user has written: no command, environment, label or message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.protocol.ids import job_id, run_id
from trainmaster.protocol.states import JobState, RunState
from trainmaster.tracing.context import SpanRef, job_span, run_span
from trainmaster.tracing.spans import AttributeValue, FinishedSpan, SpanEvent
from trainmaster_dispatcher.domain.job_events import JobEventKind

JOB, QUEUE, CLUSTER, ATTEMPT = (
    "trainmaster.job.id",
    "trainmaster.queue",
    "trainmaster.cluster",
    "trainmaster.run.attempt",
)
_JOB_STATE, _RUN_STATE, _REASON = "trainmaster.job.state", "trainmaster.run.state", "trainmaster.wait.reason"
_MOST_EVENTS = 100
_FAILED_RUNS = frozenset((RunState.FAILED, RunState.LOST))


class TracedJob(NamedTuple):
    """A job whose submission belongs to a sampled trace; times in seconds since the epoch.

    ``trace``: the span of the submission. ``waits_since``: when its latest wait began.
    """

    key: int
    name: str
    queue: str
    trace: SpanRef
    submitted_at: float
    waits_since: float

    @property
    def id(self) -> str:
        return job_id(self.name, self.key)

    @property
    def span(self) -> SpanRef:
        return job_span(self.trace, self.key)


class TracedRun(NamedTuple):
    """A run of such a job."""

    job_key: int
    attempt: int
    cluster: str
    leased_at: float


class PastEvent(NamedTuple):
    """A stored event of a job."""

    job_key: int
    attempt: int | None
    kind: str
    states: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Times of the cycle that decided: its begin, the end of the decision, and the end of storing it."""

    began: float
    decided: float
    stored: float


def wait_spans(
    job: TracedJob, attempt: int, cluster: str, times: DecisionTimes, reason: str, score: float | None, evicts: int
) -> list[FinishedSpan]:
    """Return the spans of a wait that the scheduler has ended, and of its decision. ``reason``: what the job waited for last."""
    own: dict[str, AttributeValue] = {JOB: job.id, QUEUE: job.queue, ATTEMPT: attempt}
    waited: dict[str, AttributeValue] = own | ({_REASON: reason} if reason else {})
    decided: dict[str, AttributeValue] = {**own, CLUSTER: cluster}
    if score is not None:
        decided["trainmaster.schedule.score"] = score
    if evicts:
        decided["trainmaster.schedule.evicted_runs"] = evicts
    applied = SpanEvent("trainmaster.schedule.decided", times.decided)
    return [
        _span("trainmaster.job.wait", job, ("wait", job.key, attempt), job.waits_since, times.decided, waited),
        _span(
            "trainmaster.schedule", job, ("schedule", job.key, attempt), times.began, times.stored, decided, (applied,)
        ),
    ]


def sent_span(job: TracedJob, run: TracedRun, sent_at: float) -> FinishedSpan:
    """Return the span from the lease of a run until its order was handed to its cluster's agent."""
    ref = job.trace.computed("sent", job.key, run.attempt)
    parent = run_span(job.trace, job.key, run.attempt)
    return FinishedSpan("trainmaster.run.send", ref, parent, run.leased_at, sent_at, _attributes_of_run(job, run))


def run_ended(job: TracedJob, run: TracedRun, state: RunState, at: float, events: Iterable[PastEvent]) -> FinishedSpan:
    """Return the span of a run that has ended, with its events; a later attempt is linked to the one before."""
    earlier = (run_span(job.trace, job.key, run.attempt - 1),) if run.attempt > 1 else ()
    return FinishedSpan(
        "trainmaster.run",
        run_span(job.trace, job.key, run.attempt),
        job.span,
        run.leased_at,
        at,
        _attributes_of_run(job, run) | {_RUN_STATE: state.value},
        _shown([one for one in events if one.attempt == run.attempt]),
        earlier,
        is_failed=state in _FAILED_RUNS,
    )


def job_ended(job: TracedJob, state: JobState, attempts: int, at: float, events: Sequence[PastEvent]) -> FinishedSpan:
    """Return the span of a job that has ended, a child of its submission. After a retry of an ended job it is linked to the first."""
    is_retried = any(one.kind == JobEventKind.RETRY for one in events)
    ref = job.trace.computed("job", job.key, "again", attempts) if is_retried else job.span
    own: dict[str, AttributeValue] = {
        JOB: job.id,
        QUEUE: job.queue,
        _JOB_STATE: state.value,
        "trainmaster.job.attempts": attempts,
    }
    links = (job.span,) if is_retried else ()
    is_failed = state is JobState.FAILED
    return FinishedSpan("trainmaster.job", ref, job.trace, job.submitted_at, at, own, _shown(events), links, is_failed)


def _attributes_of_run(job: TracedJob, run: TracedRun) -> dict[str, AttributeValue]:
    names = {JOB: job.id, "trainmaster.run.id": run_id(job.id, run.attempt), QUEUE: job.queue, CLUSTER: run.cluster}
    return {**names, ATTEMPT: run.attempt}


def _span(
    name: str,
    job: TracedJob,
    key: tuple[str | int, ...],
    begin: float,
    end: float,
    attributes: dict[str, AttributeValue],
    events: tuple[SpanEvent, ...] = (),
) -> FinishedSpan:
    return FinishedSpan(name, job.trace.computed(*key), job.span, begin, end, attributes, events)


def _shown(events: Sequence[PastEvent]) -> tuple[SpanEvent, ...]:
    """Return the events of a span: the first ones, by kind and with the states that were passed."""
    shown = []
    for one in events[:_MOST_EVENTS]:
        attributes: dict[str, AttributeValue] = {} if one.attempt is None else {ATTEMPT: one.attempt}
        if one.states:
            attributes["trainmaster.states"] = ",".join(one.states)
        shown.append(SpanEvent(f"trainmaster.{one.kind}", one.at, attributes))
    return tuple(shown)
