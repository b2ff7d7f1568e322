"""Containment of unexpected errors: what one object causes ends the work on that object, and nothing else.

Each place that works on objects of several tenants, one after the other, is a ``Part``. An error there is logged with its
traceback and the name of the object, counted by the metric ``contained_errors``, and given up to the caller's rule for the object:
it is left out, closed, or tried again later. Errors of the store as a whole are never contained: they say nothing about the object.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from trainmaster.metrics.definitions import contained_errors
from trainmaster.protocol.errors import Code, ProblemError

log = logging.getLogger(__name__)

_LOG_SECONDS = 60.0
"""The same error of the same object is logged once in this time; it is counted each time."""
_MOST_LOGGED = 1000
_OF_THE_STORE = frozenset({Code.STORE_AWAY, Code.TOO_BUSY})
MOST_FAILURES = 48
"""The number of failed writes after which ``isolate`` gives up: then the cause is not a single object."""


class Part(StrEnum):
    """The kinds of objects whose errors are contained; the label ``part`` of the metric."""

    QUEUE = "queue"
    PRIORITY_CLASS = "priority_class"
    CLUSTER = "cluster"
    PRICE_BOOK = "price_book"
    DATASET = "dataset"
    BURST_POLICY = "burst_policy"
    RESERVATION = "reservation"
    DECLARED = "declared"
    """Declared objects of kinds that are no part of their own."""
    SHAPE = "shape"
    JOB = "job"
    JOB_CLASS = "job_class"
    REASON = "reason"
    DECISION = "decision"
    CYCLE = "cycle"
    CHORE = "chore"
    QUESTION = "question"
    RUN = "run"
    WEBHOOK = "webhook"
    WORKFLOW = "workflow"
    STREAM = "stream"
    TASK = "task"


for _part in Part:
    contained_errors.labels(_part.value)  # start at 0: Prometheus cannot see the rise to a first value

_logged: dict[tuple[str, str, str], float] = {}


def is_of_the_store(error: BaseException) -> bool:
    """Return whether an error means that the store is unreachable or overloaded, and is not about the object that was worked on."""
    return isinstance(error, ProblemError) and error.code in _OF_THE_STORE


def note(part: Part, name: str, error: BaseException) -> None:
    """Count an unexpected error of one object and log it with its traceback."""
    contained_errors.labels(part.value).inc()
    key, now = (part.value, name, f"{type(error).__name__}: {error}"[:500]), time.monotonic()
    if now - _logged.get(key, -_LOG_SECONDS) < _LOG_SECONDS:
        return
    if len(_logged) >= _MOST_LOGGED:
        _logged.clear()
    _logged[key] = now
    log.error(
        "%s %s: an unexpected error was contained: %s",
        part.value.replace("_", " "),
        name,
        key[2],
        exc_info=error,
        extra={"part": part.value, "object": name},
    )


@contextmanager
def contained(part: Part, name: str, *passing: type[Exception]) -> Iterator[None]:
    """Contain the errors of the block, which works on one object. Errors of the store as a whole, and ``passing``, leave it."""
    try:
        yield
    except Exception as error:
        if is_of_the_store(error) or isinstance(error, passing):
            raise
        note(part, name, error)


async def run_for_ever(name: str, loop: Callable[[], Awaitable[None]], pause: float = 1.0) -> None:
    """Run a loop that never ends; begin it again ``pause`` seconds after an unexpected error ended it."""
    while True:
        try:
            await loop()
            return
        except Exception as error:  # noqa: BLE001 - noted with its traceback
            note(Part.TASK, name, error)
        await asyncio.sleep(pause)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Failed(NamedTuple, Generic[_Item]):
    """An object that alone could not be written."""

    item: _Item
    error: Exception


async def isolate(
    items: Sequence[_Item],
    write: Callable[[Sequence[_Item]], Awaitable[_Result]],
    passing: tuple[type[Exception], ...] = (),
) -> tuple[list[_Result], list[Failed[_Item]]]:
    """Write items together; if that fails unexpectedly, in ever smaller parts, until the items are found that cannot be
    written alone.

    ``write`` must be all or nothing. Errors of the store as a whole and the types in ``passing`` are raised at once.
    The first error is raised if ``MOST_FAILURES`` writes have failed and none has succeeded; items that are left after
    that number of failures are not written.
    """
    done: list[_Result] = []
    failed: list[Failed[_Item]] = []
    first: Exception | None = None
    failures = 0
    parts = [items]
    while parts:
        part = parts.pop()
        try:
            done.append(await write(part))
        except passing:
            raise
        except Exception as error:
            if is_of_the_store(error):
                raise
            first = first or error
            failures += 1
            if len(part) == 1:
                failed.append(Failed(part[0], error))
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
            if failures >= MOST_FAILURES:
                if not done:
                    raise first from error
                break
    return done, failed


async def change_jobs(ids: Sequence[int], write: Callable[[Sequence[int]], Awaitable[int]]) -> int:
    """Change jobs by ``write``, which returns how many it has changed; return how many were. Those that cannot be written are noted,
    and keep no others from it.
    """
    done, failed = await isolate(ids, write) if ids else ([], [])
    for one in failed:
        note(Part.JOB, str(one.item), one.error)
    return sum(done)
