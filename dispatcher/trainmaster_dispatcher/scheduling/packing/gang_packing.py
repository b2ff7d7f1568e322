"""Whole-gang packing: places all members of all roles on nodes at once, or reports what is missing.

Best-fit decreasing: roles by their largest share of the cluster, each member on the feasible node with the least left;
if that fails although the totals are sufficient, a few other orders of roles. With a required topology level the whole
gang is tried inside one domain of that level after another; with a preferred level, first in one domain and then
anywhere. It never reports that a gang fits when no packing exists, because it builds the packing; it may miss one that
exists (``bench.packing`` measures how often).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, permutations

from trainmaster.cluster_model.best_fit import MOST_ORDERS
from trainmaster.cluster_model.device_products import product_label
from trainmaster.cluster_model.gang_minimum import split_minimum
from trainmaster.cluster_model.numa_policies import NumaPolicy
from trainmaster.protocol.agent import HOST_LEVEL, CapacityReport, NodeGroup
from trainmaster.protocol.device_parts import device_of, is_memory_part, is_part
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.quantities import Resources, format_apart, format_name
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.best_fit import Ranking, fill, tightest
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity, by_size
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket
from trainmaster_dispatcher.scheduling.packing.numa import names_of
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Product, charge_anywhere, product_of


def products_on(report: CapacityReport | None, device: str, *, grown: bool = False) -> list[Product | None]:
    """Return the products of a device that a gang can get on a cluster, each to be tried alone; one None where it does not matter.

    ``grown``: also those that its pools would add.
    """
    if not device or report is None:
        return [None]
    groups = (*report.groups, *report.pools) if grown else report.groups
    labels = {product_of(group): product_label(group.labels) for group in groups if _offers(group, device)}
    return [Product(device, name, labels[name]) for name in sorted(labels)] or [None]


def _offers(group: NodeGroup, device: str) -> bool:
    return bool(group.free.get(device)) or (group.sharing is not None and group.sharing.device == device)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A packing: the number of units of each role in each group, what is left of these groups, and what the packing
    takes of their nodes in all: of exclusive members, whole nodes."""

    placement: MemberPlacement
    after: Groups
    taken: Resources


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The reason why a gang does not fit, as a sentence."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Size:
    """A size with which a gang may start: the number of units by role (``RoleShape``), and what they need in all."""

    members: dict[str, int]
    needs: Resources
    charge: Amounts = field(init=False, compare=False)
    """What it needs on each flavor without product or cluster kind."""
    total: int = field(init=False, compare=False)
    """The total number of units."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "charge", charge_anywhere(self.needs))
        object.__setattr__(self, "total", sum(self.members.values()))


def fit(
    shape: Shape, members: dict[str, int], free_capacity: FreeCapacity, product: Product | None = None
) -> Fitted | Shortfall:
    """Try to place ``members`` of each role; ``free_capacity`` is not changed. ``product``: the only product that may be used."""
    roles = by_size(shape.roles, free_capacity.total()) if len(shape.roles) > 1 else list(shape.roles)
    if shape.required_level is not None:
        return _inside(shape.required_level, roles, members, free_capacity, product)
    if shape.preferred_level is not None:
        close = _inside(shape.preferred_level, roles, members, free_capacity, product)
        if isinstance(close, Fitted):
            return close
    return _pack_in_any_order(roles, members, free_capacity, free_capacity.groups, product)


def may_repeat(shape: Shape, size: Size) -> RoleShape | None:
    """Return the only role of a gang for which many gangs can be placed by placing all their members together; None for
    other gangs."""
    if shape.preferred_level is not None or shape.required_level is not None:
        return None
    roles = [role for role in shape.roles if size.members.get(role.name)]
    if len(roles) > 1 or (size.total > 1 and (roles[0].max_per_node is not None or roles[0].numa)):
        return None
    return roles[0]


def fit_many(
    role: RoleShape, members: int, count: int, free_capacity: FreeCapacity
) -> tuple[list[dict[str, int]], Fitted]:
    """Place ``count`` gangs of ``members`` each, with the same result as one after the other, or as many of them as fit.

    Return the members by group for each gang, and one packing of all of them.
    """
    eligible = eligible_groups(role, free_capacity)
    while count:
        work, order = dict(free_capacity.groups), list[tuple[str, int]]()
        ranking = free_capacity.ranking(eligible, role.needs)
        missing, placed = fill(
            work,
            role.needs,
            count * members,
            eligible,
            ranking,
            numa=role.numa,
            order=order,
            spares=free_capacity.eligible.spares,
            exclusive=role.exclusive,
        )
        count, rest = divmod(count * members - missing, members)
        if not rest:
            placement = {group: {role.name: many} for group, many in placed.items()}
            taken = _taken(role, placed, work)
            return list(_dealt(order, members)), Fitted(placement, {name: work[name] for name in placed}, taken)
        # The last gang does not fit completely: try again without it.
    return [], Fitted({}, {}, {})


def _dealt(order: list[tuple[str, int]], members: int) -> Iterator[dict[str, int]]:
    """Yield the members by group for each gang, in the order in which the groups took them."""
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


def has_node(role: RoleShape, free_capacity: FreeCapacity) -> bool:
    """Return whether any node has enough free for one member."""
    ranking = _ranking(role, free_capacity)
    if ranking is None:
        return True
    if role.numa or role.exclusive:
        return any(
            one.takes_one(role) and (not role.numa or one.holds_in_zones(role.needs, 1, role.numa))
            for one in ranking.best(role.needs)
        )
    return ranking.has(role.needs)


def first_node(role: RoleShape, free_capacity: FreeCapacity) -> NodeBucket | None:
    """Return the node that the first member of a role would take."""
    ranking = _ranking(role, free_capacity)
    if role.exclusive:
        nodes = (
            _in(eligible_groups(role, free_capacity), free_capacity.groups)
            if ranking is None
            else ranking.best(role.needs)
        )
        return next((one for one in nodes if one.takes_one(role)), None)
    if ranking is None:
        eligible = eligible_groups(role, free_capacity)
        return tightest(free_capacity.groups, role.needs, eligible, free_capacity.eligible.spares)
    return ranking.tightest(role.needs)


def _ranking(role: RoleShape, free_capacity: FreeCapacity) -> Ranking | None:
    """Return the nodes that are eligible for a role's members, sorted; None if the nodes are not kept sorted."""
    known = free_capacity.by_role
    if known is None:
        return None
    found = known.get(role.key)
    if found is None:
        found = free_capacity.ranking(eligible_groups(role, free_capacity), role.needs)
        if found is not None:
            known[role.key] = found
    return found


