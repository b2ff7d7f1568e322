"""NUMA zones of the nodes of a group, for the fit; the rules are in ``cluster_model.numa_zones``."""

from trainmaster.cluster_model.numa_zones import (
    ZoneRequest,
    Zones,
    after,
    as_zones,
    drain,
    holds,
    request_of,
    zone_names,
)
from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.quantities import Resources

__all__ = ["ZoneRequest", "Zones", "after", "holds", "names_of", "spread", "zone_request", "zones_of"]


def names_of(group: NodeGroup) -> tuple[str, ...]:
    """Return the resources that belong to zones."""
    return () if group.numa is None else zone_names(group.numa.zones)


def zones_of(group: NodeGroup) -> Zones:
    """Return the free amounts in the zones of a node besides our own members."""
    return () if group.numa is None else as_zones(group.numa.zones, names_of(group))


def zone_request(group: NodeGroup, needs: Resources, policy: str) -> ZoneRequest | None:
    """Return the request of a member under a policy to the zones of these nodes; None if no number of zones is enough."""
    return request_of(zones_of(group), _need(group, needs, 1), policy)


def spread(group: NodeGroup, zones: Zones, needs: Resources, members: int) -> Zones:
    """Return the zones after ``members`` members that request no zones, or that run although no zones satisfy their request."""
    return drain(zones, _need(group, needs, members))


def _need(group: NodeGroup, needs: Resources, members: int) -> tuple[int, ...]:
    return tuple(needs.get(name, 0) * members for name in names_of(group))
