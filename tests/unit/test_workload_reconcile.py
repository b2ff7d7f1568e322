"""Decisions on runs whose pods the controller of another API's object makes, and the members that its pods are."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.unit.workload_manifests import SAMPLES, condition, manifest, template
from trainmaster.protocol.agent import MOST_STATUS_BYTES, RunEnd, StartRun, StopRun
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster.workload_kinds.kind import WorkloadEnd
from trainmaster.workload_kinds.registry import kind_of
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROLE, LABEL_RUN, PodSight
from trainmaster_agent.placement.port import GangState
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment, ReconcileLimits, Sights, reconcile
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord, Progress, RecordedEnd
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, facts_of
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.workload_objects import (
    NewPod,
    WorkloadSight,
    indexes_for,
    new_pod,
    object_name,
    see_workload,
)
from trainmaster_agent.runtime.kubernetes.workload_reconcile import WorkloadLook
from trainmaster_agent.runtime.port import RunStatus

RUN = "pi-0000001-r1"
NOW = 1000.0
LIMITS = ReconcileLimits(image=60, container=60, start=60, opened=60)
OBJECT = WorkloadSight(RUN, RUN, "uid-of-object")


def facts(parallelism: int = 2, **spec: Any) -> Facts:
    given = manifest("batch/v1", "Job", {"parallelism": parallelism, "template": template(), **spec})
    return facts_of(start_of(translated(given).spec, {"main": parallelism}))


def start_of(spec: dict[str, Any], sizes: dict[str, int]) -> StartRun:
    return StartRun(
        run=RUN,
        job="pi-0000001",
        queue="research/vision",
        attempt=1,
        token=1,
        generation=1,
        spec=spec,
        sizes=sizes,
        placement_timeout_seconds=300,
    )


def pod(index: int, stage: str = "running", **fields: Any) -> PodSight:
    started = NOW - 5 if stage in ("running", "succeeded", "failed") else None
    known: dict[str, Any] = {"node": "n", "created_at": NOW - 10, "started_at": started}
    names = {"uid": f"uid-{index}", "role": "main"}
    uid, role = (fields.pop(field, value) for field, value in names.items())
    return PodSight(f"pod-{index}", "jobs", uid, index + 1, RUN, role, index, stage, **known | fields)  # type: ignore[arg-type]


def decided(progress: Progress, sights: Sights, now: float = NOW, of: Facts | None = None) -> Assessment:
    return reconcile(of or facts(), progress, {"main": 2}, sights, LIMITS, now, WorkloadLook)


def sights(*pods: PodSight, workload: WorkloadSight | None = OBJECT, **fields: Any) -> Sights:
    return Sights(
        {(one.role, one.index): one for one in pods},
        **{"accepted_at": NOW - 20, "placement_timeout": 300.0, "workload": workload, **fields},
    )


MADE = Progress(created=True)


def test_the_object_is_created_first_and_no_pod_by_the_agent() -> None:
    found = decided(Progress(), sights(workload=None))
    assert (found.creates_workload, found.create, found.state) == (True, (), RunState.ACCEPTED)
    later = decided(replace(Progress(), round=1, not_before=NOW + 5), sights(workload=None))
    assert not later.creates_workload


def test_an_object_that_exists_is_recorded_as_created() -> None:
    found = decided(Progress(), sights())
    assert found.progress is not None
    assert found.progress.created


def test_it_runs_once_all_pods_of_the_gang_have_started() -> None:
    assert decided(MADE, sights(pod(0))).state is RunState.PENDING
    found = decided(MADE, sights(pod(0), pod(1)))
    assert (found.state, found.create, found.remove) == (RunState.RUNNING, (), ())
    one_over = decided(MADE, sights(pod(0, "succeeded"), pod(1)))
    assert one_over.state is RunState.RUNNING, "a pod that has ended is the controller's to judge"
    failed = decided(MADE, sights(pod(0, "failed", exit_code=1), pod(1)))
    assert (failed.state, failed.progress) == (RunState.RUNNING, None)


def test_a_run_that_its_scheduler_has_evicted_ends_once_no_pod_is_left() -> None:
    evicted = GangState(evicted="Kueue evicted it (Preempted): for a more important one")
    leaving = decided(MADE, sights(pod(0), pod(1, deleting=True), gang=evicted))
    assert (leaving.state, leaving.progress) == (RunState.RUNNING, None)
    found = decided(MADE, sights(pod(0, "failed", exit_code=143), pod(1, deleting=True), gang=evicted))
    assert found.progress is not None
    assert found.progress.verdict is not None
    assert found.progress.verdict.state is RunState.PREEMPTED
    assert "for a more important one" in found.progress.verdict.message


def test_the_end_of_the_object_is_that_of_the_run() -> None:
    done = replace(OBJECT, end=WorkloadEnd(True))
    found = decided(MADE, sights(pod(0, "succeeded"), pod(1, "succeeded"), workload=done))
    assert found.progress is not None
    assert found.progress.verdict == RecordedEnd(RunState.SUCCEEDED)
    assert found.progress.ended_at == NOW
    going = decided(MADE, sights(pod(0, "succeeded"), pod(1), workload=done))
    assert going.progress is not None
    assert going.progress.ended_at is None, "a pod that still runs is waited for"


@pytest.mark.parametrize(
    ("end", "pods", "category", "words"),
    [
        (WorkloadEnd(False, "BackoffLimitExceeded: limit"), (pod(0, "failed", exit_code=3),), "exit", "3"),
        (WorkloadEnd(False, "BackoffLimitExceeded: limit"), (), "exit", "BackoffLimitExceeded"),
        (WorkloadEnd(False, "", FailureCategory.DEADLINE), (pod(0, "failed", exit_code=3),), "deadline", ""),
        (WorkloadEnd(False), (pod(0, "failed", reason="OOMKilled", exit_code=137),), "oom", ""),
        (WorkloadEnd(False), (), "exit", "its Job has failed"),
    ],
)
def test_a_failure_has_the_category_of_its_status_or_of_the_last_pod(
    end: WorkloadEnd, pods: tuple[PodSight, ...], category: str, words: str
) -> None:
    found = decided(MADE, sights(*pods, workload=replace(OBJECT, end=end)))
    assert found.progress is not None
    verdict = found.progress.verdict
    assert verdict is not None
    assert (verdict.state, verdict.end and verdict.end.category) == (RunState.FAILED, category)
    assert words in verdict.message


def test_an_object_that_somebody_deletes_preempts_the_run() -> None:
    for workload in (None, replace(OBJECT, is_deleting=True)):
        found = decided(MADE, sights(pod(0), workload=workload))
        assert found.progress is not None
        assert found.progress.verdict is not None
        assert found.progress.verdict.state is RunState.PREEMPTED
        assert "somebody deleted its Job" in found.progress.verdict.message


def test_a_gang_without_places_in_time_is_returned_for_want_of_room() -> None:
    found = decided(MADE, sights(pod(0, "waiting", node=""), accepted_at=NOW - 301))
    assert found.progress is not None
    assert found.progress.verdict is not None
    assert found.progress.verdict.state is RunState.RETURNED
    assert found.progress.verdict.end is not None
    assert found.progress.verdict.end.lacks_room


def test_a_gang_whose_pods_are_not_made_says_so() -> None:
    assert decided(MADE, sights(pod(0, "waiting", node=""))).message == (
        "its Job has made 1 of the 2 pods that start together"
    )
    waiting = decided(MADE, sights(pod(0, "waiting", node=""), pod(1, "waiting", node="")))
    assert waiting.message.startswith("waits for nodes for 2 of 2 members")


def test_what_the_scheduler_refuses_is_returned_and_a_lost_dispatcher_ends_it() -> None:
    refused = decided(MADE, sights(gang=GangState(refused="no such queue"))).progress
    assert refused is not None
    assert refused.verdict == RecordedEnd(RunState.RETURNED, "no such queue")
    lost = decided(MADE, sights(pod(0), pod(1), lost_at=NOW - 1)).progress
    assert lost is not None
    assert lost.verdict is not None
    assert lost.verdict.state is RunState.LOST


def test_a_stop_removes_the_object_before_its_pods_and_ends_when_both_are_gone() -> None:
    stopped = replace(
        MADE, stop=StopRun(run=RUN, generation=2, cause=StopCause.CANCEL, grace_seconds=5), stopped_at=NOW
    )
    first = decided(stopped, sights(pod(0), pod(1)))
    assert (first.removes_workload, first.remove, first.state) == (True, (), RunState.STOPPING)
    second = decided(stopped, sights(pod(0), pod(1), workload=replace(OBJECT, is_deleting=True)))
    assert (second.removes_workload, len(second.remove)) == (False, 2)
    waiting = decided(stopped, sights(workload=replace(OBJECT, is_deleting=True)))
    assert (waiting.progress, waiting.state) == (None, RunState.STOPPING)
    third = decided(stopped, sights(pod(0), workload=None))
    assert (third.progress, len(third.remove)) == (None, 1)
    over = decided(stopped, sights(pod(0, "failed"), workload=None))
    assert over.progress is not None
    assert over.progress.ended_at == NOW


def test_members_of_another_round_need_another_object() -> None:
    found = decided(replace(Progress(), round=1), sights(pod(0)))
    assert (found.removes_workload, found.creates_workload) == (True, False)
    gone = decided(replace(Progress(), round=1), sights(pod(0), workload=None))
    assert gone.creates_workload


def test_a_container_that_never_starts_fails_the_run_whatever_its_controller_does() -> None:
    stuck = pod(0, "bound", reason="ImagePullBackOff", message="no such image")
    found = decided(MADE, sights(stuck, trouble_since={stuck.uid: NOW - 61}))
    assert found.progress is not None
    assert found.progress.verdict is not None
    assert found.progress.verdict.end == RunEnd(
        category=FailureCategory.IMAGE, member="main-0", message=found.progress.verdict.message
    )


def test_members_that_come_later_do_not_belong_to_the_gang() -> None:
    worker = {"groupName": "w", "replicas": 2, "template": template()}
    given = manifest(
        "ray.io/v1",
        "RayJob",
        {"rayClusterSpec": {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [worker]}},
    )
    made = translated(given).spec
    sizes = {role["name"]: role.get("replicas", 1) for role in made["roles"]}
    found = facts_of(start_of(made, sizes))
    assert sizes == {"head": 1, "w": 2, "submitter": 1}
    assert found.least == 3
    assert found.late == frozenset({"submitter"})
    assert found.roles["submitter"].least == 0


def test_a_run_of_spark_runs_with_its_driver_however_many_executors_there_are() -> None:
    made = translated(SAMPLES["sparkoperator.k8s.io/v1beta2 SparkApplication"].manifest).spec
    sizes = {"driver": 1, "executor": 3}
    found = facts_of(start_of(made, sizes))
    assert (found.least, found.late) == (1, frozenset({"executor"}))
    driver = pod(0, role="driver")
    for many in (0, 2, 5):
        executors = [pod(index, role="executor", uid=f"e{index}") for index in range(many)]
        seen = sights(driver, *executors)
        assert reconcile(found, MADE, sizes, seen, LIMITS, NOW, WorkloadLook).state is RunState.RUNNING
    lost = sights(driver, pod(0, "failed", role="executor"), pod(1, deleting=True, role="executor"))
    assert reconcile(found, MADE, sizes, lost, LIMITS, NOW, WorkloadLook).progress is None, "the driver makes another"


def new(name: str, created: str = "2026-01-01T00:00:00Z", role: str = "main", number: int = 0) -> NewPod:
    return NewPod(name, "jobs", f"uid of {name}", RUN, role, number, created, "")


def test_new_pods_get_free_indexes_then_those_of_pods_that_have_ended() -> None:
    sizes = {"main": 3, "other": 1}
    given = indexes_for([new("b"), new("a"), new("c", role="other")], [pod(1)], sizes)
    assert {one.name: index for one, index in given} == {"a": 0, "b": 2, "c": 0}
    older_first = indexes_for([new("a", "2026-01-01T00:00:02Z"), new("b", "2026-01-01T00:00:01Z")], [], sizes)
    assert [(one.name, index) for one, index in older_first] == [("b", 0), ("a", 1)]
    full = [pod(0), pod(1, "failed"), pod(2)]
    assert [index for _, index in indexes_for([new("a")], full, sizes)] == [1]
    assert [index for _, index in indexes_for([new("a"), new("b")], full, sizes)] == [1, 3], "one more than there are"
    earlier = [pod(0), pod(1), pod(2)]
    assert [index for _, index in indexes_for([new("a", number=1)], earlier, sizes)] == [0], "of an earlier round"


def test_only_pods_of_runs_without_an_index_are_new() -> None:
    metadata = {"name": "pi-x", "namespace": "jobs", "uid": "u", "labels": {LABEL_RUN: RUN, LABEL_ROLE: "main"}}
    found = new_pod({"metadata": metadata})
    assert found is not None
    assert (found.run, found.role, found.round) == (RUN, "main", 0)
    assert new_pod({"metadata": {**metadata, "labels": {**metadata["labels"], LABEL_INDEX: "0"}}}) is None  # type: ignore[dict-item]
    assert new_pod({"metadata": {**metadata, "labels": None}}) is None


def test_the_name_of_an_object_leaves_room_for_what_controllers_add() -> None:
    assert object_name("coordinator-example-9m794px-r12") == "coordinator-9m794px-r12"
    assert object_name("pi-0000001-r1") == "pi-0000001-r1"
    assert object_name("pytorch-mm-example-9m794px-r1") == "pytorch-mm-9m794px-r1"


def test_an_object_is_seen_with_its_end() -> None:
    job = kind_of("batch/v1", "Job")
    assert job is not None
    metadata = {"name": RUN, "namespace": "jobs", "uid": "u", "labels": {LABEL_RUN: RUN}}
    assert see_workload(job, {"metadata": metadata}) == WorkloadSight(RUN, RUN, "u")
    ended = see_workload(job, {"metadata": metadata, "status": condition("Complete")})
    assert ended is not None
    assert ended.end == WorkloadEnd(True)
    assert ended.status == condition("Complete")
    assert see_workload(job, {"metadata": {**metadata, "labels": None}}) is None


def test_of_a_large_status_the_conditions_are_reported_first() -> None:
    job = kind_of("batch/v1", "Job")
    assert job is not None
    metadata = {"name": RUN, "namespace": "jobs", "uid": "u", "labels": {LABEL_RUN: RUN}}
    small = {**condition("Suspended"), "active": 1}
    for large in ({"completedIndexes": "1" * MOST_STATUS_BYTES}, {"a": "1" * 9000, "b": "2" * 9000}):
        found = see_workload(job, {"metadata": metadata, "status": {**large, **small}})
        assert found is not None
        assert found.status.items() >= small.items()
        assert len(orjson.dumps(found.status)) <= MOST_STATUS_BYTES
    huge = see_workload(job, {"metadata": metadata, "status": condition("Failed", "x", "y" * MOST_STATUS_BYTES)})
    assert huge is not None
    assert (huge.status, huge.end is not None) == ({}, True)


def test_counts_are_reported_from_time_to_time_and_conditions_at_once() -> None:
    tracker = RunTracker(
        KubeRunRecord(start_of({}, {"main": 1}), "jobs", 1), facts(), RunStatus(RUN, 1, 1, RunState.RUNNING)
    )
    reported: list[tuple[float | None, object]] = []

    def report(now: float, end: WorkloadEnd | None = None, **status: Any) -> None:
        tracker.workload = replace(OBJECT, status=status, end=end) if status else None
        reported.append((tracker.take_object_status(now), tracker.object_status))

    suspended = [{"type": "Suspended"}]
    report(NOW)
    report(NOW, active=1)
    report(NOW + 1, active=2)
    report(NOW + 2, active=2, conditions=suspended)
    report(NOW + 3, active=3, conditions=suspended)
    report(NOW + 12, active=3, conditions=suspended)
    report(NOW + 13, active=0, end=WorkloadEnd(True))
    report(NOW + 14)
    assert reported == [
        (None, None),
        (None, {"active": 1}),
        (NOW + 10, {"active": 1}),
        (None, {"active": 2, "conditions": suspended}),
        (NOW + 12, {"active": 2, "conditions": suspended}),
        (None, {"active": 3, "conditions": suspended}),
        (None, {"active": 0}),
        (None, {"active": 0}),
    ], "the last one stays, once the object is removed"
