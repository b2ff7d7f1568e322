"""Score of common devices before scarce ones, which other jobs may need: the products of a device that are common in the fleet.

Inside a cluster, the order of nodes has this effect (``best_fit.commonness``); between clusters, this score.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from trainmaster.protocol.agent import NodeGroup
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape, Terms
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import first_node
from trainmaster_dispatcher.scheduling.selection.scores.base import PART, DependsOn, Score, itself
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.flavors import Product, product_of

_MOST_CACHED = 5000
_CHOICE = 2
"""The smallest number of products that make a choice."""


class _Sorts(NamedTuple):
    """The values of a cluster that count: the kinds of its groups with devices, these groups, and the number of devices by product."""

    kinds: frozenset[Hashable]
    groups: tuple[NodeGroup, ...]
    many: Counter[tuple[str, str]]


class _DeviceChoice(NamedTuple):
    """The role of a gang that may have one of several products of a device, and the number of devices of the commonest of them."""

    role: RoleShape
    device: str
    most: int


class Scarcity:
    """The number of devices in the fleet by product.

    Numbers are rounded down to powers of two, so that the change of a single node does not change the scores of all clusters.
    """

    def __init__(self) -> None:
        self._clusters: dict[int, _Sorts] = {}
        self._many: dict[tuple[str, str], int] = {}
        self._commonest: dict[tuple[Terms, str], int | None] = {}
        """By the terms of a role and a device: the number of devices of the commonest product, if there are several products."""

    def take_in(self, clusters: Iterable[Cluster], changed: Iterable[int]) -> bool:
        """Update the clusters that have changed themselves, were added or removed; return whether any result may be different now."""
        there = {cluster.id: cluster for cluster in clusters}
        before = {key: self._clusters.pop(key, None) for key in changed}
        for key in before.keys() & there.keys():
            self._clusters[key] = _sorts_of(there[key])
        many = Counter[tuple[str, str]]()
        for one in self._clusters.values():
            many.update(one.many)
        rounded = {key: 1 << (amount.bit_length() - 1) for key, amount in many.items() if amount > 0}
        kinds = {key: sorts.kinds for key, sorts in before.items() if sorts is not None}
        is_same = kinds == {key: self._clusters[key].kinds for key in before if key in self._clusters}
        if is_same and rounded == self._many:
            return False
        self._commonest.clear()
        self._many = rounded
        return True

    def part(self, shape: Shape, cluster_capacity: FreeCapacity, product: Product | None = None) -> float:
        """Return how common the product is that a gang would take first, as a part of the commonest one that it may have.

        1 if the gang has no choice. ``product``: the only product that it may take.
        """
        choice = self._choice(shape)
        if choice is None:
            return 1.0
        if product is not None and product.resource == choice.device:
            name = product.name
        else:
            node = first_node(choice.role, cluster_capacity)
            if node is None:
                return 1.0
            name = product_of(node.group)
        # A product that only pools can add has no devices yet.
        return min(1.0, self._many.get((choice.device, name), 1) / choice.most)

    def is_choosy(self, shape: Shape) -> bool:
        """Return whether a gang may take devices that are common or scarce."""
        return self._choice(shape) is not None

    def takes_equally(self, shape: Shape, free: FreeCapacity, first: Iterable[str], others: Iterable[str]) -> bool:
        """Return whether the groups ``others`` have the product of the groups ``first``, or the product does not matter."""
        if self._choice(shape) is None:
            return True
        taken = _products(free, first)
        return len(taken) == 1 and _products(free, others) <= taken

    def _choice(self, shape: Shape) -> _DeviceChoice | None:
        for role in shape.roles:
            for device in role.needs:
                if "/" in device:
                    most = self._most(role, device)
                    if most is not None:
                        return _DeviceChoice(role, device, most)
        return None

    def _most(self, role: RoleShape, device: str) -> int | None:
        key = role.terms, device
        try:
            return self._commonest[key]
        except KeyError:
            products = {
                product_of(group)
                for sorts in self._clusters.values()
                for group in sorts.groups
                if group.free.get(device) and allows(role, group)
            }
            if len(self._commonest) >= _MOST_CACHED:
                self._commonest.clear()
            most = None if len(products) < _CHOICE else max(self._many.get((device, name), 1) for name in products)
            self._commonest[key] = most
            return most


def _products(free: FreeCapacity, groups: Iterable[str]) -> set[str]:
    return {product_of(free.groups[name][0].group) for name in groups if free.groups.get(name)}


def _sorts_of(cluster: Cluster) -> _Sorts:
    groups = tuple(
        group
        for group in (cluster.report.groups if cluster.report is not None else ())
        if group.count and any("/" in name for name in group.free)
    )
    many = Counter[tuple[str, str]]()
    for group in groups:
        for name, amount in group.free.items():
            if "/" in name:
                many[name, product_of(group)] += amount * group.count
    return _Sorts(frozenset(_kind_of(group) for group in groups), groups, many)


def _kind_of(group: NodeGroup) -> Hashable:
    """Return the values of a group that decide whether a role may use it, and the devices that it has."""
    devices = frozenset(name for name, amount in group.free.items() if "/" in name and amount > 0)
    policy = group.numa.policy if group.numa is not None else None
    return tuple(sorted(group.labels.items())), group.taints, policy, devices


SCORE = Score(
    name="sparing",
    unit="part",
    measure=itself,
    curve=PART,
    words=lambda best, second: "the devices that it takes there are more common",
    depends_on=DependsOn.DEVICES,
)
