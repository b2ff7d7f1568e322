"""Emulated gangs, for schedulers without gangs: our scheduling gate holds the pods back. Pure.

The agent opens the gates of all members once its own ledger shows free capacity for the gang. With the gates it writes the domain of a
required level as a node selector, which Kubernetes lets be narrowed while a pod is gated. This is not all or nothing: another pod may
come first.
Scheduling gates: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.port import Gang, GangRole, GangState, PlacementPort
from trainmaster_agent.placement.requirements import lacks_numa, waits_for_nodes

GATE = "trainmaster.dev/gang"


def opening_patch(
    pod_gates: Sequence[Mapping[str, Any]], selector: Mapping[str, str], affinity: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the merge patch that removes our gate from a pod's ``spec.schedulingGates`` and adds to its node selector and affinity.

    Gates of others stay. If one of them is removed meanwhile, this patch would add it again: the API refuses that (422), and the
    pod has to be read anew.
    """
    spec: dict[str, Any] = {"schedulingGates": [dict(gate) for gate in pod_gates if gate.get("name") != GATE] or None}
    if selector:
        spec["nodeSelector"] = dict(selector)
    if affinity:
        spec["affinity"] = dict(affinity)
    return {"spec": spec}


@dataclass(frozen=True, slots=True)
class Gates(PlacementDefaults):
    scheduler_name: str = ""
    """Name of the scheduler; empty: the cluster's default one."""
    numa: bool = False
    """Whether nodes report their NUMA zones, so that members are pinned to nodes whose zones are free."""

    @property
    def name(self) -> str:
        return "gates"

    @property
    def capabilities(self) -> frozenset[Capability]:
        extra = (Capability.NUMA,) if self.numa else ()
        return frozenset((Capability.GANG, Capability.EXCLUSIVE_NODES, Capability.RESIZE, Capability.TOPOLOGY, *extra))

    @property
    def emulated(self) -> bool:
        return True

    @property
    def for_shared_claims(self) -> PlacementPort:
        return self  # each pod is bound by itself, so that the second one of a claim finds it allocated

    def lacks(self, gang: Gang) -> str | None:
        return lacks_numa(gang, "a scheduler without gangs", numa=self.numa)

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        if self.scheduler_name:
            pod["spec"]["schedulerName"] = self.scheduler_name
        if waits_for_nodes(gang):
            pod["spec"]["schedulingGates"] = [*(pod["spec"].get("schedulingGates") or []), {"name": GATE}]

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        return GangState(message=why_pods_wait(pods))
