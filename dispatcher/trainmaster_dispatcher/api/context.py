"""The context of each request: the stores, the caller, and answers that are given once per idempotency key.

Answers are sent through ``answer``, which removes what the caller may not read: see ``domain.redaction``.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.json_limits import path_step
from trainmaster.protocol.permissions import KIND_WRITE, Permission
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster_dispatcher.api.agent_bodies import AgentBodies
from trainmaster_dispatcher.api.asgi import client_address, request_id
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.api.kube.declared_views import DeclaredViews
from trainmaster_dispatcher.api.kube.job_watches import JobWatches
from trainmaster_dispatcher.api.kube.object_changes import ObjectChanges
from trainmaster_dispatcher.api.kube.watch_turns import WatchTurns
from trainmaster_dispatcher.api.leader import LeaderOverHttp
from trainmaster_dispatcher.api.limits import Limits
from trainmaster_dispatcher.api.openapi import PERMISSION, check_parameters
from trainmaster_dispatcher.api.parsing import Parser
from trainmaster_dispatcher.domain.id_claims import Issuer
from trainmaster_dispatcher.domain.redaction import nothing, rendered_json
from trainmaster_dispatcher.services import schedules, workflow_objects
from trainmaster_dispatcher.services.auditing import REFUSED, Refusals
from trainmaster_dispatcher.services.cluster_admissions import ClusterAdmissions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.event_feed import EventFeed
from trainmaster_dispatcher.services.followers import Followers
from trainmaster_dispatcher.services.group_commit import GroupCommits
from trainmaster_dispatcher.services.member_streams import MemberStreamMeetings
from trainmaster_dispatcher.services.namespace_reads import NamespaceReads
from trainmaster_dispatcher.services.ownership import check_owns
from trainmaster_dispatcher.services.page_changes import PageChanges
from trainmaster_dispatcher.services.sessions import ActiveJobs
from trainmaster_dispatcher.services.shared_reads import SharedReads
from trainmaster_dispatcher.services.submission_parsing import mistaken, parse_json
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import AuditLine, Caller, Claim

if TYPE_CHECKING:
    from trainmaster_dispatcher.api.browser_sessions import BrowserSessions
    from trainmaster_dispatcher.api.sign_ins import SignIns  # which loads cryptography

Model = TypeVar("Model", bound=BaseModel)
_MOST_MODEL_BYTES = 64 * 1024
"""The most bytes of a body that is parsed while nothing else is done; submissions are parsed in processes of their own."""
_MOST_LARGE_BYTES = 1024 * 1024
_MOST_MODEL_MARKS = 300_000

_NO_ISSUER = (
    "this is a token, and the dispatcher has no OpenID Connect issuer: it takes API keys, which look like tmk_..."
)

BROWSER_SESSION = "trainmaster.browser-session"
"""The key of the secret of a browser's session in the scope of a call that was admitted by it."""
_OF_BROWSERS = "/v1/"
"""What sessions of browsers open: no calls of agents, and none of the Kubernetes API."""

_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The caller of this context's request, once known."""


