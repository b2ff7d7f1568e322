"""What matters of pods that are bound to nodes: a few words for each of tens of thousands."""

from enum import IntFlag
from typing import Any

from trainmaster_agent.capacity.nodes import Amounts
from trainmaster_agent.capacity.requests import bound_requests

_ENDED = ("Succeeded", "Failed")
_SHARE_ANNOTATIONS = ("gpu-fraction", "gpu-memory")
"""With which KAI gives a pod a part of a GPU, and no request says so."""
_SHARE_RESOURCES = ("volcano.sh/vgpu-", "volcano.sh/gpu-memory")


class Mark(IntFlag):
    """What else is known of a pod."""

    NONE = 0
    OWN = 1
    """It is a member of one of our runs."""
    PINNED = 2
    """The kubelet may give it cores and memory of its own (quality of service Guaranteed)."""
    SHARES = 4
    """It uses a part of a GPU."""
    UNREADABLE = 8
    """Not all of its requests could be read."""


def node_of(obj: dict[str, Any]) -> str | None:
    """The node whose resources a pod takes; None for one that is not bound, or has ended."""
    if (obj.get("status") or {}).get("phase") in _ENDED:
        return None
    return (obj.get("spec") or {}).get("nodeName") or None


def read_pod(obj: dict[str, Any], own_label: tuple[str, str]) -> tuple[Amounts, Mark]:
    """Requests and marks of a bound pod."""
    metadata = obj["metadata"]
    requests, is_read = bound_requests(obj)
    mark = Mark.NONE if is_read else Mark.UNREADABLE
    if (metadata.get("labels") or {}).get(own_label[0]) == own_label[1]:
        mark |= Mark.OWN
    if (obj.get("status") or {}).get("qosClass") == "Guaranteed":
        mark |= Mark.PINNED
    annotations = metadata.get("annotations")
    if annotations and any(annotations.get(name) for name in _SHARE_ANNOTATIONS):
        mark |= Mark.SHARES
    for name in requests:
        if name.startswith(_SHARE_RESOURCES):
            mark |= Mark.SHARES
    return tuple(sorted(requests.items())), mark
