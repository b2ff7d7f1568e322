"""Past usage: what queues have used before counts beside their current usage, and decays with a half-life.

The level of a queue is the mean of its share beyond guarantees over all the past, in which a moment ``t`` seconds ago weighs
``2 ** (-t / half_life)``, as the decayed usage of Slurm's multifactor plugin does. All levels are stored for one moment and decay by
one factor: among queues that use nothing, time alone never changes the order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LONGEST_GAP = 120.0
"""The longest time between two updates, in seconds, for which the usage at the later one counts; a longer gap was not observed."""
_NOTHING = 1e-9
"""Levels below this one are dropped."""


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """The levels of queues at one moment. Times in seconds."""

    half_life: float
    at: float
    levels: Mapping[int, float]

    def shares(self, now: float) -> dict[int, float]:
        """Return, by queue, what is left of its level at ``now``."""
        left = self._left_after(now - self.at)
        return {queue_id: level * left for queue_id, level in self.levels.items()}

    def advanced(self, now: float, shares: Mapping[int, float]) -> "DecayedUsage":
        """Return the levels at ``now``, if queues had these shares since the last update."""
        left = self._left_after(now - self.at)
        weight = 1.0 - self._left_after(min(now - self.at, LONGEST_GAP))
        levels = {
            queue_id: self.levels.get(queue_id, 0.0) * left + shares.get(queue_id, 0.0) * weight
            for queue_id in self.levels.keys() | shares.keys()
        }
        kept = {queue_id: level for queue_id, level in levels.items() if level > _NOTHING}
        return DecayedUsage(self.half_life, max(now, self.at), kept)

    def _left_after(self, seconds: float) -> float:
        """Return the part of a level that is left after ``seconds``; 1 if the clock was set back."""
        power: float = 2.0 ** (-max(seconds, 0.0) / self.half_life)
        return power
