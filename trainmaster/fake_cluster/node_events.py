"""Spontaneous events on nodes: foreign pods and failures. A function of seed, node and time alone.

Time is divided into periods of equal length, shifted for each node. In a period the event happens at most once, at a drawn
time, and is over before the period ends. So the state at any time can be computed without the earlier ones.
"""

from dataclasses import dataclass
from math import floor

from trainmaster.fake_cluster.seeded_random import DurationRange, draw


@dataclass(frozen=True, slots=True)
class Visit:
    """The event of one period: its begin and end. The next period begins at ``turn_ends``."""

    comes: float
    goes: float
    turn_ends: float

    @property
    def happens(self) -> bool:
        return self.goes > self.comes


@dataclass(frozen=True, slots=True)
class Visits:
    """One kind of event: a period's length in seconds, its probability in a period, its duration."""

    every: float
    chance: float
    lasts: DurationRange

    def at(self, seed: int, word: str, now: float) -> Visit:
        """Return the event of the period of ``now``, for the node and kind that ``word`` names."""
        shift = draw(seed, word, "shift") * self.every
        turn = floor((now - shift) / self.every)
        begins = shift + turn * self.every
        # Rounding must not return the previous period again at its very end.
        while begins + self.every <= now:
            turn, begins = turn + 1, shift + (turn + 1) * self.every
        if draw(seed, word, turn, "comes") >= self.chance:
            return Visit(begins, begins, begins + self.every)
        stay = min(self.lasts.at(draw(seed, word, turn, "lasts")), self.every)
        comes = begins + draw(seed, word, turn, "when") * (self.every - stay)
        return Visit(comes, min(comes + stay, begins + self.every), begins + self.every)
