"""Bounds on HTTP connections: bytes and time of a header, time and rate of a body, idle and silent peers, number of connections.

Built on uvicorn's protocol, which bounds none of these. It reads no header and no body by itself, and knows nothing of
requests.
"""

import asyncio
import contextlib
import logging
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from enum import Enum, auto
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from socket import (
    AI_PASSIVE,
    IPPROTO_TCP,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_USER_TIMEOUT,
    getaddrinfo,
    socket,
)
from typing import Any, Protocol

import orjson
from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster.protocol.member_streams import LARGEST_FRAME
from trainmaster_dispatcher.domain.connection_bounds import ConnectionBounds

log = logging.getLogger(__name__)

_LINGER_SECONDS = 2.0
"""The time for which a refused peer may continue to send, unread, so that it gets its answer before the connection is reset."""
_LINGER_BYTES = 1024 * 1024
_EVICTED_PART = 20
"""When there are too many connections, one in this many is closed: one search serves many new connections."""
_UNACKNOWLEDGED_MILLISECONDS = 600_000
"""The time after which the kernel cuts a stream whose peer does not acknowledge what it is sent, such as a ping. Linux also counts the
time in which a peer acknowledges but takes nothing, as one that waits for a slow member or user."""
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on
_UNREAD_SECONDS = 600.0
"""The time in which the peer of a closed stream must have read its last frames."""
_CLOSE_SECONDS = 1
_RESTARTING = 1012
_UNLOGGED = logging.getLogger(f"{__name__}.web_sockets")
_UNLOGGED.setLevel(logging.WARNING)
_SPARE_FILES = 128
"""Open files that are not connections of peers: stores, logs, libraries."""


class _Reading(Enum):
    NOTHING = auto()
    """Between two requests, or before the first."""
    HEADER = auto()
    BODY = auto()
    NO_MORE = auto()
    """The peer was refused: what it sends is dropped until it closes."""


class Connection(Protocol):
    """A connection as its register needs it."""

    address: str
    loop: asyncio.AbstractEventLoop

    @property
    def is_idle(self) -> bool:
        """Return whether it may be closed without cutting anything."""
        ...

    @property
    def has_served(self) -> bool:
        """Return whether it ever had a request."""
        ...

    def check_times(self, now: float) -> None:
        """Close the connection when it has exceeded a time bound."""
        ...

    def end(self, reason: str) -> None:
        """Close at once, even with unsent data."""
        ...


