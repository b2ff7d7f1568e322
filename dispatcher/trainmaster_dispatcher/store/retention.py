"""Removal of old rows, a little at a time: each function is one short step, and returns whether there may be more.

There are no foreign keys from runs, tails, events and messages to jobs: code that removes a job removes them, in one transaction.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainmaster_dispatcher.store import files, label_blocks, pod_groups
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tables import LIVE_JOB

_LOCK = 1953653619
_PARTITION = re.compile(r"events_(\d{8})")
DROP_LOCK_MILLISECONDS = 500


async def take_turn(tx: Transaction) -> bool:
    """Take the lock of retention; return whether this transaction has it."""
    return bool((await tx.one("SELECT pg_try_advisory_xact_lock(:key) AS mine", key=_LOCK)).mine)


async def old_partitions(tx: Transaction, seconds: float) -> list[str]:
    """Return partitions of the events whose whole day is older than ``seconds``, oldest first."""
    rows = await tx.all(
        """
        SELECT c.relname AS name, now() - make_interval(secs => :seconds) AS cut FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass ORDER BY c.relname
        """,
        seconds=seconds,
    )
    found = []
    for row in rows:
        day = _PARTITION.fullmatch(row.name)
        if day and datetime.strptime(day[1], "%Y%m%d").replace(tzinfo=UTC) + timedelta(days=1) <= row.cut:
            found.append(str(row.name))
    return found


async def drop_partition(tx: Transaction, name: str) -> None:
    """Drop a day of events. Raises ProblemError TOO_BUSY if the drop would have to wait for a lock.

    Dropping locks all of ``events`` for a moment, and while it waits for the lock, every writer waits behind it. Postgres cannot
    detach the partition concurrently, as there is a default partition.
    """
    if not _PARTITION.fullmatch(name):
        raise ValueError(f"{name} is no partition of a day")
    await tx.run(f"SET LOCAL lock_timeout = {DROP_LOCK_MILLISECONDS}")
    await tx.run(f"DROP TABLE IF EXISTS {name}")


async def remove_stray_events(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove old events in the default partition: of days for which there was no partition."""
    return await _remove(
        tx,
        "DELETE FROM events_default WHERE ctid = ANY(ARRAY(SELECT ctid FROM events_default"
        " WHERE at < now() - make_interval(secs => :seconds) LIMIT :limit))",
        seconds,
        limit,
    )


async def remove_idempotency_keys(tx: Transaction, seconds: float, limit: int) -> bool:
    return await _remove(
        tx,
        "DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM idempotency_keys"
        " WHERE created_at < now() - make_interval(secs => :seconds) ORDER BY created_at LIMIT :limit))",
        seconds,
        limit,
    )


async def remove_audit(tx: Transaction, seconds: float, limit: int) -> bool:
    return await _remove(
        tx,
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT :limit)"
        " AND at < now() - make_interval(secs => :seconds)",
        seconds,
        limit,
    )


async def remove_changes(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove old rows of the feed, but none that a reader of the feed could still wait for, and not the newest: the oldest that is
    left tells how far back the feed reaches.
    """
    return await _remove(
        tx,
        "DELETE FROM changes WHERE id IN (SELECT id FROM changes ORDER BY id LIMIT :limit)"
        " AND created_at < now() - make_interval(secs => :seconds) AND xid < pg_snapshot_xmin(pg_current_snapshot())"
        " AND id < (SELECT max(id) FROM changes)",
        seconds,
        limit,
    )


async def remove_dead_letters(tx: Transaction, seconds: float, limit: int) -> bool:
    return await _remove(
        tx,
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE dead_at IS NOT NULL"
        " AND dead_at < now() - make_interval(secs => :seconds) ORDER BY id LIMIT :limit)",
        seconds,
        limit,
    )


async def remove_reasons(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove verdicts of classes without a live job. The leader writes a class that comes back as a new one."""
    removed = [
        await _remove(
            tx,
            f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}"
            f" WHERE at < now() - make_interval(secs => :seconds) AND (queue_id, class_id, shape_id) NOT IN"
            f" (SELECT DISTINCT queue_id, class_id, shape_id FROM jobs WHERE {LIVE_JOB}) LIMIT :limit))"
            f" AND at < now() - make_interval(secs => :seconds)",
            seconds,
            limit,
        )
        for table in ("class_reasons", "user_reasons")
    ]
    return any(removed)


async def remove_shapes(tx: Transaction, seconds: float, limit: int, last_old: int) -> bool:
    """Remove shapes that were not submitted for ``seconds`` and that no job has. ``last_old``: jobs with greater keys are younger
    than that.

    A submission notes the day before it refers to a shape, so whole days are left between the shape's last use and its removal, and
    all jobs of a shape that is old enough are among the old ones.
    """
    removed = await tx.run(
        """
        DELETE FROM shapes WHERE id IN (
            SELECT id FROM shapes WHERE used_on < (now() - make_interval(secs => :seconds))::date - 2
            AND id NOT IN (SELECT DISTINCT shape_id FROM jobs WHERE id <= :last) ORDER BY id LIMIT :limit)
        AND used_on < (now() - make_interval(secs => :seconds))::date - 2
        """,
        seconds=seconds,
        limit=limit,
        last=last_old,
    )
    return removed >= limit


