"""Groups of pods that were created one by one, and their pods.

A group is changed only while its queue is locked, as are names of new pods: so no other object gets the name of one meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.job_objects import NAMESPACE
from trainmaster_dispatcher.store.versions import FROM_LATEST, version_of


class LivingGroup(NamedTuple):
    """A group that has no job yet, or whose job has not ended."""

    id: int
    queue: str
    submitter: str
    total: int
    many: int
    job_id: int | None
    job_name: str | None


class GroupedPod(NamedTuple):
    """A pod of a group that exists. ``many`` of the ``total`` pods of the group have been created; all, if it has a job.

    ``role`` and ``member``: those of the job that it is; ``version``: of the group's last change.
    """

    group_id: int
    group: str
    submitter: str
    total: int
    many: int
    job_id: int | None
    queue_id: int
    queue: str
    namespace: str
    name: str
    role: str | None
    member: int | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    spec: dict[str, Any]
    managed_fields: list[dict[str, Any]] | None
    created_at: datetime
    deleted_at: datetime | None
    version: int


class NewGroupedPod(NamedTuple):
    """A pod that is created in a group. ``job_spec``: of the job that it would be by itself."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    managed_fields: Sequence[Mapping[str, Any]]
    job_spec: Mapping[str, Any]


_EXISTS = "(p.deleted_at IS NULL OR EXISTS (SELECT 1 FROM jobs e WHERE e.id = g.job_id AND e.ended_at IS NULL))"
"""Whether the pod ``p`` of the group ``g`` exists: a deleted one does until its job has ended."""
_PODS = f"""
    SELECT p.group_id, g.name AS "group", g.submitter, g.total, g.many, g.job_id, p.queue_id, q.path AS queue,
           {NAMESPACE} AS namespace, p.name, p.role, p.member, p.labels, p.annotations, p.spec,
           p.managed_fields, p.created_at, p.deleted_at,
           {version_of("g")} AS version
    FROM grouped_pods p JOIN pod_groups g ON g.id = p.group_id JOIN queues q ON q.id = p.queue_id {FROM_LATEST}
    """


async def named(tx: Transaction, namespace: str | None, name: str) -> Sequence[GroupedPod]:
    """Return the pods of this name that exist, in a namespace or in all."""
    return await tx.all_of(
        GroupedPod,
        f"{_PODS} WHERE {_EXISTS} AND p.name = :name AND (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace)",
        name=name,
        namespace=namespace,
    )


async def incomplete(tx: Transaction, namespace: str | None) -> Sequence[GroupedPod]:
    """Return the pods of the groups that have no job yet, in a namespace or in all, the newest first."""
    return await tx.all_of(
        GroupedPod,
        f"""{_PODS} WHERE g.job_id IS NULL AND (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace)
        ORDER BY p.group_id DESC, p.created_at DESC, p.name""",
        namespace=namespace,
    )


async def of_jobs(tx: Transaction, job_ids: Iterable[int], *, with_gone: bool = False) -> dict[int, list[GroupedPod]]:
    """Return the pods of those of these jobs that are groups, by job and in the order of members.

    ``with_gone``: also those that were deleted and do not exist any more, as far as their names have no other pods.
    """
    rows = await tx.all_of(
        GroupedPod,
        f"{_PODS} WHERE g.job_id = ANY(:ids) AND (:with_gone OR {_EXISTS}) ORDER BY g.job_id, p.role, p.member",
        ids=list(job_ids),
        with_gone=with_gone,
    )
    found: dict[int, list[GroupedPod]] = {}
    for row in rows:
        found.setdefault(row.job_id or 0, []).append(row)
    return found


async def groups_among(tx: Transaction, job_ids: Iterable[int]) -> set[int]:
    """Return those of these jobs that are groups, also if none of their pods exists any more."""
    rows = await tx.all("SELECT g.job_id FROM pod_groups g WHERE g.job_id = ANY(:ids)", ids=list(job_ids))
    return {row.job_id for row in rows}


async def living(tx: Transaction, namespace: str, name: str) -> Sequence[LivingGroup]:
    """Return the groups of this name in a namespace that have no job yet, or whose job has not ended."""
    return await tx.all_of(
        LivingGroup,
        f"""
        SELECT g.id, q.path AS queue, g.submitter, g.total, g.many, g.job_id, j.name AS job_name
        FROM pod_groups g JOIN queues q ON q.id = g.queue_id LEFT JOIN jobs j ON j.id = g.job_id
        WHERE g.name = :name AND {NAMESPACE} = :namespace AND (g.job_id IS NULL OR j.ended_at IS NULL)
        """,
        name=name,
        namespace=namespace,
    )


async def are_free(tx: Transaction, names: Sequence[tuple[int, str]]) -> bool:
    """Return whether neither an object of a job, nor a pod of a group, has or had one of these names, each with its queue.

    It reads only, in one statement: new names are nearly always free.
    """
    wanted = "SELECT * FROM unnest(CAST(:queues AS int[]), CAST(:names AS text[]))"
    row = await tx.one(
        f"""
        SELECT EXISTS (SELECT 1 FROM job_objects WHERE NOT freed AND (queue_id, name) IN ({wanted})) OR
            EXISTS (SELECT 1 FROM grouped_pods WHERE (queue_id, name) IN ({wanted})) AS is_any
        """,
        queues=[queue for queue, _ in names],
        names=[name for _, name in names],
    )
    return not row.is_any


