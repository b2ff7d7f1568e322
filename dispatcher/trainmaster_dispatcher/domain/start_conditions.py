"""Conditions of queues on the start of their jobs. Pure; times in seconds since the epoch, money in billionths."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from trainmaster.protocol.prices import to_nanos
from trainmaster.protocol.start_conditions import StartsWhenSpec
from trainmaster_dispatcher.domain.burst_policies import Hours, hours_of, opens_at


class Quiet(NamedTuple):
    """Jobs start on a cluster once less than ``below`` of it is in use, and then as long as less than ``until`` is."""

    below: float
    until: float


class StartConditions(NamedTuple):
    """The conditions that one queue has; None, or empty, where it has no such condition. ``price``: of a job for an hour."""

    quiet: Quiet | None = None
    hours: tuple[Hours, ...] = ()
    price: int | None = None

    @property
    def is_about_clusters(self) -> bool:
        """Return whether some clusters may meet them while others do not."""
        return self.quiet is not None or self.price is not None


def start_conditions_of(spec: StartsWhenSpec | None) -> StartConditions | None:
    """Return the conditions that an admin declared, parsed once."""
    if spec is None:
        return None
    quiet = None
    if spec.utilisation is not None:
        below = spec.utilisation.below
        quiet = Quiet(below, below if spec.utilisation.until is None else spec.utilisation.until)
    return StartConditions(quiet, hours_of(spec.hours), None if spec.price is None else to_nanos(spec.price.below))


_MOST_STEPS = 1000


def all_open_at(every: Iterable[Sequence[Hours]], now: float) -> float:
    """Return ``now`` within the hours of all; else the next time that is, infinite if there is none within about a week."""
    every = [one for one in every if one]
    at = now
    for _ in range(_MOST_STEPS):
        later = max((opens_at(one, at) for one in every), default=at)
        if later == at or later > now + 8 * 86400:
            return at if later == at else inf
        at = later
    return inf


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def words_on_hours(every: Sequence[Hours]) -> str:
    """Return hours as people read them, such as ``20:00-06:00 Europe/Berlin (Mon-Fri)``."""
    return " and ".join(_words(one) for one in every)


def _words(one: Hours) -> str:
    until = one.end if one.end <= 24 * 60 else one.end - 24 * 60
    hours = f"{_clock(one.begin)}-{_clock(until)} {one.zone.tzname(None) or one.zone}"
    if len(one.days) == len(_DAYS):
        return hours
    first, last = min(one.days), max(one.days)
    if last - first + 1 == len(one.days) and last > first:
        return f"{hours} ({_DAYS[first]}-{_DAYS[last]})"
    return f"{hours} ({', '.join(_DAYS[day] for day in sorted(one.days))})"


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
