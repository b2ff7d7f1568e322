"""Workflows, their steps, and the jobs of these.

    end or start of a job ──▶ a row of ``workflow_wakes``, in the transaction of the change ──▶ the leader deals with the workflow

Whoever changes a workflow locks its row first, and only then rows of jobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trainmaster.protocol.states import JobState, StepState, WorkflowState
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.job_objects import NAMESPACE
from trainmaster_dispatcher.store.versions import VERSION_BITS

_NAMES: Final = """(
    SELECT jsonb_build_object('steps', jsonb_agg(jsonb_build_object('name', s.one -> 'name') ORDER BY s.place))
    FROM jsonb_array_elements(w.spec -> 'steps') WITH ORDINALITY AS s(one, place))"""
"""The specification with nothing but the names of its steps."""
VERSION: Final = (
    f"((SELECT store_epoch::bigint << {VERSION_BITS} FROM installation) + coalesce(w.xid::text::bigint, 1))"
)
"""The expression for the version of the workflow ``w``; that of one which no transaction has written since there are versions is 1."""


def selected(spec: str = "w.spec") -> str:
    """Return the begin of a statement that reads workflows; ``spec``: the expression for the specification."""
    return f"""
    SELECT w.id, w.queue_id, q.path AS queue, w.name, w.api_key_id, k.name AS submitted_by, t.name AS submitted_through,
    {spec} AS spec, w.labels, w.state, w.wish, w.attempt, w.created_at, w.ended_at, {VERSION} AS version,
    {NAMESPACE} AS namespace, w.object_name, w.annotations, w.managed_fields, w.deleted_at,
    coalesce(w.created_xid::text::bigint, 0) AS created_xid
    FROM workflows w JOIN queues q ON q.id = w.queue_id LEFT JOIN api_keys k ON k.id = w.api_key_id
    LEFT JOIN api_keys t ON t.id = k.through_id
    """


class WorkflowRow(NamedTuple):
    """A workflow as it is stored. ``spec``: as it was written. ``object_name``: of its object, None where that is named by its id;
    ``deleted_at``: when its object was deleted, which exists until the workflow has ended.
    """

    id: int
    queue_id: int
    queue: str
    name: str
    api_key_id: int
    submitted_by: str | None
    submitted_through: str | None
    spec: dict[str, Any]
    labels: dict[str, str] | None
    state: WorkflowState
    wish: str | None
    attempt: int
    created_at: datetime
    ended_at: datetime | None
    version: int
    namespace: str
    object_name: str | None
    annotations: dict[str, str] | None
    managed_fields: list[dict[str, Any]] | None
    deleted_at: datetime | None
    created_xid: int

    @property
    def is_gone(self) -> bool:
        """Return whether its object exists no more."""
        return self.deleted_at is not None and self.ended_at is not None


class StepRow(NamedTuple):
    """A step as it is stored; see the table."""

    workflow_id: int
    step: int
    state: StepState
    message: str
    total: int | None
    started_at: datetime | None
    ended_at: datetime | None


class StepCount(NamedTuple):
    """Jobs of a step in one state."""

    workflow_id: int
    step: int
    state: JobState
    many: int
    has_started: bool


class StepJob(NamedTuple):
    """A job of a step. ``result``: how the latest run of a failed one ended, where that is read."""

    job_id: int
    name: str
    state: JobState
    step: int
    element: int
    message: str
    workflow_id: int
    result: dict[str, Any] | None = None


class ObjectFields(NamedTuple):
    """Fields of a workflow's object that its specification does not have. ``name``: None for the id of the workflow."""

    name: str | None = None
    annotations: Mapping[str, str] = MappingProxyType({})
    managed_fields: Sequence[Mapping[str, Any]] = ()


NO_OBJECT_FIELDS: Final = ObjectFields()


class NewWorkflow(NamedTuple):
    """A workflow to store. ``steps``: the number of its steps."""

    queue_id: int
    name: str
    api_key_id: int
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    steps: int
    fields: ObjectFields


def row_of(row: Any) -> WorkflowRow:
    return WorkflowRow(*row)._replace(state=WorkflowState(row.state))


