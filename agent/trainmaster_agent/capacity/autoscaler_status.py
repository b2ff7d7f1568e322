"""The Cluster Autoscaler's own report of its node groups: the ConfigMap ``cluster-autoscaler-status``, parsed. Pure.

Since 1.30 its text is YAML; before that, lines for people, which have the same numbers but not the reason of a back-off.
Fields: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
"""

import re
from datetime import datetime
from typing import Any, NamedTuple

import yaml

from trainmaster.protocol.agent import MOST_NODES

STATUS_KEY = "status"
"""Key of the text in the ConfigMap."""
_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"
_PASSING = re.compile(r"^\s*(?:lastProbeTime|lastTransitionTime|time):.*\n?", re.MULTILINE)
"""Lines of the YAML that differ in each report of the same state; there are two or three for every node group."""
_IN_LINES = re.compile(r"\A(?:Cluster-autoscaler status at .*\n)?Cluster-wide:\s*$", re.MULTILINE)
_LINE = re.compile(r"^ {2}(?P<field>Name|Health|ScaleUp): +(?P<value>.*?)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"(\w+)=(\d+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? ([+-]\d{4})")
_UNHEALTHY, _BACK_OFF = "Unhealthy", "Backoff"
_LONGEST = 400
"""The most characters of an error message of a provider."""


class NodeGroupStatus(NamedTuple):
    """A node group as the autoscaler reports it."""

    name: str
    nodes: int
    """Number of nodes that exist, or are ordered."""
    most: int
    """The most nodes that it may have."""
    blocked: str = ""
    """Why the autoscaler adds no nodes to it now; empty if it would."""


class AutoscalerStatus(NamedTuple):
    """The state of an autoscaler."""

    groups: tuple[NodeGroupStatus, ...] = ()
    blocked: str = ""
    """Why the autoscaler adds no nodes to any group now."""


class UnreadableStatusError(ValueError):
    """The text is no status of a Cluster Autoscaler."""


def lasting(text: str) -> str:
    """Return the text without the times that each report of the same state has anew."""
    return _PASSING.sub("", text)


def written_at(obj: dict[str, Any]) -> float | None:
    """Return when the autoscaler wrote its ConfigMap, in seconds of the epoch; None where that cannot be read."""
    match = _TIME.match((obj["metadata"].get("annotations") or {}).get(_UPDATED) or "")
    if match is None:
        return None
    try:
        return datetime.strptime(" ".join(match.groups()), "%Y-%m-%d %H:%M:%S %z").timestamp()
    except ValueError:
        return None


def read_status(text: str) -> AutoscalerStatus:
    """Parse the text of any version. Raises UnreadableStatusError."""
    if _IN_LINES.match(text):
        return _read_lines(text)
    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both loaders are safe ones
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableStatusError(f"the status of the cluster autoscaler is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UnreadableStatusError("the status of the cluster autoscaler is not a mapping")
    groups = found.get("nodeGroups") or ()
    if not isinstance(groups, (list, tuple)):
        raise UnreadableStatusError("nodeGroups of the cluster autoscaler's status is not a list")
    whole = _mapping(_mapping(found, "clusterWide", "clusterWide"), "health", "clusterWide.health")
    return AutoscalerStatus(
        tuple(_read_group(one, f"nodeGroups[{index}]") for index, one in enumerate(groups)),
        _whole(str(whole.get("status") or "")),
    )


def _read_group(value: Any, path: str) -> NodeGroupStatus:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise UnreadableStatusError(f"{path} of the cluster autoscaler's status is not a node group with a name")
    health, growth = _mapping(value, "health", f"{path}.health"), _mapping(value, "scaleUp", f"{path}.scaleUp")
    counts = _mapping(health, "nodeCounts", f"{path}.health.nodeCounts")
    registered = _mapping(counts, "registered", f"{path}.health.nodeCounts.registered")
    ready = _count(registered, "ready", path)
    total = max(ready, _count(registered, "total", path))  # a count that is 0, or equals another, may be left out
    blocked = ""
    if growth.get("status") == _BACK_OFF:
        error = _mapping(growth, "backoffInfo", f"{path}.scaleUp.backoffInfo")
        blocked = _back_off(str(error.get("errorCode") or ""), str(error.get("errorMessage") or ""))
    elif health.get("status") == _UNHEALTHY:
        blocked = _unhealthy(ready, total)
    target, most = _count(health, "cloudProviderTarget", path), _count(health, "maxSize", path)
    return NodeGroupStatus(value["name"], max(total, target), most, blocked)


def _read_lines(text: str) -> AutoscalerStatus:
    """Parse the text of a release before 1.30."""
    groups: list[NodeGroupStatus] = []
    whole = ""
    for match in _LINE.finditer(text):
        value = match["value"]
        status, numbers = value.partition(" ")[0], dict(_NUMBER.findall(value))
        match match["field"]:
            case "Name":
                groups.append(NodeGroupStatus(value, 0, 0))
            case "Health" if not groups:
                whole = _whole(status)
            case "Health":
                registered = _clamped(int(numbers.get("registered", 0)))
                nodes = max(registered, _clamped(int(numbers.get("cloudProviderTarget", 0))))
                blocked = _unhealthy(_clamped(int(numbers.get("ready", 0))), registered) if status == _UNHEALTHY else ""
                most = _clamped(int(numbers.get("maxSize", 0)))
                groups[-1] = groups[-1]._replace(nodes=nodes, most=most, blocked=blocked)
            case "ScaleUp" if groups and status == _BACK_OFF:
                groups[-1] = groups[-1]._replace(blocked=_back_off("", ""))
            case _:
                pass
    return AutoscalerStatus(tuple(groups), whole)


def _whole(status: str) -> str:
    return (
        "the autoscaler adds no nodes while too many of the cluster's nodes are not ready"
        if status == _UNHEALTHY
        else ""
    )


def _back_off(code: str, message: str) -> str:
    words = ": ".join(part for part in (code, " ".join(message.split())) if part)
    cut = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    return f"in back-off after a scale-up that failed{f': {cut}' if cut else ''}"


def _unhealthy(ready: int, total: int) -> str:
    return f"unhealthy: {ready} of {total} nodes are ready"


def _mapping(value: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UnreadableStatusError(f"{path} of the cluster autoscaler's status is not a mapping")
    return found


def _count(value: dict[str, Any], key: str, path: str) -> int:
    found = value.get(key, 0)
    if isinstance(found, bool) or not isinstance(found, int):
        raise UnreadableStatusError(f"{key} of {path} in the cluster autoscaler's status is not a number")
    return _clamped(found)


def _clamped(count: int) -> int:
    return min(max(count, 0), MOST_NODES)
