"""Best-fit packing of the members of one node group, computed on tuples of amounts."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import ge, sub
from typing import NamedTuple

from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket

Tuple = tuple[int, ...]
"""Amounts of the resources that a cluster has: CPU, memory, others, then devices."""


class MemberKind(NamedTuple):
    """Equivalent members on a cluster. Kinds sort by ``rank``: most devices, then the largest dominant share first."""

    rank: tuple[int, float]
    need: Tuple | None
    """None where the members need a resource that the cluster does not have, or have a maximum per node, which tuples
    cannot express."""
    devices: tuple[int, ...]
    """The indexes of the devices that the members name."""
    is_exclusive: bool = False
    """Whether each member has a node for itself."""

    @property
    def many_devices(self) -> int:
        return -self.rank[0]


ROUNDS = 4
"""The parts in which members with equally many devices take turns."""


def in_rounds(members: Iterable[tuple[MemberKind, int]]) -> list[tuple[Tuple | None, tuple[int, ...], int]]:
    """Return members in the order in which they are packed; of those with equally many devices, a part of each kind in turn.

    Kind after kind, those that need much CPU for each device would fill nodes among themselves and leave devices idle there, while
    others that need little would leave CPU idle elsewhere.
    """
    out: list[tuple[Tuple | None, tuple[int, ...], int]] = []
    for _, equal in groupby(members, key=_many_devices):
        kinds = list(equal)
        rounds = ROUNDS if len(kinds) > 1 else 1
        for number in range(rounds):
            for kind, count in kinds:
                part = count * (number + 1) // rounds - count * number // rounds
                if part:
                    out.append((kind.need, kind.devices, part))
    return out


def _many_devices(member: tuple[MemberKind, int]) -> int:
    return member[0].many_devices


def lay_out(
    entries: Sequence[NodeBucket], members: Iterable[tuple[Tuple | None, tuple[int, ...], int]], names: Sequence[str]
) -> list[NodeBucket] | None:
    """Return the nodes of one group after its members are packed best-fit in this order; None if some member finds no node.

    Return None, too, for nodes with NUMA zones or shared devices. The result equals that of ``fill`` for one kind after the other;
    tuples make it fast, because a group with a hundred kinds of members is packed again each time a member comes or
    goes. ``members``: the needs of one member, the indexes of the devices it names, and the number of members.
    """
    group = entries[0].group
    if entries[0].zones or group.sharing is not None:
        return None
    nodes: dict[Tuple, int] = {}
    for one in entries:
        free = tuple([one.free.get(name, 0) for name in names])
        nodes[free] = nodes.get(free, 0) + one.count
    left = sorted(nodes)
    counts = [nodes[free] for free in left]
    devices = [place for place, name in enumerate(names) if "/" in name and group.free.get(name)]
    for need, named, count in members:
        if need is None:
            return None
        while count:
            place = _least_left(left, need, devices, named) if devices else _first_fit(left, need)
            if place is None:
                return None
            found = left[place]
            if count == 1:
                each = whole = 1
                after = tuple(map(sub, found, need))
            else:
                each = min(
                    [there // amount for there, amount in zip(found, need, strict=True) if amount], default=count
                )
                each = min(each, count)
                whole = min(counts[place], count // each)
                after = tuple([there - each * amount for there, amount in zip(found, need, strict=True)])
            if after != found:
                _move(left, counts, place, whole, after)
            count -= whole * each
    own = [(place, name) for place, name in enumerate(names) if name in group.free]
    return [
        NodeBucket(group, {name: free[place] for place, name in own}, many)
        for free, many in zip(left, counts, strict=True)
    ]


def _move(left: list[Tuple], counts: list[int], place: int, whole: int, after: Tuple) -> None:
    """Give ``whole`` of the nodes at ``place`` the free amounts ``after``; the order is kept."""
    is_all = counts[place] == whole
    new = bisect_left(left, after, 0, place)
    if new < place and left[new] == after:
        counts[new] += whole
        if is_all:
            del left[place], counts[place]
        else:
            counts[place] -= whole
    elif is_all and new == place:
        left[place] = after
    else:
        counts[place] -= whole
        if is_all:
            del left[place], counts[place]
        left.insert(new, after)
        counts.insert(new, whole)


def _first_fit(left: list[Tuple], need: Tuple) -> int | None:
    """Return the index of the best-fit node of a member: without devices, nodes sorted by CPU and memory are in best-fit order."""
    for place in range(bisect_left(left, need), len(left)):
        if all(map(ge, left[place], need)):
            return place
    return None


def _least_left(left: list[Tuple], need: Tuple, devices: list[int], named: tuple[int, ...]) -> int | None:
    """Return the index of the best-fit node with devices: fewest devices not needed, then fewest needed, then CPU, memory."""
    best: int | None = None
    least: tuple[int, int, Tuple] | None = None
    for place, free in enumerate(left):
        if all(map(ge, free, need)):
            needed = sum([free[one] for one in named])
            rank = (sum([free[one] for one in devices]) - needed, needed, free)
            if least is None or rank < least:
                best, least = place, rank
    return best
