"""A pure ASGI layer ahead of the application: requests whose host is that of a port of a job go to that port of its first member.

    browser ──HTTP, WebSocket──▶ api ──frames of a stream──▶ agent ──▶ member

Each port of each job is an origin of its own. Bodies are passed on piece by piece: a slow side makes the other one of its own
connection wait, and no other.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import h11

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.sessions import NamedHost, parse_host
from trainmaster_dispatcher.api.asgi import Receive, Scope, Send
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.proxied_web_sockets import serve_web_socket
from trainmaster_dispatcher.api.session_gate import Entry, SessionGate, Upstream
from trainmaster_dispatcher.api.session_pages import refusal_page
from trainmaster_dispatcher.domain import proxied_headers
from trainmaster_dispatcher.services.member_connections import MemberPortError
from trainmaster_dispatcher.services.member_streams import bulk_turns
from trainmaster_dispatcher.services.session_access import COOKIE_SECONDS

log = logging.getLogger("trainmaster.access")

ENTER = "/.trainmaster/enter"
_TYPES = {"http": "", "websocket": "websocket."}
"""The types of calls, each with what precedes the types of its messages."""
_SECURE = ("https", "wss")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_REPEATABLE = ("GET", "HEAD", "OPTIONS")
"""Methods of requests that are sent again on another connection where the member had closed the one that was used before."""
_LONGEST_PATH = 500
_SWITCHING = 101
_STARTING = ProblemError(Code.TOO_BUSY, "this api is about to start or to stop; try again", retry_after=1.0)
_BAD_GATEWAY = 502
_GATEWAY = (Code.WRONG_STATE, Code.METHOD_NOT_ALLOWED)
"""What keeps a member from being reached: the failure is not the browser's."""


class _AnsweredError(Exception):
    """An answer has begun and cannot be completed."""


class SessionProxy:
    """The requests of one process. ``state``: the application's state, None before it has started."""

    def __init__(self, domain: str, state: Callable[[], State | None]) -> None:
        self._domain = domain
        self._state = state
        self._gate: SessionGate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a call that is for a port; return False for one that is for the application."""
        if scope["type"] not in _TYPES:
            return False
        host = parse_host(proxied_headers.value_of(scope["headers"], b"host").decode("latin-1"), self._domain)
        if host is None:
            return False
        await self._answer(host, scope, receive, send)
        return True

    async def _answer(self, host: NamedHost, scope: Scope, receive: Receive, send: Send) -> None:
        own, began, status = secrets.token_hex(8), time.perf_counter(), 0
        prefix = _TYPES[scope["type"]]

        async def marked_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == f"{prefix}http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = _SWITCHING
            await send(message)

        refusal: ProblemError | None = None
        user = ""
        try:
            entry = await self._serve(host, scope, receive, marked_send, own)
            user = "" if entry is None else entry.caller.name
        except _AnsweredError:
            pass  # the server cuts the connection, by which the browser knows
        except asyncio.CancelledError:
            # A server that stops cancels what still runs, and logs the traceback of what does not end.
            refusal = _STARTING
        except ProblemError as error:
            refusal = error
        except (h11.ProtocolError, MemberPortError) as error:
            refusal = ProblemError(Code.WRONG_STATE, f"{host.label}: {error}")
        finally:
            if refusal is not None and not status:
                await _refuse(refusal, host, scope, marked_send)
            _tell(host, scope, user, status, time.perf_counter() - began)

    async def _serve(
        self, host: NamedHost, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> Entry | None:
        state = self._state()
        if state is None:
            raise _STARTING
        if self._gate is None:
            self._gate = SessionGate(state)
        gate = self._gate
        headers, address = scope["headers"], scope["client"][0] if scope.get("client") else ""
        is_secure, is_web_socket = scope["scheme"] in _SECURE, scope["type"] == "websocket"
        if scope["path"] == ENTER and not is_web_socket:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
            cookie, path = await gate.enter(host, given[:200], address, request_id)
            await _redirect(path, proxied_headers.set_cookie(cookie, COOKIE_SECONDS, is_secure=is_secure), send)
            return None
        if proxied_headers.is_foreign(scope.get("method", "GET"), headers, is_web_socket=is_web_socket):
            raise ProblemError(Code.FORBIDDEN, "a page of another host made this request; open the session's own page")
        entry = await gate.admit(host, proxied_headers.cookies_of(headers, is_secure=is_secure), address)
        gate.note_use(entry)
        if is_web_socket:
            await serve_web_socket(gate, entry, scope, receive, send)
        else:
            await _pass_on(gate, entry, scope, receive, send)
        return entry


def _tell(host: NamedHost, scope: Scope, user: str, status: int, seconds: float) -> None:
    """Write the line of the access log, and count the request; what follows the path may be secret."""
    extra: dict[str, object] = {"status": status, "seconds": round(seconds, 4), "host": host.label}
    if client := scope.get("client"):
        extra["client"] = client[0]
    if user:
        extra["key"] = user
    method = str(scope.get("method", "GET"))
    log.info("%s %s %s %d", method[:20], host.label, scope["path"][:_LONGEST_PATH], status, extra=extra)
    counted = method if method in _METHODS else "other"
    metrics.http_requests.labels(counted, "session", str(status or "none")).inc()


async def _redirect(path: str, cookie: bytes, send: Send) -> None:
    headers = [
        (b"location", path.encode()),
        (b"set-cookie", cookie),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(problem: ProblemError, host: NamedHost, scope: Scope, send: Send) -> None:
    """Answer a person with a sentence, and with the command that makes a link where that helps."""
    status = _BAD_GATEWAY if problem.code in _GATEWAY else problem.status
    command = f"trainmaster open {host.job} {host.port}" if problem.code is Code.UNAUTHENTICATED else ""
    is_page = scope["type"] == "http" and b"text/html" in proxied_headers.value_of(scope["headers"], b"accept")
    body = refusal_page(host, problem.detail, command) if is_page else _refusal_text(problem.detail, command)
    headers = [
        (b"content-type", b"text/%s; charset=utf-8" % (b"html" if is_page else b"plain")),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"connection", b"close"),
    ]
    if problem.retry_after is not None:
        headers.append((b"retry-after", b"%d" % problem.pause_seconds))
    prefix = _TYPES[scope["type"]]
    await send({"type": f"{prefix}http.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": body})


def _refusal_text(detail: str, command: str) -> bytes:
    return "".join(f"{line}\n" for line in (detail, command and f"Open it with: {command}") if line).encode()


async def _pass_on(gate: SessionGate, entry: Entry, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request on to the member, and its answer back. Raises ProblemError, MemberPortError, and errors of h11."""
    request = _request_of(scope)
    is_repeatable = scope["method"] in _REPEATABLE and not _has_body(scope)
    upstream = await gate.take_idle(entry) if is_repeatable else None
    if upstream is not None:
        exchange = _Exchange(gate, entry, upstream, scope, receive, send)
        try:
            await exchange.run(request)
        except (h11.ProtocolError, MemberPortError):
            if exchange.has_begun:
                raise
            # The member had closed the connection since the request before.
        else:
            return
    await _Exchange(gate, entry, await gate.connect(entry), scope, receive, send).run(request)


