"""Whole-gang fit: do all members of all roles find nodes at once, and if not, what is missing.

Best-fit decreasing: roles by their largest share of the cluster, each member on the feasible node that it leaves fullest. With
a required topology level the whole gang is tried inside one domain of that level after another. It never says that a gang
fits when no packing exists, for it builds the packing; it may miss one that exists.
"""

from dataclasses import dataclass

from trainmaster.dispatcher.domain.shapes import RoleShape, Shape
from trainmaster.dispatcher.scheduling.room import Node, Room, by_size
from trainmaster.protocol.agent import NodeGroup, Taint
from trainmaster.protocol.jobs import AffinityTerm, Toleration
from trainmaster.protocol.quantities import Resources, format_quantity


@dataclass(frozen=True, slots=True)
class Fitted:
    """A packing: the nodes taken for each role, and its summary by group."""

    nodes: tuple[tuple[Node, RoleShape], ...]

    @property
    def placement(self) -> dict[str, dict[str, int]]:
        out: dict[str, dict[str, int]] = {}
        for node, role in self.nodes:
            group = out.setdefault(node.group.name, {})
            group[role.name] = group.get(role.name, 0) + 1
        return out


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why there is no room, in words."""

    sentence: str


def fit(shape: Shape, sizes: dict[str, int], room: Room) -> Fitted | Shortfall:
    """Try to place the gang on a copy of the room's nodes; the room itself is not changed."""
    roles = by_size(shape.roles, room.total())
    if shape.required_level is None:
        return _pack(roles, sizes, room.nodes)
    domains: dict[str, list[Node]] = {}
    for node in room.nodes:
        value = dict(node.group.topology).get(shape.required_level)
        if value is not None:
            domains.setdefault(value, []).append(node)
    if not domains:
        return Shortfall(f"no node has the topology level {shape.required_level!r}")
    shortfall = Shortfall("")
    for _, nodes in sorted(domains.items(), key=lambda item: (len(item[1]), item[0])):
        outcome = _pack(roles, sizes, nodes)
        if isinstance(outcome, Fitted):
            return outcome
        shortfall = outcome
    where = f"in one {shape.required_level}"
    return Shortfall(
        f"{shortfall.sentence} {where}"
        if len(domains) == 1
        else f"no {shape.required_level} has room for all members; {shortfall.sentence}"
    )


def take(room: Room, fitted: Fitted) -> None:
    """Take a packing from the room it was found in."""
    for node, role in fitted.nodes:
        node.take(role.needs)


def _pack(roles: list[RoleShape], sizes: dict[str, int], nodes: list[Node]) -> Fitted | Shortfall:
    taken: list[tuple[Node, RoleShape]] = []
    try:
        for role in roles:
            feasible = [node for node in nodes if _allows(role, node.group)]
            if not feasible and sizes.get(role.name, 0):
                return Shortfall(f"no node matches what role {role.name!r} selects or tolerates")
            for placed in range(sizes.get(role.name, 0)):
                fitting = [node for node in feasible if node.takes(role.needs)]
                if not fitting:
                    return _shortfall(role, sizes[role.name], placed, feasible)
                node = min(fitting, key=lambda node: node.leftover(role.needs))
                node.take(role.needs)
                taken.append((node, role))
        return Fitted(tuple(taken))
    finally:
        for node, role in taken:
            node.take({name: -amount for name, amount in role.needs.items()})


def _shortfall(role: RoleShape, size: int, placed: int, nodes: list[Node]) -> Shortfall:
    if placed == 0:
        for name, amount in sorted(role.needs.items()):
            best = max((node.free.get(name, 0) for node in nodes), default=0)
            if best < amount:
                need, has = format_quantity(name, amount), format_quantity(name, max(best, 0))
                return Shortfall(f"needs {need} {name} on one node, the best node has {has}")
        return Shortfall(f"no single node has all that a member of role {role.name!r} needs")
    return Shortfall(f"room for {placed} of the {size} members of role {role.name!r}")


def _allows(role: RoleShape, group: NodeGroup) -> bool:
    if any(group.labels.get(key) != value for key, value in role.node_selector):
        return False
    if not all(_matches(term, group.labels) for term in role.affinity):
        return False
    return all(_tolerated(taint, role.tolerations) for taint in group.taints if taint.effect != "PreferNoSchedule")


def _matches(term: AffinityTerm, labels: dict[str, str]) -> bool:
    value = labels.get(term.key)
    match term.operator:
        case "In":
            return value in term.values
        case "NotIn":
            return value not in term.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            if value is None or not value.lstrip("-").isdecimal():
                return False
            return int(value) > int(term.values[0]) if term.operator == "Gt" else int(value) < int(term.values[0])


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    for toleration in tolerations:
        if toleration.effect not in ("", taint.effect):
            continue
        if toleration.operator == "Exists" and toleration.key in ("", taint.key):
            return True
        if toleration.operator == "Equal" and (toleration.key, toleration.value) == (taint.key, taint.value):
            return True
    return False


def size_choices(shape: Shape) -> list[dict[str, int]]:
    """The sizes to try, the full one first; the least one where the job allows fewer members."""
    full = {role.name: role.replicas for role in shape.roles}
    least = {role.name: role.least for role in shape.roles}
    if least == full or sum(least.values()) < shape.least_members:
        return [full]
    return [full, least]


def needs_of(shape: Shape, sizes: dict[str, int]) -> Resources:
    """What a gang of these sizes needs in all."""
    out: Resources = {}
    for role in shape.roles:
        for name, amount in role.needs.items():
            out[name] = out.get(name, 0) + amount * sizes.get(role.name, 0)
    return out
