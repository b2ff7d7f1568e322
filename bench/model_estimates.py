"""Users' estimates of run times, for logs that have none.

D. Tsafrir, Y. Etsion and D. Feitelson, "Modeling User Runtime Estimates", JSSPP 2005: 89 % of the jobs of a log have one of 20 round
values as their estimate, the maximum among them, with shares that decay exponentially; the rest spreads over more values; a user
has few values. The shares and the times of rarer values are those of the paper. These points are simpler than its program:

* Which round value has which rank is chosen here (``POPULAR``); the maximum has the first.
* A user draws ``VALUES_OF_A_USER`` values by these shares, once. The shares hold for the values that users draw; over jobs they
  vary, as some users submit much more than others and long jobs need long estimates.
* A user gives a job the estimate of the user's last one of the same executable and size. Sometimes, and if the job runs longer, the
  user takes the shortest of the own values that is long enough, or with decaying probability a longer one.
* No job is killed: an estimate is never below the run time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp
from random import Random

from bench.swf import LoggedJob

_MINUTE = 60
POPULAR = tuple(
    minutes * _MINUTE
    for minutes in (60, 30, 10, 120, 240, 15, 5, 720, 180, 20, 360, 480, 1440, 1080, 90, 300, 600, 960, 2160)
)
"""Round values in seconds, the most popular first; the maximum of a log comes before them."""
VALUES_OF_A_USER = 5
_HEAD = 0.89
"""Share of the popular values together."""
_HEAD_DECAY = (14.0491, -0.177531, 0.462513)
"""Percent of a popular value by its rank x from 2: a * exp(b * x) + c; what is left of the head is the first one's."""
_BINS = (0.653566, 0.547761)
"""Different values in a log of n jobs: a * n ** b."""
_TIMES = (12.1039, -0.6026)
"""With K values, one at relative rank x is at (a - 1) * x / (a - x) of the maximum, where a = 1 + p * K ** q."""
_STEP = 5 * _MINUTE
"""What rare values are multiples of."""
_RECONSIDERS, _LONGER = 0.1, 0.4
"""Probabilities that a user draws another value for a job, and prefers the user's next longer one to one that is long enough."""


def with_estimates(jobs: Sequence[LoggedJob], seed: int, maximum: int) -> list[LoggedJob]:
    """Return jobs, given by submission, with estimates of at most ``maximum`` seconds; the same for the same arguments.

    Raises ValueError for a job that runs longer than ``maximum``.
    """
    too_long = next((job for job in jobs if job.run > maximum), None)
    if too_long is not None:
        raise ValueError(f"job {too_long.number} runs {too_long.run:g} seconds; the maximum estimate is {maximum}")
    draw = Random(f"estimates {seed}")
    values = _Values(len(jobs), maximum)
    users: dict[int, list[int]] = {}
    last: dict[tuple[int, int, int], int] = {}
    out = []
    for job in jobs:
        if job.user not in users:
            users[job.user] = sorted({values.draw(draw) for _ in range(VALUES_OF_A_USER)})
        kind = (job.user, job.executable, job.processors)
        if last.get(kind, 0) < job.run or draw.random() < _RECONSIDERS:
            last[kind] = values.long_enough(draw, users[job.user], job.run)
        out.append(replace(job, estimate=float(last[kind])))
    return out


def popular_values(maximum: int) -> tuple[int, ...]:
    """Return the popular values of a log with this maximum, in seconds, by rank."""
    return (maximum, *(value for value in POPULAR if value < maximum))


class _Values:
    """The values that users draw from."""

    def __init__(self, jobs: int, maximum: int) -> None:
        self._maximum = maximum
        self._popular = popular_values(maximum)
        scale, rate, base = _HEAD_DECAY
        shares = [(scale * exp(rate * rank) + base) / 100 for rank in range(2, len(self._popular) + 1)]
        self._weights = list(accumulate([_HEAD - sum(shares), *shares]))
        self._by_length = sorted(self._popular)
        bins = _BINS[0] * jobs ** _BINS[1]
        self._curve = 1 + _TIMES[0] * bins ** _TIMES[1]

    def draw(self, draw: Random) -> int:
        if draw.random() < _HEAD:
            (value,) = draw.choices(self._popular, cum_weights=self._weights)
            return value
        rank = draw.random()
        seconds = self._maximum * (self._curve - 1) * rank / (self._curve - rank)
        return int(min(max(_STEP, round(seconds / _STEP) * _STEP), self._maximum))

    def long_enough(self, draw: Random, own: Sequence[int], run: float) -> int:
        """Return one of the user's ``own`` values, which are sorted, that is at least ``run``, or else the next popular one."""
        place = bisect_left(own, run)
        while place < len(own) - 1 and draw.random() < _LONGER:
            place += 1
        return own[place] if place < len(own) else self._by_length[bisect_left(self._by_length, run)]
