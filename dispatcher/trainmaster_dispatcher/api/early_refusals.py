"""A pure ASGI layer before the routes: refuses calls over a limit, at a fraction of the cost of the routes' layers.

It counts all calls without a key by their address. Of calls with a key it refuses only those that the routes would refuse, with the
same answer, using only what this process has cached.
"""

from collections.abc import Callable

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.asgi import App, Receive, Scope, Send, request_id
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.docs_pages import DOCUMENTS
from trainmaster_dispatcher.api.kube.objects import GROUP_VERSION
from trainmaster_dispatcher.api.kube.status import status_of
from trainmaster_dispatcher.api.limits import CALL, Call
from trainmaster_dispatcher.store.keys import Caller

_CALLS = {"http": "", "websocket": "websocket."}
"""The types of calls, each with what precedes the types of its messages."""
_USERS, _AGENTS = "/v1/", "/agent/"
_KUBERNETES = (f"/apis/{GROUP_VERSION}/", "/api/v1/")
"""Objects of the Kubernetes API, which need a key. Its discovery needs none, and clients send theirs."""
_DISCOVERY = ("/apis", "/api", "/openapi/")
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Each is counted by itself: whatever else comes from the same address, a probe is answered."""
_PAGES = "pages"
"""The name under which all other calls that need no key are counted."""
_DOCUMENTS = frozenset(DOCUMENTS.values())
_MOST_DRAINED = 65_536
"""The most bytes of a body that are read to keep the connection open."""


class EarlyRefusals:
    """The ASGI wrapper of the routes. ``state``: the application's state, None before it has started."""

    def __init__(self, app: App, state: Callable[[], State | None]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state()
        if state is None or scope["type"] not in _CALLS:
            await self._app(scope, receive, send)
            return
        problem = _problem(state, scope)
        if problem is None:
            await self._app(scope, receive, send)
            return
        await state.limits.slow_down()
        prefix, is_read = _CALLS[scope["type"]], scope["type"] == "websocket" or await _drain(receive)
        is_status = scope["path"].startswith(_DISCOVERY)
        value = status_of(problem) if is_status else problem.to_problem(scope["path"]) | {"requestId": request_id.get()}
        body = orjson.dumps(value)
        headers = [
            (b"content-type", b"application/json" if is_status else b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"retry-after", b"%d" % problem.pause_seconds),
        ]
        if not is_read:
            headers.append((b"connection", b"close"))
        await send({"type": f"{prefix}http.response.start", "status": problem.code.status, "headers": headers})
        await send({"type": f"{prefix}http.response.body", "body": body})


def _problem(state: State, scope: Scope) -> ProblemError | None:
    """Return why a call is refused, if its key or its address is over a limit."""
    path = scope["path"]
    address = scope["client"][0] if scope.get("client") else ""
    needs_key = path.startswith((_USERS, _AGENTS, *_KUBERNETES)) and path not in _DOCUMENTS
    if not needs_key and (path in _PROBES or not path.startswith(_DISCOVERY)):
        return state.limits.keyless(address, path if path in _PROBES else _PAGES)
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, secret = given.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        session = _caller_by_session(state, scope) if needs_key and not given else None
        if session is None:
            return state.limits.keyless(address, "" if needs_key else _PAGES)
        problem = state.limits.over_rate(session) if session.is_limited else None
        if problem is not None:
            scope[CALL] = Call(session)
        return problem
    if path.startswith(_AGENTS):
        return None
    is_known, caller = state.known(secret.strip())
    if not needs_key:
        return state.limits.keyless(address, _PAGES) if caller is None else None
    if caller is not None and caller.is_limited:
        problem = state.limits.over_rate(caller)
        if problem is not None:
            scope[CALL] = Call(caller)
        return problem
    if is_known and caller is None and not state.limits.may_look(address):
        problem = state.limits.wrong_key(address)
        return problem if problem.code is Code.TOO_MANY_REQUESTS else None
    return None


def _caller_by_session(state: State, scope: Scope) -> Caller | None:
    """Return the caller of a browser's session that this process has checked within the last second."""
    if state.browser is None or not scope["path"].startswith(_USERS):
        return None
    secret = state.browser.secret_of(scope)
    return state.browser.known(secret) if secret else None


async def _drain(receive: Receive) -> bool:
    """Read a small body; return whether the whole body was read."""
    read = 0
    while read <= _MOST_DRAINED:
        message = await receive()
        read += len(message.get("body", b""))
        if not message.get("more_body"):
            return True
    return False
