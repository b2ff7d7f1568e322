"""Due times of schedules become jobs, each once.

A turn reads schedules whose time has come, prepares their jobs outside of any transaction, and stores them in one: it locks the rows
that still have the version that was read, and writes job, due time and the schedule's next time together. So whoever is killed, and
whenever, leaves all or nothing of it, and of two workers that read the same schedule only one writes. The clock is the store's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.default_requests import read_requests
from trainmaster_dispatcher.domain.schedules import MOST_MISSED, DueWindow, Outcome, outcome, window
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.services import auditing, job_actions, job_objects
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action
from trainmaster_dispatcher.services.schedule_parsing import ScheduleTerms, job_document, of_schedule
from trainmaster_dispatcher.services.schedules import known_terms, submission_of
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import QueueBusyError, Submission, Submitted, submit
from trainmaster_dispatcher.store import keys, submitters
from trainmaster_dispatcher.store import schedules as store
from trainmaster_dispatcher.store.database import Database, StoreAwayError, Transaction, dumps
from trainmaster_dispatcher.store.keys import AuditLine, Caller
from trainmaster_dispatcher.store.schedules import DealtWith, HistoryBound, MadeJob, NewScheduleEvent, ScheduleRow

log = logging.getLogger(__name__)

BATCH: Final = 500
_RETRY = timedelta(seconds=60)
"""Time after which a due time whose job was refused is tried again."""
_BROKEN_SECONDS = 300.0
_MOST_REPLACED = 1_000
SYSTEM: Final = Caller(0, "schedules", KeyRole.ADMIN)
"""As whom jobs are cancelled in whose place others come, and old ones deleted."""


@dataclass(slots=True)
class FiringTally:
    """The number of jobs that one turn submitted, of due times that were refused, passed over or held back, of ended jobs that it
    settled, and of jobs that it deleted.
    """

    submitted: int = 0
    refused: int = 0
    late: int = 0
    blocked: int = 0
    settled: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class _DueJob:
    """A schedule whose time has come: its due times, and its job or why it is refused. ``window`` None: none has come."""

    row: ScheduleRow
    terms: ScheduleTerms | None
    window: DueWindow | None
    submission: Submission | None = None
    refusal: ProblemError | None = None


@dataclass(slots=True)
class _Writes:
    """Rows that a turn writes."""

    dealt: list[DealtWith] = field(default_factory=list)
    made: list[MadeJob] = field(default_factory=list)
    events: list[NewScheduleEvent] = field(default_factory=list)
    audit: list[AuditLine] = field(default_factory=list)


class ScheduleFiring:
    """One turn of dealing with due times. ``clusters`` returns those whose refusals count; ``goes_on`` is called between the steps."""

    def __init__(
        self,
        stores: Stores,
        clusters: Callable[[], Awaitable[Sequence[Cluster]]],
        goes_on: Callable[[], bool] = lambda: True,
        batch: int = BATCH,
    ) -> None:
        self._stores = stores
        self._database: Database = stores.database
        self._clusters = clusters
        self._goes_on = goes_on
        self._batch = batch
        self.tally = FiringTally()

    async def run(self) -> FiringTally:
        """Settle ended jobs, submit those that are due, and delete those whose schedules were deleted; return what was done.

        Raises ProblemError when the store is unreachable; what was done until then stays done.
        """
        with contained(Part.TASK, "ends of scheduled jobs"):
            await self._settle()
        await self._fire()
        with contained(Part.TASK, "jobs of deleted schedules"):
            await self._delete_jobs()
        return self.tally

    # -- due times

    async def _fire(self) -> None:
        waits = False
        while self._goes_on():
            async with self._database.reading() as tx:
                rows = await store.due_schedules(tx, self._batch)
            if not rows:
                return
            done = await self._deal_with(rows, waits=waits)
            # Without progress, others are filling the queues, or another worker deals with these schedules.
            if not done and waits:
                return
            waits = not done

    async def _deal_with(self, rows: Sequence[ScheduleRow], *, waits: bool) -> int:
        """Deal with the due times of schedules in one transaction; return how many were."""
        try:
            return await self._store(await self._prepared(rows), waits=waits)
        except (StoreAwayError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the others are dealt with all the same, and it is noted
            if len(rows) == 1:
                return await self._put_off(rows[0], error)
            log.warning("due times of %d schedules could not be dealt with together: %s", len(rows), error)
        done = 0
        for row in rows:  # so that one cannot keep the others from being dealt with
            done += await self._deal_with([row], waits=True)
        return done

    async def _put_off(self, row: ScheduleRow, error: Exception) -> int:
        if isinstance(error, ProblemError) and error.code is Code.TOO_BUSY:
            return 0
        log.error("schedule %s of queue %s cannot be dealt with", row.name, row.queue, exc_info=error)
        message = "the dispatcher had an unexpected error; its log has it"
        async with self._database.transaction() as tx:
            await store.put_off(tx, row.id, _BROKEN_SECONDS, message)
        return 1

    async def _prepared(self, rows: Sequence[ScheduleRow]) -> list[_DueJob]:
        async with self._database.reading() as tx:
            now = await store.now(tx)
            known = await submitters.submitters(tx, [row.api_key_id for row in rows])
        callers = {key: submitters.caller_of(row) for key, row in known.items()}
        settings = self._stores.settings
        most = Most(
            default_requests=read_requests(settings.default_requests),
            default_memory_limit=settings.default_memory_limit,
            clusters=tuple(await self._clusters()),
        )
        return await asyncio.to_thread(_prepare_all, rows, now, callers, most)

    async def _store(self, due: Sequence[_DueJob], *, waits: bool) -> int:
        async with self._database.transaction() as tx:
            locked = await store.lock_unchanged(tx, {one.row.id: one.row.version for one in due})
            ours = [one for one in due if one.row.id in locked]
            if not ours:
                return 0
            now = await store.now(tx)
            writes = _Writes()
            submitting = await self._decide(tx, ours, now, writes)
            submissions = [one.submission for one, _ in submitting if one.submission is not None]
            outcomes = await submit(tx, self._stores, submissions, waits=waits) if submissions else []
            for (one, due_at), result in zip(submitting, outcomes, strict=True):
                self._note(one, due_at, now, result, writes)
            await _write(tx, writes)
        return len(writes.dealt)

    async def _decide(
        self, tx: Transaction, ours: Sequence[_DueJob], now: datetime, writes: _Writes
    ) -> list[tuple[_DueJob, datetime]]:
        """Return the schedules whose jobs are to be submitted, with their due times; note what becomes of the others."""
        active: dict[int, list[int]] = {}
        for job in await store.active_jobs(tx, [one.row.id for one in ours], _MOST_REPLACED):
            active.setdefault(job.schedule_id, []).append(job.job_id)
        submitting: list[tuple[_DueJob, datetime]] = []
        replaced: list[int] = []
        for one in ours:
            if one.terms is None or one.window is None:
                writes.dealt.append(_unread(one, now))
                continue
            due, timing = one.window.due, one.terms.timing
            what = outcome(timing, due, now, len(active.get(one.row.id, ())))
            if what is Outcome.LATE:
                self._pass_over(one, due, writes)
            elif one.refusal is not None:
                self._refuse(one, due, now, one.refusal, writes)
            elif what is Outcome.BLOCKED:
                self._block(one, due, writes)
            else:
                replaced += active.get(one.row.id, ()) if what is Outcome.REPLACE else ()
                submitting.append((one, due))
        if replaced:
            await job_actions.act_on_all(tx, self._stores, SYSTEM, replaced, Action.CANCEL)
        return submitting

    def _note(
        self,
        one: _DueJob,
        due: datetime,
        now: datetime,
        result: Submitted | ProblemError | QueueBusyError,
        writes: _Writes,
    ) -> None:
        """Note what has become of a submission. Where its queue is being filled by others, it stays due."""
        if isinstance(result, ProblemError):
            self._refuse(one, due, now, result, writes)
        elif isinstance(result, Submitted) and one.terms is not None and one.window is not None:
            row, submission = one.row, one.submission
            if one.window.many > MOST_MISSED:
                message = (
                    f"More than {MOST_MISSED} due times had passed; the latest one is made up for. Look at the clocks of the store, or"
                    " give a starting deadline"
                )
                writes.events.append(NewScheduleEvent(row.id, "TooManyMissedTimes", message, is_warning=True))
            look = one.terms.timing.next_look(due)
            writes.dealt.append(DealtWith(row.id, due, look, None, due, ""))
            writes.made.append(MadeJob(result.first, row.id, due))
            name = None if submission is None or submission.metadata is None else submission.metadata.name
            writes.events.append(NewScheduleEvent(row.id, "SuccessfulCreate", f"Created job {name or result.ids[0]}"))
            if submission is not None:
                caller = submission.through or submission.caller
                details = {**auditing.jobs_of(result.ids), "schedule": f"{row.queue}/{row.name}"}
                if submission.through is not None:
                    details["onBehalfOf"] = submission.caller.name
                target = auditing.number_of_jobs(1)
                writes.audit.append(AuditLine(caller.key_id, caller.name, "submit", target, "", "", details))
            self.tally.submitted += 1

    def _pass_over(self, one: _DueJob, due: datetime, writes: _Writes) -> None:
        if one.terms is None:
            return
        message = f"the job of {due.isoformat()} was not submitted: its starting deadline has passed"
        if one.row.message:
            message += f"; before, {one.row.message}"[:500]
        writes.events.append(NewScheduleEvent(one.row.id, "MissSchedule", message, is_warning=True))
        look = one.terms.timing.next_look(due)
        writes.dealt.append(DealtWith(one.row.id, due, look, None, one.row.last_due, message))
        self.tally.late += 1

    def _block(self, one: _DueJob, due: datetime, writes: _Writes) -> None:
        if one.terms is None:
            return
        message = f"the job of {due.isoformat()} waits: an earlier one has not ended, and concurrencyPolicy is Forbid"
        if one.row.blocked_due != due:
            writes.events.append(NewScheduleEvent(one.row.id, "JobAlreadyActive", message))
        look = one.terms.timing.next_look(due)
        writes.dealt.append(DealtWith(one.row.id, one.row.counts_from, look, due, one.row.last_due, message))
        self.tally.blocked += 1

    def _refuse(self, one: _DueJob, due: datetime, now: datetime, error: ProblemError, writes: _Writes) -> None:
        if one.terms is None:
            return
        message = f"the job of {due.isoformat()} is refused, and tried again: {error.detail} ({error.code.value})"[
            :1000
        ]
        if message != one.row.message:
            writes.events.append(NewScheduleEvent(one.row.id, "FailedCreate", message, is_warning=True))
        following = one.terms.timing.next_look(due)
        look = now + _RETRY if following is None else min(now + _RETRY, following)
        writes.dealt.append(DealtWith(one.row.id, one.row.counts_from, look, None, one.row.last_due, message))
        self.tally.refused += 1

    # -- ends and deletions

    async def _settle(self) -> None:
        """Store in the statuses of schedules which jobs have ended, and delete the objects beyond their history limits."""
        more = True
        while more and self._goes_on():
            async with self._database.transaction() as tx:
                ended = await store.unsettled_ends(tx, self._batch)
                if ended:
                    await store.settle(tx, ended)
                    await self._shorten(tx, {one.schedule_id for one in ended})
            self.tally.settled += len(ended)
            more = len(ended) == self._batch

    async def _shorten(self, tx: Transaction, ids: set[int]) -> None:
        bounds = []
        for row in await store.schedules_of(tx, ids):
            terms = _terms(row)
            if terms is not None and (terms.keep_succeeded is not None or terms.keep_failed is not None):
                bounds.append(HistoryBound(row.id, terms.keep_succeeded, terms.keep_failed))
        beyond = await store.beyond_history(tx, bounds, self._batch) if bounds else []
        if beyond:
            await job_objects.delete_all(tx, self._stores, SYSTEM, beyond)

    async def _delete_jobs(self) -> None:
        more = True
        while more and self._goes_on():
            async with self._database.transaction() as tx:
                found = await store.jobs_to_delete(tx, self._batch)
                for actor in sorted({one.deleted_by for one in found}):
                    own = [one.job_id for one in found if one.deleted_by == actor]
                    await job_objects.delete_all(tx, self._stores, Caller(0, actor, KeyRole.ADMIN), own)
                await store.forget_jobs(tx, [one.job_id for one in found])
            self.tally.deleted += len(found)
            more = len(found) == self._batch


def _terms(row: ScheduleRow) -> ScheduleTerms | None:
    try:
        return known_terms(row)
    except ProblemError:
        return None


def _prepare_all(
    rows: Sequence[ScheduleRow],
    now: datetime,
    callers: Mapping[int, tuple[Caller, Caller | None] | None],
    most: Most,
) -> list[_DueJob]:
    return [_prepare_one(row, now, callers.get(row.api_key_id), most) for row in rows]


def _prepare_one(
    row: ScheduleRow, now: datetime, submitter: tuple[Caller, Caller | None] | None, most: Most
) -> _DueJob:
    terms = _terms(row)
    if terms is None:
        return _DueJob(row, None, None)
    found = window(terms.timing, row.counts_from, now)
    if found is None:
        return _DueJob(row, terms, None)
    if submitter is None:
        name = row.submitted_by or "of its owner"
        return _DueJob(
            row, terms, found, refusal=ProblemError(Code.FORBIDDEN, f"the API key {name!r} is not valid any more")
        )
    try:
        document = job_document(row.kind, row.queue, row.name, row.spec, found.due)
        prepared = prepare(dumps(document.body).encode(), most)
    except ProblemError as error:
        return _DueJob(row, terms, found, refusal=of_schedule(error, row.kind, row.spec))
    return _DueJob(row, terms, found, submission_of(document, prepared, *submitter))


def _unread(one: _DueJob, now: datetime) -> DealtWith:
    """Return when a schedule is looked at again of which nothing is due, or which this release does not understand."""
    row = one.row
    if one.terms is None:
        message = "this release does not understand its specification; write it again"
        return DealtWith(
            row.id, row.counts_from, now + timedelta(seconds=_BROKEN_SECONDS), row.blocked_due, row.last_due, message
        )
    look = one.terms.timing.next_look(row.counts_from)
    return DealtWith(row.id, row.counts_from, look, row.blocked_due, row.last_due, row.message)


async def _write(tx: Transaction, writes: _Writes) -> None:
    if writes.made:
        await store.add_jobs(tx, writes.made)
    if writes.dealt:
        await store.deal_with(tx, writes.dealt)
    if writes.events:
        await store.add_events(tx, writes.events)
    if writes.audit:
        await keys.note_lines(tx, writes.audit)
