"""The scheduler's state: everything a plan depends on, in indexes that change only by absorbing rows.

Putting the same row again changes nothing, so rows may come twice and in any order as long as the newest comes last. A state
that absorbed changes equals a state rebuilt from the store; a test holds the two together.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, TypeVar

from sortedcontainers import SortedList

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import ClusterKind, Order, Preemption, QueueState
from trainmaster_dispatcher.domain.budgets import Window, add_commitment
from trainmaster_dispatcher.domain.burst_policies import NOTHING_SPENT, BurstPolicy, BurstRun, Hours, Spending
from trainmaster_dispatcher.domain.datasets import Dataset, Holder
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.provisioning import UNSEEN, Learnt
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Flavor, Flavors, Quota, product_of
from trainmaster_dispatcher.scheduling.state.usage_decay import DecayedUsage

_PUBLIC = frozenset({ClusterKind.PUBLIC})
_FEW_SHAPES = 1000
_MOST_KEPT = 10_000
"""Shapes whose verdicts are kept, before those of all are made anew."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as the plan sees it. ``quotas`` and ``max_running`` are for it and all below it."""

    id: int
    path: str
    parent_id: int | None
    weight: float = 1.0
    quotas: dict[Flavor, Quota] = field(default_factory=dict)
    max_running: int | None = None
    allowed_kinds: frozenset[ClusterKind] = frozenset({ClusterKind.PRIVATE, ClusterKind.EDGE})
    state: QueueState = QueueState.OPEN
    order: Order = Order.BEST_EFFORT
    time_limit: float | None = None
    """Seconds that a job without a time limit of its own is counted on."""
    preemption: Preemption = Preemption.ANY_BORROWER
    """Which of its runs may be ended for others."""
    min_run_time: float = 0.0
    """Seconds that a run of it is left alone after its start."""
    weights: Weights | None = None
    """By which the clusters for its jobs are chosen, where it says so itself."""
    regions: frozenset[str] = frozenset()
    """Where its jobs, and those of queues below, may run; anywhere where it is empty."""
    fault: str = ""
    """Why nothing of it, but its path, can be read: until that is mended nothing starts in it, nor in queues below."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    id: int
    name: str
    value: int
    preemptible: bool = True
    longest_wait: float | None = None
    """Seconds after which a waiting job is urgent."""
    weights: Weights | None = None
    """By which the clusters for its jobs are chosen, before what their queue says."""
    fault: str = ""
    """Why nothing of it, but its name and value, can be read: until that is mended none of its jobs starts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the last report of its agent."""

    id: int
    name: str
    kind: ClusterKind
    labels: dict[str, str] = field(default_factory=dict)
    cordoned: bool = False
    report: CapacityReport | None = None
    tariff: Tariff = FREE
    """What it charges now."""
    placement_timeout: float = 300.0
    """Seconds that a run may wait there for its members to be placed."""
    uplink: float | None = None
    """Bytes in a second between it and others, where that is known."""
    connected: tuple[Hours, ...] = ()
    """When runs are sent there; always where it is empty."""
    only_queues: tuple[str, ...] = ()
    """Whose jobs may run there, those below included; everybody's where it is empty."""
    fault: str = ""
    """Why what is stored of it cannot be used: it has no report then, and nothing is sent there until that is mended."""

    @property
    def region(self) -> str:
        return self.labels.get("region", "")

    @property
    def holder(self) -> Holder:
        """As far as its data goes."""
        reported = frozenset(self.report.datasets) if self.report is not None else frozenset()
        return Holder(self.name, reported, self.tariff.egress, self.uplink)


class Access(NamedTuple):
    """Which clusters a queue opens to its jobs. ``regions`` None: all. ``paths``: its own and those above, where that matters."""

    kinds: frozenset[ClusterKind]
    regions: frozenset[str] | None = None
    paths: tuple[str, ...] = ()


class ClassKey(NamedTuple):
    """Jobs that are equivalent in all that the plan reads: whatever holds for one on a cluster holds for all."""

    queue_id: int
    class_id: int
    shape_id: int
    avoided: tuple[int, ...] = ()


class HeldBack(NamedTuple):
    """That looking at a class of jobs has ended in unexpected errors; it is looked at again after ``until``."""

    failures: int
    until: float
    reason: Reason


PRIORITY_SECONDS = 60.0
"""By how much one point of job priority makes a job older than it is."""


