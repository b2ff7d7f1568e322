"""Load: from the store to the scheduler's view, at first as a whole and then as it changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.dispatcher.domain.burst_policies import NOTHING_SPENT, Bounds, BurstRun
from trainmaster.dispatcher.domain.prices import FREE, Tariff
from trainmaster.dispatcher.domain.provisioning import MOST_SAMPLES, learn
from trainmaster.dispatcher.domain.shapes import shape_from
from trainmaster.dispatcher.scheduling import quota
from trainmaster.dispatcher.scheduling.candidates import Rooms
from trainmaster.dispatcher.scheduling.declared import advance_of, class_of, cluster_of, dataset_of, queue_of
from trainmaster.dispatcher.scheduling.lines import Amounts
from trainmaster.dispatcher.scheduling.plan import (
    Eviction,
    Growth,
    Plan,
    grown,
    members_leaving,
    runs_of,
    shrinking,
)
from trainmaster.dispatcher.scheduling.scores import step_of
from trainmaster.dispatcher.scheduling.view import (
    Cluster,
    LiveRun,
    View,
    WaitingJob,
    freeze_placement,
)
from trainmaster.dispatcher.services import bursting, pricing
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import bursts, datasets, runs, scheduling, tenants
from trainmaster.dispatcher.store.database import Transaction
from trainmaster.dispatcher.store.scheduling import Cursor
from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import ClusterSpec

_QUIET = ("contact", "capacity", "spend", "provisioning")
"""Kinds of changes for which tenants need not be read anew."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The jobs whose decision was stored, those whose runs end for others, runs that got other sizes, and when.

    ``at`` is in seconds since the epoch.
    """

    jobs: set[int]
    ending: set[int]
    at: float
    shrunk: tuple[Eviction, ...] = ()
    grown: tuple[Growth, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.jobs or self.ending or self.shrunk or self.grown)


@dataclass(slots=True)
class Follower:
    """A view that follows the store."""

    view: View = field(default_factory=View)
    cursor: Cursor | None = None
    ahead: float = 0.0
    """By how much the store's time since the epoch is ahead of the caller's clock."""
    now: float = 0.0
    """The store's time at the last look, in seconds since the epoch."""
    tariffs: dict[int, Tariff] = field(default_factory=dict)
    """By cluster: what it charges now."""
    run_versions: dict[int, int] = field(default_factory=dict)
    """By job with a live run: the version of the job that the view has."""
    _ran_before: set[int] = field(default_factory=set)
    """Waiting jobs that have run before, of which it is to be looked up what was spent on them by burst policies."""

    def begin_anew(self) -> None:
        """Forget everything, to be loaded at the next look."""
        self.view, self.cursor, self.run_versions, self._ran_before = View(), None, {}, set()

    async def absorb(self, stores: Stores, now: float) -> bool:
        """Take in what has changed; whether newer changes are committed that could not be taken yet.

        ``now`` is the caller's clock, set against the store's.
        """
        async with stores.database.transaction() as tx:
            if self.cursor is None:
                await self._load(tx)
                unsettled = False
            else:
                unsettled = await self._follow(tx, self.cursor)
            for row in await scheduling.leases(tx):
                self.ahead, self.now = row.now - now, row.now
                if row.cluster_id is not None:
                    self.view.lease_until[row.cluster_id] = row.until
            self.view.set_trouble(
                {row.cluster_id: step for row in await scheduling.troubles(tx) if (step := step_of(row.level))}
            )
            avoided: dict[int, list[int]] = {}
            for row in await scheduling.cool_downs(tx):
                avoided.setdefault(row.job_id, []).append(row.cluster_id)
            self.view.sweep()
            self.view.set_avoided({job: tuple(sorted(clusters)) for job, clusters in avoided.items()})
        return unsettled

    async def _load(self, tx: Transaction) -> None:
        # The cursor is read first: what commits while the rest is read is absorbed again, which changes nothing.
        cursor = await scheduling.start_cursor(tx)
        await self._load_tenants(tx)
        async for page in scheduling.live_jobs(tx):
            await self._take(tx, page)
        # Behind the jobs: a run that ends meanwhile must not be in neither.
        await self._load_spending(tx)
        self.cursor = cursor

    async def _follow(self, tx: Transaction, cursor: Cursor) -> bool:
        feed = await scheduling.read_feed(tx, cursor)
        if any(kind not in _QUIET for kind, _ in feed.others):
            await self._load_tenants(tx)
        else:
            for cluster in await scheduling.clusters(tx, [ref for kind, ref in feed.others if kind == "capacity"]):
                self.view.put_cluster(_cluster(cluster, self.tariffs.get(cluster.id, FREE)), self.now)
        for first, last in feed.submitted:
            await self._take(tx, await scheduling.jobs_between(tx, first, last))
        changed = []
        for job_id, (version, is_over) in feed.jobs.items():
            if version <= self._known_version(job_id):
                continue
            if is_over:
                self._drop(job_id)
            else:
                changed.append(job_id)
        if changed:
            rows = await scheduling.jobs(tx, changed)
            for job_id in set(changed) - {row.id for row in rows}:
                self._drop(job_id)
            await self._take(tx, rows)
        if ("provisioning", 0) in feed.others:
            await self._load_provisioning(tx)
        # Behind the jobs: what a run that has gone from the view has cost is in what is read now.
        if any(kind in ("spend", "policy") for kind, _ in feed.others):
            await self._load_spending(tx)
        self.cursor = feed.cursor
        return feed.unsettled

    async def _load_spending(self, tx: Transaction) -> None:
        """What was spent by policies. What was spent on jobs that wait is read for those that have run by one before."""
        policies = list(self.view.policies.values())
        self.view.spending = await bursting.load_spending(tx, policies) if policies else NOTHING_SPENT
        self._ran_before |= self.view.job_spent.keys()
        await self._load_job_spending(tx)

    async def _load_job_spending(self, tx: Transaction) -> None:
        """Of jobs that have begun to wait again since, and of those for which something was spent."""
        waiting = [job for job in self._ran_before if job in self.view.jobs]
        self._ran_before = set()
        found = await bursts.spent_on_jobs(tx, waiting) if waiting else {}
        kept = {job: cost for job, cost in self.view.job_spent.items() if job in self.view.jobs}
        self.view.job_spent = kept | found

    async def _load_provisioning(self, tx: Transaction) -> None:
        samples: dict[tuple[int, str], list[float | None]] = {}
        for row in await runs.provisionings(tx, MOST_SAMPLES):
            samples.setdefault((row.cluster_id, row.pool), []).append(row.seconds)
        self.view.set_provisioning({key: learn(found) for key, found in samples.items()})

    def _known_version(self, job_id: int) -> int:
        """The version of a job in the view; what was read or applied at this version need not be read again."""
        waiting = self.view.jobs.get(job_id)
        return waiting.version if waiting is not None else self.run_versions.get(job_id, 0)

    def _drop(self, job_id: int) -> None:
        self.view.drop_job(job_id)
        self.run_versions.pop(job_id, None)

    async def _load_tenants(self, tx: Transaction) -> None:
        queues = {row.id: row for row in await tenants.queues(tx)}
        for gone in self.view.queues.keys() - queues.keys():
            self.view.drop_queue(gone)
        for row in queues.values():
            self.view.put_queue(queue_of(row.id, row.parent_id, row.spec))
        for class_row in await tenants.classes(tx):
            self.view.put_class(class_of(class_row.id, class_row.spec))
        self.view.set_datasets(dataset_of(spec) for spec in await datasets.datasets(tx))
        self.view.set_policies(await bursting.load_policies(tx))
        await self._load_provisioning(tx)
        self.view.set_advance(advance_of(row.id, row.queue_id, row.spec) for row in await tenants.reservations(tx))
        clusters = {row.id: row for row in await scheduling.clusters(tx)}
        for gone in self.view.clusters.keys() - clusters.keys():
            self.view.drop_cluster(gone)
        self.tariffs = {key: history.tariffs[-1] for key, history in (await pricing.histories(tx)).items()}
        for cluster_row in clusters.values():
            self.view.put_cluster(_cluster(cluster_row, self.tariffs.get(cluster_row.id, FREE)), self.now)

    async def _take(self, tx: Transaction, rows: Sequence[Any]) -> None:
        new_shapes = {row.shape_id for row in rows} - self.view.shapes.keys()
        for shape_row in await scheduling.shapes(tx, sorted(new_shapes)) if new_shapes else ():
            self.view.put_shape(shape_row.id, shape_from(shape_row.body))
        for row in rows:
            self._put(row)
            if row.attempt and row.state == JobState.QUEUED:
                self._ran_before.add(row.id)
        if self.cursor is not None and self._ran_before:
            await self._load_job_spending(tx)

    def _put(self, row: Any) -> None:
        self.run_versions.pop(row.id, None)
        if row.cluster_id is not None:
            self.run_versions[row.id] = row.version
            self.view.put_run(
                LiveRun(
                    job_id=row.id,
                    queue_id=row.queue_id,
                    shape_id=row.shape_id,
                    cluster_id=row.cluster_id,
                    sizes=tuple(sorted((row.holding or row.sizes).items())),
                    placement=freeze_placement(row.placement),
                    class_id=row.class_id,
                    began_at=row.leased_at,
                    attempt=row.run_attempt,
                    is_stopping=row.is_stopping,
                    leaving=members_leaving(row.holding, row.sizes),
                    resized_at=row.resized_at or 0.0,
                    burst=_burst_of(row),
                )
            )
        elif row.state == JobState.QUEUED:
            self.view.put_waiting(
                WaitingJob(
                    id=row.id,
                    version=row.version,
                    name=row.name,
                    queue_id=row.queue_id,
                    class_id=row.class_id,
                    shape_id=row.shape_id,
                    priority=row.priority,
                    submitted_at=row.submitted_at,
                    attempt=row.attempt,
                )
            )
        else:
            self.view.drop_job(row.id)

    def note_applied(self, plan: Plan, applied: Applied) -> None:
        """Count what was just applied at once, without waiting for it to come back by the feed."""
        started = [start for start in plan.starts if start.job.id in applied.jobs]
        self.run_versions |= {start.job.id: start.job.version + 1 for start in started}
        self.view.put_runs(runs_of(started, applied.at))
        for job_id in applied.ending & self.view.runs.keys():
            self.view.put_run(replace(self.view.runs[job_id], is_stopping=True))
        for one in applied.shrunk:
            run = self.view.runs.get(one.job_id)
            if run is not None and one.sizes is not None:
                self.view.put_run(shrinking(run, one.sizes, applied.at))
        for growth in applied.grown:
            run = self.view.runs.get(growth.job_id)
            if run is not None:
                self.view.put_run(grown(run, growth, applied.at))
        for hold in plan.holds:
            if hold.job.id in applied.jobs:
                self.view.drop_job(hold.job.id)


