"""Sends request values and follows streams, blocking, over one pool of connections."""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from trainmaster.client import core, wire
from trainmaster.client.core import Request, Response, Retries
from trainmaster.client.streams import Notice, Stream
from trainmaster.protocol.errors import ProblemError, TrainmasterError, UnreachableError

Item = TypeVar("Item")

_SILENT_SECONDS = 60.0
_LATE_SECONDS = 0.5


class Transport:
    """``send`` and ``follow`` raise ProblemError, and UnreachableError when the dispatcher stays away."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float,
        retries: Retries,
        on_retry: Callable[[TrainmasterError, float], None] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self._retries = retries
        self._on_retry = on_retry
        self._sleep = sleep
        self.clock = clock
        with wire.mapped_errors(self.url):
            self._http = httpx.Client(
                base_url=self.url,
                headers=wire.headers(key),
                timeout=wire.timeouts(timeout),
                limits=wire.LIMITS,
                trust_env=wire.goes_through_proxies(self.url),
                transport=transport,
            )

    def close(self) -> None:
        self._http.close()

    def send(self, request: Request) -> Response:
        """The answer, which is a success; passing failures are tried again."""
        tries = 0
        while True:
            tries += 1
            try:
                with wire.mapped_errors(self.url):
                    answer = wire.to_response(self._http.send(self._build(request)))
                core.check(answer)
                return answer
            except (ProblemError, UnreachableError) as error:
                self._pause_or_raise(request, tries, error)

    def follow(self, stream: Stream[Item], timeout: float | None) -> Iterator[Item | Notice]:
        """All of a stream. The first connection is tried as any request is; a lost one is sought until the time is up."""
        ends = None if timeout is None else self.clock() + timeout
        tries, connected = 0, False
        while not stream.over and (ends is None or self.clock() < ends):
            request = stream.request()
            lost: TrainmasterError = UnreachableError("the connection ended early")
            try:
                for data in self._chunks(request, ends):
                    connected = True
                    for item in stream.feed(data):
                        tries = 0
                        yield item
                if stream.may_end or stream.over:
                    return
            except (ProblemError, UnreachableError) as error:
                if not core.is_passing(error):
                    raise
                lost = error
            stream.lost()
            if ends is not None and self.clock() >= ends:
                return
            if connected and isinstance(lost, wire.SilentError):
                continue
            tries += 1
            if not connected:
                self._pause_or_raise(request, tries, lost)
                continue
            if tries == 1:
                yield Notice(f"{lost}; trying again")
            self._sleep(self._retries.back_off(tries, random.random()))

    def _pause_or_raise(self, request: Request, tries: int, error: TrainmasterError) -> None:
        pause = self._retries.pause(request, tries, error, random.random())
        if pause is None:
            raise error
        if self._on_retry is not None:
            self._on_retry(error, pause)
        self._sleep(pause)

    def _build(self, request: Request, read_seconds: float | None = None) -> httpx.Request:
        return self._http.build_request(
            request.method,
            request.path,
            params=httpx.QueryParams(request.query) if request.query else None,
            headers=dict(request.headers),
            content=request.body,
            timeout=self._http.timeout if read_seconds is None else wire.timeouts(read_seconds),
        )

    def _chunks(self, request: Request, ends: float | None) -> Iterator[bytes]:
        """The bytes of a streamed answer, at first none. Raises SilentError so that no read outlasts the time left."""
        left = _SILENT_SECONDS if ends is None else max(ends - self.clock(), 0.01)
        silent = min(_SILENT_SECONDS, left)
        with wire.mapped_errors(self.url):
            answer = self._http.send(self._build(request, silent), stream=True)
            try:
                if answer.status_code >= 300:
                    answer.read()
                    core.check(wire.to_response(answer))
                yield b""
                for data in answer.iter_bytes():
                    yield data
                    if ends is not None and ends - self.clock() < silent - _LATE_SECONDS:
                        raise wire.SilentError("the time is nearly up")
            finally:
                answer.close()
