"""Requests of a pod that is bound to a node, as the kube-scheduler counts them.

``trainmaster.protocol.pod_requests`` has the formula. This module adds a fast path for plain pods, of which a cluster has tens of
thousands, and in-place resizes of running pods, which count with the larger of old and new requests (KEP-1287).
"""

from typing import Any

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.pod_requests import read_requests
from trainmaster.protocol.quantities import Resources, parse_quantity

_LONGEST = 64
_MOST = 2**62
_RARE = ("initContainers", "overhead", "resources")


def bound_requests(pod: dict[str, Any]) -> tuple[Resources, bool]:
    """Return a pod's effective requests and whether all could be parsed; one that could not counts as nothing."""
    spec = pod.get("spec") or {}
    spec = _resized(spec, (pod.get("status") or {}).get("containerStatuses"))
    amounts = _plain(spec)
    if amounts is not None:
        return amounts, True
    mistakes: list[Mistake] = []
    return read_requests(JsonNode(spec, "", mistakes)), not mistakes


def _plain(spec: dict[str, Any]) -> Resources | None:
    """Return the sum over the containers; None for a pod that needs the whole formula."""
    for name in _RARE:
        if spec.get(name):
            return None
    total: Resources = {}
    try:
        for container in spec.get("containers") or ():
            resources = container.get("resources")
            if not resources:
                continue
            requests = resources.get("requests") or {}
            limits = resources.get("limits")
            for name, text in (limits | requests if limits else requests).items():
                if type(text) is not str or len(text) > _LONGEST:
                    return None
                total[name] = total.get(name, 0) + parse_quantity(name, text)
    except (AttributeError, TypeError, ValueError):
        return None
    for amount in total.values():
        if amount > _MOST:
            return None
    return {name: amount for name, amount in total.items() if amount}


def _resized(spec: dict[str, Any], statuses: Any) -> dict[str, Any]:
    """Return the specification with what its containers hold now where that exceeds their requests."""
    if not statuses or not isinstance(statuses, list):
        return spec
    held = {}
    for status in statuses:
        resources = status.get("resources")
        if resources or "allocatedResources" in status:
            now = (resources or {}).get("requests") or {}
            held[status.get("name")] = (now, status.get("allocatedResources") or {})
    if not held:
        return spec
    containers = [_raised(one, *held.get(one.get("name"), ({}, {}))) for one in spec.get("containers") or ()]
    return spec | {"containers": containers}


def _raised(container: dict[str, Any], *held: dict[str, str]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    if all(now == requests or not now for now in held):
        return container
    most = (resources.get("limits") or {}) | requests
    for now in held:
        for name, text in now.items():
            if name not in most or _amount(name, text) > _amount(name, most[name]):
                most = most | {name: text}
    return container | {"resources": resources | {"requests": most}}


def _amount(name: str, text: object) -> int:
    try:
        return parse_quantity(name, str(text))
    except ValueError:
        return 0
