"""Groups as people list, see, close and cancel them. The leader finds which have ended: see ``group_ends``.

Rights follow the queue, as those to jobs do.
"""

from collections.abc import Sequence
from typing import Any, Final

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.groups import CancelledGroup, GroupView
from trainmaster.protocol.states import GroupState, JobState, Wish
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.group_admission import may_change, of_another
from trainmaster_dispatcher.services.job_actions import Action, BulkFilter, BulkRequest, BulkResult, to_filter
from trainmaster_dispatcher.services.job_queries import make_cursor, read_cursor
from trainmaster_dispatcher.services.submit import job_actions_of
from trainmaster_dispatcher.store import groups as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.groups import GroupRow
from trainmaster_dispatcher.store.keys import Caller

_UNFINISHED: Final = (*(one.value for one in JobState if not one.is_terminal), *(one.value for one in Wish))
"""The states, as people see them, of jobs that have not ended."""


async def find(tx: Transaction, caller: Caller, name: str, queue: str | None) -> GroupRow:
    """Return the group of this name, of a queue or of the only one that the caller may use and that has such a group.

    Raises ProblemError NOT_FOUND, and AMBIGUOUS_GROUP where several queues have one.
    """
    queue_ids = await queue_ids_for(tx, caller, queue)
    found = await store.named(tx, name, queue_ids, 11)
    if not found:
        where = "" if queue is None else f" in queue {queue!r}"
        raise ProblemError(Code.NOT_FOUND, f"there is no group {name!r}{where}")
    if len(found) > 1:
        paths = ", ".join(row.queue for row in found[:10]) + (" and others" if len(found) > 10 else "")
        raise ProblemError(
            Code.AMBIGUOUS_GROUP, f"the queues {paths} have groups named {name!r}; say which one with its queue"
        )
    return found[0]


async def queue_ids_for(tx: Transaction, caller: Caller, queue: str | None) -> Sequence[int] | None:
    """Return the keys of the queues whose groups a caller may see; those below ``queue``, if that is given. None: all."""
    if queue is None:
        return None if caller.has_every_queue else await tenants.queue_ids_below(tx, caller.queues)
    below = await tenants.queue_ids_below(tx, [queue])
    return (
        below if caller.has_every_queue else sorted(set(below) & set(await tenants.queue_ids_below(tx, caller.queues)))
    )


async def page(
    tx: Transaction, caller: Caller, queue: str | None, states: Sequence[GroupState], cursor: str | None, limit: int
) -> dict[str, Any]:
    """Return a page of groups, newest first, as answers have it."""
    if queue is None:
        queue_ids = await queue_ids_for(tx, caller, None)
    else:
        queue_ids = (await to_filter(tx, caller, BulkFilter(queue=queue))).queue_ids
    rows = await store.page(tx, queue_ids, states, read_cursor(cursor), limit + 1)
    following = make_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return {"groups": [_answer(_view(row)) for row in rows[:limit]], "next": following}


async def show(tx: Transaction, row: GroupRow) -> dict[str, Any]:
    """Return a group as answers have it, with its unfinished jobs by state."""
    return _answer(await _shown(tx, row))


async def _shown(tx: Transaction, row: GroupRow) -> GroupView:
    jobs = await store.unfinished(tx, row.id) if row.total > row.succeeded + row.failed + row.cancelled else {}
    return _view(row).model_copy(update={"jobs": jobs})


def _view(row: GroupRow) -> GroupView:
    return GroupView(
        name=row.name,
        queue=row.queue,
        state=row.state,
        submitted_by=row.submitted_by or "",
        created_at=row.created_at,
        closed_at=row.closed_at,
        ended_at=row.ended_at,
        notified_at=row.notified_at,
        total=row.total,
        unfinished=max(0, row.total - row.succeeded - row.failed - row.cancelled),
        succeeded=row.succeeded,
        failed=row.failed,
        cancelled=row.cancelled,
    )


def _answer(view: GroupView) -> dict[str, Any]:
    found: dict[str, Any] = view.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


async def _check_may_change(tx: Transaction, caller: Caller, row: GroupRow) -> None:
    """Raise ProblemError GROUP_OF_ANOTHER where the caller may see and not change a group."""
    every = {one.spec.path: one for one in await tenants.QUEUES.every(tx)}
    names = (row.submitted_by, row.submitted_through)
    if not may_change(caller, row.queue, names, job_actions_of(row.queue, every)):
        raise of_another(row.queue, row.name, row.submitted_by)


async def close(tx: Transaction, stores: Stores, caller: Caller, name: str, queue: str | None) -> GroupRow:
    """Close a group, and return it; one that is closed stays as it is. Submissions that have begun come before.

    Raises ProblemError as ``find`` does, and GROUP_OF_ANOTHER.
    """
    row = await find(tx, caller, name, queue)
    await _check_may_change(tx, caller, row)
    await store.lock(tx, row.id)
    row = await _again(tx, row)
    if row.closed_at is not None:
        return row
    await store.close(tx, [row.id])

    async def wake() -> None:
        stores.jobs_submitted()

    tx.after_commit(wake)
    return await _again(tx, row)


async def _again(tx: Transaction, row: GroupRow) -> GroupRow:
    found = await store.find(tx, row.id)
    if found is None:
        raise ProblemError(Code.NOT_FOUND, f"group {row.name!r} was just removed")
    return found


async def cancel(
    stores: Stores, caller: Caller, name: str, queue: str | None, grace: str | None
) -> tuple[dict[str, Any], BulkResult]:
    """Close a group and cancel all its jobs that the caller may change, in transactions of their own; return the answer, and what was
    done. As it is closed first, no job comes later.

    Raises ProblemError as ``close`` does.
    """
    async with stores.database.transaction() as tx:
        row = await close(tx, stores, caller, name, queue)
    wanted = BulkRequest(filter=BulkFilter(queue=row.queue, group=row.name, states=_UNFINISHED), grace=grace)
    result = await job_actions.bulk(stores, caller, wanted, Action.CANCEL)
    async with stores.database.transaction() as tx:
        view = await _shown(tx, await _again(tx, row))
    answer = CancelledGroup(group=view, matched=result.matched, changed=result.changed, refused=result.refused)
    found: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found, result
