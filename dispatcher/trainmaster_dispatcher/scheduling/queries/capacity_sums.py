"""Sums over the state, for gauges and history: capacity and use of clusters, use and guarantees of queues, by device product.

They are computed without a fork: nothing here changes the state, and nothing waits in between.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainmaster.cluster_model.device_products import is_accelerator
from trainmaster.protocol.device_parts import WHOLE, counted, is_device, is_part
from trainmaster_dispatcher.domain.series import ALL_PRODUCTS
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, product_of
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


class CountedResource(NamedTuple):
    """A resource whose amounts are added up: ``cpu``, ``memory``, or ``gpu`` with the product."""

    name: str
    product: str = ""


class ClusterSums(NamedTuple):
    """Amounts of a cluster. ``others``: in use by others, as its agent reports it."""

    cluster: Cluster
    capacity: Mapping[CountedResource, float]
    used: Mapping[CountedResource, float]
    others: Mapping[CountedResource, float]

    def free(self) -> dict[CountedResource, float]:
        """Return the capacity that is not in use."""
        return {key: max(0.0, amount - self.used.get(key, 0.0)) for key, amount in self.capacity.items()}


class QueueSums(NamedTuple):
    """Amounts of a queue and all queues below it."""

    queue: Queue
    used: Mapping[CountedResource, float]
    guaranteed: Mapping[CountedResource, float]
    running: int

    def borrowed(self) -> dict[CountedResource, float]:
        """Return what is in use beyond the guarantee. Of a product without a guarantee of its own, that of all products counts."""
        found = {}
        for key, amount in self.used.items():
            if key.product in ("", ALL_PRODUCTS) or key in self.guaranteed:
                found[key] = max(0.0, amount - self.guaranteed.get(key, 0.0))
        return found


def counted_as(resource: str, product: str) -> CountedResource | None:
    """Return the resource as which an amount is counted; None for amounts that are in no sum."""
    if resource in ("cpu", "memory"):
        return CountedResource(resource)
    if not is_device(resource) or is_part(resource):
        return None
    return CountedResource("gpu", product or resource) if is_accelerator(resource) else None


def _add(sums: dict[CountedResource, float], key: CountedResource | None, amount: int) -> None:
    if key is not None and amount:
        sums[key] = sums.get(key, 0.0) + amount / (1 if key.name == "memory" else WHOLE)


def cluster_sums(state: SchedulerState) -> Iterable[ClusterSums]:
    """Yield the sums of each cluster that has reported its capacity, by name. Cores are in cores, devices in whole devices."""
    for cluster in sorted(state.clusters.values(), key=lambda one: one.name):
        if cluster.report is None:
            continue
        capacity: dict[CountedResource, float] = {}
        for group in cluster.report.groups:
            sharing, product = group.sharing, product_of(group)
            for name, amount in group.free.items():
                total = counted(name, amount) * group.count
                if sharing is not None and name == sharing.resource != sharing.device:
                    _add(capacity, counted_as(sharing.device, product), total // sharing.replicas)
                else:
                    _add(capacity, counted_as(name, product), total)
        others: dict[CountedResource, float] = {}
        for one in cluster.report.others:
            for name, amount in one.amounts.items():
                _add(others, counted_as(name, one.product), counted(name, amount))
        yield ClusterSums(cluster, capacity, _used_on(state, cluster.id), others)


def _used_on(state: SchedulerState, cluster_id: int) -> dict[CountedResource, float]:
    used: dict[CountedResource, float] = {}
    for load in state.load.get(cluster_id, {}).values():
        for key, many in load.items():
            if key.shape_id in state.shapes:
                for place, amount in state.places_at(cluster_id, key.shape_id, [(key.group, key.role, many)]).items():
                    _add(used, counted_as(place.resource, place.product), amount)
    return used


def queue_sums(engine: Engine) -> Iterable[QueueSums]:
    """Yield the sums of each queue, from the top of the tree down, by path. Guarantees for a kind of cluster are not counted."""
    state, limits = engine.state, engine.limits
    used: dict[int, dict[CountedResource, float]] = defaultdict(dict)
    running: dict[int, int] = defaultdict(int)
    for queue_id, many in state.running.items():
        if queue_id not in state.queues:
            continue
        own: dict[CountedResource, float] = {}
        for place, amount in state.used.get(queue_id, {}).items():
            key = counted_as(place.resource, place.product)
            _add(own, key, amount)
            if key is not None and key.product:
                _add(own, CountedResource(key.name, ALL_PRODUCTS), amount)
        for queue in state.ancestry(queue_id):
            running[queue.id] += many
            sums = used[queue.id]
            for counted_resource, total in own.items():
                sums[counted_resource] = sums.get(counted_resource, 0.0) + total
    guaranteed: dict[int, dict[CountedResource, float]] = defaultdict(dict)
    for (queue_id, flavor), amount in limits.guarantees.items():
        _add(guaranteed[queue_id], _guaranteed_as(flavor), amount)
    for queue in sorted(state.queues.values(), key=lambda one: (one.path.count("/"), one.path)):
        yield QueueSums(queue, used.get(queue.id, {}), guaranteed.get(queue.id, {}), running.get(queue.id, 0))


def _guaranteed_as(flavor: Flavor) -> CountedResource | None:
    if flavor.kind:
        return None
    return counted_as(flavor.resource, flavor.product or ALL_PRODUCTS)
