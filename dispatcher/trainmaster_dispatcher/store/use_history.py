"""History of what members use: rows with packed samples of a run, of at most an hour each."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster_dispatcher.domain.use_history import LONG_STEP, SHORT_STEP, Places, UseChunk, rolled_up
from trainmaster_dispatcher.store.database import Transaction, dumps

_MOST_ROW_BYTES = 1500
"""Bytes up to which samples are added to a row. Postgres writes a row anew with each of them, and a larger one elsewhere."""
_HOUR = 3600


class PackedSample(NamedTuple):
    """A sample of a run's members that is to be stored."""

    ref: RunRef
    places: Sequence[tuple[str, int, int]]
    data: bytes


class HistoryRow(NamedTuple):
    """A row of the history."""

    places: list[list[str | int]]
    data: bytes


class _OldRow(NamedTuple):
    job_id: int
    attempt: int
    started_at: datetime
    places: list[list[str | int]]
    data: bytes


class _Extent(NamedTuple):
    rows: int
    bytes: int


async def add(tx: Transaction, samples: Sequence[PackedSample]) -> None:
    """Add a sample to the last row of each run, or begin a row: in each hour, with other members, and where it is long."""
    ordered = sorted(samples)
    await tx.run(
        """
        INSERT INTO use_history AS old (job_id, attempt, step, started_at, places, data)
        SELECT n.job_id, n.attempt, :step, coalesce(h.started_at, now()), n.places, n.data
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), CAST(:places AS jsonb[]), CAST(:data AS bytea[]))
             AS n(job_id, attempt, places, data)
        LEFT JOIN LATERAL (
            SELECT started_at, places, octet_length(data) AS length FROM use_history
            WHERE job_id = n.job_id AND attempt = n.attempt AND step = :step AND started_at >= date_trunc('hour', now())
            ORDER BY started_at DESC LIMIT 1) h ON h.places = n.places AND h.length + octet_length(n.data) <= :most
        ON CONFLICT (job_id, attempt, step, started_at) DO UPDATE SET data = old.data || excluded.data
        """,
        jobs=[one.ref.job_key for one in ordered],
        attempts=[one.ref.attempt for one in ordered],
        places=[dumps([list(place) for place in one.places]) for one in ordered],
        data=[one.data for one in ordered],
        step=SHORT_STEP,
        most=_MOST_ROW_BYTES,
    )


async def length(tx: Transaction, job_id: int, since: datetime) -> int:
    """Return the bytes of a job's history since a time."""
    found = await tx.one_of(
        _Extent,
        """
        SELECT count(*)::bigint AS rows, coalesce(sum(octet_length(data)), 0)::bigint AS bytes FROM use_history
        WHERE job_id = :job AND started_at > CAST(:since AS timestamptz) - make_interval(secs => :hour)
        """,
        job=job_id,
        since=since,
        hour=_HOUR,
    )
    return found.bytes


async def of_job(tx: Transaction, job_id: int, since: datetime) -> list[UseChunk]:
    """Return the history of a job since a time; rows may begin up to an hour before it. See ``length`` first."""
    rows = await tx.all_of(
        HistoryRow,
        """
        SELECT places, data FROM use_history
        WHERE job_id = :job AND started_at > CAST(:since AS timestamptz) - make_interval(secs => :hour)
        ORDER BY attempt, started_at
        """,
        job=job_id,
        since=since,
        hour=_HOUR,
    )
    return [UseChunk(places_of(row.places), row.data) for row in rows]


def places_of(stored: Sequence[Sequence[str | int]]) -> Places:
    """Return the members of a row as a chunk has them."""
    return tuple((str(role), int(first), int(many)) for role, first, many in stored)


async def roll_up(tx: Transaction, seconds: float, limit: int) -> bool:
    """Roll the samples of some hours up that are older than ``seconds``; return whether there may be more."""
    old = await tx.all_of(
        _OldRow,
        """
        WITH hours AS (
            SELECT DISTINCT job_id, attempt, date_trunc('hour', started_at) AS hour FROM (
                SELECT job_id, attempt, started_at FROM use_history
                WHERE step = :step AND started_at < date_trunc('hour', now() - make_interval(secs => :seconds))
                ORDER BY started_at LIMIT :limit) o)
        DELETE FROM use_history h USING hours o
        WHERE h.job_id = o.job_id AND h.attempt = o.attempt AND h.step = :step
              AND h.started_at >= o.hour AND h.started_at < o.hour + interval '1 hour'
        RETURNING h.job_id, h.attempt, h.started_at, h.places, h.data
        """,
        step=SHORT_STEP,
        seconds=seconds,
        limit=limit,
    )
    found: dict[tuple[int, int, datetime], list[_OldRow]] = {}
    for row in sorted(old, key=lambda one: one[:3]):
        hour = row.started_at.replace(minute=0, second=0, microsecond=0)
        found.setdefault((row.job_id, row.attempt, hour), []).append(row)
    rows = [
        (key[0], key[1], first_of[places], dumps([list(place) for place in places]), data)
        for key, parts in found.items()
        for first_of in [{places_of(part.places): part.started_at for part in reversed(parts)}]
        for places, data in rolled_up(UseChunk(places_of(part.places), part.data) for part in parts).items()
        if data
    ]
    if rows:
        await tx.run(
            """
            INSERT INTO use_history (job_id, attempt, step, started_at, places, data)
            SELECT job_id, attempt, :step, started_at, places, data
            FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), CAST(:starts AS timestamptz[]),
                        CAST(:places AS jsonb[]), CAST(:data AS bytea[])) AS n(job_id, attempt, started_at, places, data)
            """,
            step=LONG_STEP,
            jobs=[row[0] for row in rows],
            attempts=[row[1] for row in rows],
            starts=[row[2] for row in rows],
            places=[row[3] for row in rows],
            data=[row[4] for row in rows],
        )
    return bool(old)


async def remove_old(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove history that is older than ``seconds``; return whether there may be more."""
    removed = await tx.run(
        """
        DELETE FROM use_history WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM use_history WHERE step = :step AND started_at < now() - make_interval(secs => :seconds) LIMIT :limit))
        """,
        step=LONG_STEP,
        seconds=seconds,
        limit=limit,
    )
    return removed >= limit
