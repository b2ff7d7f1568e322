"""Flavors: the units in which quota is counted. A flavor is a resource, narrowed or not to a device product and a kind of cluster.

The usage of a member is counted by *place*: resource, product of its node group, kind of its cluster. A place is charged to every
flavor that it matches, so ``nvidia.com/gpu`` counts all GPUs, ``nvidia.com/gpu@product=H100`` those of one product, and
``cpu@kind=public`` the rented cores; each flavor is a counter of its own, and the limits of all of them apply.

Devices are counted in thousandths: a part of a GPU counts as that part of one, on the same flavors as whole GPUs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from trainmaster.cluster_model.device_products import product_label
from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.device_parts import counted, device_of, format_counted, is_device, is_memory_part
from trainmaster.protocol.quantities import Resources, format_apart


class Flavor(NamedTuple):
    """A counter of quota. Empty ``product`` or ``kind`` does not narrow. As a place, both are the actual product and kind."""

    resource: str
    product: str = ""
    kind: str = ""

    def matches(self, place: "Flavor") -> bool:
        return self.resource == place.resource and self.product in ("", place.product) and self.kind in ("", place.kind)

    def __str__(self) -> str:
        parts = [f"product={self.product}"] * bool(self.product) + [f"kind={self.kind}"] * bool(self.kind)
        return f"{self.resource}@{','.join(parts)}" if parts else self.resource

    def format(self, amount: int) -> str:
        return format_counted(self.resource, amount)

    def format_apart(self, one: int, other: int) -> tuple[str, str]:
        """Return texts of two different amounts that differ."""
        return format_apart("cpu" if is_device(self.resource) else self.resource, one, other)


class Product(NamedTuple):
    """A product of a device, to which a gang is narrowed, and the node label that names it."""

    resource: str
    name: str
    label: str = ""


Amounts = dict[Flavor, int]
"""Amounts by flavor or by place: thousandths of devices, the unit of any other resource."""


def charge_anywhere(needs: Resources) -> "Amounts":
    """Return what needs are charged on flavors that are not narrowed; without parts of memory, whose charge depends on the place."""
    found: Amounts = {}
    for name, amount in needs.items():
        if amount and not is_memory_part(name):
            flavor = plain(device_of(name))
            found[flavor] = found.get(flavor, 0) + counted(name, amount)
    return found


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a queue and all queues below it on one flavor. None does not restrict; amounts in the resource's unit.

    ``guaranteed``: what the queue gets back from others when it needs it. ``limit``: the most that it uses. ``borrowing``: the most
    beyond the guarantee. ``lending``: how much of the guarantee others may use while the queue does not.
    """

    guaranteed: int = 0
    limit: int | None = None
    borrowing: int | None = None
    lending: int | None = None
    weight: float | None = None

    @property
    def most(self) -> int | None:
        """The most that may be used, by limit and borrowing limit together."""
        if self.borrowing is None:
            return self.limit
        borrowed = self.guaranteed + self.borrowing
        return borrowed if self.limit is None else min(self.limit, borrowed)

    @property
    def kept(self) -> int:
        """The part of the guarantee that is never lent, whether it is used or not."""
        return 0 if self.lending is None else max(0, self.guaranteed - self.lending)


def product_of(group: NodeGroup) -> str:
    """Return the product of a node group's devices; empty if no label names one."""
    return group.labels.get(product_label(group.labels), "")


class Flavors:
    """All flavors that any queue has a quota on, and the flavors that each place is charged to."""

    def __init__(self, narrowed: Iterable[Flavor], *, varies: bool = False) -> None:
        """``varies``: there are jobs of which the amounts themselves depend on the place."""
        self._narrowed: dict[str, list[Flavor]] = {}
        for flavor in sorted(set(narrowed)):
            if flavor.product or flavor.kind:
                self._narrowed.setdefault(flavor.resource, []).append(flavor)
        self.any_narrowed = bool(self._narrowed) or varies
        """Whether a charge depends on the place."""
        self._matching: dict[Flavor, tuple[Flavor, ...]] = {}

    def products_matter(self, resource: str) -> bool:
        """Return whether any quota on this resource depends on the product."""
        return any(flavor.product for flavor in self._narrowed.get(resource, ()))

    def of(self, place: Flavor) -> tuple[Flavor, ...]:
        """Return the flavors that a place is charged to, the one that is not narrowed first."""
        found = self._matching.get(place)
        if found is None:
            narrowed = tuple(flavor for flavor in self._narrowed.get(place.resource, ()) if flavor.matches(place))
            found = self._matching[place] = (Flavor(place.resource), *narrowed)
        return found

    def charge(self, places: Mapping[Flavor, int]) -> Amounts:
        """Return the sums on every flavor of amounts by place."""
        out: Amounts = {}
        known = self._matching
        for place, amount in places.items():
            for flavor in known.get(place) or self.of(place):
                out[flavor] = out.get(flavor, 0) + amount
        return out


def by_resource(places: Mapping[Flavor, int]) -> Resources:
    """Return amounts by place as amounts by resource, devices in thousandths."""
    found: Resources = {}
    for place, amount in places.items():
        found[place.resource] = found.get(place.resource, 0) + amount
    return found


@lru_cache(maxsize=1024)
def plain(resource: str) -> Flavor:
    """Return the flavor of a resource that is not narrowed."""
    return Flavor(resource)