class State:
    """The state that the application holds for all requests."""

    def __init__(self, stores: Stores, parser: Parser, issuers: Sequence[Issuer] = ()) -> None:
        self.stores = stores
        self.parser = parser
        self.agent_bodies = AgentBodies()
        self.keyring = Keyring(stores, trusted={one.url for one in issuers})
        self.issuers = issuers
        self.sign_ins: SignIns | None = None
        """None until people may sign in with accounts of the issuers."""
        self.browser: BrowserSessions | None = None
        """Of an api for users, once it has started."""
        self.limits = Limits(stores.settings)
        self.admissions = ClusterAdmissions(stores)
        self.followers = Followers(stores)
        self.events = EventFeed(stores)
        self.job_lists = SharedReads[dict[str, Any]]()
        self.queue_lists = SharedReads[dict[str, Any]]()
        self.page_changes = PageChanges(stores, self.events)
        self.watches = JobWatches(stores, self.events)
        self.schedule_changes = ObjectChanges(stores, schedules.changed)
        self.workflow_changes = ObjectChanges(stores, workflow_objects.changed)
        self.watch_turns = WatchTurns()
        self.group_commits = GroupCommits(stores)
        self.namespaces = NamespaceReads(stores)
        self.leader = LeaderOverHttp()
        self.declared_views = DeclaredViews(stores, self.leader)
        self.refusals = Refusals()
        self.member_streams = MemberStreamMeetings()
        self.active_jobs = ActiveJobs()

    def known(self, secret: str) -> tuple[bool, Caller | None]:
        """Return whether the caller of a key or token is known without reading the store, and the caller."""
        if not looks_like_token(secret):
            return self.keyring.known(secret)
        caller = None if self.sign_ins is None else self.sign_ins.known(secret)
        return caller is not None, caller

    async def caller_of(self, secret: str, address: str) -> Caller:
        """Return the caller of a key or token from an address. Raises ProblemError."""
        may_look = self.limits.may_look(address)
        if not looks_like_token(secret):
            caller = await self.keyring.caller(secret, may_be_new=may_look)
            if caller is None:
                raise self.limits.wrong_key(address)
            return caller
        if self.sign_ins is None:
            raise self.limits.wrong_key(address, _NO_ISSUER)
        try:
            return await self.sign_ins.caller(secret, may_read=may_look)
        except ProblemError as error:
            if error.code is Code.UNAUTHENTICATED:
                raise self.limits.wrong_key(address, error.detail) from error
            raise


def looks_like_token(secret: str) -> bool:
    """Return whether a secret is a JSON Web Token, which begins with the base64 of ``{"``, and no API key."""
    return secret.startswith("eyJ") and "." in secret


async def state_of(request: HTTPConnection) -> State:
    """Return the application's state. Async, as FastAPI would call a plain function in a thread, for each request again."""
    state: State = request.app.state.trainmaster
    return state


async def any_caller(request: HTTPConnection) -> Caller:
    """Return the caller, once its call may begin. Raises ProblemError UNAUTHENTICATED or TOO_MANY_REQUESTS."""
    state = await state_of(request)
    try:
        return await _admitted(request, state)
    except ProblemError as error:
        if error.code is Code.TOO_MANY_REQUESTS:
            await state.limits.slow_down()
        raise


def session_of(request: HTTPConnection, state: State) -> str:
    """Return the secret of the browser's session of a call; empty where it has none, or a key or token, which comes first."""
    scope = request.scope
    if state.browser is None or not scope["path"].startswith(_OF_BROWSERS) or "authorization" in request.headers:
        return ""
    return state.browser.secret_of(scope)


async def _admitted(request: HTTPConnection, state: State) -> Caller:
    address = request.client.host if request.client else ""
    if state.browser is not None and (session := session_of(request, state)):
        state.browser.check_origin(request, session)
        caller = await state.browser.caller(session)
        request.scope[BROWSER_SESSION] = session
        _caller.set(caller)
        await state.limits.admit(request.scope, caller)
        return caller
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise ProblemError(Code.UNAUTHENTICATED, "send the API key as 'Authorization: Bearer KEY'")
    caller = await state.caller_of(secret.strip(), address)
    _caller.set(caller)
    await state.limits.admit(request.scope, caller)
    return caller


async def caller_with_key(request: HTTPConnection, state: State, key: str) -> Caller:
    """Return the caller with an API key that the body of a call has, for the own account, once the call may begin.

    It counts as one in the header Authorization. Raises ProblemError UNAUTHENTICATED, FORBIDDEN or TOO_MANY_REQUESTS.
    """
    address = request.client.host if request.client else ""
    try:
        if looks_like_token(key):
            raise state.limits.wrong_key(address, "this is a token and no API key, which looks like tmk_...")
        caller = await state.caller_of(key, address)
        _caller.set(caller)
        if caller.role is KeyRole.AGENT:
            raise ProblemError(
                Code.FORBIDDEN, f"{caller.title} is of an agent, and nobody signs in by a browser with it"
            )
        await state.limits.admit(request.scope, caller)
    except ProblemError as error:
        if error.code is Code.TOO_MANY_REQUESTS:
            await state.limits.slow_down()
        raise
    return _restricted(caller.with_permission(Permission.ACCOUNT))