async def insert(tx: Transaction, new: NewWorkflow) -> int | None:
    """Store a workflow with its steps; return its key. None where the name of its object is that of another one."""
    row = await tx.first(
        """
        WITH w AS (
            INSERT INTO workflows (queue_id, name, api_key_id, spec, labels, object_name, annotations, managed_fields)
            VALUES (:queue_id, :name, :api_key_id, CAST(:spec AS jsonb), CAST(:labels AS jsonb), :object_name,
                    CAST(:annotations AS jsonb), CAST(:managed_fields AS jsonb))
            ON CONFLICT (object_name, queue_id) WHERE object_name IS NOT NULL AND (deleted_at IS NULL OR ended_at IS NULL) DO NOTHING
            RETURNING id
        ), s AS (
            INSERT INTO workflow_steps (workflow_id, step) SELECT w.id, n FROM w, generate_series(0, :steps - 1) AS n
        ), k AS (INSERT INTO workflow_wakes (workflow_id) SELECT id FROM w)
        SELECT id FROM w
        """,
        queue_id=new.queue_id,
        name=new.name,
        api_key_id=new.api_key_id,
        spec=dumps(new.spec),
        labels=dumps(new.labels) if new.labels else None,
        steps=new.steps,
        object_name=new.fields.name,
        annotations=dumps(new.fields.annotations) if new.fields.annotations else None,
        managed_fields=dumps(new.fields.managed_fields) if new.fields.managed_fields else None,
    )
    return None if row is None else int(row.id)


async def find(tx: Transaction, key: int, *, locks: bool = False) -> WorkflowRow | None:
    """Return a workflow by its key, locked with ``locks``; None if there is none."""
    row = await tx.first(
        f"{selected()} WHERE w.id = :key {'FOR UPDATE OF w' if locks else ''}",
        key=key,
    )
    return None if row is None else row_of(row)


async def find_free(tx: Transaction, key: int) -> WorkflowRow | None:
    """Lock and return a workflow that runs; None if there is none, or if another transaction has locked it, which wakes it again."""
    row = await tx.first(f"{selected()} WHERE w.id = :key AND w.ended_at IS NULL FOR UPDATE OF w SKIP LOCKED", key=key)
    return None if row is None else row_of(row)


async def has_ended(tx: Transaction, key: int) -> bool:
    """Return whether a workflow has ended, or was removed."""
    return await tx.first("SELECT 1 FROM workflows WHERE id = :key AND ended_at IS NULL", key=key) is None


async def count_running(tx: Transaction, api_key_id: int, limit: int) -> int:
    """Return how many workflows of an API key run, at most ``limit``."""
    row = await tx.one(
        """
        SELECT count(*) AS many FROM (
            SELECT 1 FROM workflows WHERE api_key_id = :key AND ended_at IS NULL LIMIT :limit) AS o
        """,
        key=api_key_id,
        limit=limit,
    )
    return int(row.many)


async def page(
    tx: Transaction,
    queue_ids: Sequence[int] | None,
    states: Sequence[WorkflowState],
    before: int | None,
    limit: int,
) -> list[WorkflowRow]:
    """Return a page of workflows, newest first; of these queues, or of all with None, and in these states, or in all with none.

    Their specifications have nothing but the names of the steps.
    """
    rows = await tx.all(
        f"""
        {selected(_NAMES)}
        WHERE (CAST(:queues AS int[]) IS NULL OR w.queue_id = ANY(CAST(:queues AS int[])))
        AND (:before = 0 OR w.id < :before) AND (cardinality(CAST(:states AS text[])) = 0 OR w.state = ANY(CAST(:states AS text[])))
        ORDER BY w.id DESC LIMIT :limit
        """,
        queues=None if queue_ids is None else list(queue_ids),
        before=before or 0,
        states=[one.value for one in states],
        limit=limit,
    )
    return [row_of(row) for row in rows]


async def steps_of(tx: Transaction, keys: Iterable[int]) -> list[StepRow]:
    """Return the steps of these workflows, in their order."""
    rows = await tx.all(
        """
        SELECT workflow_id, step, state, message, total, started_at, ended_at FROM workflow_steps
        WHERE workflow_id = ANY(:keys) ORDER BY workflow_id, step
        """,
        keys=sorted(set(keys)),
    )
    return [StepRow(*row)._replace(state=StepState(row.state)) for row in rows]


async def items_of(tx: Transaction, key: int, step: int) -> list[object] | None:
    """Return the elements of a step that was started; None for one with one job."""
    row = await tx.first(
        "SELECT items FROM workflow_steps WHERE workflow_id = :key AND step = :step", key=key, step=step
    )
    return None if row is None else row.items


class Places(NamedTuple):
    """The number of jobs of a step, and the number of its elements up to the last one that has a job."""

    step: int
    many: int
    reached: int


async def places(tx: Transaction, key: int) -> dict[int, Places]:
    """Return how the jobs of a workflow's steps lie, by step; jobs that were removed have no place any more."""
    rows = await tx.all(
        """
        SELECT step, count(*) AS many, max(element) + 1 AS reached FROM workflow_jobs WHERE workflow_id = :key GROUP BY step
        """,
        key=key,
    )
    return {row.step: Places(*row) for row in rows}


