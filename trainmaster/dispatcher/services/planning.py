"""Load and apply: from the store to the scheduler's view, and from a plan to the store."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.dispatcher.domain import job_machine, run_machine
from trainmaster.dispatcher.domain.shapes import shape_from
from trainmaster.dispatcher.scheduling import quota
from trainmaster.dispatcher.scheduling.candidates import Rooms
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, Quota
from trainmaster.dispatcher.scheduling.past import Past
from trainmaster.dispatcher.scheduling.place import ledger_of
from trainmaster.dispatcher.scheduling.plan import Eviction, Plan, Start, runs_of
from trainmaster.dispatcher.scheduling.view import (
    AdvanceReservation,
    ClassKey,
    Cluster,
    LiveRun,
    PriorityClass,
    Queue,
    View,
    WaitingJob,
    freeze_placement,
)
from trainmaster.dispatcher.services.stopping import stop_seconds
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import jobs as job_store
from trainmaster.dispatcher.store import runs, scheduling, tenants
from trainmaster.dispatcher.store.database import Transaction, to_epoch
from trainmaster.dispatcher.store.scheduling import Cursor
from trainmaster.protocol.agent import CapacityReport, run_digest
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.quota import QuotaSpec, parse_line
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import HoldCause, JobState, StopCause
from trainmaster.protocol.tenants import ClusterSpec

log = logging.getLogger(__name__)


class NotLeaderError(TrainmasterError):
    """Another scheduler leads now; nothing was applied."""


@dataclass(slots=True)
class Follower:
    """A view that follows the store."""

    view: View = field(default_factory=View)
    cursor: Cursor | None = None
    ahead: float = 0.0
    """By how much the store's time since the epoch is ahead of the caller's clock."""
    now: float = 0.0
    """The store's time at the last look, in seconds since the epoch."""
    run_versions: dict[int, int] = field(default_factory=dict)
    """By job with a live run: the version of the job that the view has."""

    def begin_anew(self) -> None:
        """Forget everything, to be loaded at the next look."""
        self.view, self.cursor, self.run_versions = View(), None, {}

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
        await self._take(tx, await scheduling.live_jobs(tx))
        self.cursor = cursor

    async def _follow(self, tx: Transaction, cursor: Cursor) -> bool:
        feed = await scheduling.read_feed(tx, cursor)
        if any(kind not in ("contact", "capacity") for kind, _ in feed.others):
            await self._load_tenants(tx)
        else:
            for cluster in await scheduling.clusters(tx, [ref for kind, ref in feed.others if kind == "capacity"]):
                self.view.put_cluster(_cluster(cluster), self.now)
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
        self.cursor = feed.cursor
        return feed.unsettled

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
            self.view.put_queue(_queue(row))
        for class_row in await tenants.classes(tx):
            self.view.put_class(_class(class_row))
        self.view.set_advance(map(_advance, await tenants.reservations(tx)))
        clusters = {row.id: row for row in await scheduling.clusters(tx)}
        for gone in self.view.clusters.keys() - clusters.keys():
            self.view.drop_cluster(gone)
        for cluster_row in clusters.values():
            self.view.put_cluster(_cluster(cluster_row), self.now)

    async def _take(self, tx: Transaction, rows: Sequence[Any]) -> None:
        new_shapes = {row.shape_id for row in rows} - self.view.shapes.keys()
        for shape_row in await scheduling.shapes(tx, sorted(new_shapes)) if new_shapes else ():
            self.view.put_shape(shape_row.id, shape_from(shape_row.body))
        for row in rows:
            self._put(row)

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
                    sizes=tuple(sorted(row.sizes.items())),
                    placement=freeze_placement(row.placement),
                    class_id=row.class_id,
                    began_at=row.leased_at,
                    attempt=row.run_attempt,
                    is_stopping=row.is_stopping,
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

    def note_applied(self, plan: Plan, applied: "Applied") -> None:
        """Count what was just applied at once, without waiting for it to come back by the feed."""
        started = [start for start in plan.starts if start.job.id in applied.jobs]
        self.run_versions |= {start.job.id: start.job.version + 1 for start in started}
        self.view.put_runs(runs_of(started, applied.at))
        for job_id in applied.ending & self.view.runs.keys():
            self.view.put_run(replace(self.view.runs[job_id], is_stopping=True))
        for hold in plan.holds:
            if hold.job.id in applied.jobs:
                self.view.drop_job(hold.job.id)


