"""Signing in by a browser: with an API key, or by the authorization code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core
1.0, section 3.1).

    /v1/sign-in/browser ──▶ issuer ──▶ /v1/sign-in/callback ──▶ session, and back to the page

Answers are pages for people where a browser asks for them, and problems else. Nothing is stored until the issuer's token was checked.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fastapi import Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.tenants import KeySignIn
from trainmaster_dispatcher.api import browser_pages
from trainmaster_dispatcher.api.context import App, State, answer, caller_with_key, note, read_model
from trainmaster_dispatcher.api.openapi import check_parameters, contract, documented_router
from trainmaster_dispatcher.api.tenants import refuse_idempotency_key
from trainmaster_dispatcher.domain.browser_sign_in import (
    SIGN_IN_SECONDS,
    PendingSignIn,
    checked_return,
    cookie_of,
    csrf_token,
    read_pending,
    set_cookie,
    sign_in_cookie_name,
    written,
)
from trainmaster_dispatcher.domain.id_claims import Issuer
from trainmaster_dispatcher.services import tenants

if TYPE_CHECKING:
    from trainmaster_dispatcher.api.browser_sessions import BrowserSessions

router = documented_router("/v1", "tenants")

_CALLBACK = "/v1/sign-in/callback"
_SCOPES = ("openid", "email", "profile", "groups", "offline_access")
_OK = 200
_SHOWN = 200
_LONGEST_CODE = 4096
_JSON = "application/json"


@router.get("/sign-in/browser", include_in_schema=False)
async def begin_sign_in(request: Request, state: App) -> Response:
    """Send a browser to the issuer; with several issuers and none named, show them."""
    return await _for_people(request, lambda: _begin(request, state), _wanted_return(request))


@router.get("/sign-in/callback", include_in_schema=False)
async def finish_sign_in(request: Request, state: App) -> Response:
    """Take the issuer's answer, begin a session, and send the browser back to the page that it came from."""
    return await _for_people(request, lambda: _finish(request, state), "/")


@router.post(
    "/sign-in/key",
    **contract(
        takes=KeySignIn,
        gives=answers.Identity,
        refuses=(Code.UNSUPPORTED_MEDIA_TYPE,),
        needs_key=False,
    ),
)
async def sign_in_with_key(request: Request, state: App) -> Response:
    """Begin a session of a browser with an API key, and end the one before of the same browser; the answer is that of whoami.

    For pages of the dispatcher itself: those of other origins are refused. An Idempotency-Key is refused, too. The cookie is that of
    a sign-in with an account. The session ends with the key, after twelve hours, after an hour without a call, and by sign-out.
    """
    assert state.browser is not None  # noqa: S101 - an api with these routes has it
    check_parameters(request)
    state.browser.check_sign_in(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        # Pages of other hosts can send any other one without a question of the browser first.
        raise ProblemError(
            Code.UNSUPPORTED_MEDIA_TYPE, f"the key is sent as Content-Type: {_JSON}, not as {media_type[:_SHOWN]!r}"
        )
    refuse_idempotency_key(request)
    given = read_model(KeySignIn, await request.body())
    caller = await caller_with_key(request, state, given.key)
    secret = await state.browser.begin_by_key(caller, state.browser.secret_of(request.scope))
    async with state.stores.database.transaction() as tx:
        await note(tx, caller, "sign in", caller.name, {"key": caller.key_id})
        found = await tenants.whoami(tx, caller)
    made = answer(found | {"csrfToken": csrf_token(secret)})
    made.headers.update({"Set-Cookie": state.browser.cookie(request.scope, secret), "Cache-Control": "no-store"})
    return made


async def _for_people(request: Request, work: Callable[[], Awaitable[Response]], return_to: str) -> Response:
    """Return the answer of ``work``; a page that says why, where it is refused and a browser asks."""
    try:
        return await work()
    except ProblemError as error:
        if "text/html" not in request.headers.get("accept", ""):
            raise
        headers = dict(browser_pages.HEADERS)
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.pause_seconds)
        page = browser_pages.refusal_page(error.detail, return_to)
        return Response(page, status_code=error.status, media_type="text/html", headers=headers)


def _wanted_return(request: Request) -> str:
    """Return where a browser wants to return; / where that is no path of this host."""
    try:
        return checked_return(request.query_params.get("return", "/"))
    except ValueError:
        return "/"


def _sessions(state: State) -> "BrowserSessions":
    if state.browser is None or not state.browser.offers_issuers:
        raise ProblemError(
            Code.NOT_FOUND,
            "nobody signs in with an account by a browser here: that needs an OpenID Connect issuer and TRAINMASTER_PUBLIC_URL",
        )
    return state.browser


