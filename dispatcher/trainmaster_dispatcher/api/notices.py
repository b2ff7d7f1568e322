"""Routes of the caller's preferences about notices."""

from fastapi import Request, Response

from trainmaster.protocol.errors import Code
from trainmaster.protocol.notices import Notices, NoticesSpec
from trainmaster_dispatcher.api.context import Account, App, answer, note, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.services import notices

router = documented_router("/v1/notices", "notices")


@router.get("", **contract(gives=Notices))
async def show_notices(state: App, caller: Account) -> Response:
    """Show what the caller is notified of about the caller's own jobs."""
    async with state.stores.database.transaction() as tx:
        return answer(await notices.show(tx, state.stores.settings, caller))


@router.put("", **contract(takes=NoticesSpec, gives=Notices, refuses=(Code.WEBHOOKS_OFF, Code.MAIL_OFF)))
async def put_notices(request: Request, state: App, caller: Account) -> Response:
    """Set what the caller is notified of. E-mail goes to the caller's own address, which the caller cannot choose."""
    spec = read_model(NoticesSpec, await request.body())
    async with state.stores.database.transaction() as tx:
        stored = await notices.put(tx, state.stores.settings, caller, spec)
        await note(tx, caller, "put notices", caller.name)
    return answer(stored)


@router.delete("", **contract(status=204))
async def remove_notices(state: App, caller: Account) -> Response:
    """Notify the caller of nothing any more; events that wait for a digest are dropped."""
    async with state.stores.database.transaction() as tx:
        await notices.remove(tx, caller)
        await note(tx, caller, "remove notices", caller.name)
    return Response(status_code=204)
