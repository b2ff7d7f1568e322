"""The events of all jobs in the order of their transactions, read from a position on. Reads nothing of jobs without a new event.

Submissions are rows of ``changes``; other events are found by their transaction: ``quiet_xid`` of those that the scheduler does not
read, ``xid`` of the others. An event whose transaction began after that of a later event of its job comes with that one, before it, so
that each job's events are in the order of their versions. So does a quiet event of a release before schema 0029, which has none.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.feed_kinds import FeedKind


class FeedPlace(NamedTuple):
    """A place in the feed: all events up to this transaction, job and version have been read."""

    xid: int
    job_id: int = 0
    seq: int = 0


class FeedEvent(NamedTuple):
    """An event of a job, its place, and what filters of jobs are about. ``name`` is None where the job was removed meanwhile."""

    xid: int
    job_id: int
    seq: int
    at: datetime
    kind: str
    states: list[str]
    attempt: int | None
    cluster: str | None
    actor: str
    message: str
    details: dict[str, Any] | None
    name: str | None
    queue: str
    priority_class: str
    labels: dict[str, str] | None
    group: str | None
    submitted_by: str | None
    submitted_at: datetime

    @property
    def place(self) -> FeedPlace:
        return FeedPlace(self.xid, self.job_id, self.seq)


class FeedEnd(NamedTuple):
    """The end of what can be read: all transactions below ``xmin`` are over. ``store_epoch``: raised when the store is restored."""

    xmin: int
    store_epoch: int
    now: float


class EventSlice(NamedTuple):
    """Events in their order, the place behind them, and whether there are more."""

    events: Sequence[FeedEvent]
    place: FeedPlace
    has_more: bool


class JobBlock(NamedTuple):
    """Jobs of one submission: their transaction, the first key and their number."""

    xid: int
    first: int
    many: int


class JobChange(NamedTuple):
    """A job with events in a part of the feed. ``xid``, ``at``: the transaction and the time of the last of them, the time in seconds
    since the epoch. ``is_new``: whether it was submitted there. ``labels_before``: its labels before each change of them there; None
    without any.
    """

    job_id: int
    xid: int
    at: float
    is_new: bool
    labels_before: list[dict[str, str]] | None


class JobChangeSlice(NamedTuple):
    """Changed jobs in the order of their last changes, the place behind them, and whether there may be more."""

    jobs: Sequence[JobChange]
    place: FeedPlace
    has_more: bool


_LAST_SEQ = 2**31 - 1
_OF_JOB = """
    j.name, coalesce(q.path, '') AS queue, coalesce(p.name, '') AS priority_class, j.labels, o.name AS "group", k.name AS submitted_by,
    coalesce(j.submitted_at, e.at) AS submitted_at
"""
_JOINS = """
    LEFT JOIN jobs j ON j.id = e.job_id LEFT JOIN queues q ON q.id = j.queue_id LEFT JOIN priority_classes p ON p.id = j.class_id
    LEFT JOIN api_keys k ON k.id = j.api_key_id LEFT JOIN clusters c ON c.id = e.cluster_id
    LEFT JOIN job_groups o ON o.id = j.group_id
