"""Routes of queues, priority classes, reservations, keys and the audit."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.base import WrittenTime
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.notices import KeyEmailSpec
from trainmaster.protocol.tenants import KeySpec, RotateKeySpec
from trainmaster_dispatcher.api.context import (
    BROWSER_SESSION,
    Account,
    App,
    AuditReader,
    KeyReader,
    KeyRevoker,
    KeyWriter,
    QueueReader,
    account,
    answer,
    check_no_body,
    note,
    read_large_model,
    read_model,
    session_of,
)
from trainmaster_dispatcher.api.declared import add_routes, change
from trainmaster_dispatcher.api.openapi import check_parameters, contract, documented_router
from trainmaster_dispatcher.api.parameters import Cursor, Limit, NumberInPath
from trainmaster_dispatcher.domain.browser_sign_in import csrf_token
from trainmaster_dispatcher.domain.id_claims import Issuer
from trainmaster_dispatcher.services import job_queries, leader_queries, notices, people, tenants
from trainmaster_dispatcher.services.shared_reads import visibility_of
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import AuditFilter

router = documented_router("/v1", "tenants")

Usage = Annotated[bool, Query(description="Show what each queue uses now, by the leading scheduler's count.")]
Ended = Annotated[
    bool, Query(description="Count the jobs that have ended, too. With millions of stored jobs, that takes seconds.")
]


def refuse_idempotency_key(request: Request) -> None:
    """Raise ProblemError for an Idempotency-Key, as an answer with a secret in it is not stored."""
    if request.headers.get("idempotency-key") is not None:
        raise ProblemError(
            Code.INVALID_PARAMETER, "this call takes no Idempotency-Key: the secret that it makes is not kept"
        )


@router.get("/queues", **contract(gives=answers.QueueList))
async def list_queues(state: App, caller: QueueReader, usage: Usage = False, ended: Ended = False) -> Response:
    """List queues that the caller may see, with unfinished jobs by state; with ``ended``, all that are stored.

    With ``usage``, what each uses now by the leading scheduler's count.
    """

    async def read() -> dict[str, Any]:
        if usage:
            return await leader_queries.queues(state.stores, state.leader, caller, with_ended=ended)
        async with state.stores.database.transaction() as tx:
            return {"queues": await job_queries.list_queues(tx, caller, with_ended=ended)}

    return answer(await state.queue_lists.get((visibility_of(caller), usage, ended), read))


add_routes(router, "tenants")


@router.get("/sign-in", **contract(gives=answers.SignIn, needs_key=False))
async def show_sign_in(request: Request, state: App) -> Response:
    """Say how people sign in: with an API key, and with accounts of the OpenID Connect issuers, if there are any. Needs no key."""
    check_parameters(request)
    await check_no_body(request)
    by_browser = state.browser is not None and state.browser.offers_issuers
    found = [_shown_issuer(issuer, by_browser=by_browser) for issuer in state.issuers if not issuer.service_accounts]
    first = (
        {name: found[0][name] for name in ("issuer", "clientId", "clientSecret") if name in found[0]} if found else {}
    )
    return answer(first | {"issuers": found, "browser": by_browser, "key": state.browser is not None})


def _shown_issuer(issuer: Issuer, *, by_browser: bool) -> dict[str, Any]:
    secret = {"clientSecret": issuer.client_secret} if issuer.client_secret else {}
    scopes = {"scopes": list(issuer.scopes)} if issuer.scopes else {}
    begin = {"begin": f"/v1/sign-in/browser?{urlencode({'issuer': issuer.name})}"} if by_browser else {}
    return {"name": issuer.name, "issuer": issuer.url, "clientId": issuer.client_ids[0], **secret, **scopes, **begin}


@router.get("/whoami", **contract(gives=answers.Identity))
async def whoami(request: Request, state: App, caller: Account) -> Response:
    """Show the caller's key, and the version of the dispatcher."""
    secret = request.scope.get(BROWSER_SESSION)
    async with state.stores.database.transaction() as tx:
        found = await tenants.whoami(tx, caller)
    return answer(found | {"csrfToken": None if secret is None else csrf_token(secret)})


@router.post("/sign-out", **contract(status=204, or_gives={200: answers.SignedOut}))
async def sign_out(request: Request, state: App) -> Response:
    """End the session of a browser that has signed in. Of a key or a token, nothing ends.

    The answer has a body where the issuer of the account has a session of its own, which the browser can end at an address of it.
    """
    secret = session_of(request, state)
    if state.browser is None or not secret:
        await account(request)
        return Response(status_code=204)
    state.browser.check_origin(request, secret)
    check_parameters(request)
    await check_no_body(request)
    ended = await state.browser.end(secret)
    if ended.caller is not None:
        async with state.stores.database.transaction() as tx:
            await note(tx, ended.caller, "sign out", ended.caller.name)
    address = await state.browser.end_session_address(ended)
    made = Response(status_code=204) if address is None else answer({"endSessionUrl": address})
    made.headers.update({"Set-Cookie": state.browser.cookie(request.scope, ""), "Cache-Control": "no-store"})
    return made


