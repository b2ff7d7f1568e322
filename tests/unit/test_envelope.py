"""Bodies are bounded one by one and all together; what is refused is asked to come again, and what is answered makes room."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson

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
    ) -> None:
        self._envelope = envelope
        self._path = path
        self._pieces = list(pieces)
        self._headers = [] if length is None else [(b"content-length", str(length).encode())]
        self.sent: list[Message] = []

    async def run(self) -> None:
        scope = {"type": "http", "method": "POST", "path": self._path, "headers": self._headers}
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
    envelope = Envelope(app, largest_body=100 * KIB, most_at_once=150 * KIB)
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
    await app.are_waiting(3)  # small bodies and agents always have room
    app.go.set()
    await asyncio.gather(running, *tasks)
    again = Call(envelope, b"x" * 100 * KIB, length=100 * KIB)
    await again.run()
    assert again.sent[0]["status"] == 200


async def test_a_body_that_says_to_be_too_large_is_not_read() -> None:
    call = Call(Envelope(App(), largest_body=100, most_at_once=1000), length=101)
    await call.run()
    status, body, headers = call.problem
    assert (status, body["code"], headers[b"connection"]) == (413, "body-too-large", b"close")
