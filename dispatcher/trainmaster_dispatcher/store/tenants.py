"""Queues, priority classes, clusters, reservations and datasets: their tables, and queries beside those of declared objects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol import resource_kinds
from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import DeclaredObject, DeclaredTable, StoredObject, note_change
from trainmaster_dispatcher.store.feed_kinds import FeedKind


@dataclass(frozen=True, slots=True)
class StoredQueue(StoredObject):
    parent_id: int | None
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class StoredPriorityClass(StoredObject):
    value: int


@dataclass(frozen=True, slots=True)
class StoredReservation(StoredObject):
    queue_id: int


@dataclass(frozen=True, slots=True)
class StoredCluster(StoredObject):
    cordoned: bool


QUEUES = DeclaredTable(
    kind=resource_kinds.QUEUE,
    table="queues",
    row=StoredQueue,
    part=Part.QUEUE,
    feed=FeedKind.QUEUE,
    reads=("parent_id", "NOT EXISTS (SELECT 1 FROM queues c WHERE c.parent_id = queues.id)"),
)
CLASSES = DeclaredTable(
    kind=resource_kinds.PRIORITY_CLASS,
    table="priority_classes",
    row=StoredPriorityClass,
    part=Part.PRIORITY_CLASS,
    feed=FeedKind.PRIORITY_CLASS,
    reads=("value",),
    order="value DESC, name",
)
RESERVATIONS = DeclaredTable(
    kind=resource_kinds.RESERVATION,
    table="reservations",
    row=StoredReservation,
    part=Part.RESERVATION,
    feed=FeedKind.RESERVATION,
    reads=("queue_id",),
    order="starts_at, name",
)
CLUSTERS = DeclaredTable(
    kind=resource_kinds.CLUSTER,
    table="clusters",
    row=StoredCluster,
    part=Part.CLUSTER,
    feed=FeedKind.CLUSTER,
    reads=("cordoned",),
    keeps_removed=True,
)
DATASETS = DeclaredTable(
    kind=resource_kinds.DATASET, table="datasets", row=StoredObject, part=Part.DATASET, feed=FeedKind.DATASET
)
ROLE_BINDINGS = DeclaredTable(
    kind=resource_kinds.ROLE_BINDING,
    table="role_bindings",
    row=StoredObject,
    feed=FeedKind.ROLE_BINDING,
    has_revision=True,
)

QueueRow = DeclaredObject[QueueSpec, StoredQueue]
ClassRow = DeclaredObject[PriorityClassSpec, StoredPriorityClass]
ClusterRow = DeclaredObject[ClusterSpec, StoredCluster]


class LockedQueue(NamedTuple):
    """The rows that prevent a queue's removal."""

    id: int
    path: str
    has_children: bool
    has_jobs: bool
    has_reservations: bool
    has_schedules: bool


class LockedCluster(NamedTuple):
    """A cluster, whether it ever had a run, and how many live runs it has."""

    id: int
    spec: object
    cordoned: bool
    has_runs: bool
    live_runs: int


class ClusterOverview(NamedTuple):
    """A cluster with its contact and the number of its runs. ``awaited``: the clusters that a recovery waits for, as
    ``domain/recovery.py`` reads them; None without a recovery.
    """

    id: int
    name: str
    spec: object
    cordoned: bool
    draining: bool
    contact_at: datetime | None
    reachable: bool | None
    agent_version: str | None
    report: Any
    live_runs: int
    stopping_runs: int
    orphaned_runs: int
    quarantined_runs: int
    awaited: list[dict[str, Any]] | None


async def hold_queues(tx: Transaction, paths: Iterable[str]) -> None:
    """Prevent these queues from being removed and from getting their first queue below, until the transaction ends.

    A statement of its own, so that the next statement reads the rows as they are when the locks are taken.
    """
    await tx.run("SELECT 1 FROM queues WHERE path = ANY(:paths) ORDER BY id FOR KEY SHARE", paths=sorted(set(paths)))


async def queue_ids_below(tx: Transaction, paths: Iterable[str]) -> list[int]:
    """Return the ids of these queues and of all below them."""
    rows = await tx.all(
        """
        SELECT DISTINCT q.id FROM queues q, unnest(CAST(:paths AS text[])) AS p
        WHERE q.path = p OR starts_with(q.path, p || '/')
        """,
        paths=list(paths),
    )
    return [row.id for row in rows]


async def lock_queue(tx: Transaction, path: str) -> LockedQueue | None:
    """Lock a queue; return it with what uses it, read after the lock was taken, so that no change is missed."""
    return (await lock_queues(tx, [path])).get(path)


