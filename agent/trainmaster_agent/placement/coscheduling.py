"""The Coscheduling plugin of kubernetes-sigs/scheduler-plugins: one PodGroup per run, with one minimum. Pure.

Pods wait for one another in the Permit phase, with their nodes reserved, so a gang may keep others out until its time-out. The
PodGroup's status counts pods after the fact and never says why they wait: only the pods do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.manifests import label, metadata
from trainmaster_agent.placement.port import Gang, GangRole, GangState, KubeObject, PlacementPort
from trainmaster_agent.placement.requirements import (
    lacks_level,
    lacks_numa,
    lacks_restricted,
    lacks_role_minimum,
    needs_group,
    starters,
)

POD_GROUPS = Resource("scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup")
_LONGEST_HOLD = 120
"""Seconds that members keep nodes reserved while others have none: long enough for thousands of pods; other gangs wait meanwhile."""

_REJECTIONS = ("optimistic rejection in PostFilter", "rejection in Unreserve", "PodGroup not found")
"""The plugin's words about members whose nodes it has given back because of another member, or before its cache had their group."""


@dataclass(frozen=True, slots=True)
class Coscheduling(PlacementDefaults):
    scheduler_name: str = "scheduler-plugins-scheduler"
    """The scheduler profile with the plugin enabled."""
    numa: bool = False
    """Whether the profile has NodeResourceTopologyMatch enabled, too. It knows zones of nodes with the policy single-numa-node alone,
    so that members that ask for ``restricted`` might be refused by their kubelets."""

    @property
    def name(self) -> str:
        return "coscheduling"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            (
                Capability.GANG,
                Capability.GANG_STRICT,
                Capability.EXCLUSIVE_NODES,
                Capability.RESIZE,
                *((Capability.NUMA,) if self.numa else ()),
            )
        )

    @property
    def for_shared_claims(self) -> PlacementPort:
        # The plugin holds the first pod back before its claim is allocated, which the second one waits for.
        return Gates(self.scheduler_name)

    @property
    def follows_numa_of_nodes(self) -> bool:
        return self.numa

    @property
    def rejoins(self) -> bool:
        # The plugin tries a pod again only when another pod of its group is created: one that finds fewer members than the least
        # number, as the others have ended or its cache has not seen all yet, would wait for five minutes.
        return False

    @property
    def created(self) -> tuple[Resource, ...]:
        return (POD_GROUPS,)

    def lacks(self, gang: Gang) -> str | None:
        return (
            lacks_level(gang, "coscheduling")
            or lacks_numa(gang, "coscheduling", numa=self.numa)
            or lacks_restricted(gang, "coscheduling")
            or lacks_role_minimum(gang, "coscheduling")
        )

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        if not needs_group(gang):
            return ()
        body = {
            "apiVersion": POD_GROUPS.version,
            "kind": POD_GROUPS.kind,
            "metadata": metadata(gang),
            "spec": {
                # Without minResources: a gang refused by the plugin's own look at the cluster is tried again only when the scheduler
                # empties its queue of unschedulable pods, every five minutes, not when there is a node or room for it.
                "minMember": starters(gang),
                "scheduleTimeoutSeconds": max(1, min(_LONGEST_HOLD, round(gang.timeout))),
            },
        }
        return (KubeObject(POD_GROUPS, body),)

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        pod["spec"]["schedulerName"] = self.scheduler_name
        if needs_group(gang):
            label(pod, {"scheduling.x-k8s.io/pod-group": gang.run})

    def dress_alone(self, pod: dict[str, Any]) -> None:
        pod["spec"]["schedulerName"] = self.scheduler_name

    def tries_again_after(self, gang: Gang, pods: Sequence[PodSight]) -> Resource | None:
        """See ``PlacementPort``.

        The plugin gives back the nodes of all members when one has none. That one is tried again when there are nodes, and the others
        with it; but if it got a node while the others still gave back theirs, it is rejected like them, and only a new pod of a group
        or a changed group makes the plugin try any of them. The same holds for members that it tried before its cache had their group.
        """
        waiting = [pod for pod in pods if pod.stage == "waiting" and not pod.deleting]
        all_rejected = all(any(words in pod.message for words in _REJECTIONS) for pod in waiting)
        return POD_GROUPS if needs_group(gang) and waiting and all_rejected else None

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        return GangState(message=why_pods_wait(pods))