def only_role(shape: Shape, size: Size) -> RoleShape | None:
    """Return the role of a gang of one member that may be on any node: it fits if any node has enough free. None for
    other gangs."""
    return spread_role(shape, size) if size.total == 1 else None


def spread_role(shape: Shape, size: Size) -> RoleShape | None:
    """Return the role of a gang with one role and no required level; None for other gangs."""
    if shape.required_level is not None:
        return None
    roles = [role for role in shape.roles if size.members.get(role.name)]
    return roles[0] if len(roles) == 1 else None


def _in(names: Iterable[str], groups: Groups) -> Iterator[NodeBucket]:
    return (one for name in names for one in groups[name])


def _taken(role: RoleShape, placed: Mapping[str, int], groups: Groups) -> Resources:
    """Return what members of a role take of nodes; ``placed``: their number by group."""
    if not role.exclusive:
        many = sum(placed.values())
        return {name: amount * many for name, amount in role.needs.items()}
    taken: Resources = {}
    for group, count in placed.items():
        for name, amount in groups[group][0].group.free.items():
            taken[name] = taken.get(name, 0) + amount * count
    return taken


def _no_node(role: RoleShape, obstacles: str) -> Shortfall:
    numa = f" with NUMA policy {role.numa}" if role.numa else ""
    why = f": {obstacles}" if obstacles else ""
    if role.exclusive:
        return Shortfall(f"no node{numa} is eligible for a member of role {role.name!r} alone{why}")
    return Shortfall(f"no node{numa} matches what role {role.name!r} selects or tolerates{why}")


def _inside(
    level: str, roles: list[RoleShape], members: dict[str, int], free_capacity: FreeCapacity, product: Product | None
) -> Fitted | Shortfall:
    """Place all members in one domain of a topology level."""
    if level == HOST_LEVEL:
        return _on_one_node(roles, members, free_capacity, product)
    tried, shortfall = 0, Shortfall("")
    for domain in _domains(free_capacity, level):
        outcome = _pack_in_any_order(roles, members, free_capacity, domain, product)
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
    roles: list[RoleShape], members: dict[str, int], free_capacity: FreeCapacity, product: Product | None
) -> Fitted | Shortfall:
    """Place all members on one node; one of several equivalent nodes stands for all of them."""
    tried, shortfall = 0, Shortfall("")
    for name, entries in free_capacity.groups.items():
        for one in entries:
            outcome = _pack_in_any_order(roles, members, free_capacity, {name: (one.some(1),)}, product)
            if isinstance(outcome, Fitted):
                rest = [o.some(o.count - (o is one)) for o in entries if o.count > (o is one)]
                after: Groups = {name: [*outcome.after.get(name, (one.some(1),)), *rest]}
                return Fitted(outcome.placement, after, outcome.taken)
            tried, shortfall = tried + 1, outcome
    return _in_no_domain(HOST_LEVEL, tried, sum(one.count for one in free_capacity.nodes), shortfall)


