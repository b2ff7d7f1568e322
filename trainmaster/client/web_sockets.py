"""Connections for streams to members: WebSockets, asynchronous for agents and blocking for the command line.

Their library sends pings, and does not wait for the answers: while a reader waits for somebody else, answers are not read either. A
peer that no longer acknowledges what it is sent is found by the kernel.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from trainmaster.client import core, sign_in, wire
from trainmaster.client.core import Response
from trainmaster.protocol.errors import UnreachableError
from trainmaster.protocol.member_streams import LARGEST_FRAME

_Result = TypeVar("_Result")

_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 2.0
_PING_SECONDS = 20.0
_UNACKNOWLEDGED_MILLISECONDS = 600_000
"""Linux also counts the time in which a peer acknowledges but takes nothing, as one that waits for a slow member or user."""
_MOST_FRAMES = 4
_NORMAL, _FAILED = 1000, 1011
_LONGEST_REASON = 120
"""The most bytes of the words with which a WebSocket is closed (RFC 6455)."""


class WebSocketLine:
    """A connection of an agent."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, key: str, path: str) -> "WebSocketLine":
        """Connect. Raises ProblemError, and UnreachableError."""
        with _mapped_errors(url):
            opened = await connect(
                _address(url, path),
                open_timeout=_OPEN_SECONDS,
                proxy=True if wire.goes_through_proxies(url) else None,
                ping_timeout=None,
                max_queue=_MOST_FRAMES,
                # The last frames may wait for a slow user, who is gone at the latest when the dispatcher says so.
                close_timeout=None,
                **_options(url, key),
            )
        _bound_silence(opened.transport.get_extra_info("socket"))
        return cls(opened)

    @property
    def was_cut(self) -> bool:
        """Return whether it has ended though nobody has closed it, or because another connection on the way was lost."""
        return self._socket.close_code not in (None, _NORMAL)

    async def receive(self) -> bytes | None:
        """Return the next frame; None after the last one."""
        try:
            data = await self._socket.recv()
        except ConnectionClosed:
            return None
        return data.encode() if isinstance(data, str) else data

    async def send(self, frame: bytes | str) -> None:
        """Send a frame, or a text. What nobody receives any more is dropped."""
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(frame)

    async def close(self, why: str = "") -> None:
        """Close once everything is read; ``why``: the failure, if it is one."""
        await self._socket.close(_FAILED if why else _NORMAL, why.encode()[:_LONGEST_REASON].decode(errors="ignore"))


class BlockingLine:
    """A connection of a user. One thread may receive while another one sends.

    It lives on an event loop in a thread of its own: two threads must not use one TLS connection at the same time, as then what one of
    them sends may be lost.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    def open(
        cls, url: str, key: str, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> "BlockingLine":
        """Connect. Raises ProblemError, and UnreachableError."""

        async def opened() -> ClientConnection:
            return await connect(
                f"{_address(url, path)}?{urlencode(query)}",
                subprotocols=[Subprotocol(one) for one in protocols],
                open_timeout=_OPEN_SECONDS,
                proxy=True if wire.goes_through_proxies(url) else None,
                ping_timeout=None,
                max_queue=_MOST_FRAMES,
                close_timeout=_CLOSE_SECONDS,
                **_options(url, key),
            )

        with _mapped_errors(url):
            line = _result(opened())
        _bound_silence(line.transport.get_extra_info("socket"))
        return cls(line)

    @property
    def protocol(self) -> str:
        return self._socket.subprotocol or ""

    @property
    def end(self) -> str:
        """The words with which the dispatcher has closed the connection; empty where all is well."""
        code, reason = self._socket.close_code, self._socket.close_reason
        return "" if code == _NORMAL else reason or f"the connection was cut (code {code})"

    def receive(self) -> bytes | None:
        """Return the next frame; None after the last one."""
        try:
            data = _result(self._socket.recv())
        except ConnectionClosed:
            return None
        return data.encode() if isinstance(data, str) else data

    def header(self, name: str) -> str:
        """Return a header of the answer that has opened the connection; empty where it has none of this name."""
        response = self._socket.response
        return "" if response is None else response.headers.get(name, "")

    def send(self, frame: bytes) -> bool:
        """Send a frame; return whether the connection was open. What nobody receives any more is dropped."""
        try:
            _result(self._socket.send(frame))
        except ConnectionClosed:
            return False
        return True

    def close(self) -> None:
        _result(self._socket.close())


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="web-sockets", daemon=True).start()
    return loop


def _result(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what a coroutine of the connections' event loop returns."""
    return asyncio.run_coroutine_threadsafe(work, _event_loop()).result()


def _address(url: str, path: str) -> str:
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return parts._replace(scheme=scheme, path=parts.path.rstrip("/") + path).geturl()


def _options(url: str, key: str) -> Mapping[str, Any]:
    """Return the options that both kinds of connections have."""
    headers = wire.headers(sign_in.lasting(key, url))
    return {
        "additional_headers": {"Authorization": headers["Authorization"]},
        "user_agent_header": headers["User-Agent"],
        "ssl": wire.trusted_certificates(url) if urlsplit(url).scheme == "https" else None,
        "compression": None,
        "ping_interval": _PING_SECONDS,
        "max_size": LARGEST_FRAME,
    }


def _bound_silence(connection: socket.socket) -> None:
    """Let the kernel cut a connection whose peer does not acknowledge what it is sent."""
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)


@contextmanager
def _mapped_errors(url: str) -> Iterator[None]:
    """Raise errors of the library as ProblemError, where the dispatcher has refused the connection, else as UnreachableError."""
    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        headers = {name.lower(): value for name, value in answer.headers.raw_items()}
        core.check(Response(answer.status_code, headers, bytes(answer.body or b"")))
        raise UnreachableError(f"{url} answers {answer.status_code} where a WebSocket was to be opened") from error
    except (InvalidHandshake, InvalidURI, EOFError) as error:
        message = f"{url} opens no WebSocket: {error}; a proxy on the way has to let WebSockets pass"
        raise UnreachableError(message) from error
    except TimeoutError as error:
        raise UnreachableError(f"cannot reach {url}: it does not answer in time") from error
    except (OSError, ssl.SSLError) as error:
        raise UnreachableError(f"cannot reach {url}: {error.strerror or error}") from error
