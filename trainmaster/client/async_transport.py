"""Performs the steps of calls and streams on an event loop, over one connection pool."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import httpx

from trainmaster.client import wire
from trainmaster.client.core import Request, Response
from trainmaster.client.errors import ClosedError
from trainmaster.client.steps import Course, Effect, Item, Open, Read, Reply, Send, Sleep, Tell, Telling, Value
from trainmaster.protocol.errors import TrainmasterError


class AsyncTransport:
    """Raises the errors of the steps, and ClosedError after ``aclose``."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._sleep = sleep
        with wire.mapped_errors(self.url):
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=wire.headers(key),
                auth=wire.authentication(key, self.url),
                limits=wire.LIMITS,
                trust_env=wire.goes_through_proxies(self.url),
                verify=wire.trusted_certificates(self.url),
                transport=transport,
            )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(self, request: Request, seconds: float) -> Response:
        """Send a request once and return the response, whatever its status. Raises UnreachableError."""
        with wire.mapped_errors(self.url):
            return wire.to_response(await self._http.send(wire.build(self._http, request, seconds)))

    async def run(self, steps: Telling[Any, Value]) -> Value:
        """Run the steps and return their value; items they yield on the way are dropped."""
        course = Course(steps)
        async with aclosing(self._walk(course)) as items:
            async for _ in items:
                pass
        return course.value

    def iterate(self, steps: Telling[Item, object]) -> AsyncGenerator[Item, None]:
        """Run the steps and yield their items."""
        return self._walk(Course(steps))

    async def _walk(self, course: Course[Item, Any]) -> AsyncGenerator[Item, None]:
        async with aclosing(_AsyncOpenStream(self._http, self.url)) as line:
            while (step := course.step()) is not None:
                if isinstance(step, Tell):
                    yield step.item
                    continue
                try:
                    course.brought = await self._do(step, line)
                except TrainmasterError as error:
                    course.failed = error

    async def _do(self, step: Effect, line: "_AsyncOpenStream") -> Reply:
        if self._http.is_closed:
            raise ClosedError("this client was closed")
        match step:
            case Send():
                return await self.send(step.request, step.seconds)
            case Open():
                return await line.open(step)
            case Read():
                return await line.read()
            case Sleep():
                await self._sleep(step.seconds)
            case _:
                await line.aclose()
        return None


class _AsyncOpenStream:
    """Holds at most one open stream."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._answer: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def open(self, step: Open) -> Response:
        await self.aclose()
        with wire.mapped_errors(self._url):
            self._answer = await self._http.send(wire.build(self._http, step.request, step.seconds), stream=True)
            if not self._answer.is_success:
                await self._answer.aread()
                return wire.to_response(self._answer)
        self._chunks = self._answer.aiter_bytes()
        return wire.head(self._answer)

    async def read(self) -> bytes | None:
        with wire.mapped_errors(self._url):
            return await anext(self._chunks, None)

    async def aclose(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.aclose()
