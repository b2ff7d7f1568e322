"""The run times of the last equivalent jobs, from which that of the next one is predicted, and when a predicted run ends.

The prediction is the mean of the last two (D. Tsafrir, Y. Etsion and D. Feitelson, "Backfilling using system-generated predictions
rather than user runtime estimates", IEEE TPDS 18(6), 2007), here of the same user and shape: what a user runs again and again has the
same members, needs and limit. It orders jobs and plans with them; nothing is ended by it. A run that outlasts its prediction is
given longer ones, by the increments of the same paper, and in the end its time limit.
"""

from collections import ChainMap
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import NamedTuple

_COUNTED = 2
_MOST_KEYS = 100_000
_SHORTEST = 10.0
"""The shortest prediction in seconds: what a start takes on a cluster is not less."""
_MINUTE, _HOUR = 60.0, 3600.0
_CORRECTIONS = tuple(
    accumulate(
        (
            *(_MINUTE * minutes for minutes in (1, 5, 15, 30)),
            *(_HOUR * hours for hours in (1, 2, 5, 10, 20, 50, 100)),
        )
    )
)
"""The seconds beyond its prediction that a run is expected to take, each once it has taken those before."""


class RunTime(NamedTuple):
    """The seconds that a job of a user ran."""

    user: str
    shape_id: int
    seconds: float


class Ends(NamedTuple):
    """When a run ends, in seconds since the epoch: as expected, and at the latest, by its time limit."""

    expected: float
    latest: float


class RunSeconds(NamedTuple):
    """Seconds that a run takes: as expected, and at most, by its time limit. Infinity: nothing is known."""

    expected: float
    latest: float

    @property
    def predicted(self) -> float | None:
        """The expected time where it is less than the limit; None where it is the limit, or nothing is known."""
        return self.expected if self.expected < self.latest else None

    def ends(self, now: float) -> Ends:
        """Return when a run ends that starts now."""
        return Ends(now + self.expected, now + self.latest)


def expected_end(began_at: float, predicted: float, latest: float, now: float) -> float:
    """Return when a run is expected to end that was predicted to take ``predicted`` seconds, and has not ended by ``now``.

    It is after ``now`` unless ``latest`` is not.
    """
    end = began_at + predicted
    if end <= now:
        end = next((end + more for more in _CORRECTIONS if end + more > now), inf)
    return min(end, latest)


@dataclass(slots=True)
class RunTimes:
    """The last run times by user and shape, and by shape alone under the empty name. One that is off learns and predicts nothing."""

    is_on: bool = True
    _last: MutableMapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything can be predicted."""
        return bool(self._last)

    @classmethod
    def of(cls, past: Iterable[RunTime]) -> "RunTimes":
        """Return the last of the times of ``past``, which are in the order of their ends."""
        found = cls()
        for one in past:
            found.note(one.user, one.shape_id, one.seconds)
        return found

    def note(self, user: str, shape_id: int, seconds: float) -> None:
        """Record that a job of a user has ended. Those of which nothing was recorded for longest are forgotten beyond a number."""
        if not self.is_on:
            return
        for key in {(user, shape_id), ("", shape_id)}:
            last = self._last.pop(key, ())
            self._last[key] = (*last[1 - _COUNTED :], max(seconds, 0.0))
        while len(self._last) > _MOST_KEYS:
            del self._last[next(iter(self._last))]

    def with_alias(self, shape_id: int, like: int, user: str) -> "RunTimes":
        """Return run times by which a user's jobs with a shape are predicted like those with another one, and all others as here."""
        found = {(one, shape_id): last for one in {user, ""} if (last := self._last.get((one, like))) is not None}
        return RunTimes(self.is_on, ChainMap(found, self._last))

    def predicted(self, user: str, shape_id: int) -> float | None:
        """Return how long a job of a user with this shape is predicted to run, in seconds; None as long as none has ended.

        Without a user: by the jobs of all users with this shape.
        """
        last = self._last.get((user, shape_id))
        return None if last is None else max(sum(last) / len(last), _SHORTEST)