@router.get("/keys", **contract(gives=answers.KeyList))
async def list_keys(state: App, caller: KeyReader) -> Response:
    """List all API keys, without their secrets; for an owner, those of the agents of the owner's clusters."""
    async with state.stores.database.transaction() as tx:
        return answer({"keys": await tenants.list_keys(tx, caller)})


@router.post(
    "/keys",
    **contract(
        takes=KeySpec,
        gives=answers.NewKey,
        status=201,
        refuses=(Code.UNKNOWN_CLUSTER, Code.UNKNOWN_QUEUE, Code.CONFLICT),
    ),
)
async def make_key(request: Request, state: App, caller: KeyWriter) -> Response:
    """Make an API key; the secret is in this answer and nowhere else.

    An Idempotency-Key is refused here, for the answer would have to be kept with the secret in it.
    """
    refuse_idempotency_key(request)
    spec = await read_large_model(KeySpec, await request.body())
    async with state.stores.database.transaction() as tx:
        made = await tenants.make_named_key(tx, spec)
        await note(tx, caller, "make key", spec.name, {"id": made["id"], **spec.to_wire()})
    made_once = answer(made, 201)
    made_once.headers.update({"Location": f"/v1/keys/{made['id']}", "Cache-Control": "no-store"})
    return made_once


@router.post(
    "/keys/{key_id}/rotate",
    **contract(takes=RotateKeySpec, is_optional=True, gives=answers.NewKey, status=201),
)
async def rotate_key(key_id: NumberInPath, request: Request, state: App, caller: Account) -> Response:
    """Make a new key of the same name and rights; the old one stays valid for a while. Everybody may rotate the own key.

    The secret is in this answer and nowhere else. An Idempotency-Key is refused.
    """
    refuse_idempotency_key(request)
    spec = read_model(RotateKeySpec, await request.body() or b"{}")
    async with state.stores.database.transaction() as tx:
        made = await tenants.rotate_key(tx, caller, key_id, spec)
        await note(tx, caller, "rotate key", str(key_id), {"id": made["id"], **spec.to_wire()})
    made_once = answer(made, 201)
    made_once.headers.update({"Location": f"/v1/keys/{made['id']}", "Cache-Control": "no-store"})
    return made_once


@router.delete("/keys/{key_id}", **contract(status=204, refuses=(Code.IN_USE,)))
async def revoke_key(
    key_id: NumberInPath,
    state: App,
    caller: KeyRevoker,
    force: Annotated[bool, Query(description="Revoke it even if it is the last valid key of an admin.")] = False,
) -> Response:
    """Revoke an API key; it becomes invalid within two seconds. The last valid key of an admin is kept, unless ``force`` is given.

    An owner revokes keys of the agents of the owner's clusters.
    """

    async def revoke(tx: Transaction) -> None:
        await tenants.revoke_key(tx, caller, key_id, force=force)

    await change(state, caller, "revoke key", str(key_id), revoke)
    return Response(status_code=204)


@router.post("/keys/{key_id}/restore", **contract(status=204, refuses=(Code.CONFLICT,)))
async def restore_person(key_id: NumberInPath, state: App, caller: KeyWriter) -> Response:
    """Let the tokens of a person who was revoked count again, within two seconds. An API key that was revoked stays so."""

    async def restore(tx: Transaction) -> None:
        await people.restore_person(tx, key_id)

    await change(state, caller, "restore key", str(key_id), restore)
    return Response(status_code=204)


@router.post("/keys/{key_id}/email", **contract(takes=KeyEmailSpec, status=204))
async def set_key_email(key_id: NumberInPath, request: Request, state: App, caller: KeyWriter) -> Response:
    """Set the e-mail address of an API key's user, for what the user wants to be notified of. That of a person is the issuer's."""
    spec = read_model(KeyEmailSpec, await request.body())
    async with state.stores.database.transaction() as tx:
        await notices.set_email(tx, key_id, spec.email)
        await note(tx, caller, "set key email", str(key_id), spec.to_wire())
    return Response(status_code=204)


@router.get("/audit", **contract(gives=answers.AuditPage))
async def list_audit(
    state: App,
    caller: AuditReader,
    target: Annotated[str | None, Query(description="Only changes of this object.")] = None,
    actor: Annotated[str | None, Query(description="Only calls with a key of this name.")] = None,
    action: Annotated[str | None, Query(description="Only this action, such as `put queue`.")] = None,
    since: Annotated[WrittenTime | None, Query(description="Only entries at or after this time.")] = None,
    until: Annotated[WrittenTime | None, Query(description="Only entries before this time.")] = None,
    cursor: Cursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List who changed what and what was refused, newest first; for an owner, what was done to the owner's clusters."""
    wanted = AuditFilter(target, actor, action, since, until)
    async with state.stores.database.transaction() as tx:
        return answer(await job_queries.list_audit(tx, caller, wanted, cursor, limit))
