"""Routes of groups of jobs."""

from typing import Annotated, Any

from fastapi import Query, Request, Response

from trainmaster.protocol.base import QueuePath
from trainmaster.protocol.errors import Code
from trainmaster.protocol.groups import CancelledGroup, GroupPage, GroupView
from trainmaster.protocol.states import GroupState
from trainmaster_dispatcher.api.context import App, JobChanger, JobReader, answer, once, once_in_parts, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import Cursor, GroupInPath, Limit, QueueOfGroup
from trainmaster_dispatcher.services import auditing, groups
from trainmaster_dispatcher.services.job_actions import CancelSpec
from trainmaster_dispatcher.store.database import Transaction

router = documented_router("/v1/groups", "groups")


@router.get("", **contract(gives=GroupPage, refuses=(Code.UNKNOWN_QUEUE,)))
async def list_groups(
    state: App,
    caller: JobReader,
    queue: Annotated[QueuePath | None, Query(description="Only groups of this queue and of those below it.")] = None,
    states: Annotated[
        list[GroupState] | None, Query(alias="state", description="Only groups in one of these states.")
    ] = None,
    cursor: Cursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List a page of groups, newest first, with the numbers of their jobs."""
    async with state.stores.database.reading() as tx:
        return answer(await groups.page(tx, caller, queue, states or (), cursor, limit))


@router.get("/{group}", **contract(gives=GroupView, refuses=(Code.AMBIGUOUS_GROUP,)))
async def show_group(group: GroupInPath, state: App, caller: JobReader, queue: QueueOfGroup = None) -> Response:
    """Show one group: its state, and the numbers of its jobs."""
    async with state.stores.database.reading() as tx:
        return answer(await groups.show(tx, await groups.find(tx, caller, group, queue)))


def _identified(body: bytes, queue: str | None) -> bytes:
    """Return what a call with an Idempotency-Key is compared by."""
    return body if queue is None else body + b"\n" + queue.encode()


@router.post(
    "/{group}/close",
    **contract(gives=GroupView, is_once=True, refuses=(Code.AMBIGUOUS_GROUP, Code.GROUP_OF_ANOTHER)),
)
async def close_group(
    group: GroupInPath, request: Request, state: App, caller: JobChanger, queue: QueueOfGroup = None
) -> Response:
    """Close a group: it takes no more jobs, and ends once all its jobs have ended. One that is closed stays as it is."""
    body = await request.body()
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, Any]:
        row = await groups.close(tx, state.stores, caller, group, queue)
        details["queue"] = row.queue
        return 200, await groups.show(tx, row)

    return await once(
        request, state, caller, _identified(body, queue), work, action="close group", target=group, details=details
    )


@router.post(
    "/{group}/cancel",
    **contract(
        takes=CancelSpec,
        is_optional=True,
        gives=CancelledGroup,
        is_once=True,
        refuses=(Code.AMBIGUOUS_GROUP, Code.GROUP_OF_ANOTHER),
    ),
)
async def cancel_group(
    group: GroupInPath, request: Request, state: App, caller: JobChanger, queue: QueueOfGroup = None
) -> Response:
    """Cancel a group: it is closed, so that no job comes later, and all its jobs are cancelled."""
    body = await request.body()
    grace = read_model(CancelSpec, body).grace if body.strip() else None
    details: dict[str, Any] = {} if grace is None else {"grace": grace}

    async def work() -> tuple[int, Any]:
        found, result = await groups.cancel(state.stores, caller, group, queue, grace)
        details.update(
            {
                "queue": found["group"]["queue"],
                "matched": result.matched,
                "changed": result.changed,
                **auditing.jobs_of(result.ids, result.changed),
            }
        )
        if result.refused:
            details["refused"] = result.refused
        return 200, found

    return await once_in_parts(
        request, state, caller, _identified(body, queue), work, action="cancel group", target=group, details=details
    )
