"""Performs the steps of calls and streams, blocking, over one connection pool. May be used by several threads at once."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx

from trainmaster.client import wire
from trainmaster.client.core import Response
from trainmaster.client.errors import ClosedError
from trainmaster.client.steps import Course, Effect, Item, Open, Read, Reply, Send, Sleep, Tell, Telling, Value
from trainmaster.protocol.errors import TrainmasterError

_CLOSED = "this client was closed"


class Transport:
    """Raises the errors of the steps, and ClosedError after ``close``."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._sleep = sleep
        with wire.mapped_errors(self.url):
            self._http = httpx.Client(
                base_url=self.url,
                headers=wire.headers(key),
                auth=wire.authentication(key, self.url),
                limits=wire.LIMITS,
                trust_env=wire.goes_through_proxies(self.url),
                verify=wire.trusted_certificates(self.url),
                transport=transport,
            )

    def close(self) -> None:
        self._http.close()

    def run(self, steps: Telling[Any, Value]) -> Value:
        """Run the steps and return their value; items they yield on the way are dropped."""
        course = Course(steps)
        for _ in self._walk(course):
            pass
        return course.value

    def iterate(self, steps: Telling[Item, object]) -> Iterator[Item]:
        """Run the steps and yield their items."""
        return self._walk(Course(steps))

    def _walk(self, course: Course[Item, Any]) -> Iterator[Item]:
        with closing(_OpenStream(self._http, self.url)) as line:
            while (step := course.step()) is not None:
                if isinstance(step, Tell):
                    yield step.item
                    continue
                try:
                    course.brought = self._do(step, line)
                except TrainmasterError as error:
                    course.failed = error
                except RuntimeError as error:  # httpx raises this when another thread closes the client at this moment
                    if not self._http.is_closed:
                        raise
                    raise ClosedError(_CLOSED) from error

    def _do(self, step: Effect, line: "_OpenStream") -> Reply:
        if self._http.is_closed:
            raise ClosedError(_CLOSED)
        match step:
            case Send():
                with wire.mapped_errors(self.url):
                    return wire.to_response(self._http.send(wire.build(self._http, step.request, step.seconds)))
            case Open():
                return line.open(step)
            case Read():
                return line.read()
            case Sleep():
                self._sleep(step.seconds)
            case _:
                line.close()
        return None


class _OpenStream:
    """Holds at most one open stream."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url
        self._answer: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def open(self, step: Open) -> Response:
        self.close()
        with wire.mapped_errors(self._url):
            self._answer = self._http.send(wire.build(self._http, step.request, step.seconds), stream=True)
            if not self._answer.is_success:
                self._answer.read()
                return wire.to_response(self._answer)
        self._chunks = self._answer.iter_bytes()
        return wire.head(self._answer)

    def read(self) -> bytes | None:
        with wire.mapped_errors(self._url):
            return next(self._chunks, None)

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()