async def _check_call(request: Request, caller: Caller) -> None:
    """Refuse what would be ignored: parameters that the call does not have, and a body where it takes none. Raises ProblemError."""
    if caller.role is not KeyRole.AGENT:
        check_parameters(request)
    await check_no_body(request)


async def check_no_body(request: Request) -> None:
    """Refuse a body with fields where the call takes none: what it says would be ignored. Raises ProblemError."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or "requestBody" in (route.openapi_extra or {}):
        return
    body = await request.body()
    if not body.strip():
        return
    if len(body) > _MOST_MODEL_BYTES:
        raise _too_large(body, _MOST_MODEL_BYTES)
    value = parse_json(body, _MOST_MODEL_MARKS)
    if value == {}:
        return
    message = "this call takes no body, so this would be ignored; leave it out"
    if isinstance(value, dict):
        raise mistaken(*(Mistake(path=path_step(name, is_first=True), message=message) for name in value))
    raise mistaken(Mistake(path="", message="this call takes no body; send none, or {}"))


async def with_permission(request: HTTPConnection, permission: Permission) -> Caller:
    """Return the caller with what it may use by a permission. Raises ProblemError UNAUTHENTICATED or FORBIDDEN."""
    return _restricted((await any_caller(request)).with_permission(permission))


def _restricted(caller: Caller) -> Caller:
    _caller.set(caller)  # what is answered is what this caller may read
    return caller


def needs(
    *permissions: Permission, of_cluster: bool = False, goes_on: bool = False
) -> Callable[..., Awaitable[Caller]]:
    """Return the check of a caller's permission; of several, one is enough, and the caller's rights are not narrowed to it.

    ``of_cluster``: an owner's call must be about one of the owner's clusters, which is in its address. ``goes_on``: another check
    follows, and parameters and body are not looked at yet.
    """

    # The caller is no dependency of its own, and neither are the checks: each costs every call 30 microseconds.
    async def check(request: Request) -> Caller:
        caller = await any_caller(request)
        if len(permissions) == 1:
            caller = _restricted(caller.with_permission(permissions[0]))
        elif not any(map(caller.has, permissions)):
            listed = " or ".join(permissions)
            raise ProblemError(
                Code.FORBIDDEN, f"this needs the permission {listed}; {caller.title} has the role {caller.roles}"
            )
        if of_cluster:
            check_owns(caller, request.path_params["name"])
        if not goes_on:
            await _check_call(request, caller)
        return caller

    setattr(check, PERMISSION, permissions)
    return check


_ANY_WRITE = tuple(dict.fromkeys(KIND_WRITE.values()))
account = needs(Permission.ACCOUNT)
Account = Annotated[Caller, Depends(account)]
JobLister = Annotated[Caller, Depends(needs(Permission.JOBS_LIST))]
JobReader = Annotated[Caller, Depends(needs(Permission.JOBS_READ))]
JobSubmitter = Annotated[Caller, Depends(needs(Permission.JOBS_SUBMIT))]
JobChanger = Annotated[Caller, Depends(needs(Permission.JOBS_CHANGE))]
JobConnector = Annotated[Caller, Depends(needs(Permission.JOBS_CONNECT))]
QueueReader = Annotated[Caller, Depends(needs(Permission.QUEUES_READ))]
PolicyReader = Annotated[Caller, Depends(needs(Permission.POLICIES_READ))]
PolicyWriter = Annotated[Caller, Depends(needs(Permission.POLICIES_WRITE))]
ClusterReader = Annotated[Caller, Depends(needs(Permission.CLUSTERS_READ))]
ClusterOperator = Annotated[Caller, Depends(needs(Permission.CLUSTERS_OPERATE, of_cluster=True))]
"""Who may operate the cluster in the call's address."""
ClusterWriter = Annotated[Caller, Depends(needs(Permission.CLUSTERS_WRITE))]
UsageReader = Annotated[Caller, Depends(needs(Permission.USAGE_READ))]
KeyReader = Annotated[Caller, Depends(needs(Permission.KEYS_READ))]
KeyRevoker = Annotated[Caller, Depends(needs(Permission.KEYS_REVOKE))]
KeyWriter = Annotated[Caller, Depends(needs(Permission.KEYS_WRITE))]
AccessReader = Annotated[Caller, Depends(needs(Permission.ACCESS_READ))]
AuditReader = Annotated[Caller, Depends(needs(Permission.AUDIT_READ))]
SimulationReader = Annotated[Caller, Depends(needs(Permission.SIMULATIONS_READ))]
SimulationRunner = Annotated[Caller, Depends(needs(Permission.SIMULATIONS_RUN))]
HealthReader = Annotated[Caller, Depends(needs(Permission.HEALTH_READ))]
Declarer = Annotated[Caller, Depends(needs(*_ANY_WRITE))]
"""Who may change declared objects of any kind; each change is checked by itself."""
Agent = Annotated[Caller, Depends(needs(Permission.AGENT))]
App = Annotated[State, Depends(state_of)]


