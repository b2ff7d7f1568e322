"""Equivalent nodes as one entry with a count, and what a group of them is left with when some take members."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.packing import numa as numa_zones

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
