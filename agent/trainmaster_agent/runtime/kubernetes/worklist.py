"""`Worklist`: which run is looked at next, and that no two look at one run at once. One event loop owns it."""

import asyncio
from collections import deque
from collections.abc import Callable

_IN_A_ROW = 3
"""Runs that wait for their pods are looked at before others, but of four looks one goes to the others: where starts never cease,
ends have to be told all the same."""


class Worklist:
    """``is_new`` says of a run whether its pods have still to be made."""

    def __init__(self, is_new: Callable[[str], bool]) -> None:
        self._is_new = is_new
        self._new: deque[str] = deque()
        self._others: deque[str] = deque()
        self._in_a_row = 0
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        """Of those that are being looked at: they have changed since."""
        self._count = asyncio.Semaphore(0)

    def __len__(self) -> int:
        """Runs that wait to be looked at."""
        return len(self._waiting)

    def add(self, run: str) -> None:
        """Have a run looked at; it is not added twice, and one that is being looked at has another turn afterwards."""
        if run in self._busy:
            self._again.add(run)
        elif run not in self._waiting:
            self._waiting.add(run)
            (self._new if self._is_new(run) else self._others).append(run)
            self._count.release()

    async def take(self) -> str:
        """The next run; ``done`` has to follow."""
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
