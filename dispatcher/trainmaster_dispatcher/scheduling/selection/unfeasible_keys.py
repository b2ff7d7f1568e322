"""Negative cache: the largest request that any node can satisfy. Larger requests are refused without scanning the clusters."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Reason, Verdict
from trainmaster_dispatcher.domain.shapes import RoleShape, Terms, Wishes
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size, eligible_groups, lacks, spread_role
from trainmaster_dispatcher.scheduling.selection.cluster_index import MOST_SHAPES, ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster


@dataclass(slots=True)
class CachedRefusal:
    """The reason why jobs start on no cluster: verdicts by cluster name, and the clusters that lack only
    capacity. It must not be changed.
    """

    verdicts: list[Verdict]
    full: list[int]
    reason: Reason | None = None
    """The reason built from the verdicts, once it was requested."""


@dataclass(slots=True)
class _Offer:
    """The largest free amounts on one node, for members with the same terms, on the clusters that they may go to."""

    at: int = -1
    """The number of the last change that is included."""
    most: dict[int, Resources] = field(default_factory=dict)
    """By cluster that is open to the jobs now."""
    highest: Resources = field(default_factory=dict)
    """The largest amount of each resource over these clusters."""
    lowest: Resources = field(default_factory=dict)
    """The smallest of these largest amounts; resources that one of the clusters does not have are left out."""
    eligible: list[Cluster] = field(default_factory=list)
    """Clusters that are open to the jobs once temporary reasons have ended."""
    peaks: dict[int, Resources | None] = field(default_factory=dict)
    """By such a cluster: the capacity of its largest node when empty; None where no node has the most of everything."""
    least_peak: Resources = field(default_factory=dict)
    """The smallest amounts over these largest nodes."""
    fitting: set[int] = field(default_factory=set)
    """Shapes that are known to fit on all of them when they are empty."""
    refusals: dict[tuple[str, int], CachedRefusal] = field(default_factory=dict)
    """By resource and amount: the refusal because no node has enough."""


class RefusalCache:
    """Refusals for want of a resource, by what members require of nodes and clusters besides capacity. ``lacking``
    creates a verdict."""

    def __init__(self, index: ClusterIndex, lacking: Callable[[Cluster, str], Verdict]) -> None:
        self._index = index
        self._lacking = lacking
        self._offers: dict[tuple[Terms, Wishes, Access, tuple[int, ...]], _Offer] = {}

    def blocks(self, scheduling_key: SchedulingKey, size: Size) -> CachedRefusal | None:
        """Return why equivalent jobs of this size start nowhere, if no node has enough for a member; None if that is unknown.

        It is unknown, too, if free capacity has changed since ``note`` was called for jobs with the same requirements
        besides capacity.
        """
        role = spread_role(self._index.state.shapes[scheduling_key.shape_id], size)
        if role is None or role.numa or role.exclusive or role.members_per_unit > 1:
            return None
        offer = self._offers.get(self._key(scheduling_key, role))
        if offer is None or offer.at != self._index.changes:
            return None
        for name, amount in role.needs.items():
            if amount > offer.highest.get(name, 0):
                return (
                    self._refusal_for(offer, scheduling_key, name, amount)
                    if self._fits_empty(offer, scheduling_key, role, size)
                    else None
                )
            if amount > offer.lowest.get(name, 0):
                return None  # some clusters lack this resource, others the next one
        return None

    def note(self, scheduling_key: SchedulingKey, size: Size) -> None:
        """Compute the largest free amounts: equivalent jobs were found to be blocked, so others may be."""
        role = spread_role(self._index.state.shapes[scheduling_key.shape_id], size)
        if role is None or role.numa or role.exclusive or role.members_per_unit > 1:
            return
        key = self._key(scheduling_key, role)
        offer = self._offers.get(key)
        if offer is None:
            if len(self._offers) >= MOST_SHAPES:
                self._offers.clear()
            offer = self._offers[key] = _Offer()
        if offer.at != self._index.changes:
            self._bring_up(offer, scheduling_key, role)

    def _key(self, scheduling_key: SchedulingKey, role: RoleShape) -> tuple[Terms, Wishes, Access, tuple[int, ...]]:
        return (
            role.terms,
            self._index.state.shapes[scheduling_key.shape_id].wishes,
            scheduling_key.access,
            scheduling_key.avoided,
        )

    def _bring_up(self, offer: _Offer, scheduling_key: SchedulingKey, role: RoleShape) -> None:
        index = self._index
        changed = list(index.changed_since(offer.at))
        reported = {one for one in changed if index.reported_at.get(one, 0) > offer.at}
        if reported:
            offer.most = {one: index.most_of(role, one) for one in index.open_to(scheduling_key)}
            offer.eligible = [one for one in index.clusters if index.not_allowed(scheduling_key, one) is None]
            offer.peaks = {
                one.id: _peak(role, index.empty(one)) if one.id in reported else offer.peaks.get(one.id)
                for one in offer.eligible
            }
            peaks = list(offer.peaks.values())
            offer.least_peak = _least([{} if peak is None else peak for peak in peaks])
            offer.fitting.clear()
        is_new = bool(reported)
        for one in changed:
            if one in offer.most:
                most = index.most_of(role, one)
                is_new = is_new or most != offer.most[one]
                offer.most[one] = most
        if is_new:
            found = list(offer.most.values())
            names = {name for most in found for name in most}
            offer.highest = {name: max(most.get(name, 0) for most in found) for name in names}
            offer.lowest = _least(found)
            offer.refusals.clear()
        offer.at = index.changes

    def _fits_empty(self, offer: _Offer, scheduling_key: SchedulingKey, role: RoleShape, size: Size) -> bool:
        """Return whether the gang fits on each of the clusters when it is empty."""
        if size.total == 1 and all(offer.least_peak.get(name, 0) >= amount for name, amount in role.needs.items()):
            return True
        if scheduling_key.shape_id in offer.fitting:
            return True
        if any(self._index.never(scheduling_key.shape_id, cluster) is not None for cluster in offer.eligible):
            return False
        offer.fitting.add(scheduling_key.shape_id)
        return True

    def _refusal_for(self, offer: _Offer, scheduling_key: SchedulingKey, name: str, amount: int) -> CachedRefusal:
        refusal = offer.refusals.get((name, amount))
        if refusal is None:
            verdicts = []
            for cluster in self._index.clusters:
                most = offer.most.get(cluster.id)
                if most is None:
                    verdict = self._index.not_allowed(scheduling_key, cluster) or self._index.passing(
                        scheduling_key, cluster
                    )
                else:
                    verdict = self._lacking(cluster, lacks(name, amount, most.get(name)))
                if verdict is not None:
                    verdicts.append(verdict)
            full = [cluster.id for cluster in self._index.clusters if cluster.id in offer.most]
            refusal = offer.refusals[name, amount] = CachedRefusal(verdicts, full)
        return refusal


def _peak(role: RoleShape, empty: FreeCapacity) -> Resources | None:
    """Return the capacity of the node that has the most of everything; None if there is no such node."""
    groups = eligible_groups(role, empty)
    most = empty.most(groups)
    return most if any(one.takes(most) for name in groups for one in empty.groups[name]) else None


def _least(found: list[Resources]) -> Resources:
    """Return the smallest amount of each resource that all of ``found`` have."""
    first = found[0] if found else {}
    return {name: min(one[name] for one in found) for name in first if all(name in one for one in found)}
