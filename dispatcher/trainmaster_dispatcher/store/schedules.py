"""Schedules, the jobs that they have made, and what happened to them.

Each change of a schedule writes its row with the transaction's id, by which watches follow; a deleted one stays as a row until nobody
can ask for changes from before. A due time is a row of ``scheduled_jobs``, written in the transaction of its job.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.job_objects import NAMESPACE
from trainmaster_dispatcher.store.versions import VERSION_BITS

_VERSION = f"((SELECT store_epoch::bigint << {VERSION_BITS} FROM installation) + s.xid::text::bigint)"
_COLUMNS = f"""
    s.id, {_VERSION} AS version, s.queue_id, q.path AS queue, {NAMESPACE} AS namespace, s.name, s.kind, s.spec, s.labels,
    s.annotations, s.managed_fields, s.api_key_id, k.name AS submitted_by, t.name AS submitted_through, s.generation, s.suspended,
    s.created_at, s.counts_from, s.next_look, s.blocked_due, s.last_due, s.last_succeeded_at, s.message, s.deleted_at,
    s.created_xid::text::bigint AS created_xid
"""
_FROM = """
    FROM schedules s JOIN queues q ON q.id = s.queue_id LEFT JOIN api_keys k ON k.id = s.api_key_id
    LEFT JOIN api_keys t ON t.id = k.through_id
