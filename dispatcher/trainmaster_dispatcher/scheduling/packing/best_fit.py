"""Best fit: members laid out on nodes, and the nodes of a cluster kept in that order, so that a node is found by bisection.

Best fit takes the node that a member leaves fullest: with the fewest devices that it leaves idle, of the commonest product, then by
devices, CPU and memory. What is left there is what is free now, less the same amounts for every node; so nodes stand in one order
for all members that need the same devices, however much they need of anything.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, Leftover, NodeBucket, split
from trainmaster_dispatcher.scheduling.state.flavors import product_of
from trainmaster_dispatcher.scheduling.state.state import COMING

Key = tuple[int, int, int, int, int, int, int]
"""Of a node: free devices that are not needed, minus how common its product is, free devices that are needed, CPU, memory.

Then its group and its entry in it, for ties.
"""

_WORTH_IT = 2
"""Members that find no node before it is found out what any node has at most."""


_CHOICE = 2
"""So many products at least make a choice."""


def commonness(
    groups: Mapping[str, Sequence[NodeBucket]], needs: Iterable[str], suiting: Iterable[str]
) -> dict[str, int]:
    """By group: of the devices among ``needs``, how many all these groups of its product have; empty where it makes no difference.

    Who may have any product takes the one of which there is most, and spares the scarce ones for those who can use no other. What
    counts is what there is, not what is free, so that the order stays the same while runs come and go. Nodes to come are taken last.
    """
    devices = [name for name in needs if "/" in name]
    if not devices:
        return {}
    products: dict[str, str] = {}
    of_product: dict[str, int] = {}
    is_growing = False
    for name in suiting:
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
    """Nodes of some groups in the order in which members that need these devices take them."""

    __slots__ = ("_common", "_entries", "_failed", "_keys", "_most", "_nodes", "_of_group", "_places", "devices")

    def __init__(self, order: Sequence[str], devices: frozenset[str]) -> None:
        self.devices = devices
        self._places = {name: place for place, name in enumerate(order)}
        self._common: dict[str, int] = {}
        self._entries: dict[str, Sequence[NodeBucket]] = {}
        self._of_group: dict[str, list[Key]] = {}
        self._keys: list[Key] = []
        self._nodes: dict[tuple[int, int], NodeBucket] = {}
        self._most: Resources | None = None
        """What is free on one node at most, once it was worth finding out since anything changed."""
        self._failed = 0
        """How many members have found no node since then."""

    def follow(self, groups: Mapping[str, Sequence[NodeBucket]]) -> None:
        """Take in all groups; those that have not changed cost nothing."""
        if not self._entries:
            self._common = commonness(groups, self.devices, self._places)
            for name, place in self._places.items():
                self._note(place, name, groups[name])
            self._keys = sorted(key for keys in self._of_group.values() for key in keys)
            return
        known = self._entries
        for name, place in self._places.items():
            if known[name] is not groups[name]:
                self._put(place, name, groups[name])

    def put(self, name: str, entries: Sequence[NodeBucket]) -> None:
        """One group has changed; one that may not be used is passed over."""
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
        for index, one in enumerate(entries):
            others = needed = 0
            free = one.free
            for resource, amount in free.items():
                if "/" in resource:
                    if resource in self.devices:
                        needed += amount
                    else:
                        others += amount
            own.append((others, common, needed, free.get("cpu", 0), free.get("memory", 0), place, index))
            self._nodes[place, index] = one
        return own

    def has(self, needs: Resources) -> bool:
        """Whether any node has room for a member."""
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
        """The first of ``best``."""
        return next(self.best(needs), None)

    def best(self, needs: Resources) -> Iterator[NodeBucket]:
        """The entries that have room for a member, the one that it leaves fullest first."""
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
    suiting: Iterable[str] | None = None,
    ranking: Ranking | None = None,
    max_per_node: int | None = None,
    numa: str = "",
    order: list[tuple[str, int]] | None = None,
) -> tuple[int, dict[str, int]]:
    """Lay out members best-fit; how many found no place, and how many each group took. ``groups`` is changed.

    ``suiting`` are the groups that may be used; None means all. A node that takes a member becomes a still better fit than the
    others, so one order serves all members. ``ranking``: that order, where the groups are as it knows them. ``max_per_node``: how
    many of these members one node takes at most. ``numa``: the policy that binds them to zones of their node, where it does.
    ``order``: to be told which group took how many, one after the other.
    """
    placed: dict[str, int] = {}
    usable = groups if suiting is None else suiting
    if count == 1 and not numa:
        best = tightest(groups, needs, usable) if ranking is None else ranking.tightest(needs)
        if best is None:
            return 1, placed
        split(groups, best, needs, ((1, 1),))
        if order is not None:
            order.append((best.group.name, 1))
        return 0, {best.group.name: 1}
    for one in _best(groups, needs, usable) if ranking is None else ranking.best(needs):
        each = min(one.holds(needs), count)
        if max_per_node is not None:
            each = min(each, max_per_node)
        if numa:
            each = one.holds_in_zones(needs, each, numa)
            if not each:
                continue
        whole = min(one.count, count // each)
        rest = min(count - whole * each, each) if whole < one.count else 0
        split(groups, one, needs, ((whole, each), (1, rest)) if rest else ((whole, each),), numa)
        name = one.group.name
        placed[name] = placed.get(name, 0) + whole * each + rest
        if order is not None:
            order.append((name, whole * each + rest))
        count -= whole * each + rest
        if not count:
            break
    return count, placed


def _best(groups: Groups, needs: Resources, suiting: Iterable[str]) -> list[NodeBucket]:
    """The entries that have room for a member, the one that it leaves fullest first."""
    suiting = list(suiting)
    common = commonness(groups, needs, suiting)
    fitting = [
        (one.leftover(needs, common.get(name, 0)), order, one)
        for order, name in enumerate(suiting)
        for one in groups[name]
        if one.takes(needs)
    ]
    if len(fitting) > 1:
        fitting.sort(key=_rank)
    return [one for _, _, one in fitting]


def tightest(groups: Groups, needs: Resources, suiting: Iterable[str]) -> NodeBucket | None:
    """The node that one member leaves fullest: what ``fill`` finds for many, found with less work."""
    best: NodeBucket | None = None
    least: Leftover | None = None
    suiting = list(suiting)
    common = commonness(groups, needs, suiting)
    for name in suiting:
        for one in groups[name]:
            free = one.free
            for resource, amount in needs.items():
                if free.get(resource, 0) < amount:
                    break
            else:
                left = one.leftover(needs, common.get(name, 0))
                if least is None or left < least:
                    best, least = one, left
    return best


def _rank(item: tuple[Leftover, int, NodeBucket]) -> tuple[Leftover, int]:
    return item[0], item[1]
