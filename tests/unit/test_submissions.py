"""Steps for an object of a cluster and the job that it became."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workload_manifests import SAMPLES, condition
from trainmaster.workload_kinds.kind import MANAGER, WorkloadKind, at
from trainmaster.workload_kinds.registry import KINDS, kind_by_name
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.submissions.decisions import (
    CreateJob,
    DeleteJob,
    LookForJob,
    ReportStatus,
    Step,
    SuspendJob,
    is_managed,
    is_misplaced,
    job_object_name,
    lost_job,
    refused_job,
    steps,
)

Wire = dict[str, Any]
NOW = "2026-11-28T08:00:00Z"
MANAGED = [kind for kind in KINDS if kind.manager_path and kind.may_name_dispatcher]
EACH = pytest.mark.parametrize("kind", MANAGED, ids=lambda kind: kind.name)


def the_object(kind: WorkloadKind, manager: str = MANAGER, **metadata: Any) -> Wire:
    """Return an object of a cluster, as its API server stores it."""
    found = deepcopy(SAMPLES[kind.name].manifest)
    parent = found
    for step in kind.manager_path[:-1]:
        parent = parent.setdefault(step, {})
    parent[kind.manager_path[-1]] = manager
    found["metadata"] = {"name": "pi", "namespace": "team", "uid": "u-1", "resourceVersion": "7", **metadata}
    return found


def the_job(kind: WorkloadKind, local: Wire, status: Wire | None = None, **annotations: str) -> Wire:
    """Return the object of its job in the dispatcher, once that was created."""
    (step,) = steps(kind, "south", local, None, None, NOW)
    assert isinstance(step, CreateJob)
    made = deepcopy(step.manifest)
    reported = {f"trainmaster.dev/{name}": text for name, text in annotations.items()}
    made["metadata"]["annotations"] |= reported
    return {**made, "status": status or {}}


def batch() -> WorkloadKind:
    kind = kind_by_name("batch/v1 Job")
    assert kind is not None
    return kind


@EACH
def test_an_object_that_names_the_dispatcher_becomes_a_job(kind: WorkloadKind) -> None:
    local = the_object(kind, labels={"app": "pi"}, annotations={"note": "x", "trainmaster.dev/queue": "team"})
    assert is_managed(kind, local)
    assert not is_managed(kind, the_object(kind, "another/controller"))
    (step,) = steps(kind, "south", local, None, None, NOW)
    assert isinstance(step, CreateJob)
    assert step.queue is not None
    assert step.queue.value == "team"
    metadata = step.manifest["metadata"]
    assert metadata["labels"].items() >= {"app": "pi", "trainmaster.dev/origin-uid": "u-1"}.items()
    assert metadata["annotations"]["note"] == "x"
    assert at(step.manifest, kind.manager_path) is None, "on the cluster where it runs, its own controller runs it"
    made = translated(step.manifest).spec
    before = translated(SAMPLES[kind.name].manifest).spec
    assert made["roles"] == before["roles"]
    assert "trainmaster.dev" not in str(made["workload"]), "what is the dispatcher's own is not on the cluster"


def test_what_an_api_server_adds_to_a_job_is_left_out() -> None:
    kind = batch()
    added = {"batch.kubernetes.io/controller-uid": "u-1", "job-name": "pi"}
    local = the_object(kind, labels={"app": "pi", **added}, annotations={"trainmaster.dev/queue": "team"})
    local["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}
    local["spec"]["template"]["metadata"] = {"labels": {"app": "pi", **added}}
    local["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    (step,) = steps(kind, "south", local, None, None, NOW)
    assert isinstance(step, CreateJob)
    made = translated(step.manifest).spec
    assert "job-name" not in str(made)
    assert "selector" not in str(made)
    assert "schedulerName" not in str(made)
    assert local["spec"]["selector"], "the object itself is as it was"


def test_kinds_that_allow_no_other_manager_are_taken_with_that_of_multikueue_and_a_queue() -> None:
    ray = kind_by_name("ray.io/v1 RayJob")
    assert ray is not None
    other = "kueue.x-k8s.io/multikueue"
    assert not is_managed(ray, the_object(ray, other))
    assert is_managed(ray, the_object(ray, other, annotations={"trainmaster.dev/queue": "team"}))
    assert not is_managed(batch(), the_object(batch(), other, annotations={"trainmaster.dev/queue": "team"}))


def test_the_queue_is_that_of_the_object_or_of_its_namespace() -> None:
    local = the_object(batch())
    (step,) = steps(batch(), "south", local, None, "research", NOW)
    assert isinstance(step, CreateJob)
    assert step.queue is not None
    assert (step.queue.value, is_misplaced(step.queue, "research")) == ("research", False)
    named = the_object(batch(), annotations={"trainmaster.dev/queue": "research/vision"})
    (step,) = steps(batch(), "south", named, None, "research", NOW)
    assert isinstance(step, CreateJob)
    assert not is_misplaced(step.queue, "research"), "below it"
    assert is_misplaced(step.queue, "other")
    assert not is_misplaced(step.queue, None)


@EACH
def test_the_status_of_the_job_comes_back_to_its_object(kind: WorkloadKind) -> None:
    local = the_object(kind)
    remote = the_job(kind, local, {"active": 1}, job="pi-1", state="running", cluster="north")
    (step,) = steps(kind, "south", local, remote, None, NOW)
    assert isinstance(step, ReportStatus)
    assert step.status == {"active": 1}
    assert step.annotations["trainmaster.dev/cluster"] == "north"
    reported = {**local, "status": {"active": 1}}
    reported["metadata"] = {**local["metadata"], "annotations": dict(step.annotations)}
    assert steps(kind, "south", reported, remote, None, NOW) == [], "nothing is written twice"


def test_of_a_job_that_runs_again_the_start_stays_that_of_its_object() -> None:
    local = {**the_object(batch()), "status": {"startTime": "2026-01-01T00:00:00Z"}}
    remote = the_job(batch(), local, {"startTime": "2026-01-02T00:00:00Z", "active": 1})
    (step,) = steps(batch(), "south", local, remote, None, NOW)
    assert isinstance(step, ReportStatus)
    assert step.status == {"startTime": "2026-01-01T00:00:00Z", "active": 1}
    waits = the_job(batch(), local, {})
    assert steps(batch(), "south", local, waits, None, NOW) == [], "a job that waits has none"


@EACH
def test_an_object_that_is_gone_or_going_takes_its_job_with_it(kind: WorkloadKind) -> None:
    local = the_object(kind)
    remote = the_job(kind, local)
    assert steps(kind, "south", None, remote, None, NOW) == [DeleteJob()]
    going = the_object(kind, deletionTimestamp=NOW)
    assert steps(kind, "south", going, remote, None, NOW) == [DeleteJob()]
    assert steps(kind, "south", going, None, None, NOW) == []
    remote["metadata"]["deletionTimestamp"] = NOW
    assert steps(kind, "south", None, remote, None, NOW) == [], "it is being cancelled already"


@EACH
def test_a_wish_to_suspend_is_passed_on_once(kind: WorkloadKind) -> None:
    local = the_object(kind)
    remote = the_job(kind, local)
    parent = local
    for field in kind.suspend_path[:-1]:
        parent = parent.setdefault(field, {})
    parent[kind.suspend_path[-1]] = True
    (step,) = steps(kind, "south", local, remote, None, NOW)
    assert isinstance(step, SuspendJob)
    assert at(step.patch, kind.suspend_path) is True
    remote["metadata"]["annotations"] |= step.patch["metadata"]["annotations"]
    assert steps(kind, "south", local, remote, None, NOW) == []
    parent[kind.suspend_path[-1]] = False
    (step,) = steps(kind, "south", local, remote, None, NOW)
    assert isinstance(step, SuspendJob)
    assert at(step.patch, kind.suspend_path) is False


@EACH
def test_an_object_whose_job_is_gone_is_not_submitted_again(kind: WorkloadKind) -> None:
    local = the_object(kind, annotations={"trainmaster.dev/job": "pi-1"})
    assert steps(kind, "south", local, None, None, NOW) == [LookForJob()]
    for report in (lost_job(kind, local, NOW), refused_job(kind, local, "it is not valid", NOW)):
        if kind.ends:
            ended = {**local, "status": report.status}
            end = kind.end_of(ended)
            assert end is not None
            assert not end.has_succeeded
            assert steps(kind, "south", ended, None, None, NOW) == []


def test_the_name_of_a_job_follows_from_the_object() -> None:
    one, other = the_object(batch()), the_object(batch(), uid="u-2")
    assert job_object_name("south", one) == job_object_name("south", deepcopy(one))
    assert len({job_object_name(where, what) for where in ("south", "east") for what in (one, other)}) == 4
    assert len(job_object_name("south", the_object(batch(), name="n" * 253))) <= 253


class _World:
    """A model of both API servers. ``is_cut``: the answer to the next creation is lost, and the process that sent it with it."""

    def __init__(self) -> None:
        self.kind = batch()
        self.local: Wire | None = the_object(self.kind)
        self.remote: Wire | None = None
        self.made = 0
        self.is_cut = False
        self.has_ended = False

    def settle(self) -> None:
        for step in steps(self.kind, "south", deepcopy(self.local), deepcopy(self.remote), None, NOW):
            self._do(step)
        self.is_cut = False

    def _do(self, step: Step) -> None:
        match step:
            case CreateJob(manifest):
                if self.remote is None:
                    self.made += 1
                    self.remote = {**deepcopy(manifest), "status": {}}
                    self.remote["metadata"]["annotations"]["trainmaster.dev/job"] = "pi-1"
                if not self.is_cut:
                    self._write({}, {"trainmaster.dev/job": "pi-1"})
            case DeleteJob():
                self.remote = None
            case SuspendJob(patch):
                assert self.remote is not None
                self.remote["metadata"]["annotations"] |= patch["metadata"]["annotations"]
                self.remote["spec"]["suspend"] = patch["spec"]["suspend"]
            case ReportStatus(status, annotations):
                self._write({} if status is None else {"status": status}, annotations)
            case LookForJob():
                assert self.remote is not None, "nobody deletes the job here"

    def _write(self, fields: Wire, annotations: dict[str, Any]) -> None:
        assert self.local is not None
        self.local |= fields
        self.local["metadata"].setdefault("annotations", {}).update(annotations)

    def happen(self, event: str) -> None:
        if event == "step":
            self.settle()
        elif event == "cut":
            self.is_cut = True
        elif event in ("run", "end"):
            if self.remote is not None and not self.has_ended:
                self.has_ended = event == "end"
                self.remote["status"] = condition("Complete") if self.has_ended else {"active": 1}
        elif event == "delete":
            self.local = None
        elif self.local is not None:
            self.local["spec"]["suspend"] = event == "suspend"


@given(st.lists(st.sampled_from(["step", "cut", "run", "end", "delete", "suspend", "resume"]), max_size=30))
def test_in_whichever_order_things_happen_one_job_is_made_and_its_end_comes_back(events: list[str]) -> None:
    world = _World()
    for event in [*events, "step", "step", "step"]:
        world.happen(event)
    local, job = world.local, world.remote
    assert world.made <= 1
    if local is None:
        assert job is None, "its job was deleted with it"
        return
    assert world.made == 1
    assert job is not None
    has_ended = world.kind.end_of(local) is not None
    assert has_ended == world.has_ended
    if not has_ended:
        assert job["spec"].get("suspend", False) == local["spec"].get("suspend", False)
