"""Manifests of pods that get a part of a GPU. Pure."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.device_parts import DEFAULT_DEVICE, WHOLE, device_of, is_memory_part, is_part
from trainmaster.protocol.hami_requests import CORES, HAMI_RESOURCES, MEMORY, PERCENTAGE, requested
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.shared_gpus import REPLICAS_LABEL, GpuParts, GpuSharing
from trainmaster_agent.placement.manifests import annotate

_CONTAINER = "gpu-fraction-container-name"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_BINPACK = {"hami.io/gpu-scheduler-policy": "binpack"}
"""HAMi spreads pods over GPUs by default, which leaves no whole ones."""
_MIB = 2**20
_PERCENT = WHOLE // 100


def hand_over(parts: GpuParts, pod: dict[str, Any], needs: Resources) -> None:
    """Add to a pod what gives it the part of a GPU that is among its needs, or, by HAMi, whole ones."""
    part = next(((name, amount) for name, amount in needs.items() if is_part(name)), None)
    if part is not None and device_of(part[0]) != DEFAULT_DEVICE:
        return
    container = container_with_part(pod)
    if parts.way is GpuSharing.HAMI:
        if part is not None:
            _request_of_hami(container, *part)
            annotate(pod, _BINPACK)
        elif DEFAULT_DEVICE in needs:
            _request_whole_of_hami(pod["spec"])
        return
    _drop_hami(pod["spec"], has_part=part is not None)
    if part is not None:
        _hand_over_part(parts, pod, container, *part)


def _hand_over_part(parts: GpuParts, pod: dict[str, Any], container: dict[str, Any], name: str, amount: int) -> None:
    if parts.way is GpuSharing.KAI:
        if container is not pod["spec"]["containers"][0]:
            annotate(pod, {_CONTAINER: container["name"]})
        if is_memory_part(name):
            annotate(pod, {"gpu-memory": str(-(-amount // _MIB))})
        else:
            annotate(pod, {"gpu-fraction": f"{amount / WHOLE:.3f}".rstrip("0")})
    elif parts.way is GpuSharing.REPLICAS and not is_memory_part(name):
        _request(container, {parts.replica: "1"})
        _keep_on_nodes_with_replicas(pod["spec"], WHOLE // amount)


def container_with_part(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that gets the part: the one that HAMi's resources or KAI's annotation name, or else the first."""
    containers: list[dict[str, Any]] = pod["spec"]["containers"]
    named = ((pod.get("metadata") or {}).get("annotations") or {}).get(_CONTAINER)
    return next(
        (one for one in containers if not HAMI_RESOURCES.isdisjoint(requested(one))),
        next((one for one in containers if one.get("name") == named), containers[0]),
    )


def _request_of_hami(container: dict[str, Any], name: str, amount: int) -> None:
    """Request a part by HAMi's resources, unless the container does so itself."""
    asks = requested(container)
    if not HAMI_RESOURCES.isdisjoint(asks):
        if DEFAULT_DEVICE not in asks:
            _request(container, {DEFAULT_DEVICE: "1"})
    elif is_memory_part(name):
        _request(container, {DEFAULT_DEVICE: "1", MEMORY: str(-(-amount // _MIB))})
    else:
        percent = str(-(-amount // _PERCENT))
        _request(container, {DEFAULT_DEVICE: "1", PERCENTAGE: percent, CORES: percent})


def _request_whole_of_hami(spec: dict[str, Any]) -> None:
    """Request all of the memory and cores of whole GPUs: HAMi's own defaults for them are settings of its webhook."""
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        asks = requested(container)
        if asks.keys().isdisjoint((MEMORY, PERCENTAGE, CORES)):
            if count := asks.get(DEFAULT_DEVICE):
                _request(container, {DEFAULT_DEVICE: str(count), PERCENTAGE: "100", CORES: "100"})
        elif asks and DEFAULT_DEVICE not in asks:
            _request(container, {DEFAULT_DEVICE: "1"})


def _drop_hami(spec: dict[str, Any], *, has_part: bool) -> None:
    """Drop HAMi's resources, which no node offers where GPUs are shared in another way, and the GPU of which they make a part."""
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        asks = requested(container)
        if HAMI_RESOURCES.isdisjoint(asks):
            continue
        dropped = HAMI_RESOURCES | ({DEFAULT_DEVICE} if has_part else set())
        resources = container["resources"]
        container["resources"] = resources | {
            kind: {name: text for name, text in resources[kind].items() if name not in dropped}
            for kind in ("requests", "limits")
            if resources.get(kind)
        }
        if not has_part and DEFAULT_DEVICE not in asks:
            _request(container, {DEFAULT_DEVICE: "1"})


def _request(container: dict[str, Any], amounts: dict[str, str]) -> None:
    resources = container.get("resources") or {}
    both = {kind: {**(resources.get(kind) or {}), **amounts} for kind in ("requests", "limits")}
    container["resources"] = {**resources, **both}


def _keep_on_nodes_with_replicas(spec: dict[str, Any], most: int) -> None:
    """Require nodes that divide each GPU into at most ``most`` replicas: one of more would be too small."""
    bounds = [
        {"key": REPLICAS_LABEL, "operator": "Gt", "values": ["1"]},
        {"key": REPLICAS_LABEL, "operator": "Lt", "values": [str(most + 1)]},
    ]
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or [{}]
    narrowed = [{**one, "matchExpressions": [*(one.get("matchExpressions") or ()), *bounds]} for one in terms]
    required = {**required, "nodeSelectorTerms": narrowed}
    spec["affinity"] = {**affinity, "nodeAffinity": {**node, _REQUIRED: required}}
