"""Clients of streams for ``bench.streams``: terminals, forwarded ports and browsers, which cost little themselves."""

import asyncio
import contextlib
import os
import time
from base64 import b64encode
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from trainmaster.client.http import Client
from trainmaster.protocol.member_streams import COMMANDS, PORTS, Channel, frame

SERVER = """
import asyncio, sys
block = b"\\0" * 262144

async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)

async def flood(reader, writer):
    while True:
        writer.write(block)
        await writer.drain()

async def steady(reader, writer):
    loop = asyncio.get_running_loop()
    part, due = block[:65536], loop.time()
    while True:
        writer.write(part)
        await writer.drain()
        due = max(due + len(part) / float(sys.argv[2]), loop.time() - 1)
        await asyncio.sleep(due - loop.time())

def page(send):
    async def serve(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: application/octet-stream\\r\\nContent-Length: 1000000000000\\r\\n\\r\\n")
        await send(reader, writer)
    return serve

def quiet(serve):
    async def served(reader, writer):
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
    return served

async def main():
    first = int(sys.argv[1])
    for number, serve in enumerate((echo, flood, page(flood), steady, page(steady))):
        await asyncio.start_server(quiet(serve), "127.0.0.1", first + number, limit=1 << 20)
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""The server of all members, at ports in a row: an echo, bytes without end, a page without end, and both with a rate."""
ECHO, FLOOD, PAGE, STEADY, STEADY_PAGE = range(5)
PORTS_OF_SERVER = 5
_BUFFER = 1 << 18
_SLOW_SECONDS = 0.25
_LINE = b"x" * 31 + b"\n"


@dataclass(frozen=True)
class Target:
    """Where the clients connect to. ``first``: the port of the member at which the echo is."""

    url: str
    key: str
    first: int

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)


@dataclass
class Meter:
    """What the clients of one kind have counted while the measurement runs."""

    is_running: bool = False
    opened: int = 0
    bytes_received: int = 0
    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class _Drain(asyncio.BufferedProtocol):
    """Counts what it receives, in one buffer, after a request."""

    def __init__(self, request: bytes, meter: Meter) -> None:
        self._request = request
        self._meter = meter
        self._buffer = bytearray(_BUFFER)
        self._head = b""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._head:
            self._meter.opened += 1
            self._head = bytes(self._buffer[: min(nbytes, 200)])
        if self._meter.is_running:
            self._meter.bytes_received += nbytes

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(f"{exc or 'closed'} after {self._head!r}")


async def _drain(port: int, request: bytes, meter: Meter) -> None:
    """Receive as fast as possible until cancelled."""
    transport, drain = await asyncio.get_running_loop().create_connection(
        lambda: _Drain(request, meter), "127.0.0.1", port
    )
    try:
        meter.failures.append(await drain.ended)
    finally:
        transport.abort()


async def bulk(target: Target, job: str, meter: Meter, port: int) -> None:
    """Receive bytes without end from a port of a member: the one with this place among those of the server."""
    nonce = b64encode(os.urandom(16)).decode()
    request = (
        f"GET /v1/jobs/{job}/portforward?ports={target.first + port} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nAuthorization: Bearer {target.key}\r\nSec-WebSocket-Key: {nonce}\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {PORTS[0]}\r\n\r\n"
    )
    await _drain(target.port, request.encode(), meter)


async def browse(target: Target, host: str, cookie: str, meter: Meter) -> None:
    """Receive a page without end as a browser does."""
    request = f"GET / HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
    await _drain(target.port, request.encode(), meter)


async def read_slowly(target: Target, job: str, meter: Meter) -> None:
    """Read bytes without end a frame each quarter of a second."""
    async with _opened(target, job, "portforward", [("ports", str(target.first + FLOOD))], PORTS[:1]) as line:
        meter.opened += 1
        while True:
            await line.recv()
            await asyncio.sleep(_SLOW_SECONDS)


async def echo(target: Target, job: str, meter: Meter, pause: float) -> None:
    """Send lines to the echo of a member through a forwarded port, and note how long each takes."""
    async with _opened(target, job, "portforward", [("ports", str(target.first + ECHO))], PORTS[:1]) as line:
        for _ in range(2):
            await line.recv()  # the numbers of the port
        meter.opened += 1
        await _measure(line, b"\0" + _LINE, meter, pause)


async def terminal(target: Target, job: str, meter: Meter, pause: float) -> None:
    """Type lines into a terminal in which ``cat`` repeats them, and note how long each takes."""
    query = [
        ("command", "sh"),
        ("command", "-c"),
        ("command", "stty raw -echo; exec cat"),
        ("stdin", "true"),
        ("tty", "true"),
    ]
    async with _opened(target, job, "exec", query, COMMANDS) as line:
        await line.send(frame(Channel.INPUT, b"ready\n"))
        seen = b""
        while b"ready\n" not in seen:
            seen += bytes(await line.recv(decode=False))[1:]
        meter.opened += 1
        await _measure(line, frame(Channel.INPUT, _LINE), meter, pause)


async def _measure(line: ClientConnection, data: bytes, meter: Meter, pause: float) -> None:
    size = len(data) - 1
    while True:
        began = time.perf_counter()
        await line.send(data)
        received = 0
        while received < size:
            received += len(await line.recv(decode=False)) - 1
        if meter.is_running:
            meter.latencies.append(time.perf_counter() - began)
            meter.bytes_received += size
        await asyncio.sleep(pause)


async def echo_directly(target: Target, meter: Meter, pause: float) -> None:
    """Do the same over a connection to the server itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.first + ECHO)
    meter.opened += 1
    while True:
        began = time.perf_counter()
        writer.write(_LINE)
        await reader.readexactly(len(_LINE))
        if meter.is_running:
            meter.latencies.append(time.perf_counter() - began)
        await asyncio.sleep(pause)


def enter(target: Target, client: Client, job: str, port: int) -> tuple[str, str]:
    """Open a page of a session as a browser does, at the port with this place; return its host and the cookie."""
    import httpx

    parts = urlsplit(client.session_link(job, str(target.first + port)).url)
    url = f"{target.url}{parts.path}?{parts.query}"
    answer = httpx.get(url, headers={"Host": parts.netloc})
    if answer.status_code != 303:
        raise RuntimeError(f"{url}: {answer.status_code} {answer.text}")
    return parts.netloc, answer.headers["set-cookie"].partition(";")[0]


@contextlib.asynccontextmanager
async def _opened(target: Target, job: str, what: str, query: list[tuple[str, str]], protocols: tuple[str, ...]):  # type: ignore[no-untyped-def]
    async with connect(
        f"{target.url.replace('http', 'ws', 1)}/v1/jobs/{job}/{what}?{urlencode(query)}",
        additional_headers={"Authorization": f"Bearer {target.key}"},
        subprotocols=[Subprotocol(one) for one in protocols],
        proxy=None,
        compression=None,
        open_timeout=120,
        max_size=1 << 24,
        max_queue=1,
    ) as line:
        yield line
