"""A pure ASGI layer around the application: request ids, a limit on bodies, the access log."""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

import orjson

from trainmaster import process_logs
from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError

log = logging.getLogger("trainmaster.access")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

request_id: ContextVar[str] = ContextVar("request_id", default="")

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class Envelope:
    """Wraps the application. Bodies are held in memory until they are answered, so many bytes at once and no more."""

    def __init__(self, app: App, largest_body: int, most_at_once: int) -> None:
        self._app = app
        self._largest = largest_body
        self._most_at_once = max(most_at_once, largest_body)
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        own = given if given.isascii() and given.isprintable() and 0 < len(given) <= 64 else secrets.token_hex(8)
        mark = request_id.set(own)
        began, status, read = time.perf_counter(), 0, 0

        async def counted_receive() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                read += size
                self._held += size
                if read > self._largest:
                    raise self._too_large()
                if self._held > self._most_at_once:
                    raise self._too_many()
            return message

        async def marked_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own.encode())]
            await send(message)

        with process_logs.about(request_id=own):
            try:
                length = headers.get(b"content-length", b"0")
                said = int(length) if length.isdigit() else 0
                if said > self._largest:
                    await _refuse(self._too_large(), scope, own, marked_send)
                elif self._held + said > self._most_at_once:
                    await _refuse(self._too_many(), scope, own, marked_send)
                else:
                    await self._app(scope, counted_receive, marked_send)
            finally:
                self._held -= read
                _tell(scope, status, time.perf_counter() - began)
                request_id.reset(mark)

    def _too_large(self) -> ProblemError:
        metrics.http_bodies_refused.inc()
        return ProblemError(Code.BODY_TOO_LARGE, f"a body may have at most {self._largest} bytes")

    def _too_many(self) -> ProblemError:
        metrics.http_bodies_refused.inc()
        return ProblemError(Code.TOO_BUSY, "too many large bodies are being read; try again", retry_after=1.0)


async def _refuse(problem: ProblemError, scope: Scope, own: str, send: Send) -> None:
    """Answer without reading the body, and close the connection that it would come over."""
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    if problem.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(problem.retry_after))))
    await send({"type": "http.response.start", "status": problem.code.status, "headers": headers})
    body = problem.to_problem(scope["path"]) | {"requestId": own}
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


def _tell(scope: Scope, status: int, seconds: float) -> None:
    """Write the line of the access log, and count the request under its route, never under its path, which may name a job."""
    extra: dict[str, object] = {"status": status, "seconds": round(seconds, 4)}
    job = scope.get("path_params", {}).get("job_id")
    log.info("%s %s %d", scope["method"], scope["path"], status, extra=extra | ({"job_id": job} if job else {}))
    method = scope["method"] if scope["method"] in _METHODS else "other"
    route = getattr(scope.get("route"), "path", "none")
    metrics.http_requests.labels(method, route, str(status or "none")).inc()
    metrics.http_request_seconds.labels(method, route).observe(seconds)
