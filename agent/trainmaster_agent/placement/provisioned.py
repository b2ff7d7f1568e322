"""A ProvisioningRequest of the Cluster Autoscaler for each gang that was sent for nodes to come. Pure.

The autoscaler looks for, or adds, nodes for all members together, and reserves them for the pods that name the request. Such pods
alone make it add no node. Everything else is the business of the placement that is wrapped.
API: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.conditions import condition, words_of
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject, PlacementPort

PROVISIONING_REQUESTS = Resource("autoscaling.x-k8s.io/v1", "provisioningrequests", "ProvisioningRequest")
POD_TEMPLATES = Resource("v1", "podtemplates", "PodTemplate")
_CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
_TRUE, _FALSE = "True", "False"


@dataclass(frozen=True, slots=True)
class Provisioned:
    """``inner``: the placement of the gang itself. ``class_name``: the provisioning class of its requests."""

    inner: PlacementPort
    class_name: str

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.inner.capabilities

    @property
    def emulated(self) -> bool:
        return self.inner.emulated

    @property
    def holders(self) -> tuple[Resource, ...]:
        return self.inner.holders

    @property
    def restarts(self) -> bool:
        return self.inner.restarts

    @property
    def rejoins(self) -> bool:
        return self.inner.rejoins

    @property
    def for_shared_claims(self) -> PlacementPort | None:
        return self.inner.for_shared_claims

    @property
    def follows_numa_of_nodes(self) -> bool:
        return self.inner.follows_numa_of_nodes

    @property
    def requests_nodes(self) -> bool:
        return True

    @property
    def for_workloads(self) -> PlacementPort | None:
        return self.inner.for_workloads

    def takes_object(self, kind: WorkloadKind) -> bool:
        return self.inner.takes_object(kind)

    def dress_object(self, gang: Gang, kind: WorkloadKind, body: dict[str, Any]) -> None:
        self.inner.dress_object(gang, kind, body)

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (*self.inner.watched, PROVISIONING_REQUESTS)

    @property
    def created(self) -> tuple[Resource, ...]:
        return (*self.inner.created, POD_TEMPLATES, PROVISIONING_REQUESTS)

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        return self.inner.run_of(obj)

    def lacks(self, gang: Gang) -> str | None:
        return self.inner.lacks(gang)

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        found = self.inner.objects(gang)
        if not gang.awaits_nodes:
            return found
        roles = [role for role in gang.roles if role.size]
        templates = [KubeObject(POD_TEMPLATES, _template(gang, role)) for role in roles]
        return (*found, *templates, KubeObject(PROVISIONING_REQUESTS, self._request(gang, roles)))

    def dress_alone(self, pod: dict[str, Any]) -> None:
        self.inner.dress_alone(pod)

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        self.inner.dress(gang, role, pod)
        if gang.awaits_nodes:
            annotations = pod["metadata"].get("annotations") or {}
            pod["metadata"]["annotations"] = {**annotations, _CONSUMES: gang.run, _CLASS: self.class_name}

    def tries_again_after(self, gang: Gang, pods: Sequence[PodSight]) -> Resource | None:
        return self.inner.tries_again_after(gang, pods)

    def explained_by_events(self, objects: Sequence[Mapping[str, Any]]) -> str:
        return self.inner.explained_by_events([one for one in objects if not _is_request(one)])

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        requests = [one for one in objects if _is_request(one)]
        state = self.inner.read(gang, [one for one in objects if not _is_request(one)], pods)
        if not gang.awaits_nodes or not requests:
            return state
        request = requests[-1]
        failed = condition(request, "Failed", _TRUE)
        if failed is not None and not state.refused:
            return replace(state, refused=f"the autoscaler provides no nodes for it: {_reason(failed)}")
        return replace(state, message=_progress(request, state.message))

    def _request(self, gang: Gang, roles: Sequence[GangRole]) -> dict[str, Any]:
        return {
            "apiVersion": PROVISIONING_REQUESTS.version,
            "kind": PROVISIONING_REQUESTS.kind,
            "metadata": _metadata(gang, gang.run),
            "spec": {
                "provisioningClassName": self.class_name,
                "parameters": {"ValidUntilSeconds": str(max(1, int(gang.timeout)))},
                "podSets": [
                    {"count": role.size, "podTemplateRef": {"name": _template_name(gang, role)}} for role in roles
                ],
            },
        }


def _is_request(obj: Mapping[str, Any]) -> bool:
    return "provisioningClassName" in (obj.get("spec") or {})


def _template_name(gang: Gang, role: GangRole) -> str:
    return f"{gang.run}-{role.name}"


def _template(gang: Gang, role: GangRole) -> dict[str, Any]:
    return {
        "apiVersion": POD_TEMPLATES.version,
        "kind": POD_TEMPLATES.kind,
        "metadata": _metadata(gang, _template_name(gang, role)),
        "template": {"metadata": {"labels": dict(gang.labels)}, "spec": dict(role.pod)},
    }


def _metadata(gang: Gang, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": gang.namespace,
        "labels": dict(gang.labels),
        "ownerReferences": [dict(gang.owner)],
    }


def _progress(request: Mapping[str, Any], waits: str) -> str:
    """Return how far a request is. ``waits``: why the gang waits by its placement, which matters once there are nodes for it."""
    revoked = condition(request, "CapacityRevoked", _TRUE)
    if revoked is not None:
        return f"the autoscaler has revoked its nodes: {_reason(revoked)}"
    expired = condition(request, "BookingExpired", _TRUE)
    if expired is not None:
        return f"the autoscaler no longer reserves its nodes: {_reason(expired)}" + (f"; {waits}" if waits else "")
    if condition(request, "Provisioned", _TRUE) is not None:
        return waits or "the autoscaler has provided its nodes"
    missing = condition(request, "Provisioned", _FALSE)
    if missing is not None:
        return f"the autoscaler has no nodes for it yet: {_reason(missing)}"
    if condition(request, "Accepted", _TRUE) is not None:
        return "the autoscaler has accepted the request for its nodes"
    return "the autoscaler has not answered the request for its nodes yet"


def _reason(found: Mapping[str, Any]) -> str:
    reason, words = str(found.get("reason") or ""), words_of(found)
    return words if not reason or reason == words else f"{reason}: {words}"
