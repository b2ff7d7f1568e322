"""What runs have used and what it cost, hour by hour. Pure; exact to the microsecond.

A run is charged for all its members from the moment when its cluster set room aside for them until they were gone: a gang that
waits for its last member costs as much as one at work. A day and a month are sums of hours, in UTC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster_dispatcher.domain.prices import MICROS, Cost, PricedResource, PriceHistory

HOUR = 3600 * MICROS


@dataclass(frozen=True, slots=True)
class UsageSpan:
    """A time in which a run holds the same: from when to when (microseconds since the epoch), and how much of everything."""

    begin: int
    end: int
    amounts: Mapping[PricedResource, int]
    members: int = 0


class UsagePart(NamedTuple):
    """Of which hour (its begin, in microseconds since the epoch), and of what. An empty resource stands for members."""

    hour: int
    place: PricedResource


@dataclass(slots=True)
class Used:
    """``amount``: units of the resource times microseconds. ``cost``: billionths of the currency."""

    amount: int = 0
    cost: int = 0


MEMBERS = PricedResource("")
"""Members count too, whatever they need."""


@dataclass(slots=True)
class _Sum:
    amount: int = 0
    costs: dict[int, int] = field(default_factory=dict)
    """By unit of the price: exact sums."""


def hours(begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a time by hour: the hour's begin, and from when to when."""
    at = begin
    while at < end:
        hour = at - at % HOUR
        until = min(end, hour + HOUR)
        yield hour, at, until
        at = until


def usage_of(stretches: Sequence[UsageSpan], prices: PriceHistory) -> dict[UsagePart, Used]:
    """What a run has used. Money is rounded once for each part, so the parts add up to what the run is said to have cost."""
    sums: dict[UsagePart, _Sum] = {}
    for stretch in stretches:
        for hour, begin, end in hours(stretch.begin, stretch.end):
            if stretch.members:
                sums.setdefault(UsagePart(hour, MEMBERS), _Sum()).amount += stretch.members * (end - begin)
            for since, until, tariff in prices.pieces(begin, end):
                for place, amount in stretch.amounts.items():
                    into = sums.setdefault(UsagePart(hour, place), _Sum())
                    into.amount += amount * (until - since)
                    rate = tariff.rate(place)
                    if rate is not None:
                        cost = rate.weight(amount, until - since)
                        into.costs[cost.unit] = into.costs.get(cost.unit, 0) + cost.total
    return {
        part: Used(one.amount, sum(Cost(total, unit).nanos for unit, total in one.costs.items()))
        for part, one in sums.items()
    }


class Resize(NamedTuple):
    """What a run was asked to be (``is_wish``), or what came of it, at a moment."""

    at: int
    sizes: Mapping[str, int]
    is_wish: bool


Held = tuple[int, int, Mapping[str, int]]
"""From when to when, and how many members by role."""


def holdings(begin: int, end: int, sizes: Mapping[str, int], resizes: Sequence[Resize]) -> Iterator[Held]:
    """What a run holds over time. ``sizes``: its first ones.

    A run that is asked to grow holds the room for it; one that is asked to shrink holds its members until they have gone.
    """
    at, held = begin, dict(sizes)
    for resize in resizes:
        if resize.at > at:
            until = min(resize.at, end)
            if until > at:
                yield at, until, dict(held)
            at = max(at, until)
        if resize.is_wish:
            held = {role: max(held.get(role, 0), resize.sizes.get(role, 0)) for role in {**held, **resize.sizes}}
        else:
            held = dict(resize.sizes)
    if at < end:
        yield at, end, held


def by_group(sizes: Mapping[str, int], placement: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """So many members by node group and role, where their last known places are ``placement``; without any, in no group."""
    out: dict[tuple[str, str], int] = {}
    for role, size in sizes.items():
        left = size
        first = None
        for group, roles in sorted(placement.items()):
            count = min(left, roles.get(role, 0))
            if count:
                out[group, role] = count
                left -= count
                first = first or group
        if left:
            key = (first or "", role)
            out[key] = out.get(key, 0) + left
    return out


def total_cost(used: Mapping[UsagePart, Used]) -> int:
    """In billionths of the currency."""
    return sum(one.cost for one in used.values())
