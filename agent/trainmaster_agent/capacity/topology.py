"""Topology levels of a cluster, from wide to narrow, and each node's path through them.

The first existing source counts: the configuration, a Topology object of Kueue or KAI, Volcano's HyperNodes, well-known labels.
"""

from collections.abc import Collection, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from trainmaster.protocol.agent import HOST_LEVEL
from trainmaster_agent.capacity.config import LevelConfig
from trainmaster_agent.capacity.hypernodes import HyperNodes

Path = tuple[tuple[str, str], ...]
"""Pairs of level and domain, from wide to narrow, without levels for which the node has no label."""

_KNOWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("region", ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")),
    ("zone", ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")),
    ("core", ("fabric.topograph.run/tier-2", "topology.k8s.aws/network-node-layer-1")),
    (
        "block",
        (
            "topology.kubernetes.io/block",
            "cloud.provider.com/topology-block",
            "cloud.google.com/gce-topology-block",
            "oci.oraclecloud.com/host.network_block_id",
        ),
    ),
    ("spine", ("fabric.topograph.run/tier-1", "topology.k8s.aws/network-node-layer-2")),
    ("leaf", ("fabric.topograph.run/tier-0", "topology.k8s.aws/network-node-layer-3")),
    (
        "rack",
        (
            "topology.kubernetes.io/rack",
            "cloud.provider.com/topology-rack",
            "cloud.google.com/gce-topology-subblock",
            "oci.oraclecloud.com/host.rack_id",
        ),
    ),
    (
        "nvlink",
        ("nvidia.com/gpu.clique", "accelerator.topograph.run/domain", "topology.k8s.aws/ultraserver-id"),
    ),
)
"""Well-known labels by level, from wide to narrow; for each level the first label that any node carries is used."""

_HOSTS = (HOST_LEVEL, "cloud.google.com/gce-topology-host", "oci.oraclecloud.com/host.id")
"""Labels whose value is unique to a node: never a level of a path."""

_SHORT = {label: level for level, labels in _KNOWN for label in labels}


_TPU_TOPOLOGY, _TPUS, _POOL = (
    "cloud.google.com/gke-tpu-topology",
    "cloud.google.com/gke-accelerator-count",
    "cloud.google.com/gke-nodepool",
)
"""Labels of GKE: the chips of the slice that a node belongs to, such as ``4x4``, those of the node, and its node pool. A pool of nodes
with fewer chips than their slice is one slice: https://cloud.google.com/kubernetes-engine/docs/concepts/tpus
"""


class Level(NamedTuple):
    """A topology level. ``of_slices``: only nodes have a domain that share a TPU slice with others."""

    name: str
    label: str
    of_slices: bool = False

    def domain(self, labels: Mapping[str, str]) -> str:
        """Return the domain of a node with these labels; empty if it has none."""
        if self.of_slices and not _shares_a_slice(labels):
            return ""
        return labels.get(self.label, "")


_SLICES = Level("slice", _POOL, of_slices=True)


class Layout(NamedTuple):
    """The way to compute the topology paths of a cluster's nodes."""

    levels: tuple[Level, ...] = ()
    hyper_nodes: HyperNodes | None = None
    """Source of the paths in place of labels."""

    def path(self, node: str, labels: Mapping[str, str]) -> Path:
        if self.hyper_nodes is not None:
            return self.hyper_nodes.path(node, labels)
        return tuple([(level.name, domain) for level in self.levels if (domain := level.domain(labels))])

    @property
    def labels(self) -> frozenset[str]:
        """Node labels that the paths use: to report them splits no group further, as nodes without a domain would be."""
        return frozenset(level.label for level in self.levels if not level.of_slices)


def find_layout(
    configured: Iterable[LevelConfig],
    topologies: Mapping[str, dict[str, Any]],
    hyper_nodes: HyperNodes | None,
    present: Collection[str],
) -> Layout:
    """Return a cluster's layout. ``topologies``: ``spec.levels`` of Topology objects; ``present``: labels that any node carries.

    Of several Topology objects, the first by name with a label that any node carries counts.
    """
    levels = tuple(Level(one.level, one.label) for one in configured)
    if levels:
        return Layout(levels)
    for _, spec in sorted(topologies.items()):
        levels = levels_of(spec)
        if any(level.label in present for level in levels):
            return Layout(levels)
    if hyper_nodes is not None:
        return Layout(hyper_nodes=hyper_nodes)
    found = [(name, next((label for label in labels if label in present), None)) for name, labels in _KNOWN]
    levels = tuple(Level(name, label) for name, label in found if label is not None)
    return Layout((*levels, _SLICES) if {_TPU_TOPOLOGY, _TPUS, _POOL} <= set(present) else levels)


def levels_of(spec: dict[str, Any]) -> tuple[Level, ...]:
    """Return the levels of a Topology object, without the host itself."""
    levels: list[Level] = []
    for one in spec.get("levels") or ():
        label = one.get("nodeLabel") or ""
        if not label or label in _HOSTS:
            continue
        name = one.get("alias") or level_name(label)
        taken = any(level.name == name for level in levels)
        levels.append(Level(label if taken else name, label))
    return tuple(levels)


def level_name(label: str) -> str:
    """Return the fleet's short name for a node label: the usual one, or the label's last segment."""
    return _SHORT.get(label) or label.rpartition("/")[2].removeprefix("topology-")


def _shares_a_slice(labels: Mapping[str, str]) -> bool:
    """Return whether a node is one of several that make up a TPU slice."""
    sides, chips = labels.get(_TPU_TOPOLOGY, "").split("x"), labels.get(_TPUS, "")
    if not all(side.isdecimal() and len(side) < 10 for side in (*sides, chips)):
        return False
    return prod(map(int, sides)) > int(chips)
