"""Time series: the names of series, samples of the last hours, and values by series and span of time."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster_dispatcher.domain.series import SeriesKey
from trainmaster_dispatcher.store.database import Transaction

_MOST_SAMPLE_SECONDS = 2 * 86_400.0
"""Samples that nothing rolls up, as no worker runs, are removed after this time."""
_LOCK = 0x5E51E5


class NamedSeries(NamedTuple):
    """A series and its id."""

    id: int
    metric: str
    cluster: str
    queue: str
    product: str
    policy: str

    @property
    def key(self) -> SeriesKey:
        return SeriesKey(self.metric, self.cluster, self.queue, self.product, self.policy)


class StoredSample(NamedTuple):
    """A sample: packed ids of series, and their packed values."""

    at: datetime
    ids: bytes
    vals: bytes


class StoredSpan(NamedTuple):
    """The packed values of a series from ``begin`` on."""

    series_id: int
    begin: datetime
    vals: bytes


class HourCost(NamedTuple):
    """The cost of ended runs of a queue or of a burst policy in an hour, in billionths."""

    name: str
    hour: datetime
    cost: int


async def take_turn(tx: Transaction) -> bool:
    """Return whether this transaction may roll up: another process rolls up otherwise."""
    return bool((await tx.one("SELECT pg_try_advisory_xact_lock(:key) AS got", key=_LOCK)).got)


async def names(tx: Transaction, metrics: Collection[str] | None = None) -> Sequence[NamedSeries]:
    """Return the series of these metrics; of all for None."""
    return await tx.all_of(
        NamedSeries,
        """
        SELECT id, metric, cluster, queue, product, policy FROM series
        WHERE CAST(:metrics AS text[]) IS NULL OR metric = ANY(:metrics) ORDER BY metric, cluster, queue, product, policy
        """,
        metrics=None if metrics is None else list(metrics),
    )


async def add_names(tx: Transaction, labels: Sequence[SeriesKey]) -> Sequence[NamedSeries]:
    """Add series, and return them with their ids, those that exist already, too."""
    columns = {field: [key.label(field) for key in labels] for field in SeriesKey._fields}
    return await tx.all_of(
        NamedSeries,
        """
        INSERT INTO series (metric, cluster, queue, product, policy)
        SELECT metric, cluster, queue, product, policy
        FROM unnest(CAST(:metric AS text[]), CAST(:cluster AS text[]), CAST(:queue AS text[]), CAST(:product AS text[]),
                    CAST(:policy AS text[])) AS n(metric, cluster, queue, product, policy)
        ON CONFLICT (metric, cluster, queue, product, policy) DO UPDATE SET seen_at = now()
        RETURNING id, metric, cluster, queue, product, policy
        """,
        **columns,
    )


async def add_sample(tx: Transaction, at: datetime, ids: bytes, vals: bytes) -> None:
    """Store a sample, unless there is one of this minute; samples of which nobody took care are removed."""
    await tx.run(
        "INSERT INTO series_samples (at, ids, vals) VALUES (:at, :ids, :vals) ON CONFLICT (at) DO NOTHING",
        at=at,
        ids=ids,
        vals=vals,
    )
    await tx.run(
        "DELETE FROM series_samples WHERE at < now() - make_interval(secs => :seconds)", seconds=_MOST_SAMPLE_SECONDS
    )


async def oldest_sample(tx: Transaction) -> datetime | None:
    row = await tx.one("SELECT min(at) AS at FROM series_samples")
    return None if row.at is None else row.at


async def samples(tx: Transaction, begin: datetime, end: datetime) -> Sequence[StoredSample]:
    """Return the samples from ``begin`` until before ``end``, in order."""
    return await tx.all_of(
        StoredSample,
        "SELECT at, ids, vals FROM series_samples WHERE at >= :begin AND at < :end ORDER BY at",
        begin=begin,
        end=end,
    )


async def remove_samples(tx: Transaction, before: datetime) -> None:
    await tx.run("DELETE FROM series_samples WHERE at < :before", before=before)


async def add_spans(tx: Transaction, grain: int, begin: datetime, spans: Iterable[tuple[int, bytes]]) -> None:
    """Store the values of series in the span from ``begin`` on, in place of those that were stored of it."""
    found = list(spans)
    if found:
        await tx.run(
            """
            INSERT INTO series_values (series_id, grain, begin, vals)
            SELECT id, :grain, :begin, vals FROM unnest(CAST(:ids AS int[]), CAST(:vals AS bytea[])) AS n(id, vals)
            ON CONFLICT (series_id, grain, begin) DO UPDATE SET vals = excluded.vals
            """,
            grain=grain,
            begin=begin,
            ids=[one for one, _ in found],
            vals=[vals for _, vals in found],
        )


async def spans(
    tx: Transaction, grain: int, begin: datetime, end: datetime, ids: Sequence[int]
) -> Sequence[StoredSpan]:
    """Return the values of these series in the spans that begin from ``begin`` until before ``end``."""
    return await tx.all_of(
        StoredSpan,
        """
        SELECT series_id, begin, vals FROM series_values
        WHERE grain = :grain AND series_id = ANY(:ids) AND begin >= :begin AND begin < :end ORDER BY series_id, begin
        """,
        grain=grain,
        begin=begin,
        end=end,
        ids=list(ids),
    )


async def series_in(tx: Transaction, grain: int, begin: datetime, end: datetime) -> list[int]:
    """Return the ids of the series with values in the spans that begin from ``begin`` until before ``end``."""
    rows = await tx.all(
        "SELECT DISTINCT series_id FROM series_values WHERE grain = :grain AND begin >= :begin AND begin < :end ORDER BY 1",
        grain=grain,
        begin=begin,
        end=end,
    )
    return [row.series_id for row in rows]


async def days(tx: Transaction) -> tuple[datetime | None, datetime | None]:
    """Return the begin of the oldest fine span that no day has, and the begin of the last day that was rolled up."""
    row = await tx.one(
        """
        SELECT (SELECT max(begin) FROM series_values WHERE grain = 3600) AS rolled,
               (SELECT min(begin) FROM series_values WHERE grain = 60
                AND begin >= coalesce((SELECT max(begin) FROM series_values WHERE grain = 3600) + interval '1 day', 'epoch')) AS oldest
        """
    )
    return row.oldest, row.rolled


async def remove_spans(tx: Transaction, grain: int, seconds: float, limit: int) -> bool:
    """Remove values of a grain older than ``seconds``; return whether there may be more."""
    removed = await tx.run(
        """
        DELETE FROM series_values WHERE (series_id, grain, begin) IN (
            SELECT series_id, grain, begin FROM series_values
            WHERE grain = :grain AND begin < now() - make_interval(secs => :seconds) LIMIT :limit)
        """,
        grain=grain,
        seconds=seconds,
        limit=limit,
    )
    return removed == limit


async def remove_names(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove series of which no value is left and that no scheduler has looked up for ``seconds``, so that none has their ids.

    Return whether there may be more.
    """
    removed = await tx.run(
        """
        DELETE FROM series WHERE id IN (
            SELECT s.id FROM series s WHERE s.seen_at < now() - make_interval(secs => :seconds)
            AND NOT EXISTS (SELECT FROM series_values v WHERE v.series_id = s.id) LIMIT :limit)
        """,
        seconds=seconds,
        limit=limit,
    )
    return removed == limit


