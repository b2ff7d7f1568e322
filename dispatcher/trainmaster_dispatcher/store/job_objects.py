"""Metadata of jobs for the Kubernetes API: names that people give, annotations, managed fields, deletion, and versions.

The version of a job is that of its row: every change of a job writes an event in the same transaction, so that the feed of events has
the versions of all jobs in its order.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.store import label_blocks
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.versions import FROM_LATEST, VERSION_OF_THIS, version_of


class ObjectRow(NamedTuple):
    """Metadata of a job. ``name`` is None for the job's id, ``spec`` for the stored specification, ``kind`` for a Job of this system.

    Of an object of another kind, as which the job was submitted, ``spec`` is the specification as its manifest had it.
    """

    job_id: int
    version: int
    name: str | None
    spec: dict[str, Any] | None
    annotations: dict[str, str] | None
    managed_fields: list[dict[str, Any]] | None
    deleted_at: datetime | None
    kind: str | None = None
    namespace: str | None = None
    """Namespace of its queue; None where the job does not exist."""
    schedule_id: int | None = None
    """The schedule that has made it, if that exists, with its name and the kind of its manifest."""
    schedule: str | None = None
    schedule_kind: str | None = None


NAMESPACE = "coalesce(q.spec->>'namespace', replace(q.path, '/', '-'))"
"""The expression for the namespace of the jobs of the queue ``q``."""


class LeafQueue(NamedTuple):
    """A queue that takes jobs, and the namespace of its jobs."""

    id: int
    path: str
    namespace: str


class NamedJob(NamedTuple):
    """A job whose object has a name, and its queue."""

    job_id: int
    queue: str


class NewObject(NamedTuple):
    """The object of a new job, with the fields of ``ObjectRow``: ``spec``, ``annotations`` and ``managed_fields`` as JSON text."""

    job_id: int
    queue_id: int
    name: str | None
    spec: bytes | None
    annotations: bytes | None
    managed_fields: bytes | None
    kind: str | None = None


async def of_jobs(tx: Transaction, job_ids: Iterable[int]) -> dict[int, ObjectRow]:
    """Return what Kubernetes has of these jobs, for those that exist."""
    rows = await tx.all_of(
        ObjectRow,
        f"""
        SELECT j.id AS job_id, {version_of("j")} AS version, o.name, o.spec, o.annotations, o.managed_fields, o.deleted_at,
               o.kind, {NAMESPACE} AS namespace, a.id AS schedule_id, a.name AS schedule, a.kind AS schedule_kind
        FROM jobs j JOIN queues q ON q.id = j.queue_id LEFT JOIN job_objects o ON o.job_id = j.id
        LEFT JOIN (scheduled_jobs d JOIN schedules a ON a.id = d.schedule_id AND a.deleted_at IS NULL) ON d.job_id = j.id
        {FROM_LATEST}
        WHERE j.id = ANY(:ids)
        """,
        ids=list(job_ids),
    )
    return {row.job_id: row for row in rows}


async def leaf_queues(tx: Transaction, namespace: str | None = None) -> Sequence[LeafQueue]:
    """Return the queues that take jobs, of those with a namespace or of all, by path."""
    return await tx.all_of(
        LeafQueue,
        f"""
        SELECT q.id, q.path, {NAMESPACE} AS namespace FROM queues q
        WHERE (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace)
        AND NOT EXISTS (SELECT 1 FROM queues b WHERE b.parent_id = q.id) ORDER BY q.path
        """,
        namespace=namespace,
    )


async def named(tx: Transaction, namespace: str | None, name: str, by_id: tuple[str, int] | None) -> Sequence[NamedJob]:
    """Return the jobs whose objects have this name, in a namespace or in all; also those whose objects are gone.

    ``by_id``: the name and the key of the job whose id the name is, which is the name of its object if it was given none.
    """
    own_name, key = by_id or ("", -1)
    in_namespace = f"(CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace)"
    return await tx.all_of(
        NamedJob,
        f"""
        SELECT o.job_id, q.path AS queue FROM job_objects o JOIN queues q ON q.id = o.queue_id
        WHERE o.name = :name AND NOT o.freed AND {in_namespace}
        UNION ALL
        SELECT j.id AS job_id, q.path AS queue FROM jobs j JOIN queues q ON q.id = j.queue_id
        WHERE j.id = :key AND j.name = :own_name AND {in_namespace}
        AND NOT EXISTS (SELECT 1 FROM job_objects o WHERE o.job_id = j.id AND o.name IS NOT NULL)
        """,
        name=name,
        namespace=namespace,
        key=key,
        own_name=own_name,
    )


async def taken(tx: Transaction, names: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of these names, each with its queue, that objects have. Names of deleted objects are free from then on."""
    pairs = {"queues": [queue for queue, _ in names], "names": [name for _, name in names]}
    wanted = "SELECT * FROM unnest(CAST(:queues AS int[]), CAST(:names AS text[]))"
    rows = await tx.all(
        f"""
        WITH freed AS (
            UPDATE job_objects o SET freed = true WHERE NOT o.freed AND (o.queue_id, o.name) IN ({wanted})
            AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = o.job_id AND (o.deleted_at IS NULL OR j.ended_at IS NULL))
            RETURNING o.job_id)
        SELECT queue_id, name FROM job_objects
        WHERE NOT freed AND (queue_id, name) IN ({wanted}) AND job_id NOT IN (SELECT job_id FROM freed)
        """,
        **pairs,
    )
    return {(row.queue_id, row.name) for row in rows}


