"""Which nodes a member may be on, whatever capacity they have free: node selector, required node affinity, taints and tolerations.

Follows Kubernetes. Whatever else keeps a member off a node, such as NUMA zones and free capacity, is not looked at here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.agent import Taint
from trainmaster.protocol.jobs import AffinityTerm, Toleration

PREFERENCE = "PreferNoSchedule"
"""The effect of taints that keep no member away; nodes with one are taken last."""


class MissingLabel(NamedTuple):
    """A label that a node selector names and the node has not, or not with this value."""

    key: str
    value: str


Obstruction = MissingLabel | AffinityTerm | Taint
"""What keeps a member off a node."""


_MOST_VALUES = 5
"""Values of an affinity term that a text lists."""


def obstruction(
    labels: Mapping[str, str],
    taints: Sequence[Taint],
    selector: Iterable[tuple[str, str]],
    affinity: Iterable[AffinityTerm],
    tolerations: Sequence[Toleration],
) -> Obstruction | None:
    """Return the first thing that keeps a member off a node with these labels and taints; None if it may be there."""
    for key, value in selector:
        if labels.get(key) != value:
            return MissingLabel(key, value)
    for term in affinity:
        if not term.holds(labels):
            return term
    for taint in taints:
        if taint.effect != PREFERENCE and not is_tolerated(taint, tolerations):
            return taint
    return None


def describe(found: Obstruction) -> str:
    """Return what keeps the member away, for people."""
    match found:
        case MissingLabel(key, value):
            return f"a label {key}={value} is needed"
        case AffinityTerm():
            values = ", ".join(found.values[:_MOST_VALUES])
            more = f" and {len(found.values) - _MOST_VALUES} more" if len(found.values) > _MOST_VALUES else ""
            return f"node affinity {found.key} {found.operator} {values}".rstrip() + f"{more} is needed"
        case Taint():
            return f"taint {found.key}={found.value}:{found.effect} is not tolerated"


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Return whether any of the tolerations is for the taint."""
    return any(one.tolerates(taint.key, taint.value, taint.effect) for one in tolerations)


def pod_toleration(item: Mapping[str, Any]) -> Toleration:
    """Return a toleration of a pod; Kubernetes takes an empty field for one that does not exist."""
    fields = {key: item[key] for key in ("key", "operator", "value", "effect") if item.get(key)}
    return Toleration.model_validate(fields)
