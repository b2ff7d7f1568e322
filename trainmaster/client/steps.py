"""Calls and streams step by step, as generators that yield the next effect. Sans-I/O.

A procedure yields effects and receives their results, or has their error thrown into it. A transport performs the effects, with
or without ``await``; so retries, reconnecting and waiting are written once, here and in ``verbs.py``.
"""

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeAlias, TypeVar, cast

from trainmaster.client import core
from trainmaster.client.core import Request, Response, Retries
from trainmaster.client.errors import SilentError, UnknownHostError
from trainmaster.client.streams import Notice, Stream
from trainmaster.protocol.errors import ProblemError, TrainmasterError, UnreachableError

Item = TypeVar("Item")
TellItem = TypeVar("TellItem", covariant=True)
Value = TypeVar("Value")

_SILENT_SECONDS = 60.0
_LATE_SECONDS = 0.5
_LEAST_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and return its Response, whatever its status. Fails with UnreachableError."""

    request: Request
    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and return its Response with its body; for a success without: ``Read`` returns that in pieces.

    ``seconds``: time-out of the answer, and later of each piece.
    """

    request: Request
    seconds: float


@dataclass(frozen=True, slots=True)
class Read:
    """Return the next bytes of the stream opened last; None at its end. Fails with SilentError and UnreachableError."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the stream opened last."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Tell(Generic[TellItem]):
    """Give an item to the caller that iterates. Dropped if nobody iterates."""

    item: TellItem


Effect: TypeAlias = Send | Open | Read | Close | Sleep
Reply: TypeAlias = Response | bytes | None
Steps: TypeAlias = Generator[Effect, Reply, Value]
"""A procedure that returns a value."""
Telling: TypeAlias = Generator[Effect | Tell[Item], Reply, Value]
"""A procedure that also yields items."""


@dataclass(frozen=True, slots=True)
class CallTerms:
    """Terms of requests: retries, time-outs, clock and randomness."""

    retries: Retries
    answer_seconds: float
    on_retry: Callable[[TrainmasterError, float], None] | None = None
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


class Course(Generic[Item, Value]):
    """A running procedure, for a transport: it performs the effect of ``step`` and stores the result."""

    def __init__(self, steps: Telling[Item, Value]) -> None:
        self._steps = steps
        self.brought: Reply = None
        self.failed: TrainmasterError | None = None
        self.value: Value

    def step(self) -> Effect | Tell[Item] | None:
        """Return the next effect; None at the end, when ``value`` is set. Raises the procedure's errors."""
        brought, self.brought = self.brought, None
        failed, self.failed = self.failed, None
        try:
            return self._steps.send(brought) if failed is None else self._steps.throw(failed)
        except StopIteration as done:
            self.value = done.value
            return None


def send(terms: CallTerms, request: Request, within: float | None = None) -> Steps[Response]:
    """Send a request and return its successful response. Retry passing failures until the deadline, or for ``within`` seconds."""
    ends = terms.clock() + (terms.retries.deadline_seconds if within is None else within)
    tries, was_lost = 0, False
    while True:
        try:
            response = cast(Response, (yield Send(request, _bounded(terms.answer_seconds, ends - terms.clock()))))
            if was_lost and request.method == "DELETE" and response.status == 404:
                return Response(204, {}, b"")  # an earlier try succeeded, and its answer was lost
            core.check(response)
            return response
        except (ProblemError, UnreachableError) as error:
            tries += 1
            was_lost = was_lost or not isinstance(error, ProblemError)
            pause = _pause(terms, request, tries, error, ends)
        yield Sleep(pause)


def follow(
    terms: CallTerms, stream: Stream[Item], timeout: float | None, *, known: bool = False, is_read: bool = True
) -> Telling[Item | Notice, None]:
    """Follow a stream to its end. The first connection is retried as any request; a lost one is reopened until the time-out.

    ``known``: the dispatcher has answered before, so the first connection is retried like a lost one. ``is_read``: whether anyone
    iterates over the items; if not, lost connections are told to ``on_retry`` instead of as notices.
    """
    ends = terms.clock() + (inf if timeout is None else timeout)
    gives_up = terms.clock() + terms.retries.deadline_seconds
    tries, pause = 0, 0.0
    while not stream.over and terms.clock() < ends:
        opened = terms.clock()
        lost = yield from _read_on(terms, stream, ends, known=known)
        if lost is None:
            return
        yield Close()
        stream.lost()
        known = known or lost.connected
        if terms.clock() >= ends:
            return
        if lost.connected and isinstance(lost.error, SilentError):
            continue
        if lost.delivered or terms.clock() - opened > pause:
            tries = 0  # the connection delivered something, or lasted longer than the pause before it
        tries += 1
        if not known:
            pause = _pause(terms, stream.request(), tries, lost.error, gives_up)
        else:
            pause = min(terms.retries.back_off(tries, terms.chance()), ends - terms.clock())
            if tries == 1 and is_read:
                yield Tell(Notice(f"{lost.error}; trying again"))
            elif not is_read and terms.on_retry is not None:
                terms.on_retry(lost.error, pause)
        yield Sleep(pause)


@dataclass(slots=True)
class _Lost:
    """The loss of a connection before the stream's end."""

    connected: bool = False
    delivered: bool = False
    error: TrainmasterError = field(default_factory=lambda: UnreachableError("the connection ended early"))


def _read_on(terms: CallTerms, stream: Stream[Item], ends: float, *, known: bool) -> Telling[Item, _Lost | None]:
    """Read one connection; return None when that was the rest. Raises errors that another connection would meet, too."""
    lost = _Lost()
    try:
        silent = _bounded(_SILENT_SECONDS, ends - terms.clock())
        core.check(cast(Response, (yield Open(stream.request(), silent))))
        lost.connected = True
        while (data := cast(bytes | None, (yield Read()))) is not None:
            for item in stream.feed(data):
                lost.delivered = True
                yield Tell(item)
            if stream.over:
                return None
            if ends - terms.clock() < silent - _LATE_SECONDS:
                raise SilentError("the time is nearly up")  # the next read would last longer
    except (ProblemError, UnreachableError) as error:
        if not core.is_passing(error) and not (known and isinstance(error, UnknownHostError)):
            raise
        lost.error = error
        return lost
    return None if stream.may_end else lost


def _bounded(seconds: float, left: float) -> float:
    return min(seconds, max(left, _LEAST_SECONDS))


def _pause(terms: CallTerms, request: Request, tries: int, error: TrainmasterError, ends: float) -> float:
    """Return the seconds until the next try, after calling ``on_retry``. Raises ``error`` when there is none."""
    pause = terms.retries.pause(request, tries, error, ends - terms.clock(), terms.chance())
    if pause is None:
        raise error
    if terms.on_retry is not None:
        terms.on_retry(error, pause)
    return pause
