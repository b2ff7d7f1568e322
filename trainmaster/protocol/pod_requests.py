"""Requests of a template's pod, counted as Kubernetes' scheduler counts them, and the part of a GPU that it requests by annotations or
by HAMi's resources.

Formula: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
(KEP-753); resources of whole pods: KEP-2837.
"""

from typing import Any

from trainmaster.protocol.device_parts import annotated_part, is_part
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.hami_requests import with_hami_parts
from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.quantities import Resources, parse_quantity

_LONGEST_QUANTITY = 64
_MOST = 2**62


def pod_requests(template: dict[str, Any]) -> Resources:
    """Return one pod's effective requests, by resource; resources of amount 0 are left out.

    Raises ValueError with the path of the first quantity, or other part, that is invalid.
    """
    mistakes: list[Mistake] = []
    spec = JsonNode(template, "", mistakes).get("spec")
    amounts = with_hami_parts(read_requests(spec), spec)
    annotated = annotated_part(template, mistakes)
    if annotated and any(map(is_part, amounts)):
        spec.refuse("requests a part of a GPU, as the annotations do: leave out one of the two")
    amounts |= annotated
    if mistakes:
        raise ValueError(f"{mistakes[0].path}: {mistakes[0].message}")
    return amounts


def read_requests(spec: JsonNode) -> Resources:
    """Return the effective requests of the pod specification ``spec``; invalid parts become mistakes of its document."""
    running: Resources = {}
    for container in spec.get("containers").items():
        _add(running, _requests(container.get("resources")))
    sidecars: Resources = {}
    starting: Resources = {}
    for container in spec.get("initContainers").items():
        needs = _requests(container.get("resources"))
        if container.get("restartPolicy").text() == "Always":
            _add(sidecars, needs)
            _raise(starting, sidecars)
        else:
            _add(needs, sidecars)
            _raise(starting, needs)
    _add(running, sidecars)
    _raise(running, starting)
    _apply_pod_level(running, spec.get("resources"))
    _add(running, _amounts(spec.get("overhead")))
    for name, amount in running.items():
        if amount > _MOST:
            spec.refuse(f"the containers together request too much {shown(name)}")
    return {name: amount for name, amount in running.items() if amount}


def _requests(resources: JsonNode) -> Resources:
    """Return a container's requests; Kubernetes sets a missing request to the limit."""
    return _amounts(resources.get("limits")) | _amounts(resources.get("requests"))


def _apply_pod_level(amounts: Resources, resources: JsonNode) -> None:
    # A pod's own request may not be below its containers' sum, so Kubernetes takes the larger one; and that
    # is safe for a cluster too old to know pods' own requests. A limit counts only where nothing is requested.
    requests, limits = _amounts(resources.get("requests")), _amounts(resources.get("limits"))
    _raise(amounts, requests)
    for name, amount in limits.items():
        if name not in requests:
            amounts.setdefault(name, amount)


def _amounts(quantities: JsonNode) -> Resources:
    amounts: Resources = {}
    for name, node in quantities.entries():
        text = node.value
        if isinstance(text, int | float) and not isinstance(text, bool):
            text = str(text) if abs(text) <= _MOST else "a number beyond 2**62"
        if not isinstance(text, str) or len(text) > _LONGEST_QUANTITY:
            node.refuse(f"must be a quantity such as 500m or 4Gi, not {shown(node.value)}")
            continue
        try:
            amounts[name] = parse_quantity(name, text)
        except ValueError as error:
            node.refuse(str(error).encode("utf-8", "replace").decode())
    return amounts


def _add(total: Resources, more: Resources) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Resources, least: Resources) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0), amount)
