"""The index of the clusters: their free capacity, and which of them are candidates for equivalent jobs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainmaster.protocol.device_parts import counted
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Verdict
from trainmaster_dispatcher.domain.burst_policies import opens_at
from trainmaster_dispatcher.domain.datasets import ALL_THERE, Holder, Moving, has, moving
from trainmaster_dispatcher.domain.shapes import NO_WISHES, RoleShape, Shape, Wishes
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, FreeCapacity, grown
from trainmaster_dispatcher.scheduling.packing.gang_packing import (
    Fitted,
    Shortfall,
    Size,
    eligible_groups,
    fit,
    fit_many,
    has_node,
    only_role,
    size_choices,
    take,
)
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.selection.cost_estimate import Prices, cost_of, prices_of
from trainmaster_dispatcher.scheduling.selection.filters import PASSING, STATIC, Candidate, first_failing
from trainmaster_dispatcher.scheduling.selection.pool_growth import growth_now
from trainmaster_dispatcher.scheduling.selection.scores import Fit, Usage, fixed_score, score, usage_of, varies
from trainmaster_dispatcher.scheduling.selection.scores.sparing import Scarcity
from trainmaster_dispatcher.scheduling.state.changes import Changes
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster
from trainmaster_dispatcher.scheduling.state.demand import NO_DEMAND, Demand
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Flavor, Product, product_of
from trainmaster_dispatcher.scheduling.state.jobs import ClusterParts
from trainmaster_dispatcher.scheduling.state.live_runs import LoadKey

SILENT_SECONDS = 900.0
"""The time for which a silent cluster still counts as capacity."""

_NO_ACCESS = Access(frozenset())
MOST_SHAPES = 2048
_MOST_CACHED = 5000
MOST_OPTIONS = 4096
"""The largest number of cached answers, for options per cluster; when it is reached, the cache is emptied."""


@dataclass(frozen=True, slots=True)
class Option:
    """A cluster on which the gang fits now."""

    cluster: Cluster
    size: Size
    fitted: Fitted
    total: float
    parts: dict[str, float]
    weights: Weights
    cost: float
    """The expected cost of the run, in the installation's currency."""
    charge: Amounts
    product: Product | None
    scored: Fit
    """The values that its scores are computed from."""
    pools: tuple[str, ...] = ()
    """Pools that have to grow for the run."""
    wait: float = 0.0
    """The expected wait for nodes, in seconds."""
    timeout: float = 0.0
    """The additional time the run may wait for nodes, in seconds, beyond the placement timeout of the cluster."""

    def rescored(self, *, wait: float | None = None, elsewhere: float | None = None) -> "Option":
        """Return the option with other values of what is scored."""
        scored = replace(
            self.scored,
            wait=self.scored.wait if wait is None else wait,
            elsewhere=self.scored.elsewhere if elsewhere is None else elsewhere,
        )
        total, parts = score(scored, self.weights)
        return replace(self, scored=scored, total=total, parts=parts)


class SchedulingKey(NamedTuple):
    """The values that decide where a class may go and whether it fits: all classes with equal keys are blocked once one of them is."""

    shape_id: int
    sizes: int
    access: Access
    avoided: tuple[int, ...]
    entitled: tuple[int, ...] = ()
    """The advance reservations that the class is entitled to."""
    weights: Weights = BALANCED
    predecessors: ClusterParts = ()
    """Where the jobs ran that the class starts after: it only changes scores."""


