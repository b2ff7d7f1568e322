"""Burst policies: the rules under which jobs may go to public clusters. Pure; times in seconds, money in billionths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil, inf
from typing import NamedTuple
from zoneinfo import ZoneInfo

from trainmaster.protocol.bursting import BurstPolicySpec, Choose, Day, HoursSpec, SpotUse, minutes_of
from trainmaster.protocol.device_parts import parse_counted
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.prices import to_nanos
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.budgets import Budget, Commitment, Span
from trainmaster_dispatcher.domain.prices import MICROS

_DAY_MINUTES = 24 * 60


class Hours(NamedTuple):
    """Hours of some days; minutes since midnight. If ``end`` is on the next day, it is above 24 hours."""

    days: frozenset[int]
    begin: int
    end: int
    zone: tzinfo

    def around(self, now: float) -> Sequence[tuple[float, float]]:
        """Return the beginnings and ends from the day before until a week after, in seconds since the epoch, sorted."""
        today = datetime.fromtimestamp(now, self.zone).date()
        out = []
        for offset in range(-1, 9):
            day = today + timedelta(days=offset)
            if day.weekday() in self.days:
                begin, end = self._at(day.toordinal(), self.begin), self._at(day.toordinal(), self.end)
                if begin < end:
                    out.append((begin, end))
        return out

    def _at(self, day: int, minute: int) -> float:
        """Return the time of a wall-clock time. A time that the clock skips is the moment of the skip; of a repeated
        time, the first counts."""
        whole, rest = divmod(minute, _DAY_MINUTES)
        wanted = datetime.fromordinal(day + whole).replace(hour=rest // 60, minute=rest % 60)
        at = wanted.replace(tzinfo=self.zone).timestamp()
        skipped = datetime.fromtimestamp(at, self.zone).replace(tzinfo=None) - wanted
        return at if not skipped else self._change_before(at)

    def _change_before(self, at: float) -> float:
        """Return when the clock was put forward last, at most a day before ``at``."""
        shown = datetime.fromtimestamp(at, self.zone).utcoffset()
        low, high = at - 86400.0, at
        while high - low > 0.5:
            middle = (low + high) / 2
            if datetime.fromtimestamp(middle, self.zone).utcoffset() == shown:
                high = middle
            else:
                low = middle
        return float(round(high))


def opens_at(every: Sequence[Hours], now: float) -> float:
    """Return ``now`` within any of these hours or if there are none; else when they begin, infinite if not within a week."""
    if not every:
        return now
    begins = inf
    for hours in every:
        for begin, end in hours.around(now):
            if begin <= now < end:
                return now
            if begin > now:
                begins = min(begins, begin)
    return begins


class Ramp(NamedTuple):
    """At most this many jobs start in any such time, in seconds."""

    jobs: int
    every: float


@dataclass(frozen=True, slots=True)
class BurstPolicy:
    """A policy as the scheduler reads it."""

    id: int
    name: str
    queues: tuple[str, ...]
    budget: Budget
    clusters: tuple[str, ...] = ()
    in_order: bool = False
    revision: int = 0
    """The version of the policy."""
    after: float = 0.0
    expected_wait: float | None = None
    utilisation: tuple[float, float] | None = None
    """The utilisation from which on jobs may go, and the one below which they no longer do."""
    class_at_least: str | None = None
    jobs: int | None = None
    nodes: int | None = None
    resources: Resources = field(default_factory=dict)
    ramp: Ramp | None = None
    time_limit: float | None = None
    spot: SpotUse = SpotUse.ALLOWED
    hours: tuple[Hours, ...] = ()
    paused: bool = False
    warn_at: tuple[float, ...] = ()
    fault: str = ""
    """Why only its queues can be read; until the fault is corrected no job uses the policy."""

    def opens_at(self, now: float) -> float:
        """Return ``now`` within its hours; else when they begin, infinite if not within a week."""
        return opens_at(self.hours, now)

    def ramp_opens_at(self, starts: Sequence[float], now: float) -> float:
        """Return ``now``, or when the next job may start if others started at these times."""
        if self.ramp is None:
            return now
        recent = sorted(at for at in starts if at > now - self.ramp.every)
        if len(recent) < self.ramp.jobs:
            return now
        return recent[len(recent) - self.ramp.jobs] + self.ramp.every

    def limit_for(self, own: float | None, queues: float | None) -> float | None:
        """Return the time limit of a job under the policy, in seconds: its own, else the policy's, else its queue's;
        None without any."""
        return next((limit for limit in (own, self.time_limit, queues) if limit is not None), None)


class Bounds(NamedTuple):
    """The longest duration of a run under a policy, in seconds, and its cost for an hour during it."""

    wait: float
    """Until its members are placed."""
    limit: float
    """Its time limit, counted from when it runs."""
    grace: float
    """The time for its members to end after that."""
    rate: int

    @property
    def total(self) -> float:
        return self.wait + self.limit + self.grace

    def until(self, leased_at: float, started_at: float | None) -> float:
        """Return the latest time at which its last member has ended."""
        begin = leased_at + self.wait if started_at is None else started_at
        return begin + self.limit + self.grace


class BurstRun(NamedTuple):
    """The values that a run under a policy adds to a live run. Times in seconds since the epoch."""

    policy_id: int
    leased_at: float
    until: float
    rate: int

    @property
    def commitment(self) -> Commitment:
        """The cost of the run until its latest end."""
        return Commitment(self.rate, int(self.leased_at * MICROS), ceil(self.until * MICROS))


def policy_of(key: int, spec: BurstPolicySpec, revision: int = 0) -> BurstPolicy:
    """Return the policy that an admin declared, parsed once."""
    when, at_most, money = spec.when, spec.at_most, spec.budget
    utilisation = None
    if when.utilisation is not None:
        above = when.utilisation.above
        utilisation = above, above if when.utilisation.until is None else when.utilisation.until
    limits = {Span.HOUR: money.hour, Span.DAY: money.day, Span.MONTH: money.month}
    return BurstPolicy(
        id=key,
        name=spec.name,
        queues=spec.queues,
        budget=Budget(
            {span: to_nanos(amount) for span, amount in limits.items() if amount is not None},
            None if money.job is None else to_nanos(money.job),
        ),
        clusters=spec.clusters,
        in_order=spec.choose is Choose.ORDER,
        revision=revision,
        after=parse_duration(when.after),
        expected_wait=_seconds(when.expected_wait),
        utilisation=utilisation,
        class_at_least=when.class_at_least,
        jobs=at_most.jobs,
        nodes=at_most.nodes,
        resources={name: parse_counted(name, text) for name, text in at_most.resources.items()},
        ramp=None if at_most.ramp is None else Ramp(at_most.ramp.jobs, parse_duration(at_most.ramp.every)),
        time_limit=_seconds(spec.time_limit),
        spot=spec.spot,
        hours=hours_of(spec.hours),
        paused=spec.paused,
        warn_at=money.warn_at,
    )


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text)


def hours_of(specs: Sequence[HoursSpec]) -> tuple[Hours, ...]:
    """Return the hours that an admin declared, parsed once."""
    return tuple(_hours(one.days, one.start, one.end, one.time_zone) for one in specs)


def _hours(days: Sequence[Day], start: str, end: str, zone: str) -> Hours:
    begin, until = minutes_of(start), minutes_of(end)
    order = list(Day)
    return Hours(
        frozenset(order.index(day) for day in days),
        begin,
        until if until > begin else until + _DAY_MINUTES,
        UTC if zone == "UTC" else ZoneInfo(zone),
    )


@dataclass(frozen=True, slots=True)
class Spending:
    """The cost of ended runs under policies, as far as it matters now. Hours in microseconds since the epoch."""

    hours: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """By policy and hour."""
    starts: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By policy: the start times of those runs that were sent a short while ago."""


NOTHING_SPENT = Spending()
