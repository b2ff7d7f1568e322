"""Routes of the secrets that sign webhook messages, and of dead messages."""

from typing import Any

from fastapi import Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code
from trainmaster_dispatcher.api.context import App, JobChanger, JobReader, JobSubmitter, answer, note, once, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import Cursor, Limit, NumberInPath, QueueInPath
from trainmaster_dispatcher.api.tenants import refuse_idempotency_key
from trainmaster_dispatcher.services import job_queries, webhooks
from trainmaster_dispatcher.store.database import Transaction

router = documented_router("/v1/webhooks", "webhooks")


_NOT_KEPT = {"Cache-Control": "no-store"}


@router.get("/secrets/{path:path}", **contract(gives=answers.WebhookSecrets, refuses=(Code.WEBHOOKS_OFF,)))
async def show_webhook_secrets(path: QueueInPath, state: App, caller: JobSubmitter) -> Response:
    """Show the secrets that sign messages of a queue's jobs; for whoever has a right to the queue."""
    async with state.stores.database.transaction() as tx:
        found = answer(await webhooks.show_secrets(tx, state.stores.settings, caller, path))
    found.headers.update(_NOT_KEPT)
    return found


@router.post(
    "/secrets/{path:path}/rotate",
    **contract(
        takes=webhooks.RotateSecretSpec, is_optional=True, gives=answers.WebhookSecrets, refuses=(Code.WEBHOOKS_OFF,)
    ),
)
async def rotate_webhook_secret(path: QueueInPath, request: Request, state: App, caller: JobSubmitter) -> Response:
    """Give a queue another secret; the one before signs as well for a while."""
    refuse_idempotency_key(request)
    spec = read_model(webhooks.RotateSecretSpec, await request.body() or b"{}")
    async with state.stores.database.transaction() as tx:
        made = await webhooks.rotate_secret(tx, state.stores.settings, caller, path, spec)
        await note(tx, caller, "rotate webhook secret", path, {"version": made["version"], **spec.to_wire()})
    found = answer(made)
    found.headers.update(_NOT_KEPT)
    return found


@router.get("/dead", **contract(gives=answers.DeadLetterPage))
async def list_dead_letters(
    state: App, caller: JobReader, cursor: Cursor | None = None, limit: Limit = 100
) -> Response:
    """List a page of messages that were given up, newest first; users see those of their own queues."""
    async with state.stores.database.transaction() as tx:
        found = await webhooks.dead_letters(tx, caller, job_queries.read_cursor(cursor), limit + 1)
    page = found[:limit]
    more = job_queries.make_cursor(page[-1]["id"]) if len(found) > limit else None
    return answer({"dead": page, "next": more})


@router.post("/dead/{letter}/retry", **contract(gives=answers.DeadLetter, is_once=True))
async def retry_dead_letter(letter: NumberInPath, request: Request, state: App, caller: JobChanger) -> Response:
    """Try a message again, as often and as long as a new one."""

    async def work(tx: Transaction) -> tuple[int, Any]:
        return 200, await webhooks.retry_dead_letter(tx, caller, letter)

    return await once(
        request, state, caller, await request.body(), work, action="retry webhook", target=f"delivery {letter}"
    )


@router.delete("/dead/{letter}", **contract(status=204))
async def drop_dead_letter(letter: NumberInPath, state: App, caller: JobChanger) -> Response:
    """Delete a message."""
    async with state.stores.database.transaction() as tx:
        await webhooks.drop_dead_letter(tx, caller, letter)
        await note(tx, caller, "drop webhook", f"delivery {letter}")
    return Response(status_code=204)
