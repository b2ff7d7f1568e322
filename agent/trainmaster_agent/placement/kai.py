"""KAI-Scheduler: one PodGroup per run, roles as its subgroups. Pure.

An annotation keeps KAI's own pod grouper away, from KAI 0.15 on; earlier releases group by the pods' owner. Names and
meanings: https://github.com/kai-scheduler/KAI-Scheduler, ``docs/batch/README.md`` ("External PodGroups") and
``pkg/apis/scheduling/v2alpha2``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import conditions, why_pods_wait, words_of
from trainmaster_agent.placement.manifests import annotate, label, metadata
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, starters

POD_GROUPS = Resource("scheduling.run.ai/v2alpha2", "podgroups", "PodGroup")
_EVICTED_AT, _STARTED_AT = "kai.scheduler/last-eviction-timestamp", "kai.scheduler/last-start-timestamp"
_NEVER_STALE = "-1s"
"""KAI would evict the rest of a gang that lost a member; Trainmaster decides what a member's failure means."""


@dataclass(frozen=True, slots=True)
class Kai(PlacementDefaults):
    queues: QueueRules = field(default_factory=lambda: QueueRules(default="default-queue"))
    """KAI's queues by Trainmaster's; they are leaves of KAI's tree."""
    scheduler_name: str = "kai-scheduler"
    priority_class: str = ""
    topologies: Mapping[str, str] = field(default_factory=dict)
    """The KAI Topology to name for a topology level, by its node label."""
    numa: bool = False
    """Whether the plugin numa is enabled in the scheduling shard."""
    preemptible: bool = False
    """Whether other workloads may preempt our members. Non-preemptible pods stay within their queue's quota."""

    @property
    def name(self) -> str:
        return "kai"

    @property
    def capabilities(self) -> frozenset[Capability]:
        extra = (*((Capability.TOPOLOGY,) if self.topologies else ()), *((Capability.NUMA,) if self.numa else ()))
        return frozenset(
            (Capability.GANG, Capability.GANG_STRICT, Capability.EXCLUSIVE_NODES, Capability.RESIZE, *extra)
        )

    @property
    def follows_numa_of_nodes(self) -> bool:
        return self.numa

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (POD_GROUPS,)

    def lacks(self, gang: Gang) -> str | None:
        if _has_subgroups(gang):
            for role, count in gang.quorum():
                if role.size and not count:
                    return f"a subgroup of KAI has at least one member, and the gang may start without role {role.name}"
        return lacks_level(gang, "KAI", self.topologies) or lacks_numa(gang, "KAI", numa=self.numa)

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        spec: dict[str, Any] = {
            "queue": self.queues.of(gang.queue),
            "minMember": starters(gang),
            "preemptibility": "preemptible" if self.preemptible else "non-preemptible",
            "stalenessGracePeriod": _NEVER_STALE,
        }
        if self.priority_class:
            spec["priorityClassName"] = self.priority_class
        topology = self._topology(gang)
        if topology:
            spec["topologyConstraint"] = topology
        if _has_subgroups(gang):
            # With subgroups KAI checks only their minimums, so these add up to the gang's.
            spec["subGroups"] = [{"name": role.name, "minMember": count} for role, count in gang.quorum() if count]
        body = {
            "apiVersion": POD_GROUPS.version,
            "kind": POD_GROUPS.kind,
            "metadata": metadata(gang),
            "spec": spec,
        }
        return (KubeObject(POD_GROUPS, body),)

    def _topology(self, gang: Gang) -> dict[str, str]:
        """Return the topology annotations. A PodGroup has one Topology, so a preference within another one is not passed on."""
        found: dict[str, str] = {}
        if gang.required is not None:
            found = {"topology": self.topologies[gang.required], "requiredTopologyLevel": gang.required}
        wished = None if gang.preferred is None else self.topologies.get(gang.preferred)
        if gang.preferred is not None and wished is not None and found.get("topology", wished) == wished:
            found |= {"topology": wished, "preferredTopologyLevel": gang.preferred}
        return found

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        annotate(pod, {"pod-group-name": gang.run, "kai.scheduler/skip-podgrouper": "true"})
        label(pod, {"kai.scheduler/queue": self.queues.of(gang.queue)})
        if _has_subgroups(gang):
            label(pod, {"kai.scheduler/subgroup-name": role.name})
        pod["spec"]["schedulerName"] = self.scheduler_name

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        message = evicted = ""
        for obj in objects:
            message = message or _why(obj)
            evicted = evicted or _eviction(obj, pods)
        return GangState(message=message or why_pods_wait(pods), evicted=evicted)


def _has_subgroups(gang: Gang) -> bool:
    return sum(1 for role in gang.roles if role.size) > 1


def _why(pod_group: Mapping[str, Any]) -> str:
    """Return why the gang waits. KAI removes the condition when nothing waits any more, so an existing one holds."""
    found = next((one for one in conditions(pod_group, "schedulingConditions") if one.get("status") == "True"), None)
    return "" if found is None else words_of(found)


def _eviction(pod_group: Mapping[str, Any], pods: Sequence[PodSight]) -> str:
    """Return why KAI evicted the gang. KAI notes an eviction, not whom: it was the whole gang once none of its pods stays."""
    notes = pod_group["metadata"].get("annotations") or {}
    at = notes.get(_EVICTED_AT, "")
    if not at or at < notes.get(_STARTED_AT, "") or any(not pod.deleting and not pod.is_over for pod in pods):
        return ""
    return f"KAI evicted it at {at}"
