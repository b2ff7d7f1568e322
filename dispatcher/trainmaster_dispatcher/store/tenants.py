"""Queues, priority classes, clusters and reservations. Each change leaves a row in ``changes``, which the scheduler follows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.stored import readable


@dataclass(frozen=True, slots=True)
class QueueRow:
    id: int
    parent_id: int | None
    spec: QueueSpec
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class ClassRow:
    id: int
    spec: PriorityClassSpec


@dataclass(frozen=True, slots=True)
class ReservationRow:
    id: int
    queue_id: int
    spec: ReservationSpec


@dataclass(frozen=True, slots=True)
class ClusterRow:
    id: int
    spec: ClusterSpec
    cordoned: bool


async def note_change(tx: Transaction, kind: str, ref: int) -> None:
    await tx.run("INSERT INTO changes (kind, ref) VALUES (:kind, :ref)", kind=kind, ref=ref)


def _queue(row: Row[Any]) -> QueueRow:
    return QueueRow(row.id, row.parent_id, QueueSpec.model_validate(row.spec), row.is_leaf)


_QUEUES = """
    SELECT q.id, q.path AS name, q.parent_id, q.spec, NOT EXISTS (SELECT 1 FROM queues c WHERE c.parent_id = q.id) AS is_leaf
    FROM queues q