def _burst_of(row: Any) -> BurstRun | None:
    if row.policy_id is None:
        return None
    bounds = Bounds(**row.bounds)
    return BurstRun(row.policy_id, row.leased_at, bounds.until(row.leased_at, row.run_started_at), bounds.rate)


async def overpromised(tx: Transaction, rows: Sequence[tenants.QueueRow]) -> dict[int, list[str]]:
    """By queue: in what guarantees go beyond what the clusters have. ``rows`` are all queues."""
    view = View()
    for row in rows:
        view.put_queue(queue_of(row.id, row.parent_id, row.spec))
    if not any(one.guaranteed for queue in view.queues.values() for one in queue.quotas.values()):
        return {}
    for cluster in await scheduling.clusters(tx):
        view.put_cluster(_cluster(cluster))
    rooms = Rooms(view)
    total: Amounts = {}
    for one in view.clusters.values():
        for line, amount in rooms.capacity(one).items():
            total[line] = total.get(line, 0) + amount
    return quota.overpromised(view, total)


def _cluster(row: Any, tariff: Tariff = FREE) -> Cluster:
    report = None if row.report is None else CapacityReport.model_validate(row.report)
    return cluster_of(row.id, ClusterSpec.model_validate(row.spec), report, cordoned=row.cordoned, tariff=tariff)
