"""Manifests of pods that get a part of a GPU. Pure."""

from typing import Any

from trainmaster.protocol.device_parts import DEFAULT_DEVICE, WHOLE, device_of, is_memory_part, is_part
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.shared_gpus import REPLICAS_LABEL, GpuParts, GpuSharing
from trainmaster_agent.placement.manifests import annotate

_CONTAINER = "gpu-fraction-container-name"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MIB = 2**20


def hand_over(parts: GpuParts, pod: dict[str, Any], needs: Resources) -> None:
    """Add to a pod what gives it the part of a GPU that is among its needs."""
    for name, amount in needs.items():
        if not is_part(name) or device_of(name) != DEFAULT_DEVICE:
            continue
        if parts.way is GpuSharing.KAI and is_memory_part(name):
            annotate(pod, {"gpu-memory": str(-(-amount // _MIB))})
        elif parts.way is GpuSharing.KAI:
            annotate(pod, {"gpu-fraction": f"{amount / WHOLE:.3f}".rstrip("0")})
        elif parts.way is GpuSharing.REPLICAS and not is_memory_part(name):
            _request_replica(pod, parts.replica)
            _keep_on_nodes_with_replicas(pod["spec"], WHOLE // amount)


def _request_replica(pod: dict[str, Any], resource: str) -> None:
    containers = pod["spec"]["containers"]
    named = ((pod.get("metadata") or {}).get("annotations") or {}).get(_CONTAINER)
    container = next((one for one in containers if one.get("name") == named), containers[0])
    resources = container.get("resources") or {}
    both = {kind: {**(resources.get(kind) or {}), resource: "1"} for kind in ("requests", "limits")}
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
