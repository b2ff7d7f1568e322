"""NUMA zones of nodes: whether members find the zones that their policy asks for, and what is left of them.

A member of a job with the policy ``singleNode`` has to be in one zone, one with ``restricted`` in as few as would hold it on a node
with nothing of ours; others take of any. That is how the kubelet's topology manager admits pods. Which zone a running member is in
only its node knows: members are laid out where they leave least, as on the nodes of a group. Where more than one zone is needed only
the fullest ones are tried, so that a place may be missed, and none is made up.
"""

from typing import NamedTuple

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.quantities import Resources

Zones = tuple[tuple[int, ...], ...]
"""What is free in each zone of a node, in the order of ``names_of``; sorted, as it does not matter which one is which."""


class Asks(NamedTuple):
    """What a member asks of the zones of a node: how much, in the order of ``names_of``, and of how many zones at most."""

    need: tuple[int, ...]
    most: int


def names_of(group: NodeGroup) -> tuple[str, ...]:
    """The resources that belong to zones: devices first, for they tell which zone a member is in."""
    if group.numa is None:
        return ()
    names = {name for zone in group.numa.zones for name in zone}
    return tuple(sorted(names, key=lambda name: ("/" not in name, name)))


def zones_of(group: NodeGroup) -> Zones:
    """What is free in the zones of a node beside our own members."""
    if group.numa is None:
        return ()
    names = names_of(group)
    return tuple(sorted(tuple(zone.get(name, 0) for name in names) for zone in group.numa.zones))


def asks(group: NodeGroup, needs: Resources, policy: str) -> Asks | None:
    """What a member under a policy asks of the zones of these nodes; None if no number of them is enough."""
    need, zones = _need(group, needs, 1), zones_of(group)
    most = len(zones) if policy == "restricted" else 1
    for many in range(1, most + 1):
        if _take(zones, need, many) is not None:
            return Asks(need, many)
    return None


def after(zones: Zones, asked: Asks, members: int) -> Zones | None:
    """What so many members leave; None if they do not find the zones that they ask for."""
    for _ in range(members):
        left = next(
            (left for many in range(1, asked.most + 1) if (left := _take(zones, asked.need, many)) is not None), None
        )
        if left is None:
            return None
        zones = left
    return zones


def holds(zones: Zones, asked: Asks, most: int) -> int:
    """How many members, at most so many, find the zones that they ask for."""
    for members in range(most):
        left = after(zones, asked, 1)
        if left is None:
            return members
        zones = left
    return most


def spread(group: NodeGroup, zones: Zones, needs: Resources, members: int) -> Zones:
    """What so many members leave that ask for nothing, or that are there though they do not find what they ask for."""
    return _drain(zones, _need(group, needs, members))


def _need(group: NodeGroup, needs: Resources, members: int) -> tuple[int, ...]:
    return tuple(needs.get(name, 0) * members for name in names_of(group))


def _take(zones: Zones, need: tuple[int, ...], many: int) -> Zones | None:
    """A member takes what it needs of one zone, of all that hold it the fullest, or else of so many with the most left."""
    if many == 1:
        for place, zone in enumerate(zones):
            if all(there >= amount for there, amount in zip(zone, need, strict=True)):
                rest = tuple(there - amount for there, amount in zip(zone, need, strict=True))
                return tuple(sorted((*zones[:place], rest, *zones[place + 1 :])))
        return None
    chosen, others = zones[-many:], zones[:-many]
    if any(sum(there) < amount for there, amount in zip(zip(*chosen, strict=True), need, strict=True)):
        return None
    left = _drain(chosen, need)
    return tuple(sorted((*others, *left)))


def _drain(zones: Zones, need: tuple[int, ...]) -> Zones:
    """Take amounts of zones one after the other, as far as they are there: more than there is cannot be in use."""
    missing = list(need)
    left = []
    for zone in zones:
        taken = [min(max(there, 0), amount) for there, amount in zip(zone, missing, strict=True)]
        missing = [amount - less for amount, less in zip(missing, taken, strict=True)]
        left.append(tuple(there - less for there, less in zip(zone, taken, strict=True)))
    return tuple(sorted(left))
