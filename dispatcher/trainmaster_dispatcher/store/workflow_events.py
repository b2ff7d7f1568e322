"""Events of workflows. Each is written in the transaction of the change that it reports."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster_dispatcher.domain.workflow_events import WorkflowEvent
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.job_objects import NAMESPACE
from trainmaster_dispatcher.store.workflows import VERSION


class StoredWorkflowEvent(NamedTuple):
    """A stored event, and its workflow. ``kind``: a ``WorkflowEventKind``, or one of a newer release."""

    workflow_id: int
    seq: int
    version: int
    name: str
    object_name: str | None
    queue: str
    namespace: str
    at: datetime
    kind: str
    step: str | None
    message: str
    actor: str


async def add(tx: Transaction, key: int, events: Sequence[WorkflowEvent]) -> int:
    """Store events of a workflow, which gets a new version; return the number of the first of them."""
    row = await tx.one(
        "UPDATE workflows SET seq = seq + :many, xid = pg_current_xact_id() WHERE id = :key RETURNING seq - :many + 1 AS first",
        key=key,
        many=len(events),
    )
    first = int(row.first)
    await tx.run(
        """
        INSERT INTO workflow_events (workflow_id, seq, kind, step, message, actor)
        SELECT :key, seq, kind, step, message, actor
        FROM json_to_recordset(CAST(:rows AS json)) AS n(seq int, kind text, step text, message text, actor text)
        """,
        key=key,
        rows=dumps([{"seq": seq, **one._asdict()} for seq, one in enumerate(events, first)]),
    )
    return first


async def events_of_workflows(
    tx: Transaction, ids: Sequence[int] | None, seconds: float | None, limit: int
) -> Sequence[StoredWorkflowEvent]:
    """Return events of these workflows, or of all with None, oldest first: the newest ``limit`` of them, and with ``seconds`` only
    those that are no older.
    """
    return await tx.all_of(
        StoredWorkflowEvent,
        f"""
        SELECT * FROM (
            SELECT e.workflow_id, e.seq, {VERSION.replace("w.xid", "e.xid")} AS version, w.name, w.object_name, q.path AS queue,
                   {NAMESPACE} AS namespace, e.at, e.kind, e.step, e.message, e.actor
            FROM workflow_events e JOIN workflows w ON w.id = e.workflow_id JOIN queues q ON q.id = w.queue_id
            WHERE (CAST(:ids AS bigint[]) IS NULL OR e.workflow_id = ANY(:ids))
            AND (CAST(:seconds AS float8) IS NULL OR e.at > now() - make_interval(secs => :seconds))
            ORDER BY e.at DESC, e.seq DESC LIMIT :limit) AS n
        ORDER BY at, workflow_id, seq
        """,
        ids=None if ids is None else list(ids),
        seconds=seconds,
        limit=limit,
    )


async def remove_old(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove old events; return whether there may be more."""
    removed = await tx.run(
        "DELETE FROM workflow_events WHERE (workflow_id, seq) IN (SELECT workflow_id, seq FROM workflow_events"
        " WHERE at < now() - make_interval(secs => :seconds) ORDER BY at LIMIT :limit)",
        seconds=seconds,
        limit=limit,
    )
    return removed >= limit