async def overpromised(tx: Transaction, rows: Sequence[tenants.QueueRow]) -> dict[int, list[str]]:
    """By queue: in what guarantees go beyond what the clusters have. ``rows`` are all queues."""
    view = View()
    for row in rows:
        view.put_queue(_queue(row))
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


def _queue(row: tenants.QueueRow) -> Queue:
    spec = row.spec
    return Queue(
        id=row.id,
        path=spec.path,
        parent_id=row.parent_id,
        weight=spec.weight,
        quotas={Line(*parse_line(name)): _quota(parse_line(name)[0], quota) for name, quota in spec.resources.items()},
        max_running=spec.max_running,
        allowed_kinds=frozenset(spec.allowed_kinds),
        state=spec.state,
        order=spec.order,
        time_limit=None if spec.default_time_limit is None else parse_duration(spec.default_time_limit),
        preemption=spec.preemption,
        min_run_time=parse_duration(spec.min_run_time),
    )


def _quota(resource: str, spec: QuotaSpec) -> Quota:
    return Quota(
        guaranteed=spec.amount("guaranteed", resource) or 0,
        limit=spec.amount("limit", resource),
        borrowing=spec.amount("borrowing_limit", resource),
        lending=spec.amount("lending_limit", resource),
        weight=spec.weight,
    )


def _class(row: tenants.ClassRow) -> PriorityClass:
    spec = row.spec
    longest = None if spec.longest_wait is None else parse_duration(spec.longest_wait)
    return PriorityClass(row.id, spec.name, spec.value, spec.preemptible, longest)


def _advance(row: tenants.ReservationRow) -> AdvanceReservation:
    spec = row.spec
    return AdvanceReservation(
        id=row.id,
        name=spec.name,
        queue_id=row.queue_id,
        clusters=spec.clusters,
        nodes=spec.nodes,
        selector=tuple(sorted(spec.node_selector.items())),
        begins_at=spec.start.timestamp(),
        ends_at=spec.end.timestamp(),
    )


def _cluster(row: Any) -> Cluster:
    spec = ClusterSpec.model_validate(row.spec)
    labels = {**spec.labels, "name": spec.name, "kind": spec.cluster_kind.value}
    if spec.region:
        labels["region"] = spec.region
    if spec.provider:
        labels["provider"] = spec.provider
    report = None if row.report is None else CapacityReport.model_validate(row.report)
    return Cluster(row.id, spec.name, spec.cluster_kind, labels, row.cordoned, report)


@dataclass(frozen=True, slots=True)
class Applied:
    """The jobs whose decision was stored, those whose runs end for others, and when, in seconds since the epoch."""

    jobs: set[int]
    ending: set[int]
    at: float