async def counts(tx: Transaction, keys: Iterable[int]) -> list[StepCount]:
    """Return the numbers of jobs of the steps of these workflows, by state."""
    rows = await tx.all(
        """
        SELECT w.workflow_id, w.step, j.state, count(*) AS many, bool_or(j.started_at IS NOT NULL) AS has_started
        FROM workflow_jobs w JOIN jobs j ON j.id = w.job_id WHERE w.workflow_id = ANY(:keys)
        GROUP BY w.workflow_id, w.step, j.state ORDER BY w.workflow_id, w.step, j.state
        """,
        keys=sorted(set(keys)),
    )
    return [StepCount(*row)._replace(state=JobState(row.state)) for row in rows]


async def jobs_of(tx: Transaction, key: int, step: int) -> list[StepJob]:
    """Return the jobs of a step by element."""
    return await _jobs(
        tx,
        """
        SELECT w.job_id, j.name, j.state, w.step, w.element, j.message, w.workflow_id
        FROM workflow_jobs w JOIN jobs j ON j.id = w.job_id
        WHERE w.workflow_id = :key AND w.step = :step ORDER BY w.element
        """,
        key=key,
        step=step,
    )


async def shown_jobs(tx: Transaction, keys: Iterable[int], limit: int) -> list[StepJob]:
    """Return of each step of these workflows at most ``limit`` jobs: failed ones first, then others that have not succeeded, then by
    element.
    """
    return await _jobs(
        tx,
        """
        SELECT job_id, name, state, step, element, message, workflow_id, r.result FROM (
            SELECT w.job_id, j.name, j.state, w.step, w.element, j.message, w.workflow_id,
                   row_number() OVER (
                       PARTITION BY w.workflow_id, w.step ORDER BY j.state <> 'failed', j.state = 'succeeded', w.element) AS place
            FROM workflow_jobs w JOIN jobs j ON j.id = w.job_id WHERE w.workflow_id = ANY(:keys)
        ) o LEFT JOIN LATERAL (
            SELECT result FROM runs WHERE job_id = o.job_id AND o.state = 'failed' ORDER BY attempt DESC LIMIT 1) r ON true
        WHERE place <= :limit ORDER BY workflow_id, step, place
        """,
        keys=sorted(set(keys)),
        limit=limit,
    )


async def open_jobs(tx: Transaction, key: int, steps: Sequence[int], limit: int) -> list[int]:
    """Return keys of jobs of these steps that have not ended, and that nobody has cancelled."""
    rows = await tx.all(
        """
        SELECT w.job_id FROM workflow_jobs w JOIN jobs j ON j.id = w.job_id
        WHERE w.workflow_id = :key AND w.step = ANY(:steps) AND j.ended_at IS NULL AND j.wish IS DISTINCT FROM 'cancelling'
        ORDER BY w.job_id LIMIT :limit
        """,
        key=key,
        steps=list(steps),
        limit=limit,
    )
    return [int(row.job_id) for row in rows]


async def _jobs(tx: Transaction, statement: str, **parameters: Any) -> list[StepJob]:
    rows = await tx.all(statement, **parameters)
    return [StepJob(*row)._replace(state=JobState(row.state)) for row in rows]


# -- changes


class WrittenStep(NamedTuple):
    """The state of a step as it is to be stored."""

    step: int
    state: StepState
    message: str
    total: int | None


async def write_steps(tx: Transaction, key: int, written: Sequence[WrittenStep]) -> None:
    """Store states of steps. Times follow from them: a step starts with its first job, and ends with its last state."""
    await tx.run(
        """
        UPDATE workflow_steps s SET state = n.state, message = n.message, total = n.total,
            started_at = CASE WHEN n.total IS NULL THEN NULL ELSE coalesce(s.started_at, now()) END,
            ended_at = CASE WHEN n.state NOT IN ('waiting', 'running') THEN coalesce(s.ended_at, now()) END
        FROM json_to_recordset(CAST(:rows AS json)) AS n(step int, state text, message text, total int)
        WHERE s.workflow_id = :key AND s.step = n.step
        """,
        key=key,
        rows=dumps([one._asdict() for one in written]),
    )


async def keep_items(tx: Transaction, key: int, step: int, items: Sequence[Any]) -> None:
    """Store the elements of a step that is started."""
    await tx.run(
        "UPDATE workflow_steps SET items = CAST(:items AS jsonb) WHERE workflow_id = :key AND step = :step",
        key=key,
        step=step,
        items=dumps(items),
    )


