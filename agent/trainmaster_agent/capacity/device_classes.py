"""`DeviceLedger`: the devices of each class on each node, from the objects of Dynamic Resource Allocation. Pure.

The devices of a class are counted as the extended resources by which pods may request them (KEP-5004). A device may have several
classes and so several names: what is allocated under one of them is missing from the others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.device_objects import (
    Counter,
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceSlice,
    PoolKey,
    Result,
    read_claim,
    read_class,
    read_slice,
)
from trainmaster_agent.capacity.device_selectors import SelectorError, selector_of

OwnRequests = Callable[[str], Resources | None]
"""Returns the requests of a pod of ours by its key; None for a pod of others, or one that does not exist."""

_MOST_NAMED = 5


class NodeDevices(NamedTuple):
    """Devices of a node by resource name. ``usable``: beside those that others use; ``own``: of these, what our own pods use."""

    usable: tuple[tuple[str, int], ...]
    own: tuple[tuple[str, int], ...]


NO_DEVICES = NodeDevices((), ())


def further(left: Mapping[Counter, int], devices: Iterable[Device]) -> int:
    """Return how many of these devices can be allocated one after the other with the counters that are left.

    Takes the device with the smallest part of the counters first. With several counters there may be a larger set of devices.
    """
    remaining = dict(left)
    found = 0
    for device in sorted(devices, key=lambda one: (_share(left, one.consumes), one.name)):
        if all(remaining.get(counter, 0) >= amount for counter, amount in device.consumes):
            found += 1
            for counter, amount in device.consumes:
                remaining[counter] = remaining.get(counter, 0) - amount
    return found


def _share(left: Mapping[Counter, int], consumes: tuple[tuple[Counter, int], ...]) -> float:
    return max((amount / max(1, left.get(counter, 0)) for counter, amount in consumes), default=0.0)


class DeviceLedger:
    """Counts again only the nodes whose devices may have changed. Takes objects as raw JSON, as watches deliver them.

    ``own_label``: label and value of the objects of our runs.
    """

    def __init__(self, own_label: tuple[str, str]) -> None:
        self._own_label = own_label
        self._slices: dict[str, DeviceSlice] = {}
        self._pools: dict[PoolKey, set[str]] = defaultdict(set)
        self._on_node: dict[str, set[PoolKey]] = defaultdict(set)
        """Pools whose slices have devices of the node, of any generation."""
        self._classes: dict[str, DeviceClass] = {}
        self._matching: dict[str, dict[str, frozenset[str]]] = {}
        """By class and slice: names of the devices that satisfy the class."""
        self._failures: dict[str, dict[str, str]] = {}
        """By class and slice: why devices cannot be compared with the class; without a slice, why nothing can."""
        self._claims: dict[str, DeviceClaim] = {}
        self._taken: dict[PoolKey, dict[str, dict[str, Result]]] = defaultdict(lambda: defaultdict(dict))
        """By pool, device and key of a claim."""
        self._of_pod: dict[str, set[str]] = defaultdict(set)
        self._ours: dict[str, Resources] = {}
        """By key of a claim that was made for a pod of ours: the pod's requests. A claim outlives its pod for some seconds, and then
        its devices are about to be free."""
        self._dirty: set[str] = set()
        self._notes: tuple[str, ...] | None = None

    # Objects

    def slice_put(self, obj: Mapping[str, Any]) -> None:
        """Take a ResourceSlice. Raises KeyError, TypeError or ValueError for one that cannot be read."""
        found = read_slice(obj)
        self.slice_drop(found.name)
        self._notes = None
        self._slices[found.name] = found
        self._pools[found.pool].add(found.name)
        for node in {one.node for one in found.devices if one.node is not None}:
            self._on_node[node].add(found.pool)
        for one in self._classes.values():
            self._compare(one, found)
        self._touch(found.pool)

    def slice_drop(self, name: str) -> None:
        found = self._slices.get(name)
        if found is None:
            return
        self._touch(found.pool)
        self._notes = None
        del self._slices[name]
        self._pools[found.pool].discard(name)
        if not self._pools[found.pool]:
            del self._pools[found.pool]
        for node in {one.node for one in found.devices if one.node is not None}:
            others = (self._slices[one] for one in self._pools.get(found.pool, ()))
            if not any(device.node == node for one in others for device in one.devices):
                self._on_node[node].discard(found.pool)
        for matching in self._matching.values():
            matching.pop(name, None)
        for device_class in list(self._failures):
            self._forget_failure(device_class, name)

    def slices(self) -> tuple[str, ...]:
        return tuple(self._slices)

    def class_put(self, obj: Mapping[str, Any]) -> None:
        """Take a DeviceClass."""
        found = read_class(obj)
        if self._classes.get(found.name) == found:
            return
        self.class_drop(found.name)
        self._notes = None
        self._classes[found.name] = found
        self._matching[found.name] = {}
        self._dirty |= self._on_node.keys()
        try:
            for expression in found.expressions:
                selector_of(expression)
        except SelectorError as error:
            self._failures[found.name] = {"": str(error)}
            return
        for one in self._slices.values():
            self._compare(found, one)

    def class_drop(self, name: str) -> None:
        if self._classes.pop(name, None) is not None:
            self._notes = None
            self._matching.pop(name, None)
            self._failures.pop(name, None)
            self._dirty |= self._on_node.keys()

    def classes(self) -> tuple[str, ...]:
        return tuple(self._classes)

    def claim_put(self, obj: Mapping[str, Any]) -> None:
        """Take a ResourceClaim. Raises KeyError or TypeError for one that cannot be read."""
        key = f"{obj['metadata'].get('namespace', 'default')}/{obj['metadata']['name']}"
        found = read_claim(obj, self._own_label)
        if self._claims.get(key) == found:
            return
        self.claim_drop(key)
        if found is None:
            return
        self._claims[key] = found
        if found.pod:
            self._of_pod[found.pod].add(key)
        for one in found.results:
            self._taken[one.pool][one.device][key] = one
        self._touch_claim(found)

    def claim_drop(self, key: str) -> None:
        found = self._claims.pop(key, None)
        if found is None:
            return
        self._touch_claim(found)
        self._ours.pop(key, None)
        if found.pod:
            self._of_pod[found.pod].discard(key)
            if not self._of_pod[found.pod]:
                del self._of_pod[found.pod]
        for one in found.results:
            taken = self._taken[one.pool][one.device]
            taken.pop(key, None)
            if not taken:
                del self._taken[one.pool][one.device]

    def claims(self) -> tuple[str, ...]:
        return tuple(self._claims)

    def pod_changed(self, key: str) -> None:
        """Note a new pod of ours: the devices of its claims do not count as others'."""
        for claim in self._of_pod.get(key, ()):
            self._touch_claim(self._claims[claim])

    # Counting

    def touch(self, node: str) -> None:
        """Have a node counted that has joined."""
        if node in self._on_node:
            self._dirty.add(node)

    def changed_nodes(self) -> set[str]:
        """Return the nodes whose devices may have changed since the last call."""
        found, self._dirty = self._dirty, set()
        return found

    def on_node(self, node: str, own: OwnRequests) -> NodeDevices:
        """Count the devices of a node."""
        pools = [(key, current) for key in sorted(self._on_node.get(node, ())) if (current := self._current(key))]
        if not pools:
            return NO_DEVICES
        usable: Resources = {}
        used: Resources = {}
        for device_class in self._countable():
            for name in self._names(device_class):
                is_there, of_own, more = False, 0, 0
                for key, slices in pools:
                    found = self._count(node, key, slices, device_class, name, own)
                    is_there |= found[0]
                    of_own += found[1]
                    more += found[2]
                if is_there:
                    usable[name] = of_own + more
                    if of_own:
                        used[name] = of_own
        return NodeDevices(tuple(sorted(usable.items())), tuple(sorted(used.items())))

    def _count(
        self,
        node: str,
        key: PoolKey,
        slices: list[DeviceSlice],
        device_class: DeviceClass,
        name: str,
        own: OwnRequests,
    ) -> tuple[bool, int, int]:
        """Return whether a pool has devices of the class on the node, how many our own pods use under the name, and how many more
        can be allocated.
        """
        taken = self._taken.get(key, {})
        here = [one for of in slices for one in of.devices if one.node == node and not one.is_divided]
        matching = self._matching[device_class.name]
        of_class = {one for of in slices for one in matching.get(of.name, ())}
        of_own = sum(self._is_own(taken.get(one.name, {}), name, own) for one in here)
        eligible = [one for one in here if one.name in of_class]
        free = [one for one in eligible if not one.is_closed and one.name not in taken]
        left: dict[Counter, int] = {}
        if any(one.consumes for one in free):
            left = {counter: amount for of in slices for counter, amount in of.counters.items()}
            for one in (device for of in slices for device in of.devices if device.name in taken):
                for counter, amount in one.consumes:
                    left[counter] = left.get(counter, 0) - amount
        return bool(eligible) or bool(of_own), of_own, further(left, free)

    def _is_own(self, taken: Mapping[str, Result], name: str, own: OwnRequests) -> bool:
        """Return whether one of our own pods has a device under this name."""
        for key, result in taken.items():
            claim = self._claims[key]
            if claim.is_own:
                if self._name_of(claim, result, {}) == name:
                    return True
                continue
            requests = own(claim.pod) if claim.pod else None
            if requests is None:
                requests = self._ours.get(key)
            else:
                self._ours[key] = requests
            if requests is not None and self._name_of(claim, result, requests) == name:
                return True
        return False

    def _name_of(self, claim: DeviceClaim, result: Result, requests: Resources) -> str | None:
        """Return the name under which a pod requests a device; None if that is not known, so that it counts under no name."""
        found = self._classes.get(result.device_class)
        if found is None:
            return None
        if not claim.is_extended:
            return found.implicit
        named = [name for name in (found.implicit, found.extended) if name and name in requests]
        return named[0] if len(named) == 1 else None

    def _countable(self) -> Iterator[DeviceClass]:
        for name, found in sorted(self._classes.items()):
            if not self._failures.get(name):
                yield found

    def _names(self, device_class: DeviceClass) -> Iterator[str]:
        yield device_class.implicit
        extended = device_class.extended
        if extended:
            # As kube-scheduler: of several classes with one name, the latest; of equally old ones, the first by name.
            same = [one for one in self._classes.values() if one.extended == extended]
            latest = max(one.age for one in same)
            if device_class.name == min(one.name for one in same if one.age == latest):
                yield extended

    def _current(self, key: PoolKey) -> list[DeviceSlice] | None:
        """Return the slices of the newest generation of a pool; None while some of them are missing."""
        slices = [self._slices[name] for name in sorted(self._pools.get(key, ()))]
        if not slices:
            return None
        newest = max(one.generation for one in slices)
        current = [one for one in slices if one.generation == newest]
        return current if len(current) == current[0].many else None

    def _compare(self, device_class: DeviceClass, of: DeviceSlice) -> None:
        if "" in self._failures.get(device_class.name, {}):
            return
        selectors = [selector_of(one) for one in device_class.expressions]
        try:
            matching = frozenset(
                one.name for one in of.devices if all(selector.matches(one.value) for selector in selectors)
            )
        except SelectorError as error:
            failures = self._failures.setdefault(device_class.name, {})
            if not failures:
                self._dirty |= self._on_node.keys()
            failures[of.name] = str(error)
            self._matching[device_class.name].pop(of.name, None)
            return
        self._matching[device_class.name][of.name] = matching
        self._forget_failure(device_class.name, of.name)

    def _forget_failure(self, device_class: str, of: str) -> None:
        failures = self._failures.get(device_class, {})
        if failures.pop(of, None) is not None and not failures:
            self._dirty |= self._on_node.keys()

    def _touch(self, pool: PoolKey) -> None:
        self._dirty |= {
            device.node
            for name in self._pools.get(pool, ())
            for device in self._slices[name].devices
            if device.node is not None
        }

    def _touch_claim(self, claim: DeviceClaim) -> None:
        for pool in {one.pool for one in claim.results}:
            self._touch(pool)

    # Notes

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on each sort of devices that is not counted."""
        if self._notes is None:
            self._notes = self._make_notes()
        return self._notes

    def _make_notes(self) -> tuple[str, ...]:
        out = [
            f"devices of DeviceClass {name}: its selectors cannot be evaluated: {min(failures.values())}"
            for name, failures in sorted(self._failures.items())
            if failures
        ]
        shared, divided, incomplete = set(), set(), set()
        for key in self._pools:
            current = self._current(key)
            if current is None:
                incomplete.add("/".join(key))
                continue
            devices = [one for of in current for one in of.devices]
            if any(one.node is None for one in devices):
                shared.add(key[0])
            if any(one.is_divided for one in devices):
                divided.add(key[0])
        if shared:
            out.append(f"devices of ResourceSlices that several nodes share, of {_listed(shared)}")
        if divided:
            out.append(
                f"devices that several claims share by their capacity (allowMultipleAllocations), of {_listed(divided)}"
            )
        if incomplete:
            out.append(f"devices of pools of which ResourceSlices are missing: {_listed(incomplete)}")
        if self._slices and not self._classes:
            drivers = {one.pool[0] for one in self._slices.values()}
            out.append(f"devices of ResourceSlices (DRA) without a DeviceClass: {_listed(drivers)}")
        return tuple(out)


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join((*found[:_MOST_NAMED], *(("...",) if len(found) > _MOST_NAMED else ())))