async def apply_plan(
    stores: Stores,
    token: int,
    plan: Plan,
    reasons: dict[ClassKey, Reason],
    cycle: int,
    waited: Mapping[int, Reason] | None = None,
) -> Applied:
    """Store a plan in one transaction; what of it was applied. ``waited``: what jobs that start now waited for until now.

    Raises NotLeaderError, with nothing applied, when the token no longer leads. A decision whose job has changed since is dropped.
    """
    starts = {start.job.id: start for start in plan.starts}
    holds = {hold.job.id: hold for hold in plan.holds}
    clusters: set[int] = set()
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            raise NotLeaderError("another scheduler leads now")
        victims = [*plan.stops, *(one for start in plan.starts for one in start.evicts)]
        wanted = [*starts, *holds, *(one.job_id for one in victims)]
        records = await job_store.lock(tx, wanted) if wanted else {}
        versions = {job.id: job.version for job in plan.jobs}
        fresh = {
            job_id: record
            for job_id, record in records.items()
            if job_id in versions and record.version == versions[job_id] and record.job.state is JobState.QUEUED
        }
        there = {
            cluster.id
            for cluster in await tenants.clusters_by_id(tx, {start.cluster_id for start in plan.starts})
            if not cluster.cordoned
        }
        fresh = {key: record for key, record in fresh.items() if key in holds or starts[key].cluster_id in there}
        live = await runs.lock_live(tx, [one.job_id for one in victims]) if victims else {}
        # A start and its victims are applied together or not at all.
        fresh = {
            key: record
            for key, record in fresh.items()
            if key in holds or all(_may_end(one, live) for one in starts[key].evicts)
        }
        ending = [one for one in plan.stops if _may_end(one, live)]
        ending += [one for key in fresh if key in starts for one in starts[key].evicts]
        transitions, clusters = [], {starts[key].cluster_id for key in fresh if key in starts}
        for key, record in fresh.items():
            if key in holds:
                after = record.job.held(HoldCause.UNPLACEABLE, message=holds[key].message)
                transitions.append(
                    job_store.Transition(record, after, "held", (after.state.value,), message=holds[key].message)
                )
                continue
            start = starts[key]
            after = job_machine.dispatch(record.job)
            transitions.append(
                job_store.Transition(
                    record,
                    after,
                    kind="dispatched",
                    states=(after.state.value,),
                    attempt=after.attempt,
                    cluster_id=start.cluster_id,
                    message=start.why,
                    details={"cycle": cycle} | _waited_for((waited or {}).get(key)),
                )
            )
        transitions += [_preempted(records[one.job_id], live[one.job_id], one) for one in ending]
        await job_store.write(tx, transitions)
        await scheduling.save_reasons(
            tx,
            [
                (
                    key.queue_id,
                    key.class_id,
                    key.shape_id,
                    list(key.avoided),
                    reason.model_dump(mode="json", by_alias=True),
                )
                for key, reason in reasons.items()
            ],
            cycle,
        )
        clusters |= {one.cluster_id for one in ending}
        desired = await runs.raise_desired(tx, clusters)
        await runs.write(
            tx,
            [
                runs.RunChange(
                    live[one.job_id].ref,
                    run_machine.ask_stop(live[one.job_id].run, StopCause.PREEMPT),
                    desired_version=desired[one.cluster_id],
                )
                for one in ending
            ],
        )
        stopping = await _stop_seconds(
            tx, records, [one.job_id for key in fresh if key in starts for one in starts[key].evicts]
        )
        new_runs = []
        for transition in transitions:
            key = transition.record.id
            if key not in starts:
                continue
            start, ref = starts[key], RunRef(key, transition.job.attempt)
            new_runs.append(
                runs.NewRun(
                    ref=ref,
                    cluster_id=start.cluster_id,
                    digest=run_digest(ref),
                    desired_version=desired[start.cluster_id],
                    disconnect_seconds=transition.record.disconnect_seconds,
                    sizes=start.sizes,
                    assumed=start.placement,
                    decision={
                        "why": start.why,
                        "table": start.table,
                        "cycle": cycle,
                        **_narrowing(start),
                        **_awaiting(start, stopping),
                    },
                )
            )
        if new_runs:
            await runs.insert(tx, new_runs)
        at = await to_epoch(tx)
    if fresh or ending:
        stores.jobs_changed([*fresh, *(one.job_id for one in ending)], clusters)
    return Applied(set(fresh), {one.job_id for one in ending}, at)