async def lock_queues(tx: Transaction, paths: Iterable[str]) -> dict[str, LockedQueue]:
    """Lock those of these queues that exist, in the order of their keys; return each as ``lock_queue`` does, by path."""
    wanted = sorted(set(paths))
    if not wanted:
        return {}
    await tx.run("SELECT 1 FROM queues WHERE path = ANY(:paths) ORDER BY id FOR UPDATE", paths=wanted)
    rows = await tx.all_of(
        LockedQueue,
        """
        SELECT q.id, q.path, EXISTS (SELECT 1 FROM queues c WHERE c.parent_id = q.id) AS has_children,
               EXISTS (SELECT 1 FROM jobs j WHERE j.queue_id = q.id)
                   OR EXISTS (SELECT 1 FROM grouped_pods p WHERE p.queue_id = q.id)
                   OR EXISTS (SELECT 1 FROM workflows w WHERE w.queue_id = q.id)
                   OR EXISTS (SELECT 1 FROM job_groups g WHERE g.queue_id = q.id) AS has_jobs,
               EXISTS (SELECT 1 FROM reservations r WHERE r.queue_id = q.id) AS has_reservations,
               EXISTS (SELECT 1 FROM schedules s WHERE s.queue_id = q.id AND s.deleted_at IS NULL) AS has_schedules
        FROM queues q WHERE q.path = ANY(:paths)
        """,
        paths=wanted,
    )
    return {row.path: row for row in rows}


async def hold_classes(tx: Transaction, ids: Iterable[int]) -> bool:
    """Prevent these classes from being removed until the transaction ends; return False when one of them does not exist any more."""
    wanted = sorted(set(ids))
    rows = await tx.all("SELECT 1 FROM priority_classes WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE", ids=wanted)
    return len(rows) == len(wanted)


async def class_in_use(tx: Transaction, name: str) -> bool:
    """Return whether a job has this class, after the class was locked against new ones."""
    row = await tx.first("SELECT id FROM priority_classes WHERE name = :name FOR UPDATE", name=name)
    if row is None:
        return False
    return bool((await tx.one("SELECT EXISTS (SELECT 1 FROM jobs WHERE class_id = :id) AS used", id=row.id)).used)


async def unset_default_class(tx: Transaction, name: str) -> None:
    """Unset the default flag of the default class, if it is not ``name``."""
    await tx.run(
        "UPDATE priority_classes SET is_default = false, spec = spec - 'default' WHERE is_default AND name <> :name",
        name=name,
    )


async def clusters_by_id(tx: Transaction, ids: Iterable[int]) -> list[ClusterRow]:
    """Return these clusters, locked against removal until the transaction ends."""
    wanted = sorted(set(ids))
    if not wanted:
        return []
    rows: Sequence[Any] = await tx.all(
        """
        SELECT id, name, spec, cordoned FROM clusters
        WHERE id = ANY(:ids) AND removed_at IS NULL ORDER BY id FOR KEY SHARE
        """,
        ids=wanted,
    )
    return CLUSTERS.readable([StoredCluster(*row) for row in rows])


async def cluster_overview(tx: Transaction) -> Sequence[ClusterOverview]:
    """Return clusters with contact and number of live runs, for people."""
    return await tx.all_of(
        ClusterOverview,
        """
        SELECT c.id, c.name, c.spec, c.cordoned, c.draining, t.contact_at, t.lease_until > now() AS reachable,
               t.agent_version, p.report, r.live_runs, r.stopping_runs, r.orphaned_runs,
               (SELECT count(*) FROM quarantined_runs q WHERE q.cluster_id = c.id) AS quarantined_runs,
               CASE WHEN i.recovering_since IS NOT NULL THEN coalesce(
                   (SELECT jsonb_agg(jsonb_build_object('name', o.name, 'onlyQueues', o.spec->'onlyQueues') ORDER BY o.name)
                    FROM clusters o JOIN cluster_contacts k ON k.cluster_id = o.id
                    WHERE o.removed_at IS NULL AND k.holder IS NOT NULL
                      AND (k.recovered_at IS NULL OR k.recovered_at < i.recovering_since)), '[]') END AS awaited
        FROM installation i CROSS JOIN clusters c LEFT JOIN cluster_contacts t ON t.cluster_id = c.id
             LEFT JOIN capacity p ON p.cluster_id = c.id
             LEFT JOIN cluster_holders h ON h.cluster_id = t.cluster_id AND h.holder = t.holder,
             LATERAL (SELECT count(*) AS live_runs, count(*) FILTER (WHERE r.state = 'stopping') AS stopping_runs,
                             count(*) FILTER (WHERE r.holder <> h.number) AS orphaned_runs
                      FROM runs r WHERE r.cluster_id = c.id AND r.ended_at IS NULL) AS r
        WHERE c.removed_at IS NULL ORDER BY c.name
        """,
    )


