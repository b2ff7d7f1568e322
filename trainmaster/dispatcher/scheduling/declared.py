"""From what admins declare to what the scheduler's view holds."""

from trainmaster.dispatcher.domain.burst_policies import hours_of
from trainmaster.dispatcher.domain.datasets import Dataset
from trainmaster.dispatcher.domain.prices import FREE, Tariff
from trainmaster.dispatcher.domain.weights import weights_of
from trainmaster.dispatcher.scheduling.lines import Line, Quota
from trainmaster.dispatcher.scheduling.view import AdvanceReservation, Cluster, PriorityClass, Queue
from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.quantities import parse_quantity
from trainmaster.protocol.quota import QuotaSpec, parse_line
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec, ReservationSpec


def queue_of(key: int, parent: int | None, spec: QueueSpec) -> Queue:
    return Queue(
        id=key,
        path=spec.path,
        parent_id=parent,
        weight=spec.weight,
        quotas={Line(*parse_line(name)): _quota(parse_line(name)[0], quota) for name, quota in spec.resources.items()},
        max_running=spec.max_running,
        allowed_kinds=frozenset(spec.allowed_kinds),
        state=spec.state,
        order=spec.order,
        time_limit=None if spec.default_time_limit is None else parse_duration(spec.default_time_limit),
        preemption=spec.preemption,
        min_run_time=parse_duration(spec.min_run_time),
        weights=weights_of(spec.profile),
        regions=frozenset(spec.allowed_regions),
    )


def dataset_of(spec: DatasetSpec) -> Dataset:
    size = parse_quantity("memory", spec.size)
    return Dataset(spec.name, size, frozenset(spec.clusters), spec.regions, spec.remote)


def _quota(resource: str, spec: QuotaSpec) -> Quota:
    return Quota(
        guaranteed=spec.amount("guaranteed", resource) or 0,
        limit=spec.amount("limit", resource),
        borrowing=spec.amount("borrowing_limit", resource),
        lending=spec.amount("lending_limit", resource),
        weight=spec.weight,
    )


def class_of(key: int, spec: PriorityClassSpec) -> PriorityClass:
    longest = None if spec.longest_wait is None else parse_duration(spec.longest_wait)
    return PriorityClass(key, spec.name, spec.value, spec.preemptible, longest, weights_of(spec.profile))


def advance_of(key: int, queue: int, spec: ReservationSpec) -> AdvanceReservation:
    return AdvanceReservation(
        id=key,
        name=spec.name,
        queue_id=queue,
        clusters=spec.clusters,
        nodes=spec.nodes,
        selector=tuple(sorted(spec.node_selector.items())),
        begins_at=spec.start.timestamp(),
        ends_at=spec.end.timestamp(),
    )


def cluster_of(
    key: int, spec: ClusterSpec, report: CapacityReport | None, *, cordoned: bool = False, tariff: Tariff = FREE
) -> Cluster:
    labels = {**spec.labels, "name": spec.name, "kind": spec.cluster_kind.value}
    if spec.region:
        labels["region"] = spec.region
    if spec.provider:
        labels["provider"] = spec.provider
    return Cluster(
        key,
        spec.name,
        spec.cluster_kind,
        labels,
        cordoned,
        report,
        tariff,
        placement_timeout=parse_duration(spec.placement_timeout),
        uplink=None if spec.uplink is None else float(parse_quantity("memory", spec.uplink)),
        connected=hours_of(spec.connected),
        only_queues=spec.only_queues,
    )
