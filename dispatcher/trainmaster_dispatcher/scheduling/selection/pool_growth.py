"""Sentences on what keeps the pools of a cluster from adding nodes. Pure."""

from collections.abc import Iterable

from trainmaster.protocol.agent import Pool

_MOST = 3
"""The most pools that a sentence names."""


def growth_now(pools: Iterable[Pool]) -> str:
    """Return how many more nodes can come now, if not enough, and why no more: ``no more of them can come now (gpu: ...)``."""
    full = [f"{pool.name} {obstacle(pool)}" for pool in pools if not pool.count]
    named = "; ".join(full[:_MOST]) + (f"; {len(full) - _MOST} more pools likewise" if len(full) > _MOST else "")
    few = "too few" if any(pool.count for pool in pools) else "no more"
    return f"{few} of them can come now{f': pool {named}' if full else ''}"


def obstacle(pool: Pool) -> str:
    """Return why a pool gets no more nodes."""
    return f"gets none: {pool.blocked}" if pool.blocked else f"has the most nodes that it may have, {pool.most}"
