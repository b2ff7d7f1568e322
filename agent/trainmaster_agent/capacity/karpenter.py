"""NodePools of Karpenter, parsed: what their nodes have in common, their limits, and what keeps them from growing. Pure.

API: https://karpenter.sh/docs/concepts/nodepools/
"""

from typing import Any, NamedTuple

from trainmaster.protocol.agent import MOST_NODES
from trainmaster.protocol.quantities import Resources, parse_quantity
from trainmaster_agent.capacity.nodes import TaintKey

NODE_POOL_LABEL = "karpenter.sh/nodepool"
"""Label of a node that names its NodePool."""
_NODES = "nodes"
_UNLIMITED_MORE = 1000
"""Nodes that a NodePool without limits is assumed to add at most."""
_LONGEST = 400


class NodePoolState(NamedTuple):
    """A NodePool."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """Labels that all of its nodes have."""
    taints: tuple[TaintKey, ...]
    limits: Resources
    used: Resources
    """What its nodes have together, by resource; ``nodes`` is their number."""
    blocked: str
    """Why Karpenter adds no nodes to it now; empty if it would."""

    @property
    def nodes(self) -> int:
        return min(self.used.get(_NODES, 0), MOST_NODES)


class PoolGrowth(NamedTuple):
    """Nodes that a pool has, may have and can get now."""

    nodes: int
    most: int
    more: int
    blocked: str = ""


def read_node_pool(obj: dict[str, Any]) -> NodePoolState | None:
    """Parse a NodePool (karpenter.sh/v1); None for one of a fixed size, to which waiting pods add no nodes.

    Raises ValueError for a quantity that cannot be read.
    """
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if spec.get("replicas") is not None:
        return None
    template = spec.get("template") or {}
    inner = template.get("spec") or {}
    labels = {NODE_POOL_LABEL: metadata["name"], **((template.get("metadata") or {}).get("labels") or {})}
    for term in inner.get("requirements") or ():
        values = list(term.get("values") or ())
        if term.get("operator") == "In" and len(values) == 1:
            labels.setdefault(term["key"], values[0])
    taints = [TaintKey(one["key"], one.get("value") or "", one["effect"]) for one in inner.get("taints") or ()]
    return NodePoolState(
        metadata["name"],
        tuple(sorted(labels.items())),
        tuple(sorted(taints)),
        _amounts(spec.get("limits")),
        _amounts(status.get("resources")),
        "it is being deleted" if metadata.get("deletionTimestamp") else _not_ready(status),
    )


def growth_of(pool: NodePoolState, of_a_node: Resources, nodes: int) -> PoolGrowth:
    """Return how many nodes with ``of_a_node`` the limits of a NodePool leave; its scarcest resource decides.

    ``nodes``: number of its nodes. A limit counts what machines have, which is more than they offer to pods: where the
    NodePool says what its nodes have together, their mean counts if it is more.
    """
    nodes = min(max(nodes, pool.nodes), MOST_NODES)
    left: list[tuple[int, str]] = []
    for name, limit in pool.limits.items():
        used = pool.used.get(name, 0)
        mean = -(-used // pool.nodes) if pool.nodes else 0
        each = 1 if name == _NODES else max(of_a_node.get(name, 0), mean)
        if each:
            left.append((max(0, limit - used) // each, name))
    more, scarcest = min(left, default=(_UNLIMITED_MORE, ""))
    more = min(more, MOST_NODES - nodes)
    blocked = pool.blocked or (f"the limit of its NodePool on {scarcest} leaves no further node" if more == 0 else "")
    return PoolGrowth(nodes, nodes + more, 0 if pool.blocked else more, blocked)


def _not_ready(status: dict[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") == "False":
            words = ": ".join(part for part in (one.get("reason") or "", one.get("message") or "") if part)
            cut = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
            return f"its NodePool is not ready{f': {cut}' if cut else ''}"
    return ""


def _amounts(quantities: dict[str, Any] | None) -> Resources:
    return {name: parse_quantity(name, str(text)) for name, text in (quantities or {}).items()}
