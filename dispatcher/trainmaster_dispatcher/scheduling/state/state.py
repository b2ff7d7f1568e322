"""The scheduler's state: everything a plan depends on, in indexes that change only by absorbing rows.

Putting the same row again changes nothing, so rows may come twice and in any order as long as the newest comes last. A state
that absorbed changes equals a state rebuilt from the store; a test holds the two together.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from sortedcontainers import SortedList

from trainmaster.protocol.device_parts import counted, device_of, is_device
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.states import OrderBy
from trainmaster_dispatcher.domain.budgets import Window, add_commitment
from trainmaster_dispatcher.domain.burst_policies import NOTHING_SPENT, Spending
from trainmaster_dispatcher.domain.run_times import RunSeconds, RunTimes
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.state.changes import Changes
from trainmaster_dispatcher.scheduling.state.declared_objects import (
    Cluster,
    PriorityClass,
    Queue,
)
from trainmaster_dispatcher.scheduling.state.declared_state import DeclaredState, JobGrouping
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Flavor, product_of
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, StaticKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey, Placed, Sizes, load_of
from trainmaster_dispatcher.scheduling.state.member_nodes import MemberNodes
from trainmaster_dispatcher.scheduling.state.usage_decay import DecayedUsage

_FEW_SHAPES = 1000
_MOST_KEPT = 10_000
"""The largest number of cached entries for one cluster; when it is exceeded, they are dropped."""


class SchedulerState(DeclaredState):
    """The indexes. Reading is by attribute; changing only by the ``put_``, ``drop_`` and ``set_`` methods.

    It knows nothing of what is derived from it: an ``Engine`` takes its changes and has caches of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lease_until: dict[int, float] = {}
        """By cluster: the end of its agent's lease, on the caller's clock."""
        self.jobs: dict[int, WaitingJob] = {}
        self.runs: dict[int, LiveRun] = {}
        """By job; a job has at most one live run."""
        self.avoided: dict[int, tuple[int, ...]] = {}
        """Clusters left out for a job after they returned it."""
        self.returned_for_room: frozenset[int] = frozenset()
        """The jobs among these that a cluster returned because it had no room for them."""
        self.member_nodes: dict[int, MemberNodes] | None = None
        """By cluster: the nodes of the members there, where they were read; None if nobody reads them, as in a simulation."""
        self.waiting: dict[int, dict[ClassKey, SortedList]] = {}
        """By queue: static keys of the queued jobs of each class."""
        self.heads: dict[int, dict[str, SortedList]] = {}
        """By queue, then by user where it shares its turns between users, else under the empty name: the classes in the order of
        their first jobs, ``(minus the class's value, *static key, class key)``."""
        self._head_of: dict[ClassKey, tuple[int, float, int, ClassKey]] = {}
        self._sweep_at = _FEW_SHAPES
        self._keys: dict[int, ClassKey] = {}
        self._products: dict[int, dict[str, str]] = {}
        """By cluster and node group: the product by which runs were charged; under the empty name, the kind of the cluster."""
        self._memory: dict[int, dict[str, int]] = {}
        """By cluster and node group: bytes of each device of which members can have parts."""
        self._places: dict[int, dict[tuple[int, Sizes, Placed], Amounts]] = {}
        """By cluster: the amounts of equivalent runs by place."""
        self.load: dict[int, dict[str, dict[LoadKey, int]]] = {}
        """By cluster and node group: the number of members of live runs there, by load key."""
        self.load_revisions: dict[int, dict[str, int]] = {}
        """By cluster and node group: the number of changes of that load."""
        self.runs_on: dict[int, dict[int, LiveRun]] = {}
        """By cluster, then by job."""
        self.assumed_on: dict[int, int] = {}
        """By cluster: the number of its live runs whose placement has not been reported."""
        self.elastic_on: dict[int, set[int]] = {}
        """By cluster: the jobs of elastic runs there."""
        self.used: dict[int, Amounts] = {}
        """By queue: the amounts of its own live runs by place."""
        self.running: dict[int, int] = {}
        """By queue: the number of its own live runs."""
        self.running_on: dict[tuple[int, int], int] = {}
        """By queue and cluster: the number of live runs."""
        self.used_by: dict[tuple[int, str], Amounts] = {}
        """By queue and user: the amounts of the user's live runs there by place."""
        self.running_by: dict[tuple[int, str], int] = {}
        """By queue and user: the number of live runs."""
        self._grouping: dict[int, JobGrouping] = {}
        """By queue: how its waiting jobs were put into the indexes."""
        self._by_deadline: set[int] = set()
        """The queues of which they were put there by their deadlines."""
        self.deadlines: dict[ClassKey, SortedList] = {}
        """By class: deadlines of the queued jobs that have one and no event about it, as ``(deadline, job)``."""
        self.running_classes: dict[int, dict[int, int]] = {}
        """By queue and priority class: the number of live runs."""
        self.shrunk_at: dict[int, float] = {}
        """By cluster: the time when it last lost nodes."""
        self.trouble: dict[int, float] = {}
        """By cluster: the number of runs that it has returned or lost lately, decayed and in coarse steps."""
        self.burst_runs: dict[int, dict[int, LiveRun]] = {}
        """By policy, then by job: the runs at public clusters under the policy."""
        self.committed: dict[int, dict[Window, int]] = {}
        """By policy: the cost that its runs may cause in each hour, day and month."""
        self.spending: Spending = NOTHING_SPENT
        """The cost of ended runs under policies."""
        self.job_spent: dict[int, int] = {}
        """By waiting job: the cost of its earlier runs under policies."""
        self.spared: frozenset[int] = frozenset()
        """Jobs whose runs are neither ended for others nor resized, because the store could not write that."""
        self.past: DecayedUsage[int] | None = None
        """The past usage of queues, where that counts."""
        self.past_of_users: DecayedUsage[tuple[int, str]] | None = None
        """The past usage of users, by queue and user, where that counts."""
        self.run_times = RunTimes()
        """How long jobs have run lately; shared by all forks."""

    # -- forks and changes

    def take_changes(self) -> "Changes":
        """Return the changes since the last call. For the one engine that owns this state."""
        changes, self._changes = self._changes, Changes()
        return changes

    def fork(self) -> "SchedulerState":
        """Return a state with the same content that can be changed without changing this one.

        The indexes are shared until the fork is changed, and copied then. A fork is valid until this state changes.
        """
        fork = copy(self)
        fork._is_shared = True
        fork._changes = Changes()
        return fork

    def knowing(self, shapes: Mapping[int, Shape]) -> "SchedulerState":
        """Return a fork that knows these shapes as well."""
        fork = self.fork()
        fork.shapes = {**self.shapes, **shapes}
        fork._note_memory_parts(shapes.values())
        return fork

    def fork_with(
        self,
        waiting: Iterable[WaitingJob],
        shapes: Mapping[int, Shape],
    ) -> "SchedulerState":
        """Return a fork in which only these jobs wait, and which knows these shapes as well. Nothing else is copied."""
        fork = self.knowing(shapes)
        fork.jobs, fork.waiting, fork.heads, fork._keys, fork._head_of, fork._grouping = {}, {}, {}, {}, {}, {}
        fork._by_deadline, fork.deadlines = set(), {}
        for job in waiting:
            fork._add_waiting(job)
        return fork

    # -- tenants and clusters

    def put_class(self, priority_class: PriorityClass) -> None:
        self._own()
        before = self.classes.get(priority_class.id)
        self.classes[priority_class.id] = priority_class
        if before is None or before.value != priority_class.value:
            for classes in self.waiting.values():
                for key in classes:
                    if key.class_id == priority_class.id:
                        self._set_head(key)

    def put_queue(self, queue: Queue) -> None:
        """Add or replace a queue."""
        revision = self.queue_revision
        super().put_queue(queue)
        if self.queue_revision != revision:
            self._regroup()

    def drop_queue(self, queue_id: int) -> None:
        super().drop_queue(queue_id)
        self._regroup()

    def _regroup(self) -> None:
        """Put the waiting jobs again of queues for which it has changed whether, and how, the plan depends on users."""
        for queue_id, grouping in list(self._grouping.items()):
            if self.grouping_of(queue_id) != grouping:
                jobs = [self.jobs[one.job_id] for keys in self.waiting.get(queue_id, {}).values() for one in keys]
                for job in jobs:
                    self.drop_job(job.id)
                del self._grouping[queue_id]
                self._by_deadline.discard(queue_id)
                for job in jobs:
                    self._add_waiting(job)

    def set_lease(self, cluster_id: int, until: float) -> None:
        """Set the end of the lease of a cluster's agent to ``until``, in seconds of the caller's clock."""
        self._own()
        self.lease_until[cluster_id] = until

    def set_trouble(self, trouble: Mapping[int, float]) -> None:
        """Replace the trouble of all clusters: the decayed number of runs that they have returned or lost lately."""
        if trouble != self.trouble:
            self.trouble = dict(trouble)

    def sweep(self) -> None:
        """Drop shapes that no job needs any more, once they may be as many as the needed ones."""
        if len(self.shapes) < self._sweep_at:
            return
        needed = {job.shape_id for job in self.jobs.values()} | {run.shape_id for run in self.runs.values()}
        self.shapes = {shape_id: shape for shape_id, shape in self.shapes.items() if shape_id in needed}
        self._sweep_at = 2 * len(needed) + _FEW_SHAPES

    def put_cluster(self, cluster: Cluster, at: float = 0.0) -> None:
        """Add or replace a cluster; ``at``: the time of the change, in seconds since the epoch."""
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
            memory = dict[str, int]()
            if cluster.report is not None:
                named = [(one.name, one) for one in cluster.report.groups]
                named += [(COMING + one.name, one) for one in cluster.report.pools]
                products |= {name: product_of(one) for name, one in named}
                memory = {name: one.sharing.memory for name, one in named if one.sharing is not None}
            self._call_places(cluster.id, products, memory)

    def drop_cluster(self, cluster_id: int) -> None:
        self._own()
        gone = self.clusters.pop(cluster_id, None)
        if gone is not None and gone.only_queues:
            self._access = {}
        self._call_places(cluster_id, {}, {})
        self._changes.clusters.add(cluster_id)

    def product_at(self, cluster_id: int, group: str) -> str:
        """Return the product of the devices of a node group, or of a pool by the name of its future group; empty if there is none."""
        return self._products.get(cluster_id, {}).get(group, "")

    def _call_places(self, cluster_id: int, products: dict[str, str], memory: dict[str, int]) -> None:
        """Charge the runs of a cluster again if its places have changed: products by group, the kind by ``""``; ``memory``: see
        ``_memory``.
        """
        if (products, memory) == (self._products.get(cluster_id, {}), self._memory.get(cluster_id, {})):
            return
        runs = self.runs_on.get(cluster_id, {}).values()
        for run in runs:
            self._charge(run, -1)
        self._products[cluster_id] = products
        self._memory[cluster_id] = memory
        self._places.pop(cluster_id, None)
        for run in runs:
            self._charge(run, 1)

    # -- jobs

    def end_job(self, job_id: int, now: float) -> None:
        """Remove a job that has ended, and remember how long its run took."""
        run = self.runs.get(job_id)
        if run is not None:
            self.run_times.note(run.user, run.shape_id, now - run.began_at)
        self.drop_job(job_id)

    def run_seconds(self, key: ClassKey) -> RunSeconds:
        """Return how long a job of a class is expected to run: as predicted, at most its limit; else its limit, if any."""
        limit, predicted = self.limit_of(key.shape_id, key.queue_id), self.run_times.predicted(key.user, key.shape_id)
        return RunSeconds(limit if predicted is None else min(limit, predicted), limit)

    def key_of(self, job: WaitingJob) -> ClassKey:
        """Return the class of a job that may not wait yet, and avoids no cluster."""
        user = job.user if self.grouping_of(job.queue_id).tells_apart else ""
        return ClassKey(job.queue_id, job.class_id, job.shape_id, user=user, predecessors=job.predecessors)

    def put_waiting(self, job: WaitingJob) -> None:
        """Add or replace a queued job, which has no live run."""
        self.drop_job(job.id)
        self._add_waiting(job)

    def _add_waiting(self, job: WaitingJob) -> None:
        grouping = self._grouping.get(job.queue_id)
        if grouping is None:
            grouping = self._grouping[job.queue_id] = self.grouping_of(job.queue_id)
            if grouping.order is OrderBy.DEADLINE:
                self._by_deadline.add(job.queue_id)
        avoided, user = self.avoided.get(job.id, ()), job.user if grouping.tells_apart else ""
        key = ClassKey(job.queue_id, job.class_id, job.shape_id, avoided, user, job.predecessors)
        position = self._position_of(job)
        of_queue = self.waiting.setdefault(job.queue_id, {})
        keys = of_queue.get(key)
        if keys is None:
            keys = of_queue[key] = SortedList()
        else:
            key = self._keys[keys[0].job_id]  # the jobs of a class share one key, which saves memory and comparisons
        self.jobs[job.id] = job
        self._keys[job.id] = key
        if job.deadline is not None and not job.is_risk_noted:
            self.deadlines.setdefault(key, SortedList()).add((job.deadline, job.id))
        keys.add(position)
        if keys[0] == position:
            self._set_head(key)

    def _position_of(self, job: WaitingJob) -> StaticKey:
        """Return the key by which a job is in the indexes."""
        return job.key_by_deadline if self._by_deadline and job.queue_id in self._by_deadline else job.key

    def static_key_of(self, job: WaitingJob) -> StaticKey:
        """Return the static key of a job that may not wait yet."""
        return job.key_by_deadline if self.grouping_of(job.queue_id).order is OrderBy.DEADLINE else job.key

    def _forget_deadline(self, job: WaitingJob, key: ClassKey) -> None:
        """Take a job that waits no longer out of the deadlines."""
        dated = self.deadlines.get(key)
        if job.deadline is None or dated is None:
            return
        dated.discard((job.deadline, job.id))
        if not dated:
            del self.deadlines[key]

    def put_run(self, run: LiveRun) -> None:
        """Add or replace the live run of a job, which holds capacity."""
        self.drop_job(run.job_id)
        self.runs[run.job_id] = run
        self.runs_on.setdefault(run.cluster_id, {})[run.job_id] = run
        if run.burst is not None:
            self.burst_runs.setdefault(run.burst.policy_id, {})[run.job_id] = run
            add_commitment(self.committed.setdefault(run.burst.policy_id, {}), run.burst.commitment)
        self._note_elastic((run,))
        self._count(run, 1)

    def put_runs(self, runs: Iterable[LiveRun]) -> None:
        """Add each run as ``put_run`` does; equivalent runs in a row are counted together."""
        self._own()
        started = list(runs)
        self._drop_waiting([run.job_id for run in started])
        for _, equivalent in groupby(started, _counted_by):
            row = list(equivalent)
            by_job = {run.job_id: run for run in row}
            if len(row) == 1 or row[0].burst is not None or not self.runs.keys().isdisjoint(by_job):
                for run in row:
                    self.put_run(run)
                continue
            self.runs |= by_job
            self.runs_on.setdefault(row[0].cluster_id, {}).update(by_job)
            self._note_elastic(row)
            self._count(row[0], len(row))

    def _drop_waiting(self, job_ids: Iterable[int]) -> None:
        """Drop those of these jobs that wait."""
        by_class: dict[ClassKey, list[int]] = {}
        before: ClassKey | None = None
        of_class: list[int] = []
        for job_id in job_ids:
            key = self._keys.get(job_id)
            if key is None:
                continue
            if key is not before:  # jobs of one class follow each other: its hash takes longer than all else here
                before, of_class = key, by_class.setdefault(key, [])
            of_class.append(job_id)
        for key, of_class in by_class.items():
            keys, many = self.waiting[key.queue_id][key], len(of_class)
            if many > 1 and [one.job_id for one in keys.islice(0, many)] == of_class:
                del keys[:many]
                if key in self.deadlines:
                    for job_id in of_class:
                        self._forget_deadline(self.jobs[job_id], key)
                for job_id in of_class:
                    del self.jobs[job_id], self._keys[job_id]
                self._class_has_changed(key)
            else:
                for job_id in of_class:
                    self.drop_job(job_id)

    def _note_elastic(self, equivalent: Sequence[LiveRun]) -> None:
        shape = self.shapes.get(equivalent[0].shape_id)
        if shape is not None and shape.elastic is not None:
            self.elastic_on.setdefault(equivalent[0].cluster_id, set()).update(run.job_id for run in equivalent)

    def _class_has_changed(self, key: ClassKey) -> None:
        """Update a class whose first job has changed; drop the class if none of its jobs waits."""
        of_queue = self.waiting[key.queue_id]
        if not of_queue[key]:
            del of_queue[key]
        self._set_head(key)
        if not of_queue:
            del self.waiting[key.queue_id]

    def drop_job(self, job_id: int) -> None:
        """Remove a job that no longer waits or runs: it ended, is held, or is about to be added again."""
        if self._is_shared:
            self._own()
        job = self.jobs.pop(job_id, None)
        if job is not None:
            key, position = self._keys.pop(job_id), self._position_of(job)
            keys = self.waiting[job.queue_id][key]
            was_first = keys[0] == position
            keys.remove(position)
            if job.deadline is not None:
                self._forget_deadline(job, key)
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
        """Update the position of a class whose first job or value has changed, or remove the class."""
        old = self._head_of.pop(key, None)
        of_queue = self.heads.setdefault(key.queue_id, {})
        user = key.user if self._grouping[key.queue_id].shares else ""
        heads = of_queue.setdefault(user, SortedList())
        if old is not None:
            heads.remove(old)
        keys = self.waiting.get(key.queue_id, {}).get(key)
        of = self.classes.get(key.class_id)
        # A job may be added a moment before its priority class.
        if keys and of is not None:
            head = self._head_of[key] = (-of.value, *keys[0], key)
            heads.add(head)
        if not heads:
            del of_queue[user]
            if not of_queue:
                del self.heads[key.queue_id]

    def _count(self, run: LiveRun, many: int) -> None:
        """Count ``many`` runs equivalent to ``run``; -1 removes one."""
        load = self.load.setdefault(run.cluster_id, {})
        revisions = self.load_revisions.setdefault(run.cluster_id, {})
        for key, count in load_of(run):
            group = load.setdefault(key.group, {})
            _add(group, key, many * count)
            if not group:
                del load[key.group]
            revisions[key.group] = revisions.get(key.group, 0) + 1
        self._changes.note_run(run, many, self.ends_at(run))
        if run.is_assumed:
            _add(self.assumed_on, run.cluster_id, many)
        _add(self.running, run.queue_id, many)
        _add(self.running_on, (run.queue_id, run.cluster_id), many)
        if run.user:
            _add(self.running_by, (run.queue_id, run.user), many)
        classes = self.running_classes.setdefault(run.queue_id, {})
        _add(classes, run.class_id, many)
        if not classes:
            del self.running_classes[run.queue_id]
        self._charge(run, many)

    def _charge(self, run: LiveRun, many: int) -> None:
        places = self.places_of(run)
        used = self.used.setdefault(run.queue_id, {})
        for place, amount in places.items():
            _add(used, place, many * amount)
        if not used:
            del self.used[run.queue_id]
        if run.user:
            of_user = self.used_by.setdefault((run.queue_id, run.user), {})
            for place, amount in places.items():
                _add(of_user, place, many * amount)
            if not of_user:
                del self.used_by[run.queue_id, run.user]

    def places_of(self, run: LiveRun) -> Amounts:
        """Return the amounts that a run takes, by place."""
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
        """Return the amounts that members take on a cluster, by place. ``members``: node group, role and number."""
        products = self._products.get(cluster_id, {})
        kind = products.get("", "")
        needs = {role.name: role.needs for role in self.shapes[shape_id].roles}
        out: Amounts = {}
        for group, role, count in members:
            product = products.get(group, "") if group else ""
            for resource, amount in needs.get(role, {}).items():
                if is_device(resource):
                    place = Flavor(device_of(resource), product, kind)
                    amount = counted(resource, amount, self._memory_at(cluster_id, group))
                else:
                    place = Flavor(resource, "", kind)
                out[place] = out.get(place, 0) + amount * count
        return out

    def _memory_at(self, cluster_id: int, group: str) -> int:
        """Return the memory of each shared device of a node group; of an unknown group, the least of its cluster; 0: unknown."""
        known = self._memory.get(cluster_id, {})
        return known[group] if group in known else min(known.values(), default=0)

    def set_avoided(self, avoided: dict[int, tuple[int, ...]], for_room: Iterable[int] = ()) -> None:
        """Replace the clusters that are left out, for all jobs. ``for_room``: the jobs that a cluster returned for want of room."""
        self.returned_for_room = frozenset(for_room)
        changed = {job for job in self.avoided.keys() | avoided.keys() if self.avoided.get(job) != avoided.get(job)}
        self.avoided = avoided
        for job_id in changed & self.jobs.keys():
            self.put_waiting(self.jobs[job_id])

    def ends_at(self, run: LiveRun) -> float:
        """Return the latest end of a run that keeps to its time limit."""
        if run.burst is not None:
            return run.burst.until
        return run.began_at + self.limit_of(run.shape_id, run.queue_id)

    def class_of(self, job_id: int) -> ClassKey:
        return self._keys[job_id]


_counted_by: Callable[[LiveRun], tuple[Any, ...]] = attrgetter(
    "queue_id",
    "class_id",
    "user",
    "shape_id",
    "cluster_id",
    "sizes",
    "placement",
    "began_at",
    "burst",
    "is_assumed",
    "predicted_seconds",
)
"""All that is counted of a run, without its job: runs with equal values are equivalent."""


def _node_count(cluster: Cluster) -> int:
    return sum(group.count for group in cluster.report.groups) if cluster.report is not None else 0


_Key = TypeVar("_Key", bound=Hashable)


def _add(counts: dict[_Key, int], key: _Key, more: int) -> None:
    """Add ``more`` to a count, and remove the entry if the count becomes 0."""
    total = counts.get(key, 0) + more
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
