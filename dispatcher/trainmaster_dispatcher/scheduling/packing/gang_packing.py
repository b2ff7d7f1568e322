"""Whole-gang fit: do all members of all roles find nodes at once, and if not, what is missing.

Best-fit decreasing: roles by their largest share of the cluster, each member on the feasible node that it leaves fullest; where that
finds no place though there is enough of everything, a few other orders of roles. With a required topology level the whole gang is
tried inside one domain of that level after another; with a preferred one, first there and then anywhere. It never says that a gang
fits when no packing exists, for it builds the packing; it may miss one that exists (``bench.packing`` measures how often).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, permutations

from trainmaster.protocol.agent import HOST_LEVEL, CapacityReport
from trainmaster.protocol.quantities import Resources, format_apart
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.best_fit import Ranking, fill, tightest
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity, by_size
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket
from trainmaster_dispatcher.scheduling.packing.numa import names_of
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Product, plain, product_label, product_of

_MOST_ORDERS = 24
"""Orders of roles in which a packing is tried: all there are of four."""


def products_on(report: CapacityReport | None, device: str, *, grown: bool = False) -> list[Product | None]:
    """The products of a device that a gang may be given on a cluster, one at a time; one None where it does not matter.

    ``grown``: also those that its pools bring.
    """
    if not device or report is None:
        return [None]
    groups = (*report.groups, *report.pools) if grown else report.groups
    labels = {product_of(group): product_label(group) for group in groups if group.free.get(device)}
    return [Product(device, name, labels[name]) for name in sorted(labels)] or [None]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A packing: how many members of each role each group takes, what these groups are left with, and what it takes in all."""

    placement: dict[str, dict[str, int]]
    after: Groups
    needs: Resources


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why there is no room, in words."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Size:
    """A size in which a gang may start: members by role, and what they need in all."""

    members: dict[str, int]
    needs: Resources
    charge: Amounts = field(init=False, compare=False)
    """What it needs of each plain line."""
    total: int = field(init=False, compare=False)
    """Members in all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "charge", {plain(name): amount for name, amount in self.needs.items() if amount})
        object.__setattr__(self, "total", sum(self.members.values()))


def fit(
    shape: Shape, members: dict[str, int], room: FreeCapacity, product: Product | None = None
) -> Fitted | Shortfall:
    """Try to place so many members of each role; the room is the same afterwards. ``product``: the only one to be given."""
    roles = by_size(shape.roles, room.total()) if len(shape.roles) > 1 else list(shape.roles)
    if shape.required_level is not None:
        return _inside(shape.required_level, roles, members, room, product)
    if shape.preferred_level is not None:
        close = _inside(shape.preferred_level, roles, members, room, product)
        if isinstance(close, Fitted):
            return close
    return _pack_in_any_order(roles, members, room, room.groups, product)


def may_repeat(shape: Shape, size: Size) -> RoleShape | None:
    """The only role of a gang of which many are placed like one after the other by placing all their members together."""
    if shape.preferred_level is not None or shape.required_level is not None:
        return None
    roles = [role for role in shape.roles if size.members.get(role.name)]
    if len(roles) > 1 or (size.total > 1 and (roles[0].max_per_node is not None or roles[0].numa)):
        return None
    return roles[0]


def fit_many(role: RoleShape, members: int, count: int, room: FreeCapacity) -> tuple[list[dict[str, int]], Fitted]:
    """Place so many gangs of so many members, as one after the other would be, or as many of them as fit.

    By gang its members by group, and all of them together.
    """
    suiting = _suiting(role, room, None)
    while count:
        work, order = dict(room.groups), list[tuple[str, int]]()
        ranking = room.ranking(suiting, role.needs)
        missing, placed = fill(work, role.needs, count * members, suiting, ranking, numa=role.numa, order=order)
        count, rest = divmod(count * members - missing, members)
        if not rest:
            placement = {group: {role.name: many} for group, many in placed.items()}
            needs = {name: amount * count * members for name, amount in role.needs.items()}
            return list(_dealt(order, members)), Fitted(placement, {name: work[name] for name in placed}, needs)
        # The last one does not fit as a whole: once more without it.
    return [], Fitted({}, {}, {})


def _dealt(order: list[tuple[str, int]], members: int) -> Iterator[dict[str, int]]:
    """Members in the order in which groups took them, by gang."""
    gang: dict[str, int] = {}
    missing = members
    for group, many in order:
        left = many
        while left:
            taken = min(left, missing)
            gang[group] = gang.get(group, 0) + taken
            left -= taken
            missing -= taken
            if not missing:
                yield gang
                gang, missing = {}, members


def suits(role: RoleShape, room: FreeCapacity) -> tuple[str, ...]:
    """The groups whose nodes a role's members may be on."""
    return _suiting(role, room, None)


def has_node(role: RoleShape, room: FreeCapacity) -> bool:
    """Whether any node has room for one member."""
    ranking = _ranking(role, room)
    if ranking is None:
        return True
    if role.numa:
        return any(one.holds_in_zones(role.needs, 1, role.numa) for one in ranking.best(role.needs))
    return ranking.has(role.needs)


