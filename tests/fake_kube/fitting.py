"""Whether a pod fits a node, in the words of kube-scheduler's filter plugins. Pure: no store, no clock."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fake_kube.objects import Object
from tests.fake_kube.selectors import matches_expression, matches_labels
from tests.fake_kube.store import Key
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import Resources, parse_resources

_HOSTNAME = "kubernetes.io/hostname"
_KEEPS_OUT = ("NoSchedule", "NoExecute")


class PodInfo(NamedTuple):
    """A pod and what it takes, which never changes after its creation."""

    pod: Object
    needs: Resources

    @classmethod
    def of(cls, pod: Object) -> "PodInfo":
        return cls(pod, {**pod_requests({"spec": pod["spec"]}), "pods": 1})

    @property
    def aversions(self) -> list[Object]:
        """The terms of the pod's required anti-affinity."""
        rules = (self.pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
        return rules.get("requiredDuringSchedulingIgnoredDuringExecution") or []


@dataclass
class NodeSpace:
    """A node and what is bound to it."""

    node: Object
    allocatable: Resources = field(init=False)
    used: Counter[str] = field(default_factory=Counter)
    pod_infos: dict[Key, PodInfo] = field(default_factory=dict)
    averse: dict[Key, PodInfo] = field(default_factory=dict)
    """Those of the pods that keep others away."""

    def __post_init__(self) -> None:
        self.renew(self.node)

    def renew(self, node: Object) -> None:
        """Take over a node that has changed."""
        self.node = node
        self.allocatable = parse_resources({name: str(text) for name, text in node["status"]["allocatable"].items()})

    def occupy(self, key: Key, pod_info: PodInfo) -> None:
        """Count a pod; one that is counted already stays counted once."""
        if key not in self.pod_infos:
            self.pod_infos[key] = pod_info
            self.used.update(pod_info.needs)
            if pod_info.aversions:
                self.averse[key] = pod_info

    def release(self, key: Key) -> None:
        self.averse.pop(key, None)
        if pod_info := self.pod_infos.pop(key, None):
            self.used.subtract(pod_info.needs)

    @property
    def labels(self) -> dict[str, str]:
        return self.node["metadata"].get("labels") or {}

    def load_with(self, pod_info: PodInfo) -> float:
        """Return the mean share of CPU and memory that would be taken: the lowest is best (``LeastAllocated``)."""
        shares = [
            (self.used[name] + pod_info.needs.get(name, 0)) / self.allocatable[name]
            for name in ("cpu", "memory")
            if self.allocatable.get(name)
        ]
        return sum(shares) / len(shares) if shares else 0.0


class Surroundings:
    """All nodes, for rules of one pod that depend on the pods of other nodes."""

    def __init__(self, node_spaces: Iterable[NodeSpace]) -> None:
        self.node_spaces = list(node_spaces)
        self._averse = [(space, pod_info) for space in self.node_spaces for pod_info in space.averse.values()]

    def avoids(self, pod_info: PodInfo, space: NodeSpace) -> bool:
        """Return whether the pod's anti-affinity excludes a pod near the node."""
        return any(
            _meant(term, pod_info.pod, other.pod)
            for term in pod_info.aversions
            for near in self._near(space, term["topologyKey"])
            for other in near.pod_infos.values()
        )

    def is_avoided(self, pod_info: PodInfo, space: NodeSpace) -> bool:
        """Return whether the anti-affinity of a pod near the node excludes the pod."""
        return any(
            term["topologyKey"] in space.labels
            and space.labels[term["topologyKey"]] == near.labels.get(term["topologyKey"])
            and _meant(term, other.pod, pod_info.pod)
            for near, other in self._averse
            for term in other.aversions
        )

    def _near(self, space: NodeSpace, key: str) -> list[NodeSpace]:
        if key not in space.labels:
            return []
        return (
            [space]
            if key == _HOSTNAME
            else [one for one in self.node_spaces if one.labels.get(key) == space.labels[key]]
        )


def obstacles(pod_info: PodInfo, space: NodeSpace, around: Surroundings) -> list[str]:
    """Return why the pod does not fit: the messages of the first plugin that refuses; empty if it fits."""
    spec = pod_info.pod["spec"]
    if space.node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in space.node["spec"].get("taints") or ():
        if taint["effect"] in _KEEPS_OUT and not any(_tolerates(one, taint) for one in spec.get("tolerations") or ()):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _selects(spec, space):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if short := list(_missing_resources(pod_info, space)):
        return short
    if around.is_avoided(pod_info, space):
        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return ["node(s) didn't match pod anti-affinity rules"] if around.avoids(pod_info, space) else []


def unavailable(reasons: Iterable[list[str]]) -> str:
    """Return the message of a pod that fits no node, from the obstacles of each."""
    each = list(reasons)
    if not each:
        return "no nodes available to schedule pods"
    counted = Counter(reason for node in each for reason in node)
    sentence = ", ".join(sorted(f"{count} {reason}" for reason, count in counted.items()))
    return f"0/{len(each)} nodes are available: {sentence}."


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    key = toleration.get("key")
    if key and key != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == taint.get("value", "")


def _selects(spec: Object, space: NodeSpace) -> bool:
    labels = space.labels
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is None:
        return True
    name = {"metadata.name": space.node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(matches_expression(one, labels) for one in term.get("matchExpressions") or ())
        and all(matches_expression(one, name) for one in term.get("matchFields") or ())
        for term in affinity["nodeSelectorTerms"]
    )


def _missing_resources(pod_info: PodInfo, space: NodeSpace) -> Iterator[str]:
    for name, amount in pod_info.needs.items():
        if name == "pods" and name not in space.allocatable:
            continue
        if space.used[name] + amount > space.allocatable.get(name, 0):
            yield "Too many pods" if name == "pods" else f"Insufficient {name}"


def _meant(term: Object, holder: Object, other: Object) -> bool:
    namespaces = term.get("namespaces") or [holder["metadata"]["namespace"]]
    labels = other["metadata"].get("labels") or {}
    return other["metadata"]["namespace"] in namespaces and matches_labels(term.get("labelSelector"), labels)
