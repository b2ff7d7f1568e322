"""Counts of the store's rows for the page of metrics: a few reads, none of which scans ended jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.scheduling import Cursor
from trainmaster_dispatcher.store.tables import WAITS_SINCE

MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    in_use: int
    limit: int


class LiveJobCount(NamedTuple):
    """Jobs of a queue, class and state that have not ended; ``age`` in seconds of the oldest that waits for its first run, if any."""

    queue: str
    priority_class: str
    state: JobState
    many: int
    age: float | None


class ContactAge(NamedTuple):
    """Seconds since the last contact of a cluster's agent, and seconds left of its lease."""

    cluster: str
    age: float
    left: float


class OutboxCount(NamedTuple):
    """Numbers of waiting and of dead messages, and the age in seconds of the oldest waiting one."""

    waiting: int
    dead: int
    age: float


class FeedLag(NamedTuple):
    """Rows of the feed that were not read yet, and the age in seconds of the oldest of them."""

    many: int
    age: float


def connections(database: Database) -> ConnectionCounts:
    """Return the number of connections in use and the limit of this process's pool."""
    pool: Any = database.engine.pool
    return ConnectionCounts(pool.checkedout(), pool.size() + pool._max_overflow)


async def cluster_names(tx: Transaction) -> dict[int, str]:
    return {row.id: row.name for row in await tx.all("SELECT id, name FROM clusters")}


async def live_jobs(tx: Transaction) -> Sequence[LiveJobCount]:
    """Return the number of jobs that have not ended, by queue, class and state."""
    return await tx.all_of(
        LiveJobCount,
        f"""
        SELECT q.path AS queue, c.name AS priority_class, n.state, n.many, n.age
        FROM (SELECT queue_id, class_id, state, count(*) AS many,
                     extract(epoch FROM now() - min({WAITS_SINCE}) FILTER (WHERE state = 'queued' AND attempt = 0))::float8 AS age
              FROM jobs j WHERE ended_at IS NULL GROUP BY queue_id, class_id, state) n
        JOIN queues q ON q.id = n.queue_id JOIN priority_classes c ON c.id = n.class_id
        """,
    )


async def contacts(tx: Transaction) -> Sequence[ContactAge]:
    """Return the seconds since the last contact and those left of the lease, by cluster that ever had contact."""
    return await tx.all_of(
        ContactAge,
        """
        SELECT c.name AS cluster, extract(epoch FROM clock_timestamp() - k.contact_at)::float8 AS age,
               extract(epoch FROM k.lease_until - clock_timestamp())::float8 AS left
        FROM cluster_contacts k JOIN clusters c ON c.id = k.cluster_id WHERE k.contact_at > 'epoch'
        """,
    )


async def outbox(tx: Transaction) -> OutboxCount:
    """Return the numbers of waiting and of dead messages, and the age of the oldest waiting one."""
    return await tx.one_of(
        OutboxCount,
        """
        SELECT count(*) FILTER (WHERE dead_at IS NULL) AS waiting, count(*) FILTER (WHERE dead_at IS NOT NULL) AS dead,
               coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE dead_at IS NULL)), 0)::float8 AS age
        FROM outbox
        """,
    )


async def open_streams(tx: Transaction) -> int:
    return int((await tx.one("SELECT count(*) AS many FROM log_streams WHERE expires_at > now()")).many)


async def feed_lag(tx: Transaction, cursor: Cursor) -> FeedLag:
    """Return the number of feed rows from a cursor on, at most ``MOST_ROWS`` of each table, and the age of the oldest."""
    return await tx.one_of(
        FeedLag,
        """
        SELECT count(*) AS many, coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 AS age
        FROM ((SELECT at FROM events WHERE xid >= CAST(CAST(:cursor AS text) AS xid8) ORDER BY xid LIMIT :most)
              UNION ALL
              (SELECT created_at FROM changes WHERE xid >= CAST(CAST(:cursor AS text) AS xid8) ORDER BY xid LIMIT :most)) AS feed
        """,
        cursor=str(cursor.xid),
        most=MOST_ROWS,
    )
