"""Consolidation: runs that are moved so that a gang fits which needs their room in one piece.

A gang may find enough free capacity in all, and yet no cluster, node, rack or product of a device with enough of it. If queues allow
it, the fewest runs that stand in the way are ended, and their jobs start again in the other pieces, where there is room for all of
them at once: on the same cluster or on another one. It costs the work that they lose, and their restart.

A run may be moved if its job saves its state (``checkpoint``) or has run for a short time only, its class is preemptible, and the time
for which its queue protects runs is over. Moves never go round in a circle: each starts a job that waited, ends only runs that have
room elsewhere, neither moves a job twice in a day nor serves one twice or that was moved itself. Until a moved job has started
again, its room is kept.

Inside a node group, what is free in one piece depends on the nodes of the members there. They are not part of the state: a plan names
the clusters for which a search needs them, and the search is made once they were read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.cluster_model.best_fit import dominant
from trainmaster.cluster_model.capabilities import Capability
from trainmaster_dispatcher.domain.run_times import expected_end
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, fit, products_on, take
from trainmaster_dispatcher.scheduling.packing.node_layout import NodeKey, NodeLayout
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan, VictimSearch
from trainmaster_dispatcher.scheduling.preemption.what_if import Victim, WhatIf
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.reservations.backfill import Reservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Product
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun
from trainmaster_dispatcher.scheduling.state.member_nodes import MEMBER_NODES_SECONDS
from trainmaster_dispatcher.scheduling.state.plan import Moved

_HOUR, _DAY = 3600.0, 86_400.0
_SOON = 300.0
"""Nothing is moved for a gang that is expected to start within this many seconds anyway."""
_PAUSE = 30.0
"""The least seconds between two searches for the same shape, as one may take long and little changes meanwhile."""
_RESTART = 120.0
"""The seconds for which the room of a moved run is kept at most, beyond the time that its members have to end."""
_MOST_FITS = 50
"""The largest number of packings that are tried for one gang on one cluster by removing each run alone, those of each node, of each
group, and all; what one of these leaves over may be used by the next."""
_MOST_CANDIDATES = 2000
"""The largest number of runs of a cluster that are considered, the cheapest first."""


class _Candidate(NamedTuple):
    """A run that may be moved, the member-seconds of work that are lost, and its dominant share of the cluster."""

    victim: Victim
    lost: float
    share: float


@dataclass(slots=True)
class Consolidation:
    """The search for moves in one cycle."""

    index: ClusterIndex
    victims: VictimSearch
    reservations: Reservations
    advance: AdvanceReservations
    now: float
    moved: list[Moved]
    """The moves of the last day, those of this cycle included."""
    searched: dict[int, float]
    """By shape: when moves for it were last searched for in vain."""
    needs_nodes: set[int] = field(default_factory=set, init=False)
    """The clusters whose members' nodes have to be read for a search."""
    _fits_left: int = field(default=0, init=False)
    _kept: dict[ClassKey, list[Moved]] = field(default_factory=dict, init=False)
    """By class of jobs: those that were moved, for which room is kept in this cycle."""

    def __post_init__(self) -> None:
        self.moved = [one for one in self.moved if one.at > self.now - _DAY]
        self.searched = {shape_id: at for shape_id, at in self.searched.items() if at > self.now - _PAUSE}

    def find(
        self,
        job: WaitingJob,
        key: ClassKey,
        queue: Queue,
        size: Size,
        clusters: Iterable[int],
        returned_by: Iterable[int] = (),
    ) -> PreemptionPlan | None:
        """Return the start of a gang on one of these clusters for which the fewest runs are moved; None if none helps.

        ``clusters``: those that lack capacity for it. ``returned_by``: those that have enough but returned it for want of room.
        """
        state = self.index.state
        waited = self.now - job.waits_since
        if waited < state.consolidates_after or key.shape_id in self.searched:
            return None
        if any(job.id in (one.job_id, one.for_id) for one in self.moved):
            return None
        best: tuple[tuple[int, float], PreemptionPlan] | None = None
        device = self.victims.device(queue, size)
        returned = set(returned_by)
        tried: list[tuple[int, list[_Candidate]]] = []
        waits_for_nodes = False
        for cluster_id in (*clusters, *sorted(returned)):
            if self._may_change(cluster_id, key.shape_id, size, was_returned=cluster_id in returned):
                candidates = self._candidates(cluster_id, waited)
                if candidates:
                    tried.append((cluster_id, candidates))
                    waits_for_nodes |= not self._has_nodes(cluster_id)
        if waits_for_nodes:
            return None  # They are read before the next cycle.
        for cluster_id, candidates in tried:
            nodes = self._layout(cluster_id)
            if nodes is None and cluster_id in returned:
                continue
            for product in products_on(state.clusters[cluster_id].report, device):
                found = self._on(cluster_id, product, candidates, key, queue, size, nodes)
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
        if best is None:
            self.searched[key.shape_id] = self.now
            return None
        return best[1]

    def _has_nodes(self, cluster_id: int) -> bool:
        """Return whether the nodes of a cluster's members were read lately, or nobody reads them; request them otherwise."""
        known = self.index.state.member_nodes
        if known is None or (cluster_id in known and known[cluster_id].at > self.now - MEMBER_NODES_SECONDS):
            return True
        self.needs_nodes.add(cluster_id)
        return False

    def _layout(self, cluster_id: int) -> NodeLayout | None:
        """Return the nodes of a cluster one by one; None if nobody reads them, or it has members on nodes that are not reported."""
        known, cleared = self.index.state.member_nodes, self.victims.cleared(cluster_id)
        if known is None or cleared.has_strays:
            return None
        return NodeLayout(self.victims.layouts, cluster_id, cleared.load, known[cluster_id])

    def note(self, plan: PreemptionPlan, job: WaitingJob) -> None:
        """Record that the moves of a plan for a job are decided, and keep the room where the runs are to start again."""
        state = self.index.state
        for victim in plan.victims:
            run, allowed_by = victim.run, state.consolidation_of(victim.run.queue_id)
            if victim.moves_to is not None and allowed_by is not None:
                until = self.now + state.shapes[run.shape_id].stop_seconds + _RESTART
                self.moved.append(Moved(self.now, run.job_id, allowed_by.id, victim.moves_to, until, run.sizes, job.id))
                self._keep(self.moved[-1])

    def keep_homes(self) -> None:
        """Take the room from the free capacity that is kept for runs that were moved in earlier cycles and have not started again."""
        for one in self.moved:
            if one.until > self.now:
                self._keep(one)

    def _keep(self, one: Moved) -> None:
        state = self.index.state
        run, job = state.runs.get(one.job_id), state.jobs.get(one.job_id)
        if job is not None:
            key = state.key_of(job)
        elif run is not None and (run.is_stopping or one.at == self.now):
            user = run.user if state.grouping_of(run.queue_id).tells_apart else ""
            key = ClassKey(run.queue_id, run.class_id, run.shape_id, (), user)
        else:
            return  # it has started again, or has ended
        if one.home in state.clusters and key.shape_id in state.shapes:
            fitted = fit(state.shapes[key.shape_id], dict(one.sizes), self.index.free(one.home))
            if isinstance(fitted, Fitted):
                self.index.take_fitted(one.home, fitted)
                self._kept.setdefault(key, []).append(one)

    def release(self, key: ClassKey) -> bool:
        """Give the room back that is kept for waiting jobs of a class, which has its turn; return whether any was."""
        kept = self._kept.get(key) if self._kept else None
        if not kept or not any(one.job_id in self.index.state.jobs for one in kept):
            return False
        del self._kept[key]
        for cluster_id in {one.home for one in kept}:
            self.index.replace(cluster_id, self.victims.free_capacity(cluster_id))
            others = [(of, one) for of, some in self._kept.items() for one in some if one.home == cluster_id]
            for of, one in others:
                self._kept[of].remove(one)
            for _, one in others:
                self._keep(one)
        return True

    def is_kept_for(self, key: ClassKey) -> bool:
        """Return whether room is kept for moved jobs of a class."""
        return key in self._kept

    def _may_change(self, cluster_id: int, shape_id: int, size: Size, *, was_returned: bool) -> bool:
        """Return whether runs may be moved on a cluster: nothing stops there or is kept, and the gang has to wait otherwise.

        When a gang fits is not known by node groups where its cluster has returned it.
        """
        return (
            self.victims.is_settled(cluster_id)
            and cluster_id not in self.reservations.kept
            and not self.advance.is_on(cluster_id)
            and (was_returned or self.reservations.earliest(cluster_id, shape_id, size) > self.now + _SOON)
        )

    def _candidates(self, cluster_id: int, waited: float) -> list[_Candidate]:
        """Return the runs of a cluster that may be moved for a job that has waited for so long, the cheapest first."""
        state = self.index.state
        left, moved = self._moves_left(), {one.job_id for one in self.moved}
        found: list[_Candidate] = []
        there = self.victims.layouts.empty(cluster_id).total()
        for run in state.runs_on.get(cluster_id, {}).values():
            allowed_by = state.consolidation_of(run.queue_id)
            if allowed_by is None or allowed_by.consolidation is None or run.job_id in moved or run.burst is not None:
                continue
            of = state.classes.get(run.class_id)
            if left[allowed_by.id] <= 0 or waited < allowed_by.consolidation.after or of is None or not of.preemptible:
                continue
            saves = Capability.CHECKPOINT in state.shapes[run.shape_id].capabilities
            if (saves or self.now - run.began_at <= allowed_by.consolidation.most_lost) and self.victims.may_end(run):
                lost = 0.0 if saves else self.victims.work(run)
                share = dominant(state.shapes[run.shape_id].total, there)
                found.append(_Candidate(self.victims.rest_of(run, None, by_class=False), lost, share))
        found.sort(key=lambda one: (one.lost, one.share, one.victim.run.job_id))
        return found[:_MOST_CANDIDATES]

    def _on(
        self,
        cluster_id: int,
        product: Product | None,
        candidates: list[_Candidate],
        key: ClassKey,
        queue: Queue,
        size: Size,
        nodes: NodeLayout | None,
    ) -> tuple[tuple[int, float], PreemptionPlan] | None:
        """Return the cheapest moves found on a cluster, with their number and the work lost."""
        what_if = self.victims.what_if(cluster_id, key, size, product, nodes)
        if not what_if.could_ever_fit() or (nodes is not None and self._fits_soon(what_if, queue, cluster_id)):
            return None
        lost = {one.victim.run.job_id: one.lost for one in candidates}
        best: tuple[tuple[int, float], PreemptionPlan] | None = None
        self._fits_left = 0
        for attempts in _attempts(candidates, nodes):
            self._fits_left += _MOST_FITS
            for among in attempts:
                if self._fits_left <= 0 or (best is not None and best[0][0] == 1):
                    break
                best = self._cheaper(best, cluster_id, what_if, queue, among, lost, product)
        return best

    def _cheaper(
        self,
        best: tuple[tuple[int, float], PreemptionPlan] | None,
        cluster_id: int,
        what_if: WhatIf,
        queue: Queue,
        among: list[_Candidate],
        lost: Mapping[int, float],
        product: Product | None,
    ) -> tuple[tuple[int, float], PreemptionPlan] | None:
        """Return the moves of some of these runs if they help and cost less than ``best``, which is returned otherwise."""
        for chosen, fitted in self._clear(what_if, queue, among):
            price = len(chosen), sum(lost[one.run.job_id] for one in chosen)
            if best is not None and best[0] <= price:
                continue
            homes = self._homes(cluster_id, what_if, chosen, fitted) if self._within(chosen) else None
            charge = what_if.charge_of(fitted)
            if homes is None or not self._keeps_limits(what_if, queue, chosen, charge):
                continue
            victims = tuple(one._replace(moves_to=homes[one.run.job_id]) for one in chosen)
            size = what_if.size
            best = price, PreemptionPlan(cluster_id, victims, size, fitted, charge, at_once=True, product=product)
        return best

    def _fits_soon(self, what_if: WhatIf, queue: Queue, cluster_id: int) -> bool:
        """Return whether a gang fits on the nodes as they are, once the runs have ended that are expected to end soon."""
        state = self.index.state
        ending: list[Victim] = []
        try:
            for run in state.runs_on.get(cluster_id, {}).values():
                latest = state.ends_at(run)
                expected = latest
                if run.predicted_seconds is not None:
                    expected = expected_end(run.began_at, run.predicted_seconds, latest, self.now)
                if expected <= self.now + _SOON:
                    ending.append(self.victims.rest_of(run, None, by_class=False))
                    what_if.let_go(ending[-1])
            return what_if.fits(queue) is not None
        finally:
            for victim in ending:
                what_if.put_back(victim)

    def _clear(
        self, what_if: WhatIf, queue: Queue, among: Iterable[_Candidate]
    ) -> Iterator[tuple[list[Victim], Fitted]]:
        """Remove these runs one after the other until the gang fits, and yield those of them that have to go; then put them back."""
        chosen: list[Victim] = []
        try:
            fitted: Fitted | None = None
            for one in among:
                chosen.append(one.victim)
                what_if.let_go(one.victim)
                if what_if.may_have_helped(one.victim) and (fitted := self._fits(what_if, queue)) is not None:
                    break
                if self._fits_left <= 0:
                    return
            if fitted is None:
                return
            for victim in list(reversed(chosen[:-1])):
                what_if.put_back(victim)
                again = self._fits(what_if, queue)
                if again is None:
                    what_if.let_go(victim)
                else:
                    fitted = again
                    chosen.remove(victim)
            yield chosen, fitted
        finally:
            for victim in chosen:
                what_if.put_back(victim)

    def _fits(self, what_if: WhatIf, queue: Queue) -> Fitted | None:
        self._fits_left -= 1
        return what_if.fits(queue)

    def _moves_left(self) -> Counter[int]:
        """Return, by queue that lets its runs be moved, the number of further moves within this hour."""
        terms = ((queue.id, queue.consolidation) for queue in self.index.state.queues.values())
        left = Counter({queue_id: one.most_an_hour for queue_id, one in terms if one is not None})
        left.subtract(one.queue_id for one in self.moved if one.at > self.now - _HOUR)
        return left

    def _within(self, chosen: Iterable[Victim]) -> bool:
        """Return whether each queue allows that many moves within an hour."""
        left = self._moves_left()
        for victim in chosen:
            allowed_by = self.index.state.consolidation_of(victim.run.queue_id)
            left[0 if allowed_by is None else allowed_by.id] -= 1
        return min(left.values()) >= 0

    def _keeps_limits(self, what_if: WhatIf, queue: Queue, chosen: Iterable[Victim], charge: Amounts) -> bool:
        """Return whether the gang is within its quota while the runs that are moved still run."""
        for victim in chosen:
            what_if.put_back(victim)
        try:
            return what_if.quotas.obstacle(queue.id, charge, user=what_if.key.user) is None
        finally:
            for victim in chosen:
                what_if.let_go(victim)

    def _homes(self, cluster_id: int, what_if: WhatIf, chosen: list[Victim], fitted: Fitted) -> dict[int, int] | None:
        """Return the cluster where each of these runs has room beside the gang and each other; None if not all have."""
        here = what_if.free_capacity()
        take(here, fitted)
        free = {cluster_id: here}
        homes: dict[int, int] = {}
        for victim in sorted(chosen, key=lambda one: (-sum(many for _, many in one.run.sizes), one.run.job_id)):
            home = self._home(cluster_id, victim.run, free)
            if home is None:
                return None
            homes[victim.run.job_id] = home
        return homes

    def _home(self, cluster_id: int, run: LiveRun, free: dict[int, FreeCapacity]) -> int | None:
        """Take room for a run on its own cluster or else on another one, and return that; None without room."""
        state = self.index.state
        queue = state.queues[run.queue_id]
        key = ClassKey(run.queue_id, run.class_id, run.shape_id, (), run.user)
        scheduling_key = SchedulingKey(
            run.shape_id, 1, state.access_of(queue), (), self.advance.entitled(queue.id), state.weights_of(key)
        )
        for cluster, ruled_out in sorted(
            self.index.looked_at(scheduling_key), key=lambda found: found[0].id != cluster_id
        ):
            if ruled_out is not None or cluster.id in self.reservations.kept or self.advance.is_on(cluster.id):
                continue
            capacity = free.get(cluster.id)
            if capacity is None:
                capacity = free[cluster.id] = self.index.free(cluster.id).copy()
            fitted = fit(state.shapes[run.shape_id], dict(run.sizes), capacity)
            if isinstance(fitted, Fitted):
                take(capacity, fitted)
                return cluster.id
        return None


