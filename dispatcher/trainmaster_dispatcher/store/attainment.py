"""Waits of jobs for their first nodes beside what their classes promise: once for each job, by month, queue and class."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tables import WAITS_SINCE

_HELD = ", ".join(
    f"'{kind.value}'" for kind in (JobEventKind.HELD, JobEventKind.RELEASED, JobEventKind.SUSPEND, JobEventKind.RESUME)
)
_LATE = "f.late > 0 AND NOT f.was_held"


class ClassWaits(NamedTuple):
    """Jobs of a class in a queue that first had nodes in a month, which begins at ``since`` (seconds since the epoch).

    ``seconds_late``: the sum of the time beyond the promise of those that missed it; ``most_seconds_late``: the longest.
    """

    since: int
    queue_id: int
    class_id: int
    met: int
    missed: int
    held: int
    seconds_late: float
    most_seconds_late: float


class WaitingNow(NamedTuple):
    """Jobs of a class in a queue that wait for their first start: within the promise of the class, and for longer."""

    queue_id: int
    class_id: int
    waiting: int
    overdue: int


def _first_starts(chosen: str) -> str:
    """Return the statement that sums the first starts among the ``chosen`` runs, by month, queue and class.

    Whether a job was held is looked up only where it waited for longer than promised.
    """
    return f"""
        WITH promises AS (
            SELECT * FROM unnest(CAST(:classes AS int[]), CAST(:promises AS float8[])) AS p(class_id, seconds)
        ), begun AS (
            SELECT j.id, j.queue_id, j.class_id, j.eligible_at, coalesce(r.placed_at, r.started_at) AS at,
                   extract(epoch FROM coalesce(r.placed_at, r.started_at) - {WAITS_SINCE})::float8 - p.seconds AS late
            FROM runs r JOIN jobs j ON j.id = r.job_id JOIN promises p ON p.class_id = j.class_id
            WHERE coalesce(r.placed_at, r.started_at) IS NOT NULL AND {chosen}
              AND (r.attempt = 1 OR NOT EXISTS (
                  SELECT FROM runs e WHERE e.job_id = r.job_id AND e.attempt < r.attempt
                  AND coalesce(e.placed_at, e.started_at) IS NOT NULL))
        ), f AS (
            -- The release of a job at its start time comes a moment after that.
            SELECT *, late > 0 AND EXISTS (
                SELECT FROM events e WHERE e.job_id = begun.id AND e.kind IN ({_HELD})
                AND (begun.eligible_at IS NULL OR e.at > begun.eligible_at + interval '5 seconds')) AS was_held
            FROM begun
        )
        SELECT extract(epoch FROM date_trunc('month', f.at, 'UTC'))::bigint AS since, f.queue_id, f.class_id,
               count(*) FILTER (WHERE f.late <= 0) AS met, count(*) FILTER (WHERE {_LATE}) AS missed,
               count(*) FILTER (WHERE f.was_held) AS held, coalesce(sum(f.late) FILTER (WHERE {_LATE}), 0) AS seconds_late,
               coalesce(max(f.late) FILTER (WHERE {_LATE}), 0) AS most_seconds_late
        FROM f GROUP BY 1, 2, 3
    """


def _promises(promises: Mapping[int, float]) -> dict[str, Any]:
    return {"classes": list(promises), "promises": list(promises.values())}


async def count_first_starts(tx: Transaction, runs: Sequence[tuple[int, int]], promises: Mapping[int, float]) -> None:
    """Add those of these runs, by job and attempt, that are their job's first with nodes. ``promises``: seconds by class."""
    if not promises or not runs:
        return
    chosen = "(r.job_id, r.attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))"
    await tx.run(
        f"""
        INSERT INTO class_waits AS w (month, queue_id, class_id, met, missed, held, seconds_late, most_seconds_late)
        SELECT to_timestamp(s.since), s.queue_id, s.class_id, s.met, s.missed, s.held, s.seconds_late, s.most_seconds_late
        FROM ({_first_starts(chosen)}) AS s ORDER BY 1, 2, 3
        ON CONFLICT (month, queue_id, class_id) DO UPDATE SET
            met = w.met + excluded.met, missed = w.missed + excluded.missed, held = w.held + excluded.held,
            seconds_late = w.seconds_late + excluded.seconds_late,
            most_seconds_late = greatest(w.most_seconds_late, excluded.most_seconds_late)
        """,
        jobs=[job_id for job_id, _ in runs],
        attempts=[attempt for _, attempt in runs],
        **_promises(promises),
    )


async def counted(
    tx: Transaction, begin: datetime, end: datetime, queue_ids: Iterable[int] | None
) -> Sequence[ClassWaits]:
    """Return what is counted of the months from ``begin`` until before ``end``. ``queue_ids``: None for all."""
    chosen, wanted = _of_queues("queue_id", queue_ids)
    return await tx.all_of(
        ClassWaits,
        f"""
        SELECT extract(epoch FROM month)::bigint AS since, queue_id, class_id, met, missed, held, seconds_late, most_seconds_late
        FROM class_waits WHERE month >= :begin AND month < :end{chosen}
        """,
        begin=begin,
        end=end,
        **wanted,
    )


async def not_counted(
    tx: Transaction, promises: Mapping[int, float], queue_ids: Iterable[int] | None
) -> Sequence[ClassWaits]:
    """Return the first starts among runs that are not counted yet: live ones, and those that have ended a moment ago."""
    chosen, wanted = _of_queues("j.queue_id", queue_ids)
    return await tx.all_of(ClassWaits, _first_starts(f"NOT r.counted{chosen}"), **_promises(promises), **wanted)


async def waiting(
    tx: Transaction, promises: Mapping[int, float], queue_ids: Iterable[int] | None
) -> Sequence[WaitingNow]:
    """Return the jobs that wait for their first start now. ``promises``: seconds by class."""
    chosen, wanted = _of_queues("j.queue_id", queue_ids)
    return await tx.all_of(
        WaitingNow,
        f"""
        WITH promises AS (
            SELECT * FROM unnest(CAST(:classes AS int[]), CAST(:promises AS float8[])) AS p(class_id, seconds)
        )
        SELECT j.queue_id, j.class_id,
               count(*) FILTER (WHERE now() - {WAITS_SINCE} <= make_interval(secs => p.seconds)) AS waiting,
               count(*) FILTER (WHERE now() - {WAITS_SINCE} > make_interval(secs => p.seconds)) AS overdue
        FROM jobs j JOIN promises p ON p.class_id = j.class_id
        WHERE j.ended_at IS NULL AND j.state = 'queued' AND j.attempt = 0{chosen} GROUP BY 1, 2
        """,
        **_promises(promises),
        **wanted,
    )


def _of_queues(column: str, queue_ids: Iterable[int] | None) -> tuple[str, dict[str, Any]]:
    if queue_ids is None:
        return "", {}
    return f" AND {column} = ANY(:queues)", {"queues": list(queue_ids)}
