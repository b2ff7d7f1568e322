"""Forecasts of waits, as quantiles: from how long such jobs waited before, relative to the work before them.

The *drain time* of a job is the time in which all capacity, if none of it idled, would do what runs and what waits before the job.
Jobs wait for shorter than that where they fill gaps, and for longer where they need wide ones. The quantiles are those of the ratio of
wait to drain time among the last jobs of about the same width and expected run time in the same queue, or in all of it where these are
few. The rank of a quantile q among n ratios is that of (n + 1) q, rounded up, so that it holds for a share q of the jobs at least as
long as these are like the next one (V. Vovk, A. Gammerman and G. Shafer, "Algorithmic Learning in a Random World", 2005: conformal
prediction; the last ones only, since load changes).
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from math import ceil, floor, inf, log2, log10
from typing import NamedTuple

_RANKS = (0.5, 0.93)
"""Quantiles among the ratios, for half and for nine tenths of the jobs. The second is higher than that, as jobs that still wait have
no ratio yet, and those that wait for long are among them."""
_LAST = 200
_FEWEST = 20
_SHORTEST = 1.0
"""Seconds: shorter waits and drain times count as that long, so that ratios stay finite."""
_MOST_KINDS = 10_000
_WIDEST, _NARROWEST = 0, -20
_UNKNOWN = -1


class JobKind(NamedTuple):
    """Jobs whose waits are compared. ``width``: the part of the capacity that one needs, as a power of two. ``length``: its expected
    run time, as a power of ten of seconds; -1 if none is known.
    """

    queue_id: int
    width: int
    length: int

    @classmethod
    def of(cls, queue_id: int, part: float, seconds: float) -> "JobKind":
        """Return the kind of a job that needs a part of the capacity for some seconds; infinity: nobody knows how long."""
        width = _NARROWEST if part <= 0.0 else min(max(floor(log2(part)), _NARROWEST), _WIDEST)
        return cls(queue_id, width, _UNKNOWN if seconds == inf else floor(log10(max(seconds, 1.0))))


class WaitForecast(NamedTuple):
    """Seconds: half of such jobs wait no longer than ``half``, and nine tenths no longer than ``most``. ``jobs``: from how many."""

    half: float
    most: float
    jobs: int


class ForecastOutcome(NamedTuple):
    """A forecast made when a job began to wait, and the seconds that it waited. ``forecast``: None if too little was known."""

    job_id: int
    queue_id: int
    forecast: WaitForecast | None
    waited: float


class Calibration(NamedTuple):
    """Number of jobs with a forecast, and of those that waited no longer than its half, and no longer than its most."""

    jobs: int = 0
    within_half: int = 0
    within_most: int = 0


def calibration_of(outcomes: Sequence[ForecastOutcome]) -> Calibration:
    """Return how far forecasts held; jobs without one do not count."""
    known = [(one.forecast, one.waited) for one in outcomes if one.forecast is not None]
    return Calibration(
        len(known),
        sum(waited <= forecast.half for forecast, waited in known),
        sum(waited <= forecast.most for forecast, waited in known),
    )


class WaitForecasts:
    """The last ratios of wait to drain time, by kind of job and by queue."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[JobKind | int, deque[float]] = OrderedDict()
        """Those of which nothing was noted for longest come first."""

    def note(self, kind: JobKind, drain: float, waited: float) -> None:
        """Record how long a job has waited, and the drain time that it had when its wait began, in seconds."""
        ratio = max(waited, _SHORTEST) / max(drain, _SHORTEST)
        for key in (kind, kind.queue_id):
            self._ratios.setdefault(key, deque(maxlen=_LAST)).append(ratio)
            self._ratios.move_to_end(key)
        while len(self._ratios) > _MOST_KINDS:
            self._ratios.popitem(last=False)

    def forecast(self, kind: JobKind, drain: float) -> WaitForecast | None:
        """Return how long a job of a kind and with a drain time will wait from now; None as long as too few such jobs have started."""
        for key in (kind, kind.queue_id):
            ratios = sorted(self._ratios.get(key, ()))
            many = len(ratios)
            if many >= _FEWEST:
                half, most = (ratios[min(ceil((many + 1) * part), many) - 1] * max(drain, _SHORTEST) for part in _RANKS)
                return WaitForecast(half, most, many)
        return None
