"""Jobs that wait for others: conditions on predecessors, and of each job how many of its conditions are open.

    end of a predecessor ──▶ conditions on it ──▶ counts of each job that waits for it ──▶ jobs whose conditions are decided

The conditions follow a predecessor in the transaction that changes it. A submission locks the predecessors of its jobs until its
conditions are stored, so that none ends unnoticed. Conditions on groups have a table of their own; the leader lets them follow a group
whose state it changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.states import Condition, ConditionState, DependencyFailure, GroupState, JobState
from trainmaster_dispatcher.domain.dependencies import parts_by_cluster, verdict
from trainmaster_dispatcher.domain.groups import verdict_on_group
from trainmaster_dispatcher.store.database import Transaction, dumps


class PredecessorRow(NamedTuple):
    """A job that others wait for."""

    id: int
    name: str
    state: JobState
    has_started: bool
    queue: str
    elements: int | None = None
    """Number of elements of an array."""


class NewDependency(NamedTuple):
    """A condition of a new job on another."""

    job_id: int
    on_job_id: int
    condition: Condition
    verdict: ConditionState


class NewGroupDependency(NamedTuple):
    """A condition of a new job on a group."""

    job_id: int
    group_id: int
    condition: Condition
    verdict: ConditionState


class NewWait(NamedTuple):
    """A new job with conditions. ``waiting``: the number of those that are not met."""

    job_id: int
    waiting: int
    on_failure: DependencyFailure


class Decided(NamedTuple):
    """A job whose conditions are all met, or of which one can no longer be met."""

    job_id: int
    never: int
    on_failure: DependencyFailure


class OpenCondition(NamedTuple):
    """The first of a job's conditions that are not met. ``name`` and ``state`` are those of the predecessor, None once it is removed;
    ``many``: the number of such conditions. ``on_job_id`` is None for a condition on a group.
    """

    job_id: int
    on_job_id: int | None
    name: str | None
    state: JobState | GroupState | None
    condition: Condition
    verdict: ConditionState
    many: int


class _PredecessorsOn(NamedTuple):
    """The number of a job's predecessors whose last run was on a cluster."""

    job_id: int
    cluster_id: int
    many: int


_MOST_OF_ARRAY = 1000
"""The most elements of an array that are looked at for where it has run."""
_LAST_RUN = """
    CROSS JOIN LATERAL (
        SELECT r.cluster_id FROM runs r WHERE r.job_id = p.id AND (r.started_at IS NOT NULL OR r.state = 'succeeded')
        ORDER BY r.attempt DESC LIMIT 1) last
"""
"""The cluster of the last run of a job ``p`` that has started."""


async def labelled(tx: Transaction, labels: dict[str, str], queue_ids: Sequence[int], limit: int) -> list[int]:
    """Return the keys of jobs with all of these labels in some queues, the oldest first; not of ended ones that are deleted."""
    rows = await tx.all(
        """
        SELECT j.id FROM jobs j
        WHERE j.labels @> CAST(:labels AS jsonb) AND j.queue_id = ANY(:queues)
          AND (j.ended_at IS NULL OR NOT EXISTS (SELECT 1 FROM job_objects g WHERE g.job_id = j.id AND g.deleted_at IS NOT NULL))
        ORDER BY j.id LIMIT :limit
        """,
        labels=dumps(labels),
        queues=list(queue_ids),
        limit=limit,
    )
    return [row.id for row in rows]


async def by_object_name(tx: Transaction, queue: str, name: str) -> int | None:
    """Return the key of the job whose object in the Kubernetes API has this name in a queue; None if there is none."""
    row = await tx.first(
        """
        SELECT o.job_id FROM job_objects o JOIN queues q ON q.id = o.queue_id
        WHERE q.path = :queue AND o.name = :name AND NOT o.freed
        """,
        queue=queue,
        name=name,
    )
    return None if row is None else int(row.job_id)


async def hold_predecessors(tx: Transaction, ids: Iterable[int]) -> dict[int, PredecessorRow]:
    """Return these jobs, by key; they do not change until the transaction ends."""
    rows = await tx.all(
        """
        SELECT j.id, j.name, j.state, j.started_at IS NOT NULL AS has_started, q.path AS queue, j.elements
        FROM jobs j JOIN queues q ON q.id = j.queue_id WHERE j.id = ANY(:ids) ORDER BY j.id FOR SHARE OF j
        """,
        ids=sorted(set(ids)),
    )
    return {row.id: PredecessorRow(*row)._replace(state=JobState(row.state)) for row in rows}