async def cluster_id(tx: Transaction, name: str) -> int | None:
    row = await tx.first("SELECT id FROM clusters WHERE name = :name AND removed_at IS NULL", name=name)
    return None if row is None else int(row.id)


async def hold_clusters(tx: Transaction, names: Iterable[str]) -> dict[str, int]:
    """Return the ids of those of these clusters that exist, by name; none of them is removed before the transaction ends."""
    rows = await tx.all(
        "SELECT id, name FROM clusters WHERE name = ANY(:names) AND removed_at IS NULL ORDER BY id FOR KEY SHARE",
        names=sorted(set(names)),
    )
    return {row.name: row.id for row in rows}


async def _disown(tx: Transaction, cluster_id: int) -> None:
    """Take a cluster that is removed out of the keys of its owners: one that is made again with its name is not theirs."""
    await tx.run("UPDATE api_keys SET clusters = array_remove(clusters, :id) WHERE :id = ANY(clusters)", id=cluster_id)


async def id_of_cluster(tx: Transaction, name: str) -> int | None:
    """Return the key of the cluster of this name, even if it was removed; None if there never was one."""
    row = await tx.first("SELECT id FROM clusters WHERE name = :name LIMIT 1", name=name)
    return None if row is None else int(row.id)


async def add_contacts(tx: Transaction, cluster_ids: Sequence[int]) -> None:
    """Create the rows of the agent contact of these clusters, where they do not exist."""
    for table in ("cluster_contacts", "cluster_desired"):
        await tx.run(
            f"INSERT INTO {table} (cluster_id) SELECT unnest(CAST(:ids AS int[])) ON CONFLICT DO NOTHING",
            ids=list(cluster_ids),
        )


async def cordon(tx: Transaction, name: str, cordoned: bool, *, draining: bool = False) -> int | None:
    """Close or open a cluster to new runs. Once this has committed, no new run is applied to a closed cluster: a start in progress
    holds the cluster's row.
    """
    await tx.run("SELECT 1 FROM clusters WHERE name = :name FOR UPDATE", name=name)
    row = await tx.first(
        """
        UPDATE clusters SET cordoned = :on, draining = :on AND (draining OR :draining)
        WHERE name = :name AND removed_at IS NULL RETURNING id
        """,
        name=name,
        on=cordoned,
        draining=draining,
    )
    if row is None:
        return None
    await note_change(tx, FeedKind.CLUSTER, row.id)
    return int(row.id)


async def lock_cluster(tx: Transaction, name: str) -> LockedCluster | None:
    """Lock a cluster; return it with its live runs and whether it ever had one, read after the lock was taken."""
    await tx.run("SELECT 1 FROM clusters WHERE name = :name FOR UPDATE", name=name)
    return await tx.first_of(
        LockedCluster,
        """
        SELECT id, spec, cordoned, EXISTS (SELECT 1 FROM runs r WHERE r.cluster_id = c.id) AS has_runs,
               (SELECT count(*) FROM runs r WHERE r.cluster_id = c.id AND r.ended_at IS NULL) AS live_runs
        FROM clusters c WHERE name = :name AND removed_at IS NULL
        """,
        name=name,
    )


async def retire_cluster(tx: Transaction, row_id: int) -> None:
    """Mark a cluster with past runs as removed: these keep its row and name. Reset the record of its agent; the caller holds the
    rows.
    """
    await tx.run("UPDATE clusters SET removed_at = now(), cordoned = false, draining = false WHERE id = :id", id=row_id)
    await _disown(tx, row_id)
    for table in (
        "api_keys",
        "capacity",
        "agent_sessions",
        "cluster_holders",
        "log_streams",
        "member_streams",
        "cool_downs",
    ):
        await tx.run(f"DELETE FROM {table} WHERE cluster_id = :id", id=row_id)
    await tx.run(
        """
        UPDATE cluster_contacts SET session = NULL, holder = NULL, number = 0, lease_until = 'epoch', contact_at = 'epoch',
               earlier_contact_at = NULL, agent_version = '', checked_count = NULL, checked_digest = NULL, checked_at = NULL
        WHERE cluster_id = :id
        """,
        id=row_id,
    )
    await note_change(tx, FeedKind.CLUSTER, row_id)


async def delete_cluster(tx: Transaction, row_id: int) -> None:
    await tx.run("DELETE FROM clusters WHERE id = :id", id=row_id)
    await _disown(tx, row_id)
    await note_change(tx, FeedKind.CLUSTER, row_id)
