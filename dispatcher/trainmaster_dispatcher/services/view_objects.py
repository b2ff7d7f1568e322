"""Objects of the scheduler's state, each built from one stored row. Each function may raise what reading a row can raise."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from sys import intern

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstPolicy, BurstRun, policy_of
from trainmaster_dispatcher.domain.datasets import Dataset
from trainmaster_dispatcher.domain.deadlines import DeadlineNote
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.recovery import closed_by_recovery
from trainmaster_dispatcher.domain.shapes import count_units
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation, Cluster, PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.from_specs import advance_of, class_of, cluster_of, dataset_of, queue_of
from trainmaster_dispatcher.scheduling.state.jobs import ClusterParts, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, freeze_placement, load_of
from trainmaster_dispatcher.scheduling.state.member_nodes import MemberNodes, NodeMembers, RunOnNodes
from trainmaster_dispatcher.scheduling.state.plan import members_leaving
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.store.bursts import StoredPolicy
from trainmaster_dispatcher.store.declared import StoredObject
from trainmaster_dispatcher.store.scheduling import ReportedCluster, ScheduledJob, StoredNodeMembers
from trainmaster_dispatcher.store.tenants import StoredQueue, StoredReservation


def queue_from(row: StoredQueue) -> Queue:
    return queue_of(row.id, row.parent_id, QueueSpec.model_validate(row.spec))


def class_from(row: StoredObject) -> PriorityClass:
    return class_of(row.id, PriorityClassSpec.model_validate(row.spec))


def dataset_from(row: StoredObject) -> Dataset:
    return dataset_of(DatasetSpec.model_validate(row.spec))


def policy_from(row: StoredPolicy) -> BurstPolicy:
    return policy_of(row.id, BurstPolicySpec.model_validate(row.spec), row.revision)


def reservation_from(row: StoredReservation) -> AdvanceReservation:
    return advance_of(row.id, row.queue_id, ReservationSpec.model_validate(row.spec))


def cluster_from(row: ReportedCluster, tariff: Tariff = FREE) -> Cluster:
    report = None if row.report is None else CapacityReport.model_validate(row.report)
    if report is not None and row.awaited is not None:
        report = report.model_copy(update={"closed": closed_by_recovery(row.awaited)})
    return cluster_of(row.id, ClusterSpec.model_validate(row.spec), report, cordoned=row.cordoned, tariff=tariff)


def queues_named_in(spec: object) -> Sequence[str]:
    """Return the queues named by a burst policy that cannot be read as a whole."""
    queues = spec.get("queues") if isinstance(spec, dict) else None
    return [path for path in queues if isinstance(path, str)] if isinstance(queues, list) else []


def member_nodes_from(rows: Iterable[StoredNodeMembers], at: float) -> MemberNodes:
    """Return the nodes of members; ``rows``: those of one job in a row; ``at``: when they were read, in seconds since the epoch."""
    by_run = groupby(rows, key=lambda row: (row.job_id, row.attempt))
    return MemberNodes(
        at,
        {
            job_id: RunOnNodes(attempt, tuple(NodeMembers(row.group, row.node, row.role, row.many) for row in members))
            for (job_id, attempt), members in by_run
        },
    )


def run_from(row: ScheduledJob, state: SchedulerState) -> LiveRun:
    """Return the live run of a job, with its usage computed once in ``state``, so that the run can be put there."""
    if (
        row.cluster_id is None
        or row.run_attempt is None
        or row.sizes is None
        or row.placement is None
        or row.leased_at is None
    ):
        raise ValueError(f"job {row.id} has no live run")
    sizes, holding, placement = row.sizes, row.holding, row.placement
    if each := state.shapes[row.shape_id].members_per_unit:
        sizes = count_units(sizes, each)
        holding = None if holding is None else count_units(holding, each)
        placement = {group: count_units(roles, each) for group, roles in placement.items()}
    run = LiveRun(
        job_id=row.id,
        queue_id=row.queue_id,
        shape_id=row.shape_id,
        cluster_id=row.cluster_id,
        sizes=tuple(sorted((holding or sizes).items())),
        placement=freeze_placement(placement),
        class_id=row.class_id,
        began_at=row.leased_at,
        attempt=row.run_attempt,
        is_stopping=row.is_stopping,
        leaving=members_leaving(holding, sizes),
        resized_at=row.resized_at or 0.0,
        burst=_burst_of(row, row.leased_at),
        user=intern(row.submitter),
        is_assumed=row.is_assumed,
        predicted_seconds=row.predicted_seconds if state.run_times.is_on else None,
    )
    load_of(run)
    state.places_of(run)
    return run


def _burst_of(row: ScheduledJob, leased_at: float) -> BurstRun | None:
    if row.policy_id is None:
        return None
    if row.bounds is None:
        raise ValueError(f"the run of job {row.id} by a burst policy has no bounds")
    bounds = Bounds(**row.bounds)
    return BurstRun(row.policy_id, leased_at, bounds.until(leased_at, row.run_started_at), bounds.rate)


def _predecessors_of(row: ScheduledJob) -> ClusterParts:
    if row.predecessor_clusters is None:
        return ()
    return tuple(sorted((int(cluster), float(part)) for cluster, part in row.predecessor_clusters.items()))


def waiting_from(row: ScheduledJob) -> WaitingJob:
    return WaitingJob(
        id=row.id,
        version=row.version,
        name=row.name,
        queue_id=row.queue_id,
        class_id=row.class_id,
        shape_id=row.shape_id,
        priority=row.priority,
        waits_since=row.waits_since,
        attempt=row.attempt,
        user=intern(row.submitter),
        deadline=row.deadline,
        is_risk_noted=row.deadline_noted >= DeadlineNote.AT_RISK,
        predecessors=_predecessors_of(row),
    )
