"""Routes of reports of rights."""

from typing import Annotated

from fastapi import Query, Response

from trainmaster.protocol.access import Directory, PermissionAnswer, WhoCan
from trainmaster.protocol.base import QueuePath
from trainmaster.protocol.errors import Code
from trainmaster.protocol.permissions import Permission
from trainmaster_dispatcher.api.context import AccessReader, Account, App, KeyReader, answer
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.services import access

router = documented_router("/v1", "tenants")

Wanted = Annotated[Permission, Query(description="The permission.")]
InQueue = Annotated[
    QueuePath | None,
    Query(description="In this queue; without it, in any, or in the whole installation."),
]


@router.get("/can-i", **contract(gives=PermissionAnswer, refuses=(Code.UNKNOWN_QUEUE,)))
async def can_i(state: App, caller: Account, permission: Wanted, queue: InQueue = None) -> Response:
    """Say whether the caller has a permission, and by which roles."""
    async with state.stores.database.reading() as tx:
        found = await access.can_i(tx, caller, permission, queue)
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.get("/who-can", **contract(gives=WhoCan, refuses=(Code.UNKNOWN_QUEUE,)))
async def who_can(state: App, caller: AccessReader, permission: Wanted, queue: InQueue = None) -> Response:
    """List who has a permission: users and groups by role bindings, and API keys."""
    async with state.stores.database.reading() as tx:
        found = await access.who_can(tx, caller, permission, queue)
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.get("/people", **contract(gives=Directory))
async def list_people(state: App, caller: KeyReader) -> Response:
    """List the people who have signed in, and the groups that were seen or that role bindings name."""
    async with state.stores.database.reading() as tx:
        found = await access.directory(tx, caller)
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))
