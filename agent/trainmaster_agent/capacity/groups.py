"""Node groups: nodes with the same free resources, labels and topology, at most ``most`` groups.

A group's name is a hash of its content, so it stays the same across reports and restarts of the agent.
"""

from base64 import b32hexencode
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from trainmaster.cluster_model.device_products import PRODUCT_LABELS, VENDOR_PRODUCT_LABELS
from trainmaster.protocol.agent import MOST_NODES, NodeGroup, Numa, Taint
from trainmaster.protocol.quantities import Resources, format_quantity
from trainmaster_agent.capacity.nodes import Amounts, TaintKey
from trainmaster_agent.capacity.shared_gpus import TraitsOfSharing, as_sharing
from trainmaster_agent.capacity.topology import Path

OUT = TaintKey("trainmaster.dev/out-of-use", "", "NoSchedule")
"""Taint of groups whose nodes take no new members although some of ours run there."""

_LEAST_SHARED = 10
"""A label with fewer nodes per value identifies nodes rather than kinds of nodes."""


class NodeTraits(NamedTuple):
    """Traits that all nodes of a group share."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[TaintKey, ...]
    topology: Path
    free: Amounts
    """Free amounts of each node, rounded down to the grid."""
    numa: tuple[str, tuple[Amounts, ...]] | None
    """NUMA policy, and the free amounts of each zone."""
    sharing: TraitsOfSharing | None = None
    """GPUs that members can share."""
    occupied: bool = False
    """Whether foreign pods are on the node, beside those that each node gets."""


class _Stage(NamedTuple):
    """One stage of coarsening: how much coarser than the configured grid, and which differences it ignores."""

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
"""From fine to coarse. Where the configured grid gives too many groups, the first stage with few enough is used."""


class Grid(NamedTuple):
    """Steps to which amounts are rounded down."""

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
    """Groups, and the group of each node traits value on the configured grid."""

    groups: Mapping[NodeTraits, int]
    """Number of nodes of each group."""
    of: Mapping[NodeTraits, NodeTraits] | None
    """Group by node traits; None: each traits value is its own group. Nodes without a group are not reported."""
    notes: tuple[str, ...]
    """Sentences on the details dropped to limit the number of groups."""

    def group(self, traits: NodeTraits) -> NodeTraits | None:
        return traits if self.of is None else self.of.get(traits)


class Grouper:
    """Merges groups until there are at most ``most``. A pure function; its caches only save work."""

    def __init__(self, grid: Grid, most: int) -> None:
        self._grid = grid
        self._most = most
        self._known: dict[tuple[_Stage, frozenset[str]], dict[NodeTraits, NodeTraits]] = {}

    def group(self, fine: Mapping[NodeTraits, int], level_labels: frozenset[str]) -> Grouped:
        """Group nodes. ``fine``: node counts by traits on the configured grid; ``level_labels``: labels that topology paths use."""
        if len(fine) <= self._most:
            self._known.clear()
            return Grouped(fine, None, ())
        for stage in _STAGES:
            dropped = _dropped(stage, fine, level_labels)
            of = self._coarse(stage, dropped, fine)
            groups = Counter[NodeTraits]()
            for traits, count in fine.items():
                groups[of[traits]] += count
            if len(groups) <= self._most:
                return Grouped(groups, of, self._notes(stage, dropped))
        largest = sorted(groups, key=lambda traits: (-groups[traits], name_of(traits)))[: self._most]
        kept = {traits: groups[traits] for traits in largest}
        lost = f"{sum(groups.values()) - sum(kept.values())} nodes of the smallest node groups"
        return Grouped(
            kept, {one: to for one, to in of.items() if to in kept}, (*self._notes(_STAGES[-1], dropped), lost)
        )

    def _coarse(
        self, stage: _Stage, dropped: frozenset[str], fine: Mapping[NodeTraits, int]
    ) -> dict[NodeTraits, NodeTraits]:
        before = self._known.get((stage, dropped), {})
        grid = self._grid.coarser(stage.memory, stage.cpu)
        after = {traits: before.get(traits) or _coarser(traits, stage, dropped, grid) for traits in fine}
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


def _dropped(stage: _Stage, fine: Mapping[NodeTraits, int], level_labels: frozenset[str]) -> frozenset[str]:
    """Return the labels that ``stage`` ignores."""
    if not stage.labels:
        return frozenset()
    nodes, values = Counter[str](), set[tuple[str, str]]()
    for traits, count in fine.items():
        values.update(traits.labels)
        for key, _ in traits.labels:
            nodes[key] += count
    shared = Counter(key for key, _ in values)
    return frozenset(
        key
        for key in nodes
        if key not in PRODUCT_LABELS  # quota may depend on them
        and (key not in level_labels or not stage.topology)
        and (stage.labels == "all" or nodes[key] < _LEAST_SHARED * shared[key])
    )


def _coarser(traits: NodeTraits, stage: _Stage, dropped: frozenset[str], grid: Grid) -> NodeTraits:
    numa = traits.numa
    return NodeTraits(
        tuple([pair for pair in traits.labels if pair[0] not in dropped]) if dropped else traits.labels,
        traits.taints,
        traits.topology if stage.topology else (),
        grid.floored(traits.free),
        None if numa is None else (numa[0], tuple(sorted(grid.floored(zone) for zone in numa[1]))),
        traits.sharing,
        traits.occupied,
    )


def name_of(traits: NodeTraits) -> str:
    """Return the product or machine in short, and a hash of 60 bits of everything."""
    # Names of groups that need none of the newer traits are those of earlier releases.
    content = (
        repr(traits).replace(", sharing=None", "").replace(", occupied=False", "").replace(", step=1, least=1", "")
    )
    digest = b32hexencode(blake2b(content.encode(), digest_size=10).digest()).decode().lower()[:12]
    labels = dict(traits.labels)
    kinds = (*VENDOR_PRODUCT_LABELS, "node.kubernetes.io/instance-type")
    product = next((labels[key] for key in kinds if labels.get(key)), "nodes")
    word = "out-of-use" if OUT in traits.taints else product[:24].strip("-_.").lower()
    return f"{word}-{digest}"


def as_group(traits: NodeTraits, count: int) -> NodeGroup:
    numa = None
    if traits.numa is not None:
        policy, zones = traits.numa
        numa = Numa.model_validate({"policy": policy, "zones": tuple(dict(zone) for zone in zones)})
    return NodeGroup(
        name=name_of(traits),
        count=min(count, MOST_NODES),
        free=dict(traits.free),
        labels=dict(traits.labels),
        taints=tuple(Taint(key=one.key, value=one.value, effect=one.effect) for one in traits.taints),
        topology=traits.topology,
        numa=numa,
        sharing=None if traits.sharing is None else as_sharing(traits.sharing),
        occupied=traits.occupied,
    )