def readable(value: Any) -> bytes:
    """Return a value as JSON, without what the caller of this request may not read."""
    caller, payload = _caller.get(), orjson.dumps(value)
    if caller is not None and caller.role is KeyRole.AGENT:
        return payload  # nothing is said to agents of other jobs, and specifications must reach them as they are
    return rendered_json(payload, nothing if caller is None else caller.may_use)


async def note_changes(tx: Transaction, caller: Caller, changes: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Write a line of the audit for each change of this request: its action, target and details. In their transaction."""
    lines = [
        AuditLine(caller.key_id, caller.name, action, target, request_id.get(), client_address.get(), details)
        for action, target, details in changes
    ]
    if lines:
        await keys.note_lines(tx, lines)


async def note(
    tx: Transaction, caller: Caller, action: str, target: str, details: Mapping[str, Any] | None = None
) -> None:
    """Write the audit line of this request, in the transaction of the change."""
    await keys.note_audit(tx, caller, action, target, request_id.get(), details, client_address.get())


def note_refusal(request: HTTPConnection, error: ProblemError) -> None:
    """Count this request for the audit, if it was refused for lack of a key or a right."""
    if error.code in REFUSED:
        caller = _caller.get()
        route = f"{request.scope.get('method', 'GET')} {request.url.path}"
        state: State = request.app.state.trainmaster
        state.refusals.note(error, caller.name if caller else "", client_address.get(), route, request_id.get())


def answer(value: Any, status: int = 200) -> Response:
    """Return a value as the answer to the caller of this request."""
    return Response(readable(value), status_code=status, media_type="application/json")


async def read_large_model(model: type[Model], body: bytes, most: int = _MOST_LARGE_BYTES) -> Model:
    """Parse a body of at most ``most`` bytes, in a thread if it is not small. Raises ProblemError with each mistake."""
    if len(body) <= _MOST_MODEL_BYTES:
        return read_model(model, body)
    return await asyncio.to_thread(read_model, model, body, most)


def read_model(model: type[Model], body: bytes, most: int = _MOST_MODEL_BYTES) -> Model:
    """Parse a body of at most ``most`` bytes at once. Raises ProblemError with each mistake."""
    if len(body) > most:
        raise _too_large(body, most)
    value = parse_json(body, _MOST_MODEL_MARKS)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = mistakes_of(error)
        raise ProblemError(Code.INVALID_SPEC, worded(mistakes[0]), mistakes=mistakes) from error


def _too_large(body: bytes, most: int) -> ProblemError:
    return ProblemError(Code.BODY_TOO_LARGE, f"a body of this call may have at most {most} bytes, not {len(body)}")


async def once(
    request: Request,
    state: State,
    caller: Caller,
    body: bytes,
    work: Callable[[Transaction], Awaitable[tuple[int, Any]]],
    *,
    action: str = "",
    target: str = "",
    details: Mapping[str, Any] | None = None,
) -> Response:
    """Do a change, its audit row and its idempotency key in one transaction; a repeated key gets the first answer again.

    ``work`` may fill in the audit's ``details``. Without an ``action``, it writes the audit itself.

    Raises ProblemError IDEMPOTENCY_MISMATCH when the key came with another body before.
    """
    claim, body_hash = idempotency(request, caller, body)
    async with state.stores.database.transaction() as tx:
        if claim is not None:
            kept = await keys.claim_idempotency(tx, claim, body_hash)
            if kept is not None:
                return _replay(claim, kept, body_hash)
        status, value = await work(tx)
        payload = readable(value)
        if action:
            await note(tx, caller, action, target, details)
        if claim is not None:
            await keys.keep_answers(tx, {claim: (status, payload)})
    return Response(payload, status_code=status, media_type="application/json")


class _UndoneError(Exception):
    """The end of a dry run, with its answer."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


async def try_out(
    request: Request,
    state: State,
    caller: Caller,
    body: bytes,
    work: Callable[[Transaction], Awaitable[tuple[int, Any]]],
) -> Response:
    """Do a change and undo it; return the answer that ``once`` would give. An idempotency key is checked, and not kept."""
    idempotency(request, caller, body)
    try:
        async with state.stores.database.transaction() as tx:
            raise _UndoneError(await work(tx))
    except _UndoneError as undone:
        status, value = undone.value
    return answer(value, status)


async def once_in_parts(
    request: Request,
    state: State,
    caller: Caller,
    body: bytes,
    work: Callable[[], Awaitable[tuple[int, Any]]],
    *,
    action: str,
    target: str,
    details: Mapping[str, Any] | None = None,
) -> Response:
    """Do a change like ``once``, for work in transactions of its own: its idempotency key is claimed before the work.

    A key whose work is in progress, or was cut off, lets the same body do the work again: such work changes nothing when repeated.
    """
    claim, body_hash = idempotency(request, caller, body)
    if claim is not None:
        async with state.stores.database.transaction() as tx:
            kept = await keys.claim_idempotency(tx, claim, body_hash)
        if kept is not None and (kept[1] or kept[0] != body_hash):
            return _replay(claim, kept, body_hash)
    try:
        status, value = await work()
    except ProblemError:
        if claim is not None:
            async with state.stores.database.transaction() as tx:
                await keys.drop_claims(tx, [claim])
        raise
    payload = readable(value)
    async with state.stores.database.transaction() as tx:
        await note(tx, caller, action, target, details)
        if claim is not None:
            await keys.keep_answers(tx, {claim: (status, payload)})
    return Response(payload, status_code=status, media_type="application/json")


def idempotency(request: Request, caller: Caller, body: bytes) -> tuple[Claim | None, bytes]:
    """Return the request's idempotency key, if it has one, and a fingerprint of its body."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 200:
        raise ProblemError(Code.INVALID_PARAMETER, "an Idempotency-Key has 1 to 200 characters")
    claim = None if key is None else Claim(caller.key_id, f"{request.method} {request.url.path}", key)
    return claim, hashlib.sha256(body).digest()


def _replay(claim: Claim, kept: tuple[bytes, int, bytes], body_hash: bytes) -> Response:
    if kept[0] != body_hash:
        raise ProblemError(
            Code.IDEMPOTENCY_MISMATCH,
            f"the idempotency key {claim.key!r} came with another body or other parameters before",
        )
    return Response(
        kept[2], status_code=kept[1], media_type="application/json", headers={"Idempotency-Replayed": "true"}
    )
