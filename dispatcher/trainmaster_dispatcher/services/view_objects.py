"""Objects of the scheduler's view, each made of one stored row. Any of them may raise what reading a row can raise."""

from collections.abc import Sequence
from typing import Any

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstPolicy, BurstRun, policy_of
from trainmaster_dispatcher.domain.datasets import Dataset
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.recovery import closed_by_recovery
from trainmaster_dispatcher.scheduling.state.from_specs import advance_of, class_of, cluster_of, dataset_of, queue_of
from trainmaster_dispatcher.scheduling.state.plan import members_leaving
from trainmaster_dispatcher.scheduling.state.state import (
    AdvanceReservation,
    Cluster,
    LiveRun,
    PriorityClass,
    Queue,
    SchedulerState,
    WaitingJob,
    freeze_placement,
    load_of,
)


def queue_from(row: Any) -> Queue:
    return queue_of(row.id, row.parent_id, QueueSpec.model_validate(row.spec))


def class_from(row: Any) -> PriorityClass:
    return class_of(row.id, PriorityClassSpec.model_validate(row.spec))


def dataset_from(row: Any) -> Dataset:
    return dataset_of(DatasetSpec.model_validate(row.spec))


def policy_from(row: Any) -> BurstPolicy:
    return policy_of(row.id, BurstPolicySpec.model_validate(row.spec), row.revision)


def reservation_from(row: Any) -> AdvanceReservation:
    return advance_of(row.id, row.queue_id, ReservationSpec.model_validate(row.spec))


def cluster_from(row: Any, tariff: Tariff = FREE) -> Cluster:
    report = None if row.report is None else CapacityReport.model_validate(row.report)
    if report is not None and row.awaited is not None:
        report = report.model_copy(update={"closed": closed_by_recovery(row.awaited)})
    return cluster_of(row.id, ClusterSpec.model_validate(row.spec), report, cordoned=row.cordoned, tariff=tariff)


def queues_named_in(spec: Any) -> Sequence[str]:
    """Return the queues that a burst policy names which cannot be read as a whole."""
    queues = spec.get("queues") if isinstance(spec, dict) else None
    return [path for path in queues if isinstance(path, str)] if isinstance(queues, list) else []


def run_from(row: Any, state: SchedulerState) -> LiveRun:
    """Return the live run of a job, after what it counts for in ``state`` was worked out once: then it can be put there."""
    run = LiveRun(
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
    load_of(run)
    state.places_of(run)
    return run


def _burst_of(row: Any) -> BurstRun | None:
    if row.policy_id is None:
        return None
    bounds = Bounds(**row.bounds)
    return BurstRun(row.policy_id, row.leased_at, bounds.until(row.leased_at, row.run_started_at), bounds.rate)


def waiting_from(row: Any) -> WaitingJob:
    return WaitingJob(
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
