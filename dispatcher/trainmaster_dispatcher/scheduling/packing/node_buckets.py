"""Nodes alike as one entry with a count, and members laid out on them best-fit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.packing import numa as numa_zones
from trainmaster_dispatcher.scheduling.packing.best_fit import Ranking, commonness

Leftover = tuple[int, int, int, int, int]
"""Of a node under a member: other devices, how common its product is with a minus, devices of the sort that it takes, CPU, memory."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeBucket:
    """So many nodes of a group, each with these amounts still free."""

    group: NodeGroup
    free: Resources
    count: int
    zones: numa_zones.Zones = ()
    """What is free in the NUMA zones of each, where they are reported."""

    def some(self, count: int) -> "NodeBucket":
        """So many of them, or of their like."""
        return NodeBucket(self.group, self.free, count, self.zones)

    def takes(self, needs: Resources) -> bool:
        free = self.free
        for name, amount in needs.items():  # noqa: SIM110 - a generator would take three times as long here
            if free.get(name, 0) < amount:
                return False
        return True

    def leftover(self, needs: Resources, common: int = 0) -> Leftover:
        """Sort key of best fit: devices that ``needs`` leaves idle; ``common``, the more the better; then what is left beside it."""
        devices = wanted = 0
        free = self.free
        for name, amount in free.items():
            if "/" in name:
                if name in needs:
                    wanted += amount - needs[name]
                else:
                    devices += amount
        return (
            devices,
            -common,
            wanted,
            free.get("cpu", 0) - needs.get("cpu", 0),
            free.get("memory", 0) - needs.get("memory", 0),
        )

    def holds(self, needs: Resources) -> int:
        """How many members with these needs find place on one of them."""
        free = self.free
        return min((free.get(name, 0) // amount for name, amount in needs.items() if amount), default=MOST_MEMBERS)

    def holds_in_zones(self, needs: Resources, most: int, numa: str) -> int:
        """How many members under a NUMA policy find place on one of them, so many at most."""
        if not self.zones:
            return most
        asked = numa_zones.asks(self.group, needs, numa)
        return 0 if asked is None else numa_zones.holds(self.zones, asked, most)

    def less(self, needs: Resources, members: int, many: int, numa: str = "") -> "NodeBucket":
        """So many of them, each with so many members more."""
        free = dict(self.free)
        for name, amount in needs.items():
            free[name] = free.get(name, 0) - amount * members
        return NodeBucket(self.group, free, many, self._zones_left(needs, members, numa) if self.zones else ())

    def _zones_left(self, needs: Resources, members: int, numa: str) -> numa_zones.Zones:
        asked = numa_zones.asks(self.group, needs, numa) if numa else None
        left = None if asked is None else numa_zones.after(self.zones, asked, members)
        return numa_zones.spread(self.group, self.zones, needs, members) if left is None else left


Groups = dict[str, Sequence[NodeBucket]]
"""The entries of each group by its name. Entries are never changed in place: who changes a group puts others in their stead."""


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


def split(groups: Groups, one: NodeBucket, needs: Resources, parts: Iterable[tuple[int, int]], numa: str = "") -> None:
    """Let some of the nodes of an entry take members: pairs of how many nodes, and how many members each of them takes."""
    entries = [other for other in groups[one.group.name] if other is not one]
    left = one.count
    for many, members in parts:
        _join(entries, one.less(needs, members, many, numa))
        left -= many
    if left:
        _join(entries, one.some(left))
    groups[one.group.name] = entries


def _join(entries: list[NodeBucket], entry: NodeBucket) -> None:
    for index, other in enumerate(entries):
        if other.free == entry.free and other.zones == entry.zones:
            entries[index] = other.some(other.count + entry.count)
            return
    entries.append(entry)
