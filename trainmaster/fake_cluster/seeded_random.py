"""Random numbers without a generator: the same seed and words always give the same number, whatever was drawn before.

So a model may draw at any time, in any order, and be driven in one step or in many.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from trainmaster.protocol.durations import parse_duration

_WHOLE = 2.0**64


def draw(seed: int, *words: object) -> float:
    """Return a number in [0, 1) that looks random and depends only on the seed and the words."""
    text = ":".join(map(str, (seed, *words)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / _WHOLE


@dataclass(frozen=True, slots=True)
class DurationRange:
    """Seconds between two bounds, both included; ``inf`` means for ever."""

    least: float
    most: float

    @classmethod
    def parse(cls, text: str) -> "DurationRange":
        """Parse ``5s``, ``1s-5s`` or ``forever``. Raises ValueError."""
        if text == "forever":
            return cls(inf, inf)
        low, dash, high = text.partition("-")
        least = parse_duration(low)
        most = parse_duration(high) if dash else least
        if most < least:
            raise ValueError(f"the range {text!r} ends before it begins")
        return cls(least, most)

    def at(self, part: float) -> float:
        """Return the value ``part`` (0 to 1) of the way from the lower to the upper bound."""
        return self.least if self.least == self.most else self.least + part * (self.most - self.least)
