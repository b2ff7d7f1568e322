"""Nodes that are not ready, and the consequences for their members. Holds no clock and calls nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainmaster_agent.kube.pods import PodSight, moment
from trainmaster_agent.runtime.kubernetes.failure_classification import shortened

_MOST_NODES = 3
_MOST_MEMBERS = 4


@dataclass(frozen=True, slots=True)
class Unready:
    """A node whose condition Ready is not true. ``silent``: its kubelet does not answer, so what runs there is unknown."""

    silent: bool
    since: float
    """Seconds of the epoch."""
    reason: str = ""


class NodeHealth:
    """Nodes that are not ready. ``turned``: nodes that became unready or ready since it was last emptied."""

    def __init__(self) -> None:
        self.unready: dict[str, Unready] = {}
        self.turned: set[str] = set()

    def put(self, obj: Mapping[str, Any]) -> None:
        """Take the current Node object."""
        self._set(obj["metadata"]["name"], _unready(obj))

    def drop(self, name: str) -> None:
        """Forget a node whose object was deleted: Kubernetes then removes its pods."""
        self._set(name, None)

    def keep(self, names: set[str]) -> None:
        """Forget nodes that are not among ``names``."""
        for name in self.unready.keys() - names:
            self._set(name, None)

    def _set(self, name: str, now: Unready | None) -> None:
        if self.unready.get(name) == now:
            return
        self.turned.add(name)
        if now is None:
            del self.unready[name]
        else:
            self.unready[name] = now


def _unready(obj: Mapping[str, Any]) -> Unready | None:
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") != "True":
            since = moment(one.get("lastTransitionTime")) or 0.0
            return Unready(one.get("status") == "Unknown", since, shortened(str(one.get("reason") or ""), 60))
    return None


def words_on(pods: Iterable[PodSight], unready: Mapping[str, Unready]) -> str:
    """Return a text on living members on nodes that are not ready: which, since when, what comes next; empty for none."""
    by_node: dict[str, list[PodSight]] = {}
    for pod in pods:
        if pod.node in unready and not pod.is_over:
            by_node.setdefault(pod.node, []).append(pod)
    sentences = [_words(node, by_node[node], unready[node]) for node in sorted(by_node)[:_MOST_NODES]]
    if len(by_node) > _MOST_NODES:
        sentences.append(f"the same holds for {len(by_node) - _MOST_NODES} more nodes")
    return "; ".join(sentences)


def _words(node: str, pods: list[PodSight], how: Unready) -> str:
    names = [f"{pod.role}-{pod.index}" for pod in sorted(pods, key=lambda pod: (pod.role, pod.index))]
    listed = ", ".join(names[:_MOST_MEMBERS])
    if len(names) > _MOST_MEMBERS:
        listed += f" and {len(names) - _MOST_MEMBERS} more"
    since = clock(how.since)
    why = f" ({how.reason})" if how.reason else ""
    if not how.silent:
        return f"{listed} on node {node}, which has not been ready since {since}{why}"
    place = f"{listed} on node {node}, which Kubernetes has counted as silent since {since}{why}"
    if any(pod.deleting for pod in pods):
        return (
            f"{place}: told to end, and whether it has is unknown. Each counts as running until the node answers again, or "
            f"until its object is removed (kubectl delete node {node}), which is right only if the machine is off"
        )
    return (
        f"{place}: whether it still runs is unknown. Unless the node answers, Kubernetes tells it to end, usually 5 minutes "
        "after that"
    )


def clock(at: float) -> str:
    """Return a time as users read it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
