"""Best fit: members packed on nodes, and the nodes of a cluster sorted in best-fit order, so that a node is found by bisection.

Best fit takes the node that has the least left after it takes the member: the fewest devices that the member does not need, then the
devices that the fewest others ask for, then the fewest devices, CPU and memory. What is left on a node is its free amounts minus the
same needs for every node; so one order of the nodes serves all members that need the same devices, whatever amounts they need.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainmaster.cluster_model.best_fit import Leftover, leftover
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket, split
from trainmaster_dispatcher.scheduling.state.flavors import product_of

Key = tuple[int, int, int, int, int, int, int]
"""Sort key of a node: free devices that are not needed, minus the commonness of its product, free devices that are
needed, CPU, memory.

Its group and its entry in the group break ties.
"""

_WORTH_IT = 2
"""After this many members without a node, the largest free amounts of any node are computed."""


_CHOICE = 2
"""The number of products from which on there is a choice between products."""


def commonness(
    groups: Mapping[str, Sequence[NodeBucket]],
    needs: Iterable[str],
    eligible: Iterable[str],
    spares: Mapping[str, int] | None = None,
) -> Mapping[str, int]:
    """Return, by group, how freely a member may take its devices: a member that may use several takes those first that the fewest
    others ask for.

    ``spares``: these values for the groups of a cluster with devices. Without them: the total amount of the devices in ``needs`` that
    groups with the same product have; the result is empty where it makes no difference. Neither depends on what is free, so the order
    stays the same while runs start and end. Nodes that do not exist yet are taken last.
    """
    devices = [name for name in needs if "/" in name]
    if not devices:
        return {}
    if spares is not None:
        return spares
    products: dict[str, str] = {}
    of_product: dict[str, int] = {}
    is_growing = False
    for name in eligible:
        entries = groups[name]
        if not entries:
            continue
        if name.startswith(COMING):
            is_growing = True
            continue
        group = entries[0].group
        many = sum([group.free.get(device, 0) for device in devices])
        if many:
            product = products[name] = product_of(group)
            of_product[product] = of_product.get(product, 0) + many * sum([one.count for one in entries])
    if len(of_product) < _CHOICE and not is_growing:
        return {}
    return {name: of_product[product] for name, product in products.items()}


class Ranking:
    """The nodes of some groups in best-fit order for members that need ``devices``."""

    __slots__ = (
        "_common",
        "_entries",
        "_failed",
        "_keys",
        "_most",
        "_nodes",
        "_of_group",
        "_places",
        "_resources",
        "_spares",
        "devices",
    )

    def __init__(self, order: Sequence[str], devices: frozenset[str], spares: Mapping[str, int] | None = None) -> None:
        """``spares``: see ``commonness``."""
        self.devices = devices
        self._spares = spares
        self._places = {name: place for place, name in enumerate(order)}
        self._common: Mapping[str, int] = {}
        self._entries: dict[str, Sequence[NodeBucket]] = {}
        self._resources: dict[str, tuple[int, bool]] = {}
        """By group: the number of its resources, and whether any of them is a device."""
        self._of_group: dict[str, list[Key]] = {}
        self._keys: list[Key] = []
        self._nodes: dict[tuple[int, int], NodeBucket] = {}
        self._most: Resources | None = None
        """The largest free amounts on one node; computed when needed and dropped on each change."""
        self._failed = 0
        """The number of members that found no node since the last change."""

    def follow(self, groups: Mapping[str, Sequence[NodeBucket]]) -> None:
        """Update the order to these groups; unchanged groups cost nothing."""
        if not self._entries:
            self._common = commonness(groups, self.devices, self._places, self._spares)
            for name, place in self._places.items():
                free = groups[name][0].free if groups[name] else {}
                self._resources[name] = len(free), any("/" in resource for resource in free)
                self._note(place, name, groups[name])
            self._keys = sorted(key for keys in self._of_group.values() for key in keys)
            return
        known = self._entries
        for name, place in self._places.items():
            if known[name] is not groups[name]:
                self._put(place, name, groups[name])

    def put(self, name: str, entries: Sequence[NodeBucket]) -> None:
        """Update one group; a group that is not in this order is ignored."""
        known = self._entries.get(name)
        if known is not None and known is not entries:
            self._put(self._places[name], name, entries)

    def _put(self, place: int, name: str, entries: Sequence[NodeBucket]) -> None:
        keys = self._keys
        self._most, self._failed = None, 0
        for key in self._of_group[name]:
            del keys[bisect_left(keys, key)]
            del self._nodes[key[5], key[6]]
        for key in self._note(place, name, entries):
            insort(keys, key)

    def _note(self, place: int, name: str, entries: Sequence[NodeBucket]) -> list[Key]:
        own = self._of_group[name] = []
        self._entries[name] = entries
        common = -self._common.get(name, 0)
        nodes = self._nodes
        known, has_devices = self._resources[name]
        for index, one in enumerate(entries):
            others = needed = 0
            free = one.free
            if has_devices or len(free) != known:
                for resource, amount in free.items():
                    if "/" in resource:
                        if resource in self.devices:
                            needed += amount
                        else:
                            others += amount
            own.append((others, common, needed, free.get("cpu", 0), free.get("memory", 0), place, index))
            nodes[place, index] = one
        return own

    def has(self, needs: Resources) -> bool:
        """Return whether any node has enough free for a member."""
        keys = self._keys
        if not keys:
            return False
        last = keys[-1]
        if self._nodes[last[5], last[6]].takes(needs):
            return True
        if self._most is None and self._failed >= _WORTH_IT:
            self._most = {}
            for one in self._nodes.values():
                for name, amount in one.free.items():
                    if amount > self._most.get(name, 0):
                        self._most[name] = amount
        if self._most is not None:
            for name, amount in needs.items():
                if self._most.get(name, 0) < amount:
                    return False
        found = self.tightest(needs) is not None
        self._failed += not found
        return found

    def tightest(self, needs: Resources) -> NodeBucket | None:
        """Return the first node of ``best``."""
        return next(self.best(needs), None)

    def best(self, needs: Resources) -> Iterator[NodeBucket]:
        """Yield the entries that have enough free for a member, the one with the least left first."""
        keys, nodes = self._keys, self._nodes
        cpu, memory = needs.get("cpu", 0), needs.get("memory", 0)
        devices = sum(needs[name] for name in self.devices)
        index, end = bisect_left(keys, (*keys[0][:2], devices, cpu, memory)) if keys else 0, len(keys)
        while index < end:
            key = keys[index]
            one = nodes[key[5], key[6]]
            if one.takes(needs):
                yield one
                index += 1
            elif key[2] < devices:
                index = bisect_left(keys, (key[0], key[1], devices, cpu, memory), index + 1)
            elif key[3] < cpu:
                index = bisect_left(keys, (key[0], key[1], key[2], cpu, memory), index + 1)
            else:
                index += 1


def fill(
    groups: Groups,
    needs: Resources,
    count: int,
    eligible: Iterable[str] | None = None,
    ranking: Ranking | None = None,
    max_per_node: int | None = None,
    numa: str = "",
    order: list[tuple[str, int]] | None = None,
    spares: Mapping[str, int] | None = None,
    *,
    exclusive: bool = False,
) -> tuple[int, dict[str, int]]:
    """Pack members best-fit; return the number of members without a node, and the number placed in each group.
    ``groups`` is changed.

    ``eligible``: the groups that may be used; None means all. A node that takes a member becomes an even better fit
    than the others, so one order serves all members. ``ranking``: that order, if it is up to date with ``groups``.
    ``max_per_node``: the largest number of these members on one node. ``numa``: the policy that binds the members to
    NUMA zones, or empty. ``order``: a list to which each group and the number of members it took are appended, in
    sequence. ``spares``: see ``commonness``. ``exclusive``: whether each member takes a whole node, on which no member is.
    """
    placed: dict[str, int] = {}
    usable = groups if eligible is None else eligible
    if count == 1 and not numa and not exclusive:
        best = tightest(groups, needs, usable, spares) if ranking is None else ranking.tightest(needs)
        if best is None:
            return 1, placed
        split(groups, best, needs, ((1, 1),))
        if order is not None:
            order.append((best.group.name, 1))
        return 0, {best.group.name: 1}
    for one in _best(groups, needs, usable, spares) if ranking is None else ranking.best(needs):
        taken = one.group.free if exclusive else needs
        each = min(one.holds(taken), 1 if exclusive else count)
        if max_per_node is not None:
            each = min(each, max_per_node)
        if numa:
            each = one.holds_in_zones(needs, each, numa)
        if each <= 0:
            continue
        whole = min(one.count, count // each)
        rest = min(count - whole * each, each) if whole < one.count else 0
        split(groups, one, taken, ((whole, each), (1, rest)) if rest else ((whole, each),), numa)
        name = one.group.name
        placed[name] = placed.get(name, 0) + whole * each + rest
        if order is not None:
            order.append((name, whole * each + rest))
        count -= whole * each + rest
        if not count:
            break
    return count, placed


def _best(
    groups: Groups, needs: Resources, eligible: Iterable[str], spares: Mapping[str, int] | None
) -> list[NodeBucket]:
    """Return the entries that have enough free for a member, the one with the least left first."""
    eligible = list(eligible)
    common = commonness(groups, needs, eligible, spares)
    fitting = [
        (leftover(one.free, needs, common.get(name, 0)), order, one)
        for order, name in enumerate(eligible)
        for one in groups[name]
        if one.takes(needs)
    ]
    if len(fitting) > 1:
        fitting.sort(key=_rank)
    return [one for _, _, one in fitting]


def tightest(
    groups: Groups, needs: Resources, eligible: Iterable[str], spares: Mapping[str, int] | None = None
) -> NodeBucket | None:
    """Return the node with the least left after one member; the same as ``fill`` finds, with less work."""
    best: NodeBucket | None = None
    least: Leftover | None = None
    eligible = list(eligible)
    common = commonness(groups, needs, eligible, spares)
    for name in eligible:
        for one in groups[name]:
            free = one.free
            for resource, amount in needs.items():
                if free.get(resource, 0) < amount:
                    break
            else:
                left = leftover(free, needs, common.get(name, 0))
                if least is None or left < least:
                    best, least = one, left
    return best


def _rank(item: tuple[Leftover, int, NodeBucket]) -> tuple[Leftover, int]:
    return item[0], item[1]
