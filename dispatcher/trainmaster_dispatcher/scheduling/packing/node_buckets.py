"""Equivalent nodes as one entry with a count, and what is left of them after some take members."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.cluster_model.shared_devices import (
    Devices,
    after,
    counted_resource,
    drain,
    fitting,
    largest_parts,
    part_of,
    sum_of_parts,
)
from trainmaster.protocol.agent import NodeGroup, Sharing
from trainmaster.protocol.device_parts import WHOLE, is_part, part_resource
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
    open: tuple[int, ...] = ()
    """Free thousandths of each device of a node that is used in part, ascending. ``free`` has the largest part that is left."""

    @classmethod
    def of(cls, group: NodeGroup, count: int) -> "NodeBucket":
        """Return nodes of a group without any members of ours."""
        zones, sharing = numa_zones.zones_of(group), group.sharing
        if sharing is None:
            return cls(group, group.free, count, zones)
        devices = Devices(
            group.free.get(counted_resource(sharing), 0), tuple(sorted(one for one in sharing.open if one))
        )
        return cls(group, group.free | largest_parts(sharing, devices), count, zones, devices.open)

    def some(self, count: int) -> "NodeBucket":
        """Return an entry with ``count`` such nodes."""
        return NodeBucket(self.group, self.free, count, self.zones, self.open)

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
        free, sharing = self.free, self.group.sharing
        if sharing is not None and (part := part_of(sharing, needs)):
            most = self.holds({name: amount for name, amount in needs.items() if not is_part(name)})
            return min(most, fitting(sharing, self._devices(sharing), part))
        return min((free.get(name, 0) // amount for name, amount in needs.items() if amount), default=MOST_MEMBERS)

    def sums(self) -> Resources:
        """Return the free amounts of one node; of parts of devices, of all of its devices together."""
        sharing = self.group.sharing
        return self.free if sharing is None else self.free | sum_of_parts(sharing, self._devices(sharing))

    def _devices(self, sharing: Sharing) -> Devices:
        return Devices(self.free.get(counted_resource(sharing), 0), self.open)

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
        free, sharing = dict(self.free), self.group.sharing
        for name, amount in needs.items():
            free[name] = free.get(name, 0) - amount * members
        zones = self._zones_left(needs, members, numa) if self.zones else ()
        if sharing is None:
            return NodeBucket(self.group, free, many, zones)
        devices = Devices(free.get(counted_resource(sharing), 0), self.open)
        if part := part_of(sharing, needs):
            devices = after(sharing, devices, part, members)
        return self._with(sharing, devices, free, many, zones)

    def _with(
        self, sharing: Sharing, devices: Devices, free: Resources, many: int, zones: numa_zones.Zones
    ) -> "NodeBucket":
        amounts = free | largest_parts(sharing, devices) | {counted_resource(sharing): devices.whole}
        return NodeBucket(self.group, amounts, many, zones, devices.open)

    def drained(self, thousandths: int) -> "NodeBucket":
        """Return one of the nodes after an amount of its devices is taken in any pieces, more than it has if need be."""
        sharing = self.group.sharing
        if sharing is None:
            raise ValueError(f"nodes of group {self.group.name} share no devices")
        devices = drain(sharing, self._devices(sharing), thousandths)
        return self._with(sharing, devices, self.free, 1, self.zones)

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


def drain_parts(groups: Groups, names: Iterable[str], needs: Resources, count: int) -> None:
    """Take the parts of devices that members need of nodes of these groups, in pieces, although no device has them free."""
    if not any(map(is_part, needs)):
        return
    shared = [one for name in names for one in groups[name] if one.group.sharing is not None]
    if not shared:
        return
    missing = min(_part_on(one, needs) for one in shared) * count
    for one in shared:
        there = _thousandths_on(one)
        for _ in range(one.count if there > 0 else 0):
            if not missing:
                return
            taken = min(there, missing)
            missing -= taken
            _replace_one(groups, one, one.drained(taken))
    if missing:
        first = groups[shared[0].group.name][0]
        _replace_one(groups, first, first.drained(missing + _thousandths_on(first)))


def _part_on(one: NodeBucket, needs: Resources) -> int:
    return 0 if one.group.sharing is None else min(part_of(one.group.sharing, needs), WHOLE)


def _thousandths_on(one: NodeBucket) -> int:
    return 0 if one.group.sharing is None else one.sums()[part_resource(one.group.sharing.device)]


def _replace_one(groups: Groups, one: NodeBucket, by: NodeBucket) -> None:
    """Replace one of the nodes of an entry that is equal to ``one`` but for its number."""
    name = one.group.name
    entries = [each for each in groups[name] if not _is_equal(each, one)]
    left = sum(each.count for each in groups[name] if _is_equal(each, one)) - 1
    if left:
        entries.append(one.some(left))
    _join(entries, by)
    groups[name] = entries


def _is_equal(one: NodeBucket, other: NodeBucket) -> bool:
    return one.free == other.free and one.zones == other.zones and one.open == other.open


def _join(entries: list[NodeBucket], entry: NodeBucket) -> None:
    for index, other in enumerate(entries):
        if _is_equal(other, entry):
            entries[index] = other.some(other.count + entry.count)
            return
    entries.append(entry)