async def insert(
    tx: Transaction,
    dependencies: Sequence[NewDependency],
    waits: Sequence[NewWait],
    on_groups: Sequence[NewGroupDependency] = (),
) -> None:
    lines = [b"%d\t%d\t%b\t%b\n" % (a, b, c.value.encode(), v.value.encode()) for a, b, c, v in dependencies]
    await tx.copy("COPY job_dependencies (job_id, on_job_id, condition, verdict) FROM STDIN", lines)
    if on_groups:
        lines = [b"%d\t%d\t%b\t%b\n" % (a, b, c.value.encode(), v.value.encode()) for a, b, c, v in on_groups]
        await tx.copy("COPY group_dependencies (job_id, group_id, condition, verdict) FROM STDIN", lines)
    lines = [b"%d\t%d\t%b\n" % (one.job_id, one.waiting, one.on_failure.value.encode()) for one in waits]
    await tx.copy("COPY job_waits (job_id, waiting, on_failure) FROM STDIN", lines)


async def _note_clusters(tx: Transaction, ids: Sequence[int]) -> None:
    """Store where the predecessors of these jobs have run. The rows of the jobs are locked."""
    rows = await tx.all_of(
        _PredecessorsOn,
        f"""
        SELECT p.job_id, last.cluster_id, count(*) AS many
        FROM (SELECT DISTINCT d.job_id, coalesce(e.job_id, d.on_job_id) AS id
              FROM job_dependencies d JOIN jobs j ON j.id = d.job_id
              LEFT JOIN LATERAL (SELECT job_id FROM element_jobs WHERE array_id = d.on_job_id LIMIT {_MOST_OF_ARRAY}) e ON true
              WHERE d.job_id = ANY(:ids) AND j.ended_at IS NULL) p
        {_LAST_RUN}
        GROUP BY p.job_id, last.cluster_id
        """,
        ids=list(ids),
    )
    await _store_clusters(tx, rows)


async def _store_clusters(tx: Transaction, rows: Sequence[_PredecessorsOn]) -> None:
    counts: dict[int, dict[int, int]] = {}
    for row in rows:
        counts.setdefault(row.job_id, {})[row.cluster_id] = row.many
    if counts:
        await tx.run(
            """
            UPDATE jobs SET predecessor_clusters = n.parts::jsonb
            FROM unnest(CAST(:ids AS bigint[]), CAST(:parts AS text[])) AS n(id, parts) WHERE jobs.id = n.id
            """,
            ids=list(counts),
            parts=[_as_json(by_cluster) for by_cluster in counts.values()],
        )


def _as_json(counts: Mapping[int, int]) -> str:
    """Return the parts of predecessors by cluster as they are stored."""
    return dumps({str(cluster): part for cluster, part in parts_by_cluster(counts).items()})


async def note_clusters_of_step(tx: Transaction, workflow_id: int, steps: Sequence[int], first: int, many: int) -> None:
    """Store for ``many`` new jobs of a workflow, the first with the key ``first``, where the jobs of these steps have run."""
    rows = await tx.all_of(
        _PredecessorsOn,
        f"""
        SELECT CAST(:first AS bigint) AS job_id, last.cluster_id, count(*) AS many
        FROM (SELECT job_id AS id FROM workflow_jobs WHERE workflow_id = :workflow AND step = ANY(CAST(:steps AS int[]))) p
        {_LAST_RUN}
        GROUP BY last.cluster_id
        """,
        workflow=workflow_id,
        steps=list(steps),
        first=first,
    )
    if rows:
        await tx.run(
            "UPDATE jobs SET predecessor_clusters = CAST(:parts AS jsonb) WHERE id BETWEEN :first AND :last",
            parts=_as_json({row.cluster_id: row.many for row in rows}),
            first=first,
            last=first + many - 1,
        )


