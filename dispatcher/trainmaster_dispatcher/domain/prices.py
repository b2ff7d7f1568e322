"""Prices: rates and how they changed. Pure; money in billionths (``protocol.prices.NANOS``), times in microseconds."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from trainmaster.protocol.device_parts import WHOLE, device_of, is_part
from trainmaster.protocol.prices import NANOS, PriceBookSpec, PricesSpec, to_nanos
from trainmaster.protocol.quantities import parse_resources
from trainmaster.protocol.quota import parse_flavor

MICROS = 10**6
_HOUR = 3600 * MICROS
_UNITS = {"cpu": 1000, "memory": 2**30}
"""The number of units of a resource that its price is for."""


INSTANCE_LABEL = "node.kubernetes.io/instance-type"
SPOT_LABELS: Mapping[str, frozenset[str]] = {
    "cloud.google.com/gke-spot": frozenset({"true"}),
    "cloud.google.com/gke-preemptible": frozenset({"true"}),
    "eks.amazonaws.com/capacityType": frozenset({"SPOT"}),
    "karpenter.sh/capacity-type": frozenset({"spot"}),
    "kubernetes.azure.com/scalesetpriority": frozenset({"spot"}),
    "trainmaster.dev/spot": frozenset({"true"}),
}
"""Node labels, and their values on nodes that the provider may take back."""


def is_spot(labels: Mapping[str, str]) -> bool:
    """Return whether the provider may take back nodes with these labels."""
    return any(labels.get(label) in values for label, values in SPOT_LABELS.items())


class PricedResource(NamedTuple):
    """A resource with a price and, for devices, the product; ``spot`` if the provider may take the node back.

    ``instance``: the instance type of the node, where the price may depend on it.
    """

    resource: str
    product: str = ""
    spot: bool = False
    instance: str = ""

    def __str__(self) -> str:
        name = f"{self.resource}@product={self.product}" if self.product else self.resource
        return f"{name} (spot)" if self.spot else name


class Rate(NamedTuple):
    """A price as a whole number: billionths of the currency, times ``NANOS``, for ``unit`` units during an hour."""

    price: int
    unit: int

    def weight(self, amount: int, micros: int) -> "Cost":
        """Return the cost of an amount in that time."""
        return Cost(self.price * amount * micros, self.unit)


class Cost(NamedTuple):
    """An exact sum of money that is not rounded yet."""

    total: int
    unit: int

    @property
    def nanos(self) -> int:
        """The cost in billionths of the currency, halves rounded up."""
        whole = self.unit * _HOUR * NANOS
        return (2 * self.total + whole) // (2 * whole)


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of a cluster at one time."""

    rates: Mapping[PricedResource, Rate] = field(default_factory=dict)
    egress: float = 0.0
    """The cost of a byte that leaves the cluster, in the installation's currency: for scores, not for bills."""

    def rate(self, place: PricedResource) -> Rate | None:
        """Return the rate on the instance type, else that of the product, else that of the resource; on spot nodes the spot price, if
        there is one.

        A thousandth of a device costs a thousandth of the device.
        """
        if is_part(place.resource):
            whole = self.rate(place._replace(resource=device_of(place.resource)))
            return None if whole is None else whole._replace(unit=whole.unit * WHOLE)
        if place.instance:
            for spot in (True, False) if place.spot else (False,):
                found = self.rates.get(PricedResource(place.resource, "", spot, place.instance))
                if found is not None:
                    return found
        for spot in (True, False) if place.spot else (False,):
            for product in (place.product, "") if place.product else ("",):
                found = self.rates.get(PricedResource(place.resource, product, spot))
                if found is not None:
                    return found
        return None

    @property
    def is_free(self) -> bool:
        return not self.rates


FREE = Tariff()


def tariff_of(book: PriceBookSpec, correction: Decimal = Decimal(1)) -> Tariff:
    """Return the tariff of a price book in the installation's currency; ``correction``: the factor by which invoices
    differ from it."""
    factor = to_nanos_exact(book.exchange_rate * correction)
    rates: dict[PricedResource, Rate] = {}
    for prices, spot in ((book.on_demand, False), (book.spot, True)):
        if prices is not None:
            rates |= _rates(prices, factor, spot=spot)
    rates |= _instance_rates(book, rates, factor)
    egress = 0.0 if book.egress is None else float(book.egress * factor) / NANOS / 2**30
    return Tariff(rates, egress)


def to_nanos_exact(factor: Decimal) -> int:
    """Return the product of two factors in billionths; smaller parts are rounded."""
    return int((factor * NANOS).to_integral_value())


def _rates(prices: PricesSpec, factor: int, *, spot: bool) -> dict[PricedResource, Rate]:
    found: dict[PricedResource, Rate] = {}
    for resource, price in (("cpu", prices.cpu), ("memory", prices.memory)):
        if price is not None:
            found[PricedResource(resource, "", spot)] = Rate(to_nanos(price) * factor, _UNITS[resource])
    for name, price in prices.devices.items():
        resource, product, _ = parse_flavor(name)
        found[PricedResource(resource, product, spot)] = Rate(to_nanos(price) * factor, 1)
    return found


def _instance_rates(
    book: PriceBookSpec, rates: Mapping[PricedResource, Rate], factor: int
) -> dict[PricedResource, Rate]:
    """Return the rates on nodes of instance types: what a whole node offers costs as much as the node, each resource in proportion to
    its ordinary price. Of devices whose products differ in price, the highest counts.
    """
    usual: dict[str, Rate] = {}
    for place, rate in rates.items():
        if not place.spot and (place.resource not in usual or rate.price > usual[place.resource].price):
            usual[place.resource] = rate
    found: dict[PricedResource, Rate] = {}
    for instance, prices in book.instances.items():
        amounts = parse_resources(prices.resources)
        whole = sum(Fraction(rate.price * amounts.get(name, 0), rate.unit) for name, rate in usual.items())
        for price, spot in ((prices.on_demand, False), (prices.spot, True)):
            if price is not None and whole:
                for name in amounts.keys() & usual.keys():
                    exact = Fraction(to_nanos(price) * factor * usual[name].price) / whole
                    found[PricedResource(name, "", spot, instance)] = Rate(round(exact), usual[name].unit)
    return found


@dataclass(frozen=True, slots=True)
class PriceHistory:
    """The tariffs of a cluster, each from a moment on (microseconds since the epoch, ascending). Before the first all is free."""

    since: Sequence[int] = ()
    tariffs: Sequence[Tariff] = ()

    def at(self, moment: int) -> Tariff:
        place = bisect_right(self.since, moment)
        return self.tariffs[place - 1] if place else FREE

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, Tariff]]:
        """Yield the intervals of a time in which prices do not change."""
        at = begin
        while at < end:
            place = bisect_right(self.since, at)
            until = min(end, self.since[place]) if place < len(self.since) else end
            yield at, until, self.tariffs[place - 1] if place else FREE
            at = until


NO_PRICES = PriceHistory()
