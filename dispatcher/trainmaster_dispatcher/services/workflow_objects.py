"""Workflows as objects of the Kubernetes API: found by their names, read in pages, changed and deleted. Rights follow the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.protocol.ids import BadIdError, parse_workflow_id, workflow_id
from trainmaster.protocol.workflows import WorkflowView
from trainmaster_dispatcher.services import workflows
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_queries import make_cursor, read_cursor
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store import workflow_objects as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.workflows import WorkflowRow

MOST_NAMED: Final = 10
"""The most jobs of a step that are named in the status of an object."""


@dataclass(frozen=True, slots=True)
class ReadWorkflow:
    """A workflow, and it as answers have it."""

    row: WorkflowRow
    view: WorkflowView

    @property
    def name(self) -> str:
        """Return the name of its object."""
        return self.row.object_name or self.id

    @property
    def id(self) -> str:
        return workflow_id(self.row.name, self.row.id)


async def read(tx: Transaction, rows: Sequence[WorkflowRow]) -> list[ReadWorkflow]:
    """Return workflows with the states of their steps."""
    views = await workflows.views(tx, rows, MOST_NAMED) if rows else []
    return [ReadWorkflow(row, view) for row, view in zip(rows, views, strict=True)]


async def changed(tx: Transaction, since_xid: int, until_xid: int) -> list[ReadWorkflow]:
    """Return the workflows that transactions from ``since_xid`` up to ``until_xid`` wrote last; also those whose objects are gone."""
    return await read(tx, await store.changed(tx, since_xid, until_xid))


async def named(
    tx: Transaction, caller: Caller, name: str, namespace: str | None, *, locks: bool = False
) -> list[ReadWorkflow]:
    """Return the workflows whose objects have this name and that the caller may see, in a namespace or in all."""
    rows = await store.named(tx, name, _id_of(name), namespace, locks=locks)
    return await read(tx, [row for row in rows if caller.may_use(row.queue)])


def may_be_id(name: str) -> bool:
    """Return whether a workflow may have this id."""
    return _id_of(name) is not None


def _id_of(name: str) -> tuple[str, int] | None:
    try:
        return parse_workflow_id(name)
    except BadIdError:
        return None


async def page(
    tx: Transaction, caller: Caller, namespace: str | None, cursor: str | None, limit: int
) -> tuple[list[ReadWorkflow], str | None]:
    """Return a page of the workflows that are objects, newest first, and the cursor of the next page."""
    queue_ids = None if caller.has_every_queue else await tenants.queue_ids_below(tx, caller.queues)
    rows = await store.object_page(tx, queue_ids, namespace, read_cursor(cursor), limit + 1)
    following = make_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return await read(tx, rows[:limit]), following


async def change(
    tx: Transaction,
    caller: Caller,
    row: WorkflowRow,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    managed: Sequence[Mapping[str, Any]],
) -> ReadWorkflow:
    """Change what people set of the object of a workflow, whose row is locked. Raises ProblemError JOB_OF_ANOTHER."""
    await workflows.check_may_change(tx, caller, row)
    await store.change(tx, row.id, labels, annotations, managed)
    return await _again(tx, row)


async def delete(
    tx: Transaction, stores: Stores, caller: Caller, row: WorkflowRow, *, runs_cleanup: bool
) -> ReadWorkflow:
    """Delete the object of a workflow, whose row is locked: it is cancelled unless it has ended, and exists until then.

    Raises ProblemError JOB_OF_ANOTHER.
    """
    if row.state.is_terminal:
        await workflows.check_may_change(tx, caller, row)
    else:
        await workflows.cancel(tx, stores, caller, row, runs_cleanup=runs_cleanup)
    await store.delete(tx, row.id)
    return await _again(tx, row)


async def _again(tx: Transaction, row: WorkflowRow) -> ReadWorkflow:
    (found,) = await read(tx, [await workflows.reread(tx, row)])
    return found
