"""Kinds of other APIs that are taken as jobs: one suite for all of them, and what single kinds refuse."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workload_manifests import SAMPLES, Sample, condition, manifest, template
from trainmaster.protocol.admission import DEFAULT, check_role
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.states import FailureCategory
from trainmaster.workload_kinds.kind import WorkloadEnd, WorkloadKind, at, put, role_name
from trainmaster.workload_kinds.registry import KINDS, kind_by_capability, kind_by_name, kind_of
from trainmaster.workload_kinds.specification import (
    ManifestError,
    assembled,
    check_workload,
    late_roles,
    path_in_manifest,
    secured,
    translated,
)

Wire = dict[str, Any]
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def sample(kind: WorkloadKind) -> Sample:
    return deepcopy(SAMPLES[kind.name])


def spec_of(value: Wire) -> JobSpec:
    return JobSpec.model_validate(translated(value).spec)


def mistakes(value: Wire) -> list[tuple[str, str]]:
    with pytest.raises(ManifestError) as error:
        translated(value)
    return [(one.path, one.message) for one in error.value.mistakes]


def changed(value: Wire, path: Sequence[str | int], new: Any) -> Wire:
    made = deepcopy(value)
    for depth in range(1, len(path)):
        if at(made, path[:depth]) is None:
            put(made, path[:depth], {})
    put(made, path, new)
    return made


def test_every_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == {kind.name for kind in KINDS}


@ALL
def test_its_roles_have_its_pods_and_their_templates(kind: WorkloadKind) -> None:
    given = sample(kind)
    spec = spec_of(given.manifest)
    assert {role.name: role.replicas for role in spec.roles} == given.roles
    assert all(role.pod_template is not None and role.pod_template["spec"]["containers"] for role in spec.roles)
    assert (spec.name, spec.queue) == ("example", "research/vision")
    assert spec.workload is not None
    assert (spec.workload.api_version, spec.workload.kind) == (kind.api_version, kind.kind)
    assert check_workload(spec) == ()


@ALL
def test_the_object_that_is_created_is_the_manifest_with_the_templates_of_the_roles(kind: WorkloadKind) -> None:
    given = sample(kind).manifest
    spec = spec_of(given)
    assert spec.workload is not None
    stored = JobSpec.model_validate_json(orjson.dumps(spec.to_wire()))
    assert stored == spec, "a specification survives being stored"
    templates: dict[str, Wire] = {role.name: {"spec": {"marked": role.name}} for role in spec.roles}
    made = assembled(spec.workload, templates)
    assert (made["apiVersion"], made["kind"]) == (kind.api_version, kind.kind)
    sets = kind.pod_sets(JsonNode(given, "", []))
    for one in sets:
        assert at(made, (*one.path, "spec")) == {"marked": one.role}
    expected = {"spec": kind.completed(deepcopy(given))["spec"]}
    for value in (made, expected):
        for one in sets:
            put(value, one.path or ("spec",), None)
    assert made["spec"] == expected["spec"], "all else is as it was written"
    assert "annotations" not in made["metadata"], "the queue is for the dispatcher alone"


@ALL
def test_the_order_of_fields_means_nothing(kind: WorkloadKind) -> None:
    def reversed_(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_(value[key]) for key in reversed(value)}
        return [reversed_(one) for one in value] if isinstance(value, list) else value

    spec = spec_of(sample(kind).manifest)
    stored = JobSpec.model_validate(reversed_(spec.to_wire()))
    assert check_workload(stored) == ()
    assert [role.name for role in spec_of(reversed_(sample(kind).manifest)).roles] == [role.name for role in spec.roles]


@ALL
def test_suspended_and_managed_by_the_dispatcher_it_is_held_and_created_neither(kind: WorkloadKind) -> None:
    given = sample(kind).manifest
    if kind.suspend_path:
        given = changed(given, kind.suspend_path, True)
    if kind.manager_path:
        given = changed(given, kind.manager_path, "trainmaster.dev/dispatcher")
    if kind.time_to_live_path:
        given = changed(given, kind.time_to_live_path, 0)
    spec = spec_of(given)
    assert spec.suspend is bool(kind.suspend_path)
    assert spec.workload is not None
    made = assembled(spec.workload, {role.name: {} for role in spec.roles})
    for path in (kind.suspend_path, kind.manager_path, kind.time_to_live_path):
        assert not path or at(made, path) is None
    if kind.manager_path:
        ((place, message),) = mistakes(changed(given, kind.manager_path, "kueue.x-k8s.io/multikueue"))
        assert place == ".".join(kind.manager_path)
        assert "another controller" in message


@ALL
def test_its_end_is_read_from_its_status(kind: WorkloadKind) -> None:
    given = sample(kind)
    assert kind.end_of(given.manifest) is None
    assert kind.end_of({**given.manifest, "status": {"conditions": None}}) is None
    assert kind.end_of({**given.manifest, "status": condition("Running")}) is None
    assert (given.succeeded is not None) is kind.ends
    if given.succeeded is not None and given.failed is not None:
        succeeded = kind.end_of({**given.manifest, "status": given.succeeded})
        failed = kind.end_of({**given.manifest, "status": given.failed})
        assert succeeded is not None
        assert succeeded.has_succeeded
        assert failed is not None
        assert (failed.has_succeeded, bool(failed.message)) == (False, True)


@ALL
def test_an_end_that_its_controller_has_not_told_of_is_read_as_one(kind: WorkloadKind) -> None:
    running = {**condition("Running"), "kept": 1}
    for has_succeeded in (True, False) if kind.ends else (False,):
        end = WorkloadEnd(has_succeeded, "" if has_succeeded else "cancelled")
        status = kind.ended_status(running, end, "Ended", "2026-01-01T00:00:00Z")
        found = kind.end_of({"status": status})
        assert status["kept"] == 1, "what is known is kept"
        if kind.ends:
            assert found is not None
            assert found.has_succeeded is has_succeeded
        again = kind.ended_status(status, end, "Ended", "2026-01-01T00:00:00Z")
        assert again == status


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("batch/v1 Job", {"active": 2, "ready": 1, "succeeded": 3, "failed": 0}, "2 active, 1 ready, 3 succeeded"),
        ("batch/v1 Job", {}, ""),
        (
            "jobset.x-k8s.io/v1alpha2 JobSet",
            {"replicatedJobsStatus": [{"name": "driver", "succeeded": 1}, {"name": "workers", "active": 2}]},
            "driver: 1 succeeded; workers: 2 active",
        ),
        (
            "kubeflow.org/v1 PyTorchJob",
            {"replicaStatuses": {"Worker": {"active": 2}, "Master": {"succeeded": 1}}},
            "Master: 1 succeeded; Worker: 2 active",
        ),
        (
            "ray.io/v1 RayJob",
            {
                "jobDeploymentStatus": "Running",
                "jobStatus": "RUNNING",
                "rayClusterStatus": {"readyWorkerReplicas": 1, "desiredWorkerReplicas": 2},
            },
            "Running, RUNNING, 1 of 2 workers ready",
        ),
        ("ray.io/v1 RayCluster", {"state": "ready", "desiredWorkerReplicas": 3}, "ready, 0 of 3 workers ready"),
        (
            "ray.io/v1 RayCluster",
            {
                "desiredWorkerReplicas": 1,
                "conditions": [
                    {"type": "HeadPodReady", "status": "False", "message": "not yet"},
                    {
                        "type": "ReplicaFailure",
                        "status": "True",
                        "reason": "FailedCreateHeadPod",
                        "message": "is forbidden",
                    },
                ],
            },
            "0 of 1 workers ready, FailedCreateHeadPod: is forbidden",
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            {"replicas": 3, "readyReplicas": 2},
            "2 of 3 groups ready",
        ),
        (
            "trainer.kubeflow.org/v1alpha1 TrainJob",
            {
                "jobsStatus": [{"name": "dataset-initializer", "succeeded": 1}, {"name": "node", "active": 1}],
                "trainerStatus": {"progressPercentage": 40},
            },
            "dataset-initializer: 1 succeeded; node: 1 active; 40 % done",
        ),
        (
            "workload.codeflare.dev/v1beta2 AppWrapper",
            {"phase": "Running", "conditions": [{"type": "PodsReady", "message": "1 pods pending; 2 pods running"}]},
            "Running: 1 pods pending; 2 pods running",
        ),
        ("workload.codeflare.dev/v1beta2 AppWrapper", {"phase": "Resetting", "conditions": None}, "Resetting"),
    ],
)
def test_its_status_is_told_in_a_few_words(name: str, status: Wire, words: str) -> None:
    kind = kind_by_name(name)
    assert kind is not None
    assert kind.progress(status) == words


_STATUS_FIELDS = (
    *("conditions", "type", "status", "active", "name", "replicas", "state", "reason", "jobStatus", "replicaStatuses"),
    *(
        "jobsStatus",
        "trainerStatus",
        "progressPercentage",
        "replicatedJobsStatus",
        "rayClusterStatus",
        "desiredWorkerReplicas",
        "jobDeploymentStatus",
        "phase",
    ),
)
_STATUSES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_STATUS_FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(KINDS), st.dictionaries(st.text(max_size=3), _STATUSES, max_size=3), _STATUSES)
def test_any_status_that_a_cluster_reports_can_be_read(kind: WorkloadKind, more: Wire, status: Any) -> None:
    reported = {
        **more,
        **(status if isinstance(status, dict) else {"conditions": status, "replicatedJobsStatus": status}),
    }
    assert isinstance(kind.progress(reported), str)
    end = kind.end_of({"status": reported})
    assert isinstance(kind.ended_status(reported, end or WorkloadEnd(False, "x"), "Ended", "now"), dict)


@ALL
def test_a_specification_by_hand_counts_what_its_object_creates(kind: WorkloadKind) -> None:
    written = spec_of(sample(kind).manifest).to_wire()
    fewer = deepcopy(written)
    fewer["roles"][-1]["replicas"] = 17
    assert [one.path for one in check_workload(JobSpec.model_validate(fewer))] == ["roles"]
    other = deepcopy(written)
    other["roles"][0] |= {"minReplicas": 1}
    assert "roles[0].minReplicas" in [one.path for one in check_workload(JobSpec.model_validate(other))]
    unknown = deepcopy(written)
    unknown["workload"]["kind"] = "Deployment"
    assert [one.path for one in check_workload(JobSpec.model_validate(unknown))] == ["workload.kind"]
    obeyed = deepcopy(written)
    obeyed["workload"]["manifest"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "all"}}
    assert check_workload(JobSpec.model_validate(obeyed)), "labels that schedulers obey are the agent's"


@pytest.mark.parametrize("kind", [one for one in KINDS if not one.is_made_by_agent], ids=lambda kind: kind.name)
def test_counts_that_are_no_numbers_are_refused_where_they_are(kind: WorkloadKind) -> None:
    given = sample(kind).manifest
    places = {
        "batch/v1 Job": ("spec", "parallelism"),
        "jobset.x-k8s.io/v1alpha2 JobSet": ("spec", "replicatedJobs", 1, "replicas"),
        "ray.io/v1 RayJob": ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"),
        "ray.io/v1 RayCluster": ("spec", "workerGroupSpecs", 0, "replicas"),
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": ("spec", "replicas"),
        "sparkoperator.k8s.io/v1beta2 SparkApplication": ("spec", "executor", "instances"),
        "trainer.kubeflow.org/v1alpha1 TrainJob": ("spec", "trainer", "numNodes"),
        "workload.codeflare.dev/v1beta2 AppWrapper": (*("spec", "components", 2, "template", "spec", "parallelism"),),
    }
    place = places.get(kind.name)
    if place is None:
        (replicas,) = [name for name in given["spec"] if name != "runPolicy"]
        place = ("spec", replicas, next(iter(given["spec"][replicas])), "replicas")
    for wrong in ("three", -1, 1.5, True):
        found = mistakes(changed(given, place, wrong))
        assert all("must be a whole number" in message for _, message in found)
        assert {path for path, _ in found} == {
            "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")
        }


@pytest.mark.parametrize("wrong", [None, [], "text", 7])
@ALL
def test_any_shape_of_a_specification_is_answered_with_mistakes(kind: WorkloadKind, wrong: Any) -> None:
    assert mistakes({**sample(kind).manifest, "spec": wrong})
    given = sample(kind).manifest
    (first, *_) = kind.pod_sets(JsonNode(given, "", []))
    if wrong is not None or first.role not in ("leader", "driver", "dataset"):  # which may be left out
        assert mistakes(changed(given, first.path or ("spec",), wrong))


def test_capabilities_and_names_are_each_of_one_kind() -> None:
    assert len({kind.capability for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind_by_capability(kind.capability) is kind
        assert kind_of(kind.api_version, kind.kind) is kind
        assert kind_by_name(kind.name) is kind
    assert kind_by_capability("gang") is None
    assert kind_of(["batch/v1"], {}) is None


@pytest.mark.parametrize(
    ("metadata", "queue"),
    [
        ({"annotations": {"trainmaster.dev/queue": "a/b"}}, "a/b"),
        ({"labels": {"trainmaster.dev/queue": "a.b"}}, "a/b"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "team"),
        ({"namespace": "team"}, "team"),
        ({"namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "other"}}, "other"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "other"}, "annotations": {"trainmaster.dev/queue": "a/b"}}, "a/b"),
    ],
)
def test_its_queue_is_named_by_annotation_label_or_namespace(metadata: Wire, queue: str) -> None:
    given = manifest("batch/v1", "Job", {"template": template()}, **{"annotations": None, **metadata})
    made = translated(given).spec
    assert made["queue"] == queue
    assert made["labels"] == (metadata.get("labels") or {}), "jobs are selected by them"
    assert "metadata" not in made["workload"]["manifest"] or "labels" not in made["workload"]["manifest"]["metadata"]


def test_what_an_api_server_has_added_is_left_out_and_what_cannot_be_honoured_is_refused() -> None:
    stored = {"uid": "1", "resourceVersion": "7", "generation": 1, "managedFields": [], "creationTimestamp": None}
    given = manifest("batch/v1", "Job", {"template": template()}, **stored)
    given["status"] = {}
    given["spec"]["template"]["metadata"] = {"creationTimestamp": None, "name": "pi", "labels": {"a": "b"}}
    made = translated(given).spec
    assert made["roles"][0]["podTemplate"]["metadata"] == {"labels": {"a": "b"}}
    assert mistakes(manifest("batch/v1", "Job", {"template": template()}, finalizers=["x"])) == [
        ("metadata.finalizers", "cannot be honoured: leave it out")
    ]
    ((path, _),) = mistakes(
        manifest("batch/v1", "Job", {"template": template(), "selector": {"matchLabels": {"a": "b"}}})
    )
    assert path == "spec.selector"


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        (
            "jobset.x-k8s.io/v1alpha2 JobSet",
            ("metadata", "annotations", "alpha.jobset.sigs.k8s.io/exclusive-topology"),
            "example.com/rack",
        ),
        ("kubeflow.org/v1 PyTorchJob", ("spec", "elasticPolicy", "maxReplicas"), 4),
        ("kubeflow.org/v1 TFJob", ("spec", "runPolicy", "schedulingPolicy", "queue"), "q"),
        ("ray.io/v1 RayJob", ("spec", "rayClusterSpec", "enableInTreeAutoscaling"), True),
        ("ray.io/v1 RayCluster", ("spec", "headGroupSpec", "serviceType"), "LoadBalancer"),
        ("ray.io/v1 RayCluster", ("spec", "headGroupSpec", "enableIngress"), True),
        ("ray.io/v1 RayCluster", ("spec", "headGroupSpec", "headService"), {"spec": {"type": "NodePort"}}),
        ("jobset.x-k8s.io/v1alpha2 JobSet", ("spec", "volumeClaimPolicies"), [{"templates": []}]),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            ("metadata", "annotations", "leaderworkerset.sigs.k8s.io/exclusive-topology"),
            "example.com/rack",
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            ("spec", "leaderWorkerTemplate", "volumeClaimTemplates"),
            [{"metadata": {"name": "data"}}],
        ),
    ],
)
def test_what_its_controller_would_do_and_a_gang_cannot_is_refused(
    kind: str, path: tuple[str, ...], value: Any
) -> None:
    ((found, message),) = mistakes(changed(SAMPLES[kind].manifest, path, value))
    assert "/" in path[-1] or ".".join(path).startswith(found)
    assert message.startswith("cannot be honoured")


@pytest.mark.parametrize(
    ("kind", "path", "value", "late"),
    [
        ("jobset.x-k8s.io/v1alpha2 JobSet", ("spec", "startupPolicy", "startupPolicyOrder"), "InOrder", "workers-of-t"),
        (
            "jobset.x-k8s.io/v1alpha2 JobSet",
            ("spec", "replicatedJobs", 1, "dependsOn"),
            [{"name": "driver", "status": "Ready"}],
            "workers-of-t",
        ),
        ("kubeflow.org/v2beta1 MPIJob", ("spec", "launcherCreationPolicy"), "WaitForWorkersReady", "launcher"),
        ("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", ("spec", "startupPolicy"), "LeaderReady", "worker"),
    ],
)
def test_pods_that_wait_for_others_are_counted_and_in_no_gang(
    kind: str, path: tuple[str | int, ...], value: Any, late: str
) -> None:
    spec = spec_of(changed(SAMPLES[kind].manifest, path, value))
    assert spec.workload is not None
    assert late_roles(spec.workload) == {late}
    assert {role.name: role.replicas for role in spec.roles} == SAMPLES[kind].roles


def test_an_unknown_kind_names_those_that_are_taken() -> None:
    ((path, message),) = mistakes(manifest("apps/v1", "Deployment", {}))
    assert path == "kind"
    assert "'apps/v1' 'Deployment' is not taken" in message
    assert all(kind.name in message for kind in KINDS)
    assert mistakes(manifest("batch/v2", "Job", {})) == [("apiVersion", "of 'Job' must be batch/v1")]


def test_a_submitter_without_a_template_is_counted_as_its_operator_makes_it() -> None:
    given = SAMPLES["ray.io/v1 RayJob"].manifest
    spec = spec_of(given)
    assert spec.workload is not None
    assert late_roles(spec.workload) == {"submitter"}
    submitter = spec.roles[-1].pod_template
    assert submitter is not None
    (container,) = submitter["spec"]["containers"]
    assert container["image"] == "registry.example.com/train:1"
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "200Mi"}
    own = changed(given, ("spec", "submitterPodTemplate"), template("own", cpu="4"))
    assert spec_of(own).roles[-1].pod_template == {"spec": secured(template("own", cpu="4")["spec"])}
    http = changed(given, ("spec", "submissionMode"), "HTTPMode")
    assert [role.name for role in spec_of(http).roles] == ["head", "small", "tpu"]


@pytest.mark.parametrize(
    ("mode", "message"), [("InteractiveMode", "ends by itself"), ("SidecarMode", "use K8sJobMode or HTTPMode")]
)
def test_a_ray_job_says_which_modes_cannot_be_honoured(mode: str, message: str) -> None:
    (found,) = mistakes(changed(SAMPLES["ray.io/v1 RayJob"].manifest, ("spec", "submissionMode"), mode))
    assert found[0] == "spec.submissionMode"
    assert message in found[1]


def test_limits_of_its_pods_become_those_of_the_job() -> None:
    given = manifest(
        "batch/v1",
        "Job",
        {"activeDeadlineSeconds": 600, "template": template(terminationGracePeriodSeconds=90)},
    )
    spec = spec_of(given)
    assert (spec.time_limit, spec.stop_grace) == ("600s", "90s")
    assert spec_of(manifest("batch/v1", "Job", {"template": template()})).stop_grace == "30s"


def test_the_reason_of_a_deadline_is_told_as_one() -> None:
    job = kind_of("batch/v1", "Job")
    assert job is not None
    end = job.end_of(
        {"status": condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")}
    )
    assert end is not None
    assert end.category is FailureCategory.DEADLINE


def test_paths_of_mistakes_are_those_of_the_manifest() -> None:
    paths = translated(SAMPLES["jobset.x-k8s.io/v1alpha2 JobSet"].manifest).paths
    at_template = "spec.replicatedJobs[1].template.spec.template"
    assert path_in_manifest("roles[1].podTemplate.spec.hostNetwork", paths) == f"{at_template}.spec.hostNetwork"
    assert path_in_manifest("roles", paths) == "spec"
    assert path_in_manifest("queue", paths) == 'metadata.annotations["trainmaster.dev/queue"]'
    assert path_in_manifest('labels["a b"]', paths) == 'metadata.labels["a b"]'


@pytest.mark.parametrize(
    ("name", "others", "found"),
    [
        ("Worker", [], "worker"),
        ("a-very-long-name", [], "a-very-long"),
        ("Worker", ["worker"], "worker-2"),
        ("a-very-long-name", ["a-very-long", "a-very-lon-2"], "a-very-lon-3"),
        ("1st", [], "r1st"),
        (None, [], "none"),
        ("...", [], "pods"),
    ],
)
def test_names_of_roles_are_short_and_differ(name: Any, others: list[str], found: str) -> None:
    assert role_name(name, others) == found


def test_a_pod_that_says_nothing_of_security_is_as_restricted_as_a_template_of_a_role() -> None:
    spec = spec_of(manifest("batch/v1", "Job", {"template": template()}))
    assert check_role(spec.roles[0], DEFAULT) == ()
    given = template(securityContext={"runAsUser": 0})
    given["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}}
    kept = spec_of(manifest("batch/v1", "Job", {"template": given})).roles[0]
    assert kept.pod_template is not None
    assert "runAsNonRoot" not in kept.pod_template["spec"]["securityContext"]
    assert kept.pod_template["spec"]["containers"][0]["securityContext"]["capabilities"] == {
        "add": ["SYS_PTRACE"],
        "drop": ["ALL"],
    }
    refused = {one.path for one in check_role(kept, DEFAULT)}
    assert "podTemplate.spec.securityContext.runAsUser" in refused, "what a manifest asks is never dropped in silence"
    wrongs: tuple[Any, ...] = (
        None,
        [],
        "text",
        {"containers": [None, "x", {"securityContext": []}], "securityContext": 7},
    )
    for one in wrongs:
        secured(one)