def _domains(free_capacity: FreeCapacity, level: str) -> Iterator[Groups]:
    """Yield the domains of ``level``, small ones first. A domain's key includes all wider levels, as two zones may both
    have a rack ``r1``."""
    places: dict[tuple[str, ...], Groups] = {}
    for name, entries in free_capacity.groups.items():
        topology = entries[0].group.topology
        keys = [key for key, _ in topology]
        if level in keys:
            path = tuple(value for _, value in topology[: keys.index(level) + 1])
            places.setdefault(path, {})[name] = entries
    sizes = {path: sum(one.count for entries in inside.values() for one in entries) for path, inside in places.items()}
    yield from (places[path] for path in sorted(places, key=lambda path: (sizes[path], path)))


def take(free_capacity: FreeCapacity, fitted: Fitted) -> None:
    """Subtract a packing from the capacity it was found in, whose groups must not have changed since."""
    free_capacity.put(fitted.after, fitted.taken)


def _pack_in_any_order(
    roles: list[RoleShape],
    members: dict[str, int],
    free_capacity: FreeCapacity,
    groups: Groups,
    product: Product | None,
) -> Fitted | Shortfall:
    """Return the packing of the first order of roles that has one, out of a few; if none has, the shortfall of the first order."""
    outcome = _pack(roles, members, free_capacity, groups, product)
    if isinstance(outcome, Shortfall) and len(roles) > 1 and _has_enough(roles, members, free_capacity, groups):
        for order in islice(permutations(roles), 1, MOST_ORDERS):
            other = _pack(list(order), members, free_capacity, groups, product)
            if isinstance(other, Fitted):
                return other
    return outcome


def _has_enough(roles: list[RoleShape], members: dict[str, int], free_capacity: FreeCapacity, groups: Groups) -> bool:
    """Return whether the sums over all nodes are sufficient."""
    total = free_capacity.total() if groups is free_capacity.groups else FreeCapacity(groups).total()
    needs: Resources = {}
    for role in roles:
        for name, amount in role.needs.items():
            needs[name] = needs.get(name, 0) + amount * members.get(role.name, 0)
    return all(total.get(name, 0) >= amount for name, amount in needs.items())


def _pack(
    roles: list[RoleShape],
    members: dict[str, int],
    free_capacity: FreeCapacity,
    groups: Groups,
    product: Product | None,
) -> Fitted | Shortfall:
    work = dict(groups)
    placement: MemberPlacement = {}
    taken: Resources = {}
    for role in roles:
        size = members.get(role.name, 0)
        if not size:
            continue
        eligible = eligible_groups(role, free_capacity, product)
        ranking = None
        if groups is not free_capacity.groups:
            eligible = tuple(name for name in eligible if name in groups)
        elif not placement:
            # The sorted nodes are those before any member is placed, so they serve the first role only.
            ranking = free_capacity.ranking(eligible, role.needs)
        if not eligible:
            return _no_node(
                role, "" if groups is not free_capacity.groups else free_capacity.eligible.index.obstacles(role)
            )
        missing, placed = fill(
            work,
            role.needs,
            size,
            eligible,
            ranking,
            role.max_per_node,
            role.numa,
            spares=free_capacity.eligible.spares,
            exclusive=role.exclusive,
        )
        if missing:
            if size == missing and groups is free_capacity.groups and not placement:
                return _too_small(role, free_capacity.most(eligible), _in(eligible, work), beside_others=False)
            feasible = list(_in(eligible, work))
            return _shortfall(role, size, size - missing, feasible, beside_others=placement != {})
        for group, count in placed.items():
            placement.setdefault(group, {})[role.name] = count
        for name, amount in _taken(role, placed, work).items():
            taken[name] = taken.get(name, 0) + amount
    return Fitted(placement, {name: work[name] for name in placement}, taken)


