"""`PoolReports`: the newest reports of the cluster's autoscalers, and the existing nodes of their pools."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from trainmaster_agent.capacity.autoscaler_status import (
    STATUS_KEY,
    AutoscalerStatus,
    lasting,
    read_status,
    written_at,
)
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.karpenter import NODE_POOL_LABEL, NodePoolState, read_node_pool
from trainmaster_agent.capacity.pool_nodes import NodeOffer, NodeShape, PoolNodes
from trainmaster_agent.capacity.pools import Autoscalers, FoundPools, find_pools

_STALE_SECONDS = 600.0
"""Age of a report from which nobody is taken to run the autoscaler: it writes one each time it looks, as a rule every 10 s."""


class PoolReports:
    """Takes ConfigMaps and NodePools as raw JSON, as watches deliver them.

    ``clock``: seconds of the epoch; None: no report is too old.
    """

    def __init__(self, config: CapacityConfig, clock: Callable[[], float] | None) -> None:
        self._config = config
        self._clock = clock
        self._name = ""
        self._text = ""
        self._status: AutoscalerStatus | None = None
        self._written_at: float | None = None
        self._node_pools: dict[str, NodePoolState] = {}
        self._by_group = PoolNodes()
        self._by_node_pool = PoolNodes()

    # The Cluster Autoscaler

    def statuses(self) -> Collection[str]:
        return [self._name] if self._name else []

    def status_put(self, obj: dict[str, Any]) -> None:
        """Take the ConfigMap of the Cluster Autoscaler. Raises UnreadableStatusError."""
        metadata = obj["metadata"]
        self._name, self._written_at = f"{metadata['namespace']}/{metadata['name']}", written_at(obj)
        text = lasting((obj.get("data") or {}).get(STATUS_KEY) or "{}")
        if text != self._text:
            self._status = read_status(text)
            self._text = text

    def status_drop(self, _name: str) -> None:
        self._name, self._text, self._status, self._written_at = "", "", None, None

    # Karpenter

    def node_pools(self) -> Collection[str]:
        return self._node_pools

    def node_pool_put(self, obj: dict[str, Any]) -> None:
        """Take a NodePool. Raises ValueError for quantities that cannot be read."""
        found = read_node_pool(obj)
        if found is None:
            self.node_pool_drop(obj["metadata"]["name"])
        else:
            self._node_pools[found.name] = found

    def node_pool_drop(self, name: str) -> None:
        self._node_pools.pop(name, None)

    # Nodes

    def concerns(self, node: str, labels: Collection[str]) -> bool:
        """Return whether a node with these labels is in a pool, or was in one until now."""
        is_named = NODE_POOL_LABEL in labels or self._config.autoscaler.node_label in labels
        is_held = self._by_group.holds(node) or self._by_node_pool.holds(node)
        return is_held or (is_named and self._config.autoscaler.enabled)

    def node_put(self, node: str, labels: Mapping[str, str], offer: NodeOffer | None) -> None:
        """Take what an existing node offers; None: nothing is known by it."""
        label = self._config.autoscaler.node_label
        self._by_group.put(node, None if label is None else labels.get(label), offer)
        self._by_node_pool.put(node, labels.get(NODE_POOL_LABEL), offer)

    def find(self, existing: Mapping[str, int], shown_labels: Collection[str]) -> FoundPools:
        """Return all pools. ``existing``: by pool of the configuration, the nodes with its labels.

        ``shown_labels``: the node labels of a capacity report. Others of NodePools are left out, as no job may select by them.
        """
        shown = frozenset(shown_labels)
        pools = {name: _showing(pool, shown) for name, pool in self._node_pools.items()}
        known = Autoscalers(self._fresh_status(), self._shape_of_group, pools, self._by_node_pool.shape)
        return find_pools(self._config.scale_pools, existing, known)

    def _shape_of_group(self, group: str) -> NodeShape | None:
        value = self._config.autoscaler.value_of(group)
        return None if value is None else self._by_group.shape(value)

    def _fresh_status(self) -> AutoscalerStatus | None:
        status, at = self._status, self._written_at
        if status is None or at is None or self._clock is None or self._clock() - at < _STALE_SECONDS:
            return status
        return status._replace(blocked="the autoscaler has reported nothing for ten minutes; it may not be running")


def _showing(pool: NodePoolState, shown: frozenset[str]) -> NodePoolState:
    return pool._replace(labels=tuple(label for label in pool.labels if label[0] in shown))
