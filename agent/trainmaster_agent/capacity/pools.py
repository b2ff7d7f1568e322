"""Node pools that the cluster's autoscaler may grow: their configuration and current size."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainmaster.protocol.agent import Pool, Taint
from trainmaster_agent.capacity.config import ScalePool


class PoolView(NamedTuple):
    """A pool and its number of nodes."""

    pool: ScalePool
    nodes: int

    @property
    def more(self) -> int:
        """Number of nodes that the autoscaler may still add."""
        return max(0, self.pool.most_nodes - self.nodes)


def pools_view(pools: Iterable[ScalePool], nodes: Mapping[str, int]) -> tuple[PoolView, ...]:
    """Combine the pools with ``nodes``, the number of nodes by pool name."""
    return tuple(PoolView(pool, nodes.get(pool.name, 0)) for pool in pools)


def reported(pools: Iterable[PoolView]) -> tuple[Pool, ...]:
    """Return the pools as a capacity report states them: with the number of nodes that could be added."""
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