def eligible_groups(role: RoleShape, free_capacity: FreeCapacity, product: Product | None = None) -> tuple[str, ...]:
    """Return the groups whose nodes are eligible for a role's members, computed once for all objects of a cluster."""
    narrowed = product if product is not None and product.resource in map(device_of, role.needs) else None
    key = (role.terms, narrowed)
    found = free_capacity.eligible.get(key)
    if found is None:
        index = free_capacity.eligible.index
        names = index.allowing(role)
        if narrowed is not None:
            names = tuple(name for name in names if product_of(index.groups[name]) == narrowed.name)
        # Equal groups share one tuple, because rankings are cached by the identity of the tuple.
        found = free_capacity.eligible[key] = next(
            (known for known in free_capacity.eligible.values() if known == names), names
        )
    return found


def _shortfall(role: RoleShape, size: int, placed: int, nodes: list[NodeBucket], *, beside_others: bool) -> Shortfall:
    each = role.members_per_unit
    if placed:
        apart = "" if role.max_per_node is None else f", with at most {role.max_per_node * each} on a node"
        if role.exclusive:
            apart = ", each on a node of its own"
        if each > 1:
            apart += f", {each} that share devices on one node"
        return Shortfall(f"room for {placed * each} of the {size * each} members of role {role.name!r}{apart}")
    most = {name: max((node.free.get(name, 0) for node in nodes), default=0) for name in role.needs}
    return _too_small(role, most, nodes, beside_others=beside_others)


def _too_small(role: RoleShape, most: Resources, nodes: Iterable[NodeBucket], *, beside_others: bool) -> Shortfall:
    """Return why no node has enough free for a single member; ``most``: the largest free amount of each resource on one node."""
    beside = " beside the other roles" if beside_others else ""
    short = short_of(role, most)
    if short is not None:
        return Shortfall(short + beside)
    fitting = [one for one in nodes if one.takes(role.needs)] if role.numa or role.exclusive else []
    if fitting and role.exclusive and not any(one.takes_one(role) for one in fitting):
        whole = f"exclusive members take whole nodes: each node that would do for role {role.name!r} has members on it"
        return Shortfall(whole + beside)
    zoned = [one for one in fitting if one.zones] if role.numa else []
    if zoned:
        return Shortfall(_zones_too_small(role, zoned) + beside)
    if (many := role.members_per_unit) > 1:
        return Shortfall(
            f"no single node has all that {many} members of role {role.name!r} need that share devices{beside}"
        )
    return Shortfall(f"no single node has all that a member of role {role.name!r} needs{beside}")


def short_of(role: RoleShape, most: Resources) -> str | None:
    """Return a sentence on the first resource of which no node has enough for a single member, or for those that share
    devices; ``most``: the largest amounts on one node."""
    for name, amount in role.needs.items():
        best = most.get(name)
        if best is None or best < amount:
            return lacks(name, amount, best, role.members_per_unit)
    return None


@lru_cache(maxsize=1 << 15)
def lacks(name: str, amount: int, best: int | None, members: int = 1) -> str:
    """Return the sentence that no node has enough of a resource for a single member.

    ``best``: the largest amount on one node; None: no node offers it at all. ``members``: how many members need it together, as
    they share devices.
    """
    if best is None and is_part(name):
        return f"no node offers {'memory' if is_memory_part(name) else 'parts'} of {device_of(name)}"
    need, has = format_apart(name, amount, max(best or 0, 0))
    whose = f" for {members} members that share devices" if members > 1 else ""
    return f"needs {need} {format_name(name)} on one node{whose}, the best node has {has}"


def _zones_too_small(role: RoleShape, nodes: list[NodeBucket]) -> str:
    """Return why no node fits although nodes have enough free: their NUMA zones do not."""
    if role.numa == NumaPolicy.SINGLE_NODE:
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
    """Return the sizes to try: the full one, then the smallest that the job allows where that differs.

    The smallest is the minimum of each role, increased to ``least_members`` as ``split_minimum`` does.
    """
    full = {role.name: role.replicas for role in shape.roles}
    least = split_minimum(((role.name, role.replicas, role.least) for role in shape.roles), shape.least_members)
    # An elastic job grows after it has started, when no job waits for the capacity.
    choices = [least] if shape.elastic is not None or least == full else [full, least]
    return [Size(members, needs_of(shape, members)) for members in choices]


def needs_of(shape: Shape, members: dict[str, int]) -> Resources:
    """Return what ``members`` of each role need in all."""
    out: Resources = {}
    for role in shape.roles:
        for name, amount in role.needs.items():
            out[name] = out.get(name, 0) + amount * members.get(role.name, 0)
    return out
