"""Existing nodes of autoscaled pools, by the label that names their pool, and what the largest of each pool offers."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.nodes import Amounts, TaintKey

Pairs = tuple[tuple[str, str], ...]
"""Labels and their values, sorted."""


class NodeOffer(NamedTuple):
    """Amounts, labels and taints of a node on which there are only the pods that each node gets."""

    amounts: Amounts
    labels: Pairs
    taints: tuple[TaintKey, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """Number of devices, then CPU, then memory: the order by which nodes of a pool are compared."""
        amounts = dict(self.amounts)
        devices = sum(amount for name, amount in self.amounts if "/" in name)
        return devices, amounts.get("cpu", 0), amounts.get("memory", 0)


class NodeShape(NamedTuple):
    """Amounts, labels and taints that a further node of a pool is expected to have."""

    amounts: Resources
    labels: Mapping[str, str]
    taints: tuple[TaintKey, ...]


class PoolNodes:
    """Nodes by pool. A change costs work for the node that changed; a shape, for the different nodes of its pool."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, NodeOffer]] = {}
        """By node: its pool, and what it offers."""
        self._offers: dict[str, Counter[NodeOffer]] = {}
        self._shapes: dict[str, NodeShape] = {}

    def put(self, node: str, pool: str | None, offer: NodeOffer | None) -> None:
        """Count a node as one of ``pool``; None: it is in no pool, or offers nothing that can be relied on."""
        now = None if pool is None or offer is None else (pool, offer)
        before = self._of.get(node)
        if now == before:
            return
        if before is not None:
            self._count(*before, -1)
            del self._of[node]
        if now is not None:
            self._count(*now, 1)
            self._of[node] = now

    def holds(self, node: str) -> bool:
        return node in self._of

    def shape(self, pool: str) -> NodeShape | None:
        """Return what the largest node of a pool offers, with the labels that all of its nodes have; None without nodes."""
        offers = self._offers.get(pool)
        if not offers:
            return None
        known = self._shapes.get(pool)
        if known is None:
            largest = max(offers, key=lambda one: (one.size, one))
            common = set(largest.labels).intersection(*(offer.labels for offer in offers))
            shape = NodeShape(dict(largest.amounts), dict(sorted(common)), largest.taints)
            known = self._shapes[pool] = shape
        return known

    def _count(self, pool: str, offer: NodeOffer, sign: int) -> None:
        offers = self._offers.setdefault(pool, Counter())
        offers[offer] += sign
        if not offers[offer]:
            del offers[offer]
            if not offers:
                del self._offers[pool]
        self._shapes.pop(pool, None)