"""


async def stored_queues(tx: Transaction) -> Sequence[Row[Any]]:
    """All queues as they are stored: ``id``, ``path``, ``parent_id``, ``spec``."""
    return await tx.all("SELECT id, path, parent_id, spec FROM queues ORDER BY path")


async def queues(tx: Transaction) -> list[QueueRow]:
    """All queues whose stored specification can be read."""
    return readable(Part.QUEUE, await tx.all(f"{_QUEUES} ORDER BY q.path"), _queue)


async def queues_by_path(tx: Transaction, paths: Iterable[str]) -> dict[str, QueueRow]:
    rows = await tx.all(f"{_QUEUES} WHERE q.path = ANY(:paths)", paths=sorted(set(paths)))
    return {queue.spec.path: queue for queue in readable(Part.QUEUE, rows, _queue)}


async def hold_queues(tx: Transaction, paths: Iterable[str]) -> None:
    """Keep these queues from being removed and from getting their first queue below, until the transaction ends.

    A statement of its own, so that what is read next is as it was when the rows were given.
    """
    await tx.run("SELECT 1 FROM queues WHERE path = ANY(:paths) ORDER BY id FOR KEY SHARE", paths=sorted(set(paths)))


async def queue_ids_below(tx: Transaction, paths: Iterable[str]) -> list[int]:
    """Ids of these queues and of all below them."""
    rows = await tx.all(
        """
        SELECT DISTINCT q.id FROM queues q, unnest(CAST(:paths AS text[])) AS p
        WHERE q.path = p OR starts_with(q.path, p || '/')
        """,
        paths=list(paths),
    )
    return [row.id for row in rows]


async def put_queue(tx: Transaction, spec: QueueSpec, parent_id: int | None) -> int:
    row = await tx.one(
        """
        INSERT INTO queues (path, parent_id, spec) VALUES (:path, :parent, CAST(:spec AS jsonb))
        ON CONFLICT (path) DO UPDATE SET spec = excluded.spec RETURNING id
        """,
        path=spec.path,
        parent=parent_id,
        spec=dumps(spec.to_wire() | {"path": spec.path}),
    )
    await note_change(tx, "queue", row.id)
    return int(row.id)


async def delete_queue(tx: Transaction, queue_id: int) -> None:
    """Remove a queue without jobs and children; the caller has checked both and holds the row."""
    await tx.run("DELETE FROM queues WHERE id = :id", id=queue_id)
    await note_change(tx, "queue", queue_id)


async def lock_queue(tx: Transaction, path: str) -> Row[Any] | None:
    """The queue, locked, and whether it is in use; looked at after the lock was given, so that nothing slips in between."""
    await tx.run("SELECT 1 FROM queues WHERE path = :path FOR UPDATE", path=path)
    return await tx.first(
        """
        SELECT q.id, EXISTS (SELECT 1 FROM queues c WHERE c.parent_id = q.id) AS has_children,
               EXISTS (SELECT 1 FROM jobs j WHERE j.queue_id = q.id) AS has_jobs,
               EXISTS (SELECT 1 FROM reservations r WHERE r.queue_id = q.id) AS has_reservations
        FROM queues q WHERE q.path = :path
        """,
        path=path,
    )


async def stored_classes(tx: Transaction) -> Sequence[Row[Any]]:
    """All priority classes as they are stored: ``id``, ``name``, ``value``, ``spec``."""
    return await tx.all("SELECT id, name, value, spec FROM priority_classes ORDER BY value DESC, name")


async def classes(tx: Transaction) -> list[ClassRow]:
    """All priority classes whose stored specification can be read."""
    return readable(
        Part.PRIORITY_CLASS,
        await stored_classes(tx),
        lambda row: ClassRow(row.id, PriorityClassSpec.model_validate(row.spec)),
    )


async def put_class(tx: Transaction, spec: PriorityClassSpec) -> int:
    """Store a class; a new default takes the place of the old one."""
    if spec.default:
        await tx.run(
            "UPDATE priority_classes SET is_default = false, spec = spec - 'default' WHERE is_default AND name <> :name",
            name=spec.name,
        )
    row = await tx.one(
        """
        INSERT INTO priority_classes (name, value, is_default, spec) VALUES (:name, :value, :default, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET value = excluded.value, is_default = excluded.is_default, spec = excluded.spec
        RETURNING id
        """,
        name=spec.name,
        value=spec.value,
        default=spec.default,
        spec=dumps(spec.to_wire() | {"name": spec.name, "value": spec.value}),
    )
    await note_change(tx, "class", row.id)
    return int(row.id)


async def delete_class(tx: Transaction, class_id: int) -> None:
    await tx.run("DELETE FROM priority_classes WHERE id = :id", id=class_id)
    await note_change(tx, "class", class_id)


async def hold_classes(tx: Transaction, ids: Iterable[int]) -> bool:
    """Keep these classes from being removed until the transaction ends; False when one of them is gone already."""
    wanted = sorted(set(ids))
    rows = await tx.all("SELECT 1 FROM priority_classes WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE", ids=wanted)
    return len(rows) == len(wanted)


async def class_in_use(tx: Transaction, class_id: int) -> bool:
    """Whether a job has this class; looked at after the class was locked against new ones."""
    await tx.run("SELECT 1 FROM priority_classes WHERE id = :id FOR UPDATE", id=class_id)
    return bool((await tx.one("SELECT EXISTS (SELECT 1 FROM jobs WHERE class_id = :id) AS used", id=class_id)).used)


async def stored_reservations(tx: Transaction) -> Sequence[Row[Any]]:
    """All reservations as they are stored: ``id``, ``name``, ``queue_id``, ``spec``."""
    return await tx.all("SELECT id, name, queue_id, spec FROM reservations ORDER BY starts_at, name")


async def reservations(tx: Transaction) -> list[ReservationRow]:
    """What admins have reserved, by its beginning, as far as it can be read."""
    return readable(
        Part.RESERVATION,
        await stored_reservations(tx),
        lambda row: ReservationRow(row.id, row.queue_id, ReservationSpec.model_validate(row.spec)),
    )


async def put_reservation(tx: Transaction, spec: ReservationSpec, queue_id: int) -> None:
    row = await tx.one(
        """
        INSERT INTO reservations (name, queue_id, starts_at, ends_at, spec)
        VALUES (:name, :queue, :starts, :ends, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET queue_id = excluded.queue_id, starts_at = excluded.starts_at,
            ends_at = excluded.ends_at, spec = excluded.spec
        RETURNING id
        """,
        name=spec.name,
        queue=queue_id,
        starts=spec.start,
        ends=spec.end,
        spec=dumps(spec.to_wire()),
    )
    await note_change(tx, "reservation", row.id)


async def delete_reservation(tx: Transaction, name: str) -> bool:
    """Whether there was one."""
    row = await tx.first("DELETE FROM reservations WHERE name = :name RETURNING id", name=name)
    if row is not None:
        await note_change(tx, "reservation", row.id)
    return row is not None


async def clusters(tx: Transaction) -> list[ClusterRow]:
    """All clusters whose stored specification can be read."""
    rows = await tx.all("SELECT id, name, spec, cordoned FROM clusters WHERE removed_at IS NULL ORDER BY name")
    return readable(Part.CLUSTER, rows, _cluster)


def _cluster(row: Row[Any]) -> ClusterRow:
    return ClusterRow(row.id, ClusterSpec.model_validate(row.spec), row.cordoned)


async def clusters_by_id(tx: Transaction, ids: Iterable[int]) -> list[ClusterRow]:
    """These clusters, kept from being removed until the transaction ends."""
    wanted = sorted(set(ids))
    if not wanted:
        return []
    rows = await tx.all(
        """
        SELECT id, name, spec, cordoned FROM clusters
        WHERE id = ANY(:ids) AND removed_at IS NULL ORDER BY id FOR KEY SHARE
        """,
        ids=wanted,
    )
    return readable(Part.CLUSTER, rows, _cluster)


async def cluster_overview(tx: Transaction) -> Sequence[Row[Any]]:
    """Clusters with contact and number of live runs, for people."""
    return await tx.all(
        """
        SELECT c.id, c.name, c.spec, c.cordoned, c.draining, t.lease_until, t.contact_at,
               t.lease_until > now() AS reachable, t.agent_version, p.report, p.received_at, r.live_runs, r.stopping_runs,
               r.orphaned_runs, (SELECT count(*) FROM quarantined_runs q WHERE q.cluster_id = c.id) AS quarantined_runs,
               CASE WHEN i.recovering_since IS NOT NULL THEN coalesce(
                   (SELECT array_agg(o.name ORDER BY o.name) FROM clusters o JOIN cluster_contacts k ON k.cluster_id = o.id
                    WHERE o.removed_at IS NULL AND k.holder IS NOT NULL
                      AND (k.recovered_at IS NULL OR k.recovered_at < i.recovering_since)), '{}') END AS awaited
        FROM installation i CROSS JOIN clusters c LEFT JOIN cluster_contacts t ON t.cluster_id = c.id
             LEFT JOIN capacity p ON p.cluster_id = c.id
             LEFT JOIN cluster_holders h ON h.cluster_id = t.cluster_id AND h.holder = t.holder,
             LATERAL (SELECT count(*) AS live_runs, count(*) FILTER (WHERE r.state = 'stopping') AS stopping_runs,
                             count(*) FILTER (WHERE r.holder <> h.number) AS orphaned_runs
                      FROM runs r WHERE r.cluster_id = c.id AND r.ended_at IS NULL) AS r
        WHERE c.removed_at IS NULL ORDER BY c.name
        """
    )


async def cluster_id(tx: Transaction, name: str) -> int | None:
    row = await tx.first("SELECT id FROM clusters WHERE name = :name AND removed_at IS NULL", name=name)
    return None if row is None else int(row.id)


async def put_cluster(tx: Transaction, spec: ClusterSpec) -> int:
    row = await tx.one(
        """
        INSERT INTO clusters (name, kind, spec) VALUES (:name, CAST(:kind AS cluster_kind), CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, spec = excluded.spec, removed_at = NULL RETURNING id
        """,
        name=spec.name,
        kind=spec.cluster_kind.value,
        spec=dumps(spec.to_wire() | {"name": spec.name}),
    )
    for table in ("cluster_contacts", "cluster_desired"):
        await tx.run(f"INSERT INTO {table} (cluster_id) VALUES (:id) ON CONFLICT DO NOTHING", id=row.id)
    await note_change(tx, "cluster", row.id)
    return int(row.id)


async def cordon(tx: Transaction, name: str, cordoned: bool, *, draining: bool = False) -> int | None:
    """Close or open a cluster to new runs. Once this has committed, nothing new is applied to a closed one: starts in the making
    hold its row.
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
    await note_change(tx, "cluster", row.id)
    return int(row.id)


async def lock_cluster(tx: Transaction, name: str) -> Row[Any] | None:
    """The cluster, locked, with its live runs and whether it ever had one; looked at after the lock was given."""
    await tx.run("SELECT 1 FROM clusters WHERE name = :name FOR UPDATE", name=name)
    return await tx.first(
        """
        SELECT id, spec, EXISTS (SELECT 1 FROM runs r WHERE r.cluster_id = c.id) AS has_runs,
               (SELECT count(*) FROM runs r WHERE r.cluster_id = c.id AND r.ended_at IS NULL) AS live_runs
        FROM clusters c WHERE name = :name AND removed_at IS NULL
        """,
        name=name,
    )


async def retire_cluster(tx: Transaction, row_id: int) -> None:
    """Remove a cluster that has had runs: these keep its row and name. Its agent's record is reset; the caller holds the rows."""
    await tx.run("UPDATE clusters SET removed_at = now(), cordoned = false, draining = false WHERE id = :id", id=row_id)
    for table in ("api_keys", "capacity", "agent_sessions", "cluster_holders", "log_streams", "cool_downs"):
        await tx.run(f"DELETE FROM {table} WHERE cluster_id = :id", id=row_id)
    await tx.run(
        """
        UPDATE cluster_contacts SET session = NULL, holder = NULL, number = 0, lease_until = 'epoch', contact_at = 'epoch',
               earlier_contact_at = NULL, agent_version = '', checked_count = NULL, checked_digest = NULL, checked_at = NULL
        WHERE cluster_id = :id
        """,
        id=row_id,
    )
    await note_change(tx, "cluster", row_id)


async def delete_cluster(tx: Transaction, row_id: int) -> None:
    await tx.run("DELETE FROM clusters WHERE id = :id", id=row_id)
    await note_change(tx, "cluster", row_id)


async def lock_declared(tx: Transaction, name: str) -> None:
    """Wait until no other transaction changes the declared object of this kind and name; hold it until this one ends."""
    await tx.run("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))", name=name)
