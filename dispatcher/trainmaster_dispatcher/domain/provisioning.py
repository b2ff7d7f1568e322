"""The time that a pool of nodes takes to grow, learnt from past attempts. Pure; times in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_SAMPLES = 100
"""Only this many of the latest attempts count."""
_GUESS = (60.0, 120.0, 180.0, 300.0, 600.0)
"""The assumed times of a pool without samples; ignored once there are as many samples."""
_KNOWN = 10
_SLACK = 60.0
_STRETCH = 1.5
_LONGEST = 3600.0
_GUESSED_FAILURES, _GUESSED_TRIES = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Learnt:
    """The known times of a pool. ``p50``, ``p95``: of the time until members had nodes, of those that got them."""

    p50: float
    p95: float
    failure_rate: float
    """The part of attempts that failed."""
    timeout: float
    """The time that a run may wait there for its nodes."""
    grown: int = 0
    failed: int = 0

    @property
    def expected(self) -> float:
        """The expected wait, including failed attempts, after which the job waits again."""
        return self.p50 + self.failure_rate / (1.0 - self.failure_rate) * self.timeout


def learn(samples: Sequence[float | None]) -> Learnt:
    """Return what the latest attempts show, the oldest first: seconds until the members had nodes, or None if they never had.

    Quantiles are those of the sample, together with assumed times as long as there are few. The time-out is larger than
    the observed times, and doubles with each failure in a row: otherwise a pool that is slower than anything observed
    would never get the time that it needs.
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
