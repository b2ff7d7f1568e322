"""The emulated gang, for schedulers that know none: pods are held by a scheduling gate of ours. Pure.

The agent opens the gates of all members once its own books say that the gang fits, and with them writes where: the domain of a
required level as a node selector, which Kubernetes lets be narrowed while a pod is gated. That is not all or nothing: another pod may
come first.
Scheduling gates: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import Usual
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.port import Gang, GangRole, GangState
from trainmaster_agent.placement.requirements import lacks_numa, needs_group

GATE = "trainmaster.dev/gang"


def opening_patch(pod_gates: Sequence[Mapping[str, Any]], selector: Mapping[str, str]) -> dict[str, Any]:
    """The merge patch that takes our gate off a pod with these ``spec.schedulingGates`` and adds to its node selector.

    Others' gates stay. Should one of them be taken off meanwhile, this patch would put it back: the API refuses that (422), and the
    pod has to be read anew.
    """
    spec: dict[str, Any] = {"schedulingGates": [dict(gate) for gate in pod_gates if gate.get("name") != GATE] or None}
    if selector:
        spec["nodeSelector"] = dict(selector)
    return {"spec": spec}


@dataclass(frozen=True, slots=True)
class Gates(Usual):
    scheduler_name: str = ""
    """Empty: the cluster's default scheduler."""

    @property
    def name(self) -> str:
        return "gates"

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(("gang", "resize", "topology"))

    @property
    def emulated(self) -> bool:
        return True

    def lacks(self, gang: Gang) -> str | None:
        return lacks_numa(gang, "a scheduler without gangs")

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        if self.scheduler_name:
            pod["spec"]["schedulerName"] = self.scheduler_name
        if needs_group(gang):
            pod["spec"]["schedulingGates"] = [*(pod["spec"].get("schedulingGates") or []), {"name": GATE}]

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        return GangState(message=why_pods_wait(pods))
