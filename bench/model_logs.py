"""Logs of model jobs: sizes, run times and arrivals of parallel machines, users who repeat their jobs, and their estimates.

Sources:

* U. Lublin and D. Feitelson, "The Workload on Parallel Supercomputers: Modeling the Characteristics of Rigid Jobs", JPDC 63(11),
  2003: sizes, run times and arrivals. The constants are those of batch jobs in the program that its authors published.
* D. Feitelson, "Workload Modeling for Computer Systems Performance Evaluation", Cambridge University Press, 2015: locality of
  sampling, that is users who submit the same job many times in a row, while the distribution over the whole log stays.
* N. Zakay and D. Feitelson, "On Identifying User Session Boundaries in Parallel Workload Logs", JSSPP 2012: sessions.

Four things differ from Lublin's program. Gaps between arrivals are divided before the daily cycle is applied and not after it, so
that a day has 24 hours at any load. Sizes above the machine's are drawn again. On a machine of P processors, the two stages of
sizes end at log2 P - 2 and log2 P, as they do in the program for 128. Times are whole seconds, and no job runs below one.
Estimates are in ``bench.model_estimates``.

The model's gaps are very uneven, half of them below a twentieth of their mean: above a load of 0.8, queues of days are usual.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, lgamma, log, log2
from random import Random

from bench.model_estimates import with_estimates
from bench.swf import LoggedJob

_SERIAL, _POWER_OF_TWO = 0.2927, 0.6686
"""Shares of jobs on one processor, and on more that are a power of two before rare ones of the other kind are rounded to one."""
_SIZE_LOW, _SIZE_FIRST_STAGE = 1.2, 0.875
"""Log2 of the smallest parallel size, and the share of parallel jobs whose size is in the first stage."""
_SIZE_STAGES_APART = 2.0
_SHORT, _LONG = (6.57, 0.823), (639.1, 0.0156)
"""Shape and scale of the two gamma distributions of the logarithm of the run time in seconds."""
_SHORT_SLOPE, _SHORT_BASE = -0.003, 0.6986
"""The share of short jobs is linear in the size."""
_LONGEST_LOG, _LONGEST_GAP_LOG = 12.0, 13.0
LONGEST = exp(_LONGEST_LOG)
"""Seconds that no job of the model runs longer than, about 45 hours."""
_GAP = (6.0415 * 1.0519, 0.8531)
"""Shape and scale of the gamma distribution of the logarithm of the gap between arrivals in seconds."""
_CYCLE = (6.1271, 5.2740)
"""Shape and scale of the gamma distribution of arrivals over a day, in half hours; the day begins with half hour 11."""
_HALF_HOURS, _HALF_HOUR, _DAY_BEGINS = 48, 1800.0, 11

_USERS = 80
_ZIPF = 1.0
"""Exponent of users' activity: the user of rank r opens sessions in proportion to r ** -1."""
_OPEN_SESSIONS = 6
_LONGEST_BATCH = 60
_REPETITION = 1.8
"""Exponent of the length of a batch: n repetitions in proportion to n ** -1.8, with a mean of about 3.7."""
_ANOTHER_BATCH = 0.5
"""Probability that a user goes on with another batch after one, rather than to close the session."""
_SPREAD = 0.25
"""Standard deviation of the logarithm of run times within a batch."""
_FAILURES, _LONGEST_FAILURE = 0.08, 60
"""Probability of a job that fails at once, and the seconds that it then runs at most."""


@dataclass(frozen=True, slots=True)
class BaseJob:
    """A job of the model without a time of arrival; ``run`` is in whole seconds."""

    processors: int
    run: float


def lublin_jobs(draw: Random, processors: int) -> Iterator[BaseJob]:
    """Yield independent batch jobs of the model for a machine of this many processors, without end."""
    while True:
        size = _size(draw, processors)
        yield BaseJob(size, _run(draw, size))


def _size(draw: Random, processors: int) -> int:
    kind = draw.random()
    if kind <= _SERIAL:
        return 1
    high = log2(processors)
    middle = max(high - _SIZE_STAGES_APART, _SIZE_LOW)
    while True:
        first = draw.random() <= _SIZE_FIRST_STAGE
        power = draw.uniform(_SIZE_LOW, middle) if first else draw.uniform(middle, high)
        if kind <= _SERIAL + _POWER_OF_TWO:
            power = int(power + 0.5)
        size = int(2**power + 0.5)
        if size <= processors:
            return size


def _run(draw: Random, size: int) -> float:
    share = min(max(_SHORT_SLOPE * size + _SHORT_BASE, 0.0), 1.0)
    while True:
        log_run = draw.gammavariate(*(_SHORT if draw.random() <= share else _LONG))
        if log_run <= _LONGEST_LOG:
            return max(1.0, float(int(exp(log_run))))


