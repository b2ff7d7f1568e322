"""Objects of the scheduler's state, built from what admins declare.

``unreadable_...``: what takes the place of an object that cannot be read. It lets nothing start, ends nothing, and costs nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.device_parts import parse_counted
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.quantities import parse_quantity
from trainmaster.protocol.quota import QuotaSpec, parse_flavor
from trainmaster.protocol.states import ClusterKind, Preemption, QueueState
from trainmaster.protocol.tenants import (
    ClusterSpec,
    ConsolidationSpec,
    DatasetSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
)
from trainmaster_dispatcher.domain.budgets import Budget
from trainmaster_dispatcher.domain.burst_policies import BurstPolicy, hours_of
from trainmaster_dispatcher.domain.datasets import Dataset
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.domain.start_conditions import start_conditions_of
from trainmaster_dispatcher.domain.weights import weights_of
from trainmaster_dispatcher.scheduling.state.declared_objects import (
    AdvanceReservation,
    Cluster,
    MoveTerms,
    PriorityClass,
    Queue,
)
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota


def queue_of(key: int, parent: int | None, spec: QueueSpec) -> Queue:
    return Queue(
        id=key,
        path=spec.path,
        parent_id=parent,
        weight=spec.weight,
        quotas={
            Flavor(*parse_flavor(name)): _quota(parse_flavor(name)[0], quota) for name, quota in spec.resources.items()
        },
        max_running=spec.max_running,
        allowed_kinds=frozenset(spec.allowed_kinds),
        state=spec.state,
        order=spec.order,
        time_limit=None if spec.default_time_limit is None else parse_duration(spec.default_time_limit),
        preemption=spec.preemption,
        min_run_time=parse_duration(spec.min_run_time),
        consolidation=_consolidation(spec.consolidation),
        order_by=spec.order_by,
        fair_by=spec.fair_by,
        user_weights=dict(spec.user_weights),
        max_running_per_user=spec.max_running_per_user,
        limits_per_user={
            Flavor(name): amount for name, text in spec.limits_per_user.items() if (amount := parse_counted(name, text))
        },
        weights=weights_of(spec.profile),
        price_factor=spec.price_factor,
        regions=frozenset(spec.allowed_regions),
        starts_when=start_conditions_of(spec.starts_when),
    )


def _consolidation(spec: ConsolidationSpec | None) -> MoveTerms | None:
    if spec is None:
        return None
    return MoveTerms(parse_duration(spec.after), parse_duration(spec.max_lost_work), spec.max_moves_per_hour)


def dataset_of(spec: DatasetSpec) -> Dataset:
    size = parse_quantity("memory", spec.size)
    return Dataset(spec.name, size, frozenset(spec.clusters), spec.regions, spec.remote)


def _quota(resource: str, spec: QuotaSpec) -> Quota:
    return Quota(
        guaranteed=_counted(resource, spec.guaranteed) or 0,
        limit=_counted(resource, spec.limit),
        borrowing=_counted(resource, spec.borrowing_limit),
        lending=_counted(resource, spec.lending_limit),
        weight=spec.weight,
    )


def _counted(resource: str, text: str | None) -> int | None:
    return None if text is None else parse_counted(resource, text)


def class_of(key: int, spec: PriorityClassSpec) -> PriorityClass:
    longest = None if spec.longest_wait is None else parse_duration(spec.longest_wait)
    return PriorityClass(
        key, spec.name, spec.value, spec.preemptible, longest, weights_of(spec.profile), spec.price_factor
    )


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


def unreadable_queue(key: int, path: str, parent: int | None, fault: str) -> Queue:
    """Return a queue that starts nothing. Its runs are not ended, because its guarantees are unknown."""
    return Queue(key, path, parent, state=QueueState.HELD, preemption=Preemption.NEVER, fault=fault)


def unreadable_class(key: int, name: str, value: int, fault: str) -> PriorityClass:
    """Return a priority class whose jobs do not start and whose runs are not ended."""
    return PriorityClass(key, name, value, preemptible=False, fault=fault)


def unreadable_cluster(key: int, name: str, kind: ClusterKind, fault: str) -> Cluster:
    """Return a cluster without a report, where nothing is sent."""
    return Cluster(key, name, kind, {"name": name, "kind": kind.value}, fault=fault)


def unreadable_policy(key: int, name: str, revision: int, queues: Sequence[str], fault: str) -> BurstPolicy:
    """Return a policy by which no job goes. It still stands between its queues and public clusters, as it limits their spending."""
    return BurstPolicy(key, name, tuple(queues), Budget({}, None), revision=revision, paused=True, fault=fault)


def unreadable_shape(data: Any, fault: str) -> Shape:
    """Return a shape of which no job starts; with the members' needs as far as they can be read, for its live runs."""
    roles = data.get("roles") if isinstance(data, Mapping) else None
    found = [_readable_role(role) for role in roles] if isinstance(roles, list) else []
    return Shape(roles=tuple(role for role in found if role is not None), least_members=1, fault=fault)


def _readable_amounts(data: Any) -> dict[str, int]:
    known = data.items() if isinstance(data, Mapping) else ()
    return {name: one for name, one in known if isinstance(name, str) and type(one) is int and one >= 0}


def _readable_role(data: Any) -> RoleShape | None:
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        return None
    amounts = _readable_amounts(data.get("needs"))
    many = data.get("replicas")
    replicas = many if type(many) is int and many > 0 else 1
    each = data.get("membersPerUnit")
    if type(each) is int and each > 1:
        amounts = {name: one * each for name, one in amounts.items()}
        for name, one in _readable_amounts(data.get("shared")).items():
            amounts[name] = amounts.get(name, 0) + one
        return RoleShape(data["name"], replicas // each or 1, replicas // each or 1, amounts, members_per_unit=each)
    return RoleShape(data["name"], replicas, replicas, amounts)
