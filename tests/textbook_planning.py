"""How long a scheduler by the book takes a job to run: exactly as long, as its user estimates, or as the user's past jobs suggest.

D. Tsafrir, Y. Etsion and D. Feitelson, "Backfilling Using System-Generated Predictions Rather Than User Runtime Estimates", IEEE
TPDS 18(6), 2007: the mean of the last two run times of the same user, at most the estimate; a job that outruns its prediction
gets a longer one, by increments that grow. An estimate alone ends a job, a prediction never.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.swf import LoggedJob
from tests.textbook_easy import SHORTEST

_MINUTE, _HOUR = 60.0, 3600.0
INCREMENTS = (
    *(_MINUTE * minutes for minutes in (1, 5, 15, 30)),
    *(_HOUR * hours for hours in (1, 2, 5, 10, 20, 50, 100)),
)
"""Seconds that the first, second and further corrections add to a prediction; the one after the last is the estimate."""

Predictor = Callable[[LoggedJob, Sequence[LoggedJob]], float]
"""Predict how many seconds a job runs, from the jobs of its user that have ended, in order of their ends.

The result is cut to at least a second (less for a shorter estimate) and at most the estimate.
"""


@dataclass(frozen=True, slots=True)
class Planning:
    """What a scheduler takes as a job's run time: its run time, its estimate, or what ``predict`` returns."""

    name: str
    predict: Predictor

    @property
    def learns(self) -> bool:
        """True if planned times change while jobs wait or run."""
        return self not in (EXACT, ESTIMATES)


def _run_time(job: LoggedJob, _ended: Sequence[LoggedJob]) -> float:
    return job.run


def _estimate(job: LoggedJob, _ended: Sequence[LoggedJob]) -> float:
    return job.estimate


EXACT, ESTIMATES = Planning("exact", _run_time), Planning("estimates", _estimate)


def predictions(predict: Predictor) -> Planning:
    """Return planning with a predictor, such as ``last_two``. Waiting jobs are predicted anew when one of their user ends."""
    return Planning(f"predictions of {getattr(predict, '__name__', 'a predictor')}", predict)


def last_two(job: LoggedJob, ended: Sequence[LoggedJob]) -> float:
    """Return the mean of the user's last two run times; the estimate as long as the user has fewer."""
    return (ended[-1].run + ended[-2].run) / 2 if len(ended) >= 2 else job.estimate


def last_two_equivalent(job: LoggedJob, ended: Sequence[LoggedJob]) -> float:
    """Return the mean of the last two run times of the user's jobs with as many processors and the same estimate, or the only one; the
    estimate where there is none. At least ten seconds, as in bounded slowdown.
    """
    equal = [one.run for one in ended if (one.processors, one.estimate) == (job.processors, job.estimate)][-2:]
    return max(sum(equal) / len(equal), SHORTEST) if equal else job.estimate


def last_two_of_application(job: LoggedJob, ended: Sequence[LoggedJob]) -> float:
    """Return what ``last_two_equivalent`` does, of those of the jobs that ran the same application, if there are any."""
    return last_two_equivalent(job, [one for one in ended if one.executable == job.executable] or ended)


class PlannedTimes:
    """The planned run time of every waiting job, in seconds by its number."""

    def __init__(self, planning: Planning) -> None:
        self.planning = planning
        self.seconds: dict[int, float] = {}
        self._waiting: defaultdict[int, dict[int, LoggedJob]] = defaultdict(dict)
        self._ended: defaultdict[int, list[LoggedJob]] = defaultdict(list)

    def submitted(self, job: LoggedJob) -> None:
        self.seconds[job.number] = self._planned(job)
        if self.planning.learns:
            self._waiting[job.user][job.number] = job

    def started(self, job: LoggedJob) -> None:
        del self.seconds[job.number]
        if self.planning.learns:
            del self._waiting[job.user][job.number]

    def ended(self, job: LoggedJob) -> None:
        if self.planning.learns:
            self._ended[job.user].append(job)
            for waiting in self._waiting[job.user].values():
                self.seconds[waiting.number] = self._planned(waiting)

    def _planned(self, job: LoggedJob) -> float:
        planned = self.planning.predict(job, self._ended[job.user])
        return min(max(planned, 1.0), job.estimate) if self.planning.learns else planned


def corrected(job: LoggedJob, planned: float, corrections: int) -> float:
    """Return the prediction, in seconds from the start, after one that was too short, when there were ``corrections`` before."""
    longer = planned + INCREMENTS[corrections] if corrections < len(INCREMENTS) else job.estimate
    return min(longer, job.estimate)