class ClusterIndex:
    """The index of the clusters and values derived from them, cached from one cycle to the next.

    The state reports to the index which clusters have changed; at the start of a cycle these are rebuilt from the
    state, as are those to which the previous cycle has assigned jobs. So a cycle never depends on decisions of earlier
    cycles.
    """

    def __init__(self, layouts: ClusterLayouts) -> None:
        self.layouts = layouts
        state = self.state = layouts.state
        self.touched: set[int] = set()
        """Clusters whose load has changed since the last cycle began."""
        self.reported = set(state.clusters)
        """Clusters that have changed themselves (not only their load), were added or removed."""
        self.clusters: list[Cluster] = []
        """Sorted by name."""
        self.places: dict[int, int] = {}
        """By cluster: its index in ``clusters``."""
        self.orders = 0
        """The number of changes of these indexes."""
        self.reported_at: dict[int, int] = {}
        """By cluster: the number of the last change of the cluster itself, not of its free capacity."""
        self._now_free: dict[int, FreeCapacity] = {}
        self._changed_in_cycle: set[int] = set()
        self._later: dict[int, ReleaseTimeline] = {}
        """By cluster, with predicted run times."""
        self._later_surely: dict[int, ReleaseTimeline] = {}
        """By cluster, with time limits alone."""
        self._now = 0.0
        self._capacity: dict[int, Amounts] = {}
        self._sizes: dict[int, list[Size]] = {}
        self._allowed: dict[tuple[Wishes, Access], dict[int, Verdict | None]] = {}
        """By wishes and access: what rules a cluster out, until the cluster changes itself."""
        self._never: dict[int, dict[int, Verdict | None]] = {}
        """By shape: whether the gang fits on the empty cluster; filled on request."""
        self._passing: dict[int, Verdict | None] = {}
        self._options: dict[int, dict[tuple[int, int, Product | None, Weights, ClusterParts], Option | Shortfall]] = {}
        """By cluster, then by shape, number of sizes, product, weights and predecessors; valid until its free capacity changes."""
        self.changes = 0
        """The number of changes of the free capacity of any cluster."""
        self._changed_at: dict[int, int] = {}
        """By cluster, the latest one last: the number of its last change."""
        self._looked_at: dict[SchedulingKey, list[tuple[Cluster, Verdict | None]]] = {}
        self._open: dict[tuple[Wishes, Access, tuple[int, ...]], dict[int, Cluster]] = {}
        """The clusters that are not ruled out, whatever their free capacity; by what rules clusters out."""
        self._prices: dict[tuple[int, Product | None], Prices] = {}
        """By cluster and product; valid until the cluster changes itself."""
        self._moving: dict[tuple[Wishes, int], Moving] = {}
        """By wishes and cluster: the cost and time to move the job's data; valid until any cluster changes itself."""
        self._holders: list[Holder] = []
        self._anywhere: frozenset[str] = frozenset()
        """The data sets that are on any cluster."""
        self._troubled: dict[int, float] = {}
        """The trouble of clusters that scores are computed from."""
        self._usages: dict[int, Usage] = {}
        """By cluster; valid until its free capacity changes."""
        self.any_pools = False
        """Whether any cluster has pools that may grow."""
        self.least: Resources = {}
        """The least amount of each resource on any cluster that has the resource."""
        self._alone: dict[int, RoleShape | None] = {}
        """By shape: the role of a gang of one member that may be on any node."""
        self._scarcity = Scarcity()

    def take_in(self, changes: Changes) -> None:
        """Record changes of the state since the last cycle began."""
        self.reported |= changes.clusters
        for run, many, ends_at in changes.runs:
            self.touched.add(run.cluster_id)
            for timelines in (self._later, self._later_surely):
                later = timelines.get(run.cluster_id)
                if later is not None:
                    later.note(run, many, ends_at)

    def begin(self, now: float, demand: Demand = NO_DEMAND) -> None:
        """Begin a cycle: rebuild what has changed. ``demand``: the jobs by which it is known what is asked for devices."""
        self._take_in_demand(demand)
        if self.reported:
            self._take_in_reports()
        changed = self.touched | self._changed_in_cycle
        self._now = now
        for timelines in (self._later, self._later_surely):
            for cluster_id in self._changed_in_cycle & timelines.keys():
                timelines[cluster_id].remove_assumed()
        for cluster_id in changed & self._now_free.keys():
            fresh = self.layouts.now(cluster_id)
            fresh.rank(self._now_free[cluster_id])
            self._now_free[cluster_id] = fresh
            self._note_change(cluster_id)
        self.touched.clear()
        self._changed_in_cycle.clear()
        self._take_in_passing(now)
        self._take_in_trouble()
        if len(self._sizes) > 2 * len(self.state.shapes) + MOST_SHAPES:
            self._sizes.clear()
            self._alone.clear()
        for known in (self._never, self._allowed):
            if len(known) > _MOST_CACHED:
                known.clear()
        if len(self._open) > _MOST_CACHED:
            self._open.clear()

    def _take_in_demand(self, demand: Demand) -> None:
        """Update what is asked for devices. Clusters whose devices others ask for more or less now have changed, too."""
        state = self.state
        if not self.reported and self._scarcity.is_current(demand):
            return
        clusters = state.clusters
        for cluster_id in self.layouts.spares.keys() - clusters.keys():
            self.layouts.put_spares(cluster_id, None)
        if not self._scarcity.take_in(clusters.values(), self.reported, demand):
            return
        for cluster_id in clusters:
            spares = self._scarcity.spares(cluster_id)
            if spares != self.layouts.spares.get(cluster_id):
                self.layouts.put_spares(cluster_id, spares)
                self.reported.add(cluster_id)
            else:
                self._note_change(cluster_id)

    def _take_in_reports(self) -> None:
        self.clusters = sorted(self.state.clusters.values(), key=lambda cluster: cluster.name)
        places = {cluster.id: place for place, cluster in enumerate(self.clusters)}
        if places != self.places:
            self.places = places
            self.orders += 1
        for cluster_id in self.reported:
            self._now_free.pop(cluster_id, None)
            self._later.pop(cluster_id, None)
            self._later_surely.pop(cluster_id, None)
            self._capacity.pop(cluster_id, None)
            for known in (*self._allowed.values(), *self._never.values()):
                known.pop(cluster_id, None)
            self._note_change(cluster_id)
            self.reported_at[cluster_id] = self.changes
        self.reported.clear()
        self._prices.clear()
        holders = [cluster.holder for cluster in self.clusters]
        if holders != self._holders:
            self._holders = holders
            self._anywhere = frozenset(
                {name for one in holders for name in one.reported}
                | {name for name, one in self.state.datasets.items() if any(has(one, name, two) for two in holders)}
            )
            # The location of data affects other clusters, too.
            self._moving.clear()
            self._allowed.clear()
            if self.state.datasets:
                for cluster in self.clusters:
                    self._note_change(cluster.id)
                    self.reported_at[cluster.id] = self.changes
        self.least = {}
        self.any_pools = any(one.report is not None and one.report.pools for one in self.clusters)
        for cluster in self.clusters:
            for name, amount in self.empty(cluster).total().items():
                if amount > 0:
                    self.least[name] = min(amount, self.least.get(name, amount))
        self._looked_at.clear()
        self._open.clear()

    def _take_in_trouble(self) -> None:
        """Mark clusters whose trouble has changed, because their scores change."""
        trouble = self.state.trouble
        for cluster in self.clusters:
            if self._troubled.get(cluster.id, 0.0) != trouble.get(cluster.id, 0.0):
                self._note_change(cluster.id)
        self._troubled = dict(trouble)

    def _take_in_passing(self, now: float) -> None:
        state = self.state
        for cluster in self.clusters:
            lease = state.lease_until.get(cluster.id, now) - now
            at = opens_at(cluster.connected, now)
            candidate = Candidate(_NO_ACCESS, NO_WISHES, cluster, lease, (), connects_at=at, now=now)
            verdict = _verdict(cluster, first_failing(PASSING, candidate))
            if self._passing.get(cluster.id) != verdict:
                self._passing[cluster.id] = verdict
                self._note_change(cluster.id)
                self.reported_at[cluster.id] = self.changes
                self._looked_at.clear()
                self._open.clear()

    def _note_change(self, cluster_id: int) -> None:
        self._options.pop(cluster_id, None)
        self._usages.pop(cluster_id, None)
        self._changed_at.pop(cluster_id, None)
        self.changes += 1
        self._changed_at[cluster_id] = self.changes

    # Free capacity

    def sizes_of(self, shape_id: int) -> list[Size]:
        sizes = self._sizes.get(shape_id)
        if sizes is None:
            sizes = self._sizes[shape_id] = size_choices(self.state.shapes[shape_id])
        return sizes

    def free(self, cluster_id: int) -> FreeCapacity:
        free_capacity = self._now_free.get(cluster_id)
        if free_capacity is None:
            free_capacity = self._now_free[cluster_id] = self.layouts.now(cluster_id)
            free_capacity.rank()
        return free_capacity

    def later(self, cluster_id: int, *, is_sure: bool) -> ReleaseTimeline:
        """Return the release timeline of a cluster; the starts of this cycle may be added to it.

        ``is_sure``: with time limits alone; else with predicted run times, where these are known.
        """
        timelines = self._later_surely if is_sure else self._later
        later = timelines.get(cluster_id)
        if later is None:
            later = timelines[cluster_id] = ReleaseTimeline(self.layouts, cluster_id, self._now, is_sure=is_sure)
        later.advance(self._now)
        return later

    def empty(self, cluster: Cluster) -> FreeCapacity:
        return self.layouts.empty(cluster.id)

    def capacity(self, cluster: Cluster) -> Amounts:
        """Return the capacity of the empty cluster by flavor."""
        found = self._capacity.get(cluster.id)
        if found is None:
            found = self._capacity[cluster.id] = self._capacity_of(cluster)
        return found

    def _capacity_of(self, cluster: Cluster) -> Amounts:
        places: Amounts = {}
        for group in cluster.report.groups if cluster.report is not None else ():
            sharing = group.sharing
            for name, amount in group.free.items():
                total = counted(name, amount) * group.count
                if sharing is not None and name == sharing.resource != sharing.device:
                    device = Flavor(sharing.device, product_of(group), cluster.kind.value)
                    places[device] = places.get(device, 0) + total // sharing.replicas
                place = Flavor(name, product_of(group) if "/" in name else "", cluster.kind.value)
                places[place] = places.get(place, 0) + total
        return self.state.flavors.charge(places)

    def take(self, option: Option) -> None:
        take(self.free(option.cluster.id), option.fitted)
        self._take(option.cluster.id)

    def take_grown(self, shape_id: int, option: Option) -> None:
        """Take an option that waits for nodes of a pool: its members on such nodes become pending."""
        free_capacity = self.free(option.cluster.id)
        there = {name: entries for name, entries in option.fitted.after.items() if not name.startswith(COMING)}
        free_capacity.put(there, {})
        free_capacity.forget()
        for group, roles in option.fitted.placement.items():
            if group.startswith(COMING):
                for role, count in roles.items():
                    key = LoadKey(group, shape_id, role)
                    free_capacity.pending[key] = free_capacity.pending.get(key, 0) + count
        self._take(option.cluster.id)

    def take_fitted(self, cluster_id: int, fitted: Fitted) -> None:
        """Subtract a packing from the cluster on whose free capacity it was computed."""
        take(self.free(cluster_id), fitted)
        self._take(cluster_id)

    def is_open(self, cluster_id: int) -> bool:
        """Return whether no temporary reason rules the cluster out."""
        return self._passing.get(cluster_id) is None

    def take_many(
        self, cluster_id: int, role: RoleShape, members: int, count: int, lets: Callable[[Fitted], bool]
    ) -> tuple[list[dict[str, int]], Fitted | None]:
        """Place up to ``count`` more gangs of one role on a cluster; return the members by group for each gang, and one
        packing of all.

        ``lets`` returns whether nothing else forbids a packing. The number is halved until it does not, so it may be
        less than possible.
        """
        while count:
            gangs, fitted = fit_many(role, members, count, self.free(cluster_id))
            if not gangs:
                break
            if lets(fitted):
                take(self.free(cluster_id), fitted)
                self._take(cluster_id)
                return gangs, fitted
            count = len(gangs) // 2
        return [], None

    def replace(self, cluster_id: int, free_capacity: FreeCapacity) -> None:
        """Replace the free capacity of a cluster after runs were ended there for a job."""
        free_capacity.rank(self._now_free.get(cluster_id))
        self._now_free[cluster_id] = free_capacity
        self._take(cluster_id)

    def _take(self, cluster_id: int) -> None:
        self._changed_in_cycle.add(cluster_id)
        self._note_change(cluster_id)

    # What rules a cluster out

    def never_fits(self, shape_id: int, cluster: Cluster) -> tuple[Check, str] | None:
        """Return why the smallest size of the gang does not fit on the empty cluster; None if it does.

        The check is ``NO_ROOM`` if the gang fits on nodes of the cluster's pools that do not exist now.
        """
        shape, size = self.state.shapes[shape_id], self.sizes_of(shape_id)[-1]
        outcome = fit(shape, size.members, self.empty(cluster))
        if not isinstance(outcome, Shortfall):
            return None
        if cluster.report is not None and cluster.report.pools:
            ever = fit(shape, size.members, grown(self.empty(cluster), self.state, cluster.id, ever=True))
            if isinstance(ever, Fitted):
                return Check.NO_ROOM, f"it fits on nodes that its pools bring, and {growth_now(cluster.report.pools)}"
        return Check.NEVER_FITS, outcome.sentence

    def _alone_of(self, shape_id: int) -> RoleShape | None:
        """Return the role of a gang whose smallest size is one member that may be on any node; None for other gangs."""
        try:
            return self._alone[shape_id]
        except KeyError:
            alone = self._alone[shape_id] = only_role(self.state.shapes[shape_id], self.sizes_of(shape_id)[-1])
            return alone

    def never(self, shape_id: int, cluster: Cluster) -> Verdict | None:
        """Return the verdict on a cluster on which the gang can never fit; None if it can."""
        known = self._never.get(shape_id)
        if known is None:
            known = self._never[shape_id] = {}
        elif cluster.id in known:
            return known[cluster.id]
        verdict, alone = None, self._alone_of(shape_id)
        if alone is None or not has_node(alone, self.empty(cluster)):
            verdict = _verdict(cluster, self.never_fits(shape_id, cluster))
        known[cluster.id] = verdict
        return verdict

    def not_allowed(self, scheduling_key: SchedulingKey, cluster: Cluster) -> Verdict | None:
        """Return the verdict on a cluster that the job itself or its queue rules out; None if neither does."""
        wishes = self.state.shapes[scheduling_key.shape_id].wishes
        known = self._allowed.get((wishes, scheduling_key.access))
        if known is None:
            known = self._allowed[wishes, scheduling_key.access] = {}
        if cluster.id not in known:
            candidate = Candidate(scheduling_key.access, wishes, cluster, 0.0, (), self.state.datasets, self._anywhere)
            known[cluster.id] = _verdict(cluster, first_failing(STATIC, candidate))
        return known[cluster.id]

    def passing(self, scheduling_key: SchedulingKey, cluster: Cluster) -> Verdict | None:
        """Return the verdict on a cluster that is ruled out by a temporary reason; None if it is not."""
        verdict = self._passing.get(cluster.id)
        if verdict is None and cluster.id in scheduling_key.avoided:
            verdict = _verdict(
                cluster, first_failing(PASSING, Candidate(_NO_ACCESS, NO_WISHES, cluster, 1.0, scheduling_key.avoided))
            )
        return verdict

    def looked_at(self, scheduling_key: SchedulingKey) -> list[tuple[Cluster, Verdict | None]]:
        """Return the clusters by name for equivalent jobs, with the verdict that rules each out whatever its free capacity."""
        found = self._looked_at.get(scheduling_key)
        if found is None:
            if len(self._looked_at) > MOST_SHAPES:
                self._looked_at.clear()
            found = self._looked_at[scheduling_key] = [
                (cluster, self.ruled_out(scheduling_key, cluster)) for cluster in self.clusters
            ]
        return found

    def ruled_out(self, scheduling_key: SchedulingKey, cluster: Cluster) -> Verdict | None:
        first, never = self.not_allowed(scheduling_key, cluster), self.never(scheduling_key.shape_id, cluster)
        if first is None and never is not None and never.check is Check.NO_ROOM:
            # Its pools could add nodes, so a temporary reason comes first.
            return self.passing(scheduling_key, cluster) or never
        return first or never or self.passing(scheduling_key, cluster)

    # Where gangs fit

    def moving(self, shape_id: int, cluster: Cluster) -> Moving:
        """Return the cost and time to move the data of a job there."""
        wishes = self.state.shapes[shape_id].wishes
        if not wishes.datasets:
            return ALL_THERE
        found = self._moving.get((wishes, cluster.id))
        if found is None:
            if len(self._moving) > _MOST_CACHED:
                self._moving.clear()
            found = moving(wishes.datasets, self.state.datasets, cluster.holder, self._holders)
            self._moving[wishes, cluster.id] = found
        return found

    def varies(self, shape_id: int, weights: Weights, predecessors: ClusterParts = ()) -> bool:
        """Return whether ``fixed`` may be less on any cluster than it can be."""
        wishes = self.state.shapes[shape_id].wishes
        return varies(
            weights,
            with_data=bool(wishes.datasets),
            with_preferences=bool(wishes.preferred),
            with_trouble=bool(self._troubled),
            with_predecessors=bool(predecessors),
        )

    def fixed(self, shape_id: int, cluster: Cluster, weights: Weights, predecessors: ClusterParts = ()) -> float:
        """Return the weighted sum of the scores that depend on the cluster alone."""
        return fixed_score(self._fit_of(shape_id, cluster, predecessors), weights)

    def common(self, shape_id: int, free_capacity: FreeCapacity, product: Product | None = None) -> float:
        """Return how common in the fleet the devices are that a gang takes from ``free_capacity``; see ``Scarcity.part``."""
        return self._scarcity.part(self.state.shapes[shape_id], free_capacity, product)

    def is_choosy(self, shape_id: int) -> bool:
        """Return whether ``common`` matters for the shape."""
        return self._scarcity.is_choosy(self.state.shapes[shape_id])

    def takes_equally(self, shape_id: int, cluster_id: int, first: Iterable[str], others: Iterable[str]) -> bool:
        """Return whether members in the groups ``others`` take equally common devices as those in ``first``."""
        return self._scarcity.takes_equally(self.state.shapes[shape_id], self.free(cluster_id), first, others)

    def _fit_of(self, shape_id: int, cluster: Cluster, predecessors: ClusterParts) -> Fit:
        """Return all scored values that do not depend on the free capacity of a cluster."""
        wishes = self.state.shapes[shape_id].wishes
        part = 1.0
        if predecessors:
            part = next((part for cluster_id, part in predecessors if cluster_id == cluster.id), 0.0)
        if not wishes.datasets and not wishes.preferred:
            return Fit(cluster, {}, {}, {}, trouble=self._troubled.get(cluster.id, 0.0), predecessors=part)
        moved = self.moving(shape_id, cluster)
        whole = sum(weight for _, weight in wishes.preferred)
        met = sum(
            weight
            for selector, weight in wishes.preferred
            if all(cluster.labels.get(key) == value for key, value in selector)
        )
        return Fit(
            cluster,
            {},
            {},
            {},
            wait=moved.seconds,
            local=moved.local,
            trouble=self._troubled.get(cluster.id, 0.0),
            preferred=met / whole if whole else 1.0,
            predecessors=part,
        )

    def cost(self, shape_id: int, size: Size, cluster: Cluster, product: Product | None = None) -> float:
        """Return the expected cost of a run of this size there, including the data that has to be moved."""
        egress = self.moving(shape_id, cluster).cost if self.state.shapes[shape_id].datasets else 0.0
        if cluster.tariff.is_free:
            return egress
        key = cluster.id, product
        prices = self._prices.get(key)
        if prices is None:
            prices = self._prices[key] = prices_of(cluster, product)
        return egress + cost_of(self.state.shapes[shape_id], size.needs, prices)

    def option(
        self,
        shape_id: int,
        sizes: list[Size],
        cluster: Cluster,
        product: Product | None,
        weights: Weights = BALANCED,
        predecessors: ClusterParts = (),
    ) -> Option | Shortfall:
        """Return the largest of these sizes that fits on a cluster now; ``sizes`` are identified by their number."""
        known = self._options.get(cluster.id)
        if known is None:
            known = self._options[cluster.id] = {}
        key = (shape_id, len(sizes), product, weights, predecessors)
        outcome = known.get(key)
        if outcome is None:
            if len(known) >= MOST_OPTIONS:
                known.clear()
            outcome = known[key] = self._option(shape_id, sizes, cluster, product, weights, predecessors)
        return outcome

    def option_grown(
        self,
        shape_id: int,
        sizes: Sequence[Size],
        cluster: Cluster,
        product: Product | None,
        weights: Weights,
        *,
        alone: bool,
        groups: frozenset[str] | None = None,
        predecessors: ClusterParts = (),
    ) -> Option | Shortfall:
        """Return the largest of these sizes that fits once pools of the cluster have grown; ``alone``: only on nodes of the pools.

        ``groups``: the node groups that may be used; pools have the names of the groups that they would add.
        """
        free_capacity = grown(self.free(cluster.id), self.state, cluster.id, alone=alone)
        if groups is not None:
            free_capacity = FreeCapacity(
                {name: entries for name, entries in free_capacity.groups.items() if name in groups}
            )
        outcome = self._option(shape_id, list(sizes), cluster, product, weights, predecessors, free_capacity)
        if not isinstance(outcome, Option):
            return outcome
        pools = tuple(sorted(name.removeprefix(COMING) for name in outcome.fitted.placement if name.startswith(COMING)))
        learnt = [self.state.learnt_of(cluster.id, pool) for pool in pools]
        wait = max((one.expected for one in learnt), default=0.0)
        timeout = max((one.timeout for one in learnt), default=0.0)
        moved = self.moving(shape_id, cluster).seconds
        grown_option = replace(outcome, pools=pools, wait=wait, timeout=max(0.0, timeout - cluster.placement_timeout))
        return grown_option.rescored(wait=wait + moved)

    def option_among(
        self,
        shape_id: int,
        sizes: Sequence[Size],
        cluster: Cluster,
        product: Product | None,
        groups: frozenset[str],
        weights: Weights = BALANCED,
        predecessors: ClusterParts = (),
    ) -> Option | Shortfall:
        """Return the largest of these sizes that fits into the node groups ``groups`` of a cluster now."""
        free = self.free(cluster.id).groups
        free_capacity = FreeCapacity({name: entries for name, entries in free.items() if name in groups})
        return self._option(shape_id, list(sizes), cluster, product, weights, predecessors, free_capacity)

    def _option(
        self,
        shape_id: int,
        sizes: list[Size],
        cluster: Cluster,
        product: Product | None,
        weights: Weights,
        predecessors: ClusterParts,
        among: FreeCapacity | None = None,
    ) -> Option | Shortfall:
        state, whole = self.state, self.free(cluster.id)
        shape, free_capacity = state.shapes[shape_id], whole if among is None else among
        shortfall = Shortfall("")
        for size in sizes:
            outcome = fit(shape, size.members, free_capacity, product)
            if isinstance(outcome, Fitted):
                cost = self.cost(shape_id, size, cluster, product)
                known = self._fit_of(shape_id, cluster, predecessors)
                scored = Fit(
                    cluster,
                    whole.total(),
                    self.empty(cluster).total(),
                    size.needs,
                    cost,
                    known.wait,
                    known.local,
                    known.trouble,
                    known.preferred,
                    _domains(shape, outcome, free_capacity),
                    common=self.common(shape_id, free_capacity, product),
                    predecessors=known.predecessors,
                )
                total, parts = score(scored, weights)
                charge = size.charge
                if state.flavors.any_narrowed:
                    members = (
                        (group, role, count)
                        for group, roles in outcome.placement.items()
                        for role, count in roles.items()
                    )
                    charge = state.flavors.charge(state.places_at(cluster.id, shape_id, members))
                return Option(cluster, size, outcome, total, parts, weights, cost, charge, product, scored)
            shortfall = outcome
        return shortfall

    def may_fit(self, shape_id: int, size: Size, cluster: Cluster) -> bool:
        """Return whether a member of each role finds a node now: a quick check before the full fit."""
        free_capacity = self._now_free.get(cluster.id) or self.free(cluster.id)
        for role in self.state.shapes[shape_id].roles:  # a generator would take twice as long here
            if size.members.get(role.name) and not has_node(role, free_capacity):
                return False
        return True

    def changed_since(self, seen: int) -> Iterator[int]:
        """Yield the clusters with a change after number ``seen``."""
        changed_at = self._changed_at
        for cluster_id in reversed(changed_at):
            if changed_at[cluster_id] <= seen:
                return
            yield cluster_id

    def most_of(self, role: RoleShape, cluster_id: int) -> Resources:
        """Return the largest free amounts on one node that is eligible for a role's members."""
        free_capacity = self.free(cluster_id)
        return free_capacity.most(eligible_groups(role, free_capacity))

    def usage(self, cluster: Cluster) -> Usage:
        """Return what is in use on the cluster, which its scores are computed from."""
        found = self._usages.get(cluster.id)
        if found is None:
            found = usage_of(self.free(cluster.id).total(), self.empty(cluster).total())
            self._usages[cluster.id] = found
        return found

    def open_to(self, scheduling_key: SchedulingKey) -> dict[int, Cluster]:
        """Return the clusters that are not ruled out for equivalent jobs, whatever their free capacity; the gang may
        never fit on some."""
        key = (self.state.shapes[scheduling_key.shape_id].wishes, scheduling_key.access, scheduling_key.avoided)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = {
                cluster.id: cluster
                for cluster in self.clusters
                if self.not_allowed(scheduling_key, cluster) is None and self.passing(scheduling_key, cluster) is None
            }
        return found


