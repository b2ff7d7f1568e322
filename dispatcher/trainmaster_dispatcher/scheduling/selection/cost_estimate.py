"""The expected cost of a run on a cluster: for its score, not for its bill."""

from collections.abc import Mapping

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.device_parts import (
    WHOLE,
    device_of,
    is_device,
    is_part,
    memory_resource,
    part_in_thousandths,
    part_resource,
)
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.prices import INSTANCE_LABEL, PricedResource, is_spot
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.flavors import Product, product_of

UNKNOWN_SECONDS = 3600.0
"""The assumed run time of a job without a time limit."""

Prices = Mapping[str, float]
"""By resource: the cost of one unit for a second, in the installation's currency."""


def groups_of(cluster: Cluster) -> dict[str, NodeGroup]:
    """Return the node groups of a cluster by name; groups that pools could add have ``COMING`` and the pool's name."""
    report = cluster.report
    if report is None:
        return {}
    return {one.name: one for one in report.groups} | {COMING + one.name: one for one in report.pools}


def prices_of(cluster: Cluster, product: Product | None = None) -> Prices:
    """Return the highest price of each resource over the node groups, as the group of the members is not known yet.

    ``product``: the one that the members are bound to, if any.
    """
    found: dict[str, float] = {}
    if cluster.tariff.is_free or cluster.report is None:
        return found
    for group in groups_of(cluster).values():
        its_product, spot = product_of(group), is_spot(group.labels)
        instance = group.labels.get(INSTANCE_LABEL, "")
        for resource in group.free:
            if is_device(resource) and product is not None and its_product != product.name:
                continue
            rate = cluster.tariff.rate(
                PricedResource(resource, its_product if is_device(resource) else "", spot, instance)
            )
            if rate is not None:
                price = rate.price / NANOS / NANOS / rate.unit / 3600
                found[resource] = max(price, found.get(resource, 0.0))
        if group.sharing is not None and (product is None or its_product == product.name):
            device = group.sharing.device
            rate = cluster.tariff.rate(PricedResource(device, its_product, spot, instance))
            if rate is not None:
                price = rate.price / NANOS / NANOS / rate.unit / 3600
                for name, unit in ((part_resource(device), WHOLE), (memory_resource(device), group.sharing.memory)):
                    found[name] = max(price / unit if unit else 0.0, found.get(name, 0.0))
    return found


def hourly(
    cluster: Cluster,
    shape: Shape,
    members: Mapping[str, int],
    product: Product | None,
    groups: frozenset[str] | None,
) -> int:
    """Return the cost of ``members`` of each role for an hour, in billionths, rounded up.

    The highest prices of the node groups that they may be on count, of ``groups`` or of all.
    """
    return sum(
        _hourly(cluster, role, members.get(role.name, 0), product, groups)
        for role in shape.roles
        if members.get(role.name)
    )


def _hourly(
    cluster: Cluster, role: RoleShape, count: int, product: Product | None, groups: frozenset[str] | None
) -> int:
    total = 0
    for resource, each in role.needs.items():
        highest, amount = 0, each * count
        for name, group in groups_of(cluster).items():
            if (groups is not None and name not in groups) or not _has(group, resource) or not allows(role, group):
                continue
            its_product = product_of(group)
            if is_device(resource) and product is not None and its_product != product.name:
                continue
            rate = cluster.tariff.rate(
                PricedResource(
                    device_of(resource),
                    its_product if is_device(resource) else "",
                    is_spot(group.labels),
                    group.labels.get(INSTANCE_LABEL, ""),
                )
            )
            if rate is not None and is_part(resource):
                part = part_in_thousandths(resource, each, group.sharing.memory if group.sharing is not None else 0)
                highest = max(highest, -(-part * count * rate.price // (rate.unit * WHOLE * NANOS)))
            elif rate is not None:
                highest = max(highest, -(-amount * rate.price // (rate.unit * NANOS)))
        total += highest
    return total


def _has(group: NodeGroup, resource: str) -> bool:
    if is_part(resource):
        return group.sharing is not None and group.sharing.device == device_of(resource)
    return resource in group.free


def cost_of(shape: Shape, needs: Resources, prices: Prices) -> float:
    """Return the cost of members that need ``needs`` in all, until their time limit."""
    each = sum(amount * prices.get(name, 0.0) for name, amount in needs.items())
    return each * (shape.time_limit_seconds or UNKNOWN_SECONDS) if each else 0.0
