"""Nodes of a simulated cluster, in pools of equivalent nodes, indexed by their free amounts.

A pool is a node group inside one of its narrowest topology domains. A fit is found by a search over the distinct
free amounts of a pool, of which there are few, and not over its nodes. The order is deterministic: same calls, same nodes.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trainmaster.cluster_model.packing import Node
from trainmaster.fake_cluster.fleet import FleetGroup
from trainmaster.protocol.agent import NodeGroup, Taint
from trainmaster.protocol.quantities import Resources

if TYPE_CHECKING:
    from trainmaster.fake_cluster.run import FakeRun

Takes = tuple[tuple[int, int], ...]
"""Amounts that a member takes of a node: positions in the pool's amounts, and the amount of each."""


class SimulatedNode:
    """One node. ``free`` follows the order of its pool's names."""

    __slots__ = ("failed", "foreign", "free", "idle_token", "lot", "number", "ordered", "pool", "runs", "up")

    def __init__(self, pool: "FakePool", number: int, up: bool) -> None:
        self.pool = pool
        self.number = number
        self.free = list(pool.amounts)
        self.foreign: dict[int, tuple[int, ...]] | None = None
        """Amounts that foreign pods use now, by position of their kind in the group."""
        self.runs: dict[FakeRun, None] | None = None
        """Our runs with members here, in the order of their placement."""
        self.up = up
        self.ordered = False
        self.failed = False
        self.lot: Lot | None = None
        """Lot in which the node is reported."""
        self.idle_token = 0
        """Number of times that the node became idle."""

    @property
    def name(self) -> str:
        return f"{self.pool.name}-{self.number}"


class Lot:
    """Nodes of a pool with the same free amounts beside our members: a node group of the capacity report.

    ``occupied``: whether foreign pods are on its nodes.
    """

    __slots__ = ("count", "free", "name", "occupied", "pool")

    def __init__(self, pool: "FakePool", name: str, free: Resources, *, occupied: bool) -> None:
        self.pool = pool
        self.name = name
        self.free = free
        self.occupied = occupied
        self.count = 0


class FakePool:
    """Equivalent nodes: one group, one topology domain."""

    def __init__(
        self, index: int, name: str, group: FleetGroup, path: tuple[str, ...], share: tuple[int, int], grid: Resources
    ) -> None:
        self.index = index
        self.group = group
        self.least, self.most = share
        """Number of nodes that always exist, and the most that may exist."""
        self.name = name
        self.topology = tuple(zip(group.topology, path, strict=True))
        self.labels = {**dict(self.topology), **group.labels}
        self.taints = tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in group.taints)
        amounts = group.amounts
        self.names = tuple(sorted(amounts, key=lambda name: ("/" not in name, name)))
        """Sort order of amounts, devices first: the fewest free devices make the tightest fit."""
        self.amounts = tuple(amounts[name] for name in self.names)
        self._grid = grid
        self.nodes: list[SimulatedNode] = []
        self.lots: dict[tuple[tuple[int, ...], bool], Lot] = {}
        """By free amounts, and whether foreign pods are on the nodes."""
        self.levels: dict[tuple[int, ...], set[int]] = {}
        """Nodes that are up, by their free amounts."""
        self.hint: SimulatedNode | None = None
        """Node of the last change: most often the next member fits there too."""

    def add(self, up: bool) -> SimulatedNode:
        node = SimulatedNode(self, len(self.nodes), up)
        self.nodes.append(node)
        if up:
            self._enter(node)
        return node

    def take(self, node: SimulatedNode, takes: Takes, count: int) -> None:
        """Take the amounts of ``count`` members from a node; a negative count gives them back."""
        if node.up:
            self._leave(node)
        free = node.free
        for position, amount in takes:
            free[position] -= amount * count
        if node.up:
            self._enter(node)
            self.hint = node

    def set_up(self, node: SimulatedNode, up: bool) -> None:
        """Set whether a node takes members."""
        if node.up != up:
            node.up = up
            if up:
                self._enter(node)
            else:
                self._leave(node)
                if self.hint is node:
                    self.hint = None

    def _enter(self, node: SimulatedNode) -> None:
        key = tuple(node.free)
        level = self.levels.get(key)
        if level is None:
            self.levels[key] = {node.number}
        else:
            level.add(node.number)

    def _leave(self, node: SimulatedNode) -> None:
        key = tuple(node.free)
        level = self.levels[key]
        level.discard(node.number)
        if not level:
            del self.levels[key]

    def tightest(self, takes: Takes) -> SimulatedNode | None:
        """Return the node that one more member would leave fullest; None if it fits on none."""
        best: tuple[int, ...] | None = None
        for key in self.levels:
            for position, amount in takes:
                if key[position] < amount:
                    break
            else:
                if best is None or key < best:
                    best = key
        return None if best is None else self.nodes[min(self.levels[best])]

    # Reports

    def lot_of(self, node: SimulatedNode) -> Lot:
        """Return the lot of a node, by the amounts that foreign pods use on it."""
        free = list(self.amounts)
        for used in (node.foreign or {}).values():
            free = [amount - less for amount, less in zip(free, used, strict=True)]
        key = tuple(
            amount // (step := self._grid.get(name, 1)) * step for name, amount in zip(self.names, free, strict=True)
        )
        occupied = bool(node.foreign)
        lot = self.lots.get((key, occupied))
        if lot is None:
            name = self.name if not occupied else f"{self.name}.{len(self.lots)}"
            offered = {name: amount for name, amount in zip(self.names, key, strict=True) if amount}
            lot = self.lots[key, occupied] = Lot(self, name, offered, occupied=occupied)
        return lot

    def report(self) -> Iterator[NodeGroup]:
        for lot in self.lots.values():
            if lot.count:
                yield NodeGroup(
                    name=lot.name,
                    count=lot.count,
                    free=lot.free,
                    labels=self.labels,
                    taints=self.taints,
                    topology=self.topology,
                    occupied=lot.occupied,
                )

    def as_nodes(self) -> Iterator[tuple[SimulatedNode, Node]]:
        """Yield the nodes that are up, in the packer's form."""
        for node in self.nodes:
            if node.up:
                yield node, self.as_node(node.name)

    def as_node(self, name: str) -> Node:
        """Return a node without foreign pods and members in the packer's form."""
        return Node(name, dict(zip(self.names, self.amounts, strict=True)), self.labels, self.taints, self.topology)

    def free_of(self, node: SimulatedNode) -> Resources:
        return dict(zip(self.names, node.free, strict=True))

    def takes_of(self, amounts: Mapping[str, int], *, exclusive: bool = False) -> Takes | None:
        """Return the positions of what a member takes; None if these nodes do not have all that it requests.

        An ``exclusive`` member takes all of a node, so that it fits only where no other pod has any of it.
        """
        positions = {name: position for position, name in enumerate(self.names)}
        if any(name not in positions for name in amounts):
            return None
        if exclusive:
            if any(self.amounts[positions[name]] < amount for name, amount in amounts.items()):
                return None
            return tuple(enumerate(self.amounts))
        return tuple((positions[name], amount) for name, amount in amounts.items())
