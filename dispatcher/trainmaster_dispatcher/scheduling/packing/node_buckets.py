"""Equivalent nodes as one entry with a count, and what is left of them after some take members."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.packing import numa as numa_zones


@dataclass(frozen=True, slots=True, eq=False)
class NodeBucket:
    """``count`` nodes of a group, each with the same free amounts."""

    group: NodeGroup
    free: Resources
    count: int
    zones: numa_zones.Zones = ()
    """The free amounts in the NUMA zones of each node, where they are reported."""

    def some(self, count: int) -> "NodeBucket":
        """Return an entry with ``count`` such nodes."""
        return NodeBucket(self.group, self.free, count, self.zones)

    def takes(self, needs: Resources) -> bool:
        free = self.free
        for name, amount in needs.items():  # noqa: SIM110 - a generator would take three times as long here
            if free.get(name, 0) < amount:
                return False
        return True

    def takes_one(self, role: RoleShape) -> bool:
        """Return whether a member of a role fits on one of the nodes; an exclusive one fits only where no member is."""
        return self.takes(role.needs) and (not role.exclusive or self.takes(self.group.free))

    def holds(self, needs: Resources) -> int:
        """Return the number of members with these needs that fit on one of the nodes."""
        free = self.free
        return min((free.get(name, 0) // amount for name, amount in needs.items() if amount), default=MOST_MEMBERS)

    def holds_in_zones(self, needs: Resources, most: int, numa: str) -> int:
        """Return the number of members under a NUMA policy that fit on one of the nodes, up to ``most``."""
        if not self.zones:
            return most
        request = numa_zones.zone_request(self.group, needs, numa)
        return 0 if request is None else numa_zones.holds(self.zones, request, most)

    def holds_of(self, role: RoleShape) -> int:
        """Return the number of members of a role that fit on one of the nodes."""
        return int(self.takes_one(role)) if role.exclusive else self.holds(role.needs)

    def less(self, needs: Resources, members: int, many: int, numa: str = "") -> "NodeBucket":
        """Return ``many`` of the nodes, each with ``members`` more members on it."""
        free = dict(self.free)
        for name, amount in needs.items():
            free[name] = free.get(name, 0) - amount * members
        return NodeBucket(self.group, free, many, self._zones_left(needs, members, numa) if self.zones else ())

    def _zones_left(self, needs: Resources, members: int, numa: str) -> numa_zones.Zones:
        request = numa_zones.zone_request(self.group, needs, numa) if numa else None
        left = None if request is None else numa_zones.after(self.zones, request, members)
        return numa_zones.spread(self.group, self.zones, needs, members) if left is None else left


Groups = dict[str, Sequence[NodeBucket]]
"""The entries of each group by its name. Entries are never changed in place: a change of a group replaces them."""


def split(groups: Groups, one: NodeBucket, needs: Resources, parts: Iterable[tuple[int, int]], numa: str = "") -> None:
    """Let some of the nodes of an entry take members. ``parts``: pairs of a number of nodes and the members that each
    of them takes."""
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