class Connections:
    """All connections of one server. It closes those that exceed their bounds, about once a second."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self._all: dict[Connection, None] = {}
        """Oldest first."""
        self._by_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._trusted = tuple(ip_network(item) for item in bounds.trusted_proxies)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Connection) -> ProblemError | None:
        """Count a new connection; return the problem if it is one too many."""
        if len(self._all) >= self.bounds.most:
            self._evict()
        problem = None
        if len(self._all) >= self.bounds.most:
            problem = ProblemError(Code.TOO_BUSY, "too many connections are open; try again", retry_after=5.0)
        elif 0 < self.bounds.most_per_address <= self._by_address[connection.address] and not self._is_trusted(
            connection.address
        ):
            problem = ProblemError(
                Code.TOO_MANY_REQUESTS,
                f"your address has {self.bounds.most_per_address} connections open, which is as many as it may have",
                retry_after=5.0,
            )
        self._all[connection] = None
        self._by_address[connection.address] += 1
        if self._timer is None:
            self._timer = connection.loop.call_later(self.bounds.look_seconds, self._look, connection.loop)
        return problem

    def remove(self, connection: Connection) -> None:
        if connection not in self._all:
            return
        del self._all[connection]
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for connection in list(self._all):
            connection.check_times(now)
        metrics.http_connections.set(len(self._all))
        if self._all:
            self._timer = loop.call_later(self.bounds.look_seconds, self._look, loop)

    def _evict(self) -> None:
        """Close connections without a request in progress.

        Those that never had a request go first, then those of the addresses that have most of them; among these, the
        oldest.
        """
        idle = [connection for connection in self._all if connection.is_idle]
        held = Counter(connection.address for connection in idle)
        idle.sort(key=lambda connection: (connection.has_served, -held[connection.address]))
        for connection in idle[: max(1, self.bounds.most // _EVICTED_PART)]:
            connection.end("evicted")

    def _is_trusted(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._trusted)
        except ValueError:
            return False


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on one connection."""

    _register: Connections
    """Set by ``bounded_protocol``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self._bounds = self._register.bounds
        self._reading = _Reading.NOTHING
        self._since = self.loop.time()
        """When the header or body that is being read began, or the connection while it was silent."""
        self._read = 0
        """Bytes of the header, or of the body, that is being read."""
        self._unframed = 0
        """Bytes that came since the body's last byte: sizes and extensions of chunks, or trailers."""
        self._has_spoken = False
        self._stuck_since: float | None = None
        """The time since which the peer leaves an answer unread."""
        self._closing_since: float | None = None
        self._refusal: ProblemError | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def has_served(self) -> bool:
        """Return whether it ever had a request."""
        return self.cycle is not None

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        problem = self._register.add(self)
        if problem is not None:
            self.refuse(problem, "too-many")

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        reading = self._reading
        if reading is _Reading.NOTHING:
            self._begin_header()
        elif reading is _Reading.BODY:
            self._receive_body(data)
            return
        elif reading is _Reading.NO_MORE:
            self._unframed += len(data)
            if self._unframed > _LINGER_BYTES:
                self.transport.abort()
            return
        self._read += len(data)
        super().data_received(data)
        if self._reading is _Reading.HEADER and self._read > self._bounds.header_bytes:
            self.refuse(self._header_too_large(), "header-bytes")

    def _receive_body(self, data: bytes) -> None:
        before = self._read
        super().data_received(data)
        if self._reading is not _Reading.BODY:
            return
        # Trailers and chunk headers are collected by the parser, and are not counted in the body's bytes.
        self._unframed = 0 if self._read > before else self._unframed + len(data)
        if self._unframed > self._bounds.header_bytes:
            self.refuse(self._header_too_large(), "header-bytes")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck_since = None

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to a protocol of its own, which is counted in its place."""
        self._register.remove(self)
        super().handle_websocket_upgrade()

    # -- callbacks of the parser

    def on_message_begin(self) -> None:
        if self._reading is _Reading.NOTHING:
            self._begin_header()  # the peer sent it together with the end of the previous request
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._read > self._bounds.header_bytes or len(self.headers) > self._bounds.headers:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._bounds.header_bytes or len(self.headers) > self._bounds.headers:
                self._refusal = self._header_too_large()
                raise _RefusedError
        self._reading, self._read, self._unframed = _Reading.BODY, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._read += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = _Reading.NOTHING
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser could not parse. uvicorn calls this for each error raised in a callback, too."""
        if self._refusal is not None:
            self.refuse(self._refusal, "header-bytes")
        else:
            self._reading = _Reading.NO_MORE
            super().send_400_response(msg)

    # -- bounds

    def check_times(self, now: float) -> None:
        """Close the connection when it has exceeded a time bound."""
        bounds = self._bounds
        if self.transport.is_closing():
            # Unsent data keeps a connection open, and the peer may never read it.
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since > bounds.unread_answer_seconds:
                self.transport.abort()
            return
        if self._stuck_since is not None and now - self._stuck_since > bounds.unread_answer_seconds:
            self.end("unread-answer")
            return
        took = now - self._since
        if self._reading is _Reading.NOTHING:
            if not self._has_spoken and took > bounds.header_seconds:
                self.end("silent")
        elif self._reading is _Reading.HEADER:
            if took > bounds.header_seconds:
                seconds = f"{bounds.header_seconds:g} s"
                self.refuse(ProblemError(Code.REQUEST_TIMEOUT, f"the header was not whole after {seconds}"), "header")
        elif self._reading is _Reading.BODY:
            self._check_body(now, took)
        elif took > _LINGER_SECONDS:
            self.transport.abort()

    def _check_body(self, now: float, took: float) -> None:
        bounds = self._bounds
        if self.flow.read_paused:
            self._since += bounds.look_seconds  # it is the application that does not continue to read
            return
        if took > bounds.whole_body_seconds:
            text = f"the body was not whole after {bounds.whole_body_seconds:g} s"
        elif took > bounds.body_seconds + self._read / bounds.body_bytes_per_second:
            text = f"the body comes slower than {bounds.body_bytes_per_second} bytes per second"
        else:
            return
        self.refuse(ProblemError(Code.REQUEST_TIMEOUT, text), "body")

    def refuse(self, problem: ProblemError, reason: str) -> None:
        """Answer with a problem if no other answer is in progress, stop reading, and close."""
        cycle = self.cycle
        waits_for_body = self._reading is _Reading.BODY and not (
            self.is_idle or cycle.response_started or self.pipeline
        )
        if self.transport.is_closing() or not (self.is_idle or waits_for_body):
            self.end(reason)
            return
        metrics.http_connections_ended.labels(reason).inc()
        self._unset_keepalive_if_required()
        if waits_for_body:
            cycle.disconnected = True
            cycle.message_event.set()
        self._reading, self._since, self._unframed = _Reading.NO_MORE, self.loop.time(), 0
        self.transport.write(_answer_of(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def end(self, reason: str) -> None:
        """Close at once, even with unsent data."""
        metrics.http_connections_ended.labels(reason).inc()
        self._unset_keepalive_if_required()
        self._register.remove(self)
        self.transport.abort()

    def _begin_header(self) -> None:
        self._reading, self._since, self._read, self._has_spoken = _Reading.HEADER, self.loop.time(), 0, True

    def _header_too_large(self) -> ProblemError:
        return ProblemError(
            Code.HEADER_TOO_LARGE,
            f"a request's line and headers may have at most {self._bounds.header_bytes} bytes in {self._bounds.headers} headers",
        )


class _ServerProtocol(ServerProtocol):
    """The library's handshake, which leaves sub-protocols to the application.

    It would refuse names that are no tokens of HTTP, such as ``SPDY/3.1+portforward.k8s.io``, which kubectl offers.
    """

    def process_subprotocol(self, headers: Headers) -> Subprotocol | None:
        return None


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol of WebSockets, counted among the connections of its server.

    It reads one message ahead of its application and waits for a slow peer, as long as that takes. A silent peer is found by pings,
    except where nothing is read from it or it reads nothing: then the kernel finds one that is gone.
    """

    _register: Connections
    """Set by ``bounded_web_socket``."""
    is_idle = False
    has_served = True

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self.conn = _ServerProtocol(max_size=config.ws_max_size, logger=_UNLOGGED)
        self.close_timeout = _UNREAD_SECONDS
        self.logger = (
            _UNLOGGED  # its lines have whole addresses, with commands in them; the access log has one of its own
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        connection: socket | None = transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
        self._register.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.remove(self)
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # else uvicorn logs a refusal as an error of the application

    def shutdown(self) -> None:
        """Close because the server stops, and say so."""
        if self.handshake_complete and not self.close_sent:
            self.conn.send_close(_RESTARTING, "this api is stopping; call again, to reach another one or its successor")
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.queue.put_nowait({"type": "websocket.disconnect", "code": _RESTARTING})
        super().shutdown()

    def keepalive_timeout(self) -> None:
        """Close the connection of a peer that has not answered a ping, unless its answer may wait unread."""
        if self.read_paused or not self.writable.is_set():
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def check_times(self, now: float) -> None:
        """Do nothing: a stream has no time bound."""

    def end(self, reason: str) -> None:
        """Close at once, even with unsent data."""
        metrics.http_connections_ended.labels(reason).inc()
        self._register.remove(self)
        self.transport.abort()


class _RefusedError(Exception):
    """Raised in a callback, to make the parser stop."""


def _answer_of(problem: ProblemError) -> bytes:
    body = orjson.dumps(problem.to_problem())
    status = HTTPStatus(problem.status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if problem.retry_after is not None:
        lines.append(f"retry-after: {problem.pause_seconds}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def bounded_protocol(register: Connections) -> type[BoundedProtocol]:
    """Return the protocol of one server, whose connections are counted in ``register``."""

    class ServerProtocol(BoundedProtocol):
        _register = register

    return ServerProtocol


def bounded_web_socket(register: Connections) -> type[BoundedWebSocket]:
    """Return the protocol of one server's WebSockets, which are counted in ``register``."""

    class ServerWebSocket(BoundedWebSocket):
        _register = register

    return ServerWebSocket


def server_config(app: Any, bounds: ConnectionBounds, *, web_sockets: bool = False, **options: Any) -> Config:
    """Return uvicorn's configuration of a server whose connections are bounded; ``options`` are further uvicorn options."""
    register = Connections(bounds)
    return Config(
        app,
        http=bounded_protocol(register),
        ws=bounded_web_socket(register) if web_sockets else "none",
        ws_max_size=LARGEST_FRAME,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        timeout_keep_alive=round(bounds.keep_alive_seconds),
        proxy_headers=bool(bounds.trusted_proxies),
        forwarded_allow_ips=list(bounds.trusted_proxies),
        **options,
    )


class CannotListenError(TrainmasterError):
    """An endpoint cannot listen on its address."""


class ServerBeside(Server):
    """A server beside another one of the same process, which gets the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the other server."""
        yield


@asynccontextmanager
async def serving_beside(
    app: Any, host: str, port: int, bounds: ConnectionBounds, **options: Any
) -> AsyncIterator[tuple[str | None, int]]:
    """Serve ``app`` on this event loop while the block runs; yield host and port, None for a host that means all addresses.

    Raises CannotListenError.
    """
    with _listener(host, port) as listener:
        config = server_config(
            app,
            bounds,
            lifespan="off",
            loop="none",
            log_level="warning",
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            **options,
        )
        server = ServerBeside(config)
        task = asyncio.create_task(server.serve([listener]), name=f"serving {port}")
        try:
            yield None if host in _WILDCARDS else host, int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)


def _listener(host: str, port: int) -> socket:
    try:
        family, kind, protocol, _, address = getaddrinfo(host or None, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        # The protocol is set so that asyncio recognises TCP and sends small answers at once.
        listener = socket(family, kind, protocol)
        try:
            listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise CannotListenError(f"{host}:{port} cannot be listened on: {error}") from error


class _FirstServer(Server):
    """A server that starts the application, and another server of it until its own end."""

    def __init__(self, config: Config, other: Config) -> None:
        super().__init__(config)
        self._other = ServerBeside(other)
        self._serving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._serving = asyncio.create_task(self._other.serve(), name="TLS")

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._other.should_exit = True
        if self._serving is not None:
            await self._serving
        await super().shutdown(sockets)


def serve_both(config: Config, other: Config) -> None:
    """Run two servers of one application until a signal ends them, as one of them for TLS."""
    _FirstServer(config, other).run()


def fit_open_files(bounds: ConnectionBounds) -> ConnectionBounds:
    """Raise this process's limit of open files as far as needed and allowed; return the bounds with the number of
    connections that fit."""
    needed = bounds.most + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return bounds
    most = max(1, soft - _SPARE_FILES)
    log.warning("at most %d connections fit into this process's limit of %d open files", most, soft)
    return replace(bounds, most=most)
