"""Bodies are bounded one by one and all together; what is refused is asked to come again, and what is answered makes room."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from tests.waiting import eventually
from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.api.asgi import Envelope

Message = MutableMapping[str, Any]


class Call:
    """A request whose application reads its body in pieces and answers when it is let go."""

    def __init__(
        self,
        envelope: Envelope,
        *pieces: bytes,
        length: int | None = None,
        path: str = "/v1/jobs",
        address: str = "agent",
        method: str = "POST",
    ) -> None:
        self._envelope = envelope
        self._path = path
        self._address = address
        self._method = method
        self._pieces = list(pieces)
        self._headers = [] if length is None else [(b"content-length", str(length).encode())]
        self.sent: list[Message] = []

    async def run(self) -> None:
        scope: dict[str, Any] = {"type": "http", "method": self._method, "path": self._path, "headers": self._headers}
        scope["client"] = (self._address, 1)
        await self._envelope(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._pieces:
            await asyncio.Event().wait()
        body = self._pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self._pieces)}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def problem(self) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
        return self.sent[0]["status"], orjson.loads(self.sent[1]["body"]), dict(self.sent[0]["headers"])


class App:
    """Reads bodies whole, then waits."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = 0
        self.refused: list[ProblemError] = []

    async def are_waiting(self, many: int) -> None:
        async def so_many() -> bool:
            return self.waiting == many

        await eventually(so_many, 5)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
        except ProblemError as error:
            self.refused.append(error)
            return
        self.waiting += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


KIB = 1024


async def test_bodies_at_once_are_bounded_and_room_comes_back() -> None:
    app = App()
    envelope = Envelope(app, largest_body=100 * KIB, most_at_once=150 * KIB, most_of_agents=150 * KIB)
    first = Call(envelope, b"x" * 60 * KIB, b"x" * 40 * KIB)
    running = asyncio.create_task(first.run())
    await app.are_waiting(1)
    oversized = Call(envelope, length=70 * KIB)
    await oversized.run()
    status, body, headers = oversized.problem
    assert (status, body["code"], headers[b"retry-after"]) == (503, "too-busy", b"1")
    assert (body["instance"], body["requestId"]) == ("/v1/jobs", headers[b"x-request-id"].decode())
    untold = Call(envelope, b"x" * 40 * KIB, b"x" * 40 * KIB)
    await untold.run()
    assert [error.code.value for error in app.refused] == ["too-busy"], "found while it was read"
    others = [Call(envelope, b"x" * 60 * KIB), Call(envelope, b"x" * 90 * KIB, path="/agent/v1/sync")]
    tasks = [asyncio.create_task(call.run()) for call in others]
    await app.are_waiting(3)  # small bodies always have room, and agents have room of their own
    app.go.set()
    await asyncio.gather(running, *tasks)
    again = Call(envelope, b"x" * 100 * KIB, length=100 * KIB)
    await again.run()
    assert again.sent[0]["status"] == 200


def sync(envelope: Envelope, size: int, agent: str, length: int | None = None) -> Call:
    """Return a sync in pieces of 50 KiB."""
    whole = b"x" * size
    pieces = [whole[start : start + 50 * KIB] for start in range(0, size, 50 * KIB)]
    return Call(envelope, *pieces, length=length, path="/agent/v1/sync", address=agent)


async def test_an_agent_has_room_for_one_largest_body_and_takes_none_from_others() -> None:
    app = App()
    envelope = Envelope(app, largest_body=200 * KIB, most_at_once=200 * KIB, most_of_agents=500 * KIB)
    tasks = [asyncio.create_task(sync(envelope, 180 * KIB, "one").run())]
    await app.are_waiting(1)
    for size, length in ((100 * KIB, 100 * KIB), (100 * KIB, None), (30 * KIB, None)):
        await sync(envelope, size, "one", length).run()
        assert app.refused.pop().code.value == "too-busy"
    assert envelope.held_of_agents.total() == 180 * KIB, "what was refused is let go"
    tasks += [asyncio.create_task(sync(envelope, 180 * KIB, "two").run())]
    await app.are_waiting(2)
    await sync(envelope, 180 * KIB, "three").run()
    assert app.refused.pop().retry_after == 1.0, "all agents together have no more room"
    tasks += [asyncio.create_task(sync(envelope, 50 * KIB, "three").run()) for _ in range(4)]
    await app.are_waiting(6)  # small syncs, which renew leases, always have room
    tasks += [asyncio.create_task(Call(envelope, b"x" * 190 * KIB).run())]
    await app.are_waiting(7)  # and users have room of their own
    app.go.set()
    await asyncio.gather(*tasks)
    assert not envelope.held_of_agents
    assert envelope.held == 0


async def test_full_reports_of_many_agents_at_once_all_go_through() -> None:
    app = App()
    app.go.set()
    envelope = Envelope(app, largest_body=400 * KIB, most_at_once=400 * KIB, most_of_agents=1000 * KIB)

    async def report(agent: str) -> int:
        for trial in range(100):
            call = sync(envelope, 200 * KIB, agent, 200 * KIB)
            await call.run()
            if call.sent:
                return trial
        raise AssertionError(agent)

    await asyncio.gather(*(report(f"agent-{number}") for number in range(100)))
    assert not envelope.held_of_agents


async def test_a_body_that_says_to_be_too_large_is_not_read() -> None:
    call = Call(Envelope(App(), largest_body=100, most_at_once=1000, most_of_agents=1000), length=101)
    await call.run()
    status, body, headers = call.problem
    assert (status, body["code"], headers[b"connection"]) == (413, "body-too-large", b"close")


async def test_a_server_that_stops_answers_a_get_that_waits_and_cuts_the_connection_of_a_post() -> None:
    app = App()
    envelope = Envelope(app, 64 * KIB, 64 * KIB, 64 * KIB)
    get, post = Call(envelope, b"", method="GET"), Call(envelope, b"{}")
    running = [asyncio.create_task(one.run()) for one in (get, post)]
    await app.are_waiting(2)
    for task in running:
        task.cancel()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), asyncio.CancelledError]
    status, problem, headers = get.problem
    assert (status, problem["code"], headers[b"retry-after"]) == (503, "too-busy", b"1")
    assert post.sent == []


@pytest.mark.parametrize(("media_type", "is_told"), [(b"application/x-ndjson", True), (b"application/json", False)])
async def test_a_stream_is_completed_when_the_server_stops(media_type: bytes, is_told: bool) -> None:
    """Output of a job, in lines, would seem whole otherwise."""
    began = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", media_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"data":"one"}\n', "more_body": True})
        began.set()
        await asyncio.Event().wait()

    call = Call(Envelope(stream, KIB, KIB, KIB), b"", method="GET")
    running = asyncio.create_task(call.run())
    await began.wait()
    running.cancel()
    await running
    last = call.sent[-1]
    assert (len(call.sent), last["type"], last.get("more_body", False)) == (3, "http.response.body", False)
    words = [orjson.loads(line)["problem"]["code"] for line in last["body"].splitlines() if line]
    assert words == (["too-busy"] if is_told else [])
