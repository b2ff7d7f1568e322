"""The run times of the last equivalent jobs, from which that of the next one is predicted.

The prediction is the mean of the last two (D. Tsafrir, Y. Etsion and D. Feitelson, "Backfilling using system-generated predictions
rather than user runtime estimates", IEEE TPDS 18(6), 2007), here of the same user and shape: what a user runs again and again has the
same members, needs and limit. It orders jobs; nothing is ended by it, and no capacity is promised by it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_COUNTED = 2
_MOST_KEYS = 100_000


class RunTime(NamedTuple):
    """The seconds that a job of a user ran."""

    user: str
    shape_id: int
    seconds: float


@dataclass(slots=True)
class RunTimes:
    """The last run times by user and shape, and by shape alone under the empty name."""

    _last: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, past: Iterable[RunTime]) -> "RunTimes":
        """Return the last of the times of ``past``, which are in the order of their ends."""
        found = cls()
        for one in past:
            found.note(one.user, one.shape_id, one.seconds)
        return found

    def note(self, user: str, shape_id: int, seconds: float) -> None:
        """Record that a job of a user has ended. Those of which nothing was recorded for longest are forgotten beyond a number."""
        for key in {(user, shape_id), ("", shape_id)}:
            last = self._last.pop(key, ())
            self._last[key] = (*last[1 - _COUNTED :], max(seconds, 0.0))
        while len(self._last) > _MOST_KEYS:
            del self._last[next(iter(self._last))]

    def predicted(self, user: str, shape_id: int) -> float | None:
        """Return how long a job of a user with this shape is predicted to run, in seconds; None as long as none has ended.

        Without a user: by the jobs of all users with this shape.
        """
        last = self._last.get((user, shape_id))
        return None if last is None else sum(last) / len(last)
