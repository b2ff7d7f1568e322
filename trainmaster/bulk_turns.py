"""Turns of large pieces of data on an event loop that also has small ones to pass on, which are waited for. Does no I/O."""

import asyncio
from collections import deque

BULK_BYTES = 16_384
"""Bytes from which on a piece waits for its turn: keys and short answers are smaller."""
_AT_ONCE = 2
"""Pieces that are passed on between two looks of the event loop at its connections."""


class BulkTurns:
    """Lets few large pieces pass between two looks of an event loop at its connections, in the order in which they came.

    Without turns, a hundred connections that always have a large piece ready make each small one wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due: asyncio.AbstractEventLoop | None = None
        """The event loop that calls ``_next``."""

    async def take(self, size: int) -> None:
        """Wait for the turn of a piece of ``size`` bytes; not at all for a small one."""
        if size < BULK_BYTES:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if self._due is not loop:
            self._due = loop
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        passed = 0
        while self._waiting and passed < _AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                passed += 1
        self._due = loop if self._waiting else None
        if self._waiting:
            loop.call_soon(self._next, loop)