async def remove_sessions(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove superseded sessions of agents; the current session of each cluster stays."""
    return await _remove(
        tx,
        "DELETE FROM agent_sessions WHERE session IN (SELECT session FROM agent_sessions s"
        " WHERE created_at < now() - make_interval(secs => :seconds) AND NOT EXISTS"
        " (SELECT 1 FROM cluster_contacts c WHERE c.session = s.session) LIMIT :limit)",
        seconds,
        limit,
    )


async def _remove(tx: Transaction, statement: str, seconds: float, limit: int) -> bool:
    return await tx.run(statement, seconds=seconds, limit=limit) >= limit


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of jobs in the order of their keys. ``last`` is None behind the newest job."""

    last: int | None
    ended: list[int]
    """Jobs that ended long enough ago."""
    is_young: bool
    """Whether all jobs of the range were submitted too recently to be removed; so were those after them."""


async def look_for_ended(tx: Transaction, after: int, seconds: float, limit: int) -> KeyRange:
    """Return the next jobs behind key ``after``. They are scanned by key, so that no index on the end is needed."""
    row = await tx.one(
        """
        WITH cut AS (SELECT now() - make_interval(secs => :seconds) AS at),
        stretch AS (SELECT id, submitted_at, ended_at FROM jobs WHERE id > :after ORDER BY id LIMIT :limit)
        SELECT max(id) AS last, coalesce(bool_and(submitted_at >= cut.at), true) AS young,
               coalesce(array_agg(id ORDER BY id) FILTER (WHERE ended_at < cut.at), '{}') AS ended
        FROM stretch, cut
        """,
        after=after,
        seconds=seconds,
        limit=limit,
    )
    return KeyRange(row.last, list(row.ended), row.young)


async def remove_jobs(tx: Transaction, ids: list[int], seconds: float) -> int:
    """Remove those of these jobs that ended at least ``seconds`` ago, with all their rows; return how many.

    A job with a run that is live or not counted, with a webhook message that is still to be delivered, of a workflow that has not
    ended, of an array that has not counted it, or whose elements those of another array wait for stays until then; so does one whose
    artifacts a job that has not ended gets.
    """
    rows = await tx.all(
        """
        DELETE FROM jobs WHERE id IN (
            SELECT j.id FROM jobs j WHERE j.id = ANY(:ids) AND j.ended_at < now() - make_interval(secs => :seconds)
            AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id AND NOT r.counted)
            AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.job_id = j.id AND o.dead_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM workflow_jobs s JOIN workflows w ON w.id = s.workflow_id
                            WHERE s.job_id = j.id AND w.ended_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM element_jobs e JOIN jobs a ON a.id = e.array_id
                            WHERE e.job_id = j.id AND NOT e.counted AND a.ended_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM array_predecessors p JOIN jobs b ON b.id = p.job_id
                            WHERE p.on_job_id = j.id AND b.ended_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM artifact_inputs i JOIN jobs b ON b.id = i.job_id
                            WHERE i.on_job_id = j.id AND b.ended_at IS NULL)
            ORDER BY j.id FOR UPDATE SKIP LOCKED)
        RETURNING id, spec_id
        """,
        ids=ids,
        seconds=seconds,
    )
    gone = sorted(row.id for row in rows)
    if gone:
        owned = (
            "runs",
            "run_tails",
            "events",
            "outbox",
            "log_streams",
            "member_streams",
            "job_objects",
            "scheduled_jobs",
            "job_dependencies",
            "job_waits",
            "group_dependencies",
            "workflow_jobs",
            "run_use",
            "member_use",
            "use_history",
            "arrays",
            "array_blocks",
            "array_failures",
            "array_results",
            "array_predecessors",
            "artifact_inputs",
            "element_jobs",
            "session_activity",
            "session_links",
        )
        for table in owned:
            await tx.run(f"DELETE FROM {table} WHERE job_id = ANY(:ids)", ids=gone)
        for table in ("element_jobs", "array_wakes"):
            await tx.run(f"DELETE FROM {table} WHERE array_id = ANY(:ids)", ids=gone)
        await files.remove_of_jobs(tx, gone)
        await pod_groups.remove(tx, gone)
        await label_blocks.remove_empty(tx, gone)
        await tx.run(
            """
            DELETE FROM job_specs s WHERE s.id = ANY(:specs) AND s.last_job_id IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM jobs j WHERE j.id BETWEEN s.id AND s.last_job_id AND j.spec_id = s.id)
            """,
            specs=sorted({row.spec_id for row in rows}),
        )
    return len(gone)