class StaticKey(NamedTuple):
    """A job's place among its class: by its time of submission, shifted by its priority; then by key."""

    at: float
    job_id: int


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A queued job. ``version`` is the one that a decision about it is made on."""

    id: int
    version: int
    name: str
    queue_id: int
    class_id: int
    shape_id: int
    priority: int
    submitted_at: float
    attempt: int

    @property
    def key(self) -> StaticKey:
        return StaticKey(self.submitted_at - PRIORITY_SECONDS * self.priority, self.id)


@dataclass(frozen=True, slots=True)
class AdvanceReservation:
    """Whole nodes that an admin keeps for a queue, and for those below it, on each of these clusters in a window of time.

    Without ``clusters`` on every one. Times are seconds since the epoch.
    """

    id: int
    name: str
    queue_id: int
    clusters: tuple[str, ...]
    nodes: int
    selector: tuple[tuple[str, str], ...]
    begins_at: float
    ends_at: float


COMING = "+"
"""Begins the names under which members are placed on nodes that are still to come: this, and the name of their pool."""


class LoadKey(NamedTuple):
    """Equivalent members on a cluster: their node group, empty where it is not known, their shape and role."""

    group: str
    shape_id: int
    role: str


Sizes = tuple[tuple[str, int], ...]
Placed = tuple[tuple[str, Sizes], ...]
"""Members by node group and role."""


@dataclass(slots=True)
class LiveRun:
    """A run that holds capacity. ``placement``: members by node group and role, reported or, until then, assumed.

    Times are seconds since the epoch. It is not to be changed, though not frozen: thousands are made in a second.
    """

    job_id: int
    queue_id: int
    shape_id: int
    cluster_id: int
    sizes: tuple[tuple[str, int], ...]
    placement: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    class_id: int = 0
    began_at: float = 0.0
    """When it was sent to its cluster or, once it runs, when it started."""
    attempt: int = 1
    is_stopping: bool = False
    """It was told to stop, for whatever reason; what it holds is about to be given back."""
    leaving: tuple[tuple[str, int], ...] = ()
    """By role: members that were told to leave and are still counted in ``sizes``."""
    resized_at: float = 0.0
    """When its sizes last changed, or were last asked to; 0 if never."""
    burst: BurstRun | None = None
    """By which policy it is at a public cluster, if by one."""
    load: tuple[tuple[LoadKey, int], ...] | None = field(default=None, init=False, compare=False, repr=False)
    """What ``load_of`` has said."""


def load_of(run: LiveRun) -> tuple[tuple[LoadKey, int], ...]:
    """What a run puts on its cluster. An agent's word moves members; it never makes more of them than the run has."""
    load = run.load
    if load is None:
        load = run.load = _load(run.shape_id, run.sizes, run.placement)
    return load


@lru_cache(maxsize=1 << 15)
def _load(shape_id: int, sizes: Sizes, placement: Placed) -> tuple[tuple[LoadKey, int], ...]:
    """Made once for equivalent runs, of which there are many."""
    missing = dict(sizes)
    out = []
    for group, roles in placement:
        for role, count in roles:
            placed = min(max(count, 0), missing.get(role, 0))
            if placed:
                missing[role] -= placed
                out.append((LoadKey(group, shape_id, role), placed))
    out += [(LoadKey("", shape_id, role), count) for role, count in missing.items() if count]
    return tuple(out)


def surplus_of(run: LiveRun, shape: Shape) -> dict[str, int]:
    """By role: how many members of an elastic run could leave, beside those that do already."""
    if shape.elastic is None or run.is_stopping:
        return {}
    least, leaving = {role.name: role.least for role in shape.roles}, dict(run.leaving)
    spare = {role: size - leaving.get(role, 0) - least.get(role, size) for role, size in run.sizes}
    return {role: count for role, count in spare.items() if count > 0}


def members_of(run: LiveRun, counts: Mapping[str, int]) -> tuple[tuple[LoadKey, int], ...]:
    """So many members of a run by role, as they would leave: which groups they are in is guessed, the last ones first."""
    missing = dict(counts)
    out = []
    for key, count in sorted(load_of(run), reverse=True):
        taken = min(count, missing.get(key.role, 0))
        if taken:
            missing[key.role] -= taken
            out.append((key, taken))
    return tuple(out)


def freeze_placement(placement: dict[str, dict[str, int]]) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple(sorted((group, tuple(sorted(roles.items()))) for group, roles in placement.items()))


