"""`NodeIndex`: nodes that take members, those with the same capacity together, so that a few of them stand for thousands."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from trainmaster.protocol.agent import Taint
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.groups import NodeTraits
from trainmaster_agent.capacity.node_cache import Host
from trainmaster_agent.capacity.topology import Path


class AllowedNodes(NamedTuple):
    """Nodes by the values of one of their labels, as a member's pod requires it."""

    label: str
    values: tuple[str, ...]


class UsableZones(NamedTuple):
    """NUMA zones of a node: ``allocatable`` beside foreign pods only, ``free`` beside all pods, both as lower bounds."""

    policy: str
    allocatable: tuple[Resources, ...]
    free: tuple[Resources, ...]


class UsableNode(NamedTuple):
    """A node that takes members. ``free``: exact amounts beside all pods; ``allocatable``: beside foreign pods only."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    path: Path
    free: Resources
    allocatable: Resources
    zones: UsableZones | None
    """Its NUMA zones, where its kubelet holds pods to them."""
    is_occupied: bool
    """Whether foreign pods are on it, beside those that each node gets."""
    has_members: bool


class Sort(NamedTuple):
    """Properties of nodes that differ in names and labels alone."""

    traits: NodeTraits | None
    """Of the last report."""
    taints: tuple[Taint, ...]
    path: Path
    free: tuple[tuple[str, int], ...]
    allocatable: tuple[tuple[str, int], ...]
    zones: tuple[tuple[tuple[str, int], ...], ...]
    is_occupied: bool
    has_members: bool


class ChangedHosts(set[Host]):
    """Hosts that changed since the last report."""

    def __init__(self) -> None:
        super().__init__()
        self.unindexed: set[str] = set()
        """Names of those that changed since the index was brought up to date; a host of the same name may have taken its place."""

    def add(self, host: Host) -> None:
        super().add(host)
        self.unindexed.add(host.name)

    def update(self, *hosts: Iterable[Host]) -> None:
        super().update(*hosts)
        self.unindexed.update(host.name for some in hosts for host in some)


class NodeIndex:
    """Costs work for the nodes that changed, and for the sorts of nodes."""

    def __init__(self, describe: Callable[[Host], UsableNode | None]) -> None:
        """``describe`` returns None for a host that takes no members."""
        self._describe = describe
        self._sorts: dict[Sort, dict[str, UsableNode]] = {}
        self._sort_of: dict[str, Sort] = {}

    def put(self, name: str, host: Host | None) -> None:
        """Describe a host anew; None: it is gone."""
        self._drop(name)
        node = None if host is None else self._describe(host)
        if host is not None and node is not None:
            sort = self._sort_of[name] = _sort(node, host.traits)
            self._sorts.setdefault(sort, {})[name] = node

    def _drop(self, name: str) -> None:
        sort = self._sort_of.pop(name, None)
        if sort is not None:
            nodes = self._sorts[sort]
            del nodes[name]
            if not nodes:
                del self._sorts[sort]

    def __len__(self) -> int:
        return len(self._sort_of)

    def nodes(self) -> Iterator[UsableNode]:
        for nodes in self._sorts.values():
            yield from nodes.values()

    def sorts(self) -> Iterator[tuple[Sort, Mapping[str, UsableNode]]]:
        """Yield each sort with its nodes by name."""
        yield from self._sorts.items()

    def named(self, name: str) -> UsableNode | None:
        sort = self._sort_of.get(name)
        return None if sort is None else self._sorts[sort][name]


def _sort(node: UsableNode, traits: NodeTraits | None) -> Sort:
    zones = () if node.zones is None else tuple(tuple(sorted(zone.items())) for zone in node.zones.free)
    return Sort(
        traits,
        node.taints,
        node.path,
        tuple(sorted(node.free.items())),
        tuple(sorted(node.allocatable.items())),
        zones,
        node.is_occupied,
        node.has_members,
    )
