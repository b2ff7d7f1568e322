"""Past usage: what queues, and users in queues, have used before counts beside their current usage, and decays with a half-life.

The level of a queue is the mean of its share beyond guarantees over all the past, that of a user the mean of the user's share in the
queue. A moment ``t`` seconds ago weighs ``2 ** (-t / half_life)``, as the decayed usage of Slurm's multifactor plugin does. All levels
are stored for one moment and decay by one factor: among queues that use nothing, time alone never changes the order.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

LONGEST_GAP = 120.0
"""The longest time between two updates, in seconds, for which the usage at the later one counts; a longer gap was not observed."""
_NOTHING = 1e-9
"""Levels below this one are dropped."""


_Whose = TypeVar("_Whose", bound=Hashable)


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """The levels of queues, and of users in queues, at one moment. Times in seconds."""

    half_life: float
    at: float
    levels: Mapping[int, float]
    of_users: Mapping[tuple[int, str], float] = field(default_factory=dict)

    def shares(self, now: float) -> dict[int, float]:
        """Return, by queue, what is left of its level at ``now``."""
        return self._left(self.levels, now)

    def shares_of_users(self, now: float) -> dict[tuple[int, str], float]:
        """Return, by queue and user, what is left of the user's level at ``now``."""
        return self._left(self.of_users, now)

    def advanced(
        self, now: float, shares: Mapping[int, float], of_users: Mapping[tuple[int, str], float] | None = None
    ) -> "DecayedUsage":
        """Return the levels at ``now``, if queues and users had these shares since the last update."""
        return DecayedUsage(
            self.half_life,
            max(now, self.at),
            self._advanced(self.levels, now, shares),
            self._advanced(self.of_users, now, of_users or {}),
        )

    def _left(self, levels: Mapping[_Whose, float], now: float) -> dict[_Whose, float]:
        left = self._left_after(now - self.at)
        return {whose: level * left for whose, level in levels.items()}

    def _advanced(
        self, levels: Mapping[_Whose, float], now: float, shares: Mapping[_Whose, float]
    ) -> dict[_Whose, float]:
        left = self._left_after(now - self.at)
        weight = 1.0 - self._left_after(min(now - self.at, LONGEST_GAP))
        found = {
            whose: levels.get(whose, 0.0) * left + shares.get(whose, 0.0) * weight
            for whose in levels.keys() | shares.keys()
        }
        return {whose: level for whose, level in found.items() if level > _NOTHING}

    def _left_after(self, seconds: float) -> float:
        """Return the part of a level that is left after ``seconds``; 1 if the clock was set back."""
        power: float = 2.0 ** (-max(seconds, 0.0) / self.half_life)
        return power
