"""What comes and goes on nodes by itself: pods that are not ours, and failures. A function of seed, node and time alone.

Time is cut into turns of equal length, shifted for each node. In a turn the thing comes once or not at all, at a drawn
moment, and is gone before the turn ends. So any moment can be asked for without what was before it.
"""

from dataclasses import dataclass
from math import floor

from trainmaster.fake_cluster.seeded_random import DurationRange, draw


@dataclass(frozen=True, slots=True)
class Visit:
    """The visit of one turn: when it comes and goes. The next turn begins at ``turn_ends``."""

    comes: float
    goes: float
    turn_ends: float

    @property
    def happens(self) -> bool:
        return self.goes > self.comes


@dataclass(frozen=True, slots=True)
class Visits:
    """One kind of visit: a turn's length in seconds, how likely it comes in a turn, how long it stays."""

    every: float
    chance: float
    lasts: DurationRange

    def at(self, seed: int, word: str, now: float) -> Visit:
        """The visit of the turn that ``now`` is in, for the node and kind that ``word`` names."""
        shift = draw(seed, word, "shift") * self.every
        turn = floor((now - shift) / self.every)
        begins = shift + turn * self.every
        # Rounding must not give the turn before again when asked at the very end of it.
        while begins + self.every <= now:
            turn, begins = turn + 1, shift + (turn + 1) * self.every
        if draw(seed, word, turn, "comes") >= self.chance:
            return Visit(begins, begins, begins + self.every)
        stay = min(self.lasts.at(draw(seed, word, turn, "lasts")), self.every)
        comes = begins + draw(seed, word, turn, "when") * (self.every - stay)
        return Visit(comes, min(comes + stay, begins + self.every), begins + self.every)
