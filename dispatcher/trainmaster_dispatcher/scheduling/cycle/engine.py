"""The scheduler's state with the caches that are derived from it and carried from one decision to the next.

It does not decide: ``decide`` does, on an engine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.domain.burst_policies import BurstPolicy
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle.assumed_placements import AssumedPlacements
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts
from trainmaster_dispatcher.scheduling.quotas.quota import (
    QuotaLimits,
    QuotaTree,
    past_shares,
    past_shares_of_users,
)
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, capacity
from trainmaster_dispatcher.scheduling.selection.cluster_ranking import ClusterRankings
from trainmaster_dispatcher.scheduling.state.demand import NO_DEMAND, Demand
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, HeldBack, WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Moved, Plan
from trainmaster_dispatcher.scheduling.state.reservation import Reservation
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_MOST_REFUSALS = 20_000


@dataclass(frozen=True, slots=True)
class Carried:
    """The values that a decision takes over from the one before it."""

    reservations: Mapping[int, Reservation] = field(default_factory=dict)
    """By job: the reservations of the previous plan."""
    bursting: frozenset[int] = frozenset()
    """Burst policies that were open because private clusters were full."""
    held_back: Mapping[ClassKey, HeldBack] = field(default_factory=dict)
    """Classes of jobs that an unexpected error has held back."""
    moved: tuple[Moved, ...] = ()
    """Runs that were moved for other jobs in the last day."""
    searched_moves: Mapping[int, float] = field(default_factory=dict)
    """By shape: when moves for it were last searched for in vain."""
    demand: Demand = NO_DEMAND
    """The devices that jobs need."""
    quiet: frozenset[tuple[int, int]] = frozenset()
    """Queues and clusters: where jobs of the queue started because the cluster was quiet."""


class QuotaRefusal(NamedTuple):
    """A refusal by a limit of the class's queue, or of one above: valid while the queues and their usage are the same, and its jobs
    can run at some time on the cluster with the id ``possible_on``."""

    queue_revision: int
    usage: tuple[int, ...]
    possible_on: int
    reason: Reason


class Engine:
    """Owns a state and the caches that are derived from it.

    The caches take the changes of the state when a decision begins; a plan made with them equals one made with new caches.
    Nothing else may take the changes of the state.
    """

    def __init__(self, state: SchedulerState | None = None, carried: Carried | None = None) -> None:
        self.state = SchedulerState() if state is None else state
        self.carried = Carried() if carried is None else carried
        self.layouts = ClusterLayouts(self.state)
        self.index = ClusterIndex(self.layouts)
        self.rankings = ClusterRankings(self.index)
        self.quota_refusals: dict[ClassKey, QuotaRefusal] = {}
        """The latest refusal of each class that waits for quota: no cycle checks the class again until something relevant changes."""
        self._assumed = AssumedPlacements()
        self._demand = self.carried.demand
        self._limits: tuple[int, QuotaLimits] | None = None
        """The revision of the queues, and the limits derived from them."""

    def begin(self, now: float) -> None:
        """Bring the caches up to date. ``now`` is in seconds since the epoch, as all times of the state."""
        changes = self.state.take_changes()
        if changes.is_everything:
            self.reset()
        else:
            for cluster_id in changes.clusters:
                self.layouts.forget(cluster_id)
            self.index.take_in(changes)
        touched = self.state.clusters if changes.is_everything else changes.touched
        self._assumed.revise(self.layouts, list(touched))
        self.index.take_in(self.state.take_changes())
        self._demand = self.carried.demand.at(now, self.state)
        self.index.begin(now, self._demand)
        if len(self.quota_refusals) > _MOST_REFUSALS:
            self.quota_refusals.clear()

    def reset(self) -> None:
        """Drop all caches, for example because an error may have left them half changed."""
        self.layouts = ClusterLayouts(self.state)
        self.index = ClusterIndex(self.layouts)
        self.rankings = ClusterRankings(self.index)
        self.quota_refusals.clear()
        self._limits = None

    @property
    def limits(self) -> QuotaLimits:
        """The values that follow from the quotas of all queues alone."""
        revision = self.state.queue_revision
        if self._limits is None or self._limits[0] != revision:
            self._limits = revision, QuotaLimits(self.state)
        return self._limits[1]

    def quotas(self, now: float) -> QuotaTree:
        """Return the accounts of all queues at ``now``; ``begin`` must have been called."""
        past, of_users = past_shares(self.state, now), past_shares_of_users(self.state, now)
        return QuotaTree(self.state, self.limits, capacity(self.index, now), past, of_users)

    def carry_over(self, plan: Plan) -> None:
        """Store the values of a plan that the next decision takes over."""
        self.carried = Carried(
            plan.reservations,
            plan.bursting,
            plan.held_back,
            plan.moved,
            plan.searched_moves,
            self._demand.with_starts(plan.starts, self.state.shapes),
            plan.quiet,
        )

    def fork(
        self,
        *,
        waiting: Iterable[WaitingJob] | None = None,
        shapes: Mapping[int, Shape] | None = None,
        policies: Iterable[BurstPolicy] | None = None,
    ) -> "Engine":
        """Return an engine for a question: it may be decided on and changed, and this one stays as it is.

        ``waiting``: the only jobs that wait in it. ``shapes``: shapes that it knows as well. ``policies``: its burst policies, in
        place of all others. The fork is valid until this engine's state changes.
        """
        if waiting is None and not shapes:
            state = self.state.fork()
        else:
            state = self.state.fork_with(self.state.jobs.values() if waiting is None else waiting, shapes or {})
        if policies is not None:
            state.set_policies(policies)
        # What is asked for devices is as it is for this engine, whatever waits in the fork.
        fork = Engine(state, replace(self.carried, demand=self._demand._replace(counted_at=inf)))
        fork.layouts = self.layouts.fork(state)
        fork.index = ClusterIndex(fork.layouts)
        fork.rankings = ClusterRankings(fork.index)
        fork._limits = self._limits
        return fork
