"""Consolidation: runs that are moved so that a gang fits which needs their room in one piece.

A gang may find enough free capacity in all, and yet no cluster, node, rack or product of a device with enough of it. If queues allow
it, the fewest runs that stand in the way are ended, and their jobs start again in the other pieces, where there is room for all of
them at once: on the same cluster or on another one. It costs the work that they lose, and their restart.

A run may be moved if its job saves its state (``checkpoint``) or has run for a short time only, its class is preemptible, and the time
for which its queue protects runs is over. Moves never go round in a circle: each starts a job that waited, ends only runs that have
room elsewhere, and neither moves a job twice in a day nor serves one that was moved itself. Until a moved job has started
again, its room is kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.cluster_model.best_fit import dominant
from trainmaster.cluster_model.capabilities import Capability
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, fit, products_on, take
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan, VictimSearch
from trainmaster_dispatcher.scheduling.preemption.what_if import Victim, WhatIf
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.reservations.backfill import Reservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Product
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun
from trainmaster_dispatcher.scheduling.state.plan import Moved

_HOUR, _DAY = 3600.0, 86_400.0
_SOON = 300.0
"""Nothing is moved for a gang that is expected to start within this many seconds anyway."""
_PAUSE = 30.0
"""The least seconds between two searches for the same shape, as one may take long and little changes meanwhile."""
_RESTART = 120.0
"""The seconds for which the room of a moved run is kept at most, beyond the time that its members have to end."""
_MOST_FITS = 200
"""The largest number of packings that are tried for one gang on one cluster."""
_MOST_CANDIDATES = 2000
"""The largest number of runs of a cluster that are considered, the cheapest first."""


class _Candidate(NamedTuple):
    """A run that may be moved, and the member-seconds of work that are lost."""

    victim: Victim
    lost: float


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
    _fits_left: int = field(default=0, init=False)
    _kept: dict[ClassKey, list[Moved]] = field(default_factory=dict, init=False)
    """By class of jobs: those that were moved, for which room is kept in this cycle."""

    def __post_init__(self) -> None:
        self.moved = [one for one in self.moved if one.at > self.now - _DAY]
        self.searched = {shape_id: at for shape_id, at in self.searched.items() if at > self.now - _PAUSE}

    def find(
        self, job: WaitingJob, key: ClassKey, queue: Queue, size: Size, clusters: Iterable[int]
    ) -> PreemptionPlan | None:
        """Return the start of a gang on one of these clusters for which the fewest runs are moved; None if none helps."""
        state = self.index.state
        waited = self.now - job.submitted_at
        if waited < state.consolidates_after or key.shape_id in self.searched:
            return None
        if any(one.job_id == job.id for one in self.moved):
            return None
        best: tuple[tuple[int, float], PreemptionPlan] | None = None
        device = self.victims.device(queue, size)
        for cluster_id in clusters:
            if not self._may_change(cluster_id, key.shape_id, size):
                continue
            candidates = self._candidates(cluster_id, waited)
            for product in products_on(state.clusters[cluster_id].report, device) if candidates else ():
                found = self._on(cluster_id, product, candidates, key, queue, size)
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
        if best is None:
            self.searched[key.shape_id] = self.now
            return None
        return best[1]

    def note(self, plan: PreemptionPlan) -> None:
        """Record that the moves of a plan are decided, and keep the room where the runs are to start again."""
        state = self.index.state
        for victim in plan.victims:
            run, allowed_by = victim.run, state.consolidation_of(victim.run.queue_id)
            if victim.moves_to is not None and allowed_by is not None:
                until = self.now + state.shapes[run.shape_id].stop_seconds + _RESTART
                self.moved.append(Moved(self.now, run.job_id, allowed_by.id, victim.moves_to, until, run.sizes))
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

    def _may_change(self, cluster_id: int, shape_id: int, size: Size) -> bool:
        """Return whether runs may be moved on a cluster: nothing stops there or is kept, and the gang has to wait otherwise."""
        return (
            self.victims.is_settled(cluster_id)
            and cluster_id not in self.reservations.kept
            and not self.advance.is_on(cluster_id)
            and self.reservations.earliest(cluster_id, shape_id, size) > self.now + _SOON
        )

    def _candidates(self, cluster_id: int, waited: float) -> list[_Candidate]:
        """Return the runs of a cluster that may be moved for a job that has waited for so long, the cheapest first."""
        state = self.index.state
        left, moved = self._moves_left(), {one.job_id for one in self.moved}
        found: list[_Candidate] = []
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
                found.append(_Candidate(self.victims.rest_of(run, None, by_class=False), lost))
        there = self.victims.layouts.empty(cluster_id).total()

        def by_cost(one: _Candidate) -> tuple[float, float, int]:
            run = one.victim.run
            return one.lost, dominant(state.shapes[run.shape_id].total, there), run.job_id

        found.sort(key=by_cost)
        return found[:_MOST_CANDIDATES]

    def _on(
        self,
        cluster_id: int,
        product: Product | None,
        candidates: list[_Candidate],
        key: ClassKey,
        queue: Queue,
        size: Size,
    ) -> tuple[tuple[int, float], PreemptionPlan] | None:
        """Return the cheapest moves found on a cluster, with their number and the work lost."""
        what_if = self.victims.what_if(cluster_id, key, size, product)
        if not what_if.could_ever_fit():
            return None
        self._fits_left = _MOST_FITS
        lost = {one.victim.run.job_id: one.lost for one in candidates}
        best: tuple[tuple[int, float], PreemptionPlan] | None = None
        for among in _attempts(candidates):
            if self._fits_left <= 0 or (best is not None and best[0][0] == 1):
                break
            for chosen, fitted in self._clear(what_if, queue, among):
                price = len(chosen), sum(lost[one.run.job_id] for one in chosen)
                if best is not None and best[0] <= price:
                    continue
                homes = self._homes(cluster_id, what_if, chosen, fitted) if self._within(chosen) else None
                charge = what_if.charge_of(fitted)
                if homes is None or not self._keeps_limits(what_if, queue, chosen, charge):
                    continue
                victims = tuple(one._replace(moves_to=homes[one.run.job_id]) for one in chosen)
                best = price, PreemptionPlan(cluster_id, victims, size, fitted, charge, at_once=True, product=product)
        return best

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


def _attempts(candidates: list[_Candidate]) -> Iterator[list[_Candidate]]:
    """Yield runs to remove one after the other: each alone, those of each node group, and then all, the largest first."""
    for one in candidates:
        yield [one]
    in_group: dict[str, list[_Candidate]] = {}
    for one in candidates:
        for name in {key.group for key, _ in one.victim.members}:
            in_group.setdefault(name, []).append(one)
    for name in sorted(in_group, key=lambda name: (sum(one.lost for one in in_group[name]), name)):
        if len(in_group[name]) > 1:
            yield in_group[name]
    if len(in_group) > 1:
        yield sorted(candidates, key=lambda one: -sum(many for _, many in one.victim.members))
