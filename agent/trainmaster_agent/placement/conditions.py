"""Reasons why a gang waits, taken from its pods and from its objects' conditions. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainmaster_agent.kube.pods import PodSight

_GATED = "SchedulingGated"
_COUNT_OF_NODES = "nodes are available"
_WITH_ANOTHER = "optimistic rejection"
"""Coscheduling's words about a member that was rejected because of another one."""


def why_pods_wait(pods: Sequence[PodSight]) -> str:
    """Return the most informative message among the pods without a node.

    One member's problem delays the others, whose messages only say that they wait; a message that counts the nodes' obstacles, as
    kube-scheduler and similar schedulers write it, comes first. Messages about gates (ours or a queue's) are ignored.
    """
    texts = [_line(pod.message) for pod in pods if pod.stage == "waiting" and not pod.deleting and pod.reason != _GATED]
    said = [text for text in texts if text]
    said = [text for text in said if _WITH_ANOTHER not in text] or said
    return next((text for text in said if _COUNT_OF_NODES in text), said[0] if said else "")


def conditions(obj: Mapping[str, Any], where: str = "conditions") -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (obj.get("status") or {}).get(where) or ()
    return found


def condition(obj: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any] | None:
    """Return the condition of type ``kind``, if it has this status."""
    return next((one for one in conditions(obj) if one.get("type") == kind and one.get("status") == status), None)


def words_of(found: Mapping[str, Any]) -> str:
    """Return a condition's message, or its reason where it has none."""
    return _line(str(found.get("message") or found.get("reason") or ""))


def changed_at(found: Mapping[str, Any] | None) -> datetime | None:
    """Return the time when a condition got its status; to the second, as Kubernetes writes it."""
    text = None if found is None else found.get("lastTransitionTime")
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _line(text: str) -> str:
    return " ".join(text.split())
