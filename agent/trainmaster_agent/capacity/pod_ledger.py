"""`PodLedger`: nodes, the pods bound to them, and the sums of what pods take from each node."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from trainmaster.protocol.device_parts import DEFAULT_DEVICE
from trainmaster.protocol.hami_requests import is_hami_part
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.cluster_health import ClusterHealthLedger
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.device_classes import DeviceLedger, NodeDevices
from trainmaster_agent.capacity.hami_gpus import (
    HamiGpu,
    Taken,
    offered,
    registered_gpus,
    requests_beside,
    taken_gpus,
)
from trainmaster_agent.capacity.node_cache import BoundPod, Host
from trainmaster_agent.capacity.node_index import ChangedHosts
from trainmaster_agent.capacity.nodes import Amounts, NodeFacts, NodeState, read_node, read_zones
from trainmaster_agent.capacity.pods import Mark, node_of, read_pod
from trainmaster_agent.capacity.shared_gpus import RENAMED, GpuParts, GpuSharing, read_share

_MIG_STRATEGY = ("nvidia.com/mig.strategy", "mixed")

_MOST_ONCE = 20_000
"""The most interned values; beyond that all are dropped, which costs only memory."""

_T = TypeVar("_T")


class PodLedger:
    """Caches only what counts of each object. ``own_label``: label and value on the pods of our own members."""

    def __init__(
        self, config: CapacityConfig, own_label: tuple[str, str], clock: Callable[[], float] | None = None
    ) -> None:
        self._config = config
        self._health = ClusterHealthLedger(clock or (lambda: 0.0))
        self._own_label = own_label
        self._hosts: dict[str, Host] = {}
        self._dirty = ChangedHosts()
        """Nodes that changed since the last report."""
        self._pods: dict[str, BoundPod] = {}
        self._ours: dict[str, Resources] = {}
        """Requests of all pods of ours, bound or not: their claims have devices before they are bound and after they have ended."""
        self._devices = DeviceLedger(own_label)
        self._can_count_devices = False
        self._marked: dict[Mark, set[str]] = {Mark.SHARES: set(), Mark.UNREADABLE: set()}
        """Foreign pods that cannot be counted exactly."""
        self._label_keys = Counter[tuple[str, ...]]()
        """Number of nodes with each label."""
        self._layout_is_stale = True
        self._pool_nodes = Counter[str]()
        self._mixed_mig: set[str] = set()
        self._renamed: set[str] = set()
        """Nodes that offer replicas of GPUs as a resource of their own."""
        self._unregistered: set[str] = set()
        """Nodes that offer GPUs which HAMi does not know, where HAMi gives GPUs."""
        self._hami_memory: dict[str, int] = {}
        """By node, the bytes of memory of the largest GPU that HAMi divides."""
        self._once: dict[Any, Any] = {}

    def free_now(self, node: str) -> Resources:
        """Return what a node has left for pods now, our own members subtracted too; ``pods`` is one of the amounts.

        Exact, not rounded down. Empty for a node that takes no members.
        """
        self._count_devices()
        host = self._hosts.get(node)
        return host.free_now() if host is not None and host.is_offered else {}

    # Nodes

    def node_put(self, obj: dict[str, Any]) -> None:
        facts = read_node(obj, self._config.ignore_taints)
        ignored = self._config.ignore_nodes
        state = NodeState.IGNORED if ignored is not None and ignored.holds(facts.labels) else facts.state
        host = self._host(obj["metadata"]["name"])
        self._relabel(host, facts.labels)
        allocatable, gpus = facts.allocatable, host.hami_gpus
        if self._config.gpu_sharing is GpuSharing.HAMI:
            allocatable, gpus = self._hami_node(obj, facts)
        self._health.put(host.name, state, facts.device_error)
        now = (state, facts.taints, allocatable, facts.slots, gpus)
        if now != (host.state, host.taints, host.allocatable, host.slots, host.hami_gpus):
            host.state, host.slots = state, facts.slots
            host.taints, host.allocatable = self._one(facts.taints), self._one(allocatable)
            host.hami_gpus = self._one(gpus)
            self._dirty.add(host)
            self._note_replicas(host)

    def node_drop(self, name: str) -> None:
        self._health.drop(name)
        host = self._hosts.get(name)
        if host is not None:
            self._relabel(host, {})
            host.state, host.taints, host.allocatable, host.slots = NodeState.UNKNOWN, (), (), 0
            host.hami_gpus = ()
            self._unregistered.discard(name)
            self._hami_memory.pop(name, None)
            self._dirty.add(host)
            self._note_replicas(host)

    def _hami_node(self, obj: dict[str, Any], facts: NodeFacts) -> tuple[Amounts, tuple[HamiGpu, ...]]:
        """Return the allocatable amounts of a node, and its GPUs, where HAMi gives GPUs: no others can be had."""
        name = obj["metadata"]["name"]
        try:
            found = registered_gpus(obj)
        except ValueError:
            found = None
        has_plugin = any(resource == DEFAULT_DEVICE for resource, _ in facts.allocatable)
        if found is None and has_plugin:
            self._unregistered.add(name)
        else:
            self._unregistered.discard(name)
        gpus = found if found and has_plugin else ()
        self._hami_memory.pop(name, None)
        if gpus:
            self._hami_memory[name] = max(gpu.memory for gpu in gpus) * 2**20
        return offered(facts.allocatable, gpus), gpus

    def _note_replicas(self, host: Host) -> None:
        """Note whether a node offers replicas of GPUs as a resource of their own. If it is the first or last, all are read again."""
        had_any = bool(self._renamed)
        if any(name == RENAMED for name, _ in host.allocatable):
            self._renamed.add(host.name)
        else:
            self._renamed.discard(host.name)
        if bool(self._renamed) != had_any:
            self._dirty.update(self._hosts.values())

    @property
    def gpu_parts(self) -> GpuParts:
        """Return the way in which this cluster gives pods parts of GPUs."""
        memory = max(self._hami_memory.values(), default=0)
        return GpuParts(self._config.gpu_sharing, RENAMED if self._renamed else DEFAULT_DEVICE, memory)

    def numa_put(self, obj: dict[str, Any]) -> None:
        """Take a NodeResourceTopology; it has the name of its node."""
        self._set_zones(self._host(obj["metadata"]["name"]), obj)

    def numa_drop(self, name: str) -> None:
        if name in self._hosts:
            self._set_zones(self._hosts[name], None)

    def _set_zones(self, host: Host, obj: dict[str, Any] | None) -> None:
        zones = None if obj is None else read_zones(obj)
        if zones != host.zones or host.unreported:
            host.unreported = {}
            host.zones = zones
            self._dirty.add(host)

    # Pods

    def pod_put(self, obj: dict[str, Any]) -> None:
        metadata = obj["metadata"]
        key = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        node = node_of(obj)
        is_own = (metadata.get("labels") or {}).get(self._own_label[0]) == self._own_label[1]
        if node is None and not is_own:
            self.pod_drop(key)
            return
        requests, mark = read_pod(obj, self._own_label)
        share = None
        if self._config.gpu_sharing is GpuSharing.KAI:
            share = read_share(obj)
            mark &= ~Mark.SHARES
        taken: tuple[Taken, ...] = ()
        if self._config.gpu_sharing is GpuSharing.HAMI:
            requests, mark, taken = self._hami_pod(obj, requests, mark)
        if is_own and key not in self._ours:
            self._ours[key] = dict(requests)
            self._devices.pod_changed(key)
        before = self._pods.get(key)
        if before is not None:
            known = before.mark, before.requests, before.share, before.taken, before.host.name
            if known == (mark, requests, share, taken, node):
                return
            self._unbind(key)
        if node is None:
            return
        host = self._host(node)
        pod = self._pods[key] = BoundPod(host, self._one(requests), mark, share, taken)
        host.add(pod)
        self._dirty.add(host)
        for one, keys in self._marked.items():
            if mark & one and not mark & Mark.OWN:
                keys.add(key)

    def _hami_pod(self, obj: dict[str, Any], requests: Amounts, mark: Mark) -> tuple[Amounts, Mark, tuple[Taken, ...]]:
        """Return the requests of a pod beside those that HAMi counts, its marks, and what it has of GPUs by HAMi."""
        mark &= ~Mark.SHARES
        try:
            taken = taken_gpus(obj)
        except ValueError:
            taken, mark = (), mark | Mark.SHARES
        left = requests_beside(requests, taken, is_own=bool(mark & Mark.OWN), is_part=is_hami_part(dict(requests)))
        return left, mark, taken

    def pod_unreadable(self, obj: dict[str, Any]) -> None:
        """Count a pod that ``pod_put`` could not parse: it occupies a slot of its node, and its requests are unknown."""
        metadata, spec = obj["metadata"], obj.get("spec")
        key = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        self.pod_drop(key)
        node = spec.get("nodeName") if isinstance(spec, dict) else None
        if isinstance(node, str) and node:
            host = self._host(node)
            pod = self._pods[key] = BoundPod(host, (), Mark.UNREADABLE)
            host.add(pod)
            self._dirty.add(host)
            self._marked[Mark.UNREADABLE].add(key)

    def pod_drop(self, key: str) -> None:
        """Drop a pod by its key ``namespace/name``."""
        self._ours.pop(key, None)
        self._unbind(key)

    def _unbind(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            pod.host.add(pod, -1)
            self._dirty.add(pod.host)
            for keys in self._marked.values():
                keys.discard(key)

    # Inside

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
            self._dirty.add(host)
            self._devices.touch(name)
        return host

    def _count_devices(self) -> None:
        """Count the devices of nodes where they may have changed."""
        if not self._can_count_devices:
            return
        for node in self._devices.changed_nodes():
            host = self._hosts.get(node)
            if host is None:
                continue  # it is counted once it exists
            found = self._devices.on_node(node, self._ours.get)
            if found != host.devices:
                host.devices = NodeDevices(self._one(found.usable), self._one(found.own))
                self._dirty.add(host)

    def _relabel(self, host: Host, labels: dict[str, str]) -> None:
        keys, values = tuple(labels), tuple(labels.values())
        if (keys, values) == (host.label_keys, host.label_values):
            return
        before = host.labels
        if keys != host.label_keys:
            self._count_keys(host.label_keys, -1)
            host.label_keys = self._one(tuple([sys.intern(key) for key in keys]))
            self._count_keys(host.label_keys, 1)
        host.label_values = tuple([sys.intern(value) for value in values])
        for pool in self._config.scale_pools:
            wanted = pool.labels.items()
            self._pool_nodes[pool.name] += (labels.items() >= wanted) - (before.items() >= wanted)
        if labels.get(_MIG_STRATEGY[0]) == _MIG_STRATEGY[1]:
            self._mixed_mig.add(host.name)
        else:
            self._mixed_mig.discard(host.name)
        host.face = None
        self._dirty.add(host)

    def _count_keys(self, keys: tuple[str, ...], sign: int) -> None:
        if not keys:
            return
        self._label_keys[keys] += sign
        if not self._label_keys[keys]:
            del self._label_keys[keys]
            self._layout_is_stale = True
        elif self._label_keys[keys] == sign:
            self._layout_is_stale = True

    def _one(self, value: _T) -> _T:
        """Return one shared object for all equal values."""
        if len(self._once) > _MOST_ONCE:
            self._once.clear()
        found: _T = self._once.setdefault(value, value)
        return found
