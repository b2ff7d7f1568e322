"""Pools of nodes that the cluster's autoscaler may grow, as configured and as they are now."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainmaster.protocol.agent import Pool, Taint
from trainmaster_agent.capacity.config import ScalePool


class PoolView(NamedTuple):
    """A pool and how many nodes it has."""

    pool: ScalePool
    nodes: int

    @property
    def more(self) -> int:
        """How many nodes it may still be given."""
        return max(0, self.pool.most_nodes - self.nodes)


def pools_view(pools: Iterable[ScalePool], nodes: Mapping[str, int]) -> tuple[PoolView, ...]:
    """``nodes``: how many each pool has, by its name."""
    return tuple(PoolView(pool, nodes.get(pool.name, 0)) for pool in pools)


def reported(pools: Iterable[PoolView]) -> tuple[Pool, ...]:
    """As a capacity report tells of them: how many more nodes of each there could be."""
    return tuple(
        Pool(
            name=one.pool.name,
            most=one.pool.most_nodes,
            count=one.more,
            free=one.pool.amounts,
            labels=one.pool.labels,
            taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in one.pool.taints),
        )
        for one in pools
    )