def _has_body(scope: Scope) -> bool:
    length = proxied_headers.value_of(scope["headers"], b"content-length")
    return length not in (b"", b"0") or bool(proxied_headers.value_of(scope["headers"], b"transfer-encoding"))


def _request_of(scope: Scope) -> h11.Request:
    """Return the request as the member gets it."""
    client = scope["client"][0] if scope.get("client") else ""
    headers = proxied_headers.request_headers(scope["headers"], scheme=scope["scheme"], client=client)
    if proxied_headers.value_of(scope["headers"], b"transfer-encoding"):
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append((b"transfer-encoding", b"chunked"))
    query = scope["query_string"]
    target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
    return h11.Request(method=scope["method"], target=target, headers=headers)


class _Exchange:
    """A request and its answer on one connection to the member."""

    def __init__(
        self, gate: SessionGate, entry: Entry, upstream: Upstream, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._gate = gate
        self._entry = entry
        self._upstream = upstream
        self._has_body = _has_body(scope)
        self._receive = receive
        self._send = send
        self.has_begun = False
        """Whether the browser has got the beginning of the answer."""

    async def run(self, request: h11.Request) -> None:
        """Pass on both. Raises ProblemError, MemberPortError and errors of h11, and _AnsweredError for an answer that was cut."""
        asking = asyncio.create_task(self._ask(request))
        answering = asyncio.create_task(self._answer())
        is_whole = False
        try:
            # The browser is gone once the first one ends without an error: an answer may last for hours.
            done, _ = await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if answering in done:
                answering.result()
                is_whole = True
            else:
                asking.result()
        except (h11.ProtocolError, MemberPortError) as error:
            if self.has_begun:
                raise _AnsweredError from error
            raise
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
            if is_whole:
                self._gate.give_back(self._entry, self._upstream)
            else:
                self._upstream.close()

    async def _ask(self, request: h11.Request) -> None:
        """Send the request, and return when the browser is gone."""
        await self._upstream.send(request)
        if not self._has_body:
            await self._upstream.send(h11.EndOfMessage())
        is_sent = not self._has_body
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if is_sent:
                continue
            if body := message.get("body", b""):
                await self._upstream.send(h11.Data(data=body))
                await self._upstream.passed(len(body))
            if not message.get("more_body"):
                is_sent = True
                await self._upstream.send(h11.EndOfMessage())

    async def _answer(self) -> None:
        while True:
            event = await self._upstream.next_event()
            if isinstance(event, h11.Response):
                headers = proxied_headers.answer_headers(list(event.headers.raw_items()))
                self.has_begun = True
                await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                self._gate.note_use(self._entry)
                await bulk_turns.take(len(event.data))
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
                await self._upstream.passed(len(event.data))
                self._upstream.check()
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b""})
                return
            # Anything else is an interim answer, which is for this hop.
