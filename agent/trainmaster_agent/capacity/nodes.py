"""Parsed Node and NodeResourceTopology objects, reduced to what the ledger needs."""

import re
from enum import StrEnum
from typing import Any, NamedTuple

from trainmaster.cluster_model.eligibility import PREFERENCE
from trainmaster.cluster_model.numa_policies import NumaPolicy
from trainmaster.protocol.agent import MOST_ZONES
from trainmaster.protocol.quantities import parse_quantity

Amounts = tuple[tuple[str, int], ...]
"""Amounts by resource, sorted by name, without zeros."""

_LIFECYCLE = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
)
"""Taints that Kubernetes derives from conditions which are read from the node itself."""

_LEAVING = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
"""Taints of nodes that an autoscaler is about to remove. The value of the first is a time and differs between nodes."""

_POLICIES = (
    ("singlenuma", NumaPolicy.SINGLE_NODE),
    ("restricted", NumaPolicy.RESTRICTED),
    ("besteffort", NumaPolicy.BEST_EFFORT),
    ("none", NumaPolicy.NONE),
)
"""By the prefix of the topology manager's policy name, in lower case and without dashes."""


_OF_DEVICES = re.compile(r"gpu|xid|nvlink|nvswitch|nvidia|infiniband|dcgm|neuron|tpu|device", re.IGNORECASE)
"""Types of node conditions on devices."""
_HEALTH = re.compile(r"healthy|ready|ok$|available", re.IGNORECASE)
_NO_HEALTH = re.compile(r"unhealthy|not_?ready|unavailable", re.IGNORECASE)


class NodeState(StrEnum):
    """The state of a node that decides whether it may be given members."""

    READY = "ready"
    CORDONED = "cordoned"
    """Closed by an admin, or about to be removed."""
    NOT_READY = "notReady"
    IGNORED = "ignored"
    """Trainmaster must not use it."""
    UNKNOWN = "unknown"
    """Pods are bound to it, but its Node object does not exist."""


class TaintKey(NamedTuple):
    key: str
    value: str
    effect: str


class NodeFacts(NamedTuple):
    """Parsed Node object. ``slots``: the most pods it takes. ``device_error``: sentence on a device error; empty without one."""

    state: NodeState
    labels: dict[str, str]
    taints: tuple[TaintKey, ...]
    allocatable: Amounts
    slots: int
    device_error: str = ""


class Zones(NamedTuple):
    """NUMA zones of a node: for each, the amounts for pods and the used amounts, whoever uses them."""

    policy: str
    """Its name alone, as names of node groups are made of it."""
    zones: tuple[tuple[Amounts, Amounts], ...]


def read_node(obj: dict[str, Any], ignored_taints: tuple[str, ...] = ()) -> NodeFacts:
    """Parse a Node. Leaves out ``PreferNoSchedule`` taints and those that the node's state expresses as well."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    taints = spec.get("taints") or ()
    leaves = bool(metadata.get("deletionTimestamp")) or any(taint["key"] in _LEAVING for taint in taints)
    state = NodeState.READY
    if not _is_ready(status):
        state = NodeState.NOT_READY
    elif spec.get("unschedulable") or leaves:
        state = NodeState.CORDONED
    allocatable = _amounts(status.get("allocatable"))
    slots = allocatable.pop("pods", 0)
    kept = {
        TaintKey(taint["key"], taint.get("value") or "", taint["effect"])
        for taint in taints
        if taint["effect"] != PREFERENCE
        and taint["key"] not in _LIFECYCLE
        and taint["key"] not in _LEAVING
        and taint["key"] not in ignored_taints
    }
    amounts = tuple(
        (name, amount) for name, amount in sorted(allocatable.items()) if not name.startswith("attachable-volumes-")
    )
    return NodeFacts(state, metadata.get("labels") or {}, tuple(sorted(kept)), amounts, slots, device_error_of(status))


def device_error_of(status: dict[str, Any]) -> str:
    """Return a sentence on devices that a node has lost, or on a condition that reports a device error; empty without any.

    A device plugin takes unhealthy devices out of ``allocatable`` and leaves them in ``capacity``. Conditions are set by the
    node problem detector and by monitors of vendors, under names of their own: one that names a device and a problem reports
    the problem when it is true, one that names a device and its health when it is false.
    """
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for name in sorted(capacity):
        if "/" not in name or name.startswith("attachable-volumes-"):
            continue
        most, left = _amounts({name: capacity[name]}), _amounts({name: allocatable.get(name, "0")})
        if left.get(name, 0) < most.get(name, 0):
            return f"{most[name] - left.get(name, 0)} of {most[name]} {name} are unhealthy"
    for one in status.get("conditions") or ():
        kind = str(one.get("type", ""))
        if _OF_DEVICES.search(kind) is None:
            continue
        means_health = _HEALTH.search(kind) is not None and _NO_HEALTH.search(kind) is None
        if str(one.get("status")) == ("False" if means_health else "True"):
            reason = str(one.get("reason") or "")
            return f"condition {kind}{f': {reason}' if reason else ''}"
    return ""


def _is_ready(status: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


def read_zones(obj: dict[str, Any]) -> Zones | None:
    """Parse a NodeResourceTopology (topology.node.k8s.io/v1alpha2); None where it names no known policy."""
    policy = _policy(obj)
    if policy is None:
        return None
    zones = []
    for zone in obj.get("zones") or ():
        if zone.get("type", "Node") != "Node":
            continue
        resources = zone.get("resources") or ()
        most = _amounts({one["name"]: one.get("allocatable", one.get("capacity")) for one in resources})
        available = {one["name"]: one["available"] for one in resources if "available" in one}
        left = dict.fromkeys(available, 0) | _amounts(available)  # an amount of zero is one, too
        taken = {name: amount - left[name] for name, amount in most.items() if left.get(name, amount) < amount}
        zones.append((tuple(sorted(most.items())), tuple(sorted(taken.items()))))
    return Zones(policy, tuple(sorted(zones)) if len(zones) <= MOST_ZONES else ())


def _policy(obj: dict[str, Any]) -> str | None:
    named = [one.get("value", "") for one in obj.get("attributes") or () if one.get("name") == "topologyManagerPolicy"]
    for text in [*named, *(obj.get("topologyPolicies") or ())]:
        plain = text.replace("-", "").lower()
        for start, policy in _POLICIES:
            if plain.startswith(start):
                return policy.value
    return None


def _amounts(quantities: dict[str, Any] | None) -> dict[str, int]:
    amounts = {}
    for name, text in (quantities or {}).items():
        try:
            amount = parse_quantity(name, str(text))
        except ValueError:
            continue  # a zone that cannot be parsed is offered to nobody
        if amount:
            amounts[name] = amount
    return amounts
