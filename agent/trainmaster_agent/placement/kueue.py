"""Kueue: a run's pods are a plain pod group, admitted as one before any scheduler places them. Pure.

Kueue creates the group's Workload itself, named like the group, and counts its pods: all of them, no more and no fewer. So such runs
have one size. Names and meanings: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import LABEL_RUN, PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import condition, why_pods_wait, words_of
from trainmaster_agent.placement.manifests import annotate, label
from trainmaster_agent.placement.port import Gang, GangRole, GangState, PlacementPort
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, lacks_whole_nodes, starters

KueueVersion = Literal["v1beta1", "v1beta2"]
_PREFIX = "kueue.x-k8s.io/"
_MOST_ROLES = 8
"""The most pod sets of a pod group before Kueue 0.18; later releases allow more."""
_KINDS = frozenset(
    (
        "batch/v1 Job",
        "jobset.x-k8s.io/v1alpha2 JobSet",
        *(f"kubeflow.org/v1 {kind}" for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")),
        "kubeflow.org/v2beta1 MPIJob",
        "ray.io/v1 RayJob",
        "ray.io/v1 RayCluster",
        "trainer.kubeflow.org/v1alpha1 TrainJob",
        "workload.codeflare.dev/v1beta2 AppWrapper",
    )
)
"""Kinds that Kueue admits, each by its own field that suspends it: https://kueue.sigs.k8s.io/docs/tasks/run/"""
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
        # With a topology Kueue chooses nodes by itself, by what they have free alone.
        return frozenset((Capability.GANG, Capability.TOPOLOGY if self.levels else Capability.EXCLUSIVE_NODES))

    @property
    def holders(self) -> tuple[Resource, ...]:
        return (workloads(self.version),)

    @property
    def restarts(self) -> bool:
        # Kueue holds a failed pod back by a finalizer until another pod has taken its place, whose name it has (seen with 0.19).
        return False

    @property
    def for_workloads(self) -> PlacementPort:
        return KueueObjects(self.version, self.queues, self.scheduler_name, self.levels)

    @property
    def watched(self) -> tuple[Resource, ...]:
        return (workloads(self.version),)

    @property
    def created(self) -> tuple[Resource, ...]:
        return ()

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        """Return the run of a Workload, which has no label of ours: that of the templates of its pods, or of its owners, pods whose
        names begin with the run's.
        """
        for pods in (obj.get("spec") or {}).get("podSets") or ():
            labels = ((pods.get("template") or {}).get("metadata") or {}).get("labels") or {}
            if LABEL_RUN in labels:
                return str(labels[LABEL_RUN])
        metadata = obj["metadata"]
        owners = metadata.get("ownerReferences") or ()
        ours = any(owner.get("kind") == "Pod" and _member_of(metadata["name"], owner["name"]) for owner in owners)
        return metadata["name"] if ours else None

    def lacks(self, gang: Gang) -> str | None:
        if not self.queues.of(gang.queue):
            return f"the agent's configuration names no LocalQueue of Kueue for queue {gang.queue}"
        if starters(gang) < gang.size:
            return f"Kueue admits all {gang.size} members or none, and the gang may start with {starters(gang)}"
        return self._lacks_place(gang)

    def _lacks_place(self, gang: Gang) -> str | None:
        """Return a sentence naming what Kueue cannot honour of where the gang is to be placed; None if it can honour all."""
        roles = [role for role in gang.roles if role.size]
        if len(roles) > _MOST_ROLES:
            return f"a pod group of Kueue has at most {_MOST_ROLES} roles, the gang has {len(roles)}"
        if gang.required is not None and not _can_be_together(roles):
            return "Kueue keeps two roles together only where there are no others and one of them has a single member"
        return (
            lacks_level(gang, "Kueue", self.levels)
            or lacks_numa(gang, "Kueue")
            or (lacks_whole_nodes(gang, "Kueue with a topology") if self.levels else None)
        )

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        label(pod, {_PREFIX + "queue-name": self.queues.of(gang.queue), _PREFIX + "pod-group-name": gang.run})
        annotate(pod, {_PREFIX + "pod-group-total-count": str(gang.size), _PREFIX + "role-hash": role.name})
        self._dress_topology(gang, pod)

    def _dress_topology(self, gang: Gang, pod: dict[str, Any]) -> None:
        """Add the level within which the pod sets are kept, and the scheduler of admitted pods."""
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


@dataclass(frozen=True, slots=True)
class KueueObjects(Kueue):
    """Kueue, for objects whose controllers make the pods: it admits the object, which is suspended until then.

    The object is created suspended, so that nothing runs past Kueue where it does not manage the kind: such a run waits, and is
    returned. Names and meanings: https://kueue.sigs.k8s.io/docs/tasks/run/
    """

    @property
    def holders(self) -> tuple[Resource, ...]:
        return ()  # the Workload is the object's, and goes with it

    @property
    def restarts(self) -> bool:
        return True

    def takes_object(self, kind: WorkloadKind) -> bool:
        return kind.name in _KINDS

    def lacks(self, gang: Gang) -> str | None:
        if not self.queues.of(gang.queue):
            return Kueue.lacks(self, gang)
        return self._lacks_place(gang)  # pods that could start without others are admitted with them

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        self._dress_topology(gang, pod)

    def dress_object(self, gang: Gang, kind: WorkloadKind, body: dict[str, Any]) -> None:
        label(body, {_PREFIX + "queue-name": self.queues.of(gang.queue)})
        level = body
        for step in kind.suspend_path[:-1]:
            level = level.setdefault(step, {})
        level[kind.suspend_path[-1]] = True

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        if not objects and not pods:
            return GangState(message="it waits for Kueue, which has made no Workload for it yet")
        return Kueue.read(self, gang, objects, pods)


def _member_of(run: str, pod: str) -> bool:
    return pod.startswith(f"{run}-")


def _can_be_together(roles: Sequence[GangRole]) -> bool:
    """Return whether Kueue finds one domain for all roles: for two pod sets, one of them must be a single pod, the leader."""
    return len(roles) == 1 or (len(roles) == 2 and any(role.size == 1 for role in roles))
