"""Raw sockets against the bounds of connections: what is endless, silent, slow or too much is ended; what is honest is not."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import uvicorn

from tests.waiting import eventually
from trainmaster_dispatcher.domain.connection_bounds import ConnectionBounds
from trainmaster_dispatcher.http_connections import BoundedProtocol, Connections, fit_open_files, server_config

KIB = 1024
PATIENT = ConnectionBounds(header_seconds=60, body_seconds=60)


@dataclass
class App:
    """Reads bodies whole and answers their size; waits before that where it is told to."""

    reads: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: int = 0
    gone: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/unread":
            await self._send(send, b"no")
            return
        self.under_way += 1
        try:
            await self.reads.wait()
            size, more = 0, True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self.gone += 1
                    return
                size, more = size + len(message["body"]), message["more_body"]
            if scope["path"] == "/large":
                await self._send(send, b"x" * 32 * KIB * KIB)
            elif scope["path"] == "/events":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while not self.answers.is_set():
                    await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
                    await asyncio.sleep(0.1)
                await send({"type": "http.response.body", "body": b"end"})
            else:
                await self.answers.wait()
                await self._send(send, b"%d of %s" % (size, scope["client"][0].encode()))
        finally:
            self.under_way -= 1

    @staticmethod
    async def _send(send: Any, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Peer:
    """One connection that the test controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        body = await asyncio.wait_for(self.reader.readexactly(int(length.split(b":")[1])), 20)
        return int(head.split(b" ")[1]), body

    async def code(self) -> tuple[int, str]:
        """Return status and problem code of the next answer, after which the connection must end."""
        status, body = await self.answer()
        await self.ended()
        return status, str(orjson.loads(body)["code"])

    async def ended(self) -> bytes:
        """Return what still comes until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), 20)
        return b""


@dataclass
class Stage:
    app: App
    port: int
    connections: Connections
    peers: list[Peer] = field(default_factory=list)

    async def peer(self, sent: bytes = b"", limit: int = 64 * KIB) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        self.peers.append(peer)
        await peer.send(sent)
        return peer


@asynccontextmanager
async def serve(bounds: ConnectionBounds, *, is_quick: bool = True) -> AsyncIterator[Stage]:
    """Provide a server with such bounds. ``is_quick``: the application neither waits to read nor to answer."""
    app = App()
    if is_quick:
        app.reads.set()
        app.answers.set()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        config = server_config(app, bounds, lifespan="off", timeout_graceful_shutdown=1)
        assert isinstance(config.http, type)
        assert issubclass(config.http, BoundedProtocol)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        stage = Stage(app, listener.getsockname()[1], config.http._register)
        yield stage
        for peer in stage.peers:
            peer.writer.transport.abort()
        server.should_exit = True
        await serving


def post(size: int, path: str = "/", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {size}", *headers, "", ""]
    return "\r\n".join(lines).encode()


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nx: ",
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-" * 100,
        b"GET /",
        CHUNKED + b"0\r\nx: ",
        CHUNKED + b"1;x=",
        CHUNKED + b"1\r\na\r\n5;x=",
    ],
    ids=["value", "name", "address", "trailer", "extension", "second extension"],
)
async def test_what_has_no_end_in_a_header_is_refused(start: bytes) -> None:
    async with serve(PATIENT) as stage:
        peer = await stage.peer(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(32):
                await peer.send(b"x" * 64 * KIB)
        assert await peer.code() == (431, "header-too-large")


async def test_many_small_headers_are_refused_by_their_number_and_by_their_bytes() -> None:
    async with serve(PATIENT) as stage:
        for many, size, status in ((190, 1, 200), (210, 1, 431), (100, 600, 200), (100, 700, 431)):
            lines = b"".join(b"x-%d: %s\r\n" % (number, b"x" * size) for number in range(many))
            peer = await stage.peer(b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
            assert (await peer.answer())[0] == status, (many, size)


async def test_a_long_body_in_one_piece_with_its_header_is_no_long_header() -> None:
    async with serve(PATIENT) as stage:
        peer = await stage.peer(post(500_000) + b"x" * 500_000)
        assert await peer.answer() == (200, b"500000 of 127.0.0.1")
        await peer.send(CHUNKED + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n")
        assert await peer.answer() == (200, b"100000 of 127.0.0.1")
        await peer.send(GET * 20)
        assert [await peer.answer() for _ in range(20)] == [(200, b"0 of 127.0.0.1")] * 20


@pytest.mark.parametrize(
    "sent", [b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n"], ids=["line", "lines", "blank"]
)
async def test_a_header_that_stays_half_is_timed_out(sent: bytes) -> None:
    async with serve(ConnectionBounds(header_seconds=0.3)) as stage:
        fresh, used = await stage.peer(sent), await stage.peer(GET)
        assert (await used.answer())[0] == 200
        await used.send(sent)
        assert [await fresh.code(), await used.code()] == [(408, "request-timeout")] * 2


async def test_a_header_that_comes_a_byte_at_a_time_is_timed_out() -> None:
    async with serve(ConnectionBounds(header_seconds=0.5)) as stage:
        peer = await stage.peer(b"GET / HTTP/1.1\r\nx: ")
        dripping = asyncio.create_task(drip(peer))
        assert await peer.code() == (408, "request-timeout")
        dripping.cancel()


async def drip(peer: Peer) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await peer.send(b"x")
            await asyncio.sleep(0.05)


async def test_who_never_says_anything_is_hung_up_on() -> None:
    async with serve(ConnectionBounds(header_seconds=0.3)) as stage:
        assert await (await stage.peer()).ended() == b""


async def test_a_body_that_stays_half_is_timed_out_and_its_request_is_gone() -> None:
    async with serve(ConnectionBounds(body_seconds=0.3)) as stage:
        for sent in (post(100) + b"x", CHUNKED + b"5\r\nx"):
            assert await (await stage.peer(sent)).code() == (408, "request-timeout")
        assert (stage.app.gone, stage.app.under_way) == (2, 0)


async def test_a_body_that_comes_a_byte_at_a_time_is_timed_out() -> None:
    bounds = ConnectionBounds(body_seconds=0.3, body_bytes_per_second=1000)
    async with serve(bounds) as stage:
        peer = await stage.peer(post(100_000))
        dripping = asyncio.create_task(drip(peer))
        assert await peer.code() == (408, "request-timeout")
        dripping.cancel()


async def test_a_body_may_take_long_at_a_fair_rate_but_not_for_ever() -> None:
    async with serve(ConnectionBounds(body_seconds=0.3, body_bytes_per_second=10)) as stage:
        peer = await stage.peer(post(40))
        for _ in range(20):
            await peer.send(b"xx")
            await asyncio.sleep(0.05)
        assert await peer.answer() == (200, b"40 of 127.0.0.1")
    async with serve(ConnectionBounds(body_seconds=0.3, body_bytes_per_second=1, whole_body_seconds=0.6)) as stage:
        peer = await stage.peer(post(10_000))
        dripping = asyncio.create_task(drip(peer))
        assert await peer.code() == (408, "request-timeout")
        dripping.cancel()


async def test_a_body_that_the_application_does_not_read_is_not_too_slow() -> None:
    async with serve(ConnectionBounds(body_seconds=0.2, whole_body_seconds=0.2), is_quick=False) as stage:
        peer = await stage.peer(post(300_000) + b"x" * 200_000)
        other = await stage.peer(post(5) + b"x")
        assert await other.code() == (408, "request-timeout"), "so much time has passed"
        stage.app.reads.set()
        stage.app.answers.set()
        await peer.send(b"x" * 100_000)
        assert await peer.answer() == (200, b"300000 of 127.0.0.1")


async def test_who_is_refused_before_its_body_is_whole_cannot_go_on_sending_it_for_ever() -> None:
    async with serve(ConnectionBounds(body_seconds=0.3)) as stage:
        peer = await stage.peer(post(1000, "/unread") + b"x")
        dripping = asyncio.create_task(drip(peer))
        assert (await peer.answer())[1] == b"no"
        assert await peer.code() == (408, "request-timeout")
        dripping.cancel()


async def test_long_polls_and_streams_go_on_beyond_all_times() -> None:
    bounds = ConnectionBounds(header_seconds=0.2, body_seconds=0.2, whole_body_seconds=0.2, unread_answer_seconds=0.2)
    async with serve(bounds) as stage:
        stage.app.answers.clear()
        poll = await stage.peer(GET)
        events = await stage.peer(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(10):
            await asyncio.wait_for(events.reader.readuntil(b": still here"), 10)
        stage.app.answers.set()
        assert (await poll.answer())[0] == 200
        assert await asyncio.wait_for(events.reader.readuntil(b"end\r\n0\r\n\r\n"), 10)


async def test_a_half_header_behind_a_long_poll_ends_both_without_a_second_answer() -> None:
    async with serve(ConnectionBounds(header_seconds=0.3)) as stage:
        stage.app.answers.clear()
        peer = await stage.peer(GET + b"GET / HT")
        assert await peer.ended() == b""


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async with serve(ConnectionBounds(unread_answer_seconds=0.3)) as stage:
        peer = await stage.peer(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n", limit=KIB)
        await peer.reader.readuntil(b"\r\n\r\n")

        async def given_up() -> bool:
            return len(stage.connections) == 0

        await eventually(given_up)
        assert len(await peer.ended()) < 32 * KIB * KIB


async def test_newcomers_are_answered_while_silent_connections_fill_all_places() -> None:
    async with serve(ConnectionBounds(most=40)) as stage:
        stage.app.answers.clear()
        polls = [await stage.peer(GET) for _ in range(10)]
        stage.app.answers.set()
        kept = [(await peer.answer())[0] for peer in polls]
        stage.app.answers.clear()
        for peer in polls:
            await peer.send(GET)
        for _ in range(200):
            await stage.peer(b"GET / HT")
        newcomer = await stage.peer(GET)
        stage.app.answers.set()
        assert (await newcomer.answer())[0] == 200
        assert [(await peer.answer())[0] for peer in polls] == kept == [200] * 10, "requests under way are never ended"


async def test_too_many_requests_under_way_are_refused_at_the_door() -> None:
    async with serve(ConnectionBounds(most=5)) as stage:
        stage.app.answers.clear()
        busy = [await stage.peer(GET) for _ in range(5)]

        async def are_under_way() -> bool:
            return stage.app.under_way == 5

        await eventually(are_under_way)
        assert await (await stage.peer()).code() == (503, "too-busy")
        stage.app.answers.set()
        assert [(await peer.answer())[0] for peer in busy] == [200] * 5


async def test_an_address_has_its_own_bound_unless_it_is_a_proxy() -> None:
    async with serve(ConnectionBounds(most_per_address=3)) as stage:
        kept = [await stage.peer() for _ in range(3)]
        assert await (await stage.peer()).code() == (429, "too-many-requests")
        await kept[0].send(GET)
        assert (await kept[0].answer())[0] == 200
    trusting = ConnectionBounds(most_per_address=3, trusted_proxies=("127.0.0.0/8",))
    async with serve(trusting) as stage:
        peers = [await stage.peer() for _ in range(6)]
        await peers[-1].send(b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 9.9.9.9\r\n\r\n")
        assert await peers[-1].answer() == (200, b"0 of 9.9.9.9")


async def test_nobody_is_believed_about_addresses_unless_it_is_told_so() -> None:
    async with serve(PATIENT) as stage:
        peer = await stage.peer(b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 9.9.9.9\r\n\r\n")
        assert await peer.answer() == (200, b"0 of 127.0.0.1")


async def test_what_is_no_http_gets_400() -> None:
    async with serve(PATIENT) as stage:
        peer = await stage.peer(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await peer.answer())[0] == 400
        await peer.ended()


def test_no_more_connections_are_promised_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert fit_open_files(ConnectionBounds(most=500)).most == 500
    assert limits.pop() == (628, 1000), "as many as are needed"
    assert fit_open_files(ConnectionBounds(most=5000)).most == 872
    assert limits[-1] == (1000, 1000)
