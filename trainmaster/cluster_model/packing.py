"""Whole gangs on pretend nodes: which node takes how many members of which role, or what is missing, as a sentence.

Pure. Best fit, largest member first (D. S. Johnson, *Near-optimal bin packing algorithms*, 1973): quick and never
wrong when it says that a gang fits; like every such heuristic it may overlook a packing that exists. What a node must
have follows Kubernetes: node selectors, required node affinity, taints and tolerations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.protocol.agent import HOST_LEVEL, Taint
from trainmaster.protocol.jobs import AffinityTerm, Toleration
from trainmaster.protocol.quantities import Resources, format_quantity, format_resources

Assignment = dict[str, dict[str, int]]
"""Members by node and role."""

_COMMON = ("cpu", "memory", "ephemeral-storage", "pods")


@dataclass(frozen=True, slots=True)
class Node:
    """A pretend node. ``topology`` goes from wide to narrow and leaves out the host itself."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    topology: tuple[tuple[str, str], ...] = ()

    def domain(self, level: str) -> tuple[str, ...] | None:
        """The node's place at ``level`` with all wider ones, as two zones may have a rack ``r1``; None without one."""
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
    """``count`` identical members of a role, and what each of them needs of its node."""

    role: str
    count: int
    resources: Resources
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: tuple[AffinityTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    max_per_node: int | None = None

    def obstacle(self, node: Node) -> str | None:
        """Why this node may not take such a member however empty it is; None when it may."""
        for key, value in self.node_selector.items():
            if node.labels.get(key) != value:
                return f"a label {key}={value} is needed"
        for term in self.node_affinity:
            if not term.holds(node.labels):
                return f"node affinity {term.key} {term.operator} {', '.join(term.values)}".rstrip() + " is needed"
        for taint in node.taints:
            if taint.effect != "PreferNoSchedule" and not _tolerated(taint, self.tolerations):
                return f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
        return None

    def room(self, free: Resources) -> int:
        """How many of these members one node takes that has so much free."""
        most = self.count if self.max_per_node is None else min(self.count, self.max_per_node)
        return min([most, *(free.get(name, 0) // amount for name, amount in self.resources.items() if amount)])


@dataclass(frozen=True, slots=True)
class PackingShortfall:
    """Why a gang finds no place, as a sentence for people."""

    sentence: str


def place(
    nodes: Sequence[Node], free: Mapping[str, Resources], needs: Sequence[Need], level: str | None = None
) -> Assignment | PackingShortfall:
    """Places all members of all roles, within one domain of topology ``level`` if one is named, or none at all.

    ``free`` are the amounts by node name that nobody uses now; neither it nor anything else is changed.
    """
    largest = _largest(nodes)
    needs = sorted((need for need in needs if need.count), key=lambda need: (-_weight(need, largest), need.role))
    if level is None:
        return _place_within(nodes, free, needs, largest)
    domains: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        domain = node.domain(level)
        if domain is not None:
            domains.setdefault(domain, []).append(node)
    if not domains:
        return PackingShortfall(f"all members must share one {level}, and no node says which {level} it is in")
    shortfalls: list[tuple[int, tuple[str, ...], PackingShortfall]] = []
    for domain, members in sorted(domains.items(), key=lambda item: (_total_free(item[1], free), item[0])):
        found = _place_within(members, free, needs, largest)
        if not isinstance(found, PackingShortfall):
            return found
        shortfalls.append((_total_free(members, free), domain, found))
    _, domain, shortfall = max(shortfalls, key=lambda entry: entry[:2])
    return PackingShortfall(
        f"no {level} has room for all members; in {'/'.join(domain)}, which is the emptiest, {shortfall.sentence}"
    )


def _place_within(
    nodes: Sequence[Node], free: Mapping[str, Resources], needs: Iterable[Need], largest: Resources
) -> Assignment | PackingShortfall:
    left = {node.name: dict(free.get(node.name, {})) for node in nodes}
    assignment: Assignment = {}
    for need in needs:
        eligible = [node for node in nodes if need.obstacle(node) is None]
        missing = need.count
        # Filling a node makes it a still better fit than the others, so one order serves all members of a role.
        for node in sorted(eligible, key=lambda node: _looseness(need, node, left[node.name], largest)):
            taken = min(missing, need.room(left[node.name]))
            if taken == 0:
                continue
            for name, amount in need.resources.items():
                left[node.name][name] = left[node.name].get(name, 0) - amount * taken
            assignment.setdefault(node.name, {})[need.role] = taken
            missing -= taken
            if missing == 0:
                break
        if missing:
            return PackingShortfall(_explain(need, nodes, eligible, free, need.count - missing))
    return assignment


def _looseness(need: Need, node: Node, left: Resources, largest: Resources) -> tuple[int, int, float, str]:
    """Sorts nodes: unwanted taints last, then those whose devices would lie idle, then by how much would stay free."""
    disliked = sum(1 for taint in node.taints if not _tolerated(taint, need.tolerations))
    idle_devices = sum(1 for name in left if name not in _COMMON and left[name] and name not in need.resources)
    rest = sum(left.get(name, 0) / max(1, largest.get(name, 0)) for name in need.resources or largest)
    return disliked, idle_devices, rest, node.name


def _largest(nodes: Iterable[Node]) -> Resources:
    """The most that any node has of each resource, as the common measure for amounts of different kinds."""
    largest: Resources = {}
    for node in nodes:
        for name, amount in node.allocatable.items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest


def _weight(need: Need, largest: Resources) -> float:
    """A member's largest part of the largest node (its dominant share)."""
    return max((amount / max(1, largest.get(name, 0)) for name, amount in need.resources.items()), default=0.0)


def _total_free(nodes: Iterable[Node], free: Mapping[str, Resources]) -> int:
    """Free CPU decides which domain is the emptiest; it is the one amount that every node has."""
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
    apart = "" if need.max_per_node is None else f", at most {need.max_per_node} on a node"
    return f"role {need.role} needs room for {need.count} members of {each} each{apart}, there is room for {placed}"


def _say(name: str, amount: int) -> str:
    return f"{_bare(name, amount)} {'CPU' if name == 'cpu' else name}"


def _bare(name: str, amount: int) -> str:
    return format_quantity(name, amount)


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(one.tolerates(taint.key, taint.value, taint.effect) for one in tolerations)
