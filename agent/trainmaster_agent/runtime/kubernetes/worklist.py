"""`Worklist`: order in which runs are reconciled; never gives one run to two workers. Owned by one event loop."""

import asyncio
from collections import deque
from collections.abc import Callable

_IN_A_ROW = 3
"""Runs that wait for their pods come before others, but one turn of four goes to the others: where starts never cease,
ends have to be reported all the same."""


class Worklist:
    """``is_new`` returns whether a run's pods are still to be created."""

    def __init__(self, is_new: Callable[[str], bool]) -> None:
        self._is_new = is_new
        self._new: deque[str] = deque()
        self._others: deque[str] = deque()
        self._in_a_row = 0
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        """Runs in a worker's hands that have changed since it took them."""
        self._count = asyncio.Semaphore(0)

    def __len__(self) -> int:
        """Return the number of waiting runs."""
        return len(self._waiting)

    def add(self, run: str) -> None:
        """Add a run unless it waits already; one that a worker has gets another turn afterwards."""
        if run in self._busy:
            self._again.add(run)
        elif run not in self._waiting:
            self._waiting.add(run)
            (self._new if self._is_new(run) else self._others).append(run)
            self._count.release()

    async def take(self) -> str:
        """Return the next run; the caller has to call ``done`` with it."""
        await self._count.acquire()
        if self._others and (not self._new or self._in_a_row >= _IN_A_ROW):
            self._in_a_row = 0
            run = self._others.popleft()
        else:
            self._in_a_row += 1
            run = self._new.popleft()
        self._waiting.discard(run)
        self._busy.add(run)
        return run

    def done(self, run: str) -> None:
        self._busy.discard(run)
        if run in self._again:
            self._again.discard(run)
            self.add(run)
