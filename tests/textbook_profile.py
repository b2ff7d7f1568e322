"""How many processors of a machine are planned to be free from now on.

A. Mu'alem and D. Feitelson, IEEE TPDS 12(6), 2001: the profile of conservative backfill. It is a step function; a planned job lowers
it from its start to its planned end.
"""

from bisect import bisect_left
from collections.abc import Iterable
from math import inf


class Profile:
    """Steps by time: ``_free[i]`` processors from ``_times[i]`` to ``_times[i + 1]``, the last ones for ever. Times in seconds."""

    def __init__(self, processors: int, now: float = 0.0) -> None:
        self._times = [now]
        self._free = [processors]

    @classmethod
    def of_running(cls, free: int, now: float, ends: Iterable[tuple[float, int]]) -> "Profile":
        """Return the profile of a machine with free processors now, and ends after now of how many processors each."""
        profile = cls(free, now)
        for end, processors in sorted(ends):
            free += processors
            if profile._times[-1] == end:
                profile._free[-1] = free
            else:
                profile._times.append(end)
                profile._free.append(free)
        return profile

    def forget_before(self, now: float) -> None:
        """Let the profile begin now."""
        first = bisect_left(self._times, now)
        if first == len(self._times) or self._times[first] > now:
            self._times[first - 1] = now
            first -= 1
        del self._times[:first], self._free[:first]

    def earliest(self, seconds: float, processors: int, before: float = inf) -> float:
        """Return when this many processors are first free for this long; ``before`` if that is not earlier than it."""
        times, free = self._times, self._free
        count, first = len(times), 0
        while True:
            while free[first] < processors:
                first += 1
            start = times[first]
            if start >= before:
                return before
            end, after = start + seconds, first + 1
            while after < count and times[after] < end and free[after] >= processors:
                after += 1
            if after == count or times[after] >= end:
                return start
            first = after + 1

    def take(self, start: float, end: float, processors: int) -> None:
        """Lower the profile from ``start`` to ``end``; a negative number of processors gives them back.

        Raises ValueError where fewer are free.
        """
        first, last = self._step_at(start), self._step_at(end)
        for index in range(first, last):
            self._free[index] -= processors
            if self._free[index] < 0:
                raise ValueError(f"{-self._free[index]} processors too many are planned at {self._times[index]:g} s")
        for index in (last, first):
            if index and self._free[index] == self._free[index - 1]:
                del self._times[index], self._free[index]

    def _step_at(self, time: float) -> int:
        """Return the index of the step that begins at a time; make it if there is none."""
        index = bisect_left(self._times, time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._free.insert(index, self._free[index - 1])
        return index