class _Day:
    """How arrivals spread over a day: points that a gap pays to pass a half hour, on average as many as it has seconds."""

    def __init__(self) -> None:
        bins = [0.0] * _HALF_HOURS
        for half_hour in range(_DAY_BEGINS, _DAY_BEGINS + _HALF_HOURS):
            share = gamma_distribution(half_hour + 0.5, *_CYCLE) - gamma_distribution(half_hour - 0.5, *_CYCLE)
            bins[(half_hour - 1) % _HALF_HOURS] = share
        total = sum(bins)
        self._length = _HALF_HOURS * _HALF_HOUR
        self._points = [share / total * self._length for share in bins]
        self._passed = [0.0, *accumulate(self._points)]
        self._passed[-1] = self._length

    def seconds(self, points: float) -> float:
        """Return the seconds since the midnight at which a log begins, when this many points are paid."""
        days, rest = divmod(points, self._length)
        half_hour = min(bisect_right(self._passed, rest), _HALF_HOURS) - 1
        part = (rest - self._passed[half_hour]) / self._points[half_hour]
        return days * self._length + (half_hour + part) * _HALF_HOUR

    def points(self, seconds: float) -> float:
        """Return the points that are paid by then; the inverse of ``seconds``."""
        days, rest = divmod(seconds, self._length)
        half_hour = int(rest // _HALF_HOUR)
        part = rest % _HALF_HOUR / _HALF_HOUR
        return days * self._length + self._passed[half_hour] + self._points[half_hour] * part


def gamma_distribution(value: float, shape: float, scale: float) -> float:
    """Return the probability that a gamma variable is at most ``value``, by the series of the incomplete gamma function."""
    if value <= 0:
        return 0.0
    ratio = value / scale
    term = total = 1 / shape
    step = 0
    while term > total * 1e-14:
        step += 1
        term *= ratio / (shape + step)
        total += term
    return exp(log(total) - ratio + shape * log(ratio) - lgamma(shape))


def arrivals(draw: Random, count: int, span: float) -> list[float]:
    """Return ``count`` times of arrival in whole seconds, the first at the log's midnight and the last ``span`` seconds later."""
    day = _Day()
    paid = [0.0, *accumulate(_gap(draw) for _ in range(count - 1))]
    factor = day.points(span) / paid[-1] if count > 1 else 1.0
    return [float(round(day.seconds(points * factor))) for points in paid]


def _gap(draw: Random) -> float:
    while True:
        log_gap = draw.gammavariate(*_GAP)
        if log_gap <= _LONGEST_GAP_LOG:
            return exp(log_gap)


def offered_load(jobs: Sequence[LoggedJob], processors: int) -> float:
    """Return the processor seconds that jobs need, divided by those that the machine has from the first to the last arrival."""
    span = max(job.submit for job in jobs) - min(job.submit for job in jobs)
    return sum(job.run * job.processors for job in jobs) / (processors * span)


def lublin_log(seed: int, count: int, processors: int, load: float) -> list[LoggedJob]:
    """Return a log of ``count`` jobs with users and modelled estimates at this offered load, the same for the same arguments.

    Raises ValueError for fewer than two jobs or four processors, or a load that is not above 0.
    """
    if count < 2 or processors < 4 or load <= 0:
        raise ValueError(
            f"{count} jobs, {processors} processors, load {load}: the minimum is 2 jobs, 4 processors, above 0"
        )
    draw = Random(seed)
    jobs = list(_repeated(draw, count, processors))
    work = sum(job.run * job.processors for job in jobs)
    times = arrivals(draw, count, work / (processors * load))
    placed = [replace(job, submit=at) for job, at in zip(jobs, times, strict=True)]
    return with_estimates(placed, seed, maximum=48 * 3600)


@dataclass(slots=True)
class _Session:
    """A user's batch that is being submitted: ``left`` more jobs like ``base``."""

    user: int
    executable: int
    base: BaseJob
    left: int


def _repeated(draw: Random, count: int, processors: int) -> Iterator[LoggedJob]:
    """Yield jobs in order of submission, but all at time 0: each arrival is the next job of one of the open sessions.

    A batch's base job is drawn from the model, independently of its length, so that every job has the model's distribution of
    sizes, and of run times up to the spread within a batch and the failures.
    """
    base_jobs = lublin_jobs(draw, processors)
    users, activity = range(1, _USERS + 1), list(accumulate(rank**-_ZIPF for rank in range(1, _USERS + 1)))
    lengths = range(1, _LONGEST_BATCH + 1)
    repetition = list(accumulate(length**-_REPETITION for length in lengths))
    batches = 0

    def session(user: int) -> _Session:
        nonlocal batches
        batches += 1
        return _Session(user, batches, next(base_jobs), draw.choices(lengths, cum_weights=repetition)[0])

    def another_user() -> int:
        return draw.choices(users, cum_weights=activity)[0]

    sessions = [session(another_user()) for _ in range(_OPEN_SESSIONS)]
    for number in range(1, count + 1):
        place = draw.randrange(_OPEN_SESSIONS)
        one = sessions[place]
        run = _repetition_of(draw, one.base)
        yield LoggedJob(number, 0.0, run, one.base.processors, run, one.user, one.executable)
        one.left -= 1
        if not one.left:
            sessions[place] = session(one.user if draw.random() < _ANOTHER_BATCH else another_user())


def _repetition_of(draw: Random, base: BaseJob) -> float:
    if draw.random() < _FAILURES:
        return float(draw.randint(1, int(min(_LONGEST_FAILURE, base.run))))
    run = base.run * draw.lognormvariate(-_SPREAD * _SPREAD / 2, _SPREAD)
    return float(min(max(1, round(run)), int(LONGEST)))
