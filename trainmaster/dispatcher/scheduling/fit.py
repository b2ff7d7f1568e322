"""Whole-gang fit: do all members of all roles find nodes at once, and if not, what is missing.

Best-fit decreasing: roles by their largest share of the cluster, each member on the feasible node that it leaves fullest. With
a required topology level the whole gang is tried inside one domain of that level after another. It never says that a gang
fits when no packing exists, for it builds the packing; it may miss one that exists.
"""

from dataclasses import dataclass

from trainmaster.dispatcher.domain.shapes import RoleShape, Shape
from trainmaster.dispatcher.scheduling.room import Node, Room, by_size
from trainmaster.protocol.agent import HOST_LEVEL, NodeGroup
from trainmaster.protocol.quantities import Resources, format_apart


@dataclass(frozen=True, slots=True)
class Fitted:
    """A packing: how many members of each role the nodes take, and its summary by group."""

    nodes: tuple[tuple[Node, RoleShape, int], ...]

    @property
    def placement(self) -> dict[str, dict[str, int]]:
        out: dict[str, dict[str, int]] = {}
        for node, role, count in self.nodes:
            group = out.setdefault(node.group.name, {})
            group[role.name] = group.get(role.name, 0) + count
        return out


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why there is no room, in words."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Size:
    """A size in which a gang may start: members by role, and what they need in all."""

    members: dict[str, int]
    needs: Resources

    @property
    def total(self) -> int:
        return sum(self.members.values())


def fit(shape: Shape, members: dict[str, int], room: Room) -> Fitted | Shortfall:
    """Try to place so many members of each role; the room is the same afterwards."""
    roles = by_size(shape.roles, room.total()) if len(shape.roles) > 1 else list(shape.roles)
    if shape.required_level is None:
        return _pack(roles, members, room.nodes)
    domains = _domains(room, shape.required_level)
    if not domains:
        return Shortfall(f"no node has the topology level {shape.required_level!r}")
    shortfall = Shortfall("")
    for _, nodes in sorted(domains.items(), key=lambda item: (len(item[1]), item[0])):
        outcome = _pack(roles, members, nodes)
        if isinstance(outcome, Fitted):
            return outcome
        shortfall = outcome
    where = f"in one {shape.required_level}"
    return Shortfall(
        f"{shortfall.sentence} {where}"
        if len(domains) == 1
        else f"no {shape.required_level} has room for all members; in the last one looked at, {shortfall.sentence}"
    )


def _domains(room: Room, level: str) -> dict[tuple[str, ...], list[Node]]:
    """Nodes by where they are at ``level``, with all wider levels, as two zones may each have a rack ``r1``."""
    if level == HOST_LEVEL:
        return {(f"{number:09}",): [node] for number, node in enumerate(room.nodes)}
    domains: dict[tuple[str, ...], list[Node]] = {}
    for node in room.nodes:
        keys = [key for key, _ in node.group.topology]
        if level in keys:
            path = tuple(value for _, value in node.group.topology[: keys.index(level) + 1])
            domains.setdefault(path, []).append(node)
    return domains


def take(room: Room, fitted: Fitted) -> None:
    """Take a packing from the room it was found in."""
    for node, role, count in fitted.nodes:
        room.take(node, role.needs, count)


def _pack(roles: list[RoleShape], members: dict[str, int], nodes: list[Node]) -> Fitted | Shortfall:
    groups = {id(node.group): node.group for node in nodes}.values()
    taken: list[tuple[Node, RoleShape, int]] = []
    try:
        for role in roles:
            wanted = missing = members.get(role.name, 0)
            suiting = {id(group) for group in groups if _allows(role, group)} if missing else set()
            feasible = [node for node in nodes if id(node.group) in suiting]
            if missing and not feasible:
                return Shortfall(f"no node matches what role {role.name!r} selects or tolerates")
            fitting = [node for node in feasible if node.takes(role.needs)]
            # A node that takes a member becomes a still better fit than the others, so one order serves all members.
            for node in sorted(fitting, key=lambda node, role=role: node.leftover(role.needs)):  # type: ignore[misc]
                count = min(missing, node.holds(role.needs))
                node.take(role.needs, count)
                taken.append((node, role, count))
                missing -= count
                if not missing:
                    break
            if missing:
                return _shortfall(role, wanted, wanted - missing, feasible, beside_others=taken != [])
        return Fitted(tuple(taken))
    finally:
        for node, role, count in taken:
            node.take(role.needs, -count)


def _shortfall(role: RoleShape, size: int, placed: int, nodes: list[Node], *, beside_others: bool) -> Shortfall:
    if placed:
        return Shortfall(f"room for {placed} of the {size} members of role {role.name!r}")
    beside = " beside the other roles" if beside_others else ""
    for name, amount in sorted(role.needs.items()):
        best = max((node.free.get(name, 0) for node in nodes), default=0)
        if best < amount:
            need, has = format_apart(name, amount, max(best, 0))
            return Shortfall(f"needs {need} {name} on one node, the best node has {has}{beside}")
    return Shortfall(f"no single node has all that a member of role {role.name!r} needs{beside}")


def _allows(role: RoleShape, group: NodeGroup) -> bool:
    if any(group.labels.get(key) != value for key, value in role.node_selector):
        return False
    if not all(term.holds(group.labels) for term in role.affinity):
        return False
    return all(
        any(toleration.tolerates(taint.key, taint.value, taint.effect) for toleration in role.tolerations)
        for taint in group.taints
        if taint.effect != "PreferNoSchedule"
    )


def size_choices(shape: Shape) -> list[Size]:
    """The sizes to try: the full one, then the least one that the job allows where that is smaller.

    The least one is what each role needs at least, filled up to ``least_members`` in proportion to what each role can take
    beyond that (largest remainder), so that a gang of 2 and 8 that may start with 5 starts with 1 and 4.
    """
    full = {role.name: role.replicas for role in shape.roles}
    least = {role.name: role.least for role in shape.roles}
    elastic = sum(full.values()) - sum(least.values())
    missing = max(0, shape.least_members - sum(least.values()))
    if missing and elastic:
        shares = {role.name: divmod(missing * (role.replicas - role.least), elastic) for role in shape.roles}
        over = missing - sum(whole for whole, _ in shares.values())
        for rank, (name, (whole, _)) in enumerate(sorted(shares.items(), key=lambda item: -item[1][1])):
            least[name] += whole + (rank < over)
    return [Size(members, needs_of(shape, members)) for members in ([full] if least == full else [full, least])]


def needs_of(shape: Shape, members: dict[str, int]) -> Resources:
    """What so many members of each role need in all."""
    out: Resources = {}
    for role in shape.roles:
        for name, amount in role.needs.items():
            out[name] = out.get(name, 0) + amount * members.get(role.name, 0)
    return out