async def note_clusters_of_elements(tx: Transaction, array: int, first: int, elements: Sequence[int]) -> None:
    """Store for the new jobs of an array's elements, the first with the key ``first``, where those of other arrays have run that they
    waited for; or where what the array as a whole waited for has run.
    """
    rows = await tx.all_of(
        _PredecessorsOn,
        f"""
        SELECT p.job_id, last.cluster_id, count(*) AS many
        FROM (SELECT :first + n.place - 1 AS job_id, coalesce(e.job_id, a.on_job_id) AS id
              FROM unnest(CAST(:elements AS int[])) WITH ORDINALITY AS n(element, place)
              JOIN array_predecessors a ON a.job_id = :array
              LEFT JOIN element_jobs e ON e.array_id = a.on_job_id AND e.element = n.element) p
        {_LAST_RUN}
        GROUP BY p.job_id, last.cluster_id
        """,
        array=array,
        first=first,
        elements=list(elements),
    )
    await tx.run(
        """
        UPDATE jobs SET predecessor_clusters = a.predecessor_clusters FROM jobs a
        WHERE a.id = :array AND a.predecessor_clusters IS NOT NULL AND jobs.id BETWEEN :first AND :last
        """,
        array=array,
        first=first,
        last=first + len(elements) - 1,
    )
    await _store_clusters(tx, rows)


async def follow(tx: Transaction, ids: Sequence[int], decided: Sequence[int]) -> None:
    """Let the conditions on jobs follow the states that these got in this transaction; for jobs that wait for others no longer, forget
    the counts, and note where the others have run. The rows of all these jobs are locked.
    """
    changed = await _changed(tx, ids) if ids else []
    if not changed and not decided:
        return
    # In one order and at once, so that transactions that change counts of the same jobs wait for each other and do not deadlock.
    await tx.all(
        "SELECT job_id FROM job_waits WHERE job_id = ANY(:ids) ORDER BY job_id FOR UPDATE",
        ids=sorted({*decided, *(row["job"] for row in changed)}),
    )
    if decided:
        await tx.run("DELETE FROM job_waits WHERE job_id = ANY(:ids)", ids=list(decided))
        await _note_clusters(tx, decided)
    if changed:
        await _count(tx, changed)


