"""Score of devices that few others ask for before those that they need: scarce products, and nodes for many devices at once.

How much is asked for the devices of a sort of nodes: the devices that members need which wait or have started lately, each divided by
all devices on nodes that could hold such a member, whatever runs there now. So a product that many jobs name is spared, and so are
nodes with eight devices if many members need eight of them. Besides, each product counts as if jobs asked for some of it by name, so
that scarce ones are spared as long as little is known of jobs. It is a simple form of fragmentation by typical workloads (Weng et
al., "Beware of Fragmentation", USENIX ATC 2023), one that does not change with each start.

Inside a cluster, the order of nodes has this effect (``best_fit.commonness``); between clusters, this score.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import exp2, log2, sqrt
from typing import NamedTuple

from trainmaster.protocol.agent import NodeGroup, Taint
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape, Terms
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import first_node
from trainmaster_dispatcher.scheduling.selection.scores.base import PART, DependsOn, Score, itself
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.demand import Demand, DeviceNeed, NeedKey
from trainmaster_dispatcher.scheduling.state.flavors import Product, product_of

_MOST_CACHED = 5000
_MOST_SORTS = 300
"""The largest number of sorts of nodes for which the members that ask for them are looked at."""
_CHOICE = 2
"""The smallest number of values that make a choice."""
_NAMED = 2.0
"""Jobs count to ask by the name of each product for this many times the square root of all devices of the resource: little beside what
the jobs of a large fleet ask for; on a small one a few jobs are no measure yet."""
_FREE_PART = 1 / 8
"""The part of the devices that a member may have with which all others are compared: a sort of which there are a few alone, for which
nobody asks, would make the others look equally scarce."""
_STEPS = 4
"""The steps by which what is asked for may double: it is rounded, so that the start of a single job changes no scores."""
_HIGHEST = 1 << 20
"""Above every rounded value."""


class _Sort(NamedTuple):
    """Equivalent nodes with devices: by their labels without those of their topology, taints, NUMA policy and devices."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    policy: str | None
    devices: tuple[tuple[str, int], ...]


class _Sorts(NamedTuple):
    """The groups of a cluster with devices, by name their sort; the number of nodes of each sort, and one of its groups."""

    sort_of: dict[str, _Sort]
    nodes: Counter[_Sort]
    groups: dict[_Sort, NodeGroup]


class _DeviceChoice(NamedTuple):
    """The role of a gang that may have one of several sorts of nodes with a device, and the value of the least asked for of them."""

    role: RoleShape
    device: str
    freest: int


