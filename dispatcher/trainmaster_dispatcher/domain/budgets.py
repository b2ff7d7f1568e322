"""Budgets: money that may be spent in an hour, a day, a month, and on one job. Pure.

The cost that a live run may still cause until its time limit is committed, split over the windows that it spans;
together with the money spent it may not exceed any of them. So a budget holds whatever runs do, as long as none exceeds
its limit. Money is in billionths of the currency, times in microseconds since the epoch; windows are those of the
calendar in UTC.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from trainmaster_dispatcher.domain.prices import MICROS

HOUR = 3600 * MICROS
_DAY = 24 * HOUR


class Span(StrEnum):
    """The length of a window."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Window(NamedTuple):
    """One hour, day or month. ``end`` is the beginning of the next one."""

    span: Span
    begin: int
    end: int


def window_at(span: Span, moment: int) -> Window:
    """Return the window that contains a moment."""
    if span is Span.HOUR:
        begin = moment - moment % HOUR
        return Window(span, begin, begin + HOUR)
    if span is Span.DAY:
        begin = moment - moment % _DAY
        return Window(span, begin, begin + _DAY)
    at = datetime.fromtimestamp(moment // MICROS, UTC)
    first = datetime(at.year, at.month, 1, tzinfo=UTC)
    following = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return Window(span, int(first.timestamp()) * MICROS, int(following.timestamp()) * MICROS)


def windows(span: Span, begin: int, end: int) -> Iterator[Window]:
    """Yield the windows that overlap the time from ``begin`` to ``end``."""
    at = begin
    while at < end:
        window = window_at(span, at)
        yield window
        at = window.end


class Commitment(NamedTuple):
    """The cost of a run while it lasts: ``rate`` for an hour, from its beginning until its time limit at the latest."""

    rate: int
    begin: int
    end: int

    @property
    def total(self) -> int:
        return _ceil(self.rate * (self.end - self.begin), HOUR)

    def within(self, window: Window) -> int:
        """Return the part that falls into a window, rounded up."""
        micros = min(self.end, window.end) - max(self.begin, window.begin)
        return _ceil(self.rate * micros, HOUR) if micros > 0 else 0


def add_commitment(sums: dict[Window, int], one: Commitment, sign: int = 1) -> None:
    """Add the cost of a run to the sums of each hour, day and month; sums that become 0 are removed."""
    for span in Span:
        for window in windows(span, one.begin, one.end):
            total = sums.get(window, 0) + sign * one.within(window)
            if total:
                sums[window] = total
            else:
                sums.pop(window, None)


def _ceil(amount: int, whole: int) -> int:
    return -(-amount // whole)


class Excess(NamedTuple):
    """A budget that a run would exceed. ``window`` is None for that of one job."""

    window: Window | None
    limit: int
    spent: int
    """In that window, until now."""
    committed: int
    """The cost that live runs may cause in the window from their beginning to their end, in addition."""
    needed: int
    """The cost that the run would add."""

    @property
    def name(self) -> str:
        return "job" if self.window is None else self.window.span.value


class BudgetForecast(NamedTuple):
    """The expectation of a window: the spending at its end, and when the limit is reached; None where that is not in it."""

    spent_at_end: int
    reached_at: int | None


FORECAST_MICROS = _DAY
"""The time before now from which spending is extrapolated."""


def forecast(window: Window, limit: int, spent: int, committed: int, burned: int, now: int) -> BudgetForecast:
    """Return the forecast of a budget: spending goes on at the rate of the last 24 hours, in which ``burned`` was spent.

    What live runs may still cost in the window, ``committed``, is spent in any case: the forecast is never below it. Linear: the limit
    is reached when the expected spending, rising evenly until the end of the window, meets it.
    """
    left = max(0, window.end - now)
    more = max(committed, burned * left // FORECAST_MICROS)
    total = spent + more
    if spent >= limit:
        return BudgetForecast(total, now)
    if total < limit or not more:
        return BudgetForecast(total, None)
    return BudgetForecast(total, now + _ceil((limit - spent) * left, more))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits; what is not named is not limited."""

    limits: Mapping[Span, int] = field(default_factory=dict)
    per_job: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Return whether spending is limited in every window of some length."""
        return bool(self.limits)


@dataclass(slots=True)
class BudgetAccount:
    """The money spent under one budget, and the commitments of live runs. ``spent``: by window, of runs that have ended."""

    budget: Budget
    spent: dict[Window, int] = field(default_factory=dict)
    live: dict[int, Commitment] = field(default_factory=dict)
    """By job."""
    sums: Mapping[Window, int] | None = None
    """The cost that runs live at the beginning may cause in each window, if the caller has added it up."""
    _more: dict[Window, int] = field(default_factory=dict)
    """The same for runs that started since, minus runs that ended since."""

    def __post_init__(self) -> None:
        if self.sums is None:
            sums: dict[Window, int] = {}
            for one in self.live.values():
                add_commitment(sums, one)
            self.sums = sums

    def committed(self, window: Window) -> int:
        """Return what live runs may cost in a window."""
        return (self.sums or {}).get(window, 0) + self._more.get(window, 0)

    def excess(self, new: Commitment, job_spent: int = 0) -> Excess | None:
        """Return the first budget that one more run would exceed; None if it may start. ``job_spent``: by earlier runs of its job."""
        limit = self.budget.per_job
        if limit is not None and job_spent + new.total > limit:
            return Excess(None, limit, job_spent, 0, new.total)
        for span, most in self.budget.limits.items():
            for window in windows(span, new.begin, new.end):
                needed = new.within(window)
                spent, committed = self.spent.get(window, 0), self.committed(window)
                if needed and spent + committed + needed > most:
                    return Excess(window, most, spent, committed, needed)
        return None

    def start(self, job: int, run: Commitment) -> None:
        self.live[job] = run
        add_commitment(self._more, run)

    def end(self, job: int, at: int) -> None:
        """Record the end of a run: its commitment up to ``at`` is spent."""
        run = self.live.pop(job)
        add_commitment(self._more, run, -1)
        went = run._replace(end=max(run.begin, min(at, run.end)))
        for span in self.budget.limits:
            for window in windows(span, went.begin, went.end):
                self.spent[window] = self.spent.get(window, 0) + went.within(window)

    def used(self, span: Span, now: int) -> int:
        """Return what was spent in the current window, including live runs until now."""
        window = window_at(span, now)
        going_on = (run._replace(end=max(run.begin, min(now, run.end))) for run in self.live.values())
        return self.spent.get(window, 0) + sum(run.within(window) for run in going_on)

    def burned(self, begin: int, end: int, ended: Mapping[int, int]) -> int:
        """Return the cost from ``begin`` until ``end``, which is now, of live runs and of ended ones. ``ended``: by hour.

        Of the first hour, the part after ``begin`` counts; what was counted in the last one was spent until now.
        """
        total = 0
        for hour, nanos in ended.items():
            known = min(end, hour + HOUR) - hour
            overlap = hour + known - max(begin, hour)
            if known > 0 and overlap > 0:
                total += nanos * overlap // known
        for run in self.live.values():
            micros = min(run.end, end) - max(run.begin, begin)
            total += _ceil(run.rate * micros, HOUR) if micros > 0 else 0
        return total

    def passed(self, thresholds: Iterable[float], now: int) -> dict[Span, float]:
        """Return, by budget, the highest of the thresholds that is reached now, for warnings."""
        found = {}
        for span, most in self.budget.limits.items():
            used = self.used(span, now)
            reached = [part for part in thresholds if most and used >= part * most]
            if reached:
                found[span] = max(reached)
        return found
