"""Whole gangs on nodes: which node takes how many members of which role, or what is missing, as a sentence.

Pure. Best fit, largest member first (D. S. Johnson, *Near-optimal bin packing algorithms*, 1973): quick and never
wrong when it says that a gang fits; like every such heuristic it may overlook a packing that exists. What a node must
have is in ``eligibility``.

What the dispatcher's fit accepts, ``place`` can place as well (``tests/unit/test_cluster_model.py``):

* a gang of one role, and any gang within one node, wherever it is found: with the same nodes, or nodes that have more, in any order;
* a gang of several roles with the same nodes in the same order, where they have CPU, memory and devices of one sort and product.

With several roles and other nodes than were reported, either side may miss a packing that the other one finds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations

from trainmaster.cluster_model.best_fit import MOST_ORDERS, dominant, leftover
from trainmaster.cluster_model.eligibility import describe, is_tolerated, obstruction
from trainmaster.cluster_model.numa_policies import STRICT_NUMA, NumaPolicy
from trainmaster.cluster_model.numa_zones import NodeZones
from trainmaster.cluster_model.whole_nodes import idle_device
from trainmaster.protocol.agent import HOST_LEVEL, Taint
from trainmaster.protocol.jobs import AffinityTerm, MemberTemplate, Role, Toleration
from trainmaster.protocol.quantities import Resources, format_quantity, format_resources

Assignment = dict[str, dict[str, int]]
"""Members by node and role."""
_Key = Callable[["Need", "Node", Resources], tuple[float | str, ...]]
"""Sorts nodes for members with a need: which of them takes one first, by what each has left."""

_COMMON = ("cpu", "memory", "ephemeral-storage", "pods")


@dataclass(frozen=True, slots=True)
class Node:
    """A node to pack on. ``topology`` goes from wide to narrow and leaves out the host itself."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    topology: tuple[tuple[str, str], ...] = ()
    zones: NodeZones | None = None
    """NUMA zones, where the node reports them."""
    is_occupied: bool = False
    """Whether pods of others are bound to it, beside those that each node has."""
    has_members: bool = False
    """Whether members of other gangs are on it, or are about to be."""

    def domain(self, level: str) -> tuple[str, ...] | None:
        """Return the node's domain at ``level`` with all wider ones, as two zones may have a rack ``r1``; None without one."""
        if level == HOST_LEVEL:
            return (self.name,)
        path: list[str] = []
        for key, value in self.topology:
            path.append(value)
            if key == level:
                return tuple(path)
        return None


