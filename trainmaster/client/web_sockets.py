"""Connections for streams to members: WebSockets, asynchronous for agents and blocking for the command line.

Their library sends pings, and does not wait for the answers: while a reader waits for somebody else, answers are not read either. A
peer that no longer acknowledges what it is sent is found by the kernel.
"""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection as BlockingConnection
from websockets.sync.client import connect as connect_blocking
from websockets.typing import Subprotocol

from trainmaster.client import core, wire
from trainmaster.client.core import Response
from trainmaster.protocol.errors import UnreachableError
from trainmaster.protocol.member_streams import LARGEST_FRAME

_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 2.0
_PING_SECONDS = 20.0
_UNACKNOWLEDGED_MILLISECONDS = 30_000
_MOST_FRAMES = 4
_NORMAL = 1000


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
                **_options(url, key),
            )
        _bound_silence(opened.transport.get_extra_info("socket"))
        return cls(opened)

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

    async def close(self) -> None:
        await self._socket.close()


class BlockingLine:
    """A connection of a user. One thread may receive while another one sends."""

    def __init__(self, socket: BlockingConnection) -> None:
        self._socket = socket

    @classmethod
    def open(
        cls, url: str, key: str, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> "BlockingLine":
        """Connect. Raises ProblemError, and UnreachableError."""
        with _mapped_errors(url):
            opened = connect_blocking(
                f"{_address(url, path)}?{urlencode(query)}",
                subprotocols=[Subprotocol(one) for one in protocols],
                open_timeout=_OPEN_SECONDS,
                proxy=True if wire.goes_through_proxies(url) else None,
                ping_timeout=None,
                max_queue=_MOST_FRAMES,
                **_options(url, key),
            )
        _bound_silence(opened.socket)
        return cls(opened)

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
            data = self._socket.recv()
        except ConnectionClosed:
            return None
        return data.encode() if isinstance(data, str) else data

    def send(self, frame: bytes) -> None:
        """Send a frame. What nobody receives any more is dropped."""
        with contextlib.suppress(ConnectionClosed):
            self._socket.send(frame)

    def close(self) -> None:
        self._socket.close()


def _address(url: str, path: str) -> str:
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return parts._replace(scheme=scheme, path=parts.path.rstrip("/") + path).geturl()


def _options(url: str, key: str) -> Mapping[str, Any]:
    """Return the options that both kinds of connections have."""
    headers = wire.headers(key)
    return {
        "additional_headers": {"Authorization": headers["Authorization"]},
        "user_agent_header": headers["User-Agent"],
        "ssl": wire.trusted_certificates(url) if urlsplit(url).scheme == "https" else None,
        "compression": None,
        "ping_interval": _PING_SECONDS,
        "close_timeout": _CLOSE_SECONDS,
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
