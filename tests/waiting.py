"""Waiting for what happens by itself, by looking again and again until a deadline; the only place where tests wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

_LOOK_SECONDS = 0.02
_MOST_SECONDS = 0.1
_GROWTH = 1.2
"""Between looks: long waits do not keep the machine busy with looking."""
_SLOWNESS = 6
"""How many times slower than an idle machine a busy one may be before a test fails."""


def _name_of(look: Callable[[], object]) -> str:
    return str(getattr(look, "__qualname__", look))


@asynccontextmanager
async def beside(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these, which do not end by themselves, until the block ends; the error of one that failed meanwhile is raised then."""
    tasks = [asyncio.create_task(one) for one in endless]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def eventually(look: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Return once ``look`` is true; fail the test when it is not within ``seconds`` of a machine that is idle."""
    ends, pause = time.monotonic() + _SLOWNESS * seconds, _LOOK_SECONDS
    while not await look():
        if time.monotonic() > ends:
            raise AssertionError(f"{_name_of(look)} was not true within {_SLOWNESS * seconds:g} s")
        await asyncio.sleep(pause)
        pause = min(pause * _GROWTH, _MOST_SECONDS)


def eventually_sync(look: Callable[[], bool], seconds: float = 10.0, every: float = _LOOK_SECONDS) -> None:
    """Do what ``eventually`` does, for tests without an event loop. ``every``: seconds between looks; a look may be expensive."""
    ends, pause = time.monotonic() + _SLOWNESS * seconds, every
    while not look():
        if time.monotonic() > ends:
            raise AssertionError(f"{_name_of(look)} was not true within {_SLOWNESS * seconds:g} s")
        time.sleep(pause)
        pause = max(every, min(pause * _GROWTH, _MOST_SECONDS))
