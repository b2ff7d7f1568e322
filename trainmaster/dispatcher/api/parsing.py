"""Parsing submissions where they delay nobody: small bodies here, large ones in a process of their own.

Checking ten thousand specifications holds the interpreter for a second or more; an agent's sync must not wait for it.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

from trainmaster.dispatcher.services.preparing import Most, Prepared, prepare
from trainmaster.protocol.errors import Code, Mistake, ProblemError

_MOST_WAITING = 8
_MOST_WORKERS = 2
"""Processes for large bodies, as many as cores at most: one more is started when all others are at work."""


_PR_SET_PDEATHSIG = 1


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An api that is killed cannot end its worker, which would wait for work for ever.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


Refusal = tuple[Code, str, tuple[Mistake, ...]]


def _prepare_or_refuse(body: bytes, most: Most) -> Prepared | Refusal:
    """As ``prepare``, with a refusal as a value: exceptions with arguments of their own do not cross processes well."""
    try:
        return prepare(body, most)
    except ProblemError as error:
        return error.code, error.detail, error.mistakes


class Parser:
    """A few worker processes for large bodies, started when they are needed and again if one dies."""

    def __init__(self, inline_bytes: int, most: Most) -> None:
        self._inline_bytes = inline_bytes
        self._most = most
        self._pool: ProcessPoolExecutor | None = None
        self._waiting = 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, body: bytes) -> Prepared:
        """Check a submission. Raises ProblemError, TOO_BUSY when too many large bodies wait already."""
        if len(body) <= self._inline_bytes:
            return prepare(body, self._most)
        if self._waiting >= _MOST_WAITING:
            raise ProblemError(Code.TOO_BUSY, "several large submissions are being read already", retry_after=1.0)
        self._waiting += 1
        try:
            result = await self._in_worker(body)
        finally:
            self._waiting -= 1
        if isinstance(result, tuple):
            code, detail, mistakes = result
            raise ProblemError(code, detail, mistakes=mistakes)
        return result

    async def _in_worker(self, body: bytes) -> Prepared | Refusal:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            workers = min(_MOST_WORKERS, os.cpu_count() or 1)
            self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
        loop, pool = asyncio.get_running_loop(), self._pool
        try:
            return await loop.run_in_executor(pool, _prepare_or_refuse, body, self._most)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None
            raise ProblemError(
                Code.TOO_BUSY, "the process that reads large bodies died; try again", retry_after=1.0
            ) from error
