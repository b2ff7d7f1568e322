"""A dispatcher that answers what was written down: at the seam where the client's transport meets the network."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx

from trainmaster.client.async_http import AsyncClient
from trainmaster.client.core import Retries
from trainmaster.client.http import Client
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError

URL = "http://dispatcher.test"
JOB = "bert-7k2p9xq"
_RETRIES = Retries()


def problem(code: Code, detail: str = "no", *, retry_after: str | None = None, **more: Any) -> httpx.Response:
    headers = {"Content-Type": "application/problem+json"} | ({"Retry-After": retry_after} if retry_after else {})
    return httpx.Response(code.status, headers=headers, json=ProblemError(code, detail, **more).to_problem())


class Script:
    """Answers requests one after the other with what was written down; keeps what came and how long was waited.

    ``then`` is what all further requests come to.
    """

    def __init__(self, *answers: httpx.Response | Exception, then: Exception | None = None) -> None:
        self.answers = list(answers)
        self.then = then
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self.now = 0.0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.then if self.then and not self.answers else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def pass_time(self, seconds: float) -> None:
        self.sleep(seconds)

    def client(
        self, retries: Retries = _RETRIES, on_retry: Callable[[TrainmasterError, float], None] | None = None
    ) -> Client:
        return Client(
            URL,
            "tmk_x",
            retries=retries,
            on_retry=on_retry,
            transport=httpx.MockTransport(self),
            sleep=self.sleep,
            clock=lambda: self.now,
        )

    def async_client(self, retries: Retries = _RETRIES) -> AsyncClient:
        transport = httpx.MockTransport(self)
        return AsyncClient(
            URL, "tmk_x", retries=retries, transport=transport, sleep=self.pass_time, clock=lambda: self.now
        )


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is cut after some of it."""

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error or httpx.ReadError("reset")

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        raise self._error


def job(state: str, version: int = 1) -> dict[str, Any]:
    return {
        "id": JOB,
        "name": "bert",
        "queue": "q",
        "priorityClass": "normal",
        "priority": 0,
        "state": state,
        "shownState": state,
        "attempt": 0,
        "retriesUsed": 0,
        "version": version,
        "submittedAt": "2026-01-01T00:00:00Z",
    }