def first_node(role: RoleShape, room: FreeCapacity) -> NodeBucket | None:
    """The node that the first member of a role would take."""
    ranking = _ranking(role, room)
    if ranking is None:
        return tightest(room.groups, role.needs, _suiting(role, room, None))
    return ranking.tightest(role.needs)


def _ranking(role: RoleShape, room: FreeCapacity) -> Ranking | None:
    """The nodes that a role's members may be on, in order; None for a room whose nodes are not kept in order."""
    known = room.by_role
    if known is None:
        return None
    found = known.get(role.key)
    if found is None:
        found = room.ranking(_suiting(role, room, None), role.needs)
        if found is not None:
            known[role.key] = found
    return found


def only_role(shape: Shape, size: Size) -> RoleShape | None:
    """The role of a gang of one that may be on any node; then it fits if any node has room. None for others."""
    return spread_role(shape, size) if size.total == 1 else None


def spread_role(shape: Shape, size: Size) -> RoleShape | None:
    """The role of a gang of one role that may be on all nodes; None for others."""
    if shape.required_level is not None:
        return None
    roles = [role for role in shape.roles if size.members.get(role.name)]
    return roles[0] if len(roles) == 1 else None


def _in(names: Iterable[str], groups: Groups) -> Iterator[NodeBucket]:
    return (one for name in names for one in groups[name])


def _no_node(role: RoleShape) -> Shortfall:
    numa = f" with NUMA policy {role.numa}" if role.numa else ""
    return Shortfall(f"no node{numa} matches what role {role.name!r} selects or tolerates")


def _inside(
    level: str, roles: list[RoleShape], members: dict[str, int], room: FreeCapacity, product: Product | None
) -> Fitted | Shortfall:
    """All members in one domain of a topology level."""
    if level == HOST_LEVEL:
        return _on_one_node(roles, members, room, product)
    tried, shortfall = 0, Shortfall("")
    for domain in _domains(room, level):
        outcome = _pack_in_any_order(roles, members, room, domain, product)
        if isinstance(outcome, Fitted):
            return outcome
        tried, shortfall = tried + 1, outcome
    return _in_no_domain(level, tried, tried, shortfall)


def _in_no_domain(level: str, tried: int, places: int, last: Shortfall) -> Shortfall:
    if not tried:
        return Shortfall(f"no node has the topology level {level!r}")
    if places == 1:
        return Shortfall(f"{last.sentence} in one {level}")
    return Shortfall(f"no {level} has room for all members; in the last one looked at, {last.sentence}")


def _on_one_node(
    roles: list[RoleShape], members: dict[str, int], room: FreeCapacity, product: Product | None
) -> Fitted | Shortfall:
    """Each node is a domain; of equivalent nodes, one stands for all."""
    tried, shortfall = 0, Shortfall("")
    for name, entries in room.groups.items():
        for one in entries:
            outcome = _pack_in_any_order(roles, members, room, {name: (one.some(1),)}, product)
            if isinstance(outcome, Fitted):
                rest = [o.some(o.count - (o is one)) for o in entries if o.count > (o is one)]
                after: Groups = {name: [*outcome.after.get(name, (one.some(1),)), *rest]}
                return Fitted(outcome.placement, after, outcome.needs)
            tried, shortfall = tried + 1, outcome
    return _in_no_domain(HOST_LEVEL, tried, sum(one.count for one in room.nodes), shortfall)


def _domains(room: FreeCapacity, level: str) -> Iterator[Groups]:
    """The domains of ``level``, small ones first. A place is named with all wider levels, as two zones may have a rack ``r1``."""
    places: dict[tuple[str, ...], Groups] = {}
    for name, entries in room.groups.items():
        topology = entries[0].group.topology
        keys = [key for key, _ in topology]
        if level in keys:
            path = tuple(value for _, value in topology[: keys.index(level) + 1])
            places.setdefault(path, {})[name] = entries
    sizes = {path: sum(one.count for entries in inside.values() for one in entries) for path, inside in places.items()}
    yield from (places[path] for path in sorted(places, key=lambda path: (sizes[path], path)))


def take(room: FreeCapacity, fitted: Fitted) -> None:
    """Take a packing from the room it was found in, whose groups must be as they were then."""
    room.put(fitted.after, fitted.needs)


def _pack_in_any_order(
    roles: list[RoleShape], members: dict[str, int], room: FreeCapacity, groups: Groups, product: Product | None
) -> Fitted | Shortfall:
    """The packing in the first order of roles that has one, of a few; if none has, what the first order lacks."""
    outcome = _pack(roles, members, room, groups, product)
    if isinstance(outcome, Shortfall) and len(roles) > 1 and _has_enough(roles, members, room, groups):
        for order in islice(permutations(roles), 1, _MOST_ORDERS):
            other = _pack(list(order), members, room, groups, product)
            if isinstance(other, Fitted):
                return other
    return outcome


def _has_enough(roles: list[RoleShape], members: dict[str, int], room: FreeCapacity, groups: Groups) -> bool:
    """Whether there is enough of everything on all nodes together."""
    total = room.total() if groups is room.groups else FreeCapacity(groups).total()
    needs: Resources = {}
    for role in roles:
        for name, amount in role.needs.items():
            needs[name] = needs.get(name, 0) + amount * members.get(role.name, 0)
    return all(total.get(name, 0) >= amount for name, amount in needs.items())