async def add_jobs(tx: Transaction, key: int, step: int, first_job: int, first_element: int, many: int) -> None:
    """Store that ``many`` jobs with consecutive keys are those of consecutive elements of a step."""
    await tx.run(
        """
        INSERT INTO workflow_jobs (job_id, workflow_id, step, element)
        SELECT :job + n, :key, :step, :element + n FROM generate_series(0, :many - 1) AS n
        """,
        job=first_job,
        key=key,
        step=step,
        element=first_element,
        many=many,
    )


async def forget_jobs(tx: Transaction, key: int, steps: Sequence[int]) -> None:
    """Let steps begin anew: their jobs are theirs no more."""
    await tx.run(
        "DELETE FROM workflow_jobs WHERE workflow_id = :key AND step = ANY(:steps)", key=key, steps=list(steps)
    )


async def end(tx: Transaction, key: int, state: WorkflowState) -> None:
    await tx.run(
        "UPDATE workflows SET state = :state, ended_at = now(), next_look = NULL, xid = pg_current_xact_id() WHERE id = :key",
        key=key,
        state=state.value,
    )


async def look_again(tx: Transaction, key: int, seconds: float | None, *, is_changed: bool) -> None:
    """Let the scheduler look at a running workflow again in ``seconds``, or with None once something changes. ``is_changed``: its
    steps or their jobs have, so that it gets a new version.
    """
    await tx.run(
        """
        UPDATE workflows SET next_look = now() + make_interval(secs => CAST(:seconds AS float8)),
            xid = CASE WHEN :is_changed THEN pg_current_xact_id() ELSE xid END
        WHERE id = :key AND ended_at IS NULL
        """,
        key=key,
        seconds=seconds,
        is_changed=is_changed,
    )


async def set_wish(tx: Transaction, key: int, wish: str) -> None:
    """Store that a workflow is to be cancelled, and wake the scheduler's part."""
    await tx.run("UPDATE workflows SET wish = :wish, xid = pg_current_xact_id() WHERE id = :key", key=key, wish=wish)
    await wake(tx, key)


async def reopen(tx: Transaction, key: int) -> None:
    """Let a workflow that has ended run on, as its next attempt. One whose object was deleted has an object again, named by its id."""
    await tx.run(
        """
        UPDATE workflows SET state = 'running', ended_at = NULL, wish = NULL, next_look = NULL, attempt = attempt + 1,
            object_name = CASE WHEN deleted_at IS NULL THEN object_name END, deleted_at = NULL, xid = pg_current_xact_id()
        WHERE id = :key
        """,
        key=key,
    )
    await wake(tx, key)


async def wake(tx: Transaction, key: int) -> None:
    await tx.run("INSERT INTO workflow_wakes (workflow_id) VALUES (:key)", key=key)


async def due(tx: Transaction, limit: int) -> list[int]:
    """Return keys of workflows that the scheduler has to look at: those first that were woken first."""
    rows = await tx.all(
        """
        (SELECT workflow_id, min(id) AS place FROM workflow_wakes GROUP BY workflow_id ORDER BY place LIMIT :limit)
        UNION ALL
        (SELECT id, 0 FROM workflows WHERE next_look <= now() ORDER BY next_look LIMIT :limit)
        """,
        limit=limit,
    )
    return list(dict.fromkeys(int(row.workflow_id) for row in rows))


async def take_wakes(tx: Transaction, key: int) -> bool:
    """Delete what has woken a workflow; return whether anything had. Before its facts are read: what changes later wakes it again."""
    return await tx.run("DELETE FROM workflow_wakes WHERE workflow_id = :key", key=key) > 0


async def remove_old(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove workflows that ended ``seconds`` ago and have neither jobs nor messages that are to be delivered, with all their rows;
    return whether there may be more.
    """
    rows = await tx.all(
        """
        DELETE FROM workflows WHERE id IN (
            SELECT w.id FROM workflows w WHERE w.ended_at < now() - make_interval(secs => :seconds)
            AND NOT EXISTS (SELECT 1 FROM workflow_jobs j WHERE j.workflow_id = w.id)
            AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.job_id = -w.id AND o.dead_at IS NULL)
            ORDER BY w.ended_at LIMIT :limit
            FOR UPDATE SKIP LOCKED)
        RETURNING id
        """,
        seconds=seconds,
        limit=limit,
    )
    gone = [int(row.id) for row in rows]
    if gone:
        for table in ("workflow_steps", "workflow_wakes", "workflow_events"):
            await tx.run(f"DELETE FROM {table} WHERE workflow_id = ANY(:ids)", ids=gone)
        await tx.run("DELETE FROM outbox WHERE job_id = ANY(:ids)", ids=[-key for key in gone])
    return len(gone) >= limit
