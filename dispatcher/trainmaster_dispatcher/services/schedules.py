"""Schedules as people make, see, change and delete them. Their due times are dealt with in ``schedule_firing``.

Rights follow the queue, as those to jobs do. Whoever writes the specification is the one whose jobs are made: nobody's command runs in
another one's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id, parse_job_id
from trainmaster.protocol.states import JobActions
from trainmaster_dispatcher.domain.declared_fields import merge_patched
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import BulkFilter, to_filter
from trainmaster_dispatcher.services.job_queries import make_cursor, read_cursor
from trainmaster_dispatcher.services.schedule_parsing import (
    JobDocument,
    ScheduleTerms,
    WantedSchedule,
    job_document,
    own_schedule,
    terms_of,
)
from trainmaster_dispatcher.services.schedule_parsing import cron_job as cron_job_of
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission, mistaken
from trainmaster_dispatcher.services.submit import (
    ObjectMetadata,
    Submission,
    Submitted,
    check,
    job_actions_of,
    submit_one,
)
from trainmaster_dispatcher.store import schedules as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.schedules import ActiveJob, MadeJob, NewScheduleEvent, ScheduleRow, WrittenSchedule

MOST_ACTIVE: Final = 100
"""Most jobs of a schedule that are named in its status."""
_NO_NEW_OWNER = frozenset(("suspend", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"))
"""Fields of a specification whose change says nothing about what its jobs do."""


@dataclass(frozen=True, slots=True)
class ReadSchedule:
    """A schedule with its jobs that have not ended, and its terms; None where this release does not understand them."""

    row: ScheduleRow
    active: Sequence[ActiveJob]
    terms: ScheduleTerms | None

    @property
    def next_due(self) -> datetime | None:
        """Return its next due time: one that has come and is not dealt with, or the first one later than those."""
        if self.row.next_look is None or self.terms is None:
            return None
        return self.terms.timing.next_due(self.row.counts_from)


@dataclass(frozen=True, slots=True)
class ScheduleWriting:
    """A schedule that somebody writes, with its job as it was checked. ``through``: see ``Submission``."""

    wanted: WantedSchedule
    caller: Caller
    prepared: PreparedSubmission
    through: Caller | None = None
    managed_fields: list[dict[str, Any]] | None = None

    @property
    def submission(self) -> Submission:
        return Submission(self.caller, self.prepared, self.through)


def known_terms(row: ScheduleRow) -> ScheduleTerms:
    """Return the terms of a stored schedule. Raises ProblemError where this release does not understand them."""
    return terms_of(row.kind, row.spec, f"{row.queue} {row.name}")


def _terms(row: ScheduleRow) -> ScheduleTerms | None:
    try:
        return known_terms(row)
    except ProblemError:
        return None


async def read(tx: Transaction, rows: Sequence[ScheduleRow]) -> list[ReadSchedule]:
    """Return schedules with their jobs that have not ended."""
    by_schedule: dict[int, list[ActiveJob]] = {}
    for one in await store.active_jobs(tx, [row.id for row in rows], MOST_ACTIVE) if rows else ():
        by_schedule.setdefault(one.schedule_id, []).append(one)
    return [ReadSchedule(row, by_schedule.get(row.id, ()), _terms(row)) for row in rows]


async def changed(tx: Transaction, since_xid: int, until_xid: int) -> list[ReadSchedule]:
    """Return the schedules that transactions from ``since_xid`` up to ``until_xid`` have written last; also deleted ones."""
    return await read(tx, await store.changed_schedules(tx, since_xid, until_xid))


async def find(
    tx: Transaction, caller: Caller, name: str, queue: str | None = None, *, locks: bool = False
) -> ScheduleRow:
    """Return the schedule of this name that the caller may see. Raises ProblemError NOT_FOUND, and INVALID_PARAMETER where several
    queues have one.
    """
    found = [
        one for one in await store.named_schedules(tx, name, queue=queue, locks=locks) if caller.may_use(one.queue)
    ]
    if not found:
        where = "" if queue is None else f" in queue {queue!r}"
        raise ProblemError(Code.NOT_FOUND, f"there is no schedule {name!r}{where}")
    if len(found) > 1:
        message = f"several queues have a schedule {name!r}; give one of: {', '.join(one.queue for one in found[:20])}"
        raise ProblemError(Code.INVALID_PARAMETER, message, mistakes=(Mistake(path="queue", message=message),))
    return found[0]


async def page(
    tx: Transaction, caller: Caller, queue: str | None, cursor: str | None, limit: int, kind: str | None = None
) -> tuple[list[ReadSchedule], str | None]:
    """Return a page of schedules, newest first, and the cursor of the next page; of a queue and those below it, or of all."""
    queue_ids: Sequence[int] | None = None
    if queue is not None:
        queue_ids = (await to_filter(tx, caller, BulkFilter(queue=queue))).queue_ids
    elif not caller.has_every_queue:
        queue_ids = await tenants.queue_ids_below(tx, caller.queues)
    return await page_of(tx, queue_ids, cursor, limit, kind)


async def page_of(
    tx: Transaction, queue_ids: Sequence[int] | None, cursor: str | None, limit: int, kind: str | None
) -> tuple[list[ReadSchedule], str | None]:
    """Return a page of the schedules of these queues, as ``page`` does."""
    rows = await store.schedule_page(tx, queue_ids, read_cursor(cursor), limit + 1, kind)
    following = make_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return await read(tx, rows[:limit]), following


def view_of(one: ReadSchedule, *, with_spec: bool = True) -> dict[str, Any]:
    """Return a schedule as answers have it."""
    row, terms, due = one.row, one.terms, one.next_due
    times = {"nextDue": due, "lastDue": row.last_due, "lastSucceeded": row.last_succeeded_at}
    found: dict[str, Any] = {
        "name": row.name,
        "queue": row.queue,
        "objectKind": row.kind or "Schedule",
        "schedule": str(row.spec.get("schedule", "")),
        "timeZone": "UTC" if terms is None else terms.time_zone,
        "concurrencyPolicy": "Allow" if terms is None else terms.timing.policy.value,
        "suspend": row.suspended,
        "labels": row.labels or {},
        "createdAt": format_time(row.created_at),
        "submittedBy": row.submitted_by or "",
        **{field: format_time(at) for field, at in times.items() if at is not None},
        "active": [job_id(job.name, job.job_id) for job in one.active],
        "message": row.message,
    }
    if due is not None and terms is not None:
        found["nextDueLocal"] = due.astimezone(terms.timing.zone).isoformat()
    return found | ({"spec": row.spec} if with_spec else {})


# -- changes


def _written(
    wanted: WantedSchedule, queue_id: int, key_id: int, counts_from: datetime, managed: list[dict[str, Any]] | None
) -> WrittenSchedule:
    timing = replace(wanted.terms.timing, key=f"{wanted.queue} {wanted.name}")
    return WrittenSchedule(
        queue_id=queue_id,
        name=wanted.name,
        kind=wanted.kind,
        spec=wanted.spec,
        labels=wanted.labels,
        annotations=wanted.annotations,
        managed_fields=managed,
        api_key_id=key_id,
        suspended=wanted.terms.is_suspended,
        counts_from=counts_from,
        next_look=None if wanted.terms.is_suspended else timing.next_look(counts_from),
    )


async def create(tx: Transaction, stores: Stores, writing: ScheduleWriting) -> ScheduleRow:
    """Store a new schedule; return it. Raises ProblemError as a submission of its job does, and ALREADY_EXISTS."""
    wanted = writing.wanted
    queue_id = await check(tx, stores, writing.submission)
    now = await store.now(tx)
    written = _written(wanted, queue_id, writing.caller.key_id, now, writing.managed_fields)
    key = await store.insert(tx, written)
    if key is None:
        raise ProblemError(Code.ALREADY_EXISTS, f"a schedule {wanted.name!r} already exists in queue {wanted.queue!r}")
    return (await store.schedules_of(tx, [key]))[0]


async def change(tx: Transaction, stores: Stores, before: ScheduleRow, writing: ScheduleWriting) -> ScheduleRow:
    """Change a schedule, whose row is locked; return it as it then is. Raises ProblemError as ``create`` does, and JOB_OF_ANOTHER."""
    wanted = writing.wanted
    caller = writing.through or writing.caller
    await check_may_change(tx, caller, before)
    if (wanted.queue, wanted.name) != (before.queue, before.name) or wanted.kind != before.kind:
        raise mistaken(Mistake(path="queue", message="queue, name and kind of a schedule are fixed; make another one"))
    is_other_spec = wanted.spec != before.spec
    key_id = before.api_key_id
    if _without(wanted.spec) != _without(before.spec):
        await check(tx, stores, writing.submission)
        key_id = writing.caller.key_id
    counts_from = before.counts_from
    known = _terms(before)
    if known is None or (known.expression, known.time_zone) != (wanted.terms.expression, wanted.terms.time_zone):
        now = await store.now(tx)
        counts_from = max(now, before.last_due or now)  # also where the clock was set back
    managed = writing.managed_fields
    if managed is None:  # by REST, which knows none of them
        managed = before.managed_fields
        wanted = replace(wanted, annotations=wanted.annotations or dict(before.annotations or {}))
    written = _written(wanted, before.queue_id, key_id, counts_from, managed)
    await store.update(tx, before.id, written, is_other_spec=is_other_spec)
    return (await store.schedules_of(tx, [before.id]))[0]


def _without(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in spec.items() if field not in _NO_NEW_OWNER}


def wanted_after(row: ScheduleRow, patch: Mapping[str, Any], prefix: str = "") -> WantedSchedule:
    """Return a schedule as it is wanted after a merge patch of its specification. Raises ProblemError INVALID_SPEC."""
    spec = merge_patched(row.spec, dict(patch))
    labels, annotations = dict(row.labels or {}), dict(row.annotations or {})
    try:
        if row.kind is None:
            return own_schedule(row.queue, row.name, spec, labels, annotations, prefix)
        return cron_job_of(row.queue, row.name, spec, labels, annotations)
    except ProblemError as error:
        mistakes = tuple(Mistake(path=one.path, message=f"after the patch: {one.message}") for one in error.mistakes)
        raise mistaken(*mistakes) if mistakes else error from error


async def check_may_change(tx: Transaction, caller: Caller, row: ScheduleRow) -> None:
    """Raise ProblemError JOB_OF_ANOTHER where the caller may see and not change a schedule."""
    if caller.manages(row.queue) or caller.name in (row.submitted_by, row.submitted_through):
        return
    queues = {one.spec.path: one for one in await tenants.QUEUES.every(tx)}
    if job_actions_of(row.queue, queues) is not JobActions.OWN:
        return
    raise ProblemError(
        Code.JOB_OF_ANOTHER,
        f"schedule {row.name!r} is of {row.submitted_by!r}, and queue {row.queue!r} lets users change only what is their own"
        " (jobActions: own); ask its owner or an admin",
    )


async def delete(tx: Transaction, caller: Caller, row: ScheduleRow, *, keeps_jobs: bool) -> None:
    """Delete a schedule, whose row is locked. Its jobs are deleted with it, soon, unless ``keeps_jobs``: those that have not ended are
    cancelled. Raises ProblemError JOB_OF_ANOTHER.
    """
    await check_may_change(tx, caller, row)
    await store.delete(tx, row.id, None if keeps_jobs else caller.name)


def submission_of(
    document: JobDocument, prepared: PreparedSubmission, caller: Caller, through: Caller | None
) -> Submission:
    """Return the submission of a schedule's job."""
    metadata = ObjectMetadata(
        document.object_name,
        dumps(document.spec).encode(),
        dumps(document.annotations).encode() if document.annotations else None,
        None,
        prepared.specs[0].kind,
    )
    return Submission(caller, prepared, through, metadata)


def document_now(row: ScheduleRow) -> JobDocument:
    """Return the document of a job of a schedule for which somebody asks now."""
    return job_document(row.kind, row.queue, row.name, row.spec, None)


async def run_now(
    tx: Transaction, stores: Stores, row: ScheduleRow, document: JobDocument, writing: Submission
) -> Submitted:
    """Submit a job of a schedule, whose row is locked, as the caller's: beside its due times, also while it is suspended.

    Raises ProblemError as a submission does, and CONFLICT where the schedule has changed since the document was made.
    """
    if document.body != document_now(row).body:
        raise ProblemError(Code.CONFLICT, f"schedule {row.name!r} was just changed; try again")
    submitted = await submit_one(tx, stores, writing)
    key = parse_job_id(submitted.ids[0])[1]
    await store.add_jobs(tx, [MadeJob(key, row.id, None)])
    await store.touch(tx, [row.id])
    actor = (writing.through or writing.caller).name
    message = f"Created job {submitted.ids[0]}, as {actor} asked for it"
    await store.add_events(tx, [NewScheduleEvent(row.id, "SuccessfulCreate", message, actor=actor)])
    return submitted