async def _begin(request: Request, state: State) -> Response:
    browser, query = _sessions(state), request.query_params
    try:
        return_to = checked_return(query.get("return", "/"))
    except ValueError as error:
        raise ProblemError(Code.INVALID_PARAMETER, f"return {error}") from error
    named = query.get("issuer")
    if named is None and len(browser.issuers) > 1:
        page = browser_pages.choice_page([(one.name, one.url) for one in browser.issuers], return_to)
        return Response(page, media_type="text/html", headers=browser_pages.HEADERS)
    issuer = browser.issuers[0] if named is None else _issuer_named(browser, named)
    pending = PendingSignIn(
        issuer.name, secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), return_to
    )
    address = await _authorization_address(state, browser, issuer, pending)
    cookie = set_cookie(
        sign_in_cookie_name(pending.state),
        written(pending),
        SIGN_IN_SECONDS,
        is_secure=browser.is_secure(request.scope),
    )
    return _redirect(address, cookie)


def _issuer_named(browser: "BrowserSessions", name: str) -> Issuer:
    found = {one.name: one for one in browser.issuers}
    if name not in found:
        raise ProblemError(Code.NOT_FOUND, f"there is no issuer {name[:_SHOWN]!r}{suggestion(name, found)}")
    return found[name]


async def _authorization_address(
    state: State, browser: "BrowserSessions", issuer: Issuer, pending: PendingSignIn
) -> str:
    """Return the address of the issuer at which the person signs in. Raises ProblemError ISSUER_AWAY."""
    assert state.sign_ins is not None  # noqa: S101 - as there are sessions of browsers
    keys = state.sign_ins.keys_of(issuer)
    address = await keys.endpoint("authorization_endpoint")
    known = (await keys.discovery()).get("scopes_supported")
    scopes = issuer.scopes or [one for one in _SCOPES if not isinstance(known, list) or one in known]
    query = {
        "response_type": "code",
        "client_id": issuer.browser_client,
        "redirect_uri": browser.origin + _CALLBACK,
        "scope": " ".join(dict.fromkeys(("openid", *scopes))),
        "state": pending.state,
        "nonce": pending.nonce,
        "code_challenge": pending.challenge,
        "code_challenge_method": "S256",
    }
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


async def _finish(request: Request, state: State) -> Response:
    browser = _sessions(state)
    given = _single(request)
    state_given = given.get("state", "")
    name = sign_in_cookie_name(state_given)
    cookie = cookie_of(request.scope["headers"], name, is_secure=browser.is_secure(request.scope))
    pending = read_pending(cookie, state_given) if state_given and cookie else None
    if pending is None:
        raise ProblemError(
            Code.SIGN_IN_FAILED,
            "this browser has not begun this sign-in, or has ended it already, or more than ten minutes ago",
        )
    issuer = _issuer_named(browser, pending.issuer)
    if given.get("iss", issuer.url) != issuer.url:
        raise ProblemError(Code.SIGN_IN_FAILED, "the answer is of another issuer than this browser was sent to")
    if "error" in given:
        why = (given.get("error_description") or given["error"])[:_SHOWN]
        raise ProblemError(Code.SIGN_IN_FAILED, f"the issuer {issuer.name!r} has refused: {why}")
    code = given.get("code", "")
    if not 0 < len(code) <= _LONGEST_CODE:
        raise ProblemError(Code.SIGN_IN_FAILED, "the answer of the issuer has no code")
    secret = await _session_for(request, state, issuer, pending, code)
    answer = _redirect(pending.return_to, browser.cookie(request.scope, secret))
    answer.headers.append("Set-Cookie", set_cookie(name, "", 0, is_secure=browser.is_secure(request.scope)))
    return answer


def _single(request: Request) -> dict[str, str]:
    """Return the parameters of the issuer's answer. Raises ProblemError for one that it has twice: either could count."""
    pairs = request.query_params.multi_items()
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProblemError(Code.SIGN_IN_FAILED, "the answer of the issuer has a parameter twice")
    return found


async def _session_for(request: Request, state: State, issuer: Issuer, pending: PendingSignIn, code: str) -> str:
    """Return the secret of a new session for whom the issuer's code is. Raises ProblemError."""
    browser, sign_ins = _sessions(state), state.sign_ins
    assert sign_ins is not None  # noqa: S101 - as there are sessions of browsers
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": browser.origin + _CALLBACK,
        "code_verifier": pending.verifier,
    }
    status, tokens = await sign_ins.keys_of(issuer).ask_for_tokens(form)
    if status != _OK or not isinstance(tokens.get("id_token"), str):
        why = tokens.get("error_description") or tokens.get("error") or f"it answers {status} without an ID token"
        raise ProblemError(Code.SIGN_IN_FAILED, f"the issuer {issuer.name!r} does not take its code: {why!s:.200}")
    try:
        account = await sign_ins.read(tokens["id_token"], issuer, nonce=pending.nonce)
    except ProblemError as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        raise ProblemError(Code.SIGN_IN_FAILED, error.detail) from error
    caller = await sign_ins.caller_of(account)
    old = browser.secret_of(request.scope)
    refresh = str(tokens.get("refresh_token") or "")
    secret = await browser.begin(caller, pending.state, refresh, old, id_token=tokens["id_token"])
    async with state.stores.database.transaction() as tx:
        await note(tx, caller, "sign in", caller.name, {"issuer": issuer.name})
    return secret


def _redirect(address: str, cookie: str) -> Response:
    headers = {"Location": address, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    answer = Response(status_code=303, headers=headers)
    answer.headers.append("Set-Cookie", cookie)
    return answer
