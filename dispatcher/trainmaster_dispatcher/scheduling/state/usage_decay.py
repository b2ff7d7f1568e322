"""Past usage: what queues, and users in queues, have used before counts beside their current usage, and decays with a half-life.

The level of a queue is the mean of its share beyond guarantees over all the past, that of a user the mean of the user's share in the
queue. A moment ``t`` seconds ago weighs ``2 ** (-t / half_life)``, as the decayed usage of Slurm's multifactor plugin does. All levels
are stored for one moment and decay by one factor: among queues that use nothing, time alone never changes the order.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

LONGEST_GAP = 120.0
"""The longest time between two updates, in seconds, for which the usage at the later one counts; a longer gap was not observed."""
USER_HALF_LIFE = "1h"
"""The half-life of what users have used, unless the installation has another one."""
_NOTHING = 1e-9
"""Levels below this one are dropped."""

_Whose = TypeVar("_Whose", bound=Hashable)


@dataclass(frozen=True, slots=True)
class DecayedUsage(Generic[_Whose]):
    """The levels of queues, or of users by queue and name, at one moment. Times in seconds."""

    half_life: float
    at: float
    levels: Mapping[_Whose, float]

    def shares(self, now: float) -> dict[_Whose, float]:
        """Return what is left of each level at ``now``."""
        left = self._left_after(now - self.at)
        return {whose: level * left for whose, level in self.levels.items()}

    def advanced(
        self, now: float, shares: Mapping[_Whose, float], longest_gap: float = LONGEST_GAP
    ) -> "DecayedUsage[_Whose]":
        """Return the levels at ``now``, if these were the shares since the last update, at most ``longest_gap`` seconds ago."""
        left = self._left_after(now - self.at)
        weight = 1.0 - self._left_after(min(now - self.at, longest_gap))
        levels = {
            whose: self.levels.get(whose, 0.0) * left + shares.get(whose, 0.0) * weight
            for whose in self.levels.keys() | shares.keys()
        }
        kept = {whose: level for whose, level in levels.items() if level > _NOTHING}
        return DecayedUsage(self.half_life, max(now, self.at), kept)

    def _left_after(self, seconds: float) -> float:
        """Return the part of a level that is left after ``seconds``; 1 if the clock was set back."""
        power: float = 2.0 ** (-max(seconds, 0.0) / self.half_life)
        return power
