"""A pure ASGI layer around the application: request ids, a limit on bodies, the access log."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextvars import ContextVar
from typing import Any

import orjson
from fastapi import FastAPI

from trainmaster import process_logs
from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.tracing import recording
from trainmaster_dispatcher.api.limits import CALL, METER, Call
from trainmaster_dispatcher.api.turns import Meter

log = logging.getLogger("trainmaster.access")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Ahead = Callable[[Scope, Receive, Send], Awaitable[bool]]
"""Answers calls that are not for the application; returns whether a call was one of those."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
client_address: ContextVar[str] = ContextVar("client_address", default="")
"""The address from which the request of this context comes, as trusted proxies report it."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


_AGENTS = "/agent/"
_STOPPING = ProblemError(
    Code.TOO_BUSY, "this api is stopping; call again, to reach another one or its successor", retry_after=1.0
)
_LINES = b"application/x-ndjson"
_SWITCHING = 101
_SMALL_BODY = 65_536
_LONGEST_PATH = 500
"""The most characters of a path in the log, so that long paths cannot fill the log."""


class Envelope:
    """The ASGI wrapper of the application. Bodies are held in memory until they are answered, ``most_at_once`` bytes in all.

    Those of agents are counted apart, ``most_of_agents`` bytes in all. ``routes``: the innermost part of the application. ``ahead``
    has its calls first, without any of this.
    """

    def __init__(
        self,
        app: App,
        largest_body: int,
        most_at_once: int,
        most_of_agents: int,
        routes: FastAPI | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        self._app = app
        self._ahead = ahead
        self.routes = routes
        self.largest = largest_body
        self.most_at_once = max(most_at_once, largest_body)
        self.most_of_agents = max(most_of_agents, largest_body)
        self.held = 0
        self.held_of_agents: Counter[object] = Counter()
        """Bytes of agents' bodies by API key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ahead is not None and await self._ahead(scope, receive, send):
            return
        serving = {"http": self._serve, "websocket": self._serve_web_socket}
        await serving.get(scope["type"], self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        own = _id_of(headers)
        mark = request_id.set(own)
        client_address.set(_address(scope))
        began, status = time.perf_counter(), 0
        media_type: bytes | None = None
        method = scope["method"]
        if method == "HEAD":
            scope = {**scope, "method": "GET"}

        body: _Body = (_AgentsBody if scope["path"].startswith(_AGENTS) else _Body)(self, scope, receive)

        async def marked_send(message: Message) -> None:
            nonlocal status, media_type
            if message["type"] == "http.response.start":
                status = message["status"]
                media_type = dict(message.get("headers", ())).get(b"content-type", b"")
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own.encode())]
            elif method == "HEAD":
                return
            await send(message)
            if method == "HEAD":
                # The answer is complete; a stream ends here, as its caller is gone.
                await send({"type": "http.response.body"})

        with process_logs.about(**_log_fields(own, headers)):
            try:
                length = headers.get(b"content-length", b"0")
                said = body.said = int(length) if length.isdigit() else 0
                if said > self.largest:
                    await _refuse(self.too_large(), scope, own, marked_send)
                elif not body.is_admitted():
                    await _refuse(self.too_many(), scope, own, marked_send)
                else:
                    meter = scope[METER] = Meter()
                    await meter.run(self._app(scope, body.receive, marked_send))
            except asyncio.CancelledError:
                # A server that stops cancels what still runs, such as long polls and streams, and logs the traceback of what
                # does not end. Of other methods nobody knows what has been done: their connections are cut.
                if method not in ("GET", "HEAD"):
                    raise
                await _end(scope, own, marked_send, media_type)
            finally:
                body.release()
                call: Call | None = scope.get(CALL)
                if call is not None:
                    call.end()
                _tell(scope, method, call, status, time.perf_counter() - began)
                request_id.reset(mark)

    async def _serve_web_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, whose line in the access log is written at its end."""
        headers = dict(scope["headers"])
        own = _id_of(headers)
        mark = request_id.set(own)
        client_address.set(_address(scope))
        began, status = time.perf_counter(), 0

        async def marked_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = _SWITCHING
            elif message["type"] == "websocket.http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own.encode())]
            await send(message)

        with process_logs.about(**_log_fields(own, headers)):
            try:
                await self._app(scope, receive, marked_send)
            finally:
                call: Call | None = scope.get(CALL)
                if call is not None:
                    call.end()
                _tell(scope, "GET", call, status, time.perf_counter() - began)
                request_id.reset(mark)

    def too_large(self) -> ProblemError:
        metrics.http_bodies_refused.inc()
        return ProblemError(Code.BODY_TOO_LARGE, f"a body may have at most {self.largest} bytes")

    def too_many(self) -> ProblemError:
        metrics.http_bodies_refused.inc()
        return ProblemError(Code.TOO_BUSY, "too many large bodies are being read; try again", retry_after=1.0)


class _Body:
    """The body of one request, counted while it is received. Small bodies are always accepted."""

    def __init__(self, envelope: Envelope, scope: Scope, receive: Receive) -> None:
        self._envelope = envelope
        self._receive = receive
        self._scope = scope
        self.said = 0
        """The length that the request's header says."""
        self._read = 0
        self._reserved = 0

    def is_admitted(self) -> bool:
        """Return whether the request may be handled: all of its body is reserved."""
        return self.has_room(self.said)

    def has_room(self, size: int) -> bool:
        """Return whether all bodies together stay within the limit, once ``size`` bytes are reserved for this one."""
        if size <= max(self._reserved, _SMALL_BODY):
            return True
        self._envelope.held += size - self._reserved
        self._reserved = size
        return self._envelope.held <= self._envelope.most_at_once

    def release(self) -> None:
        self._envelope.held -= self._reserved

    async def receive(self) -> Message:
        """Return the next message. Raises ProblemError for a body that is too large, or one body too many.

        Bodies that arrive too slowly are ended by the connection; see ``http_connections``.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._envelope.largest:
                raise self._envelope.too_large()
            if not self.has_room(self._read):
                raise self._envelope.too_many()
        return message


class _AgentsBody(_Body):
    """The body of an agent's request. It is counted by API key, from when it is asked for, which is after the key was checked.

    What has come is counted, not what is announced: a body that an agent's broken connection left behind must not hold up that
    agent's next one. A key may have as many bytes as one largest body; small bodies are refused only beyond that.
    """

    _key: object = None

    def is_admitted(self) -> bool:
        return True

    def has_room(self, size: int) -> bool:
        held, more = self._envelope.held_of_agents, size - self._reserved
        if held[self._key] + more > self._envelope.largest:
            return False
        return size <= _SMALL_BODY or held.total() + more <= self._envelope.most_of_agents

    def release(self) -> None:
        self._count(-self._reserved)

    async def receive(self) -> Message:
        """Return the next message. Raises ProblemError for a body that is too large, or one body too many."""
        if self._key is None:
            call: Call | None = self._scope.get(CALL)
            self._key = _address(self._scope) if call is None else call.caller.key_id
            if not self.has_room(self.said):
                raise self._envelope.too_many()
        message = await super().receive()
        self._count(self._read - self._reserved)
        return message

    def _count(self, more: int) -> None:
        held = self._envelope.held_of_agents
        held[self._key] += more
        self._reserved += more
        if not held[self._key]:
            del held[self._key]


def _id_of(headers: dict[bytes, bytes]) -> str:
    """Return the id that the caller has given its request, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if given.isascii() and given.isprintable() and 0 < len(given) <= 64 else secrets.token_hex(8)


