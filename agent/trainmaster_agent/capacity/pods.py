"""Parsed pods that are bound to nodes, reduced to a few words for each of tens of thousands."""

from enum import IntFlag
from typing import Any

from trainmaster_agent.capacity.nodes import Amounts
from trainmaster_agent.capacity.requests import bound_requests
from trainmaster_agent.kube.pods import LABEL_EXCLUSIVE

_ENDED = ("Succeeded", "Failed")
_PER_NODE_OWNERS = ("DaemonSet", "Node")
_SHARE_ANNOTATIONS = ("gpu-fraction", "gpu-memory")
"""Annotations by which KAI gives a pod part of a GPU without a resource request."""
_SHARE_RESOURCES = ("volcano.sh/vgpu-", "volcano.sh/gpu-memory", "nvidia.com/gpumem", "nvidia.com/gpucores")
"""Resources by which Volcano and HAMi give a pod part of a GPU."""


class Mark(IntFlag):
    """Properties of a pod beside its requests."""

    NONE = 0
    OWN = 1
    """A member of one of our runs."""
    PINNED = 2
    """The kubelet may give it cores and memory of its own (quality of service Guaranteed)."""
    SHARES = 4
    """It uses part of a GPU."""
    UNREADABLE = 8
    """Not all of its requests could be read."""
    PER_NODE = 16
    """Each node gets one like it: a pod of a DaemonSet, or a static pod."""
    EXCLUSIVE = 32
    """A member that has its node for itself."""


def node_of(obj: dict[str, Any]) -> str | None:
    """Return the node whose resources a pod takes; None for a pod that is not bound or has ended."""
    if (obj.get("status") or {}).get("phase") in _ENDED:
        return None
    return (obj.get("spec") or {}).get("nodeName") or None


def read_pod(obj: dict[str, Any], own_label: tuple[str, str]) -> tuple[Amounts, Mark]:
    """Return requests and marks of a bound pod."""
    metadata = obj["metadata"]
    requests, is_read = bound_requests(obj)
    mark = Mark.NONE if is_read else Mark.UNREADABLE
    labels = metadata.get("labels") or {}
    if labels.get(own_label[0]) == own_label[1]:
        mark |= Mark.OWN
        if LABEL_EXCLUSIVE in labels:
            mark |= Mark.EXCLUSIVE
    if (obj.get("status") or {}).get("qosClass") == "Guaranteed":
        mark |= Mark.PINNED
    if any(owner.get("kind") in _PER_NODE_OWNERS for owner in metadata.get("ownerReferences") or ()):
        mark |= Mark.PER_NODE
    annotations = metadata.get("annotations")
    if annotations and any(annotations.get(name) for name in _SHARE_ANNOTATIONS):
        mark |= Mark.SHARES
    for name in requests:
        if name.startswith(_SHARE_RESOURCES):
            mark |= Mark.SHARES
    return tuple(sorted(requests.items())), mark
