"""The leader's part in deadlines: one event of each job whose deadline is at risk, and one of each that misses it.

What was written is marked in the job's row, in the transaction of the event that the leader's token guards: no event comes twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.base import format_time
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import DeadlineState, JobState
from trainmaster_dispatcher.containment import change_jobs
from trainmaster_dispatcher.domain.deadlines import (
    DeadlineNote,
    miss_message,
    risk_message,
    standing,
    words_on_miss,
    words_on_risk,
)
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.scheduling.queries.deadline_risk import jobs_at_risk
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import deadlines as store
from trainmaster_dispatcher.store import jobs, scheduling
from trainmaster_dispatcher.store.database import Transaction, to_epoch

_BATCH = 1000


async def note_missed(stores: Stores, token: int, state: SchedulerState, limit: int = _BATCH) -> int:
    """Write an event of each job that has not ended by its deadline, as the leader with this token; return how many."""
    async with stores.database.transaction() as tx:
        due = await store.passed(tx, limit)
    return await change_jobs(due, partial(_note_missed, stores, token, state))


async def note_at_risk(stores: Stores, token: int, state: SchedulerState, now: float, limit: int = _BATCH) -> int:
    """Write an event of each queued job that will miss its deadline even if it starts now, as the leader with this token; return how
    many. ``now``: in seconds since the epoch.
    """
    expected = jobs_at_risk(state, now, limit)
    return await change_jobs(list(expected), partial(_note_at_risk, stores, token, state, expected))


async def _note_missed(stores: Stores, token: int, state: SchedulerState, job_ids: Sequence[int]) -> int:
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        records = await jobs.lock(tx, job_ids)
        missed = [one for one in await store.without_note(tx, records, DeadlineNote.MISSED) if one.has_passed]
        events = [
            _event(records[one.job_id], one.deadline, JobEventKind.DEADLINE_MISSED, miss_message(one.deadline), {})
            for one in missed
        ]
        await _write(tx, events, DeadlineNote.MISSED)
    _tell(stores, state, events, DeadlineState.MISSED)
    return len(events)


async def _note_at_risk(
    stores: Stores, token: int, state: SchedulerState, expected: Mapping[int, float], job_ids: Sequence[int]
) -> int:
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        records = await jobs.lock(tx, job_ids)
        now = await to_epoch(tx)
        events = [
            _event(
                records[one.job_id],
                one.deadline,
                JobEventKind.DEADLINE_AT_RISK,
                risk_message(one.deadline, expected[one.job_id], now),
                {"expectedSeconds": round(expected[one.job_id], 3)},
            )
            for one in await store.without_note(tx, records, DeadlineNote.AT_RISK)
            if not one.has_passed and records[one.job_id].job.state is JobState.QUEUED
        ]
        await _write(tx, events, DeadlineNote.AT_RISK)
    _tell(stores, state, events, DeadlineState.AT_RISK)
    return len(events)


def _event(
    record: jobs.JobRecord, deadline: datetime, kind: JobEventKind, message: str, details: dict[str, Any]
) -> jobs.Transition:
    """Return an event that changes nothing of a job but its version, which the scheduler has to know of a job that waits."""
    job = record.job
    return jobs.Transition(
        record,
        job,
        kind=kind,
        states=(job.wish.value if job.wish else job.state.value,),
        message=message,
        details={"deadline": format_time(deadline), **details},
        is_neutral=job.state not in (JobState.QUEUED, JobState.HELD),
    )


async def _write(tx: Transaction, events: Sequence[jobs.Transition], note: DeadlineNote) -> None:
    await jobs.write(tx, events)
    if events:
        await store.write_note(tx, [one.record.id for one in events], note)


def _tell(stores: Stores, state: SchedulerState, events: Sequence[jobs.Transition], outcome: DeadlineState) -> None:
    """Count events that are committed, and wake who waits for them."""
    for queue_id, many in Counter(one.record.queue_id for one in events).items():
        queue = state.queues.get(queue_id)
        metrics.deadlines.labels("" if queue is None else queue.path, outcome.value).inc(many)
    if events:
        stores.jobs_changed([one.record.id for one in events])


def standing_of(row: jobs.ShownJob, now: datetime | None = None) -> DeadlineState | None:
    """Return how a job stands towards its deadline; None if it has none, or has failed or was cancelled before it."""
    if row.deadline is None:
        return None
    return standing(row.deadline, row.deadline_noted, row.state, row.ended_at, now or datetime.now(UTC))


async def with_deadline(tx: Transaction, row: jobs.ShownJob, reason: Reason) -> Reason:
    """Return the reason of a job, with its deadline and how it stands towards it; where it is at risk or missed, also in words."""
    now = datetime.now(UTC)
    state = standing_of(row, now)
    if row.deadline is None or state is None:
        return reason
    words = ""
    if state is DeadlineState.AT_RISK:
        words = words_on_risk(row.deadline, await store.expected_seconds(tx, row.id))
    elif state is DeadlineState.MISSED and row.ended_at is None:
        words = words_on_miss(row.deadline, now)
    details = {"deadline": format_time(row.deadline), "deadlineState": state.value}
    sentence = f"{reason.sentence} {words}" if words else reason.sentence
    return reason.model_copy(update={"sentence": sentence, "details": reason.details | details})
