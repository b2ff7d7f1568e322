"""Loading the scheduler's state from the store, at first as a whole and then by its changes.

Stored objects that cannot be used are quarantined one by one: the state has a placeholder by which nothing starts,
or leaves the object out. The object is read again when it changes, and periodically. A state that may be damaged is rebuilt.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

from trainmaster.protocol.ids import job_id as id_of_job
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import ClusterKind, JobState
from trainmaster_dispatcher.containment import Part, contained, note
from trainmaster_dispatcher.domain.burst_policies import NOTHING_SPENT
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.provisioning import MOST_SAMPLES, Learnt, learn
from trainmaster_dispatcher.domain.run_times import RunTimes
from trainmaster_dispatcher.domain.shapes import shape_from
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.quotas import quota
from trainmaster_dispatcher.scheduling.selection.scores.reliability import step_of
from trainmaster_dispatcher.scheduling.state import from_specs
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.flavors import Amounts
from trainmaster_dispatcher.scheduling.state.from_specs import queue_of
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.member_nodes import MEMBER_NODES_SECONDS
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth, Hold, Plan, Start, grown, runs_of, shrinking
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services import bursting, pricing
from trainmaster_dispatcher.services import view_objects as objects
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.quarantine import Quarantine
from trainmaster_dispatcher.store import bursts, runs, scheduling, tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.scheduling import (
    Cursor,
    ReportedCluster,
    ScheduledJob,
    StoredNodeMembers,
    StoredShape,
)


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


_Made = TypeVar("_Made")
_Stored = TypeVar("_Stored", bound=_HasId)

_MOST_REPAIRS = 3
_NEVER = -1
"""A fingerprint that no row has: an object quarantined with it is tried again as soon as it is read."""
_MANY_STARTS = 3
"""A cluster is to blame when at least this number of its starts in a plan cannot be written, and none can."""


def _fingerprint(stored: Any) -> int:
    """Return a number that changes with any part of a stored row."""
    return crc32(repr(stored).encode(errors="replace"))


class ClassReason(NamedTuple):
    """The reason of a class of jobs, as in a plan."""

    key: ClassKey
    reason: Reason


Decision = Start | Hold | Eviction | Growth | ClassReason


class Unwritten(NamedTuple):
    """A part of a plan that could not be written even alone."""

    decision: Decision
    error: Exception


@dataclass(frozen=True, slots=True)
class Applied:
    """The jobs whose decision was stored, those whose runs end for others, runs that were resized, and the time.

    ``at`` is in seconds since the epoch.
    """

    jobs: set[int]
    ending: set[int]
    at: float
    shrunk: tuple[Eviction, ...] = ()
    grown: tuple[Growth, ...] = ()
    unwritten: tuple[Unwritten, ...] = ()
    """Decisions and reasons that could not be written, though other parts of the plan were."""
    traced: Mapping[int, int] = field(default_factory=dict)
    """The attempts of runs that begin, by jobs that belong to a trace; empty where this process makes no spans."""

    @property
    def is_nothing(self) -> bool:
        return not (self.jobs or self.ending or self.shrunk or self.grown)


@dataclass(slots=True)
class Follower:
    """An engine whose state follows the store."""

    engine: Engine = field(default_factory=Engine)
    cursor: Cursor | None = None
    epoch: int | None = None
    """Store epoch of the installation that the state was loaded from."""
    ahead: float = 0.0
    """Seconds by which the store's time since the epoch is ahead of the caller's clock."""
    now: float = 0.0
    """The store's time at the last read, in seconds since the epoch."""
    tariffs: dict[int, Tariff] = field(default_factory=dict)
    """By cluster: its current prices."""
    run_versions: dict[int, int] = field(default_factory=dict)
    """By job with a live run: the version of the job in the state."""
    _ran_before: set[int] = field(default_factory=set)
    """Waiting jobs that have run before, for which spending by burst policies has to be read."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    """Objects that the state leaves out because they cannot be used; the quarantine outlives the state."""
    clock: float = 0.0
    """The caller's clock at the last read."""
    _unpriced: Mapping[int, Exception] = field(default_factory=dict)
    """By cluster: why its prices cannot be read."""
    _blamed: set[int] = field(default_factory=set)
    """Waiting jobs whose start, with runs that had to end for them, could not be written."""
    needs_nodes: frozenset[int] = frozenset()
    """The clusters whose members' nodes the last decision needs."""
    _is_damaged: bool = False
    """Whether an error occurred while the state was changed, so that parts of the state may be wrong."""

    @property
    def state(self) -> SchedulerState:
        return self.engine.state

    def begin_anew(self) -> None:
        """Discard the state, which is loaded again at the next call of ``absorb``."""
        self.engine, self.cursor, self.run_versions, self._ran_before = Engine(), None, {}, set()
        self._is_damaged = False

    async def absorb(self, stores: Stores, now: float) -> bool:
        """Apply stored changes to the state; return whether newer changes are committed that could not be applied yet.

        ``now`` is the caller's clock, compared with the store's.
        """
        epoch = self.epoch
        unsettled = await self._absorb(stores, now)
        if epoch is not None and self.epoch != epoch:
            # The store was restored from a backup: the state has changes that the store does not have any more.
            self.begin_anew()
            unsettled = await self._absorb(stores, now)
        for _ in range(_MOST_REPAIRS):
            if not self._is_damaged:
                break
            # The object that did the damage is in quarantine now, and is not put into the new state.
            self.begin_anew()
            unsettled = await self._absorb(stores, now)
        return unsettled

    async def _absorb(self, stores: Stores, now: float) -> bool:
        self.clock = now
        async with stores.database.transaction() as tx:
            if self.cursor is None:
                await self._load(tx, predicts=stores.settings.predict_run_times)
                unsettled = False
            else:
                unsettled = await self._follow(tx, self.cursor)
                if self.quarantine.entries:
                    await self._try_again(tx)
            nodes = {cluster: await scheduling.member_nodes(tx, cluster) for cluster in self.needs_nodes}
            for lease in await scheduling.leases(tx):
                self.ahead, self.now, self.epoch = lease.now - now, lease.now, lease.store_epoch
                if lease.cluster_id is not None and lease.until is not None:
                    self.state.set_lease(lease.cluster_id, lease.until)
            self.state.set_trouble(
                {one.cluster_id: step for one in await scheduling.troubles(tx) if (step := step_of(one.level))}
            )
            self._put_nodes(nodes)
            avoided: dict[int, list[int]] = {}
            cool_downs = await scheduling.cool_downs(tx)
            for row in cool_downs:
                avoided.setdefault(row.job_id, []).append(row.cluster_id)
            self.state.sweep()
            self.state.set_avoided(
                {job: tuple(sorted(clusters)) for job, clusters in avoided.items()},
                (row.job_id for row in cool_downs if row.lacks_room),
            )
        return unsettled

    def _put_nodes(self, read: Mapping[int, Sequence[StoredNodeMembers]]) -> None:
        """Put the nodes of members that were read into the state in place of those that were read before."""
        self.needs_nodes = frozenset()
        known = self.state.member_nodes or {}
        fresh = {cluster: objects.member_nodes_from(rows, self.now) for cluster, rows in read.items()}
        self.state.member_nodes = {
            cluster: one for cluster, one in known.items() if one.at > self.now - MEMBER_NODES_SECONDS
        } | fresh

    async def _load(self, tx: Transaction, *, predicts: bool) -> None:
        # The cursor is read first: changes committed while the rest is read are absorbed again, which is idempotent.
        cursor = await scheduling.start_cursor(tx)
        self.state.run_times = RunTimes.of(await scheduling.run_times(tx)) if predicts else RunTimes(is_on=False)
        await self._load_tenants(tx)
        async for page in scheduling.live_jobs(tx):
            await self._take(tx, page)
        # After the jobs: a run that ends meanwhile must not be in neither.
        await self._load_spending(tx)
        self.cursor = cursor

    async def _follow(self, tx: Transaction, cursor: Cursor) -> bool:
        feed = await scheduling.read_feed(tx, cursor)
        if any(kind.changes_declared for kind, _ in feed.others):
            await self._load_tenants(tx)
        else:
            reported = [ref for kind, ref in feed.others if kind is FeedKind.CAPACITY]
            self._put_clusters(await scheduling.clusters(tx, reported) if reported else ())
        for first, last in feed.submitted:
            await self._take(tx, await scheduling.jobs_between(tx, first, last))
        changed = []
        for job_id, (version, is_over) in feed.jobs.items():
            if version <= self._known_version(job_id):
                continue
            if is_over:
                self.state.end_job(job_id, self.now)
                self._forget(job_id)
            else:
                changed.append(job_id)
        if changed:
            rows = await scheduling.jobs(tx, changed)
            for job_id in set(changed) - {row.id for row in rows}:
                self._drop(job_id)
            await self._take(tx, rows)
        if (FeedKind.PROVISIONING, 0) in feed.others:
            await self._load_provisioning(tx)
        # After the jobs: what is read now includes the cost of runs that have left the state.
        if any(kind in (FeedKind.SPENDING, FeedKind.BURST_POLICY) for kind, _ in feed.others):
            await self._load_spending(tx)
        self.cursor = feed.cursor
        return feed.unsettled

    async def _load_spending(self, tx: Transaction) -> None:
        """Load what burst policies have spent; spending on jobs is read for waiting jobs that have run by a policy before."""
        policies = list(self.state.policies.values())
        self.state.spending = await bursting.load_spending(tx, policies) if policies else NOTHING_SPENT
        self._ran_before |= self.state.job_spent.keys()
        await self._load_job_spending(tx)

    async def _load_job_spending(self, tx: Transaction) -> None:
        """Load spending on jobs that wait again since the last call, and on those for which something was spent."""
        waiting = [job for job in self._ran_before if job in self.state.jobs]
        self._ran_before = set()
        found = await bursts.spent_on_jobs(tx, waiting) if waiting else {}
        kept = {job: cost for job, cost in self.state.job_spent.items() if job in self.state.jobs}
        self.state.job_spent = kept | found

    async def _load_provisioning(self, tx: Transaction) -> None:
        samples: dict[tuple[int, str], list[float | None]] = {}
        for row in await runs.provisionings(tx, MOST_SAMPLES):
            samples.setdefault((row.cluster_id, row.pool), []).append(row.seconds)
        learnt: dict[tuple[int, str], Learnt] = {}
        for (cluster_id, pool), found in samples.items():
            with contained(Part.CLUSTER, f"pool {pool} of cluster {cluster_id}"):
                learnt[cluster_id, pool] = learn(found)
        self.state.set_provisioning(learnt)

    def price_factors(self, plan: Plan) -> dict[int, Decimal]:
        """Return, by jobs that start, what their cost is multiplied by for their charge, where that is not 1."""
        state, found = self.state, dict[tuple[int, int], Decimal]()
        out = {}
        for start in plan.starts:
            key = start.job.queue_id, start.job.class_id
            if key not in found:
                found[key] = state.price_factor_of(*key)
            if found[key] != 1:
                out[start.job.id] = found[key]
        return out

    def _known_version(self, job_id: int) -> int:
        """Return the version of a job in the state; changes up to this version need not be read again."""
        waiting = self.state.jobs.get(job_id)
        return waiting.version if waiting is not None else self.run_versions.get(job_id, 0)

    def _drop(self, job_id: int) -> None:
        self.state.drop_job(job_id)
        self._forget(job_id)

    def _forget(self, job_id: int) -> None:
        self.run_versions.pop(job_id, None)
        if self.quarantine.entries:
            self.quarantine.release(Part.JOB, job_id)
            self.quarantine.release(Part.RUN, job_id)

    async def _load_tenants(self, tx: Transaction) -> None:
        state = self.state
        queues = {row.id: row for row in await tenants.QUEUES.stored(tx)}
        for gone in state.queues.keys() - queues.keys():
            state.drop_queue(gone)
        self._put_all(
            Part.QUEUE,
            queues.values(),
            objects.queue_from,
            state.put_queue,
            lambda row, fault: from_specs.unreadable_queue(row.id, row.name, row.parent_id, fault),
        )
        self._put_all(
            Part.PRIORITY_CLASS,
            await tenants.CLASSES.stored(tx),
            objects.class_from,
            state.put_class,
            lambda row, fault: from_specs.unreadable_class(row.id, row.name, row.value, fault),
        )
        state.set_datasets(self._made(Part.DATASET, await tenants.DATASETS.stored(tx), objects.dataset_from))
        roots = [row.name for row in queues.values() if row.parent_id is None]
        state.set_policies(
            self._made(
                Part.BURST_POLICY,
                await bursts.POLICIES.stored(tx),
                objects.policy_from,
                lambda row, fault: from_specs.unreadable_policy(
                    row.id, row.name, row.revision, objects.queues_named_in(row.spec) or roots, fault
                ),
            )
        )
        await self._load_provisioning(tx)
        state.set_advance(self._made(Part.RESERVATION, await tenants.RESERVATIONS.stored(tx), objects.reservation_from))
        clusters = {row.id: row for row in await scheduling.clusters(tx)}
        for gone in state.clusters.keys() - clusters.keys():
            state.drop_cluster(gone)
        self.quarantine.keep_only(Part.CLUSTER, clusters)
        histories = await pricing.histories(tx)
        self.tariffs = {key: history.tariffs[-1] for key, history in histories.known.items()}
        self._unpriced = histories.unreadable
        self._put_clusters(clusters.values())

    def _put_clusters(self, rows: Iterable[ReportedCluster]) -> None:
        self._put_all(
            Part.CLUSTER,
            rows,
            self._cluster_from,
            lambda cluster: self.state.put_cluster(cluster, self.now),
            lambda row, fault: from_specs.unreadable_cluster(row.id, row.name, ClusterKind(row.kind), fault),
            lambda row: _fingerprint((row, self.tariffs.get(row.id), self._unpriced.get(row.id))),
        )

    def _cluster_from(self, row: ReportedCluster) -> Cluster:
        error = self._unpriced.get(row.id)
        if error is not None:
            raise error
        return objects.cluster_from(row, self.tariffs.get(row.id, FREE))

    def _made(
        self,
        part: Part,
        rows: Iterable[_Stored],
        make: Callable[[_Stored], _Made],
        unreadable: Callable[[_Stored, str], _Made] | None = None,
    ) -> list[_Made]:
        """Create objects of all rows of a part; for rows that cannot be read, ``unreadable`` creates a placeholder."""
        out: list[_Made] = []
        self._put_all(part, rows, make, out.append, unreadable)
        return out

    def _put_all(
        self,
        part: Part,
        rows: Iterable[_Stored],
        make: Callable[[_Stored], _Made],
        put: Callable[[_Made], None],
        unreadable: Callable[[_Stored, str], _Made] | None = None,
        version_of: Callable[[_Stored], int] = _fingerprint,
    ) -> None:
        """Create an object of each row and put it into the state; quarantine rows for which one of these steps fails."""
        keys = []
        for row in rows:
            entry = self.quarantine.entries.get((part, row.id))
            is_made = False
            if entry is None or not entry.holds(version_of(row), self.clock):
                try:
                    made = make(row)
                    is_made = True
                    put(made)
                    self.quarantine.release(part, row.id)
                    continue
                except Exception as error:  # noqa: BLE001 - the quarantine notes it
                    entry = self.quarantine.add(part, row.id, _name_of(row), error, self.clock, version_of(row))
            keys.append(row.id)
            self._is_damaged = self._is_damaged or is_made
            if unreadable is not None:
                with contained(part, _name_of(row)):
                    put(unreadable(row, entry.sentence))
        if part is not Part.CLUSTER:  # of clusters, ``rows`` may have only some
            self.quarantine.keep_only(part, keys)

    async def _try_again(self, tx: Transaction) -> None:
        """Read quarantined objects again that are due."""
        due = self.quarantine.due(self.clock)
        if due:
            job_ids = sorted({entry.key for entry in due if entry.part is Part.JOB})
            if job_ids:
                rows = await scheduling.jobs(tx, job_ids)
                for gone in set(job_ids) - {row.id for row in rows}:
                    self._drop(gone)
                await self._take(tx, rows)
            shape_ids = sorted({entry.key for entry in due if entry.part is Part.SHAPE})
            if shape_ids:
                self._put_shapes(await scheduling.shapes(tx, shape_ids))
            for entry in due:
                if entry.part is Part.RUN:
                    self.quarantine.release(Part.RUN, entry.key)
            if any(entry.part not in (Part.JOB, Part.SHAPE, Part.RUN) for entry in due):
                await self._load_tenants(tx)
        self.state.spared = frozenset(key for part, key in self.quarantine.entries if part is Part.RUN)

    async def _take(self, tx: Transaction, rows: Sequence[ScheduledJob]) -> None:
        new_shapes = {row.shape_id for row in rows} - self.state.shapes.keys()
        if new_shapes:
            self._put_shapes(await scheduling.shapes(tx, sorted(new_shapes)))
        for row in rows:
            self._put(row)
            if row.attempt and row.state == JobState.QUEUED:
                self._ran_before.add(row.id)
        if self.cursor is not None and self._ran_before:
            await self._load_job_spending(tx)

    def _put_shapes(self, rows: Sequence[StoredShape]) -> None:
        for row in rows:
            before = self.state.shapes.get(row.id)
            try:
                shape = shape_from(row.body)
                self.quarantine.release(Part.SHAPE, row.id)
            except Exception as error:  # noqa: BLE001 - the quarantine notes it
                entry = self.quarantine.add(Part.SHAPE, row.id, str(row.id), error, self.clock)
                shape = from_specs.unreadable_shape(row.body, entry.sentence)
            self.state.put_shape(row.id, shape)
            # The runs' usage was computed from the cluster's previous version.
            self._is_damaged = self._is_damaged or (before is not None and before != shape)

    def _put(self, row: ScheduledJob) -> None:
        """Put a job where it belongs in the state; quarantine a job for which that fails."""
        self.run_versions.pop(row.id, None)
        quarantine = self.quarantine
        if quarantine.entries and quarantine.holds(Part.JOB, row.id, row.version, self.clock):
            self.state.drop_job(row.id)
            return
        is_made = False
        try:
            if row.cluster_id is not None:
                run = objects.run_from(row, self.state)
                is_made = True
                self.run_versions[row.id] = row.version
                self.state.put_run(run)
            elif row.state == JobState.QUEUED:
                job = objects.waiting_from(row)
                is_made = True
                self.state.put_waiting(job)
            else:
                is_made = True
                self.state.drop_job(row.id)
            if quarantine.entries:
                quarantine.release(Part.JOB, row.id)
        except Exception as error:  # noqa: BLE001 - the quarantine notes it
            self.set_aside(row.id, row.version, row.name, error)
            self._is_damaged = self._is_damaged or is_made

    def set_aside(self, job_id: int, version: int, name: str, error: Exception) -> None:
        """Leave a job out of the state until it changes or is tried again."""
        self.quarantine.add(Part.JOB, job_id, id_of_job(name, job_id), error, self.clock, version)
        self.run_versions.pop(job_id, None)
        try:
            self.state.drop_job(job_id)
        except Exception:  # noqa: BLE001 - it follows from the error that was noted
            self._is_damaged = True

    def close_cluster(self, cluster_id: int, error: Exception) -> None:
        """Start nothing on a cluster until its agent reports again, or for a while."""
        cluster = self.state.clusters.get(cluster_id)
        if cluster is not None:
            entry = self.quarantine.add(Part.CLUSTER, cluster_id, cluster.name, error, self.clock, _NEVER)
            if not cluster.fault:
                self.state.put_cluster(replace(cluster, report=None, fault=entry.sentence), self.now)

    def note_faults(self, plan: Plan) -> None:
        """Log the unexpected errors of a decision, and leave out for a while the objects to blame."""
        for fault in plan.faults:
            part = Part(fault.kind)
            if part is Part.CLUSTER:
                self.close_cluster(fault.key, fault.error)
            elif part is Part.RESERVATION:
                self.quarantine.add(part, fault.key, fault.name, fault.error, self.clock, _NEVER)
            elif part is Part.RUN:
                self.spare(fault.key, fault.error)
            else:
                note(part, fault.name, fault.error)

    def note_unwritten(self, unwritten: Sequence[Unwritten], applied: Applied, plan: Plan) -> None:
        """Leave out for a while what could not be written: the job, the victims of its start, or its cluster."""
        started = {start.cluster_id for start in plan.starts if start.job.id in applied.jobs}
        by_cluster = Counter(one.decision.cluster_id for one in unwritten if isinstance(one.decision, Start))
        closed = {cluster for cluster, many in by_cluster.items() if many >= _MANY_STARTS and cluster not in started}
        for decision, error in unwritten:
            if isinstance(decision, Start) and decision.cluster_id in closed:
                closed.discard(decision.cluster_id)
                self.close_cluster(decision.cluster_id, error)
            elif isinstance(decision, Start) and self.state.clusters[decision.cluster_id].fault:
                continue
            elif isinstance(decision, Start) and decision.evicts and decision.job.id not in self._blamed:
                # Which of them is to blame is not known: at first other victims are searched for.
                self._blamed.add(decision.job.id)
                for one in decision.evicts:
                    self.spare(one.job_id, error)
            elif isinstance(decision, Start | Hold):
                self._blamed.discard(decision.job.id)
                self.set_aside(decision.job.id, decision.job.version, decision.job.name, error)
            elif isinstance(decision, Eviction | Growth):
                self.spare(decision.job_id, error)
            else:
                note(Part.REASON, str(tuple(decision.key)), error)

    def spare(self, job_id: int, error: Exception) -> None:
        """Neither end nor resize the run of a job for a while."""
        self.quarantine.add(Part.RUN, job_id, f"of job {job_id}", error, self.clock)
        self.state.spared |= {job_id}

    def note_applied(self, plan: Plan, applied: Applied) -> None:
        """Apply a stored plan to the state at once, without waiting for the feed."""
        started = [start for start in plan.starts if start.job.id in applied.jobs]
        self.run_versions |= {start.job.id: start.job.version + 1 for start in started}
        self.state.put_runs(runs_of(started, applied.at))
        for job_id in applied.ending & self.state.runs.keys():
            self.state.put_run(replace(self.state.runs[job_id], is_stopping=True))
        for one in applied.shrunk:
            run = self.state.runs.get(one.job_id)
            if run is not None and one.sizes is not None:
                self.state.put_run(shrinking(run, one.sizes, applied.at))
        for growth in applied.grown:
            run = self.state.runs.get(growth.job_id)
            if run is not None:
                self.state.put_run(grown(run, growth, applied.at))
        for hold in plan.holds:
            if hold.job.id in applied.jobs:
                self.state.drop_job(hold.job.id)


def _name_of(row: Any) -> str:
    return str(getattr(row, "name", None) or row.path)


async def overpromised(tx: Transaction, rows: Sequence[tenants.QueueRow]) -> dict[int, list[str]]:
    """Return, by queue, the resources whose guarantees exceed the clusters' capacity. ``rows`` are all queues."""
    state = SchedulerState()
    for row in rows:
        state.put_queue(queue_of(row.id, row.row.parent_id, row.spec))
    if not any(one.guaranteed for queue in state.queues.values() for one in queue.quotas.values()):
        return {}
    for stored in await scheduling.clusters(tx):
        with contained(Part.CLUSTER, stored.name):
            state.put_cluster(objects.cluster_from(stored))
    engine = Engine(state)
    total: Amounts = {}
    for one in state.clusters.values():
        for flavor, amount in engine.index.capacity(one).items():
            total[flavor] = total.get(flavor, 0) + amount
    return quota.overpromised(engine.limits, total)
