"""Changed jobs, clusters and declared objects as open pages show them. Reads nothing of what has not changed."""

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.event_feed import FeedPlace
from trainmaster_dispatcher.store.feed_kinds import FeedKind


class JobLine(NamedTuple):
    """A job as it is now. ``state``: as people see it; ``cluster``: of its latest run, None without any."""

    id: int
    name: str
    queue: str
    state: str
    cluster: str | None


class FeedObject(NamedTuple):
    """A changed object that is no job: its kind, and its key, or 0 where all of the kind may have changed."""

    kind: FeedKind
    ref: int


class KnownCluster(NamedTuple):
    """A cluster and the queues that it is for; without any, for all."""

    id: int
    name: str
    only_queues: list[str]


async def job_lines(tx: Transaction, job_ids: Sequence[int]) -> Sequence[JobLine]:
    """Return those of these jobs that exist."""
    if not job_ids:
        return ()
    return await tx.all_of(
        JobLine,
        """
        SELECT j.id, j.name, q.path AS queue, coalesce(j.wish::text, j.state::text) AS state, c.name AS cluster
        FROM jobs j JOIN queues q ON q.id = j.queue_id
             LEFT JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt LEFT JOIN clusters c ON c.id = r.cluster_id
        WHERE j.id = ANY(:ids)
        """,
        ids=list(job_ids),
    )


async def object_changes(tx: Transaction, place: FeedPlace, xmin: int) -> list[FeedObject]:
    """Return the objects beside jobs that transactions from that of ``place`` on have changed, below ``xmin``, which must be over."""
    rows = await tx.all(
        f"""
        SELECT DISTINCT kind, ref FROM changes
        WHERE xid >= CAST(CAST(:xid AS text) AS xid8) AND xid < CAST(CAST(:xmin AS text) AS xid8) AND kind <> '{FeedKind.JOBS}'
        """,
        xid=str(place.xid),
        xmin=str(xmin),
    )
    return [FeedObject(FeedKind.read(row.kind), int(row.ref)) for row in rows]


async def clusters(tx: Transaction) -> Sequence[KnownCluster]:
    """Return all clusters that were not removed."""
    return await tx.all_of(
        KnownCluster,
        """
        SELECT id, name, ARRAY(SELECT jsonb_array_elements_text(coalesce(spec->'onlyQueues', '[]'))) AS only_queues
        FROM clusters WHERE removed_at IS NULL
        """,
    )
