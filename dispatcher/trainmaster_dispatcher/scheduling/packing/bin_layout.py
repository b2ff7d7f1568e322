"""What members leave of the nodes of one group, worked out on tuples of amounts."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import ge, sub
from typing import NamedTuple

from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket

Tuple = tuple[int, ...]
"""Amounts of the resources that a cluster has: CPU, memory, others, then devices."""


class MemberKind(NamedTuple):
    """Equivalent members on a cluster. ``rank`` puts those with the largest dominant share first."""

    rank: float
    need: Tuple | None
    """None where they need what the cluster does not have at all, or may not all be on one node: tuples do not tell nodes apart."""
    devices: tuple[int, ...]
    """The places of devices that they name."""


def lay_out(
    entries: Sequence[NodeBucket], members: Iterable[tuple[Tuple | None, tuple[int, ...], int]], names: Sequence[str]
) -> list[NodeBucket] | None:
    """What nodes of one group are left with under members, which are placed best-fit in this order; None if not all find place.

    None, too, for nodes of which NUMA zones are reported. The same as ``fill`` for one kind after the other, on tuples of amounts: a
    group with a hundred kinds of members is worked out anew each time that one of them comes or goes. Members: what one needs, the
    devices it names, how many there are.
    """
    group = entries[0].group
    if entries[0].zones:
        return None
    nodes: dict[Tuple, int] = {}
    for one in entries:
        free = tuple([one.free.get(name, 0) for name in names])
        nodes[free] = nodes.get(free, 0) + one.count
    left = sorted(nodes)
    counts = [nodes[free] for free in left]
    devices = [place for place, name in enumerate(names) if "/" in name and group.free.get(name)]
    for need, wanted, count in members:
        if need is None:
            return None
        while count:
            place = _least_left(left, need, devices, wanted) if devices else _first_fit(left, need)
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
    """So many of the nodes at a place have less left; the order is kept."""
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
    """The place of the node that a member leaves fullest: without devices, nodes sorted by CPU and memory stand in best-fit order."""
    for place in range(bisect_left(left, need), len(left)):
        if all(map(ge, left[place], need)):
            return place
    return None


def _least_left(left: list[Tuple], need: Tuple, devices: list[int], wanted: tuple[int, ...]) -> int | None:
    """The same with devices: fewest of those that it does not need, then of those that it does, then CPU, memory."""
    best: int | None = None
    least: tuple[int, int, Tuple] | None = None
    for place, free in enumerate(left):
        if all(map(ge, free, need)):
            needed = sum([free[one] for one in wanted])
            rank = (sum([free[one] for one in devices]) - needed, needed, free)
            if least is None or rank < least:
                best, least = place, rank
    return best