def _attempts(candidates: list[_Candidate], nodes: NodeLayout | None) -> Iterator[list[list[_Candidate]]]:
    """Yield runs to remove one after the other: each alone, those of each node if nodes are known, of each group, and all.

    Where nodes are known, one node after the other is cleared: that with the fewest runs first, and of several that where the least
    work is lost, and then that with the smallest ones. Otherwise all are removed the largest first.
    """
    on_node: dict[NodeKey, list[_Candidate]] = {}
    in_group: dict[str, list[_Candidate]] = {}
    for one in candidates:
        for name in {key.group for key, _ in one.victim.members}:
            in_group.setdefault(name, []).append(one)
        for place in nodes.nodes_of(one.victim.run.job_id) if nodes is not None else ():
            on_node.setdefault(place, []).append(one)

    def to_clear(place: NodeKey) -> tuple[int, float, float, NodeKey]:
        there = on_node[place]
        return len(there), _lost(there), sum(one.share for one in there), place

    by_node = sorted(on_node, key=to_clear)
    yield [[one] for one in candidates]
    yield [on_node[place] for place in by_node if len(on_node[place]) > 1]
    groups = sorted(
        (name for name in in_group if len(in_group[name]) > 1), key=lambda name: (_lost(in_group[name]), name)
    )
    cleared: dict[str, list[_Candidate]] = {}
    for place in by_node:
        cleared.setdefault(place[0], []).extend(on_node[place])
    yield [_without_repeats([*cleared.get(name, ()), *in_group[name]]) for name in groups]
    if len(in_group) > 1:
        largest = sorted(candidates, key=lambda one: -sum(many for _, many in one.victim.members))
        yield [_without_repeats([*(one for place in by_node for one in on_node[place]), *largest])]


def _lost(candidates: Iterable[_Candidate]) -> float:
    return sum(one.lost for one in candidates)


def _without_repeats(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    return list({one.victim.run.job_id: one for one in candidates}.values())
