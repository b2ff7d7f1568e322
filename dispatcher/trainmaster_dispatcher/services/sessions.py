"""Interactive sessions: warned and ended by the leader once nobody uses them, and as people see them.

bytes of streams ──▶ ``ActiveJobs`` of each api ──▶ ``active_at``      looks of the leader ──▶ warning ──▶ cancel
use of GPUs ──────▶ reports of agents ─────────────────▲
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from trainmaster.protocol.ids import job_id
from trainmaster.protocol.sessions import SessionList, SessionPort, SessionSpec, SessionView
from trainmaster.protocol.states import KeyRole, Wish
from trainmaster_dispatcher.containment import change_jobs
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.sessions import (
    LOOK_SECONDS,
    SessionClock,
    SessionStep,
    SessionTimes,
    advance_session,
)
from trainmaster_dispatcher.services import job_actions, job_queries
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action, BulkFilter
from trainmaster_dispatcher.store import jobs, scheduling
from trainmaster_dispatcher.store import sessions as store
from trainmaster_dispatcher.store.database import Database, Transaction, to_epoch
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.sessions import LookedAt, OpenSession, SessionFacts

_BATCH = 500
_SYSTEM = Caller(0, "sessions", KeyRole.ADMIN)
"""As whom sessions are ended."""


class ActiveJobs:
    """Jobs that streams of this process use, until that is stored: one write for all of them."""

    def __init__(self) -> None:
        self._jobs: set[int] = set()

    def note(self, key: int) -> None:
        """Note that bytes of a user, or for one, have passed."""
        self._jobs.add(key)

    async def store(self, database: Database) -> None:
        """Store which jobs were used since the last time. Raises ProblemError when the store is unreachable; they are stored later."""
        if not self._jobs:
            return
        used, self._jobs = self._jobs, set()
        try:
            async with database.transaction() as tx:
                await store.note_active(tx, sorted(used))
        except Exception:
            self._jobs |= used
            raise


async def advance_due(stores: Stores, token: int, limit: int = _BATCH) -> int:
    """Warn and end sessions that are due, as the leader with this token; return how many were. One keeps no others from it."""
    async with stores.database.transaction() as tx:
        ids = await store.due(tx, limit)
    return await change_jobs(ids, partial(_advance, stores, token))


async def _advance(stores: Stores, token: int, ids: Sequence[int]) -> int:
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        # First, as whoever submits and changes jobs does: whoever uses them now is read after that.
        records = await jobs.lock(tx, ids)
        now = await to_epoch(tx)
        looked_at: list[LookedAt] = []
        warnings: list[jobs.Transition] = []
        ends: dict[str, list[int]] = {}
        for one in await store.facts(tx, ids):
            after, step = _look(one, now)
            looked_at.append(after)
            if step is not None and step.end:
                ends.setdefault(step.end, []).append(one.job_id)
            elif step is not None and step.warning and one.job_id in records:
                warnings.append(_warning(records[one.job_id], step))
        await jobs.write(tx, warnings)
        await store.write(tx, looked_at)
        for why, keys in ends.items():
            await job_actions.act_on_all(tx, stores, _SYSTEM, keys, Action.CANCEL, why)

        async def wake() -> None:
            stores.jobs_changed([one.record.id for one in warnings], for_scheduler=False)

        tx.after_commit(wake)
    return len(warnings) + sum(map(len, ends.values()))


def _look(one: SessionFacts, now: float) -> tuple[LookedAt, SessionStep | None]:
    """Return a session after a look at it, and what becomes of it, None where it does not run."""
    if one.is_over:
        return LookedAt(one.job_id, one.began_at, one.warned_at, one.life_warned_at, None), None
    if one.run_began_at is None or one.wish is Wish.CANCEL:
        return LookedAt(one.job_id, one.began_at, one.warned_at, one.life_warned_at, now + LOOK_SECONDS), None
    clock = _clock_of(one, one.run_began_at)
    step = advance_session(clock, now)
    warned, life_warned = clock.warned_at, clock.life_warned_at
    if step.warning:
        warned, life_warned = (warned, now) if step.warns_of_life else (now, life_warned)
    return LookedAt(one.job_id, clock.began_at, warned, life_warned, step.next_look), step


def _clock_of(one: SessionFacts, run_began_at: float) -> SessionClock:
    return SessionClock(
        SessionTimes(one.idle_seconds, one.life_seconds),
        began_at=run_began_at if one.began_at is None else one.began_at,
        active_at=max(one.active_at or 0.0, run_began_at),
        warned_at=one.warned_at,
        life_warned_at=one.life_warned_at,
    )


def _warning(record: jobs.JobRecord, step: SessionStep) -> jobs.Transition:
    ends_at = datetime.fromtimestamp(step.ends_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return jobs.Transition(
        record,
        record.job,
        JobEventKind.SESSION_WARNING,
        attempt=record.job.attempt,
        message=step.warning,
        details={"endsAt": ends_at},
        is_neutral=True,
    )


async def page(
    tx: Transaction, caller: Caller, *, queue: str | None, submitted_by: str | None, limit: int
) -> SessionList:
    """Return the sessions that the caller may see and that have not ended. Raises ProblemError UNKNOWN_QUEUE."""
    wanted = await job_queries.filter_of(tx, caller, BulkFilter(queue=queue, submitted_by=submitted_by))
    rows = await store.page(tx, wanted, limit)
    return SessionList(sessions=tuple(map(_view, rows)))


def _view(row: OpenSession) -> SessionView:
    terms = SessionSpec.model_validate(row.terms or {})
    active = idle_ends = life_ends = None
    if row.run_began_at is not None:
        active = max(row.active_at or row.run_began_at, row.run_began_at)
        idle_ends = active + timedelta(seconds=row.idle_seconds)
    if row.began_at is not None:
        life_ends = row.began_at + timedelta(seconds=row.life_seconds)
    return SessionView(
        job=job_id(row.name, row.job_id),
        queue=row.queue,
        state=(row.wish or row.state).value,
        user=row.submitted_by or "",
        cluster=row.cluster,
        began_at=row.began_at,
        active_at=active,
        idle_ends_at=idle_ends,
        life_ends_at=life_ends,
        ports=tuple(SessionPort(name=port.name, port=port.port) for port in terms.ports),
    )
