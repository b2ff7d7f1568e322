"""Kubernetes' own gang scheduling (KEP-4671, KEP-5732): one standalone PodGroup per run. Pure.

Two versions are supported: ``v1alpha2`` of Kubernetes 1.36 and ``v1beta1`` from 1.37 on. The PodGroup has one minimum for the gang
and no queue. In 1.36 priority and disruption mode of a PodGroup have a feature gate of their own and are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import condition, why_pods_wait, words_of
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.manifests import metadata
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject, PlacementPort
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, lacks_role_minimum, needs_group, starters

NativeVersion = Literal["v1alpha2", "v1beta1"]
_SCHEDULED: dict[NativeVersion, str] = {"v1alpha2": "PodGroupScheduled", "v1beta1": "PodGroupInitiallyScheduled"}


def pod_groups(version: NativeVersion) -> Resource:
    return Resource(f"scheduling.k8s.io/{version}", "podgroups", "PodGroup")


def pod_group_spec(least: int, level: str | None) -> dict[str, Any]:
    """Return the spec of a gang of at least ``least`` pods, on nodes with equal values of the label ``level`` if it is given."""
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if level is not None:
        spec["schedulingConstraints"] = {"topology": [{"key": level}]}
    return spec


@dataclass(frozen=True, slots=True)
class Native(PlacementDefaults):
    """``topology``: a probe has shown that the API keeps topology constraints (gate TopologyAwareWorkloadScheduling)."""

    version: NativeVersion = "v1alpha2"
    topology: bool = False
    scheduler_name: str = ""
    """Name of the scheduler; empty: the cluster's default one."""
    priority_class: str = ""
    """PriorityClass of the pods. From 1.37 on the PodGroup has to have the same one."""

    @property
    def name(self) -> str:
        return "native"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            (
                Capability.GANG,
                Capability.GANG_STRICT,
                Capability.EXCLUSIVE_NODES,
                Capability.RESIZE,
                *((Capability.TOPOLOGY,) if self.topology else ()),
            )
        )

    @property
    def rejoins(self) -> bool:
        # The scheduler holds pods of a group back until ``minCount`` unfinished ones exist, so a member that restarts
        # after others have succeeded would wait for ever (seen on 1.36).
        return False

    @property
    def for_workloads(self) -> PlacementPort:
        # A pod that its controller replaces would wait for ever, as above.
        return Gates(self.scheduler_name)

    @property
    def for_shared_claims(self) -> PlacementPort:
        # As a group, the first pod waits for the second one, and that one for the claim of the first (seen on 1.36).
        return Gates(self.scheduler_name)

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (pod_groups(self.version),)

    def lacks(self, gang: Gang) -> str | None:
        if gang.required is not None and not self.topology:
            return lacks_level(gang, "the Kubernetes scheduler")
        return lacks_numa(gang, "the Kubernetes scheduler") or lacks_role_minimum(gang, "the Kubernetes scheduler")

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        if not needs_group(gang):
            return ()
        resource = pod_groups(self.version)
        spec = pod_group_spec(starters(gang), gang.required)
        if self.version != "v1alpha2" and self.priority_class:
            spec["priorityClassName"] = self.priority_class
        body = {"apiVersion": resource.version, "kind": resource.kind, "metadata": metadata(gang), "spec": spec}
        return (KubeObject(resource, body),)

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        if self.scheduler_name:
            pod["spec"]["schedulerName"] = self.scheduler_name
        if needs_group(gang):
            pod["spec"]["schedulingGroup"] = {"podGroupName": gang.run}

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        message, evicted = why_pods_wait(pods), ""
        for obj in objects:
            waits = condition(obj, _SCHEDULED[self.version], "False")
            if waits is not None:
                message = message or words_of(waits)
            disrupted = condition(obj, "DisruptionTarget", "True")
            if disrupted is not None:
                evicted = words_of(disrupted)
        return GangState(message=message, evicted=evicted)