"""
_STORED = "job_id, seq, at, kind, states, attempt, cluster_id, actor, message, details"
_OF_EVENT = "e.seq, e.at, e.kind, e.states, e.attempt, c.name AS cluster, e.actor, e.message, e.details"


async def feed_end(tx: Transaction) -> FeedEnd:
    """Return the end of the feed."""
    return await tx.one_of(
        FeedEnd,
        """
        SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin, i.store_epoch,
               extract(epoch FROM clock_timestamp())::float8 AS now
        FROM installation i
        """,
    )


async def place_at(tx: Transaction, at: float, xmin: int) -> int:
    """Return the first transaction, at most ``xmin``, whose events are of a moment or later; the moment is in seconds since the epoch.

    Times follow transactions but for what runs at the same time, so the place is searched by halves: each look reads one entry of
    either index.
    """
    step = 1
    while xmin - step > 0 and await _time_from(tx, xmin - step) >= at:
        step *= 2
    low, high = max(0, xmin - step), xmin - step // 2 if step > 1 else xmin
    while high - low > 1:
        middle = (low + high) // 2
        if await _time_from(tx, middle) >= at:
            high = middle
        else:
            low = middle
    return high


async def _time_from(tx: Transaction, xid: int) -> float:
    """Return the time of the first event of a transaction or a later one; that of now if there is none."""
    first = "SELECT {0} AS xid, at FROM events WHERE {0} >= CAST(CAST(:xid AS text) AS xid8) ORDER BY {0} LIMIT 1"
    row = await tx.one(
        f"""
        SELECT coalesce((
            SELECT extract(epoch FROM at) FROM (({first.format("xid")}) UNION ALL ({first.format("quiet_xid")})) e
            ORDER BY xid LIMIT 1
        ), extract(epoch FROM now()))::float8 AS at
        """,
        xid=str(xid),
    )
    return float(row.at)


async def events_from(tx: Transaction, place: FeedPlace, xmin: int, limit: int) -> EventSlice:
    """Return at most ``limit`` events beyond ``place`` of transactions below ``xmin``, which must be over.

    Their number is bounded, and so is the work: where events of removed jobs fill it, there are fewer or none, and more to be read.
    """
    found = list(await _moved(tx, place, xmin, limit))
    submissions = await _submissions(tx, place, xmin, limit)
    # Whatever is not read yet is beyond the last of a source that was read up to the limit.
    bounds = [found[-1].place] if len(found) == limit else []
    if len(submissions) == limit:
        bounds.append(FeedPlace(submissions[-1].xid, submissions[-1].first, 1))
    carried = await _carried(tx, found)
    found = [one for one in found if (one.job_id, one.seq) not in carried]
    found += await _carried_by(tx, found)
    found += await _submitted(tx, submissions, limit)
    kept = sorted((one for one in found if one.place > place), key=lambda one: one.place)
    bound = min(bounds, default=None)
    if bound is not None:
        kept = [one for one in kept if one.place <= bound]
    if len(kept) > limit:
        kept, bound = kept[:limit], kept[limit - 1].place
    return EventSlice([one for one in kept if one.name is not None], bound or FeedPlace(xmin), bound is not None)


def _moved_by(column: str) -> str:
    return f"""
        SELECT {column} AS xid, {_STORED} FROM events
        WHERE {column} >= CAST(CAST(:xid AS text) AS xid8) AND {column} < CAST(CAST(:xmin AS text) AS xid8)
        AND ({column} > CAST(CAST(:xid AS text) AS xid8) OR (job_id, seq) > (:job, :seq))
        ORDER BY {column}, job_id, seq LIMIT :limit
    """


async def _moved(tx: Transaction, place: FeedPlace, xmin: int, limit: int) -> Sequence[FeedEvent]:
    return await tx.all_of(
        FeedEvent,
        f"""
        SELECT e.xid::text::bigint AS xid, e.job_id, {_OF_EVENT}, {_OF_JOB}
        FROM (
            ({_moved_by("xid")}) UNION ALL ({_moved_by("quiet_xid")}) ORDER BY xid, job_id, seq LIMIT :limit
        ) e {_JOINS} ORDER BY e.xid, e.job_id, e.seq
        """,
        xid=str(place.xid),
        xmin=str(xmin),
        job=place.job_id,
        seq=place.seq,
        limit=limit,
    )


async def _submissions(tx: Transaction, place: FeedPlace, xmin: int, limit: int) -> Sequence[JobBlock]:
    """Return submissions beyond ``place``; of one that was read in part, the rest."""
    return await tx.all_of(
        JobBlock,
        f"""
        SELECT xid, first, (last - first + 1)::int AS many FROM (
            SELECT c.xid::text::bigint AS xid, c.ref + c.many - 1 AS last,
                   CASE WHEN c.xid > CAST(CAST(:xid AS text) AS xid8) THEN c.ref ELSE greatest(c.ref, :job + 1) END AS first
            FROM changes c
            WHERE c.kind = '{FeedKind.JOBS}' AND c.xid >= CAST(CAST(:xid AS text) AS xid8)
              AND c.xid < CAST(CAST(:xmin AS text) AS xid8)
              AND (c.xid > CAST(CAST(:xid AS text) AS xid8) OR c.ref + c.many - 1 > :job)
            ORDER BY c.xid, c.ref LIMIT :limit
        ) s ORDER BY xid, first
        """,
        xid=str(place.xid),
        xmin=str(xmin),
        job=place.job_id,
        limit=limit,
    )


async def _submitted(tx: Transaction, submissions: Sequence[JobBlock], limit: int) -> Sequence[FeedEvent]:
    """Return the first ``limit`` jobs of each submission, as events."""
    if not submissions:
        return []
    return await tx.all_of(
        FeedEvent,
        f"""
        SELECT e.xid, e.job_id, {_OF_EVENT}, {_OF_JOB}
        FROM (
            SELECT g.xid, n.id AS job_id, 1 AS seq, n.submitted_at AS at, '{JobEventKind.SUBMITTED}' AS kind,
                   ARRAY[CASE WHEN (s.spec->>'suspend')::bool THEN 'held' ELSE 'queued' END] AS states, NULL::int AS attempt,
                   NULL::int AS cluster_id, coalesce(a.name, '') AS actor, '' AS message, NULL::jsonb AS details
            FROM unnest(CAST(:xids AS bigint[]), CAST(:firsts AS bigint[]), CAST(:manys AS int[])) AS g(xid, first, many)
                 CROSS JOIN LATERAL (
                     SELECT * FROM jobs WHERE id BETWEEN g.first AND g.first + g.many - 1 ORDER BY id LIMIT :limit
                 ) n
                 LEFT JOIN job_specs s ON s.id = n.spec_id LEFT JOIN api_keys a ON a.id = n.api_key_id
            ORDER BY g.xid, n.id LIMIT :limit + 1
        ) e {_JOINS}
        """,
        xids=[one.xid for one in submissions],
        firsts=[one.first for one in submissions],
        manys=[one.many for one in submissions],
        limit=limit,
    )


async def changed_jobs(tx: Transaction, place: FeedPlace, xmin: int, most: int, limit: int) -> JobChangeSlice:
    """Return the first ``limit`` of the jobs that have changed beyond ``place``, in the order of their last changes.

    Where there is much to catch up with: about ``most`` events of transactions below ``xmin``, which must be over, are looked at by
    one statement, whatever number of times a job has changed there. A job may have changed again beyond them.
    """
    if place.xid >= xmin:  # no transaction has ended since: the next one may have begun, and is not to be passed over
        return JobChangeSlice((), place, has_more=False)
    below = await _xid_beyond(tx, place, xmin, most)
    jobs = await tx.all_of(
        JobChange,
        f"""
        SELECT job_id, max(xid) AS xid, extract(epoch FROM max(at))::float8 AS at, bool_or(is_new) AS is_new,
               jsonb_agg(labels) FILTER (WHERE labels IS NOT NULL) AS labels_before
        FROM (
            {_changes_by("xid")} UNION ALL {_changes_by("quiet_xid")} UNION ALL
            SELECT c.xid::text::bigint, n, 1, c.created_at, true, NULL
            FROM changes c CROSS JOIN LATERAL generate_series(c.ref, c.ref + c.many - 1) n
            WHERE c.kind = '{FeedKind.JOBS}' AND c.xid >= CAST(CAST(:xid AS text) AS xid8)
              AND c.xid < CAST(CAST(:below AS text) AS xid8)
        ) e
        WHERE xid > CAST(CAST(:xid AS text) AS bigint) OR (job_id, seq) > (:job, :seq)
        GROUP BY job_id ORDER BY max(xid), job_id LIMIT :limit
        """,
        xid=str(place.xid),
        below=str(below),
        job=place.job_id,
        seq=place.seq,
        limit=limit,
    )
    end = FeedPlace(jobs[-1].xid, jobs[-1].job_id, _LAST_SEQ) if len(jobs) == limit else FeedPlace(below)
    return JobChangeSlice(jobs, end, end.xid < xmin)


def _changes_by(column: str) -> str:
    return f"""
        SELECT {column}::text::bigint AS xid, job_id, seq, at, false AS is_new, details->'labelsBefore' AS labels FROM events
        WHERE {column} >= CAST(CAST(:xid AS text) AS xid8) AND {column} < CAST(CAST(:below AS text) AS xid8)
    """


async def _xid_beyond(tx: Transaction, place: FeedPlace, xmin: int, most: int) -> int:
    """Return the transaction below which there are about ``most`` events beyond ``place``; at most ``xmin``."""

    def nth(column: str) -> str:
        return f"""
            (SELECT {column}::text::bigint FROM events
             WHERE {column} >= CAST(CAST(:xid AS text) AS xid8) AND {column} < CAST(CAST(:xmin AS text) AS xid8)
             ORDER BY {column} OFFSET :most LIMIT 1)
        """

    row = await tx.one(
        f"""
        SELECT least(CAST(CAST(:xmin AS text) AS bigint), {nth("xid")}, {nth("quiet_xid")}, (
            SELECT xid FROM (
                SELECT xid::text::bigint AS xid, sum(many) OVER (ORDER BY xid, ref) AS total FROM changes
                WHERE kind = '{FeedKind.JOBS}' AND xid >= CAST(CAST(:xid AS text) AS xid8)
                  AND xid < CAST(CAST(:xmin AS text) AS xid8) ORDER BY xid, ref LIMIT :most
            ) s WHERE total > :most ORDER BY xid LIMIT 1
        )) AS xid
        """,
        xid=str(place.xid),
        xmin=str(xmin),
        most=most,
    )
    # A transaction is read as a whole, however many events it has.
    return max(int(row.xid), place.xid + 1)


async def _carried_by(tx: Transaction, events: Sequence[FeedEvent]) -> Sequence[FeedEvent]:
    """Return earlier events of the same jobs that come with these: those whose transaction began later, or is not stored.

    ``events`` are in order. The days in which the others can be bound the partitions that are read.
    """
    places = {(one.job_id, one.seq): one.place for one in events}
    wanted = [one for one in events if one.seq > 2 and places.get((one.job_id, one.seq - 1), one.place) >= one.place]
    if not wanted:
        return []
    return await tx.all_of(
        FeedEvent,
        f"""
        SELECT e.xid, e.job_id, {_OF_EVENT}, {_OF_JOB}
        FROM (
            SELECT g.xid, n.job_id, n.seq, n.at, n.kind, n.states, n.attempt, n.cluster_id, n.actor, n.message, n.details
            FROM unnest(CAST(:xids AS bigint[]), CAST(:jobs AS bigint[]), CAST(:seqs AS int[])) AS g(xid, job_id, seq)
                 JOIN events n ON n.job_id = g.job_id AND n.seq < g.seq AND n.at >= :earliest
            WHERE coalesce(coalesce(n.xid, n.quiet_xid) > CAST(CAST(g.xid AS text) AS xid8), true) AND NOT EXISTS (
                SELECT 1 FROM events o WHERE o.job_id = g.job_id AND o.seq >= n.seq AND o.at >= :earliest
                AND (coalesce(o.xid, o.quiet_xid) < CAST(CAST(g.xid AS text) AS xid8)
                     OR (coalesce(o.xid, o.quiet_xid) = CAST(CAST(g.xid AS text) AS xid8) AND o.seq < g.seq)))
        ) e {_JOINS}
        """,
        xids=[one.xid for one in wanted],
        jobs=[one.job_id for one in wanted],
        seqs=[one.seq for one in wanted],
        earliest=min(one.submitted_at for one in wanted),
    )


async def _carried(tx: Transaction, events: Sequence[FeedEvent]) -> set[tuple[int, int]]:
    """Return job and version of those of these events that came with a later event of their job, whose transaction began earlier."""
    if not events:
        return set()
    rows = await tx.all(
        """
        SELECT g.job_id, g.seq
        FROM unnest(CAST(:xids AS bigint[]), CAST(:jobs AS bigint[]), CAST(:seqs AS int[])) AS g(xid, job_id, seq)
        WHERE EXISTS (
            SELECT 1 FROM events o WHERE o.job_id = g.job_id AND o.seq > g.seq AND o.at >= :earliest
            AND coalesce(o.xid, o.quiet_xid) < CAST(CAST(g.xid AS text) AS xid8))
        """,
        xids=[one.xid for one in events],
        jobs=[one.job_id for one in events],
        seqs=[one.seq for one in events],
        earliest=min(one.submitted_at for one in events),
    )
    return {(row.job_id, row.seq) for row in rows}
