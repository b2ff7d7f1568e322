"""Forecasts of waits over a state: tells jobs that begin to wait when they are likely to start, and learns from those that do.

Of the jobs that begin to wait only some are followed, so that a cycle looks at few classes however many there are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, inf

from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.queue_position import StartForecast
from trainmaster.protocol.reasons import Reason, Token
from trainmaster_dispatcher.domain.run_times import expected_end
from trainmaster_dispatcher.domain.wait_forecasts import ForecastOutcome, JobKind, WaitForecast, WaitForecasts
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.queue_position import Reasons, moment
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_UNKNOWN_SECONDS = 600.0
"""Taken for waiting jobs of which no run time is known; the ratios that are learned make up for what it is wrong by."""
_EVERY_SECONDS = 1.0
"""How often it looks for jobs that have begun to wait."""
_REASONS_PER_SECOND = 20_000
"""It looks less often where more classes of jobs wait, so that looking takes a hundredth of the time at most."""
_REFRESH_SECONDS = 10.0
_RUNS_PER_SECOND = 2_000
"""The work of many runs is added up less often, so that this takes a hundredth of the time at most."""
_LOOKED_AT = 2_000
"""Classes that it may look at each time on average, for all jobs that it begins to follow."""
_MOST_FOLLOWED = 5_000
_WAITS = frozenset(
    {
        *(Token.QUEUE_LIMIT, Token.USER_LIMIT, Token.BORROWING_LIMIT, Token.KEPT_FOR_OTHERS, Token.BEHIND_OTHERS),
        *(Token.BURST_NOT_YET, Token.BURST_LIMIT, Token.BURST_BUDGET, Token.INSUFFICIENT_CAPACITY, Token.RESERVED),
    }
)
"""Reasons that end when other runs end. Waits for a cluster or for a time say nothing on other waits."""


@dataclass(frozen=True, slots=True)
class _Followed:
    kind: JobKind
    drain: float
    since: float
    forecast: WaitForecast | None


@dataclass(frozen=True, slots=True)
class _Running:
    """The capacity, and the work that runs still have to do, by resource: amounts, and amounts times seconds."""

    at: float
    capacity: Mapping[str, int]
    work: Mapping[str, float]


class WaitForecaster:
    """Forecasts of one scheduler, learned while it leads. Times are in seconds since the epoch, as all times of the state."""

    def __init__(self) -> None:
        self._waits = WaitForecasts()
        self._followed: dict[int, _Followed] = {}
        self._running: _Running | None = None
        self._credit = float(_LOOKED_AT)
        self._newest = 0
        """The largest id of a job that was looked at."""
        self._next_look = 0.0

    def observe(self, state: SchedulerState, plan: Plan, now: float) -> list[ForecastOutcome]:
        """Learn from the starts of a plan, and follow jobs that have begun to wait; return what those that start were told.

        To be called when the starts are in the state, before the next decision.
        """
        outcomes = [
            self._learn(start.job, now)
            for start in plan.starts
            if start.job.id in self._followed and start.job.id not in state.jobs
        ]
        if now >= self._next_look:
            self._next_look = now + max(_EVERY_SECONDS, len(plan.reasons) / _REASONS_PER_SECOND)
            self._follow(state, plan, now)
        return outcomes

    def forecast(self, state: SchedulerState, job: WaitingJob, now: float) -> WaitForecast | None:
        """Return how long a job that waits, or would, will wait from now; None as long as too few such jobs have started."""
        return self._waits.forecast(*self._measure(state, job, now))

    def _learn(self, job: WaitingJob, now: float) -> ForecastOutcome:
        followed = self._followed.pop(job.id)
        waited = max(now - followed.since, 0.0)
        self._waits.note(followed.kind, followed.drain, waited)
        return ForecastOutcome(job.id, job.queue_id, followed.forecast, waited)

    def _follow(self, state: SchedulerState, plan: Plan, now: float) -> None:
        for job_id in [one for one in self._followed if one not in state.jobs]:
            del self._followed[job_id]
        self._credit = min(self._credit + _LOOKED_AT, 100.0 * _LOOKED_AT)
        newest = self._newest
        for job in self._newly_waiting(state, plan):
            cost = len(state.waiting[job.queue_id])
            if cost > self._credit or len(self._followed) >= _MOST_FOLLOWED:
                break
            self._credit -= cost
            newest = max(newest, job.id)
            kind, drain = self._measure(state, job, now)
            self._followed[job.id] = _Followed(kind, drain, now, self._waits.forecast(kind, drain))
        self._newest = newest

    def _newly_waiting(self, state: SchedulerState, plan: Plan) -> Iterator[WaitingJob]:
        """Yield the youngest job of each class that waits for capacity or quota, if it is new and has not run before."""
        for key, reason in plan.reasons.items():
            keys = state.waiting.get(key.queue_id, {}).get(key)
            if not keys or not _waits_for_room(reason):
                continue
            job = state.jobs[keys[-1].job_id]
            if job.id > self._newest and job.attempt == 0:
                yield job

    def _measure(self, state: SchedulerState, job: WaitingJob, now: float) -> tuple[JobKind, float]:
        """Return the kind of a job and its drain time in seconds."""
        running = self._running
        lasts = max(_REFRESH_SECONDS, len(state.runs) / _RUNS_PER_SECOND)
        if running is None or not running.at <= now < running.at + lasts:
            running = self._running = _running(state, now)
        needs = _needs(state, job.shape_id)
        ahead = dict.fromkeys(needs, 0.0)
        own_value, own_key = _value(state, job.class_id), state.static_key_of(job)
        for key, keys in state.waiting.get(job.queue_id, {}).items():
            value = _value(state, key.class_id)
            many = 0 if value < own_value else len(keys) if value > own_value else keys.bisect_left(own_key)
            if many:
                expected = state.run_seconds(key).expected
                seconds = many * (_UNKNOWN_SECONDS if expected == inf else expected)
                for name, amount in _needs(state, key.shape_id).items():
                    if name in ahead:
                        ahead[name] += seconds * amount
        part = drain = 0.0
        for name, amount in needs.items():
            there = running.capacity.get(name, 0)
            if amount and there:
                part = max(part, amount / there)
                drain = max(drain, (running.work.get(name, 0.0) + ahead[name]) / there)
        expected = state.run_seconds(state.key_of(job)).expected
        return JobKind.of(job.queue_id, part, expected), drain


def forecast_start(
    forecaster: WaitForecaster, engine: Engine, job_id: int, now: float, reasons: Reasons
) -> StartForecast | None:
    """Return by when a waiting job is likely to start.

    None if too little is known, if the job does not wait for capacity or quota, or if its reservation has a time, which says more.
    """
    state = engine.state
    job, reservation = state.jobs.get(job_id), engine.carried.reservations.get(job_id)
    if job is None or (reservation is not None and reservation.at < inf):
        return None
    reason = reasons.get(state.class_of(job_id))
    return None if reason is None else start_forecast(forecaster, state, job, now, reason)


def start_forecast(
    forecaster: WaitForecaster, state: SchedulerState, job: WaitingJob, now: float, reason: Reason
) -> StartForecast | None:
    """Return by when a job is likely to start that waits, or would, for a reason. None if too little is known, or it waits for
    anything but capacity and quota.
    """
    found = forecaster.forecast(state, job, now) if _waits_for_room(reason) else None
    if found is None:
        return None
    half, most = moment(ceil(now + found.half)), moment(ceil(now + found.most))
    return StartForecast(half_by=half, most_by=most, jobs=found.jobs)


def _waits_for_room(reason: Reason) -> bool:
    """Return whether a job with this reason waits for capacity or quota and may start as things are; others are told nothing."""
    return reason.token in _WAITS and not reason.for_ever


def _value(state: SchedulerState, class_id: int) -> int:
    of = state.classes.get(class_id)
    return 0 if of is None else of.value


def _needs(state: SchedulerState, shape_id: int) -> Resources:
    """Return what a whole gang needs, by resource."""
    shape = state.shapes.get(shape_id)
    return {} if shape is None else shape.total


def _running(state: SchedulerState, now: float) -> _Running:
    """Return the capacity of all clusters, and the work of all runs. A run of which no end is known is taken to go on for as long
    as it has run, as those that last are the long ones.
    """
    there: dict[str, int] = {}
    for cluster in state.clusters.values():
        for group in cluster.report.groups if cluster.report is not None else ():
            for name, amount in group.free.items():
                there[name] = there.get(name, 0) + amount * group.count
    work: dict[str, float] = {}
    shape_ids = {run.shape_id for run in state.runs.values()}
    needs = {shape_id: _needs(state, shape_id) for shape_id in shape_ids}
    for run in state.runs.values():
        latest = state.ends_at(run)
        end = (
            latest if run.predicted_seconds is None else expected_end(run.began_at, run.predicted_seconds, latest, now)
        )
        left = now - run.began_at if end == inf else end - now
        if left > 0.0:
            for name, amount in needs[run.shape_id].items():
                work[name] = work.get(name, 0.0) + left * amount
    return _Running(now, there, work)