class Scarcity:
    """The values of all sorts of nodes of the fleet: by what members ask for their devices.

    The value of a sort is larger the less is asked for its devices: a difference of ``_STEPS`` is half as much.
    """

    def __init__(self) -> None:
        self._clusters: dict[int, _Sorts] = {}
        self._nodes: Counter[_Sort] = Counter()
        self._groups: dict[_Sort, NodeGroup] = {}
        """By sort: one of its groups."""
        self._values: dict[_Sort, int] = {}
        self._totals: dict[str, int] = {}
        """By device: all that there are."""
        self._needs: Mapping[NeedKey, DeviceNeed] | None = None
        self._freest: dict[tuple[Terms, str], int | None] = {}
        """By the terms of a role and a device: the largest value of a sort that it may have, if there are several values."""

    def spares(self, cluster_id: int) -> Mapping[str, int] | None:
        """Return the values of the groups of a cluster with devices; None without any."""
        known = self._clusters.get(cluster_id)
        return {name: self._values[sort] for name, sort in known.sort_of.items()} if known and known.sort_of else None

    def is_current(self, demand: Demand) -> bool:
        """Return whether the values were computed with this demand, or no demand matters."""
        return len(self._values) < _CHOICE or self._needs is demand.needs

    def take_in(
        self,
        clusters: Iterable[Cluster],
        changed: Iterable[int],
        demand: Demand,
    ) -> bool:
        """Update the clusters that have changed themselves, were added or removed; return whether any value may be different now."""
        there = {cluster.id: cluster for cluster in clusters}
        before = {key: self._clusters.pop(key, None) for key in changed}
        for key in before.keys() & there.keys():
            self._clusters[key] = _sorts_of(there[key])
        is_same = all(
            (known and known[:2]) == (now and now[:2])
            for key, known in before.items()
            for now in (self._clusters.get(key),)
        )
        if is_same and self._needs is demand.needs:
            return False
        self._needs = demand.needs
        values = self._values_of(demand.needs.values())
        if is_same and values == self._values:
            return False
        self._values = values
        self._freest.clear()
        return True

    def _values_of(self, needs: Iterable[DeviceNeed]) -> dict[_Sort, int]:
        nodes = Counter[_Sort]()
        for one in self._clusters.values():
            nodes.update(one.nodes)
        self._groups = {sort: group for one in self._clusters.values() for sort, group in one.groups.items()}
        of_product: defaultdict[tuple[str, str], int] = defaultdict(int)
        totals: defaultdict[str, int] = defaultdict(int)
        for sort, many in nodes.items():
            for device, amount in sort.devices:
                of_product[device, product_of(self._groups[sort])] += amount * many
                totals[device] += amount * many
        self._nodes, self._totals = nodes, dict(totals)
        wanted: defaultdict[tuple[str, _Sort], float] = defaultdict(float)
        if _CHOICE <= len(nodes) <= _MOST_SORTS:
            for role, device, needed in needs:
                takers = [
                    (sort, there * nodes[sort])
                    for sort, group in self._groups.items()
                    for name, there in sort.devices
                    if name == device and there >= role.needs[device] and allows(role, group)
                ]
                all_there = sum(amount for _, amount in takers)
                for sort, _ in takers:
                    wanted[device, sort] += needed / all_there
        # What is asked for all devices alike makes no difference.
        least = {
            device: min(wanted[device, sort] for sort in nodes if any(name == device for name, _ in sort.devices))
            for device in totals
        }
        return {
            sort: _rounded(
                max(
                    wanted[device, sort]
                    - least[device]
                    + self._named(device, of_product[device, product_of(self._groups[sort])])
                    for device, _ in sort.devices
                )
            )
            for sort in nodes
        }

    def _named(self, device: str, there: int) -> float:
        """Return what counts as asked for by the name of a product of which there are ``there`` devices."""
        return _NAMED * sqrt(self._totals.get(device, there)) / there

    def part(self, shape: Shape, cluster_capacity: FreeCapacity, product: Product | None = None) -> float:
        """Return how little is asked for the devices that a gang would take first: as a part, by those that it may have of which the
        least is asked for.

        1 if the gang has no choice. ``product``: the only product that it may take.
        """
        choice = self._choice(shape)
        if choice is None:
            return 1.0
        if product is not None and product.resource == choice.device:
            of_product = [
                value
                for sort, value in self._values.items()
                if product_of(self._groups[sort]) == product.name
                and any(name == choice.device for name, _ in sort.devices)
            ]
            value = max(of_product, default=None)
        else:
            node = first_node(choice.role, cluster_capacity)
            if node is None:
                return 1.0
            value = (cluster_capacity.eligible.spares or {}).get(node.group.name)
        if value is None:  # a product that only pools can add has no devices yet
            value = _rounded(self._named(choice.device, 1))
        return min(1.0, exp2((value - choice.freest) / _STEPS))

    def is_choosy(self, shape: Shape) -> bool:
        """Return whether a gang may take devices for which more is asked or less."""
        return self._choice(shape) is not None

    def takes_equally(self, shape: Shape, free: FreeCapacity, first: Iterable[str], others: Iterable[str]) -> bool:
        """Return whether as much is asked for devices of the groups ``others`` as for those of ``first``, or it does not matter."""
        if self._choice(shape) is None:
            return True
        spares = free.eligible.spares or {}
        taken = {spares.get(name) for name in first}
        return len(taken) == 1 and {spares.get(name) for name in others} <= taken

    def _choice(self, shape: Shape) -> _DeviceChoice | None:
        for role in shape.roles:
            for device in role.needs:
                if "/" in device:
                    freest = self._freest_for(role, device)
                    if freest is not None:
                        return _DeviceChoice(role, device, freest)
        return None

    def _freest_for(self, role: RoleShape, device: str) -> int | None:
        key = role.terms, device
        try:
            return self._freest[key]
        except KeyError:
            devices = Counter[int]()
            for sort, group in self._groups.items():
                for name, amount in sort.devices:
                    if name == device and allows(role, group):
                        devices[self._values[sort]] += amount * self._nodes[sort]
            if len(self._freest) >= _MOST_CACHED:
                self._freest.clear()
            freest = None if len(devices) < _CHOICE else _value_of_part(devices)
            self._freest[key] = freest
            return freest


def _value_of_part(devices: Mapping[int, int]) -> int:
    """Return the value that ``_FREE_PART`` of all devices, given by their values, reach."""
    enough = _FREE_PART * sum(devices.values())
    for value in sorted(devices, reverse=True):
        enough -= devices[value]
        if enough <= 0:
            break
    return value


def _rounded(wanted: float) -> int:
    """Return the value of devices: larger, the less is asked for them."""
    return _HIGHEST - round(log2(wanted) * _STEPS)


def _sorts_of(cluster: Cluster) -> _Sorts:
    found = _Sorts({}, Counter(), {})
    for group in cluster.report.groups if cluster.report is not None else ():
        sort = _sort_of(group)
        if group.count and sort.devices:
            found.sort_of[group.name] = sort
            found.nodes[sort] += group.count
            found.groups[sort] = group
    return found


def _sort_of(group: NodeGroup) -> _Sort:
    topology = {key for key, _ in group.topology}
    return _Sort(
        tuple(sorted((key, value) for key, value in group.labels.items() if key not in topology)),
        group.taints,
        group.numa.policy if group.numa is not None else None,
        tuple(sorted((name, amount) for name, amount in group.free.items() if "/" in name and amount > 0)),
    )


SCORE = Score(
    name="sparing",
    unit="part",
    measure=itself,
    curve=PART,
    words=lambda best, second: "fewer others ask for the devices that it takes there",
    depends_on=DependsOn.DEVICES,
)
