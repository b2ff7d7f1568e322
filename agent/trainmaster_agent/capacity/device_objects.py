"""Parsed objects of Dynamic Resource Allocation (resource.k8s.io/v1): DeviceClasses, ResourceSlices and ResourceClaims. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmaster.protocol.device_claims import device_resource
from trainmaster_agent.capacity.device_selectors import DeviceValue, device_value, scaled_quantity

_CLOSING = ("NoSchedule", "NoExecute")
_EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that kube-scheduler makes for extended resources in a pod's requests (KEP-5004)."""

PoolKey = tuple[str, str]
"""Driver and name of a pool."""
Counter = tuple[str, str]
"""Set of counters in a pool, and a counter of it."""


class Device(NamedTuple):
    """A device of a slice. ``node``: the only node that can use it; None: several nodes can."""

    name: str
    node: str | None
    value: DeviceValue
    is_closed: bool
    """Whether it has a taint with which nothing new is allocated."""
    is_divided: bool
    """Whether several claims may share it by its capacity (``allowMultipleAllocations``)."""
    consumes: tuple[tuple[Counter, int], ...]
    """What it takes of counters that it shares with other devices, in thousandths."""


class DeviceSlice(NamedTuple):
    """A ResourceSlice. ``many``: the slices that its generation of the pool has."""

    name: str
    pool: PoolKey
    generation: int
    many: int
    devices: tuple[Device, ...]
    counters: Mapping[Counter, int]


class DeviceClass(NamedTuple):
    """A DeviceClass. ``extended``: the extended resource name of its devices; ``age``: later ones of the same name are preferred."""

    name: str
    expressions: tuple[str, ...]
    extended: str
    age: str

    @property
    def implicit(self) -> str:
        return device_resource(self.name)


class Result(NamedTuple):
    """A device that is allocated to a claim. ``device_class``: the class by which the claim requests it; empty: not known."""

    pool: PoolKey
    device: str
    device_class: str


class DeviceClaim(NamedTuple):
    """An allocated ResourceClaim. ``pod``: key of the pod that it was made for; empty: none."""

    pod: str
    is_own: bool
    """Whether it was made for several pods of ours, which share it."""
    is_extended: bool
    """Whether the pod requests the devices as an extended resource."""
    results: tuple[Result, ...]


def read_slice(obj: Mapping[str, Any]) -> DeviceSlice:
    """Parse a ResourceSlice. Raises KeyError, TypeError or ValueError for one that cannot be read."""
    spec = obj["spec"]
    driver, pool = spec["driver"], spec["pool"]
    counters = {
        (one["name"], name): scaled_quantity(str(counter["value"]))
        for one in spec.get("sharedCounters") or ()
        for name, counter in one["counters"].items()
    }
    devices = tuple(_read_device(driver, spec, one) for one in spec.get("devices") or ())
    key = (driver, pool["name"])
    return DeviceSlice(obj["metadata"]["name"], key, pool["generation"], pool["resourceSliceCount"], devices, counters)


def _read_device(driver: str, spec: Mapping[str, Any], device: Mapping[str, Any]) -> Device:
    place = device if spec.get("perDeviceNodeSelection") else spec
    consumes = tuple(
        sorted(
            ((one["counterSet"], name), scaled_quantity(str(counter["value"])))
            for one in device.get("consumesCounters") or ()
            for name, counter in one["counters"].items()
        )
    )
    return Device(
        name=device["name"],
        node=place.get("nodeName") or None,
        value=device_value(driver, device),
        is_closed=any(taint["effect"] in _CLOSING for taint in device.get("taints") or ()),
        is_divided=bool(device.get("allowMultipleAllocations")),
        consumes=consumes,
    )


def read_class(obj: Mapping[str, Any]) -> DeviceClass:
    """Parse a DeviceClass."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    expressions = tuple((one.get("cel") or {}).get("expression", "") for one in spec.get("selectors") or ())
    return DeviceClass(
        metadata["name"], expressions, spec.get("extendedResourceName") or "", metadata.get("creationTimestamp") or ""
    )


def read_claim(obj: Mapping[str, Any], own_label: tuple[str, str]) -> DeviceClaim | None:
    """Parse a ResourceClaim; None for one without devices of its own. ``own_label``: label and value of the objects of our runs."""
    metadata = obj["metadata"]
    results = (((obj.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    requests = ((obj.get("spec") or {}).get("devices") or {}).get("requests") or ()
    classes = {one["name"]: (one.get("exactly") or {}).get("deviceClassName") or "" for one in requests}
    taken = tuple(
        Result((one["driver"], one["pool"]), one["device"], classes.get(one["request"], ""))
        for one in results
        if not one.get("adminAccess")  # it watches devices that others use
    )
    if not taken:
        return None
    pods = [one["name"] for one in metadata.get("ownerReferences") or () if one.get("kind") == "Pod"]
    pod = f"{metadata.get('namespace', 'default')}/{pods[0]}" if len(pods) == 1 else ""
    is_own = not pods and (metadata.get("labels") or {}).get(own_label[0]) == own_label[1]
    return DeviceClaim(pod, is_own, (metadata.get("annotations") or {}).get(_EXTENDED) == "true", taken)