async def _changed(tx: Transaction, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the conditions on these jobs whose state has changed, and wake the workflows and the arrays of the jobs: in the same
    statement, as each end of a job comes here.
    """
    rows = await tx.all(
        """
        WITH woken AS (
            INSERT INTO workflow_wakes (workflow_id) SELECT DISTINCT workflow_id FROM workflow_jobs WHERE job_id = ANY(:ids)
        ), arrays_woken AS (
            INSERT INTO array_wakes (array_id)
            SELECT array_id FROM element_jobs WHERE job_id = ANY(:ids)
            UNION SELECT job_id FROM array_predecessors WHERE on_job_id = ANY(:ids)
        )
        SELECT d.job_id, d.on_job_id, d.condition, d.verdict, j.state, j.started_at IS NOT NULL AS has_started
        FROM job_dependencies d JOIN jobs j ON j.id = d.on_job_id
        WHERE d.on_job_id = ANY(:ids) AND d.verdict <> 'met'
        """,
        ids=list(ids),
    )
    return [
        {"job": row.job_id, "on": row.on_job_id, "condition": row.condition, "before": row.verdict, "after": after}
        for row in rows
        if (after := verdict(Condition(row.condition), JobState(row.state), has_started=row.has_started)) != row.verdict
    ]


async def follow_groups(tx: Transaction, states: Mapping[int, GroupState]) -> None:
    """Let the conditions on groups, whose rows are locked, follow the states that these got in this transaction."""
    rows = await tx.all(
        "SELECT job_id, group_id, condition, verdict FROM group_dependencies WHERE group_id = ANY(:ids) AND verdict <> 'met'",
        ids=list(states),
    )
    changed = [
        {"job": row.job_id, "on": row.group_id, "condition": row.condition, "before": row.verdict, "after": after}
        for row in rows
        if (after := verdict_on_group(Condition(row.condition), states[row.group_id])) != row.verdict
    ]
    if changed:
        await tx.all(
            "SELECT job_id FROM job_waits WHERE job_id = ANY(:ids) ORDER BY job_id FOR UPDATE",
            ids=sorted({row["job"] for row in changed}),
        )
        await _count(tx, changed, "group_dependencies", "group_id")


async def _count(
    tx: Transaction, changed: Sequence[dict[str, Any]], table: str = "job_dependencies", on: str = "on_job_id"
) -> None:
    await tx.run(
        f"""
        WITH n AS MATERIALIZED (
            SELECT * FROM json_to_recordset(CAST(:rows AS json))
            AS n("job" bigint, "on" bigint, condition text, before text, after text)
        ), updated AS (
            UPDATE {table} d SET verdict = n.after
            FROM n WHERE d.job_id = n.job AND d.{on} = n.on AND d.condition = n.condition
        ), sums AS (
            SELECT job, count(*) FILTER (WHERE after = 'waiting') - count(*) FILTER (WHERE before = 'waiting') AS waiting,
                   count(*) FILTER (WHERE after = 'never') - count(*) FILTER (WHERE before = 'never') AS never
            FROM n GROUP BY job
        )
        UPDATE job_waits w SET waiting = w.waiting + s.waiting, never = w.never + s.never,
            settled = w.settled AND w.never + s.never > 0
        FROM sums s WHERE w.job_id = s.job
        """,
        rows=dumps(changed),
    )


async def decided(tx: Transaction, limit: int) -> list[int]:
    """Return keys of jobs that are held for conditions that are decided."""
    rows = await tx.all(
        """
        SELECT w.job_id FROM job_waits w JOIN jobs j ON j.id = w.job_id
        WHERE NOT w.settled AND (w.waiting = 0 OR w.never > 0) AND j.hold_cause = 'dependency' ORDER BY w.job_id LIMIT :limit
        """,
        limit=limit,
    )
    return [row.job_id for row in rows]


async def decisions(tx: Transaction, ids: Sequence[int]) -> dict[int, Decided]:
    """Return those of these jobs whose conditions are decided. That all are met is for good; that one cannot be met may change while
    it is read, by a retry of the predecessor.
    """
    rows = await tx.all(
        """
        SELECT job_id, never, on_failure FROM job_waits
        WHERE job_id = ANY(:ids) AND NOT settled AND (waiting = 0 OR never > 0)
        """,
        ids=list(ids),
    )
    return {row.job_id: Decided(row.job_id, row.never, DependencyFailure(row.on_failure)) for row in rows}


async def settle(tx: Transaction, ids: Sequence[int]) -> None:
    """Mark jobs that stay held although a condition can no longer be met, until their conditions change."""
    await tx.run("UPDATE job_waits SET settled = true WHERE job_id = ANY(:ids) AND never > 0", ids=list(ids))


async def first_open(tx: Transaction, ids: Sequence[int]) -> dict[int, OpenCondition]:
    """Return, by job, the first condition that is not met: one that can no longer be met before one that is open."""
    rows = await tx.all(
        """
        SELECT * FROM (
            SELECT d.*, count(*) OVER (PARTITION BY d.job_id) AS many,
                   row_number() OVER (PARTITION BY d.job_id ORDER BY d.verdict = 'waiting', d.on_job_id, d.name) AS place
            FROM (SELECT d.job_id, d.on_job_id, j.name, j.state::text AS state, d.condition, d.verdict
                  FROM job_dependencies d LEFT JOIN jobs j ON j.id = d.on_job_id WHERE d.job_id = ANY(:ids) AND d.verdict <> 'met'
                  UNION ALL
                  SELECT d.job_id, NULL, g.name, g.state, d.condition, d.verdict
                  FROM group_dependencies d JOIN job_groups g ON g.id = d.group_id
                  WHERE d.job_id = ANY(:ids) AND d.verdict <> 'met') d
        ) o WHERE place = 1
        """,
        ids=list(ids),
    )
    return {
        row.job_id: OpenCondition(
            row.job_id,
            row.on_job_id,
            row.name,
            _state_of(row.on_job_id, row.state),
            Condition(row.condition),
            ConditionState(row.verdict),
            row.many,
        )
        for row in rows
    }


def _state_of(on_job_id: int | None, state: str | None) -> JobState | GroupState | None:
    if state is None:
        return None
    return GroupState(state) if on_job_id is None else JobState(state)


class ShownGroupCondition(NamedTuple):
    """A condition on a group as it is shown."""

    name: str
    queue: str
    state: GroupState
    condition: Condition
    verdict: ConditionState


async def of_job_on_groups(
    tx: Transaction, key: int, queue_ids: Sequence[int] | None, limit: int
) -> list[ShownGroupCondition]:
    """Return the conditions of a job on groups of some queues, in the order of ``of_job``."""
    rows = await tx.all(
        """
        SELECT g.name, q.path AS queue, g.state, d.condition, d.verdict
        FROM group_dependencies d JOIN job_groups g ON g.id = d.group_id JOIN queues q ON q.id = g.queue_id
        WHERE d.job_id = :key AND (CAST(:queues AS int[]) IS NULL OR g.queue_id = ANY(CAST(:queues AS int[])))
        ORDER BY array_position(ARRAY['never', 'waiting', 'met'], d.verdict), q.path, g.name LIMIT :limit
        """,
        key=key,
        queues=None if queue_ids is None else list(queue_ids),
        limit=limit,
    )
    return [
        ShownGroupCondition(
            row.name, row.queue, GroupState(row.state), Condition(row.condition), ConditionState(row.verdict)
        )
        for row in rows
    ]


async def awaited_groups(tx: Transaction, group_ids: Iterable[int]) -> set[int]:
    """Return those of these groups that unfinished jobs wait for."""
    rows = await tx.all(
        """
        SELECT DISTINCT d.group_id FROM group_dependencies d JOIN jobs j ON j.id = d.job_id
        WHERE d.group_id = ANY(:ids) AND d.verdict = 'waiting' AND j.awaits_jobs AND j.ended_at IS NULL
        """,
        ids=sorted(set(group_ids)),
    )
    return {row.group_id for row in rows}


async def leads_to_group(tx: Transaction, job_ids: Iterable[int], group_ids: Iterable[int], target: int) -> bool:
    """Return whether one of these jobs, or a job of one of these groups, waits for the group ``target``, itself or through others."""
    row = await tx.one(
        """
        WITH RECURSIVE reached (job_id, group_id) AS (
            SELECT CAST(id AS bigint), CAST(NULL AS bigint) FROM unnest(CAST(:jobs AS bigint[])) AS id
            UNION SELECT NULL, id FROM unnest(CAST(:groups AS bigint[])) AS id
            UNION SELECT n.job_id, n.group_id FROM reached r CROSS JOIN LATERAL (
                SELECT d.on_job_id AS job_id, NULL::bigint AS group_id FROM job_dependencies d JOIN jobs w ON w.id = d.job_id
                WHERE d.job_id = r.job_id AND d.verdict = 'waiting' AND w.awaits_jobs
                UNION ALL
                SELECT NULL, d.group_id FROM group_dependencies d JOIN jobs w ON w.id = d.job_id
                WHERE d.job_id = r.job_id AND d.verdict = 'waiting' AND w.awaits_jobs
                UNION ALL
                SELECT j.id, NULL FROM jobs j WHERE j.group_id = r.group_id AND j.ended_at IS NULL AND j.awaits_jobs
            ) n
        )
        SELECT EXISTS (SELECT 1 FROM reached WHERE group_id = :target) AS found
        """,
        jobs=sorted(set(job_ids)),
        groups=sorted(set(group_ids)),
        target=target,
    )
    return bool(row.found)


class ShownCondition(NamedTuple):
    """A condition as it is shown: with the other job, if that is not removed. ``many``: the number of such conditions."""

    key: int
    name: str
    state: JobState
    condition: Condition
    verdict: ConditionState
    many: int


async def of_job(tx: Transaction, key: int, queue_ids: Sequence[int] | None, limit: int) -> list[ShownCondition]:
    """Return the conditions of a job on others of some queues: those that can no longer be met first, then those that are open.

    ``queue_ids`` None: of all queues.
    """
    return await _shown(tx, "job_id", "on_job_id", key, queue_ids, limit)


async def on_job(tx: Transaction, key: int, queue_ids: Sequence[int] | None, limit: int) -> list[ShownCondition]:
    """Return the conditions of other jobs, of some queues, on this one, in the same order."""
    return await _shown(tx, "on_job_id", "job_id", key, queue_ids, limit)


async def _shown(
    tx: Transaction, of: str, other: str, key: int, queue_ids: Sequence[int] | None, limit: int
) -> list[ShownCondition]:
    rows = await tx.all(
        f"""
        SELECT d.{other} AS key, j.name, j.state, d.condition, d.verdict, count(*) OVER () AS many
        FROM job_dependencies d JOIN jobs j ON j.id = d.{other}
        WHERE d.{of} = :key AND (CAST(:queues AS int[]) IS NULL OR j.queue_id = ANY(CAST(:queues AS int[])))
        ORDER BY array_position(ARRAY['never', 'waiting', 'met'], d.verdict), d.{other} LIMIT :limit
        """,
        key=key,
        queues=None if queue_ids is None else list(queue_ids),
        limit=limit,
    )
    return [
        ShownCondition(
            row.key,
            row.name,
            JobState(row.state),
            Condition(row.condition),
            ConditionState(row.verdict),
            row.many,
        )
        for row in rows
    ]