async def insert(tx: Transaction, fresh: Sequence[NewObject]) -> bool:
    """Store the objects of new jobs; return whether all names were free."""
    rows = [
        b'{"job_id":%d,"queue_id":%d,"name":%b,"spec":%b,"annotations":%b,"managed_fields":%b,"kind":%b}'
        % (
            one.job_id,
            one.queue_id,
            dumps(one.name).encode(),
            one.spec or b"null",
            one.annotations or b"null",
            one.managed_fields or b"null",
            dumps(one.kind).encode(),
        )
        for one in fresh
    ]
    stored = await tx.run(
        """
        INSERT INTO job_objects (job_id, queue_id, name, spec, annotations, managed_fields, kind)
        SELECT job_id, queue_id, name, spec, annotations, managed_fields, kind
        FROM jsonb_populate_recordset(CAST(NULL AS job_objects), CAST(:rows AS jsonb)) ON CONFLICT DO NOTHING
        """,
        rows=(b"[" + b",".join(rows) + b"]").decode(),
    )
    return stored == len(fresh)


async def write(
    tx: Transaction,
    job_id: int,
    queue_id: int,
    annotations: dict[str, str] | None,
    managed_fields: list[dict[str, Any]] | None,
    spec: dict[str, Any] | None,
) -> int:
    """Store what Kubernetes has of a job, whose row is locked; return the version of what this transaction writes."""
    stored = await tx.one(
        f"""
        INSERT INTO job_objects (job_id, queue_id, annotations, managed_fields, spec)
        VALUES (:job, :queue, CAST(:annotations AS jsonb), CAST(:managed AS jsonb), CAST(:spec AS jsonb))
        ON CONFLICT (job_id) DO UPDATE SET annotations = excluded.annotations, managed_fields = excluded.managed_fields,
            spec = excluded.spec
        RETURNING {VERSION_OF_THIS} AS version
        """,
        job=job_id,
        queue=queue_id,
        annotations=dumps(annotations) if annotations else None,
        managed=dumps(managed_fields) if managed_fields else None,
        spec=None if spec is None else dumps(spec),
    )
    return int(stored.version)


async def relabel(tx: Transaction, job_id: int, labels: dict[str, str]) -> None:
    """Store the labels of a job whose transition is stored in the same transaction."""
    await tx.run(
        "UPDATE jobs SET labels = CAST(:labels AS jsonb) WHERE id = :job",
        labels=dumps(labels) if labels else None,
        job=job_id,
    )
    await label_blocks.forget_common(tx, job_id)


async def mark_deleted(tx: Transaction, job_id: int, queue_id: int) -> bool:
    """Store that an object is deleted; return whether it was not before."""
    stored = await tx.run(
        """
        INSERT INTO job_objects AS o (job_id, queue_id, deleted_at) VALUES (:job, :queue, now())
        ON CONFLICT (job_id) DO UPDATE SET deleted_at = now() WHERE o.deleted_at IS NULL
        """,
        job=job_id,
        queue=queue_id,
    )
    return stored == 1


async def mark_all_deleted(tx: Transaction, job_ids: Sequence[int]) -> set[int]:
    """Store that the objects of these jobs are deleted; return the jobs whose objects were not before."""
    rows = await tx.all(
        """
        INSERT INTO job_objects AS o (job_id, queue_id, deleted_at)
        SELECT id, queue_id, now() FROM jobs WHERE id = ANY(:ids) ORDER BY id
        ON CONFLICT (job_id) DO UPDATE SET deleted_at = now() WHERE o.deleted_at IS NULL RETURNING o.job_id
        """,
        ids=list(job_ids),
    )
    return {row.job_id for row in rows}


async def restore(tx: Transaction, job_ids: Iterable[int]) -> None:
    """Let the objects of these jobs exist again, which are tried once more: by the jobs' ids, if others may have their names."""
    await tx.run(
        """
        UPDATE job_objects SET deleted_at = NULL, name = CASE WHEN NOT freed THEN name END, freed = false
        WHERE job_id = ANY(:ids)
        """,
        ids=list(job_ids),
    )
