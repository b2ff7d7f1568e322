"""Apache YuniKorn: an application per run, a task group per role, declared by annotations on the pods. Pure.

Gangs use style Hard. YuniKorn reserves nodes with placeholder pods; if it cannot create these, for example because of a quota, it
starts the members one by one: so all or nothing is not guaranteed. Names and meanings:
https://yunikorn.apache.org/docs/user_guide/gang_scheduling
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.base import PlacementDefaults
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.manifests import annotate, label, quantities
from trainmaster_agent.placement.port import Gang, GangRole, GangState
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_level, lacks_numa, lacks_whole_nodes

_PREFIX = "yunikorn.apache.org/"
_LONGEST_LABEL = 63
_REFUSALS = ("ResourceReservationTimeout", "ApplicationRejected")
_WHERE = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""Fields of a pod that restrict its nodes: its placeholder pods have the same."""


@dataclass(frozen=True, slots=True)
class YuniKorn(PlacementDefaults):
    queues: QueueRules = field(default_factory=QueueRules)
    """YuniKorn's queues by their full names from ``root`` on. Without one, YuniKorn's own placement rules decide."""
    scheduler_name: str = "yunikorn"
    preemptible: bool = False
    """Whether other workloads may preempt our members."""

    @property
    def name(self) -> str:
        return "yunikorn"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset((Capability.GANG, Capability.RESIZE))

    def lacks(self, gang: Gang) -> str | None:
        lacking = lacks_level(gang, "YuniKorn") or lacks_numa(gang, "YuniKorn")
        return lacking or lacks_whole_nodes(gang, "YuniKorn")

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        label(pod, {_PREFIX + "app-id": application(gang)})
        queue = self.queues.of(gang.queue)
        if queue:
            label(pod, {_PREFIX + "queue": queue})
        annotate(pod, {_PREFIX + "allow-preemption": str(self.preemptible).lower()})
        pod["spec"]["schedulerName"] = self.scheduler_name
        if gang.size == 1:
            return
        groups = task_groups(gang)
        parameters = f"placeholderTimeoutInSeconds={max(1, round(gang.timeout))} gangSchedulingStyle=Hard"
        # On every pod: YuniKorn reads them from the first one that it sees.
        annotate(pod, {_PREFIX + "task-groups": json.dumps(groups, separators=(",", ":"))})
        annotate(pod, {_PREFIX + "schedulingPolicyParameters": parameters})
        if any(group["name"] == role.name for group in groups):
            annotate(pod, {_PREFIX + "task-group-name": role.name})

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        refused = next((pod for pod in pods if pod.reason in _REFUSALS), None)
        if refused is not None:
            return GangState(refused=f"YuniKorn refused it: {refused.message or refused.reason}")
        return GangState(message=why_pods_wait(pods))


def application(gang: Gang) -> str:
    """Return the id of the application of a gang, another one for each time that all members start.

    YuniKorn keeps an application for 30 seconds after its last pod, as one whose gang has been placed: pods that join it then are
    placed one by one.
    """
    suffix = "-".join((str(gang.owner.get("uid", ""))[:8], *((str(gang.round),) if gang.round else ())))
    return f"{gang.run[: _LONGEST_LABEL - 1 - len(suffix)]}-{suffix}"


def task_groups(gang: Gang) -> list[dict[str, Any]]:
    """Return the task groups, which together make up the gang's least members; a role with a minimum of 0 has none."""
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
