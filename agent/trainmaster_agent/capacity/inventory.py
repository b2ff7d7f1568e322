"""`Inventory`: the ledger of a cluster, kept up to date by watches, and the capacity report made from it.

A change costs work for the object that changed; a report, for the nodes that changed since the last report and for the groups.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from trainmaster.cluster_model.device_products import PRODUCT_LABELS, VENDOR_PRODUCT_LABELS, product_label
from trainmaster.cluster_model.numa_policies import STRICT_NUMA, is_kept_by
from trainmaster.protocol.agent import ClusterHealth, NodeGroup, OthersUse, Pool, Taint
from trainmaster.protocol.device_parts import DEFAULT_DEVICE
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.device_classes import DeviceLedger
from trainmaster_agent.capacity.groups import OUT, Grid, Grouped, Grouper, NodeTraits, as_group
from trainmaster_agent.capacity.hami_gpus import traits_of_hami
from trainmaster_agent.capacity.hypernodes import HyperNodes
from trainmaster_agent.capacity.node_cache import Host
from trainmaster_agent.capacity.node_index import AllowedNodes, NodeIndex, UsableNode, UsableZones
from trainmaster_agent.capacity.nodes import NodeState
from trainmaster_agent.capacity.others_use import OthersLedger
from trainmaster_agent.capacity.pod_ledger import PodLedger
from trainmaster_agent.capacity.pods import Mark
from trainmaster_agent.capacity.pool_nodes import NodeOffer
from trainmaster_agent.capacity.pool_reports import PoolReports
from trainmaster_agent.capacity.pools import reported
from trainmaster_agent.capacity.shared_gpus import SharedGpus, memory_of, shared_gpus, traits_of_sharing
from trainmaster_agent.capacity.topology import Layout, Path, find_layout
from trainmaster_agent.containment import contain

_LABELS = (
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    *VENDOR_PRODUCT_LABELS,
    "nvidia.com/gpu.memory",
    "amd.com/gpu.vram",
    "gpu.intel.com/memory.max",
    "cloud.google.com/gke-tpu-topology",
)
"""Node labels that are always reported."""

_MOST_NAMES = 10_000


class Kind(StrEnum):
    """Kinds of watched objects, as ``relisted`` names them. Pods and ResourceClaims are keyed by ``namespace/name``, all others by
    their name.
    """

    NODE = "Node"
    POD = "Pod"
    NUMA = "NodeResourceTopology"
    KUEUE_TOPOLOGY = "Topology.kueue.x-k8s.io"
    KAI_TOPOLOGY = "Topology.kai.scheduler"
    HYPER_NODE = "HyperNode"
    RESOURCE_SLICE = "ResourceSlice"
    DEVICE_CLASS = "DeviceClass"
    RESOURCE_CLAIM = "ResourceClaim"
    AUTOSCALER = "ConfigMap"
    """The status of the Cluster Autoscaler."""
    NODE_POOL = "NodePool"


_OF_DEVICES = {
    Kind.DEVICE_CLASS: "DeviceClasses",
    Kind.RESOURCE_CLAIM: "ResourceClaims",
    Kind.RESOURCE_SLICE: "ResourceSlices",
}


class Counts(NamedTuple):
    """Numbers of nodes by state. ``full``: ready, but without a slot for another pod."""

    ready: int
    full: int
    cordoned: int
    not_ready: int
    ignored: int


class Capacity(NamedTuple):
    """The node part of a capacity report."""

    groups: tuple[NodeGroup, ...]
    pools: tuple[Pool, ...]
    not_counted: tuple[str, ...]
    health: ClusterHealth
    others: tuple[OthersUse, ...]
    version: int
    """Rises whenever the content has changed."""


class Inventory(PodLedger):
    """The ledger of one cluster. Takes objects as raw JSON, as watches deliver them."""

    def __init__(
        self, config: CapacityConfig, own_label: tuple[str, str], clock: Callable[[], float] | None = None
    ) -> None:
        """``clock``: seconds of the epoch, by which reports of the autoscaler become too old; None: they never do."""
        super().__init__(config, own_label, clock)
        self._index = NodeIndex(self._describe)
        self.pool_reports = PoolReports(config, clock)
        self._topologies: dict[tuple[Kind, str], dict[str, Any]] = {}
        self._hyper_specs: dict[str, dict[str, Any]] = {}
        self._hyper_nodes: HyperNodes | None = None
        self._listed: set[Kind] = set()
        """Kinds of Dynamic Resource Allocation of which all objects were read once."""
        self._layout = Layout()
        self._shown_labels: tuple[str, ...] = ()
        self._grid = Grid(*config.steps())
        self._grouper = Grouper(self._grid, config.most_groups)
        self._fine = Counter[NodeTraits]()
        self._grouped = Grouped({}, None, ())
        self._shown: dict[NodeTraits, NodeGroup] = {}
        self._last = Capacity((), (), (), ClusterHealth(), (), 0)
        self._others = OthersLedger()
        self.unreadable: set[tuple[Kind, str]] = set()
        """Objects, by kind and name, that could not be parsed; pods are marked instead."""
        self._left_out: set[str] = set()
        """Nodes that cannot be reported."""
        self._unshown = 0
        """Number of nodes whose groups cannot be reported."""
        self._hyper_nodes_error = ""
        self._products: dict[str, tuple[str, str]] = {}
        """By group, earlier reports included: the label that names its device product, and the product."""

    # Topology and devices

    def topology_put(self, kind: Kind, obj: dict[str, Any]) -> None:
        """Take a Topology of Kueue or of KAI."""
        self._topologies[kind, obj["metadata"]["name"]] = obj.get("spec") or {}
        self._layout_is_stale = True

    def topology_drop(self, kind: Kind, name: str) -> None:
        self._layout_is_stale |= self._topologies.pop((kind, name), None) is not None

    def hyper_node_put(self, obj: dict[str, Any]) -> None:
        name, spec = obj["metadata"]["name"], obj.get("spec") or {}
        if self._hyper_specs.get(name) != spec:
            self._hyper_specs[name] = spec
            self._hyper_nodes, self._layout_is_stale = None, True

    def hyper_node_drop(self, name: str) -> None:
        if self._hyper_specs.pop(name, None) is not None:
            self._hyper_nodes, self._layout_is_stale = None, True

    @property
    def devices(self) -> DeviceLedger:
        """The ledger of devices, which takes their objects."""
        return self._devices

    def relisted(self, kind: Kind, keys: Collection[str]) -> None:
        """Drop the objects that are not among ``keys``, after a listing of the kind has been put."""
        held, drop = self._held(kind)
        kept = frozenset(keys)
        for key in [key for key in held if key not in kept]:
            drop(key)
        if kind in _OF_DEVICES:
            self._listed.add(kind)
            # Before all claims are known, devices that others have would be promised.
            self._can_count_devices = self._listed == _OF_DEVICES.keys()

    def _held(self, kind: Kind) -> tuple[Iterable[str], Callable[[str], None]]:
        """Return the keys of the objects of a kind, and what drops one of them."""
        match kind:
            case Kind.NODE:
                return (
                    host.name for host in self._hosts.values() if host.state is not NodeState.UNKNOWN
                ), self.node_drop
            case Kind.POD:
                return {*self._pods, *self._ours}, self.pod_drop
            case Kind.NUMA:
                return (host.name for host in self._hosts.values() if host.zones is not None), self.numa_drop
            case Kind.HYPER_NODE:
                return self._hyper_specs, self.hyper_node_drop
            case Kind.RESOURCE_SLICE:
                return self._devices.slices(), self._devices.slice_drop
            case Kind.DEVICE_CLASS:
                return self._devices.classes(), self._devices.class_drop
            case Kind.RESOURCE_CLAIM:
                return self._devices.claims(), self._devices.claim_drop
            case Kind.AUTOSCALER:
                return self.pool_reports.statuses(), self.pool_reports.status_drop
            case Kind.NODE_POOL:
                return self.pool_reports.node_pools(), self.pool_reports.node_pool_drop
            case Kind.KUEUE_TOPOLOGY | Kind.KAI_TOPOLOGY:
                return (name for of, name in self._topologies if of is kind), partial(self.topology_drop, kind)

    # The report

    def report(self) -> Capacity:
        """Return the current capacity. Only nodes that changed since the last report are read again."""
        self._find_layout()
        self._count_devices()
        is_first = not self._last.version
        is_other = is_first
        for host in self._dirty:
            try:
                is_other |= self._take_in(host)
                self._left_out.discard(host.name)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("report", error, host.name)
                is_other |= self._leave_out(host)
        self._dirty.clear()
        groups = self._last.groups
        if is_other:
            self._grouped = self._grouper.group(self._fine, self._layout.labels)
            groups = self._show(self._grouped.groups)
        pools = self.pool_reports.find(self._pool_nodes, self._shown_labels)
        others = self._others.report() if is_other else self._last.others
        found = groups, reported(pools.pools), (*self._not_counted(), *pools.notes), self._health.report(), others
        if is_first or found != self._last[:-1]:
            self._last = Capacity(*found, self._last.version + 1)
            self._keep_products()
        return self._last

    def _keep_products(self) -> None:
        """Remember each group's products: a group is renamed when its content changes, and runs name the groups of their plan."""
        if len(self._products) > _MOST_NAMES:
            self._products.clear()
        for group in self._last.groups:
            label = product_label(group.labels)
            if label:
                self._products[group.name] = label, group.labels[label]

    @property
    def report_version(self) -> int:
        """Version of the last report; 0 before the first."""
        return self._last.version

    def group_of(self, node: str) -> str | None:
        """Return the node's group in the last report, or None. Valid until the version rises."""
        host = self._hosts.get(node)
        return None if host is None else self._group_named(host.traits)

    def _group_named(self, traits: NodeTraits | None) -> str | None:
        grouped = None if traits is None else self._grouped.group(traits)
        group = None if grouped is None else self._shown.get(grouped)
        return None if group is None else group.name

    def products_of(self, groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return by label the device products of these groups of any report; nothing where every node with devices has them."""
        found, others = dict[str, set[str]](), False
        for name in groups:
            known = self._products.get(name)
            if known is not None:
                found.setdefault(known[0], set()).add(known[1])
        for group in self._last.groups:
            names = [(label, group.labels[label]) for label in PRODUCT_LABELS if label in group.labels]
            others |= bool(names) and all(value not in found.get(label, ()) for label, value in names)
        return {label: tuple(sorted(values)) for label, values in found.items()} if others else {}

    def standing(self) -> Iterator[UsableNode]:
        """Yield the nodes that take members, as they are now."""
        yield from self._indexed().nodes()

    def sorts(self) -> Iterator[tuple[str | None, Mapping[str, UsableNode]]]:
        """Yield the nodes that take members, by name, those with the same capacity and taints in the same place together, and their
        group in the last report.
        """
        for sort, nodes in self._indexed().sorts():
            yield self._group_named(sort.traits), nodes

    def usable(self, node: str) -> UsableNode | None:
        """Return a node that takes members."""
        return self._indexed().named(node)

    def _indexed(self) -> NodeIndex:
        self._find_layout()
        self._count_devices()
        changed, self._dirty.unindexed = self._dirty.unindexed, set()
        for name in changed:
            self._index.put(name, self._hosts.get(name))
        return self._index

    def _describe(self, host: Host) -> UsableNode | None:
        if not host.is_offered:
            return None
        labels = host.labels
        taints = tuple(Taint(key=key, value=value, effect=effect) for key, value, effect in host.taints)
        path = self._layout.path(host.name, labels)
        allocatable = {name: max(0, amount) for name, amount in host.free()} | {"pods": host.slots}
        allocatable |= host.thousandths(now=False)
        return UsableNode(
            host.name,
            labels,
            taints,
            path,
            host.free_now(),
            allocatable,
            _usable_zones(host),
            host.is_occupied,
            host.own_pods > 0,
        )

    @property
    def node_count(self) -> int:
        """Return the number of nodes that take members."""
        return len(self._indexed())

    def labels_of(self, node: str) -> dict[str, str]:
        """Return all labels of a node; nothing for a node that does not exist."""
        host = self._hosts.get(node)
        return {} if host is None else host.labels

    def nodes_enforcing(self, numa: str) -> list[str] | None:
        """Return the nodes, also those that take no members now, whose kubelets hold members to the NUMA policy ``numa``; None where
        all nodes do, or none reports a policy.
        """
        hosts = [host for host in self._hosts.values() if host.state not in (NodeState.IGNORED, NodeState.UNKNOWN)]
        found = [host.name for host in hosts if host.zones is not None and is_kept_by(numa, host.zones.policy)]
        is_known = any(host.zones is not None for host in hosts)
        return sorted(found) if is_known and len(found) < len(hosts) else None

    def nodes_of_level(self, level: str) -> AllowedNodes | None:
        """Return the nodes that have a domain of a level where others with its label have none; None where the label says it."""
        self._find_layout()
        found = next((one for one in self._layout.levels if one.name == level and one.of_slices), None)
        if found is None:
            return None
        domains = {found.domain(host.labels) for host in self._hosts.values()} - {""}
        return AllowedNodes(found.label, tuple(sorted(domains)))

    def level_labels(self) -> dict[str, str]:
        """Return the node label of each topology level; nothing where HyperNodes define the levels."""
        self._find_layout()
        return {level.name: level.label for level in self._layout.levels}

    def counts(self) -> Counts:
        states = Counter(host.state for host in self._hosts.values())
        offered = sum(host.is_offered for host in self._hosts.values())
        return Counts(
            ready=offered,
            full=states[NodeState.READY] - offered,
            cordoned=states[NodeState.CORDONED],
            not_ready=states[NodeState.NOT_READY],
            ignored=states[NodeState.IGNORED],
        )

    def has_pools(self) -> bool:
        """Return whether there are pools, as of the last report, by which an autoscaler may add nodes."""
        return bool(self._config.scale_pools or self._last.pools)

    # Inside

    def _find_layout(self) -> None:
        if not self._layout_is_stale:
            return
        self._layout_is_stale = False
        if self._hyper_specs and self._hyper_nodes is None:
            try:
                self._hyper_nodes = HyperNodes(self._hyper_specs)
                self._hyper_nodes_error = ""
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                self._hyper_nodes_error = contain("hyper-nodes", error)
        present = {key for keys in self._label_keys for key in keys}
        topologies = {f"{name} {kind}": spec for (kind, name), spec in self._topologies.items()}
        layout = find_layout(self._config.levels, topologies, self._hyper_nodes, present)
        if layout != self._layout or not self._shown_labels:
            self._layout = layout
            self._shown_labels = tuple(sorted({*_LABELS, *self._config.labels, *layout.labels}))
            for host in self._hosts.values():
                host.face = None
            self._dirty.update(self._hosts.values())

    def _take_in(self, host: Host) -> bool:
        """Count a node in the group of its current traits; return whether it was in another group before."""
        if host.state is NodeState.UNKNOWN and not host.pods and host.zones is None:
            del self._hosts[host.name]
        if self.pool_reports.concerns(host.name, host.label_keys):
            self.pool_reports.node_put(host.name, host.labels, self._offer(host))
        return self._count_as(host, self._traits(host))

    def _offer(self, host: Host) -> NodeOffer | None:
        """Return what another node like this one would offer; None for a node by which that cannot be told."""
        if host.state not in (NodeState.READY, NodeState.CORDONED):
            return None
        labels, _ = self._face(host)
        return NodeOffer(self._grid.floored(host.free_when_new()), labels, host.taints)

    def _leave_out(self, host: Host) -> bool:
        """Count a node in no group, as it cannot be parsed."""
        self.pool_reports.node_put(host.name, {}, None)
        self._left_out.add(host.name)
        return self._count_as(host, None)

    def _count_as(self, host: Host, now: NodeTraits | None) -> bool:
        before = host.traits
        if now == before:
            return False
        self._others.put(host.name, host.allocatable, now)
        if before is not None:
            self._fine[before] -= 1
            if not self._fine[before]:
                del self._fine[before]
        if now is not None:
            self._fine[now] += 1
        host.traits = now
        self._dirty.unindexed.add(host.name)
        return True

    def _traits(self, host: Host) -> NodeTraits | None:
        labels, topology = self._face(host)
        if not host.is_offered:
            # What our own members have there must not be taken off other nodes, so there is a group for it, with nothing free.
            product = tuple(pair for pair in labels if pair[0] in PRODUCT_LABELS)
            return NodeTraits(product, (OUT,), (), (), None) if host.own_pods else None
        numa = None
        if host.zones is not None:
            policy = host.zones.policy
            # Only then does it matter what each zone has free.
            zones = host.zones_free() if policy in STRICT_NUMA else ()
            numa = (policy, tuple(sorted(self._grid.floored(zone) for zone in zones)))
        shares = [(pod.share, bool(pod.mark & Mark.OWN)) for pod in host.sharers if pod.share is not None]
        shared = shared_gpus(shares, memory_of(host.labels)) if shares else SharedGpus()
        sharing = traits_of_sharing(self.gpu_parts, dict(host.allocatable), host.labels, shared)
        if host.hami_gpus:
            sharing = traits_of_hami(host.hami_gpus, host.foreign_taken())
        free = host.free()
        if shared.ours:
            # The pods by which KAI holds these GPUs are not ours, but those for which it does are.
            free = tuple([(name, amount + shared.ours * (name == DEFAULT_DEVICE)) for name, amount in free])
        return NodeTraits(
            labels, host.taints, topology, self._grid.floored(free), numa, sharing, host.foreign_pods > shared.ours
        )

    def _face(self, host: Host) -> tuple[tuple[tuple[str, str], ...], Path]:
        if host.face is None:
            labels = host.labels
            shown = tuple([(key, labels[key]) for key in self._shown_labels if key in labels])
            host.face = self._one((shown, self._layout.path(host.name, labels)))
        return host.face

    def _show(self, groups: Mapping[NodeTraits, int]) -> tuple[NodeGroup, ...]:
        before, self._shown = self._shown, {}
        self._unshown = 0
        for traits, count in groups.items():
            group = before.get(traits)
            if group is None:
                try:
                    group = as_group(traits, count)
                except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                    contain("group", error)
                    self._unshown += count
                    continue
            elif group.count != count:
                group = group.model_copy(update={"count": count})
            self._shown[traits] = group
        return tuple(sorted(self._shown.values(), key=attrgetter("name")))

    def _not_counted(self) -> tuple[str, ...]:
        notes = list(self._grouped.notes)
        if self._can_count_devices:
            notes += self._devices.notes()
        elif self._devices.slices():
            missing = " and ".join(plural for kind, plural in _OF_DEVICES.items() if kind not in self._listed)
            notes.append(f"devices of ResourceSlices (DRA), while {missing} cannot be read")
        if self._mixed_mig:
            notes.append("MIG devices other than those that GPUs are divided into now")
        if self._marked[Mark.SHARES]:
            notes.append("parts of GPUs that other pods share (KAI gpu-fraction and gpu-memory, HAMi, Volcano vGPU)")
        if self._unregistered:
            many, one = len(self._unregistered), min(self._unregistered)
            notes.append(f"GPUs of {many} nodes that have not registered them with HAMi, such as {one}")
        if self.unreadable:
            kind, name = min(self.unreadable)
            notes.append(f"{len(self.unreadable)} objects that cannot be read, such as {kind} {name}")
        if self._left_out:
            notes.append(f"{len(self._left_out)} nodes that cannot be read, such as {min(self._left_out)}")
        if self._unshown:
            notes.append(f"{self._unshown} nodes of groups that cannot be reported")
        if self._hyper_nodes_error:
            notes.append(f"HyperNodes, which cannot be read: {self._hyper_nodes_error}")
        if self._marked[Mark.UNREADABLE]:
            notes.append(f"requests that cannot be read, of pods such as {min(self._marked[Mark.UNREADABLE])}")
        return tuple(notes)


def _usable_zones(host: Host) -> UsableZones | None:
    if host.zones is None or host.zones.policy not in STRICT_NUMA:
        return None
    return UsableZones(host.zones.policy, tuple(dict(zone) for zone in host.zones_free()), host.zones_now())