async def _stop_seconds(
    tx: Transaction, records: Mapping[int, job_store.JobRecord], job_ids: Sequence[int]
) -> dict[int, float]:
    """How long the members of runs that give way may take to be gone, by job."""
    specs = await job_store.specs(tx, [records[job_id].spec_id for job_id in job_ids])
    return {job_id: stop_seconds(specs[records[job_id].spec_id], StopCause.PREEMPT) for job_id in job_ids}


def _awaiting(start: Start, stopping: Mapping[int, float]) -> dict[str, Any]:
    """How much longer than others a run may wait for its place, as those that give way for it take their time."""
    if not start.evicts:
        return {}
    return {"awaitsSeconds": max(stopping[one.job_id] for one in start.evicts)}


def _waited_for(reason: Reason | None) -> dict[str, Any]:
    """What of a reason is kept with the dispatch that ended it."""
    if reason is None:
        return {}
    return {"waitedFor": {"token": reason.token.value, "sentence": reason.sentence}}


def _may_end(one: Eviction, live: dict[int, runs.RunRecord]) -> bool:
    """Whether the run is still the one that was decided on, and nobody has asked it to stop."""
    record = live.get(one.job_id)
    return record is not None and record.ref.attempt == one.attempt and record.run.stop_cause is None


def _preempted(job: job_store.JobRecord, run: runs.RunRecord, one: Eviction) -> job_store.Transition:
    return job_store.Transition(
        job,
        job.job._replace(message=one.why),
        kind="preempt",
        attempt=run.ref.attempt,
        cluster_id=run.cluster_id,
        actor="scheduler",
        message=one.why,
    )


def _narrowing(start: Start) -> dict[str, Any]:
    """What binds the members to the product of device that they are charged for."""
    product = start.product
    if product is None or not product.label:
        return {}
    return {"narrowed": {"resource": product.resource, "selector": {product.label: product.name}}}


async def release_holds(stores: Stores, token: int, limit: int = 1000) -> int:
    """Queue held jobs whose hold has ended by the clock; how many."""
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        due = await job_store.due_holds(tx, limit)
        records = await job_store.lock(tx, due) if due else {}
        now = await to_epoch(tx)
        transitions = [
            job_store.Transition(record, after, "released", (after.state.value,))
            for record in records.values()
            if record.job.hold_cause is not None
            and record.job.hold_cause.ends_by_itself
            and record.job.hold_until is not None
            and record.job.hold_until <= now
            and (after := job_machine.release(record.job)) != record.job
        ]
        await job_store.write(tx, transitions)
    if transitions:
        stores.jobs_changed([t.record.id for t in transitions])
    return len(transitions)


async def count_usage(stores: Stores, token: int, follower: Follower) -> None:
    """Count what queues use now towards their past usage, and store it, where past usage counts.

    The first time for a view, what was stored is taken up, whoever stored it.
    """
    half_life = stores.settings.usage_half_life
    if half_life is None:
        return
    view, now = follower.view, follower.now
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return
        past = view.past
        if past is None:
            at, levels = await scheduling.usage_levels(tx) or (now, {})
            past = Past(parse_duration(half_life), at, levels)
        ledger = ledger_of(view, now)
        # Nobody has had more than everything, though what runs on clusters that were lost may be more than what is there now.
        shares = {queue.id: min(ledger.share(queue)[0], 1.0 / queue.weight) for queue in view.queues.values()}
        past = past.advanced(now, shares)
        await scheduling.save_usage_levels(tx, past.at, past.levels)
    view.past = past


async def keep_house(stores: Stores, token: int, partitions_sql: str) -> None:
    """Rare chores of the leader: partitions of the days ahead, cool-downs that are over."""
    async with stores.database.transaction() as tx:
        if await scheduling.is_lead(tx, token):
            await scheduling.make_partitions(tx, partitions_sql)
            await scheduling.drop_old_cool_downs(tx)
