"""Pools of nodes that the cluster's autoscaler may grow, as configured and as they are now."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainmaster.agent.capacity.config import ScalePool


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


def growth_notes(pools: Iterable[PoolView]) -> tuple[str, ...]:
    """What a report does not count, as the dispatcher has no notion of growth yet."""
    return tuple(f"autoscaling pool {one.pool.name}: up to {one.more} more nodes" for one in pools if one.more)
