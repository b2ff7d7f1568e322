"""Apache YuniKorn: an application for a run, a task group for each role, all of it said on the pods. Pure.

Gangs are asked for in style Hard. YuniKorn holds their places with pods of its own; should it fail to create these, by a quota say, it
starts the members one by one even so: not all or nothing for certain. Names and meanings:
https://yunikorn.apache.org/docs/user_guide/gang_scheduling
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import Usual
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.manifests import annotate, label, quantities
from trainmaster_agent.placement.port import Gang, GangRole, GangState
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa

_PREFIX = "yunikorn.apache.org/"
_REFUSALS = ("ResourceReservationTimeout", "ApplicationRejected")
_WHERE = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""What of a pod says where it may go: the pods that hold its place say the same."""


@dataclass(frozen=True, slots=True)
class YuniKorn(Usual):
    queues: QueueRules = field(default_factory=QueueRules)
    """Full names from ``root`` on. Without one YuniKorn's own placement rules decide."""
    scheduler_name: str = "yunikorn"
    preemptible: bool = False
    """Whether other work may take our members' places."""

    @property
    def name(self) -> str:
        return "yunikorn"

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(("gang", "resize"))

    def lacks(self, gang: Gang) -> str | None:
        return lacks_level(gang, "YuniKorn") or lacks_numa(gang, "YuniKorn")

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        label(pod, {_PREFIX + "app-id": gang.run})
        queue = self.queues.of(gang.queue)
        if queue:
            label(pod, {_PREFIX + "queue": queue})
        annotate(pod, {_PREFIX + "allow-preemption": str(self.preemptible).lower()})
        pod["spec"]["schedulerName"] = self.scheduler_name
        if gang.size == 1:
            return
        groups = task_groups(gang)
        parameters = f"placeholderTimeoutInSeconds={max(1, round(gang.timeout))} gangSchedulingStyle=Hard"
        # On every pod: YuniKorn reads them from the one that it sees first.
        annotate(pod, {_PREFIX + "task-groups": json.dumps(groups, separators=(",", ":"))})
        annotate(pod, {_PREFIX + "schedulingPolicyParameters": parameters})
        if any(group["name"] == role.name for group in groups):
            annotate(pod, {_PREFIX + "task-group-name": role.name})

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        refused = next((pod for pod in pods if pod.reason in _REFUSALS), None)
        if refused is not None:
            return GangState(refused=f"YuniKorn refused it: {refused.message or refused.reason}")
        return GangState(message=why_pods_wait(pods))


def task_groups(gang: Gang) -> list[dict[str, Any]]:
    """Together they make up the gang's least members; a role that it may start without has none."""
    return [
        {
            "name": role.name,
            "minMember": count,
            "minResource": quantities(role.requests),
            **{name: role.pod[name] for name in _WHERE if role.pod.get(name)},
        }
        for role, count in gang.quorum()
        if count
    ]
