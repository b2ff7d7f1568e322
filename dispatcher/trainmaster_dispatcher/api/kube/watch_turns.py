"""`WatchTurns`: the work of many watches, spread over the rounds of the event loop.

A change wakes every watch of a process. All at once, a thousand of them keep the loop for a second, and each further step of any other
call waits for that long: calls that hold a connection to the store would hold it for ten times as long.
"""

import asyncio
from collections import deque

_PER_ROUND = 16
"""Watches that begin in one round of the loop: some milliseconds of work."""


class WatchTurns:
    """The watches of a process that have something to do, in the order in which they came."""

    def __init__(self, per_round: int = _PER_ROUND) -> None:
        self._per_round = per_round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_running = False

    async def take(self) -> None:
        """Wait until it is the caller's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._begin, loop)
        await turn

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = 0
        while self._waiting and begun < self._per_round:
            turn = self._waiting.popleft()
            if not turn.done():  # else its watch has ended
                turn.set_result(None)
                begun += 1
        self._is_running = bool(self._waiting)
        if self._is_running:
            loop.call_soon(self._begin, loop)