@dataclass(frozen=True, slots=True)
class Need:
    """``count`` identical members of a role, or units of members that share devices, and the requirements of each on its node."""

    role: str
    count: int
    resources: Resources
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: tuple[AffinityTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    max_per_node: int | None = None
    numa: str = NumaPolicy.NONE
    """NUMA policy that the node has to keep for the member."""
    exclusive: bool = False
    """Whether each member has a node for itself."""
    members_per_unit: int = 1
    """If more than 1, ``count``, ``resources`` and ``max_per_node`` are of units: this number of members that share devices."""

    @classmethod
    def of(
        cls, role: Role, template: MemberTemplate, count: int, more: Resources | None = None, *, exclusive: bool = False
    ) -> "Need":
        """Return what ``count`` members of a role with this template need; ``more``: what each needs beside what it requests."""
        each = template.members_per_claim
        amounts = template.unit_amounts
        for name, amount in (more or {}).items():
            amounts[name] = amount * each
        return cls(
            role.name,
            -(-count // each),
            amounts,
            template.node_selector,
            template.node_affinity,
            template.tolerations,
            None if role.max_per_node is None else max(1, role.max_per_node // each),
            exclusive=exclusive,
            members_per_unit=each,
        )

    def suits(self, node: Node) -> bool:
        """Return whether this node may take such a member if it is empty enough."""
        found = obstruction(node.labels, node.taints, self.node_selector.items(), self.node_affinity, self.tolerations)
        return found is None and self._zones_obstacle(node) is None and self._others_obstacle(node) is None

    def obstacle(self, node: Node) -> str | None:
        """Return why this node may not take such a member however empty it is, as a sentence; None when it may."""
        found = obstruction(node.labels, node.taints, self.node_selector.items(), self.node_affinity, self.tolerations)
        return (self._zones_obstacle(node) or self._others_obstacle(node)) if found is None else describe(found)

    def _others_obstacle(self, node: Node) -> str | None:
        """Return why a member may not have a node for itself; None if it may, and for members that share nodes."""
        if not self.exclusive:
            return None
        if node.is_occupied:
            return "other pods are bound to it, and the member needs a whole node"
        idle = idle_device(node.allocatable, self.resources)
        return None if idle is None else f"the member would have it for itself, and it has {idle.sentence}"

    def _zones_obstacle(self, node: Node) -> str | None:
        if self.numa not in STRICT_NUMA:
            return None
        if node.zones is None:
            return f"it reports no NUMA zones, and the job asks for {self.numa}"
        if not node.zones.keeps(self.numa):
            return f"its NUMA policy is {node.zones.policy}, and the job asks for {self.numa}"
        return None

    def count_fitting(self, free: Resources) -> int:
        """Return how many of these members fit into the free amounts ``free`` of one node, whatever its zones have free."""
        most = self.count if self.max_per_node is None else min(self.count, self.max_per_node)
        return min([most, *(free.get(name, 0) // amount for name, amount in self.resources.items() if amount)])

    def count_fitting_on(self, node: Node, free: Resources, in_zones: Mapping[tuple[int, ...], int]) -> int:
        """Return how many of these members fit into the free amounts of a node and its zones, beside members planned ``in_zones``."""
        most = self.count_fitting(free)
        if self.exclusive:
            most = 0 if node.has_members else min(most, 1)
        if node.zones is None or most <= 0:
            return most
        return node.zones.count(in_zones, self.resources, self.numa, most)


@dataclass(frozen=True, slots=True)
class PackingShortfall:
    """Reason why a gang does not fit, as a sentence for people."""

    sentence: str


def place(
    nodes: Sequence[Node], free: Mapping[str, Resources], needs: Sequence[Need], level: str | None = None
) -> Assignment | PackingShortfall:
    """Place all members of all roles, within one domain of topology ``level`` if given, or none at all.

    ``free``: the unused amounts by node name; it is not changed.
    """
    wanted = _Gang([need for need in needs if need.count], nodes, free)
    if level is None:
        return wanted.place_within(nodes)
    domains: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        domain = node.domain(level)
        if domain is not None:
            domains.setdefault(domain, []).append(node)
    if not domains:
        return PackingShortfall(f"all members must share one {level}, and no node has a label for its {level}")
    shortfalls: list[tuple[int, tuple[str, ...], PackingShortfall]] = []
    for domain, members in sorted(domains.items(), key=lambda item: (_total_free(item[1], free), item[0])):
        found = wanted.place_within(members)
        if not isinstance(found, PackingShortfall):
            return found
        shortfalls.append((_total_free(members, free), domain, found))
    _, domain, shortfall = max(shortfalls, key=lambda entry: entry[:2])
    return PackingShortfall(
        f"no {level} has room for all members; in {'/'.join(domain)}, which is the emptiest, {shortfall.sentence}"
    )


def in_members(places: Assignment, needs: Iterable[Need]) -> Assignment:
    """Return places of units as numbers of members."""
    each = {need.role: need.members_per_unit for need in needs if need.members_per_unit > 1}
    if not each:
        return places
    return {node: {role: count * each.get(role, 1) for role, count in roles.items()} for node, roles in places.items()}


class _Gang:
    """The members to be placed, and the orders of roles in which that is tried."""

    def __init__(self, needs: Sequence[Need], nodes: Sequence[Node], free: Mapping[str, Resources]) -> None:
        self._free = free
        self._largest = _largest(nodes)
        self._needs = sorted(needs, key=lambda need: (-_weight(need, self._largest), need.role))
        self._by_share: list[Need] = []
        """As the dispatcher sorts them, by their part of what is free on all nodes."""
        if len(needs) > 1:
            total = _total(free[node.name] for node in nodes if node.name in free)
            self._by_share = sorted(needs, key=lambda need: (-dominant(need.resources, total), need.role))

    def place_within(self, nodes: Sequence[Node]) -> Assignment | PackingShortfall:
        """Place all members on these nodes. Where that fails in the first order of roles, it is tried as the dispatcher does."""
        eligible = {need.role: [node for node in nodes if need.suits(node)] for need in self._needs}
        found = self._in_order(nodes, eligible, self._needs, self._looseness)
        if isinstance(found, PackingShortfall) and self._by_share and self._has_enough(nodes):
            for order in islice(permutations(self._by_share), MOST_ORDERS):
                other = self._in_order(nodes, eligible, order, self._tightness)
                if not isinstance(other, PackingShortfall):
                    return other
        return found

    def _in_order(
        self, nodes: Sequence[Node], eligible: Mapping[str, Sequence[Node]], needs: Iterable[Need], key: _Key
    ) -> Assignment | PackingShortfall:
        left = {node.name: dict(self._free.get(node.name, {})) for node in nodes}
        in_zones: dict[str, Counter[tuple[int, ...]]] = {node.name: Counter() for node in nodes if node.zones}
        assignment: Assignment = {}
        for need in needs:
            missing = need.count
            fitting = [
                (node, most)
                for node in eligible[need.role]
                if not (need.exclusive and node.name in assignment)
                and (most := need.count_fitting_on(node, left[node.name], in_zones.get(node.name, {}))) > 0
            ]
            # Filling a node makes it a still better fit than the others, so one order serves all members of a role.
            for node, most in sorted(fitting, key=lambda one: key(need, one[0], left[one[0].name])):
                taken = min(missing, most)
                for name, amount in need.resources.items():
                    left[node.name][name] = left[node.name].get(name, 0) - amount * taken
                if node.zones is not None:
                    in_zones[node.name][node.zones.need(need.resources)] += taken
                assignment.setdefault(node.name, {})[need.role] = taken
                missing -= taken
                if missing == 0:
                    break
            if missing:
                return PackingShortfall(_explain(need, nodes, eligible[need.role], self._free, need.count - missing))
        return assignment

    def _has_enough(self, nodes: Sequence[Node]) -> bool:
        """Return whether there is enough of everything on all of these nodes together."""
        total = _total(self._free.get(node.name, {}) for node in nodes)
        wanted: Resources = {}
        for need in self._needs:
            for name, amount in need.resources.items():
                wanted[name] = wanted.get(name, 0) + amount * need.count
        return all(total.get(name, 0) >= amount for name, amount in wanted.items())

    def _looseness(self, need: Need, node: Node, left: Resources) -> tuple[float | str, ...]:
        """Return a sort key: unwanted taints last, then nodes whose devices would lie idle, then by how much would stay free."""
        disliked = sum(1 for taint in node.taints if not is_tolerated(taint, need.tolerations))
        idle_devices = sum(1 for name in left if name not in _COMMON and left[name] and name not in need.resources)
        rest = sum(left.get(name, 0) / max(1, self._largest.get(name, 0)) for name in need.resources or self._largest)
        return disliked, idle_devices, rest, node.name

    @staticmethod
    def _tightness(need: Need, _node: Node, left: Resources) -> tuple[float | str, ...]:
        """Return the sort key of the dispatcher's fit for node groups; equals stay in the order in which they were
        given, as they do there."""
        return leftover(left, need.resources)


def _largest(nodes: Iterable[Node]) -> Resources:
    """Return the most that any node has of each resource, as the common measure for amounts of different kinds."""
    largest: Resources = {}
    for node in nodes:
        for name, amount in node.allocatable.items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest


def _weight(need: Need, largest: Resources) -> float:
    """Return a member's dominant share of the largest node."""
    return max((amount / max(1, largest.get(name, 0)) for name, amount in need.resources.items()), default=0.0)


def _total(parts: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for amounts in parts:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def _total_free(nodes: Iterable[Node], free: Mapping[str, Resources]) -> int:
    """Return the free CPU of nodes, which decides the emptiest domain, because every node has CPU."""
    return sum(free.get(node.name, {}).get("cpu", 0) for node in nodes)


def _explain(
    need: Need, nodes: Sequence[Node], eligible: Sequence[Node], free: Mapping[str, Resources], placed: int
) -> str:
    if not eligible:
        obstacles = sorted({text for node in nodes if (text := need.obstacle(node)) is not None})
        return f"no node may take role {need.role}: {'; '.join(obstacles) or 'there is no node'}"
    for name, amount in sorted(need.resources.items()):
        largest = max(node.allocatable.get(name, 0) for node in eligible)
        if amount > largest:
            return (
                f"role {need.role} needs {_say(name, amount)} on one node, the largest node has {_bare(name, largest)}"
            )
        freest = max(free.get(node.name, {}).get(name, 0) for node in eligible)
        if amount > freest:
            return f"role {need.role} needs {_say(name, amount)} on one node, the freest node has {_bare(name, freest)}"
    each = format_resources(need.resources)
    if need.numa in STRICT_NUMA:
        each = f"{each} within the NUMA zones of a node ({need.numa})"
    apart = "" if need.max_per_node is None else f", at most {need.max_per_node} on a node"
    if need.exclusive:
        apart = ", each on a node without other members"
    if (many := need.members_per_unit) > 1:
        sharing = f"needs room for {need.count} times {many} members that share devices, {each} together{apart}"
        return f"role {need.role} {sharing}, there is room for {placed} times {many}"
    return f"role {need.role} needs room for {need.count} members of {each} each{apart}, there is room for {placed}"


def _say(name: str, amount: int) -> str:
    return f"{_bare(name, amount)} {'CPU' if name == 'cpu' else name}"


def _bare(name: str, amount: int) -> str:
    return format_quantity(name, amount)
