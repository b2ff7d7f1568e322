"""NUMA zones of nodes: whether members find zones that satisfy their policy, and what is left of the zones.

A member of a job with the policy ``singleNode`` has to be in one zone, one with ``restricted`` in as few as would hold
it on a node with nothing of ours; other members use any zones. That is how the kubelet's topology manager admits pods.
Only the node knows the zone of a running member: the members are placed where they leave the least, as on the nodes of
a group. Where more than one zone is needed only the fullest ones are tried, so a possible placement may be missed, but
an impossible one is never reported.
"""

from typing import NamedTuple

from trainmaster.cluster_model.numa_policies import NumaPolicy
from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.quantities import Resources

Zones = tuple[tuple[int, ...], ...]
"""The free amounts in each zone of a node, in the order of ``names_of``; sorted, as the identity of a zone does not matter."""


class ZoneRequest(NamedTuple):
    """The request of a member to the zones of a node: amounts in the order of ``names_of``, and the largest number of zones."""

    need: tuple[int, ...]
    most: int


def names_of(group: NodeGroup) -> tuple[str, ...]:
    """Return the resources that belong to zones: devices first, because they decide the zone of a member."""
    if group.numa is None:
        return ()
    names = {name for zone in group.numa.zones for name in zone}
    return tuple(sorted(names, key=lambda name: ("/" not in name, name)))


def zones_of(group: NodeGroup) -> Zones:
    """Return the free amounts in the zones of a node besides our own members."""
    if group.numa is None:
        return ()
    names = names_of(group)
    return tuple(sorted(tuple(zone.get(name, 0) for name in names) for zone in group.numa.zones))


def zone_request(group: NodeGroup, needs: Resources, policy: str) -> ZoneRequest | None:
    """Return the request of a member under a policy to the zones of these nodes; None if no number of zones is enough."""
    need, zones = _need(group, needs, 1), zones_of(group)
    most = len(zones) if policy == NumaPolicy.RESTRICTED else 1
    for many in range(1, most + 1):
        if _take(zones, need, many) is not None:
            return ZoneRequest(need, many)
    return None


def after(zones: Zones, request: ZoneRequest, members: int) -> Zones | None:
    """Return the zones after ``members`` members; None if they do not find the zones that they request."""
    for _ in range(members):
        left = next(
            (left for many in range(1, request.most + 1) if (left := _take(zones, request.need, many)) is not None),
            None,
        )
        if left is None:
            return None
        zones = left
    return zones


def holds(zones: Zones, request: ZoneRequest, most: int) -> int:
    """Return the number of members, up to ``most``, that find the zones that they request."""
    for members in range(most):
        left = after(zones, request, 1)
        if left is None:
            return members
        zones = left
    return most


def spread(group: NodeGroup, zones: Zones, needs: Resources, members: int) -> Zones:
    """Return the zones after ``members`` members that request no zones, or that run although no zones satisfy their request."""
    return _drain(zones, _need(group, needs, members))


def _need(group: NodeGroup, needs: Resources, members: int) -> tuple[int, ...]:
    return tuple(needs.get(name, 0) * members for name in names_of(group))


def _take(zones: Zones, need: tuple[int, ...], many: int) -> Zones | None:
    """Take the needs of a member from one zone (of all that hold it, the fullest), or from the ``many`` zones with the
    most left."""
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
    """Take amounts from the zones one after the other, as far as available: more than a zone has cannot be in use."""
    missing = list(need)
    left = []
    for zone in zones:
        taken = [min(max(there, 0), amount) for there, amount in zip(zone, missing, strict=True)]
        missing = [amount - less for amount, less in zip(missing, taken, strict=True)]
        left.append(tuple(there - less for there, less in zip(zone, taken, strict=True)))
    return tuple(sorted(left))