"""
LIVE: Final = "s.deleted_at IS NULL"


class ScheduleRow(NamedTuple):
    """A schedule as it is stored. ``spec``: as it was written; of a ``kind`` that is not None, the one of its manifest."""

    id: int
    version: int
    queue_id: int
    queue: str
    namespace: str
    name: str
    kind: str | None
    spec: dict[str, Any]
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    managed_fields: list[dict[str, Any]] | None
    api_key_id: int
    submitted_by: str | None
    submitted_through: str | None
    generation: int
    suspended: bool
    created_at: datetime
    counts_from: datetime
    next_look: datetime | None
    blocked_due: datetime | None
    last_due: datetime | None
    last_succeeded_at: datetime | None
    message: str
    deleted_at: datetime | None
    created_xid: int


class WrittenSchedule(NamedTuple):
    """Fields of a schedule that a person sets. ``next_look``: see the table."""

    queue_id: int
    name: str
    kind: str | None
    spec: dict[str, Any]
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    managed_fields: list[dict[str, Any]] | None
    api_key_id: int
    suspended: bool
    counts_from: datetime
    next_look: datetime | None


def _parameters(written: WrittenSchedule) -> dict[str, Any]:
    texts = {
        field: None if not value else dumps(value)
        for field, value in (
            ("labels", written.labels),
            ("annotations", written.annotations),
            ("managed_fields", written.managed_fields),
        )
    }
    return {**written._asdict(), **texts, "spec": dumps(written.spec)}


async def insert(tx: Transaction, written: WrittenSchedule) -> int | None:
    """Store a new schedule and return its key; None where its queue has one of its name."""
    row = await tx.first(
        """
        INSERT INTO schedules
            (queue_id, name, kind, spec, labels, annotations, managed_fields, api_key_id, suspended, counts_from, next_look)
        VALUES (:queue_id, :name, :kind, CAST(:spec AS jsonb), CAST(:labels AS jsonb), CAST(:annotations AS jsonb),
                CAST(:managed_fields AS jsonb), :api_key_id, :suspended, :counts_from, :next_look)
        ON CONFLICT (queue_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING id
        """,
        **_parameters(written),
    )
    return None if row is None else int(row.id)


async def update(tx: Transaction, key: int, written: WrittenSchedule, *, is_other_spec: bool) -> None:
    """Store what a person has set of a schedule, whose row is locked. ``is_other_spec``: it differs from before, so that what was said
    of a due time counts no more.
    """
    await tx.run(
        """
        UPDATE schedules SET kind = :kind, spec = CAST(:spec AS jsonb), labels = CAST(:labels AS jsonb),
            annotations = CAST(:annotations AS jsonb), managed_fields = CAST(:managed_fields AS jsonb), api_key_id = :api_key_id,
            suspended = :suspended, counts_from = :counts_from, next_look = :next_look, generation = generation + :more,
            message = CASE WHEN :more = 1 THEN '' ELSE message END, blocked_due = CASE WHEN :more = 0 THEN blocked_due END,
            xid = pg_current_xact_id()
        WHERE id = :key
        """,
        **_parameters(written),
        key=key,
        more=int(is_other_spec),
    )


async def now(tx: Transaction) -> datetime:
    """Return the time of the transaction by the database clock."""
    found: datetime = (await tx.one("SELECT now() AS now")).now
    return found


async def schedules_of(tx: Transaction, ids: Iterable[int]) -> Sequence[ScheduleRow]:
    """Return these schedules, also deleted ones, by key."""
    return await tx.all_of(
        ScheduleRow, f"SELECT {_COLUMNS} {_FROM} WHERE s.id = ANY(:ids) ORDER BY s.id", ids=sorted(set(ids))
    )


async def named_schedules(
    tx: Transaction, name: str, *, queue: str | None = None, namespace: str | None = None, locks: bool = False
) -> Sequence[ScheduleRow]:
    """Return the schedules that have this name, in a queue, a namespace or anywhere; locked with ``locks``."""
    lock = "FOR UPDATE OF s" if locks else ""
    return await tx.all_of(
        ScheduleRow,
        f"""
        SELECT {_COLUMNS} {_FROM}
        WHERE s.name = :name AND {LIVE} AND (CAST(:queue AS text) IS NULL OR q.path = :queue)
        AND (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace) ORDER BY s.id {lock}
        """,
        name=name,
        queue=queue,
        namespace=namespace,
    )


async def schedule_page(
    tx: Transaction,
    queue_ids: Sequence[int] | None,
    before: int | None,
    limit: int,
    kind: str | None = None,
) -> Sequence[ScheduleRow]:
    """Return a page of schedules, newest first; of these queues, or of all with None, and of one kind of manifests or of all."""
    return await tx.all_of(
        ScheduleRow,
        f"""
        SELECT {_COLUMNS} {_FROM}
        WHERE {LIVE} AND (CAST(:queues AS int[]) IS NULL OR s.queue_id = ANY(:queues))
        AND (CAST(:before AS bigint) IS NULL OR s.id < :before) AND (CAST(:kind AS text) IS NULL OR s.kind = :kind)
        ORDER BY s.id DESC LIMIT :limit
        """,
        queues=None if queue_ids is None else list(queue_ids),
        before=before,
        kind=kind,
        limit=limit,
    )


async def changed_schedules(tx: Transaction, since_xid: int, until_xid: int) -> Sequence[ScheduleRow]:
    """Return the schedules that were written last by a transaction from ``since_xid`` up to ``until_xid``, which all have ended; also
    deleted ones. In the order of the transactions.
    """
    return await tx.all_of(
        ScheduleRow,
        f"""
        SELECT {_COLUMNS} {_FROM}
        WHERE s.xid >= CAST(CAST(:since AS text) AS xid8) AND s.xid < CAST(CAST(:until AS text) AS xid8) ORDER BY s.xid, s.id
        """,
        since=since_xid,
        until=until_xid,
    )


class ActiveJob(NamedTuple):
    """A job of a schedule that has not ended. ``object_name`` and ``object_kind``: see ``job_objects``."""

    schedule_id: int
    job_id: int
    name: str
    object_name: str | None
    object_kind: str | None
    due_at: datetime | None


async def active_jobs(tx: Transaction, ids: Iterable[int], most: int = 100) -> Sequence[ActiveJob]:
    """Return the jobs of these schedules that have not ended, by key; of each at most ``most``, the oldest."""
    return await tx.all_of(
        ActiveJob,
        """
        SELECT schedule_id, job_id, name, object_name, object_kind, due_at FROM (
            SELECT d.schedule_id, d.job_id, j.name, o.name AS object_name, o.kind AS object_kind, d.due_at,
                   row_number() OVER (PARTITION BY d.schedule_id ORDER BY d.job_id) AS place
            FROM scheduled_jobs d JOIN jobs j ON j.id = d.job_id LEFT JOIN job_objects o ON o.job_id = d.job_id
            WHERE d.schedule_id = ANY(:ids) AND NOT d.settled AND j.ended_at IS NULL) AS a
        WHERE place <= :most ORDER BY job_id
        """,
        ids=sorted(set(ids)),
        most=most,
    )


# -- due times


async def due_schedules(tx: Transaction, limit: int) -> Sequence[ScheduleRow]:
    """Return schedules of which a due time may have come by the database clock, those that wait longest first."""
    return await tx.all_of(
        ScheduleRow,
        f"SELECT {_COLUMNS} {_FROM} WHERE s.next_look <= now() AND {LIVE} ORDER BY s.next_look LIMIT :limit",
        limit=limit,
    )


async def lock_unchanged(tx: Transaction, versions: dict[int, int]) -> set[int]:
    """Lock those of these schedules that still have these versions, and that nobody else has locked; return their keys."""
    rows = await tx.all(
        f"""
        SELECT s.id FROM unnest(CAST(:ids AS bigint[]), CAST(:versions AS bigint[])) AS n(id, version)
        JOIN schedules s ON s.id = n.id
        WHERE {LIVE} AND {_VERSION} = n.version ORDER BY s.id FOR UPDATE OF s SKIP LOCKED
        """,
        ids=list(versions),
        versions=list(versions.values()),
    )
    return {row.id for row in rows}


class DealtWith(NamedTuple):
    """The new values of a schedule's row after a due time."""

    id: int
    counts_from: datetime
    next_look: datetime | None
    blocked_due: datetime | None
    last_due: datetime | None
    message: str


async def deal_with(tx: Transaction, dealt: Sequence[DealtWith]) -> None:
    """Store what has become of due times. The rows must be locked."""
    await tx.run(
        """
        UPDATE schedules s SET counts_from = n.counts_from, next_look = n.next_look, blocked_due = n.blocked_due,
            last_due = n.last_due, message = n.message, xid = pg_current_xact_id()
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            id bigint, counts_from timestamptz, next_look timestamptz, blocked_due timestamptz, last_due timestamptz, message text)
        WHERE s.id = n.id
        """,
        rows=dumps([one._asdict() for one in dealt]),
    )


class MadeJob(NamedTuple):
    """A job of a schedule. ``due_at``: None where somebody asked for it."""

    job_id: int
    schedule_id: int
    due_at: datetime | None


async def add_jobs(tx: Transaction, made: Sequence[MadeJob]) -> None:
    """Store which schedules have made these jobs. Raises DuplicateError for a due time that has one."""
    await tx.run(
        """
        INSERT INTO scheduled_jobs (job_id, schedule_id, due_at)
        SELECT job_id, schedule_id, due_at
        FROM json_to_recordset(CAST(:rows AS json)) AS n(job_id bigint, schedule_id bigint, due_at timestamptz)
        """,
        rows=dumps([one._asdict() for one in made]),
    )


async def touch(tx: Transaction, ids: Iterable[int]) -> None:
    """Give these schedules a new version: jobs of theirs have come or gone."""
    await tx.run("UPDATE schedules SET xid = pg_current_xact_id() WHERE id = ANY(:ids)", ids=sorted(set(ids)))


async def put_off(tx: Transaction, key: int, seconds: float, message: str) -> None:
    """Look at a schedule again in ``seconds`` only, and say why."""
    await tx.run(
        """
        UPDATE schedules SET next_look = now() + make_interval(secs => :seconds), message = :message, xid = pg_current_xact_id()
        WHERE id = :key AND next_look IS NOT NULL
        """,
        key=key,
        seconds=seconds,
        message=message,
    )


# -- ends of jobs


class EndedJob(NamedTuple):
    """A job of a schedule that has ended, which the status of the schedule does not say yet."""

    job_id: int
    schedule_id: int
    state: JobState
    ended_at: datetime


async def unsettled_ends(tx: Transaction, limit: int) -> Sequence[EndedJob]:
    """Return ended jobs that the statuses of their schedules do not have yet, locked; those that another process has are left out."""
    return await tx.all_of(
        EndedJob,
        """
        SELECT d.job_id, d.schedule_id, j.state, j.ended_at
        FROM scheduled_jobs d JOIN jobs j ON j.id = d.job_id
        WHERE NOT d.settled AND j.ended_at IS NOT NULL ORDER BY d.job_id LIMIT :limit FOR UPDATE OF d SKIP LOCKED
        """,
        limit=limit,
    )


async def settle(tx: Transaction, ended: Sequence[EndedJob]) -> None:
    """Store in the statuses of schedules that jobs have ended; schedules whose due time waited for that are looked at now."""
    await tx.run("UPDATE scheduled_jobs SET settled = true WHERE job_id = ANY(:ids)", ids=[one.job_id for one in ended])
    await tx.run(
        """
        WITH n AS (
            SELECT schedule_id, max(ended_at) FILTER (WHERE state = 'succeeded') AS succeeded_at
            FROM json_to_recordset(CAST(:rows AS json)) AS n(schedule_id bigint, state text, ended_at timestamptz)
            GROUP BY schedule_id
        ), held AS (SELECT s.id FROM schedules s JOIN n ON n.schedule_id = s.id ORDER BY s.id FOR UPDATE OF s)
        UPDATE schedules s SET last_succeeded_at = greatest(s.last_succeeded_at, n.succeeded_at), xid = pg_current_xact_id(),
            next_look = CASE WHEN s.blocked_due IS NOT NULL AND s.next_look IS NOT NULL THEN least(s.next_look, now())
                             ELSE s.next_look END
        FROM n, held WHERE s.id = n.schedule_id AND held.id = s.id
        """,
        rows=dumps(
            [{"schedule_id": one.schedule_id, "state": one.state.value, "ended_at": one.ended_at} for one in ended]
        ),
    )


async def unsettle(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Note that these jobs have not ended, as they are tried once more; most are of no schedule."""
    await tx.run("UPDATE scheduled_jobs SET settled = false WHERE job_id = ANY(:ids) AND settled", ids=list(job_ids))


class HistoryBound(NamedTuple):
    """The most ended jobs of a schedule that remain objects; None: no bound."""

    schedule_id: int
    succeeded: int | None
    failed: int | None


async def beyond_history(tx: Transaction, bounds: Sequence[HistoryBound], limit: int) -> list[int]:
    """Return ended jobs of schedules beyond their bounds whose objects still exist, the oldest first."""
    rows = await tx.all(
        """
        SELECT job_id FROM (
            SELECT d.job_id, o.deleted_at, CASE WHEN j.state = 'succeeded' THEN n.succeeded ELSE n.failed END AS most,
                   row_number() OVER (PARTITION BY d.schedule_id, j.state = 'succeeded' ORDER BY j.ended_at DESC, j.id DESC) AS place
            FROM json_to_recordset(CAST(:rows AS json)) AS n(schedule_id bigint, succeeded int, failed int)
            JOIN scheduled_jobs d ON d.schedule_id = n.schedule_id JOIN jobs j ON j.id = d.job_id
            LEFT JOIN job_objects o ON o.job_id = d.job_id
            WHERE j.ended_at IS NOT NULL AND o.deleted_at IS NULL) AS e
        WHERE place > most ORDER BY job_id LIMIT :limit
        """,
        rows=dumps([one._asdict() for one in bounds]),
        limit=limit,
    )
    return [row.job_id for row in rows]


# -- deletion


async def delete(tx: Transaction, key: int, deleted_by: str | None) -> None:
    """Mark a schedule as deleted; its name is free from then on. ``deleted_by``: who deletes its jobs with it; None: they stay."""
    await tx.run(
        """
        UPDATE schedules SET deleted_at = now(), deleted_by = :by, next_look = NULL, blocked_due = NULL, xid = pg_current_xact_id()
        WHERE id = :key
        """,
        key=key,
        by=deleted_by,
    )
    if deleted_by is None:
        await tx.run("DELETE FROM scheduled_jobs WHERE schedule_id = :key", key=key)


class JobToDelete(NamedTuple):
    """A job whose schedule was deleted together with its jobs, by somebody."""

    job_id: int
    schedule_id: int
    deleted_by: str


async def jobs_to_delete(tx: Transaction, limit: int) -> Sequence[JobToDelete]:
    """Return jobs that are to be deleted with their schedules, locked; those that another process has are left out."""
    return await tx.all_of(
        JobToDelete,
        """
        SELECT d.job_id, d.schedule_id, s.deleted_by
        FROM schedules s JOIN scheduled_jobs d ON d.schedule_id = s.id
        WHERE s.deleted_at IS NOT NULL AND s.deleted_by IS NOT NULL ORDER BY d.job_id LIMIT :limit FOR UPDATE OF d SKIP LOCKED
        """,
        limit=limit,
    )


async def forget_jobs(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Remove which schedules have made these jobs."""
    await tx.run("DELETE FROM scheduled_jobs WHERE job_id = ANY(:ids)", ids=list(job_ids))


async def remove_deleted(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove deleted schedules that no reader of changes can still ask for: for a day longer than those are kept. Return whether
    there may be more.
    """
    removed = await tx.run(
        """
        DELETE FROM schedules WHERE id IN (
            SELECT s.id FROM schedules s WHERE s.deleted_at < now() - make_interval(secs => :seconds) - make_interval(days => 1)
            AND NOT EXISTS (SELECT 1 FROM scheduled_jobs d WHERE d.schedule_id = s.id) LIMIT :limit)
        """,
        seconds=seconds,
        limit=limit,
    )
    return removed >= limit


# -- events


class NewScheduleEvent(NamedTuple):
    """Something that happened to a schedule. ``reason``: one word, as in Kubernetes."""

    schedule_id: int
    reason: str
    message: str
    is_warning: bool = False
    actor: str = ""


class ScheduleEvent(NamedTuple):
    """An event of a schedule, and the schedule."""

    id: int
    version: int
    schedule_id: int
    schedule: str
    kind: str | None
    queue: str
    namespace: str
    at: datetime
    reason: str
    is_warning: bool
    message: str
    actor: str


async def add_events(tx: Transaction, events: Sequence[NewScheduleEvent]) -> None:
    await tx.run(
        """
        INSERT INTO schedule_events (schedule_id, reason, message, is_warning, actor)
        SELECT schedule_id, reason, message, is_warning, actor
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            schedule_id bigint, reason text, message text, is_warning boolean, actor text)
        """,
        rows=dumps([{**one._asdict(), "message": one.message[:1000]} for one in events]),
    )


async def events_of_schedules(
    tx: Transaction, ids: Sequence[int] | None, seconds: float | None, limit: int
) -> Sequence[ScheduleEvent]:
    """Return events of these schedules, or of all with None, oldest first: the newest ``limit`` of them, and with ``seconds`` only
    those that are no older.
    """
    return await tx.all_of(
        ScheduleEvent,
        f"""
        SELECT * FROM (
            SELECT e.id, {_VERSION.replace("s.xid", "e.xid")} AS version, e.schedule_id, s.name AS schedule, s.kind, q.path AS queue,
                   {NAMESPACE} AS namespace, e.at, e.reason, e.is_warning, e.message, e.actor
            FROM schedule_events e JOIN schedules s ON s.id = e.schedule_id JOIN queues q ON q.id = s.queue_id
            WHERE (CAST(:ids AS bigint[]) IS NULL OR e.schedule_id = ANY(:ids))
            AND (CAST(:seconds AS float8) IS NULL OR e.at > now() - make_interval(secs => :seconds))
            ORDER BY e.id DESC LIMIT :limit) AS n
        ORDER BY id
        """,
        ids=None if ids is None else list(ids),
        seconds=seconds,
        limit=limit,
    )


async def remove_schedule_events(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove old events of schedules; return whether there may be more."""
    removed = await tx.run(
        "DELETE FROM schedule_events WHERE id IN (SELECT id FROM schedule_events"
        " WHERE at < now() - make_interval(secs => :seconds) ORDER BY at LIMIT :limit)",
        seconds=seconds,
        limit=limit,
    )
    return removed >= limit
