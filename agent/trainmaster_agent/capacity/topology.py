"""Topology levels of a cluster, from wide to narrow, and each node's path through them.

The first existing source counts: the configuration, a Topology object of Kueue or KAI, Volcano's HyperNodes, well-known labels.
"""

from collections.abc import Collection, Iterable, Mapping
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


class Level(NamedTuple):
    name: str
    label: str


class Layout(NamedTuple):
    """The way to compute the topology paths of a cluster's nodes."""

    levels: tuple[Level, ...] = ()
    hyper_nodes: HyperNodes | None = None
    """Source of the paths in place of labels."""

    def path(self, node: str, labels: Mapping[str, str]) -> Path:
        if self.hyper_nodes is not None:
            return self.hyper_nodes.path(node, labels)
        return tuple([(level.name, labels[level.label]) for level in self.levels if labels.get(level.label)])

    @property
    def labels(self) -> frozenset[str]:
        """Node labels that the paths use: to report them splits no group further."""
        return frozenset(level.label for level in self.levels)


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
    return Layout(tuple(Level(name, label) for name, label in found if label is not None))


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