_MOST_CHANGES = 50_000
"""Changes of runs that are kept for an engine to take; where nobody takes them, everything counts as changed."""


@dataclass(slots=True)
class Changes:
    """What has changed in a state, for the caches that are derived from it."""

    is_everything: bool = False
    """Something on which all derived values may depend: they are to be made anew."""
    clusters: set[int] = field(default_factory=set)
    """Clusters that came, went or changed themselves."""
    runs: list[tuple[LiveRun, int, float]] = field(default_factory=list)
    """In order: a run, how many equivalent ones came or -1 for one that has gone, and when such runs end at the latest."""

    def note_run(self, run: LiveRun, many: int, ends_at: float) -> None:
        """Note that ``many`` equivalent runs came, or with -1 that one has gone."""
        if self.is_everything:
            return
        self.runs.append((run, many, ends_at))
        if len(self.runs) > _MOST_CHANGES:
            self.is_everything = True
            self.runs.clear()


class SchedulerState:
    """The indexes. Reading is by attribute; changing only by the ``put_``, ``drop_`` and ``set_`` methods.

    It knows nothing of what is derived from it: an ``Engine`` takes its changes and keeps caches of its own.
    """

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.classes: dict[int, PriorityClass] = {}
        self.shapes: dict[int, Shape] = {}
        self.clusters: dict[int, Cluster] = {}
        self.lease_until: dict[int, float] = {}
        """By cluster, on the caller's clock."""
        self.jobs: dict[int, WaitingJob] = {}
        self.runs: dict[int, LiveRun] = {}
        """By job; a job has at most one live run."""
        self.avoided: dict[int, tuple[int, ...]] = {}
        """Clusters left out for a job after they returned it."""
        self.waiting: dict[int, dict[ClassKey, SortedList]] = {}
        """By queue: static keys of the queued jobs of each class."""
        self.heads: dict[int, SortedList] = {}
        """By queue: its classes by the place of their first job, ``(minus the class's value, *static key, class key)``."""
        self._head_of: dict[ClassKey, tuple[int, float, int, ClassKey]] = {}
        self._sweep_at = _FEW_SHAPES
        self._keys: dict[int, ClassKey] = {}
        self._ancestry: dict[int, tuple[Queue, ...]] = {}
        self._lines: Flavors | None = None
        self._products: dict[int, dict[str, str]] = {}
        """By cluster and node group, and under no name the kind of the cluster; as its runs were charged."""
        self._places: dict[int, dict[tuple[int, Sizes, Placed], Amounts]] = {}
        """By cluster: what equivalent runs take, by place."""
        self.load: dict[int, dict[str, dict[LoadKey, int]]] = {}
        """By cluster and node group: how many members of live runs are there, by what they need."""
        self.load_revisions: dict[int, dict[str, int]] = {}
        """By cluster and node group: how often that load has changed."""
        self.runs_on: dict[int, dict[int, LiveRun]] = {}
        """By cluster, then by job."""
        self.elastic_on: dict[int, set[int]] = {}
        """By cluster: the jobs of elastic runs there."""
        self.used: dict[int, Amounts] = {}
        """By queue: what its own live runs take, by place."""
        self.running: dict[int, int] = {}
        """By queue: how many live runs are its own."""
        self.running_on: dict[tuple[int, int], int] = {}
        """By queue and cluster."""
        self.running_classes: dict[int, dict[int, int]] = {}
        """By queue and priority class: how many live runs there are."""
        self.queue_revision = 0
        """How often any queue has changed."""
        self._changes = Changes()
        self._is_shared = False
        """Whether its indexes are those of the state that it was forked from."""
        self.shrunk_at: dict[int, float] = {}
        """By cluster: when it last lost nodes."""
        self.advance: dict[int, AdvanceReservation] = {}
        """What admins have reserved, ended windows included."""
        self.datasets: dict[str, Dataset] = {}
        """Data that admins have declared, by name."""
        self.trouble: dict[int, float] = {}
        """By cluster: runs that it has returned or lost lately, decayed and in coarse steps."""
        self._access: dict[tuple[int, bool], Access] = {}
        self.provisioning: dict[tuple[int, str], Learnt] = {}
        """By cluster and pool: what is known of how it grows."""
        self.policies: dict[int, BurstPolicy] = {}
        self._policies_of: dict[int, tuple[BurstPolicy, ...]] = {}
        self.burst_runs: dict[int, dict[int, LiveRun]] = {}
        """By policy, then by job: the runs that are at public clusters by it."""
        self.committed: dict[int, dict[Window, int]] = {}
        """By policy: what its runs may cost in each hour, day and month."""
        self.spending: Spending = NOTHING_SPENT
        """What ended runs under policies have cost."""
        self.job_spent: dict[int, int] = {}
        """By waiting job: what earlier runs of it by policies have cost."""
        self.spared: frozenset[int] = frozenset()
        """Jobs whose runs are neither ended for others nor resized: the store could not take that."""
        self.past: DecayedUsage | None = None
        """What queues have used before, where that counts."""

    # -- forks and changes

    def take_changes(self) -> "Changes":
        """Return what has changed since the last call. For the one engine that owns this state."""
        changes, self._changes = self._changes, Changes()
        return changes

    def fork(self) -> "SchedulerState":
        """Return a state with the same content that can be changed without this one.

        The indexes are shared until the fork is changed, and copied then. A fork is valid until this state changes.
        """
        fork = copy(self)
        fork._is_shared = True
        fork._changes = Changes()
        return fork

    def fork_with(
        self,
        waiting: Iterable[WaitingJob],
        shapes: Mapping[int, Shape],
    ) -> "SchedulerState":
        """Return a fork in which only these jobs wait, and which knows these shapes as well. Nothing else is copied."""
        fork = self.fork()
        fork.jobs, fork.waiting, fork.heads, fork._keys, fork._head_of = {}, {}, {}, {}, {}
        fork.shapes = {**self.shapes, **shapes}
        for job in waiting:
            fork._add_waiting(job)
        return fork

    def _own(self) -> None:
        """Copy the indexes that are still shared with the state that this one was forked from."""
        if self._is_shared:
            self._is_shared = False
            for name, value in list(vars(self).items()):
                if name not in ("_changes", "_lines"):
                    setattr(self, name, _copied(value))

    # -- tenants and clusters

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
        self._lines = None
        self.queue_revision += 1

    @property
    def lines(self) -> Flavors:
        """The lines that any queue has a quota on."""
        if self._lines is None:
            self._lines = Flavors(line for queue in self.queues.values() for line in queue.quotas)
        return self._lines

    def put_class(self, priority_class: PriorityClass) -> None:
        self._own()
        before = self.classes.get(priority_class.id)
        self.classes[priority_class.id] = priority_class
        if before is None or before.value != priority_class.value:
            for classes in self.waiting.values():
                for key in classes:
                    if key.class_id == priority_class.id:
                        self._set_head(key)

    @property
    def any_longest_wait(self) -> bool:
        """Whether the jobs of any class become urgent."""
        return any(of.longest_wait is not None for of in self.classes.values())

    def set_lease(self, cluster_id: int, until: float) -> None:
        """The lease of a cluster's agent ends at ``until``, in seconds of the caller's clock."""
        self._own()
        self.lease_until[cluster_id] = until

    def set_advance(self, reservations: Iterable[AdvanceReservation]) -> None:
        """What admins have reserved, as a whole."""
        self.advance = {one.id: one for one in reservations}

    def set_policies(self, policies: Iterable[BurstPolicy]) -> None:
        """All burst policies, as a whole."""
        self.policies = {one.id: one for one in policies}
        # New ones: a fork that is asked what other policies would do shares the old ones.
        self._policies_of, self._access = {}, {}

    def policies_of(self, queue_id: int) -> tuple[BurstPolicy, ...]:
        """The burst policies of a queue: those of the nearest queue first, then by name."""
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
        """What is known of how pools grow, as a whole."""
        if learnt != self.provisioning:
            self.provisioning = dict(learnt)

    def learnt_of(self, cluster_id: int, pool: str) -> Learnt:
        return self.provisioning.get((cluster_id, pool), UNSEEN)

    def access_of(self, queue: Queue, *, by_policy: bool = False) -> Access:
        """The clusters that jobs of a queue may go to by themselves: to public ones by its policies, where it has any.

        ``by_policy``: those that a policy may open to them.
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
            found = self._access[queue.id, by_policy] = Access(kinds, regions, paths)
        return found

    def set_datasets(self, datasets: Iterable[Dataset]) -> None:
        """What admins have declared of data, as a whole."""
        found = {one.name: one for one in datasets}
        if found != self.datasets:
            self.datasets = found
            self._changes.is_everything = True

    def set_trouble(self, trouble: Mapping[int, float]) -> None:
        """Runs that clusters have returned or lost lately, as a whole."""
        if trouble != self.trouble:
            self.trouble = dict(trouble)

    def put_shape(self, shape_id: int, shape: Shape) -> None:
        self._own()
        if self.shapes.get(shape_id, shape) != shape:
            self._changes.is_everything = True
        self.shapes[shape_id] = shape

    def sweep(self) -> None:
        """Forget shapes that no job has any more, once they may be as many as those that are needed."""
        if len(self.shapes) < self._sweep_at:
            return
        needed = {job.shape_id for job in self.jobs.values()} | {run.shape_id for run in self.runs.values()}
        self.shapes = {shape_id: shape for shape_id, shape in self.shapes.items() if shape_id in needed}
        self._sweep_at = 2 * len(needed) + _FEW_SHAPES

    def put_cluster(self, cluster: Cluster, at: float = 0.0) -> None:
        """The cluster as it is at ``at``."""
        before = self.clusters.get(cluster.id)
        if before != cluster:
            self._own()
            if before is not None and _node_count(cluster) < _node_count(before):
                self.shrunk_at[cluster.id] = at
            if (before.only_queues if before is not None else ()) != cluster.only_queues:
                self._access = {}
            self.clusters[cluster.id] = cluster
            self._changes.clusters.add(cluster.id)
            products = {"": cluster.kind.value}
            if cluster.report is not None:
                products |= {group.name: product_of(group) for group in cluster.report.groups}
                products |= {COMING + pool.name: product_of(pool) for pool in cluster.report.pools}
            self._call_places(cluster.id, products)

    def drop_cluster(self, cluster_id: int) -> None:
        self._own()
        gone = self.clusters.pop(cluster_id, None)
        if gone is not None and gone.only_queues:
            self._access = {}
        self._call_places(cluster_id, {})
        self._changes.clusters.add(cluster_id)

    def product_at(self, cluster_id: int, group: str) -> str:
        """The product of the devices of a node group, or of a pool by the name of what is to come; empty where there is none."""
        return self._products.get(cluster_id, {}).get(group, "")

    def _call_places(self, cluster_id: int, products: dict[str, str]) -> None:
        """Charge the runs of a cluster anew where the names of their places have changed: products by group, the kind by ``""``."""
        if products == self._products.get(cluster_id, {}):
            return
        runs = self.runs_on.get(cluster_id, {}).values()
        for run in runs:
            self._charge(run, -1)
        self._products[cluster_id] = products
        self._places.pop(cluster_id, None)
        for run in runs:
            self._charge(run, 1)

    # -- jobs

    def put_waiting(self, job: WaitingJob) -> None:
        """The job is queued; it has no live run."""
        self.drop_job(job.id)
        self._add_waiting(job)

    def _add_waiting(self, job: WaitingJob) -> None:
        key = ClassKey(job.queue_id, job.class_id, job.shape_id, self.avoided.get(job.id, ()))
        self.jobs[job.id] = job
        self._keys[job.id] = key
        keys = self.waiting.setdefault(job.queue_id, {}).setdefault(key, SortedList())
        keys.add(job.key)
        if keys[0] == job.key:
            self._set_head(key)

    def put_run(self, run: LiveRun) -> None:
        """The job holds capacity with this run."""
        self.drop_job(run.job_id)
        self.runs[run.job_id] = run
        self.runs_on.setdefault(run.cluster_id, {})[run.job_id] = run
        if run.burst is not None:
            self.burst_runs.setdefault(run.burst.policy_id, {})[run.job_id] = run
            add_commitment(self.committed.setdefault(run.burst.policy_id, {}), run.burst.commitment)
        self._note_elastic((run,))
        self._count(run, 1)

    def put_runs(self, runs: Iterable[LiveRun]) -> None:
        """Do what ``put_run`` does for each; equivalent runs that come in a row are counted together."""
        self._own()
        started = list(runs)
        self._drop_waiting([run.job_id for run in started])
        for _, alike in groupby(started, _counted_by):
            row = list(alike)
            if len(row) == 1 or row[0].burst is not None or any(run.job_id in self.runs for run in row):
                for run in row:
                    self.put_run(run)
                continue
            self.runs |= {run.job_id: run for run in row}
            self.runs_on.setdefault(row[0].cluster_id, {}).update({run.job_id: run for run in row})
            self._note_elastic(row)
            self._count(row[0], len(row))

    def _drop_waiting(self, job_ids: Iterable[int]) -> None:
        """Drop those of these jobs that wait."""
        by_class: dict[ClassKey, list[int]] = {}
        for job_id in job_ids:
            key = self._keys.get(job_id)
            if key is not None:
                by_class.setdefault(key, []).append(job_id)
        for key, of_class in by_class.items():
            keys, many = self.waiting[key.queue_id][key], len(of_class)
            if many > 1 and [one.job_id for one in keys.islice(0, many)] == of_class:
                del keys[:many]
                for job_id in of_class:
                    del self.jobs[job_id], self._keys[job_id]
                self._class_has_changed(key)
            else:
                for job_id in of_class:
                    self.drop_job(job_id)

    def _note_elastic(self, alike: Sequence[LiveRun]) -> None:
        shape = self.shapes.get(alike[0].shape_id)
        if shape is not None and shape.elastic is not None:
            self.elastic_on.setdefault(alike[0].cluster_id, set()).update(run.job_id for run in alike)

    def _class_has_changed(self, key: ClassKey) -> None:
        """The first job of a class is another one now, or there is none."""
        of_queue = self.waiting[key.queue_id]
        if not of_queue[key]:
            del of_queue[key]
        self._set_head(key)
        if not of_queue:
            del self.waiting[key.queue_id]

    def drop_job(self, job_id: int) -> None:
        """The job neither waits nor runs: it ended, is held, or is about to be put again."""
        if self._is_shared:
            self._own()
        job = self.jobs.pop(job_id, None)
        if job is not None:
            key = self._keys.pop(job_id)
            keys = self.waiting[job.queue_id][key]
            was_first = keys[0] == job.key
            keys.remove(job.key)
            if was_first:
                self._class_has_changed(key)
        run = self.runs.pop(job_id, None)
        if run is not None:
            del self.runs_on[run.cluster_id][job_id]
            if run.burst is not None:
                of_policy = self.burst_runs[run.burst.policy_id]
                del of_policy[job_id]
                add_commitment(self.committed[run.burst.policy_id], run.burst.commitment, -1)
                if not of_policy:
                    del self.burst_runs[run.burst.policy_id], self.committed[run.burst.policy_id]
            elastic = self.elastic_on.get(run.cluster_id)
            if elastic is not None:
                elastic.discard(job_id)
                if not elastic:
                    del self.elastic_on[run.cluster_id]
            self._count(run, -1)

    def _set_head(self, key: ClassKey) -> None:
        """The first job of a class is another one, or there is none any more."""
        old = self._head_of.pop(key, None)
        heads = self.heads.setdefault(key.queue_id, SortedList())
        if old is not None:
            heads.remove(old)
        keys = self.waiting.get(key.queue_id, {}).get(key)
        of = self.classes.get(key.class_id)
        # A job may be known before its priority class is, by a moment.
        if keys and of is not None:
            head = self._head_of[key] = (-of.value, *keys[0], key)
            heads.add(head)
        if not heads:
            del self.heads[key.queue_id]

    def _count(self, run: LiveRun, many: int) -> None:
        """Count so many equivalent runs, or take one off with -1."""
        load = self.load.setdefault(run.cluster_id, {})
        revisions = self.load_revisions.setdefault(run.cluster_id, {})
        for key, count in load_of(run):
            group = load.setdefault(key.group, {})
            _add(group, key, many * count)
            if not group:
                del load[key.group]
            revisions[key.group] = revisions.get(key.group, 0) + 1
        self._changes.note_run(run, many, self.ends_at(run))
        _add(self.running, run.queue_id, many)
        _add(self.running_on, (run.queue_id, run.cluster_id), many)
        classes = self.running_classes.setdefault(run.queue_id, {})
        _add(classes, run.class_id, many)
        if not classes:
            del self.running_classes[run.queue_id]
        self._charge(run, many)

    def _charge(self, run: LiveRun, many: int) -> None:
        used = self.used.setdefault(run.queue_id, {})
        for place, amount in self.places_of(run).items():
            _add(used, place, many * amount)
        if not used:
            del self.used[run.queue_id]

    def places_of(self, run: LiveRun) -> Amounts:
        """What a run takes, by place."""
        of_cluster = self._places.setdefault(run.cluster_id, {})
        key = (run.shape_id, run.sizes, run.placement)
        places = of_cluster.get(key)
        if places is None:
            if len(of_cluster) > _MOST_KEPT:
                of_cluster.clear()
            places = of_cluster[key] = self.places_at(
                run.cluster_id, run.shape_id, ((load.group, load.role, count) for load, count in load_of(run))
            )
        return places

    def places_at(self, cluster_id: int, shape_id: int, members: Iterable[tuple[str, str, int]]) -> Amounts:
        """What members take on a cluster, by place. ``members``: node group, role and how many."""
        products = self._products.get(cluster_id, {})
        kind = products.get("", "")
        needs = {role.name: role.needs for role in self.shapes[shape_id].roles}
        out: Amounts = {}
        for group, role, count in members:
            product = products.get(group, "") if group else ""
            for resource, amount in needs.get(role, {}).items():
                place = Flavor(resource, product if "/" in resource else "", kind)
                out[place] = out.get(place, 0) + amount * count
        return out

    def set_avoided(self, avoided: dict[int, tuple[int, ...]]) -> None:
        """Which clusters are left out for which jobs, as a whole."""
        changed = {job for job in self.avoided.keys() | avoided.keys() if self.avoided.get(job) != avoided.get(job)}
        self.avoided = avoided
        for job_id in changed & self.jobs.keys():
            self.put_waiting(self.jobs[job_id])

    def limit_of(self, shape_id: int | None, queue_id: int) -> float:
        """Seconds that a job is counted on to run at most: its own limit, else the nearest one of its queues, else no end.

        Without a shape: what counts for a job that has no limit itself.
        """
        own = None if shape_id is None else self.shapes[shape_id].time_limit_seconds
        if own is not None:
            return own
        of_queue = self.queue_limit_of(queue_id)
        return inf if of_queue is None else of_queue

    def queue_limit_of(self, queue_id: int) -> float | None:
        """Seconds that a queue, or the nearest one above it, says of jobs without a limit of their own."""
        return next((queue.time_limit for queue in self.ancestry(queue_id) if queue.time_limit is not None), None)

    def weights_of(self, key: ClassKey) -> Weights:
        """By which the clusters for jobs of a class are chosen: its own, the priority class's, the nearest queue's, the default."""
        its_class = self.classes.get(key.class_id)
        found = self.shapes[key.shape_id].weights or (its_class.weights if its_class is not None else None)
        if found is not None:
            return found
        return next((queue.weights for queue in self.ancestry(key.queue_id) if queue.weights is not None), BALANCED)

    def ends_at(self, run: LiveRun) -> float:
        """When a run ends at the latest, if it keeps to its limit."""
        if run.burst is not None:
            return run.burst.until
        return run.began_at + self.limit_of(run.shape_id, run.queue_id)

    def class_of(self, job_id: int) -> ClassKey:
        return self._keys[job_id]

    def ancestry(self, queue_id: int) -> tuple[Queue, ...]:
        """The queue, its parent, and so on to the root."""
        found = self._ancestry.get(queue_id)
        if found is None:
            queue = self.queues.get(queue_id)
            above = () if queue is None or queue.parent_id is None else self.ancestry(queue.parent_id)
            found = self._ancestry[queue_id] = () if queue is None else (queue, *above)
        return found


def _counted_by(run: LiveRun) -> tuple[Any, ...]:
    """Everything that counts of a run but which job it is of."""
    return run.queue_id, run.class_id, run.shape_id, run.cluster_id, run.sizes, run.placement, run.began_at, run.burst


def _bearing(queue: Queue | None) -> tuple[frozenset[Flavor], float | None]:
    """What of a queue bears on rooms: narrowed lines, by which starts are charged, and the time that its jobs are counted on."""
    if queue is None:
        return frozenset(), None
    return frozenset(line for line in queue.quotas if line.product or line.kind), queue.time_limit


def _node_count(cluster: Cluster) -> int:
    return sum(group.count for group in cluster.report.groups) if cluster.report is not None else 0


def _copied(value: Any) -> Any:
    """Return a copy of an index down to the values in it, which do not change."""
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    if type(value) is set:
        return set(value)
    return value.copy() if isinstance(value, SortedList) else value


_Key = TypeVar("_Key", bound=Hashable)


def _add(counts: dict[_Key, int], key: _Key, more: int) -> None:
    """Count; what comes to nothing leaves no entry."""
    total = counts.get(key, 0) + more
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
