"""How long a pool of nodes takes to grow, learnt from what really happened. Pure; times in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_SAMPLES = 100
"""The latest ones count."""
_GUESS = (60.0, 120.0, 180.0, 300.0, 600.0)
"""What is believed of a pool that nobody has seen grow; forgotten once it was seen so many times."""
_KNOWN = 10
_SLACK = 60.0
_STRETCH = 1.5
_LONGEST = 3600.0
_GUESSED_FAILURES, _GUESSED_TRIES = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Learnt:
    """What is known of a pool. ``p50``, ``p95``: of the time until members had nodes, of those that got them."""

    p50: float
    p95: float
    failure_rate: float
    """The part of attempts that came to nothing."""
    timeout: float
    """How long a run may wait there for its nodes."""
    grown: int = 0
    failed: int = 0

    @property
    def expected(self) -> float:
        """The wait that is to be expected, attempts that come to nothing included: after one the job waits anew."""
        return self.p50 + self.failure_rate / (1.0 - self.failure_rate) * self.timeout


def learn(samples: Sequence[float | None]) -> Learnt:
    """From the latest attempts, the oldest first: seconds until the members had nodes, or None where they never had.

    Quantiles are those of the sample, together with a guess as long as there are few. The time-out leaves room above what was seen,
    and doubles with each failure in a row: a pool that is slower than anything seen would never be given the time that it needs.
    """
    latest = samples[-MOST_SAMPLES:]
    times = [one for one in latest if one is not None]
    known = sorted(times if len(times) >= _KNOWN else [*times, *_GUESS])
    failed = len(latest) - len(times)
    rate = (failed + _GUESSED_FAILURES) / (len(latest) + _GUESSED_TRIES)
    p95, in_a_row = _quantile(known, 0.95), 0
    for one in reversed(latest):
        if one is not None:
            break
        in_a_row += 1
    timeout = min((_STRETCH * p95 + _SLACK) * 2 ** min(in_a_row, 10), max(_LONGEST, _STRETCH * p95))
    return Learnt(_quantile(known, 0.5), p95, rate, timeout, len(times), failed)


def _quantile(ordered: Sequence[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


UNSEEN = learn(())
