"""What members leave of the nodes of one group, worked out on tuples of amounts."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainmaster.dispatcher.scheduling.nodes import Nodes

Tuple = tuple[int, ...]
"""Amounts of the resources that a cluster has: CPU, memory, others, then devices."""


class MemberKind(NamedTuple):
    """Members alike on a cluster. ``rank`` puts those with the largest dominant share first."""

    rank: float
    need: Tuple | None
    """None where they need what the cluster does not have at all, or may not all be on one node: tuples do not tell nodes apart."""
    devices: tuple[int, ...]
    """The places of devices that they name."""


def lay_out(
    entries: Sequence[Nodes], members: Iterable[tuple[Tuple | None, tuple[int, ...], int]], names: Sequence[str]
) -> list[Nodes] | None:
    """What nodes of one group are left with under members, which are placed best-fit in this order; None if not all find place.

    None, too, for nodes of which NUMA zones are reported. The same as ``fill`` for one kind after the other, on tuples of amounts: a
    group with a hundred kinds of members is worked out anew each time that one of them comes or goes. Members: what one needs, the
    devices it names, how many there are.
    """
    group = entries[0].group
    if entries[0].zones:
        return None
    left: dict[Tuple, int] = {}
    for one in entries:
        free = tuple([one.free.get(name, 0) for name in names])
        left[free] = left.get(free, 0) + one.count
    keys = sorted(left)
    devices = [place for place, name in enumerate(names) if "/" in name and group.free.get(name)]
    for need, wanted, count in members:
        if need is None:
            return None
        while count:
            found = _least_left(keys, need, devices, wanted) if devices else _first_fit(keys, need)
            if found is None:
                return None
            each = whole = 1
            if count > 1:
                each = min(
                    [there // amount for there, amount in zip(found, need, strict=True) if amount], default=count
                )
                each = min(each, count)
                whole = min(left[found], count // each)
            after = tuple([there - each * amount for there, amount in zip(found, need, strict=True)])
            if after != found:
                many = left[found]
                if many == whole:
                    del left[found]
                    del keys[bisect_left(keys, found)]
                else:
                    left[found] = many - whole
                if after in left:
                    left[after] += whole
                else:
                    left[after] = whole
                    insort(keys, after)
            count -= whole * each
    own = [(place, name) for place, name in enumerate(names) if name in group.free]
    return [Nodes(group, {name: free[place] for place, name in own}, left[free]) for free in keys]


def _first_fit(keys: list[Tuple], need: Tuple) -> Tuple | None:
    """Without devices, nodes sorted by CPU and memory stand in best-fit order."""
    for place in range(bisect_left(keys, need), len(keys)):
        free = keys[place]
        for there, amount in zip(free, need, strict=True):
            if there < amount:
                break
        else:
            return free
    return None


def _least_left(keys: list[Tuple], need: Tuple, devices: list[int], wanted: tuple[int, ...]) -> Tuple | None:
    """The node that a member leaves fullest: fewest devices that it does not need, then those that it does, then CPU, memory."""
    best: Tuple | None = None
    least: tuple[int, int, Tuple] | None = None
    for free in keys:
        for there, amount in zip(free, need, strict=True):
            if there < amount:
                break
        else:
            needed = sum([free[place] for place in wanted])
            rank = (sum([free[place] for place in devices]) - needed, needed, free)
            if least is None or rank < least:
                best, least = free, rank
    return best
