"""Pools of nodes that the cluster's autoscaler may grow: what it says of them, merged with the configuration. Pure.

A pool is known by its configuration, by the Cluster Autoscaler's node groups, or by Karpenter's NodePools. Its nodes offer what
its existing nodes do, else what the configuration says of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainmaster.protocol.agent import Pool, Taint
from trainmaster_agent.capacity.autoscaler_status import AutoscalerStatus, NodeGroupStatus
from trainmaster_agent.capacity.config import ScalePool
from trainmaster_agent.capacity.karpenter import NodePoolState, PoolGrowth, growth_of
from trainmaster_agent.capacity.nodes import TaintKey
from trainmaster_agent.capacity.pool_nodes import NodeShape

_LONGEST_NAME = 253
_MOST_NAMED = 5
"""The most names in one note."""

ShapeOf = Callable[[str], NodeShape | None]


class PoolView(NamedTuple):
    """A pool, what one more of its nodes offers, and how many may come."""

    name: str
    shape: NodeShape
    growth: PoolGrowth

    @property
    def more(self) -> int:
        """Number of nodes that the autoscaler may still add now."""
        return self.growth.more


class FoundPools(NamedTuple):
    """Pools by name, and notes on those that cannot be counted."""

    pools: tuple[PoolView, ...]
    notes: tuple[str, ...]


def by_hand(pool: ScalePool) -> NodeShape:
    """Return what a node of a pool offers by its configuration."""
    taints = tuple(TaintKey(taint.key, taint.value, taint.effect) for taint in pool.taints)
    return NodeShape(pool.amounts, pool.labels, taints)


class Autoscalers(NamedTuple):
    """Reports of autoscalers on their pools, and shapes of the nodes that these have."""

    status: AutoscalerStatus | None
    """Of the Cluster Autoscaler; None: there is none."""
    shape_of_group: ShapeOf
    node_pools: Mapping[str, NodePoolState]
    """Those of Karpenter."""
    shape_of_node_pool: ShapeOf

    def groups(self) -> dict[str, NodeGroupStatus]:
        return {} if self.status is None else {group.name: group for group in self.status.groups}

    def growth_of_group(self, group: NodeGroupStatus) -> PoolGrowth:
        whole = "" if self.status is None else self.status.blocked
        return _growth(group.nodes, group.most, whole or group.blocked)


def find_pools(declared: Sequence[ScalePool], existing: Mapping[str, int], known: Autoscalers) -> FoundPools:
    """Merge what is known of all pools. ``existing``: by pool of the configuration, the nodes that have its labels.

    Where both an autoscaler and the configuration limit the size of a pool, the lower limit counts.
    """
    groups = known.groups()
    found: list[PoolView] = []
    unlimited: list[str] = []
    for pool in declared:
        view = _declared(pool, existing.get(pool.name, 0), groups, known)
        if view is None:
            unlimited.append(pool.name)
        else:
            found.append(view)
    names = {pool.name for pool in declared}
    taken = {pool.node_group or pool.name for pool in declared}
    unlike: list[str] = []
    for name, shape, growth in _undeclared(groups, known):
        if name in taken:
            continue
        if shape is None:
            unlike.append(name)
        else:
            found.append(PoolView(_short_name(name, names), shape, growth(shape)))
    return FoundPools(tuple(sorted(found, key=lambda one: one.name)), tuple(_notes(unlimited, unlike)))


def _declared(
    pool: ScalePool, nodes: int, groups: Mapping[str, NodeGroupStatus], known: Autoscalers
) -> PoolView | None:
    """Return a pool of the configuration; None for one whose size nothing limits."""
    name = pool.node_group or pool.name
    group, node_pool = groups.get(name), known.node_pools.get(name)
    if group is not None:
        shape = _with_labels(known.shape_of_group(name), pool) or by_hand(pool)
        growth = known.growth_of_group(group)
    elif node_pool is not None:
        shape = _with_labels(known.shape_of_node_pool(name), pool) or _of_template(by_hand(pool), node_pool)
        growth = growth_of(node_pool, shape.amounts, nodes)
    elif pool.most_nodes is not None:
        shape, growth = by_hand(pool), _growth(nodes, pool.most_nodes, "")
    else:
        return None
    return PoolView(pool.name, shape, _at_most(growth, pool.most_nodes))


def _undeclared(
    groups: Mapping[str, NodeGroupStatus], known: Autoscalers
) -> Iterator[tuple[str, NodeShape | None, Callable[[NodeShape], PoolGrowth]]]:
    """Yield the pools that autoscalers report: name, what a node offers if that is known, and how the pool may grow."""
    for name, group in groups.items():
        growth = known.growth_of_group(group)
        yield name, known.shape_of_group(name), lambda _, growth=growth: growth  # type: ignore[misc]
    for name, node_pool in known.node_pools.items():
        yield (
            name,
            known.shape_of_node_pool(name),
            lambda shape, node_pool=node_pool: growth_of(node_pool, shape.amounts, 0),  # type: ignore[misc]
        )


def reported(pools: Iterable[PoolView]) -> tuple[Pool, ...]:
    """Return the pools as a capacity report states them: with the number of nodes that could be added."""
    return tuple(
        Pool(
            name=one.name,
            most=one.growth.most,
            count=one.growth.more,
            nodes=one.growth.nodes,
            blocked=one.growth.blocked,
            free=one.shape.amounts,
            labels=dict(one.shape.labels),
            taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in one.shape.taints),
        )
        for one in pools
    )


def _growth(nodes: int, most: int, blocked: str) -> PoolGrowth:
    return PoolGrowth(nodes, most, 0 if blocked else max(0, most - nodes), blocked)


def _at_most(growth: PoolGrowth, most: int | None) -> PoolGrowth:
    """Limit a pool to the number of nodes of its configuration, and say why it gets none where it is full."""
    if most is not None and most < growth.most:
        growth = growth._replace(most=most, more=min(growth.more, max(0, most - growth.nodes)))
    return growth


def _with_labels(shape: NodeShape | None, pool: ScalePool) -> NodeShape | None:
    """Return a shape with the labels that all nodes of its pool have by the configuration."""
    return None if shape is None else shape._replace(labels={**shape.labels, **pool.labels})


def _of_template(shape: NodeShape, node_pool: NodePoolState) -> NodeShape:
    """Return a shape with what the template of its NodePool adds to each node."""
    taints = tuple(sorted({*shape.taints, *node_pool.taints}))
    return NodeShape(shape.amounts, {**dict(node_pool.labels), **shape.labels}, taints)


def _short_name(name: str, used: set[str]) -> str:
    """Return the last part of a name that is an address, as Google's are, unless another pool has it."""
    last = name.rpartition("/")[2]
    short = last if last and last not in used else name
    used.add(short)
    return short[-_LONGEST_NAME:]


def _notes(unlimited: Sequence[str], unlike: Sequence[str]) -> Iterable[str]:
    if unlimited:
        yield f"pools without mostNodes of which no autoscaler reports a node group: {_names(unlimited)}"
    if unlike:
        yield (
            f"nodes that the autoscaler may add to {_names(unlike)}: what a node offers is not known, as none exists whose label"
            " names its pool, and no scalePools entry does"
        )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(name.rpartition("/")[2] or name for name in sorted(names)[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown
