"""What the store holds, counted for the page of metrics: a few reads, none of which looks at ended jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.scheduling import Cursor

MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    in_use: int
    limit: int


def connections(database: Database) -> ConnectionCounts:
    """The connections of this process's pool."""
    pool: Any = database.engine.pool
    return ConnectionCounts(pool.checkedout(), pool.size() + pool._max_overflow)


async def cluster_names(tx: Transaction) -> dict[int, str]:
    return {row.id: row.name for row in await tx.all("SELECT id, name FROM clusters")}


async def live_jobs(tx: Transaction) -> Sequence[Row[Any]]:
    """Jobs that have not ended by queue, class and state; ``age`` of the oldest that waits for its first run, in seconds."""
    return await tx.all(
        """
        SELECT q.path AS queue, c.name AS priority_class, n.state, n.many, n.age
        FROM (SELECT queue_id, class_id, state, count(*) AS many,
                     extract(epoch FROM now() - min(submitted_at) FILTER (WHERE state = 'queued' AND attempt = 0))::float8 AS age
              FROM jobs WHERE ended_at IS NULL GROUP BY queue_id, class_id, state) n
        JOIN queues q ON q.id = n.queue_id JOIN priority_classes c ON c.id = n.class_id
        """
    )


async def contacts(tx: Transaction) -> Sequence[Row[Any]]:
    """Seconds since the last contact and of lease left, by cluster that was ever heard."""
    return await tx.all(
        """
        SELECT c.name AS cluster, extract(epoch FROM clock_timestamp() - k.contact_at)::float8 AS age,
               extract(epoch FROM k.lease_until - clock_timestamp())::float8 AS left
        FROM cluster_contacts k JOIN clusters c ON c.id = k.cluster_id WHERE k.contact_at > 'epoch'
        """
    )


async def outbox(tx: Transaction) -> Row[Any]:
    """Messages that wait and that are dead, and the age of the oldest that waits."""
    return await tx.one(
        """
        SELECT count(*) FILTER (WHERE dead_at IS NULL) AS waiting, count(*) FILTER (WHERE dead_at IS NOT NULL) AS dead,
               coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE dead_at IS NULL)), 0)::float8 AS age
        FROM outbox
        """
    )


async def open_streams(tx: Transaction) -> int:
    return int((await tx.one("SELECT count(*) AS many FROM log_streams WHERE expires_at > now()")).many)


async def feed_lag(tx: Transaction, cursor: Cursor) -> Row[Any]:
    """Rows of the feed from a cursor on, at most ``MOST_ROWS`` of each table, and the age of the oldest of them."""
    return await tx.one(
        """
        SELECT count(*) AS many, coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 AS age
        FROM ((SELECT at FROM events WHERE xid >= CAST(CAST(:cursor AS text) AS xid8) ORDER BY xid LIMIT :most)
              UNION ALL
              (SELECT created_at FROM changes WHERE xid >= CAST(CAST(:cursor AS text) AS xid8) ORDER BY xid LIMIT :most)) AS feed
        """,
        cursor=str(cursor.xid),
        most=MOST_ROWS,
    )
