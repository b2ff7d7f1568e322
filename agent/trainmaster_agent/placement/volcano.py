"""Volcano: one PodGroup per run; its pods name it in an annotation. Pure.

Single members get a PodGroup, too: otherwise Volcano creates one of its own, in its default queue. Names and meanings:
https://github.com/volcano-sh/apis, ``pkg/apis/scheduling/v1beta1``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.numa_policies import NumaPolicy
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import changed_at, condition, why_pods_wait, words_of
from trainmaster_agent.placement.manifests import annotate, label, metadata, quantities
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, starters

POD_GROUPS = Resource("scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup")
_GROUP, _ROLE = "scheduling.k8s.io/group-name", "volcano.sh/task-spec"
_PREEMPTABLE, _NUMA = "volcano.sh/preemptable", "volcano.sh/numa-topology-policy"
_NUMA_POLICIES: Mapping[str, str] = {NumaPolicy.RESTRICTED: "restricted", NumaPolicy.SINGLE_NODE: "single-numa-node"}
"""Volcano takes only nodes whose policy is this very one, so that ``bestEffort`` would leave out better nodes: it is not passed on."""


@dataclass(frozen=True, slots=True)
class Volcano(PlacementDefaults):
    queues: QueueRules = field(default_factory=lambda: QueueRules(default="default"))
    scheduler_name: str = "volcano"
    priority_class: str = ""
    tiers: Mapping[str, int] = field(default_factory=dict)
    """The HyperNode tier of each topology level, by its node label. Plugin network-topology-aware."""
    numa: bool = False
    """Whether the plugin numa-aware is enabled."""
    preemptible: bool = False
    """Whether other workloads, of higher priority or entitled by their queue, may preempt our members."""

    @property
    def name(self) -> str:
        return "volcano"

    @property
    def capabilities(self) -> frozenset[Capability]:
        extra = (*((Capability.TOPOLOGY,) if self.tiers else ()), *((Capability.NUMA,) if self.numa else ()))
        return frozenset(
            (Capability.GANG, Capability.GANG_STRICT, Capability.EXCLUSIVE_NODES, Capability.RESIZE, *extra)
        )

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (POD_GROUPS,)

    def lacks(self, gang: Gang) -> str | None:
        return lacks_level(gang, "Volcano", self.tiers) or lacks_numa(gang, "Volcano", numa=self.numa)

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        spec: dict[str, Any] = {
            "minMember": starters(gang),
            # Correct because minMember is never below their sum; otherwise Volcano ignores them.
            "minTaskMember": {role.name: role.least for role in gang.roles if role.least},
            "queue": self.queues.of(gang.queue),
            "minResources": quantities(gang.total),
        }
        if self.priority_class:
            spec["priorityClassName"] = self.priority_class
        if gang.required is not None:
            spec["networkTopology"] = {"mode": "hard", "highestTierAllowed": self.tiers[gang.required]}
        elif gang.preferred in self.tiers:
            spec["networkTopology"] = {"mode": "soft"}
        body = {
            "apiVersion": POD_GROUPS.version,
            "kind": POD_GROUPS.kind,
            "metadata": metadata(gang, {_PREEMPTABLE: self._preemptable}),
            "spec": spec,
        }
        return (KubeObject(POD_GROUPS, body),)

    @property
    def _preemptable(self) -> str:
        return str(self.preemptible).lower()

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        annotate(pod, {_GROUP: gang.run, _ROLE: role.name, _PREEMPTABLE: self._preemptable})
        label(pod, {_ROLE: role.name})
        if gang.numa in _NUMA_POLICIES:
            annotate(pod, {_NUMA: _NUMA_POLICIES[gang.numa]})
        pod["spec"]["schedulerName"] = self.scheduler_name

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        message = ""
        for obj in objects:
            message = message or self._why(obj)
        return GangState(message=message or why_pods_wait(pods))

    def explained_by_events(self, objects: Sequence[Mapping[str, Any]]) -> str:
        """Return the selector of events about a PodGroup that its queue does not admit: what the queue lacks is in no status."""
        held = next((one["metadata"]["name"] for one in objects if _phase(one) == "Pending"), "")
        # Those of type Warning say that its members have no nodes.
        about = f"involvedObject.kind={POD_GROUPS.kind},involvedObject.name={held}"
        return f"type=Normal,reason=Unschedulable,{about}" if held else ""

    def _why(self, pod_group: Mapping[str, Any]) -> str:
        phase = _phase(pod_group)
        if phase in ("Running", "Completed"):
            return ""
        if phase == "Pending":  # that its members have no nodes goes without saying
            return f"Volcano has not let it into queue {pod_group['spec'].get('queue', 'default')} yet"
        unschedulable = condition(pod_group, "Unschedulable", "True")
        if unschedulable is not None and not _is_past(pod_group, unschedulable):
            return words_of(unschedulable)
        return ""


def _phase(pod_group: Mapping[str, Any]) -> str:
    return str((pod_group.get("status") or {}).get("phase", ""))


def _is_past(pod_group: Mapping[str, Any], unschedulable: Mapping[str, Any]) -> bool:
    """Return whether the condition is outdated: Volcano never removes one, but a later one of the other type revokes it."""
    scheduled, waits = changed_at(condition(pod_group, "Scheduled", "True")), changed_at(unschedulable)
    return scheduled is not None and waits is not None and scheduled > waits
