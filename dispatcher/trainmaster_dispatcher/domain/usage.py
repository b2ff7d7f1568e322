"""The usage of runs and its cost, hour by hour. Pure; exact to the microsecond.

A run is charged for all its members from the moment when its cluster reserved capacity for them until they have ended:
a gang that waits for its last member costs as much as one that works. A day and a month are sums of hours, in UTC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from trainmaster.protocol.device_parts import WHOLE, device_of, is_part
from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.prices import MICROS, Cost, PricedResource, PriceHistory

HOUR = 3600 * MICROS


@dataclass(frozen=True, slots=True)
class UsageSpan:
    """A time in which a run holds constant amounts: its beginning and end (microseconds since the epoch), and the amounts."""

    begin: int
    end: int
    amounts: Mapping[PricedResource, int]
    members: int = 0


class UsagePart(NamedTuple):
    """The hour (its beginning, in microseconds since the epoch), and the resource. An empty resource means members."""

    hour: int
    place: PricedResource


@dataclass(slots=True)
class Used:
    """``amount``: units of the resource times microseconds. ``cost``: billionths of the currency."""

    amount: int = 0
    cost: int = 0

    def charge(self, factor: Decimal | None) -> int:
        """Return the cost times a factor, in billionths of the currency; None: 1. It is rounded, halves to the even."""
        return self.cost if factor is None else int((self.cost * factor).to_integral_value())


MEMBERS = PricedResource("")
"""The empty resource: members are counted too, whatever they need."""


@dataclass(slots=True)
class _Sum:
    amount: int = 0
    costs: dict[int, int] = field(default_factory=dict)
    """By unit of the price: exact sums."""


def hours(begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a time by hour: the beginning of the hour, the beginning and the end of the part."""
    at = begin
    while at < end:
        hour = at - at % HOUR
        until = min(end, hour + HOUR)
        yield hour, at, until
        at = until


def usage_of(stretches: Sequence[UsageSpan], prices: PriceHistory) -> dict[UsagePart, Used]:
    """Return what a run has used. Money is rounded once for each part, so the parts add up to the reported cost of the run.

    Parts of devices, in thousandths, are counted as devices, and nodes of all instance types together.
    """
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
    found: dict[UsagePart, Used] = {}
    for part, one in sums.items():
        place, amount = part.place._replace(instance=""), one.amount
        if is_part(place.resource):
            place, amount = place._replace(resource=device_of(place.resource)), amount // WHOLE
        used = found.setdefault(UsagePart(part.hour, place), Used())
        used.amount += amount
        used.cost += sum(Cost(total, unit).nanos for unit, total in one.costs.items())
    return found


class Resize(NamedTuple):
    """The size that was requested of a run (``is_wish``), or the size it reached, at a moment."""

    at: int
    sizes: Mapping[str, int]
    is_wish: bool


Held = tuple[int, int, Mapping[str, int]]
"""The beginning, the end, and the number of members by role."""


def holdings(begin: int, end: int, sizes: Mapping[str, int], resizes: Sequence[Resize]) -> Iterator[Held]:
    """Yield what a run holds over time. ``sizes``: its first ones.

    A run that is ordered to grow holds the capacity for that; one that is ordered to shrink holds its members until they
    have ended.
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


def by_group(sizes: Mapping[str, int], placement: MemberPlacement) -> dict[tuple[str, str], int]:
    """Return the number of members by node group and role, by the last known ``placement``; without any, in no group."""
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
    """Return the cost in billionths of the currency."""
    return sum(one.cost for one in used.values())
