"""NUMA zones of nodes: whether members find zones that satisfy their policy, and what is left of the zones. Pure.

A member of a job with the policy ``singleNode`` has to be in one zone, one with ``restricted`` in as few as would hold it on a node
with nothing of ours; other members use any zones. That is how the kubelet's topology manager admits pods. Only the node knows the zone
of a running member: members are placed where they leave the least, as on the nodes of a group. Where more than one zone is needed only
the fullest ones are tried, so a possible placement may be missed, but an impossible one is never reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.cluster_model.numa_policies import STRICT_NUMA, NumaPolicy, is_kept_by
from trainmaster.protocol.quantities import Resources

Zones = tuple[tuple[int, ...], ...]
"""The amounts in each zone of a node, in the order of ``zone_names``; sorted, as the identity of a zone does not matter."""


class ZoneRequest(NamedTuple):
    """The request of a member to the zones of a node: amounts in the order of ``zone_names``, and the largest number of zones."""

    need: tuple[int, ...]
    most: int


def zone_names(zones: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """Return the resources that belong to zones: devices first, because they decide the zone of a member."""
    names = {name for zone in zones for name in zone}
    return tuple(sorted(names, key=lambda name: ("/" not in name, name)))


def as_zones(zones: Iterable[Mapping[str, int]], names: Sequence[str]) -> Zones:
    return tuple(sorted(tuple(zone.get(name, 0) for name in names) for zone in zones))


def request_of(whole: Zones, need: tuple[int, ...], policy: str) -> ZoneRequest | None:
    """Return a member's request under a policy to nodes that have ``whole`` zones free at best; None if no number is enough."""
    most = len(whole) if policy == NumaPolicy.RESTRICTED else 1
    for many in range(1, most + 1):
        if _take(whole, need, many) is not None:
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


def drain(zones: Zones, need: tuple[int, ...]) -> Zones:
    """Take amounts from the zones one after the other, as far as available: more than a zone has cannot be in use."""
    missing = list(need)
    left = []
    for zone in zones:
        taken = [min(max(there, 0), amount) for there, amount in zip(zone, missing, strict=True)]
        missing = [amount - less for amount, less in zip(missing, taken, strict=True)]
        left.append(tuple(there - less for there, less in zip(zone, taken, strict=True)))
    return tuple(sorted(left))


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
    left = drain(chosen, need)
    return tuple(sorted((*others, *left)))


@dataclass(frozen=True, slots=True)
class NodeZones:
    """The zones of one node as its kubelet reports them."""

    policy: str
    """Policy of the kubelet's topology manager."""
    names: tuple[str, ...]
    whole: Zones
    """What they have for members at best."""
    free: Zones
    """A lower bound of what each has now."""

    @classmethod
    def of(cls, policy: str, whole: Sequence[Mapping[str, int]], free: Sequence[Mapping[str, int]]) -> "NodeZones":
        names = zone_names(whole)
        return cls(policy, names, as_zones(whole, names), as_zones(free, names))

    def keeps(self, policy: str) -> bool:
        """Return whether the node holds its members to a job's policy."""
        return is_kept_by(policy, self.policy)

    def count(self, taken: Mapping[tuple[int, ...], int], needs: Resources, policy: str, most: int) -> int:
        """Return the number of members, up to ``most``, that the node admits under a policy beside those planned on it.

        The kubelet chooses the zones, and members start in any order: what is counted is admitted whatever it chooses. So fewer are
        counted than might find zones: members that need other amounts count as if they took them from each zone, and of members that
        need several zones one is counted.

        ``taken``: those planned on it by what they need of zones, see ``need``.
        """
        if policy not in STRICT_NUMA:
            return most
        need = self.need(needs)
        before = taken.get(need, 0)
        for many in range(most, 0, -1):
            if self._admits({**taken, need: before + many}, policy):
                return many
        return 0

    def need(self, needs: Resources) -> tuple[int, ...]:
        """Return what a member needs of zones."""
        return tuple(needs.get(name, 0) for name in self.names)

    def _admits(self, members: Mapping[tuple[int, ...], int], policy: str) -> bool:
        total = tuple(sum(need[place] * many for need, many in members.items()) for place in range(len(self.names)))
        for need, many in members.items():
            others = tuple(all_of - one * many for all_of, one in zip(total, need, strict=True))
            left = tuple(
                tuple(max(0, there - less) for there, less in zip(zone, others, strict=True)) for zone in self.free
            )
            request = request_of(self.whole, need, policy)
            if request is None:
                return False
            if request.most > 1:
                if many > 1 or after(left, request, 1) is None:
                    return False
            elif sum(_fitting(zone, need, many) for zone in left) < many:
                return False
        return True


def _fitting(zone: tuple[int, ...], need: tuple[int, ...], most: int) -> int:
    return min([most, *(there // amount for there, amount in zip(zone, need, strict=True) if amount)])
