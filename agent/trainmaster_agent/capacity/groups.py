"""Equivalent nodes in what matters, as node groups: at most so many, and named after what they are.

Names are hashes of the content, so that a group keeps its name across reports, and across restarts of the agent.
"""

from base64 import b32hexencode
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from trainmaster.protocol.agent import MOST_NODES, NodeGroup, Numa, Taint
from trainmaster.protocol.quantities import Resources, format_quantity
from trainmaster_agent.capacity.nodes import Amounts, TaintKey
from trainmaster_agent.capacity.topology import Path

PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Labels that name the product of a node's devices: quota may depend on them, so they are never given up."""

OUT = TaintKey("trainmaster.dev/out-of-use", "", "NoSchedule")
"""On groups of nodes that get no members, though some of ours are there."""

_LEAST_SHARED = 10
"""A label that has fewer nodes for each of its values tells nodes apart more than kinds of them."""


class Alike(NamedTuple):
    """What nodes of a group have in common."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[TaintKey, ...]
    topology: Path
    free: Amounts
    """Floored to the grid, of each node."""
    numa: tuple[str, tuple[Amounts, ...]] | None
    """Policy, and what is free in each zone."""


class _Stage(NamedTuple):
    """How much coarser than the configured grid, and what is not told apart any more."""

    memory: int
    cpu: int
    labels: str = ""
    topology: bool = True


_STAGES = (
    _Stage(4, 1),
    _Stage(16, 1),
    _Stage(16, 4),
    _Stage(32, 8),
    _Stage(64, 16),
    _Stage(64, 16, "rare"),
    _Stage(64, 16, "all"),
    _Stage(64, 16, "all", topology=False),
)
"""From fine to coarse. Where the configured grid gives too many groups, the first one with few enough is taken."""


class Grid(NamedTuple):
    """To what amounts are floored."""

    steps: Resources
    others: int

    def floored(self, amounts: Iterable[tuple[str, int]]) -> Amounts:
        steps, others = self.steps, self.others
        out = []
        for name, amount in amounts:
            step = steps.get(name, others)
            if amount >= step:
                out.append((name, amount // step * step))
        return tuple(out)

    def coarser(self, memory: int, cpu: int) -> "Grid":
        steps = dict(self.steps)
        for name, times in (("memory", memory), ("ephemeral-storage", memory), ("cpu", cpu)):
            steps[name] = steps.get(name, self.others) * times
        return Grid(steps, self.others)


class Grouped(NamedTuple):
    """Groups, and to which of them nodes belong that are alike by the configured grid."""

    groups: Mapping[Alike, int]
    """How many nodes each has."""
    of: Mapping[Alike, Alike] | None
    """None: as they are. What is in none is not reported."""
    notes: tuple[str, ...]
    """What was given up to have no more groups, as sentences."""

    def group(self, alike: Alike) -> Alike | None:
        return alike if self.of is None else self.of.get(alike)


class Grouper:
    """Brings groups down to ``most``. A pure function; what it keeps only saves work."""

    def __init__(self, grid: Grid, most: int) -> None:
        self._grid = grid
        self._most = most
        self._known: dict[tuple[_Stage, frozenset[str]], dict[Alike, Alike]] = {}

    def group(self, fine: Mapping[Alike, int], level_labels: frozenset[str]) -> Grouped:
        """``fine``: equivalent nodes by the configured grid, with their number. ``level_labels``: what topology paths are made of."""
        if len(fine) <= self._most:
            self._known.clear()
            return Grouped(fine, None, ())
        for stage in _STAGES:
            dropped = _dropped(stage, fine, level_labels)
            of = self._coarse(stage, dropped, fine)
            groups = Counter[Alike]()
            for alike, count in fine.items():
                groups[of[alike]] += count
            if len(groups) <= self._most:
                return Grouped(groups, of, self._notes(stage, dropped))
        largest = sorted(groups, key=lambda alike: (-groups[alike], name_of(alike)))[: self._most]
        kept = {alike: groups[alike] for alike in largest}
        lost = f"{sum(groups.values()) - sum(kept.values())} nodes of the smallest node groups"
        return Grouped(
            kept, {one: to for one, to in of.items() if to in kept}, (*self._notes(_STAGES[-1], dropped), lost)
        )

    def _coarse(self, stage: _Stage, dropped: frozenset[str], fine: Mapping[Alike, int]) -> dict[Alike, Alike]:
        before = self._known.get((stage, dropped), {})
        grid = self._grid.coarser(stage.memory, stage.cpu)
        after = {alike: before.get(alike) or _coarser(alike, stage, dropped, grid) for alike in fine}
        for key in [key for key in self._known if key[0] == stage]:
            del self._known[key]
        self._known[stage, dropped] = after
        return after

    def _notes(self, stage: _Stage, dropped: frozenset[str]) -> tuple[str, ...]:
        steps = self._grid.coarser(stage.memory, stage.cpu).steps
        sizes = ", ".join(f"{name} {format_quantity(name, steps[name])}" for name in ("cpu", "memory"))
        notes = [f"less than {sizes} of each node, as there would be more than {self._most} node groups"]
        if dropped:
            notes.append(f"the node labels {', '.join(sorted(dropped))}, for the same reason")
        if not stage.topology:
            notes.append("the topology of nodes, for the same reason")
        return tuple(notes)


def _dropped(stage: _Stage, fine: Mapping[Alike, int], level_labels: frozenset[str]) -> frozenset[str]:
    """The labels that a stage does without."""
    if not stage.labels:
        return frozenset()
    nodes, values = Counter[str](), set[tuple[str, str]]()
    for alike, count in fine.items():
        values.update(alike.labels)
        for key, _ in alike.labels:
            nodes[key] += count
    shared = Counter(key for key, _ in values)
    return frozenset(
        key
        for key in nodes
        if key not in PRODUCTS
        and (key not in level_labels or not stage.topology)
        and (stage.labels == "all" or nodes[key] < _LEAST_SHARED * shared[key])
    )


def _coarser(alike: Alike, stage: _Stage, dropped: frozenset[str], grid: Grid) -> Alike:
    numa = alike.numa
    return Alike(
        tuple([pair for pair in alike.labels if pair[0] not in dropped]) if dropped else alike.labels,
        alike.taints,
        alike.topology if stage.topology else (),
        grid.floored(alike.free),
        None if numa is None else (numa[0], tuple(sorted(grid.floored(zone) for zone in numa[1]))),
    )


def name_of(alike: Alike) -> str:
    """The product or machine in short, and a hash of 60 bits of everything."""
    digest = b32hexencode(blake2b(repr(alike).encode(), digest_size=10).digest()).decode().lower()[:12]
    labels = dict(alike.labels)
    product = next((labels[key] for key in (*PRODUCTS, "node.kubernetes.io/instance-type") if labels.get(key)), "nodes")
    word = "out-of-use" if OUT in alike.taints else product[:24].strip("-_.").lower()
    return f"{word}-{digest}"


def as_group(alike: Alike, count: int) -> NodeGroup:
    numa = None
    if alike.numa is not None:
        policy, zones = alike.numa
        numa = Numa.model_validate({"policy": policy, "zones": tuple(dict(zone) for zone in zones)})
    return NodeGroup(
        name=name_of(alike),
        count=min(count, MOST_NODES),
        free=dict(alike.free),
        labels=dict(alike.labels),
        taints=tuple(Taint(key=one.key, value=one.value, effect=one.effect) for one in alike.taints),
        topology=alike.topology,
        numa=numa,
    )
