"""The scheduler's view: everything a plan depends on, in indexes that change only by absorbing rows.

Putting the same row again changes nothing, so rows may come twice and in any order as long as the newest comes last. A view
that absorbed changes equals a view rebuilt from the store; a test holds the two together.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sortedcontainers import SortedList

from trainmaster.dispatcher.domain.shapes import Shape
from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Verdict
from trainmaster.protocol.states import ClusterKind

_FEW_SHAPES = 1000
_MOST_KEPT = 10_000
"""Shapes whose verdicts are kept, before those of all are made anew."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as the plan sees it. ``limits`` are for it and all below it."""

    id: int
    path: str
    parent_id: int | None
    weight: float = 1.0
    limits: Resources = field(default_factory=dict)
    max_running: int | None = None
    allowed_kinds: frozenset[ClusterKind] = frozenset({ClusterKind.PRIVATE, ClusterKind.EDGE})
    held: bool = False


@dataclass(frozen=True, slots=True)
class PriorityClass:
    id: int
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the last report of its agent."""

    id: int
    name: str
    kind: ClusterKind
    labels: dict[str, str] = field(default_factory=dict)
    cordoned: bool = False
    report: CapacityReport | None = None


class ClassKey(NamedTuple):
    """Jobs alike in all that the plan reads: whatever holds for one on a cluster holds for all."""

    queue_id: int
    class_id: int
    shape_id: int
    avoided: tuple[int, ...] = ()


class StaticKey(NamedTuple):
    """A job's place among its class: higher job priority first, then older, then by key."""

    minus_priority: int
    submitted_at: float
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
        return StaticKey(-self.priority, self.submitted_at, self.id)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that holds capacity. ``placement``: members by node group and role, reported or, until then, assumed."""

    job_id: int
    queue_id: int
    shape_id: int
    cluster_id: int
    sizes: tuple[tuple[str, int], ...]
    placement: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


class LoadKey(NamedTuple):
    """Members alike on a cluster: their node group, empty where it is not known, their shape and role."""

    group: str
    shape_id: int
    role: str


def _load_of(run: LiveRun) -> list[tuple[LoadKey, int]]:
    """What a run puts on its cluster. An agent's word moves members; it never makes more of them than the run has."""
    missing = dict(run.sizes)
    out = []
    for group, roles in run.placement:
        for role, count in roles:
            placed = min(max(count, 0), missing.get(role, 0))
            if placed:
                missing[role] -= placed
                out.append((LoadKey(group, run.shape_id, role), placed))
    out += [(LoadKey("", run.shape_id, role), count) for role, count in missing.items() if count]
    return out


Sizes = tuple[tuple[str, int], ...]


def freeze_placement(placement: dict[str, dict[str, int]]) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple(sorted((group, tuple(sorted(roles.items()))) for group, roles in placement.items()))


class View:
    """The indexes. Reading is by attribute; changing only by the ``put_`` and ``drop_`` methods."""

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
        self._sweep_at = _FEW_SHAPES
        self._keys: dict[int, ClassKey] = {}
        self._ancestry: dict[int, tuple[Queue, ...]] = {}
        self.load: dict[int, dict[LoadKey, int]] = {}
        """By cluster: how many members of live runs are there, by what they need and where."""
        self.held_by: dict[int, dict[tuple[int, Sizes], int]] = {}
        """By queue: its live runs, by shape and sizes."""
        self.ruled_out: dict[tuple[int, frozenset[ClusterKind]], dict[int, Verdict | None]] = {}
        """By shape and kinds that a queue allows: what only a change of a cluster mends, by cluster, as far as it was asked."""
        self.empty_rooms: dict[int, Any] = {}
        """By cluster: its room without any run of ours, made when first asked for, until the cluster changes."""

    # -- tenants and clusters

    def put_queue(self, queue: Queue) -> None:
        self.queues[queue.id] = queue
        self._ancestry.clear()

    def drop_queue(self, queue_id: int) -> None:
        self.queues.pop(queue_id, None)
        self._ancestry.clear()

    def put_class(self, priority_class: PriorityClass) -> None:
        self.classes[priority_class.id] = priority_class

    def put_shape(self, shape_id: int, shape: Shape) -> None:
        self.shapes[shape_id] = shape

    def sweep(self) -> None:
        """Forget shapes that no job has any more, once they may be as many as those that are needed."""
        if len(self.shapes) < self._sweep_at:
            return
        needed = {job.shape_id for job in self.jobs.values()} | {run.shape_id for run in self.runs.values()}
        self.shapes = {shape_id: shape for shape_id, shape in self.shapes.items() if shape_id in needed}
        self.ruled_out = {key: verdicts for key, verdicts in self.ruled_out.items() if key[0] in needed}
        self._sweep_at = 2 * len(needed) + _FEW_SHAPES

    def put_cluster(self, cluster: Cluster) -> None:
        if self.clusters.get(cluster.id) != cluster:
            self.clusters[cluster.id] = cluster
            self._forget_derived(cluster.id)

    def drop_cluster(self, cluster_id: int) -> None:
        self.clusters.pop(cluster_id, None)
        self._forget_derived(cluster_id)

    def _forget_derived(self, cluster_id: int) -> None:
        self.empty_rooms.pop(cluster_id, None)
        if len(self.ruled_out) > _MOST_KEPT:
            self.ruled_out.clear()
        for verdicts in self.ruled_out.values():
            verdicts.pop(cluster_id, None)

    # -- jobs

    def put_waiting(self, job: WaitingJob) -> None:
        """The job is queued; it has no live run."""
        self.drop_job(job.id)
        key = ClassKey(job.queue_id, job.class_id, job.shape_id, self.avoided.get(job.id, ()))
        self.jobs[job.id] = job
        self._keys[job.id] = key
        self.waiting.setdefault(job.queue_id, {}).setdefault(key, SortedList()).add(job.key)

    def put_run(self, run: LiveRun) -> None:
        """The job holds capacity with this run."""
        self.drop_job(run.job_id)
        self.runs[run.job_id] = run
        self._count(run, 1)

    def drop_job(self, job_id: int) -> None:
        """The job neither waits nor runs: it ended, is held, or is about to be put again."""
        job = self.jobs.pop(job_id, None)
        if job is not None:
            key = self._keys.pop(job_id)
            of_queue = self.waiting[job.queue_id]
            of_queue[key].remove(job.key)
            if not of_queue[key]:
                del of_queue[key]
            if not of_queue:
                del self.waiting[job.queue_id]
        run = self.runs.pop(job_id, None)
        if run is not None:
            self._count(run, -1)

    def _count(self, run: LiveRun, sign: int) -> None:
        load = self.load.setdefault(run.cluster_id, {})
        for key, count in _load_of(run):
            _add(load, key, sign * count)
        _add(self.held_by.setdefault(run.queue_id, {}), (run.shape_id, run.sizes), sign)

    def set_avoided(self, avoided: dict[int, tuple[int, ...]]) -> None:
        """Which clusters are left out for which jobs, as a whole."""
        changed = {job for job in self.avoided.keys() | avoided.keys() if self.avoided.get(job) != avoided.get(job)}
        self.avoided = avoided
        for job_id in changed & self.jobs.keys():
            self.put_waiting(self.jobs[job_id])

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


_Key = TypeVar("_Key", bound=Hashable)


def _add(counts: dict[_Key, int], key: _Key, more: int) -> None:
    """Count; what comes to nothing leaves no entry."""
    total = counts.get(key, 0) + more
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
