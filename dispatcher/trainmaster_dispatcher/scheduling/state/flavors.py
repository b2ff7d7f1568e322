"""Resource lines: what quota is counted by. A line is a resource, narrowed or not to a product of device and a kind of cluster.

What a member takes is known by *place*: resource, product of its node group, kind of its cluster. A place is charged on every
line that it matches, so ``nvidia.com/gpu`` counts all GPUs, ``nvidia.com/gpu@product=H100`` those of one product, and
``cpu@kind=public`` the cores that are rented; each line is a counter of its own, and the limits of all of them bind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.quantities import format_quantity

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "product")
"""Node labels that name the product of a device, the first one that is there."""


class Flavor(NamedTuple):
    """A counter of quota. Empty ``product`` or ``kind`` does not narrow. As a place, both say what is there."""

    resource: str
    product: str = ""
    kind: str = ""

    def matches(self, place: "Flavor") -> bool:
        return self.resource == place.resource and self.product in ("", place.product) and self.kind in ("", place.kind)

    def __str__(self) -> str:
        parts = [f"product={self.product}"] * bool(self.product) + [f"kind={self.kind}"] * bool(self.kind)
        return f"{self.resource}@{','.join(parts)}" if parts else self.resource

    def format(self, amount: int) -> str:
        return format_quantity(self.resource, amount)


class Product(NamedTuple):
    """A product of a device, to which a gang is narrowed, and the node label that names it."""

    resource: str
    name: str
    label: str = ""


Amounts = dict[Flavor, int]
"""Amounts by line or by place, in the unit of the resource."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a queue, with all below it, may have of one line. None does not restrict; amounts in the resource's unit.

    ``guaranteed``: what it gets back from others when it asks. ``limit``: the most it uses. ``borrowing``: the most beyond what is
    guaranteed. ``lending``: how much of what is guaranteed others may use while it does not.
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
        """What is never lent, whether it is used or not."""
        return 0 if self.lending is None else max(0, self.guaranteed - self.lending)


def product_label(group: NodeGroup) -> str:
    """The label that names the product of a node group's devices; empty where there is none."""
    return next((label for label in PRODUCT_LABELS if label in group.labels), "")


def product_of(group: NodeGroup) -> str:
    """The product of a node group's devices; empty where no label names one."""
    return group.labels.get(product_label(group), "")


class Flavors:
    """All lines that any queue has a quota on, and by which a place is charged."""

    def __init__(self, narrowed: Iterable[Flavor]) -> None:
        self._narrowed: dict[str, list[Flavor]] = {}
        for line in sorted(set(narrowed)):
            if line.product or line.kind:
                self._narrowed.setdefault(line.resource, []).append(line)
        self.any_narrowed = bool(self._narrowed)
        self._matching: dict[Flavor, tuple[Flavor, ...]] = {}

    def products_matter(self, resource: str) -> bool:
        """Whether any quota on this resource depends on the product."""
        return any(line.product for line in self._narrowed.get(resource, ()))

    def of(self, place: Flavor) -> tuple[Flavor, ...]:
        """The lines that a place is charged on, the plain one of its resource first."""
        found = self._matching.get(place)
        if found is None:
            narrowed = tuple(line for line in self._narrowed.get(place.resource, ()) if line.matches(place))
            found = self._matching[place] = (Flavor(place.resource), *narrowed)
        return found

    def charge(self, places: Mapping[Flavor, int]) -> Amounts:
        """What amounts by place come to on every line."""
        out: Amounts = {}
        for place, amount in places.items():
            for line in self.of(place):
                out[line] = out.get(line, 0) + amount
        return out


@lru_cache(maxsize=1024)
def plain(resource: str) -> Flavor:
    """The line of a resource that is not narrowed."""
    return Flavor(resource)
