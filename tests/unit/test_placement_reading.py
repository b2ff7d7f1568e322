"""What schedulers say of a gang, read."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.test_placement_gangs import LABELS, RUN, WHOLE, a_sight
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.kueue import Kueue, KueueObjects
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import GangState, PlacementPort
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.placement.yunikorn import YuniKorn

Objects = Sequence[Mapping[str, Any]]
EARLY, LATE = "2026-10-01T10:00:00Z", "2026-10-01T10:00:30Z"
NO_CPU = "0/4 nodes are available: 4 Insufficient cpu."
WITH_ANOTHER = "0/1 nodes are available: 1 optimistic rejection in PostFilter."


def says(kind: str, status: str, reason: str = "", message: str = "", at: str = EARLY) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def an_object(*said: dict[str, str], phase: str = "", where: str = "conditions", **notes: str) -> dict[str, Any]:
    annotations = {f"kai.scheduler/{name.replace('_', '-')}": value for name, value in notes.items()}
    metadata = {"name": RUN, "namespace": "team-a", "labels": LABELS, "annotations": annotations}
    return {"metadata": metadata, "spec": {"queue": "q"}, "status": {"phase": phase, where: list(said)}}


def waits(message: str = NO_CPU) -> PodSight:
    return a_sight(reason="Unschedulable", message=message)


def fails(reason: str, message: str = "") -> PodSight:
    return a_sight(stage="failed", reason=reason, message=message)


UNSCHEDULABLE = says("Unschedulable", "True", "NotEnoughResources", "8/9 tasks in gang unschedulable")
SCHEDULED = says("Scheduled", "True", "tasks in gang are ready to be scheduled", at=LATE)
UNPLACED = says("PodGroupScheduled", "False", "Unschedulable", "minCount (9) cannot be satisfied")
UNPLACED_1_37 = says("PodGroupInitiallyScheduled", "False", "Unschedulable", "minCount (9) cannot be satisfied")
OVER_LIMIT = says("UnschedulableOnNodePool", "True", "Unschedulable", "OverLimit: queue default-queue")
OLD = EARLY.replace("10:00", "09:00")
KAI_EVICTED = an_object(last_start_timestamp=EARLY, last_eviction_timestamp=LATE)
QUEUED = says("QuotaReserved", "False", "Pending", "couldn't assign flavors: insufficient unused quota for cpu")
TOO_LARGE = says("QuotaReserved", "False", "ExceedsMaxQuota", "request (64) > maximum capacity (32)")
NO_SUCH_QUEUE = says("QuotaReserved", "False", "Inadmissible", "LocalQueue user-queue doesn't exist")
PREEMPTED = says("Evicted", "True", "Preempted", "to accommodate a workload of higher priority")
GATED = a_sight(stage="gated", reason="SchedulingGated", message="Scheduling is blocked")

CASES: dict[str, tuple[PlacementPort, Objects, list[PodSight], GangState]] = {
    "native: nothing is said": (Native(), [an_object()], [a_sight()], GangState()),
    "native: the group waits": (Native(), [an_object(UNPLACED)], [a_sight()], GangState(UNPLACED["message"])),
    "native: a pod says more": (Native(), [an_object(UNPLACED)], [waits()], GangState(NO_CPU)),
    "native 1.37: the group waits": (
        Native("v1beta1"),
        [an_object(UNPLACED_1_37)],
        [],
        GangState(UNPLACED_1_37["message"]),
    ),
    "native: was placed once": (Native(), [an_object(says("PodGroupScheduled", "True"))], [], GangState()),
    "native 1.37: evicted as a whole": (
        Native("v1beta1"),
        [an_object(says("DisruptionTarget", "True", "PreemptionByScheduler", "preempted by team-b/urgent"))],
        [],
        GangState(evicted="preempted by team-b/urgent"),
    ),
    "gates: closed gates are no news": (Gates(), [], [GATED], GangState()),
    "gates: open, and no room": (Gates(), [], [waits()], GangState(NO_CPU)),
    "volcano: held in the queue": (
        Volcano(),
        [an_object(phase="Pending")],
        [],
        GangState("Volcano has not let it into queue q yet"),
    ),
    "volcano: held in the queue, so that its members have no nodes": (
        Volcano(),
        [an_object(UNSCHEDULABLE, phase="Pending")],
        [waits()],
        GangState("Volcano has not let it into queue q yet"),
    ),
    "volcano: no room": (
        Volcano(),
        [an_object(UNSCHEDULABLE, phase="Inqueue")],
        [waits()],
        GangState(UNSCHEDULABLE["message"]),
    ),
    "volcano: an old condition that stayed": (
        Volcano(),
        [an_object(UNSCHEDULABLE, SCHEDULED, phase="Inqueue")],
        [],
        GangState(),
    ),
    "volcano: an old condition while it runs": (
        Volcano(),
        [an_object(UNSCHEDULABLE, phase="Running")],
        [],
        GangState(),
    ),
    "volcano: no room again": (
        Volcano(),
        [
            an_object(
                UNSCHEDULABLE | {"lastTransitionTime": LATE}, SCHEDULED | {"lastTransitionTime": EARLY}, phase="Unknown"
            )
        ],
        [],
        GangState(UNSCHEDULABLE["message"]),
    ),
    "kai: over a limit": (
        Kai(),
        [an_object(OVER_LIMIT, where="schedulingConditions")],
        [waits()],
        GangState(OVER_LIMIT["message"]),
    ),
    "kai: nothing but pods": (Kai(), [an_object()], [waits("no fit")], GangState("no fit")),
    "kai: evicted, and no pod stays": (
        Kai(),
        [KAI_EVICTED],
        [a_sight(stage="running", deleting=True)],
        GangState(evicted=f"KAI evicted it at {LATE}"),
    ),
    "kai: evicted, and what ended before is still there": (
        Kai(),
        [KAI_EVICTED],
        [a_sight(stage="succeeded")],
        GangState(evicted=f"KAI evicted it at {LATE}"),
    ),
    "kai: evicted in part": (Kai(), [KAI_EVICTED], [a_sight(stage="running")], GangState()),
    "kai: started again since": (
        Kai(),
        [an_object(last_start_timestamp=EARLY, last_eviction_timestamp=OLD)],
        [],
        GangState(),
    ),
    "yunikorn: waits": (YuniKorn(), [], [waits("queue is full")], GangState("queue is full")),
    "yunikorn: its time is over": (
        YuniKorn(),
        [],
        [fails("ResourceReservationTimeout"), waits()],
        GangState(refused="YuniKorn refused it: ResourceReservationTimeout"),
    ),
    "yunikorn: no such queue": (
        YuniKorn(),
        [],
        [fails("ApplicationRejected", "failed to find queue root.none")],
        GangState(refused="YuniKorn refused it: failed to find queue root.none"),
    ),
    "yunikorn: a member's own failure": (YuniKorn(), [], [fails("OOMKilled")], GangState()),
    "coscheduling: only pods speak": (Coscheduling(), [], [waits()], GangState(NO_CPU)),
    "coscheduling: a member was rejected because of another one": (
        Coscheduling(),
        [],
        [waits(WITH_ANOTHER), waits("it is beyond the quota")],
        GangState("it is beyond the quota"),
    ),
    "coscheduling: all were rejected because of others": (
        Coscheduling(),
        [],
        [waits(WITH_ANOTHER)],
        GangState(WITH_ANOTHER),
    ),
    "kueue: waits for quota": (Kueue(), [an_object(QUEUED)], [GATED], GangState(QUEUED["message"])),
    "kueue: more than the queue may ever have": (
        Kueue(),
        [an_object(TOO_LARGE)],
        [GATED],
        GangState(refused=f"Kueue refused it: {TOO_LARGE['message']}"),
    ),
    "kueue: no such nodes": (
        Kueue(),
        [an_object(TOO_LARGE | {"reason": "NoMatchingFlavor", "message": "node affinity does not match"})],
        [GATED],
        GangState(refused="Kueue refused it: node affinity does not match"),
    ),
    "kueue: what an owner can put right": (
        Kueue(),
        [an_object(NO_SUCH_QUEUE)],
        [GATED],
        GangState(NO_SUCH_QUEUE["message"]),
    ),
    "kueue: admitted, and the scheduler behind has no room": (
        Kueue(),
        [an_object(says("QuotaReserved", "True", "QuotaReserved"))],
        [waits()],
        GangState(NO_CPU),
    ),
    "kueue: evicted": (
        Kueue(),
        [an_object(PREEMPTED, QUEUED)],
        [],
        GangState(QUEUED["message"], evicted=f"Kueue evicted it (Preempted): {PREEMPTED['message']}"),
    ),
    "kueue: an object that it has not seen": (
        KueueObjects(),
        [],
        [],
        GangState("it waits for Kueue, which has made no Workload for it yet"),
    ),
    "kueue: an object that waits for quota": (KueueObjects(), [an_object(QUEUED)], [], GangState(QUEUED["message"])),
    "kueue: evicted once and admitted again": (
        Kueue(),
        [an_object(PREEMPTED | {"status": "False"}, says("QuotaReserved", "True"))],
        [],
        GangState(),
    ),
}


@pytest.mark.parametrize(("placement", "objects", "pods", "state"), CASES.values(), ids=CASES.keys())
def test_reading(placement: PlacementPort, objects: Objects, pods: list[PodSight], state: GangState) -> None:
    assert placement.read(WHOLE, objects, pods) == state


def test_a_workload_is_ours_when_it_is_owned_by_pods_of_the_run_it_is_named_like() -> None:
    def workload(owner: str, kind: str = "Pod") -> dict[str, Any]:
        return {"metadata": {"name": RUN, "ownerReferences": [{"kind": kind, "name": owner}]}}

    assert Kueue().run_of(workload(f"{RUN}-worker-3")) == RUN
    assert Kueue().run_of(workload("another-worker-3")) is None
    assert Kueue().run_of(workload(f"{RUN}-worker-3", "Job")) is None
    assert Kueue().run_of({"metadata": {"name": RUN}}) is None
    template = {"metadata": {"labels": {"trainmaster.dev/run": RUN}}, "spec": {}}
    of_object = {"metadata": {"name": "job-1"}, "spec": {"podSets": [{"name": "main", "template": template}]}}
    assert Kueue().run_of(of_object) == RUN
    assert Kueue().run_of({"metadata": {"name": "x"}, "spec": {"podSets": [{"template": {"spec": {}}}]}}) is None


def test_a_foreign_pod_group_is_of_no_run() -> None:
    assert Volcano().run_of({"metadata": {"name": "podgroup-1"}}) is None
