"""Fair turns: a call begins at once unless its key has used much more of this api than others who are calling now.

Each key has an estimate of its recent use: the seconds for which its calls kept this process busy, where what is older counts less.
(How long they were under way would not do, as each call takes longer beside others.) While a call of a key with a light use is under
way, calls of keys with a heavy use wait for it; and for a second after it, a key with a heavy use has one call under way at once, so
that the next light call meets one that has begun, not several. Nobody starves, and nobody waits for a long call: a call yields for
``YIELD_SECONDS`` at most, and no longer to calls that have lasted that long. Keys with about the same use never wait for each other.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any

YIELD_SECONDS = 0.1
_HALF_LIFE_SECONDS = 10.0
_MUCH = 1.5
_LITTLE_SECONDS = 0.05
"""A key yields to those that used less than its own use by this factor, and only when it has used more than this."""
_RECENT_SECONDS = 1.0
_MOST_KEYS = 10_000


@dataclass(slots=True)
class _Key:
    used: float = 0.0
    at: float = 0.0
    """The time for which ``used`` was computed."""
    came: float = 0.0
    """The time at which the key's latest call came."""
    under_way: int = 0
    new: int = 0
    """Calls that came less than YIELD_SECONDS ago and have not ended."""
    waiting: "deque[Turn]" = field(default_factory=deque)
    since: float = 0.0
    """The time since which the first waiting call yields: when the call came or, if that was later, when the call before it began."""
    timer: "asyncio.TimerHandle | None" = None
    """Checks again when the first waiting call has yielded long enough."""


@dataclass(eq=False, slots=True)
class Turn:
    """The place of one call."""

    key: int
    begins: "asyncio.Future[None] | None" = None
    """Set when the call had to wait."""
    is_new: bool = True
    timer: "asyncio.TimerHandle | None" = None


class Meter:
    """A meter of the seconds for which a coroutine keeps its event loop busy, without the time in which it waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @coroutine
    def run(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            began = time.perf_counter()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - began
            try:
                step = partial(work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - it is the work's to deal with
                step = partial(work.throw, error)


class TooManyWaitError(Exception):
    """The calls of a key that wait have reached their limit."""


class CallTurns:
    """Turns of the calls of one process. For use within one event loop.

    ``at_once``: the most calls of one key under way, 0: no bound. ``most_waiting``: the most that wait of one key.
    """

    def __init__(self, at_once: int, most_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._clock = clock
        self._keys: dict[int, _Key] = {}
        """Keys by number, those used last at the end."""
        self._blocked: dict[int, _Key] = {}
        """Keys with calls that wait."""

    async def begin(self, key: int, *, waits: bool = True) -> Turn:
        """Return the turn of a call when it has come; give it back with ``end``.

        Without ``waits`` the turn comes at once, though other calls yield to it. Raises TooManyWaitError.
        """
        known = self._key(key)
        if waits and len(known.waiting) >= self._most_waiting:
            raise TooManyWaitError
        turn = Turn(key)
        self._make_new(known, turn)
        if not waits:
            known.under_way += 1
            return turn
        if not known.waiting:
            known.since = self._clock()
            if self._may_begin(known):
                known.under_way += 1
                return turn
        turn.begins = asyncio.get_running_loop().create_future()
        known.waiting.append(turn)
        self._blocked[key] = known
        self._look_later(known)
        try:
            await turn.begins
        except BaseException:
            if turn.begins.done() and not turn.begins.cancelled():
                self.end(turn)  # the turn came just as its caller was cancelled
            else:
                known.waiting.remove(turn)
                self._make_old(known, turn)
                self._begin_waiting()
            raise
        return turn

    def end(self, turn: Turn, used: float = 0.0) -> None:
        """Give a turn back. ``used``: the seconds for which its call kept this process busy."""
        known = self._keys[turn.key]
        known.under_way -= 1
        known.used, known.at = self._use(known) + used, self._clock()
        self._make_old(known, turn)
        self._begin_waiting()

    def _key(self, key: int) -> _Key:
        known = self._keys.pop(key, None)
        if known is None:
            known = _Key(at=self._clock())
            if len(self._keys) >= _MOST_KEYS:
                idle = next((one for one, of in self._keys.items() if not of.under_way and not of.waiting), None)
                if idle is not None:
                    del self._keys[idle]
        self._keys[key] = known
        known.came = self._clock()
        return known

    def _use(self, known: _Key) -> float:
        return known.used * math.exp2((known.at - self._clock()) / _HALF_LIFE_SECONDS)

    def _may_begin(self, known: _Key) -> bool:
        if self._at_once and known.under_way >= self._at_once:
            return False
        use = self._use(known)
        if use <= _LITTLE_SECONDS or self._clock() >= known.since + YIELD_SECONDS:
            return True
        since = self._clock() - _RECENT_SECONDS
        for other in reversed(self._keys.values()):
            if other.came < since:
                break
            if (known.under_way or other.new) and other is not known and self._use(other) * _MUCH < use:
                return False
        return True

    def _make_new(self, known: _Key, turn: Turn) -> None:
        known.new += 1
        turn.timer = asyncio.get_running_loop().call_later(YIELD_SECONDS, self._grow_old, turn)

    def _make_old(self, known: _Key, turn: Turn) -> None:
        if not turn.is_new:
            return
        turn.is_new = False
        if turn.timer is not None:
            turn.timer.cancel()
        known.new -= 1

    def _grow_old(self, turn: Turn) -> None:
        self._make_old(self._keys[turn.key], turn)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the calls that may begin now, those of the keys with the lightest use first."""
        for key in sorted(self._blocked, key=lambda key: self._use(self._blocked[key])):
            known = self._blocked[key]
            while known.waiting and self._may_begin(known):
                turn = known.waiting.popleft()
                if turn.begins is not None and not turn.begins.done():
                    known.under_way += 1
                    known.since = self._clock()
                    turn.begins.set_result(None)
            if known.waiting:
                self._look_later(known)
            else:
                del self._blocked[key]

    def _look_later(self, known: _Key) -> None:
        pause = known.since + YIELD_SECONDS - self._clock()
        if known.timer is None and pause > 0:
            known.timer = asyncio.get_running_loop().call_later(pause, self._look, known)

    def _look(self, known: _Key) -> None:
        known.timer = None
        self._begin_waiting()
