"""The part of the scheduler's state that admins declare, with the values that follow from it alone. It knows neither jobs nor runs."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from trainmaster.protocol.device_parts import is_memory_part
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy
from trainmaster_dispatcher.domain.burst_policies import BurstPolicy
from trainmaster_dispatcher.domain.datasets import Dataset
from trainmaster_dispatcher.domain.provisioning import UNSEEN, Learnt
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.state.changes import Changes
from trainmaster_dispatcher.scheduling.state.declared_objects import (
    Access,
    AdvanceReservation,
    Cluster,
    PriorityClass,
    Queue,
)
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Flavors
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey

_PUBLIC = frozenset({ClusterKind.PUBLIC})
_WHOLE = Decimal(1)


class JobGrouping(NamedTuple):
    """The ways in which the jobs of a queue are put in order, and whether that depends on the users who submitted them."""

    shares: bool
    """Whether its turns are shared between them."""
    tells_apart: bool
    """Whether it matters at all who submitted a job: turns are shared, a user has a limit, or jobs are ordered by run times."""
    order: OrderBy
    """The order of its jobs inside a class."""


class DeclaredState:
    """Queues, classes, clusters, shapes, policies, reservations and data, and rules that queues inherit from those above.

    Indexes may be shared with the state that this one was forked from: each method that changes an index calls ``_own`` before.
    """

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.classes: dict[int, PriorityClass] = {}
        self.shapes: dict[int, Shape] = {}
        self.clusters: dict[int, Cluster] = {}
        self._ancestry: dict[int, tuple[Queue, ...]] = {}
        self._flavors: Flavors | None = None
        self._has_memory_parts = False
        """Whether any shape ever had members that need a part of a device's memory: their charge depends on the device."""
        self.queue_revision = 0
        """The number of changes of any queue."""
        self._changes = Changes()
        self._is_shared = False
        """Whether the indexes are shared with the state that this one was forked from."""
        self.advance: dict[int, AdvanceReservation] = {}
        """The advance reservations, ended windows included."""
        self.datasets: dict[str, Dataset] = {}
        """The declared datasets, by name."""
        self._access: dict[tuple[int, bool], Access] = {}
        self.provisioning: dict[tuple[int, str], Learnt] = {}
        """By cluster and pool: what is known of the pool's growth."""
        self.policies: dict[int, BurstPolicy] = {}
        self._policies_of: dict[int, tuple[BurstPolicy, ...]] = {}
        self._groupings: dict[int, JobGrouping] = {}
        self._starts_when: dict[int, tuple[Queue, ...]] = {}
        self._consolidates_after: float | None = None

    def _own(self) -> None:
        """Copy the indexes that are still shared with the state that this one was forked from."""
        if self._is_shared:
            self._is_shared = False
            for name, value in list(vars(self).items()):
                if name not in ("_changes", "_flavors"):
                    setattr(self, name, _copied(value))

    def put_queue(self, queue: Queue) -> None:
        before = self.queues.get(queue.id)
        if before == queue:
            return
        self._own()
        self.queues[queue.id] = queue
        self._forget_tree()
        if _bearing(before) != _bearing(queue):
            self._changes.is_everything = True

    def drop_queue(self, queue_id: int) -> None:
        self._own()
        if _bearing(self.queues.pop(queue_id, None)) != _bearing(None):
            self._changes.is_everything = True
        self._forget_tree()

    def _forget_tree(self) -> None:
        self._ancestry.clear()
        self._policies_of, self._access = {}, {}
        self._groupings, self._starts_when = {}, {}
        self._consolidates_after = None
        self._flavors = None
        self.queue_revision += 1

    @property
    def flavors(self) -> Flavors:
        """The flavors that any queue has a quota on."""
        if self._flavors is None:
            narrowed = (flavor for queue in self.queues.values() for flavor in queue.quotas)
            self._flavors = Flavors(narrowed, varies=self._has_memory_parts)
        return self._flavors

    def set_advance(self, reservations: Iterable[AdvanceReservation]) -> None:
        """Replace all advance reservations."""
        self.advance = {one.id: one for one in reservations}

    def set_policies(self, policies: Iterable[BurstPolicy]) -> None:
        """Replace all burst policies."""
        self.policies = {one.id: one for one in policies}
        # New objects, because a fork for other policies shares the old ones.
        self._policies_of, self._access = {}, {}

    def policies_of(self, queue_id: int) -> tuple[BurstPolicy, ...]:
        """Return the burst policies of a queue: those of the nearest queue first, then by name."""
        found = self._policies_of.get(queue_id)
        if found is None:
            place = {queue.path: place for place, queue in enumerate(self.ancestry(queue_id))} if self.policies else {}
            near = [
                (min(places), one.name, one)
                for one in self.policies.values()
                if (places := [place[path] for path in one.queues if path in place])
            ]
            found = self._policies_of[queue_id] = tuple(one for _, _, one in sorted(near, key=lambda item: item[:2]))
        return found

    def set_provisioning(self, learnt: Mapping[tuple[int, str], Learnt]) -> None:
        """Replace what is known of the growth of all pools."""
        if learnt != self.provisioning:
            self.provisioning = dict(learnt)

    def learnt_of(self, cluster_id: int, pool: str) -> Learnt:
        return self.provisioning.get((cluster_id, pool), UNSEEN)

    def access_of(self, queue: Queue, *, by_policy: bool = False) -> Access:
        """Return the access of a queue's jobs to clusters without a policy; a queue with policies reaches public ones by these alone.

        ``by_policy``: return the access to the clusters that a policy may open.
        """
        found = self._access.get((queue.id, by_policy))
        if found is None:
            kinds = _PUBLIC if by_policy else queue.allowed_kinds
            if not by_policy and self.policies and self.policies_of(queue.id):
                kinds -= _PUBLIC
            above = self.ancestry(queue.id)
            regions: frozenset[str] | None = None
            for one in above:
                if one.regions:
                    regions = one.regions if regions is None else regions & one.regions
            paths = tuple(one.path for one in above) if any(one.only_queues for one in self.clusters.values()) else ()
            conditions = tuple(
                one.id for one in above if one.starts_when is not None and one.starts_when.is_about_clusters
            )
            found = self._access[queue.id, by_policy] = Access(kinds, regions, paths, conditions)
        return found

    def starts_when(self, queue_id: int) -> tuple[Queue, ...]:
        """Return the queues, of a queue and those above it, that have conditions on the start of jobs."""
        found = self._starts_when.get(queue_id)
        if found is None:
            found = tuple(one for one in self.ancestry(queue_id) if one.starts_when is not None)
            self._starts_when[queue_id] = found
        return found

    def set_datasets(self, datasets: Iterable[Dataset]) -> None:
        """Replace all declared datasets."""
        found = {one.name: one for one in datasets}
        if found != self.datasets:
            self.datasets = found
            self._changes.is_everything = True

    def put_shape(self, shape_id: int, shape: Shape) -> None:
        self._own()
        if self.shapes.get(shape_id, shape) != shape:
            self._changes.is_everything = True
        self.shapes[shape_id] = shape
        self._note_memory_parts((shape,))

    def _note_memory_parts(self, shapes: Iterable[Shape]) -> None:
        if not self._has_memory_parts and any(
            is_memory_part(name) for shape in shapes for role in shape.roles for name in role.needs
        ):
            self._has_memory_parts, self._flavors = True, None

    def limit_of(self, shape_id: int | None, queue_id: int) -> float:
        """Return the expected run time of a job in seconds: its own limit, else the nearest one of its queues, else infinity.

        Without a shape: the value for a job that has no limit of its own.
        """
        own = None if shape_id is None else self.shapes[shape_id].time_limit_seconds
        if own is not None:
            return own
        of_queue = self.queue_limit_of(queue_id)
        return inf if of_queue is None else of_queue

    def queue_limit_of(self, queue_id: int) -> float | None:
        """Return the time limit in seconds that a queue, or the nearest one above it, sets for jobs without a limit of their own."""
        return next((queue.time_limit for queue in self.ancestry(queue_id) if queue.time_limit is not None), None)

    def weights_of(self, key: ClassKey) -> Weights:
        """Return the score weights of a class: of the job, else of the priority class, else of the nearest queue, else the default."""
        its_class = self.classes.get(key.class_id)
        found = self.shapes[key.shape_id].weights or (its_class.weights if its_class is not None else None)
        if found is not None:
            return found
        return next((queue.weights for queue in self.ancestry(key.queue_id) if queue.weights is not None), BALANCED)

    def price_factor_of(self, queue_id: int, class_id: int) -> Decimal:
        """Return what the cost of a job is multiplied by for its charge: the factor of its class times that of its nearest queue with
        one."""
        its_class = self.classes.get(class_id)
        own = its_class.price_factor if its_class is not None else None
        of_queue = next((one.price_factor for one in self.ancestry(queue_id) if one.price_factor is not None), None)
        return (_WHOLE if own is None else own) * (_WHOLE if of_queue is None else of_queue)

    def grouping_of(self, queue_id: int) -> "JobGrouping":
        """Return how the jobs of a queue are put in order."""
        found = self._groupings.get(queue_id)
        if found is None:
            way = self.ancestry(queue_id)
            said = next((one.fair_by for one in way if one.fair_by is not None), FairBy.USER)
            shares = bool(way) and way[0].order is not Order.STRICT and said is FairBy.USER
            has_limits = any(one.limits_users for one in way)
            order = next((one.order_by for one in way if one.order_by is not None), OrderBy.AGE)
            # The other orders go by what a user's jobs took before.
            tells_apart = shares or has_limits or order not in (OrderBy.AGE, OrderBy.DEADLINE)
            found = self._groupings[queue_id] = JobGrouping(shares, tells_apart, order)
        return found

    @property
    def consolidates_after(self) -> float:
        """Return the least seconds that a job must have waited for any run to be moved for it; infinity if no queue allows that."""
        if self._consolidates_after is None:
            terms = (one.consolidation for one in self.queues.values())
            self._consolidates_after = min((one.after for one in terms if one is not None), default=inf)
        return self._consolidates_after

    def consolidation_of(self, queue_id: int) -> Queue | None:
        """Return the nearest queue that says how runs of a queue may be moved; None if none does."""
        return next((one for one in self.ancestry(queue_id) if one.consolidation is not None), None)

    def weight_of_user(self, queue_id: int, user: str) -> float:
        """Return the weight of a user in a queue: by the queue, or by the nearest one above it that names the user; else 1."""
        return next((one.user_weights[user] for one in self.ancestry(queue_id) if user in one.user_weights), 1.0)

    def ancestry(self, queue_id: int) -> tuple[Queue, ...]:
        """Return the queue, its parent, and so on to the root."""
        found = self._ancestry.get(queue_id)
        if found is None:
            queue = self.queues.get(queue_id)
            above = () if queue is None or queue.parent_id is None else self.ancestry(queue.parent_id)
            found = self._ancestry[queue_id] = () if queue is None else (queue, *above)
        return found


def _bearing(queue: Queue | None) -> tuple[frozenset[Flavor], float | None]:
    """Return the parts of a queue that free capacity depends on: narrowed flavors, which starts are charged to, and the time limit."""
    if queue is None:
        return frozenset(), None
    return frozenset(flavor for flavor in queue.quotas if flavor.product or flavor.kind), queue.time_limit


def _copied(value: Any) -> Any:
    """Return a copy of an index down to the values in it, which do not change."""
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    if type(value) is set:
        return set(value)
    return value.copy() if isinstance(value, SortedList) else value
