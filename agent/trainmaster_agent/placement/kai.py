"""KAI-Scheduler: one PodGroup for a run, roles as its subgroups. Pure.

KAI's own pod grouper is told to keep away, which it understands from 0.15 on; before, it would group by the pods' owner. Names and
meanings: https://github.com/kai-scheduler/KAI-Scheduler, ``docs/batch/README.md`` ("External PodGroups") and
``pkg/apis/scheduling/v2alpha2``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import Usual
from trainmaster_agent.placement.conditions import conditions, why_pods_wait, words_of
from trainmaster_agent.placement.manifests import annotate, label, metadata
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, starters

POD_GROUPS = Resource("scheduling.run.ai/v2alpha2", "podgroups", "PodGroup")
_EVICTED_AT, _STARTED_AT = "kai.scheduler/last-eviction-timestamp", "kai.scheduler/last-start-timestamp"
_NEVER_STALE = "-1s"
"""KAI would evict what is left of a gang that lost a member; what a member's failure means is Trainmaster's to say."""


@dataclass(frozen=True, slots=True)
class Kai(Usual):
    queues: QueueRules = field(default_factory=lambda: QueueRules(default="default-queue"))
    """KAI's queues here are leaves of its tree."""
    scheduler_name: str = "kai-scheduler"
    priority_class: str = ""
    topologies: Mapping[str, str] = field(default_factory=dict)
    """The KAI Topology to name for a topology level, by its node label."""
    numa: bool = False
    """Whether the plugin numa is on in the scheduling shard."""
    preemptible: bool = False
    """Whether other work may take our members' places. What is not preemptible stays within its queue's quota."""

    @property
    def name(self) -> str:
        return "kai"

    @property
    def capabilities(self) -> frozenset[str]:
        extra = (*(("topology",) if self.topologies else ()), *(("numa",) if self.numa else ()))
        return frozenset(("gang", "gangStrict", "resize", *extra))

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
            # With subgroups KAI looks at their numbers alone, so together they make up the gang's.
            spec["subGroups"] = [{"name": role.name, "minMember": count} for role, count in gang.quorum() if role.size]
        body = {
            "apiVersion": POD_GROUPS.version,
            "kind": POD_GROUPS.kind,
            "metadata": metadata(gang),
            "spec": spec,
        }
        return (KubeObject(POD_GROUPS, body),)

    def _topology(self, gang: Gang) -> dict[str, str]:
        """A PodGroup has one Topology, so a wish within another one than the required level's is not passed on."""
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
    """KAI takes the condition away when nothing waits any more, so one that is there holds."""
    found = next((one for one in conditions(pod_group, "schedulingConditions") if one.get("status") == "True"), None)
    return "" if found is None else words_of(found)


def _eviction(pod_group: Mapping[str, Any], pods: Sequence[PodSight]) -> str:
    """KAI notes that it evicted, not whom: that was the whole gang once none of its pods stays."""
    notes = pod_group["metadata"].get("annotations") or {}
    at = notes.get(_EVICTED_AT, "")
    if not at or at < notes.get(_STARTED_AT, "") or any(not pod.deleting and not pod.is_over for pod in pods):
        return ""
    return f"KAI evicted it at {at}"
