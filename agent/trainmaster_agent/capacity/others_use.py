"""Sums of what pods of others use on the nodes that take members, by device product."""

from trainmaster.cluster_model.device_products import product_label
from trainmaster.protocol.agent import MOST_PRODUCTS, OthersUse
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.groups import OUT, NodeTraits
from trainmaster_agent.capacity.nodes import Amounts


class OthersLedger:
    """The use by others of each node, as the node's traits report it: what is allocatable without what is free, rounded up.

    It changes with the traits of a node alone, so that it never makes a new report by itself.
    """

    def __init__(self) -> None:
        self._of_node: dict[str, tuple[str, Amounts]] = {}
        self._sums: dict[str, Resources] = {}
        """By product."""

    def put(self, name: str, allocatable: Amounts, traits: NodeTraits | None) -> None:
        """Count a node; ``traits``: None, or without free amounts where it takes no members, for one that is not counted."""
        self._add(name, -1)
        if traits is None or OUT in traits.taints:
            self._of_node.pop(name, None)
            return
        labels, free = dict(traits.labels), dict(traits.free)
        used = tuple([(key, amount - free.get(key, 0)) for key, amount in allocatable if amount > free.get(key, 0)])
        self._of_node[name] = labels.get(product_label(labels), ""), used
        self._add(name, 1)

    def _add(self, name: str, sign: int) -> None:
        if name not in self._of_node:
            return
        product, amounts = self._of_node[name]
        for resource, amount in amounts:
            sums = self._sums.setdefault(product if "/" in resource else "", {})
            left = sums.get(resource, 0) + sign * amount
            if left:
                sums[resource] = left
            else:
                del sums[resource]

    def report(self) -> tuple[OthersUse, ...]:
        """Return the sums, by product."""
        found = [OthersUse(product=product, amounts=dict(sums)) for product, sums in sorted(self._sums.items()) if sums]
        return tuple(found[:MOST_PRODUCTS])
