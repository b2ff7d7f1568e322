"""Kueue: a run's pods are a plain pod group, admitted as one before any scheduler places them. Pure.

Kueue creates the group's Workload itself, named like the group, and counts its pods: all of them, no more and no fewer. So such runs
have one size. Names and meanings: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import condition, why_pods_wait, words_of
from trainmaster_agent.placement.manifests import annotate, label
from trainmaster_agent.placement.port import Gang, GangRole, GangState
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, starters

KueueVersion = Literal["v1beta1", "v1beta2"]
_PREFIX = "kueue.x-k8s.io/"
_MOST_ROLES = 8
"""The most pod sets of a pod group before Kueue 0.18; later releases allow more."""
_FINAL = ("ExceedsMaxQuota", "NoMatchingFlavor")
"""Reasons that freed capacity does not resolve: the queue is too small, or has no such nodes. Misconfigured and Inadmissible may."""


def workloads(version: KueueVersion) -> Resource:
    return Resource(f"kueue.x-k8s.io/{version}", "workloads", "Workload")


@dataclass(frozen=True, slots=True)
class Kueue(PlacementDefaults):
    version: KueueVersion = "v1beta2"
    queues: QueueRules = field(default_factory=QueueRules)
    """LocalQueues of the namespaces that runs are created in."""
    scheduler_name: str = ""
    """Name of the scheduler that places admitted pods; empty: the cluster's default one."""
    levels: Collection[str] = ()
    """Node labels of the Topology that the queues' flavors name: levels within which Kueue can keep pods."""

    @property
    def name(self) -> str:
        return "kueue"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset((Capability.GANG, *((Capability.TOPOLOGY,) if self.levels else ())))

    @property
    def holders(self) -> tuple[Resource, ...]:
        return (workloads(self.version),)

    @property
    def restarts(self) -> bool:
        # Kueue holds a failed pod back by a finalizer until another pod has taken its place, whose name it has (seen with 0.19).
        return False

    @property
    def for_workloads(self) -> None:
        # Kueue would have to admit the object itself, which it holds back by its own field.
        return None

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (workloads(self.version),)

    @property
    def created(self) -> tuple[Resource, ...]:
        return ()

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        """Return the run of a Workload, which has no label of ours, by its owners: pods whose names begin with the run's."""
        metadata = obj["metadata"]
        owners = metadata.get("ownerReferences") or ()
        ours = any(owner.get("kind") == "Pod" and _member_of(metadata["name"], owner["name"]) for owner in owners)
        return metadata["name"] if ours else None

    def lacks(self, gang: Gang) -> str | None:
        if not self.queues.of(gang.queue):
            return f"the agent's configuration names no LocalQueue of Kueue for queue {gang.queue}"
        if starters(gang) < gang.size:
            return f"Kueue admits all {gang.size} members or none, and the gang may start with {starters(gang)}"
        roles = [role for role in gang.roles if role.size]
        if len(roles) > _MOST_ROLES:
            return f"a pod group of Kueue has at most {_MOST_ROLES} roles, the gang has {len(roles)}"
        if gang.required is not None and not _can_be_together(roles):
            return "Kueue keeps two roles together only where there are no others and one of them has a single member"
        return lacks_level(gang, "Kueue", self.levels) or lacks_numa(gang, "Kueue")

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        label(pod, {_PREFIX + "queue-name": self.queues.of(gang.queue), _PREFIX + "pod-group-name": gang.run})
        annotate(pod, {_PREFIX + "pod-group-total-count": str(gang.size), _PREFIX + "role-hash": role.name})
        if gang.required is not None:
            annotate(pod, {_PREFIX + "podset-required-topology": gang.required})
            if sum(1 for one in gang.roles if one.size) > 1:
                annotate(pod, {_PREFIX + "podset-group-name": gang.run})
        elif gang.preferred in self.levels:
            annotate(pod, {_PREFIX + "podset-preferred-topology": str(gang.preferred)})
        if self.scheduler_name:
            pod["spec"]["schedulerName"] = self.scheduler_name

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        message = refused = evicted = ""
        for obj in objects:
            waits = condition(obj, "QuotaReserved", "False")
            if waits is not None and waits.get("reason") in _FINAL:
                refused = f"Kueue refused it: {words_of(waits)}"
            elif waits is not None:
                message = words_of(waits)
            lost = condition(obj, "Evicted", "True")
            if lost is not None:
                evicted = f"Kueue evicted it ({lost.get('reason')}): {words_of(lost)}"
        return GangState(message=message or why_pods_wait(pods), refused=refused, evicted=evicted)


def _member_of(run: str, pod: str) -> bool:
    return pod.startswith(f"{run}-")


def _can_be_together(roles: Sequence[GangRole]) -> bool:
    """Return whether Kueue finds one domain for all roles: for two pod sets, one of them must be a single pod, the leader."""
    return len(roles) == 1 or (len(roles) == 2 and any(role.size == 1 for role in roles))
