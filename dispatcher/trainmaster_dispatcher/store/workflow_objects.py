"""Workflows as objects of the Kubernetes API: found by name or id, in pages, changed since a version, and deleted.

A deleted object exists until its workflow has ended; the workflow itself is removed by retention.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.job_objects import NAMESPACE
from trainmaster_dispatcher.store.workflows import WorkflowRow, row_of, selected

_LIVE: Final = "(w.deleted_at IS NULL OR w.ended_at IS NULL)"


async def named(
    tx: Transaction, name: str, by_id: tuple[str, int] | None, namespace: str | None, *, locks: bool = False
) -> list[WorkflowRow]:
    """Return the workflows whose objects have this name, in a namespace or in all; locked with ``locks``.

    ``by_id``: the name and the key of the workflow whose id the name is, which is the name of its object if it was given none.
    """
    own_name, key = by_id or ("", -1)
    rows = await tx.all(
        f"""
        {selected()}
        WHERE (w.object_name = :name OR (w.id = :key AND w.name = :own_name AND w.object_name IS NULL)) AND {_LIVE}
        AND (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace) ORDER BY w.id {"FOR UPDATE OF w" if locks else ""}
        """,
        name=name,
        key=key,
        own_name=own_name,
        namespace=namespace,
    )
    return [row_of(row) for row in rows]


async def object_page(
    tx: Transaction, queue_ids: Sequence[int] | None, namespace: str | None, before: int | None, limit: int
) -> list[WorkflowRow]:
    """Return a page of the workflows that are objects, newest first; of these queues or of all, and of a namespace or of all."""
    rows = await tx.all(
        f"""
        {selected()}
        WHERE {_LIVE} AND (CAST(:queues AS int[]) IS NULL OR w.queue_id = ANY(CAST(:queues AS int[])))
        AND (CAST(:namespace AS text) IS NULL OR {NAMESPACE} = :namespace)
        AND (CAST(:before AS bigint) IS NULL OR w.id < :before) ORDER BY w.id DESC LIMIT :limit
        """,
        queues=None if queue_ids is None else list(queue_ids),
        namespace=namespace,
        before=before,
        limit=limit,
    )
    return [row_of(row) for row in rows]


async def changed(tx: Transaction, since_xid: int, until_xid: int) -> list[WorkflowRow]:
    """Return the workflows that were written last by a transaction from ``since_xid`` up to ``until_xid``, which all have ended; also
    those whose objects are gone. In the order of the transactions.
    """
    rows = await tx.all(
        f"""
        {selected()}
        WHERE w.xid >= CAST(CAST(:since AS text) AS xid8) AND w.xid < CAST(CAST(:until AS text) AS xid8) ORDER BY w.xid, w.id
        """,
        since=since_xid,
        until=until_xid,
    )
    return [row_of(row) for row in rows]


async def change(
    tx: Transaction,
    key: int,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    managed: Sequence[Mapping[str, Any]],
) -> None:
    """Store what people set of a workflow's object beside its specification. The row must be locked."""
    values = {"labels": labels, "annotations": annotations, "managed": managed}
    await tx.run(
        """
        UPDATE workflows SET labels = CAST(:labels AS jsonb), annotations = CAST(:annotations AS jsonb),
            managed_fields = CAST(:managed AS jsonb), xid = pg_current_xact_id()
        WHERE id = :key
        """,
        key=key,
        **{field: dumps(value) if value else None for field, value in values.items()},
    )


async def delete(tx: Transaction, key: int) -> None:
    """Mark the object of a workflow as deleted. The row must be locked."""
    await tx.run(
        "UPDATE workflows SET deleted_at = coalesce(deleted_at, now()), xid = pg_current_xact_id() WHERE id = :key",
        key=key,
    )