async def queue_costs(tx: Transaction, begin: datetime, end: datetime, paths: Sequence[str]) -> Sequence[HourCost]:
    """Return the counted cost of these queues themselves by hour."""
    return await tx.all_of(
        HourCost,
        """
        SELECT q.path AS name, u.hour, sum(u.cost)::bigint AS cost
        FROM (SELECT queue_id, hour, cost FROM class_usage WHERE hour >= :begin AND hour < :end
              UNION ALL SELECT queue_id, hour, cost FROM usage WHERE hour >= :begin AND hour < :end) u
        JOIN queues q ON q.id = u.queue_id WHERE q.path = ANY(:paths) GROUP BY q.path, u.hour
        """,
        begin=begin,
        end=end,
        paths=list(paths),
    )


async def policy_costs(tx: Transaction, begin: datetime, end: datetime, names: Sequence[str]) -> Sequence[HourCost]:
    """Return the counted cost of these burst policies by hour."""
    return await tx.all_of(
        HourCost,
        """
        SELECT p.name, s.hour, s.cost::bigint AS cost FROM policy_spend s JOIN burst_policies p ON p.id = s.policy_id
        WHERE s.hour >= :begin AND s.hour < :end AND p.name = ANY(:names) AND p.removed_at IS NULL
        """,
        begin=begin,
        end=end,
        names=list(names),
    )
