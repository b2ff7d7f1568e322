"""Watches that feed the cluster's ledger: for each resource, its kind and its handlers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from trainmaster_agent.capacity.config import AutoscalerConfig
from trainmaster_agent.capacity.inventory import Inventory, Kind
from trainmaster_agent.kube.paths import CONFIG_MAPS, NODE_RESOURCE_TOPOLOGIES, NODES, RESOURCE_CLAIMS, Resource
from trainmaster_agent.runtime.kubernetes.node_health import NodeHealth

RESOURCE_SLICES = Resource("resource.k8s.io/v1", "resourceslices")
DEVICE_CLASSES = Resource("resource.k8s.io/v1", "deviceclasses")
NODE_POOLS = Resource("karpenter.sh/v1", "nodepools")
HYPER_NODES = Resource("topology.volcano.sh/v1alpha1", "hypernodes")
KAI_TOPOLOGIES = Resource("kai.scheduler/v1alpha1", "topologies")
KUEUE_TOPOLOGIES = tuple(Resource(f"kueue.x-k8s.io/{version}", "topologies") for version in ("v1beta2", "v1beta1"))


class WatchedKind(NamedTuple):
    """``needed``: the ledger is useless without it; the others are watched where they are served."""

    resource: Resource
    kind: Kind
    put: Callable[[dict[str, Any]], None]
    drop: Callable[[str], None]
    needed: bool = False
    keep: Callable[[set[str]], None] | None = None
    """Called with all existing names after a listing."""
    namespace: str | None = None
    name: str = ""
    """Name of the only object that is watched; empty: all of them."""


def entries(inventory: Inventory, health: NodeHealth, autoscaler: AutoscalerConfig) -> Iterator[WatchedKind]:
    """Yield every watch of the ledger but pods."""
    put, drop = _nodes(inventory, health)
    yield WatchedKind(NODES, Kind.NODE, put, drop, needed=True, keep=health.keep)
    yield WatchedKind(NODE_RESOURCE_TOPOLOGIES, Kind.NUMA, inventory.numa_put, inventory.numa_drop)
    devices = inventory.devices
    yield WatchedKind(DEVICE_CLASSES, Kind.DEVICE_CLASS, devices.class_put, devices.class_drop)
    yield WatchedKind(RESOURCE_CLAIMS, Kind.RESOURCE_CLAIM, devices.claim_put, devices.claim_drop)
    yield WatchedKind(RESOURCE_SLICES, Kind.RESOURCE_SLICE, devices.slice_put, devices.slice_drop)
    yield WatchedKind(HYPER_NODES, Kind.HYPER_NODE, inventory.hyper_node_put, inventory.hyper_node_drop)
    if autoscaler.enabled:
        reports = inventory.pool_reports
        yield WatchedKind(NODE_POOLS, Kind.NODE_POOL, reports.node_pool_put, reports.node_pool_drop)
        yield WatchedKind(
            CONFIG_MAPS,
            Kind.AUTOSCALER,
            reports.status_put,
            reports.status_drop,
            namespace=autoscaler.namespace,
            name=autoscaler.config_map,
        )
    kinds = ((Kind.KAI_TOPOLOGY, (KAI_TOPOLOGIES,)), (Kind.KUEUE_TOPOLOGY, KUEUE_TOPOLOGIES))
    for kind, resources in kinds:
        put, drop = _topology(inventory, kind)
        for resource in resources:
            yield WatchedKind(resource, kind, put, drop)


def _nodes(inventory: Inventory, health: NodeHealth) -> tuple[Callable[[dict[str, Any]], None], Callable[[str], None]]:
    def put(obj: dict[str, Any]) -> None:
        health.put(obj)
        inventory.node_put(obj)

    def drop(name: str) -> None:
        health.drop(name)
        inventory.node_drop(name)

    return put, drop


def _topology(inventory: Inventory, kind: Kind) -> tuple[Callable[[dict[str, Any]], None], Callable[[str], None]]:
    def put(obj: dict[str, Any]) -> None:
        inventory.topology_put(kind, obj)

    def drop(name: str) -> None:
        inventory.topology_drop(kind, name)

    return put, drop
