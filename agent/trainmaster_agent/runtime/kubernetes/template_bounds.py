"""Bounds of a pod template: it concerns the pods of its own run alone, and takes no more than it requests. Pure.

Templates are changed before they are checked: what has a wrong shape is left for admission to refuse.
"""

from collections.abc import Iterator
from typing import Any

from trainmaster_agent.kube.pods import LABEL_RUN

_LIMITED = ("memory", "ephemeral-storage")
"""Resources that cannot be taken back from a container that uses more than it has requested."""


def select_own_run(spec: dict[str, Any], run: str) -> None:
    """Narrow each term that selects pods to those of the run: affinity, anti-affinity and spread, required and preferred.

    Without this, members would keep other jobs' pods away from nodes and zones, since anti-affinity holds both ways, or follow them.
    """
    for term in _terms(spec):
        selector, keys = term.get("labelSelector"), term.get("matchLabelKeys")
        labels = _mapping(selector).get("matchLabels")
        if not isinstance(selector, dict) or not isinstance(labels, dict | None):
            continue  # a term without a selector selects nothing
        term["labelSelector"] = {**selector, "matchLabels": {**(labels or {}), LABEL_RUN: run}}
        if isinstance(keys, list) and LABEL_RUN in keys:
            # It says the same, may not be in both places, and is dropped by clusters that do not know matchLabelKeys.
            term["matchLabelKeys"] = [key for key in keys if key != LABEL_RUN]


def _terms(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _mappings(spec.get("topologySpreadConstraints"))
    affinity = _mapping(spec.get("affinity"))
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = _mapping(affinity.get(kind))
        yield from _mappings(rules.get("requiredDuringSchedulingIgnoredDuringExecution"))
        for weighted in _mappings(rules.get("preferredDuringSchedulingIgnoredDuringExecution")):
            yield from _mappings([weighted.get("podAffinityTerm")])


def limit_to_requests(spec: dict[str, Any]) -> None:
    """Limit each container to the memory and disk that it requests, unless it, or the whole pod, has a limit of its own.

    The namespace's LimitRange would set a limit without regard to the request.
    """
    of_pod = _mapping(_mapping(spec.get("resources")).get("limits"))
    for kind in ("containers", "initContainers"):
        for container in _mappings(spec.get(kind)):
            resources = _mapping(container.get("resources"))
            requests, limits = _mapping(resources.get("requests")), resources.get("limits")
            if limits is not None and not isinstance(limits, dict):
                continue
            missing = {
                name: requests[name]
                for name in _LIMITED
                if name in requests and name not in (limits or {}) and name not in of_pod
            }
            if missing:
                container["resources"] = {**resources, "limits": {**(limits or {}), **missing}}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    yield from (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()