def _pack(
    roles: list[RoleShape], members: dict[str, int], room: FreeCapacity, groups: Groups, product: Product | None
) -> Fitted | Shortfall:
    work = dict(groups)
    placement: dict[str, dict[str, int]] = {}
    needs: Resources = {}
    for role in roles:
        wanted = members.get(role.name, 0)
        if not wanted:
            continue
        suiting = _suiting(role, room, product)
        ranking = None
        if groups is not room.groups:
            suiting = tuple(name for name in suiting if name in groups)
        elif not placement:
            # The order is that of the room as it is: it serves the first role.
            ranking = room.ranking(suiting, role.needs)
        if not suiting:
            return _no_node(role)
        missing, placed = fill(work, role.needs, wanted, suiting, ranking, role.max_per_node, role.numa)
        if missing:
            if wanted == missing and groups is room.groups and not placement:
                return _too_small(role, room.most(suiting), _in(suiting, work), beside_others=False)
            feasible = list(_in(suiting, work))
            return _shortfall(role, wanted, wanted - missing, feasible, beside_others=placement != {})
        for group, count in placed.items():
            placement.setdefault(group, {})[role.name] = count
        for name, amount in role.needs.items():
            needs[name] = needs.get(name, 0) + amount * wanted
    return Fitted(placement, {name: work[name] for name in placement}, needs)


def _suiting(role: RoleShape, room: FreeCapacity, product: Product | None) -> tuple[str, ...]:
    """The groups whose nodes a role's members may be on, worked out once for all rooms of a cluster."""
    narrowed = product if product is not None and product.resource in role.needs else None
    key = (role.terms, narrowed)
    found = room.suiting.get(key)
    if found is None:
        names = tuple(
            name
            for name, entries in room.groups.items()
            if allows(role, entries[0].group) and (narrowed is None or product_of(entries[0].group) == narrowed.name)
        )
        # One object for the same groups, by which what is known of them is found.
        found = room.suiting[key] = next((known for known in room.suiting.values() if known == names), names)
    return found


def _shortfall(role: RoleShape, size: int, placed: int, nodes: list[NodeBucket], *, beside_others: bool) -> Shortfall:
    if placed:
        apart = "" if role.max_per_node is None else f", with at most {role.max_per_node} on a node"
        return Shortfall(f"room for {placed} of the {size} members of role {role.name!r}{apart}")
    most = {name: max((node.free.get(name, 0) for node in nodes), default=0) for name in role.needs}
    return _too_small(role, most, nodes, beside_others=beside_others)


def _too_small(role: RoleShape, most: Resources, nodes: Iterable[NodeBucket], *, beside_others: bool) -> Shortfall:
    """No node has room for a single member; ``most`` is what is free on one node at most, of each resource."""
    beside = " beside the other roles" if beside_others else ""
    short = short_of(role, most)
    if short is not None:
        return Shortfall(short + beside)
    zoned = [one for one in nodes if one.zones and one.takes(role.needs)] if role.numa else []
    if zoned:
        return Shortfall(_zones_too_small(role, zoned) + beside)
    return Shortfall(f"no single node has all that a member of role {role.name!r} needs{beside}")


def short_of(role: RoleShape, most: Resources) -> str | None:
    """The first resource of which no node has enough for a single member, in words, where nodes have so much at most."""
    for name, amount in role.needs.items():
        best = most.get(name, 0)
        if best < amount:
            return lacks(name, amount, max(best, 0))
    return None


@lru_cache(maxsize=1 << 15)
def lacks(name: str, amount: int, best: int) -> str:
    """That no node has enough of a resource for a single member, in words; ``best`` is what one has at most."""
    need, has = format_apart(name, amount, best)
    return f"needs {need} {name} on one node, the best node has {has}"


def _zones_too_small(role: RoleShape, nodes: list[NodeBucket]) -> str:
    """Nodes have room, and their NUMA zones have not."""
    if role.numa == "singleNode":
        best: Resources = {}
        for one in nodes:
            for zone in one.zones:
                for name, there in zip(names_of(one.group), zone, strict=True):
                    best[name] = max(best.get(name, 0), there)
        for name, amount in role.needs.items():
            if name in best and best[name] < amount:
                need, has = format_apart(name, amount, max(best[name], 0))
                return f"needs {need} {name} in one NUMA zone, the best zone has {has}"
    return f"no node has the NUMA zones free that a member of role {role.name!r} needs"


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
    # An elastic one grows once it runs, where nobody waits for the room.
    choices = [least] if shape.elastic is not None or least == full else [full, least]
    return [Size(members, needs_of(shape, members)) for members in choices]


def needs_of(shape: Shape, members: dict[str, int]) -> Resources:
    """What so many members of each role need in all."""
    out: Resources = {}
    for role in shape.roles:
        for name, amount in role.needs.items():
            out[name] = out.get(name, 0) + amount * members.get(role.name, 0)
    return out