def _domains(shape: Shape, fitted: Fitted, free_capacity: FreeCapacity) -> int:
    """Return the number of domains of its preferred level that a gang is spread over; each group outside of any domain
    counts as one."""
    level = shape.preferred_level
    if level is None:
        return 1
    found = set()
    for name in fitted.placement:
        path: list[tuple[str, str]] = []
        for at, value in free_capacity.groups[name][0].group.topology if free_capacity.groups.get(name) else ():
            path.append((at, value))
            if at == level:
                break
        else:
            path = [("", name)]
        found.add(tuple(path))
    return max(1, len(found))


def _verdict(cluster: Cluster, failing: tuple[Check, str] | None) -> Verdict | None:
    return None if failing is None else Verdict(cluster=cluster.name, check=failing[0], sentence=failing[1])


def capacity(index: ClusterIndex, now: float) -> Amounts:
    """Return the capacity of all clusters by flavor, the measure of shares. A silent cluster counts for a while."""
    total: Amounts = {}
    state = index.state
    for cluster in state.clusters.values():
        if cluster.report is None or state.lease_until.get(cluster.id, 0.0) + SILENT_SECONDS < now:
            continue
        for flavor, amount in index.capacity(cluster).items():
            total[flavor] = total.get(flavor, 0) + amount
    return total
