"""Why a gang waits, in the words of its pods and of its objects' conditions. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainmaster_agent.kube.pods import PodSight

_GATED = "SchedulingGated"
_COUNT_OF_NODES = "nodes are available"


def why_pods_wait(pods: Sequence[PodSight]) -> str:
    """The message of a pod without a node, of all of them the one that says the most.

    One member's trouble holds up the others, whose messages only say that they wait; the one that counts what is wrong with the nodes,
    as kube-scheduler and its kin do, is told first. Gates are ours or of a queue in front, and no news.
    """
    texts = [_line(pod.message) for pod in pods if pod.stage == "waiting" and not pod.deleting and pod.reason != _GATED]
    said = [text for text in texts if text]
    return next((text for text in said if _COUNT_OF_NODES in text), said[0] if said else "")


def conditions(obj: Mapping[str, Any], where: str = "conditions") -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (obj.get("status") or {}).get(where) or ()
    return found


def condition(obj: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any] | None:
    """The condition of this type, if it has this status."""
    return next((one for one in conditions(obj) if one.get("type") == kind and one.get("status") == status), None)


def words_of(found: Mapping[str, Any]) -> str:
    """A condition's message, or its reason where it has none."""
    return _line(str(found.get("message") or found.get("reason") or ""))


def changed_at(found: Mapping[str, Any] | None) -> datetime | None:
    """When a condition got its status; to the second, as Kubernetes writes it."""
    text = None if found is None else found.get("lastTransitionTime")
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _line(text: str) -> str:
    return " ".join(text.split())