def _log_fields(own: str, headers: dict[bytes, bytes]) -> dict[str, str]:
    """Return the fields of all log lines of a request: its id, and the caller's span where this process makes spans."""
    fields = {"request_id": own}
    if recording.recorder is not None:
        fields |= recording.log_fields(headers.get(b"traceparent", b"").decode("latin-1"))
    return fields


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0])[:64] if client else ""


async def _refuse(problem: ProblemError, scope: Scope, own: str, send: Send) -> None:
    """Answer without reading the body, and close the connection."""
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    if problem.retry_after is not None:
        headers.append((b"retry-after", b"%d" % problem.pause_seconds))
    await send({"type": "http.response.start", "status": problem.code.status, "headers": headers})
    body = problem.to_problem(scope["path"]) | {"requestId": own}
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


async def _end(scope: Scope, own: str, send: Send, media_type: bytes | None) -> None:
    """Complete an answer that has begun with a media type; else refuse the call, as this api is stopping.

    Lines of JSON end with one that says that they are not whole, so that a reader goes on elsewhere.
    """
    if media_type is None:
        await _refuse(_STOPPING, scope, own, send)
        return
    words = b"\n" + orjson.dumps({"problem": _STOPPING.to_problem(scope["path"])}) + b"\n"
    await send({"type": "http.response.body", "body": words if media_type.startswith(_LINES) else b""})


def _tell(scope: Scope, method: str, call: Call | None, status: int, seconds: float) -> None:
    """Write the line of the access log, and count the request under its route, never under its path, which may name a job."""
    extra: dict[str, object] = {"status": status, "seconds": round(seconds, 4)}
    if client := scope.get("client"):
        extra["client"] = client[0]
    if call is not None:
        extra |= {"key_id": call.caller.key_id, "key": call.caller.name}
    if job := scope.get("path_params", {}).get("job_id"):
        extra["job_id"] = job
    log.info("%s %s %d", method, scope["path"][:_LONGEST_PATH], status, extra=extra)
    method = method if method in _METHODS else "other"
    route = getattr(scope.get("route"), "path", "none")
    metrics.http_requests.labels(method, route, str(status or "none")).inc()
    metrics.http_request_seconds.labels(method, route).observe(seconds)