async def taken(tx: Transaction, names: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of these names, each with its queue, that pods of groups have; forget the pods among them that are gone."""
    pairs = {"queues": [queue for queue, _ in names], "names": [name for _, name in names]}
    wanted = "SELECT * FROM unnest(CAST(:queues AS int[]), CAST(:names AS text[]))"
    rows = await tx.all(
        f"""
        WITH gone AS (
            DELETE FROM grouped_pods p USING pod_groups g
            WHERE g.id = p.group_id AND (p.queue_id, p.name) IN ({wanted}) AND NOT {_EXISTS}
            RETURNING p.group_id, p.name)
        SELECT p.queue_id, p.name FROM grouped_pods p
        WHERE (p.queue_id, p.name) IN ({wanted}) AND (p.group_id, p.name) NOT IN (SELECT group_id, name FROM gone)
        """,
        **pairs,
    )
    return {(row.queue_id, row.name) for row in rows}


async def many_waiting(tx: Transaction, queue_id: int) -> int:
    """Return the number of pods of a queue's incomplete groups."""
    row = await tx.one(
        "SELECT coalesce(sum(many), 0) AS many FROM pod_groups WHERE queue_id = :queue AND job_id IS NULL",
        queue=queue_id,
    )
    return int(row.many)


async def create(tx: Transaction, queue_id: int, name: str, submitter: str, total: int) -> int:
    """Store a new group without pods; return its key."""
    row = await tx.one(
        """
        INSERT INTO pod_groups (queue_id, name, submitter, total) VALUES (:queue, :name, :submitter, :total) RETURNING id
        """,
        queue=queue_id,
        name=name,
        submitter=submitter,
        total=total,
    )
    return int(row.id)


async def job_specs(tx: Transaction, group_id: int) -> dict[str, dict[str, Any]]:
    """Return the specifications of the jobs that the pods of a group would be by themselves, by name."""
    rows = await tx.all("SELECT name, job_spec FROM grouped_pods WHERE group_id = :id", id=group_id)
    return {row.name: row.job_spec for row in rows}


async def add(tx: Transaction, group_id: int, queue_id: int, pod: NewGroupedPod) -> None:
    """Store a pod of a group."""
    await tx.run(
        """
        INSERT INTO grouped_pods (group_id, queue_id, name, labels, annotations, spec, managed_fields, job_spec)
        VALUES (:id, :queue, :name, CAST(:labels AS jsonb), CAST(:annotations AS jsonb), CAST(:spec AS jsonb),
                CAST(:managed AS jsonb), CAST(:job_spec AS jsonb))
        """,
        id=group_id,
        queue=queue_id,
        name=pod.name,
        labels=dumps(dict(pod.labels)),
        annotations=dumps(dict(pod.annotations)),
        spec=dumps(dict(pod.spec)),
        managed=dumps(list(pod.managed_fields)),
        job_spec=dumps(dict(pod.job_spec)),
    )
    await tx.run("UPDATE pod_groups SET many = many + 1 WHERE id = :id", id=group_id)


async def complete(tx: Transaction, group_id: int, job_id: int, members: Mapping[str, tuple[str, int]]) -> None:
    """Store which job a group is, and the role and index of the member that each pod is, by name."""
    await tx.run("UPDATE pod_groups SET job_id = :job WHERE id = :id", job=job_id, id=group_id)
    await tx.run(
        """
        UPDATE grouped_pods p SET role = m.role, member = m.index
        FROM unnest(CAST(:names AS text[]), CAST(:roles AS text[]), CAST(:indexes AS int[])) AS m (name, role, index)
        WHERE p.group_id = :id AND p.name = m.name
        """,
        id=group_id,
        names=list(members),
        roles=[role for role, _ in members.values()],
        indexes=[index for _, index in members.values()],
    )


async def take_out(tx: Transaction, group_id: int, name: str) -> None:
    """Remove a pod of a group that has no job; the group, too, if it was the last one."""
    await tx.run("DELETE FROM grouped_pods WHERE group_id = :id AND name = :name", id=group_id, name=name)
    await tx.run("UPDATE pod_groups SET many = many - 1 WHERE id = :id", id=group_id)
    await tx.run("DELETE FROM pod_groups WHERE id = :id AND many = 0", id=group_id)


async def mark_deleted(tx: Transaction, group_id: int, name: str) -> bool:
    """Store that a pod of a group with a job is deleted; return whether no other pod of the group is left."""
    await tx.run(
        "UPDATE grouped_pods SET deleted_at = coalesce(deleted_at, now()) WHERE group_id = :id AND name = :name",
        id=group_id,
        name=name,
    )
    row = await tx.one(
        "SELECT NOT EXISTS (SELECT 1 FROM grouped_pods WHERE group_id = :id AND deleted_at IS NULL) AS last",
        id=group_id,
    )
    return bool(row.last)


async def remove(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Remove the groups of jobs that are removed."""
    await tx.run(
        "DELETE FROM grouped_pods p USING pod_groups g WHERE g.id = p.group_id AND g.job_id = ANY(:ids)",
        ids=list(job_ids),
    )
    await tx.run("DELETE FROM pod_groups WHERE job_id = ANY(:ids)", ids=list(job_ids))
