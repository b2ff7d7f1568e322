"""TrainJobs: what of them patches the pods of a runtime, the runtimes that clusters have, and what is refused."""

import contextlib
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workload_manifests import SAMPLES, manifest
from trainmaster.protocol.admission import DEFAULT, check_role
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import at
from trainmaster.workload_kinds.registry import kind_by_name
from trainmaster.workload_kinds.specification import (
    ManifestError,
    assembled,
    capabilities_of,
    check_workload,
    late_roles,
    path_in_manifest,
    translated,
)
from trainmaster.workload_kinds.training_runtimes import TrainingRuntime, is_offered, runtime_of, why_not_offered
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.pod_fields import pod_fields
from trainmaster_agent.placement.volcano import Volcano

Wire = dict[str, Any]
NAME = "trainer.kubeflow.org/v1alpha1 TrainJob"
IMAGE = "trainer.kubeflow.org/clustertrainingruntime/torch"
JOBS = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def train_job(**spec: Any) -> Wire:
    given = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}}
    return manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {**given, **spec})


def patch(manager: str, *jobs: Wire, **template: Any) -> Wire:
    return {
        "manager": manager,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": list(jobs)}, **template}},
    }


def job_patch(name: str, pod: Wire) -> Wire:
    return {"name": name, "template": {"spec": {"template": {"spec": pod}}}}


def spec_of(value: Wire) -> JobSpec:
    return JobSpec.model_validate(translated(value).spec)


def pod_of(value: Wire, role: str = "node") -> Wire:
    template = next(one.pod_template for one in spec_of(value).roles if one.name == role)
    assert template is not None
    spec: Wire = template["spec"]
    return spec


def mistakes(value: Wire) -> list[tuple[str, str]]:
    with pytest.raises(ManifestError) as error:
        translated(value)
    return [(one.path, one.message) for one in error.value.mistakes]


def made_of(value: Wire, **added: Any) -> Wire:
    """Return the object on a cluster, whose agent adds fields to its pods."""
    spec = spec_of(value)
    assert spec.workload is not None
    templates: dict[str, Wire] = {role.name: deepcopy(role.pod_template or {}) for role in spec.roles}
    for template in templates.values():
        template["spec"] |= deepcopy(added)
    return assembled(spec.workload, templates)


def runtime(*jobs: Wire, name: str = "torch") -> Wire:
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"replicatedJobs": list(jobs)}}}}


def runtime_job(name: str, step: str = "", *, resources: Wire | None = None, **job: Any) -> Wire:
    container = {"name": name, **({"resources": resources} if resources else {})}
    return {
        "name": name,
        "template": {
            "metadata": {"labels": {STEP: step or name}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
        **job,
    }


def with_claim(job: Wire) -> Wire:
    """Return a job of a runtime whose pods have a claim of devices, of which no TrainJob says anything."""
    claim = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    job["template"]["spec"]["template"]["spec"]["resourceClaims"] = [claim]
    return job


def test_what_a_train_job_says_of_its_nodes_is_in_their_pod_template() -> None:
    env, resources = [{"name": "A", "value": "1"}], {"limits": {"nvidia.com/gpu": 4}}
    trainer = {"numNodes": 3, "command": ["python", "a.py"], "args": ["-v"], "env": env, "resourcesPerNode": resources}
    pod = pod_of(train_job(trainer={**trainer, "image": "registry.example.com/a:1"}))
    (container,) = pod["containers"]
    assert {field: container[field] for field in ("name", "image", "command", "args", "env", "resources")} == {
        "name": "node",
        "image": "registry.example.com/a:1",
        "command": ["python", "a.py"],
        "args": ["-v"],
        "env": env,
        "resources": resources,
    }
    spec = spec_of(train_job(trainer=trainer))
    assert [(role.name, role.replicas) for role in spec.roles] == [("node", 3)]
    assert pod_of(train_job(trainer=trainer))["containers"][0]["image"] == IMAGE


def test_on_a_cluster_it_is_as_it_was_written_with_what_the_agent_adds_as_a_patch() -> None:
    trainer = {"numNodes": 2, "command": ["train"], "env": [{"name": "A", "value": "1"}], "numProcPerNode": 8}
    made = made_of(train_job(trainer=trainer), schedulingGates=[{"name": "gang"}], terminationGracePeriodSeconds=60)
    assert made["spec"]["trainer"] == trainer
    (own,) = made["spec"]["runtimePatches"]
    assert own["manager"] == "trainmaster.dev/agent"
    (job,) = at(own, JOBS)
    pod = at(job, ("template", "spec", "template", "spec"))
    assert job["name"] == "node"
    assert (pod["schedulingGates"], pod["terminationGracePeriodSeconds"]) == ([{"name": "gang"}], 60)
    (container,) = pod["containers"]
    assert container.keys() == {"name", "securityContext"}, "the image is the runtime's"


def test_an_option_that_changes_the_template_changes_the_fields_of_the_train_job() -> None:
    spec = spec_of(train_job())
    wire = spec.to_wire()
    container = wire["roles"][0]["podTemplate"]["spec"]["containers"][0]
    container |= {"image": "registry.example.com/b:2", "env": [{"name": "B", "value": "2"}]}
    changed = JobSpec.model_validate(wire)
    assert check_workload(changed) == ()
    assert changed.workload is not None
    made = assembled(changed.workload, {"node": changed.roles[0].pod_template or {}})
    assert made["spec"]["trainer"] == {
        "numNodes": 2,
        "image": "registry.example.com/b:2",
        "env": [{"name": "B", "value": "2"}],
    }
    assert changed.roles[0].pod_template == wire["roles"][0]["podTemplate"], "the specification stays as it is"


def test_a_patch_of_the_manifest_stays_where_it_is_and_is_part_of_the_template() -> None:
    own = job_patch(
        "node",
        {
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "side", "env": []},
                {"name": "node", "volumeMounts": [{"name": "a", "mountPath": "/a"}]},
            ],
            "volumes": [{"name": "a", "emptyDir": {}}],
        },
    )
    given = train_job(
        runtimePatches=[patch("a.example.com/x", metadata={"labels": {"a": "b"}}), patch("b.example.com/y", own)]
    )
    pod = pod_of(given)
    assert [one["name"] for one in pod["containers"]] == ["node", "side"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "a", "mountPath": "/a"}]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    made = made_of(given)
    assert [one["manager"] for one in made["spec"]["runtimePatches"]] == ["a.example.com/x", "b.example.com/y"]
    containers = at(made["spec"]["runtimePatches"][1], (*JOBS, 0, "template", "spec", "template", "spec", "containers"))
    assert not any("image" in one for one in containers)
    paths = translated(given).paths
    begin = "spec.runtimePatches[1].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template"
    assert path_in_manifest("roles[0].podTemplate.spec.tolerations[0]", paths) == f"{begin}.spec.tolerations[0]"
    assert path_in_manifest("roles[0].podTemplate.spec.containers[0].image", paths) == "spec.trainer.image"


def test_no_token_of_a_service_account_is_mounted() -> None:
    made = made_of(train_job(), automountServiceAccountToken=False, enableServiceLinks=False, priorityClassName="x")
    pod = at(made["spec"]["runtimePatches"][0], (*JOBS, 0, "template", "spec", "template", "spec"))
    assert not {"automountServiceAccountToken", "enableServiceLinks", "priorityClassName"} & pod.keys()
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == TOKEN
    assert pod["volumes"] == [{"name": mount["name"], "emptyDir": {}}]


def test_initializers_are_roles_that_come_before_the_nodes() -> None:
    spec = spec_of(train_job(initializer={"model": {}, "dataset": {"storageUri": "s3://a/b"}}))
    assert spec.workload is not None
    assert [role.name for role in spec.roles] == ["dataset", "model", "node"]
    assert late_roles(spec.workload) == {"node"}
    only = spec_of(train_job())
    assert only.workload is not None
    assert late_roles(only.workload) == frozenset()


def test_the_secret_of_an_initializer_is_checked_as_one_of_its_pod() -> None:
    given = train_job(initializer={"dataset": {"storageUri": "s3://a/b", "secretRef": {"name": "keys"}}})
    pod = pod_of(given, "dataset")
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]
    (refused,) = check_role(spec_of(given).roles[0], DEFAULT)
    assert refused.path == "podTemplate.spec.containers[0].envFrom[0].secretRef.name"
    assert made_of(given)["spec"]["initializer"] == given["spec"]["initializer"]
    more = spec_of(given).to_wire()
    more["roles"][0]["podTemplate"]["spec"]["containers"][0]["envFrom"].append({"configMapRef": {"name": "a"}})
    assert [one.path for one in check_workload(JobSpec.model_validate(more))] == [
        "roles[0].podTemplate.spec.containers[0].envFrom"
    ]


def test_a_specification_by_hand_says_nothing_beside_its_templates() -> None:
    wire = spec_of(SAMPLES[NAME].manifest).to_wire()
    spec = wire["workload"]["manifest"]["spec"]
    spec["trainer"] |= {"image": "registry.example.com/other:1", "resourcesPerNode": {"limits": {"nvidia.com/gpu": 64}}}
    spec["initializer"]["dataset"]["secretRef"] = {"name": "keys"}
    begin = "workload.manifest.spec"
    assert sorted(one.path for one in check_workload(JobSpec.model_validate(wire))) == [
        f"{begin}.initializer.dataset.secretRef",
        f"{begin}.trainer.image",
        f"{begin}.trainer.resourcesPerNode",
    ]


def test_what_a_patch_and_the_train_job_both_set_is_refused() -> None:
    patched = patch("a.example.com/x", job_patch("node", {"containers": [{"name": "node", "image": "a"}]}))
    ((path, _),) = mistakes(train_job(trainer={"numNodes": 1, "image": "b"}, runtimePatches=[patched]))
    assert path == "spec.trainer.image"


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        ({"trainer": {}}, "spec.trainer.numNodes", "not known at submission"),
        ({"trainer": None}, "spec.trainer.numNodes", "not known at submission"),
        ({"runtimeRef": {"name": "a", "kind": "TrainingRuntime"}}, "spec.runtimeRef.kind", "ClusterTrainingRuntime"),
        ({"runtimeRef": {"name": "a", "kind": "Other"}}, "spec.runtimeRef.kind", "must be ClusterTrainingRuntime"),
        ({"runtimeRef": {"name": "a", "apiGroup": "b"}}, "spec.runtimeRef.apiGroup", "must be trainer.kubeflow.org"),
        ({"runtimeRef": {}}, "spec.runtimeRef.name", "must be the name"),
        ({"runtimeRef": {"name": "a jobs=node"}}, "spec.runtimeRef.name", "must be the name"),
        ({"podTemplateOverrides": [{}]}, "spec.podTemplateOverrides", "runtimePatches"),
        (
            {"runtimePatches": [patch("a", job_patch("launcher", {}))]},
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name",
            "counted as the jobs node",
        ),
        (
            {"runtimePatches": [patch("a", job_patch("model-initializer", {}))]},
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name",
            "spec.initializer.model",
        ),
        (
            {"runtimePatches": [patch("a", job_patch("node", {})), patch("b", job_patch("node", {}))]},
            "spec.runtimePatches[1].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template",
            "another patch",
        ),
        (
            {"runtimePatches": [patch("a", metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}})]},
            'spec.runtimePatches[0].trainingRuntimeSpec.template.metadata.labels["kueue.x-k8s.io/queue-name"]',
            "",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_where_it_is(spec: Wire, path: str, words: str) -> None:
    ((found, message),) = mistakes(train_job(**spec))
    assert found == path
    assert words in message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"hostname": "a"}, "roles[0].podTemplate.spec.hostname"),
        ({"automountServiceAccountToken": True}, "roles[0].podTemplate.spec.automountServiceAccountToken"),
        ({"initContainers": [{"name": "a", "image": "b"}]}, "roles[0].podTemplate.spec.initContainers[0].image"),
    ],
)
def test_a_template_is_refused_what_no_patch_can_set(fields: Wire, path: str) -> None:
    wire = spec_of(train_job()).to_wire()
    wire["roles"][0]["podTemplate"]["spec"] |= fields
    assert [one.path for one in check_workload(JobSpec.model_validate(wire))] == [path]


def test_an_initializer_keeps_the_image_of_its_runtime() -> None:
    wire = spec_of(SAMPLES[NAME].manifest).to_wire()
    wire["roles"][0]["podTemplate"]["spec"]["containers"][0]["image"] = "registry.example.com/c:3"
    (found,) = check_workload(JobSpec.model_validate(wire))
    assert found.path == "roles[0].podTemplate.spec.containers[0].image"


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(("node", "trainmaster.dev/agent")),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                (*JOBS, "manager", "name", "runtimePatches", "trainer", "initializer", "dataset", "env", "containers")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_ANY, _ANY, _ANY)
def test_any_shape_is_answered_with_mistakes_or_with_a_specification(patches: Any, trainer: Any, pod: Any) -> None:
    for one in (
        train_job(runtimePatches=patches),
        train_job(runtimePatches=[patch("a", job_patch("node", pod)), patch("trainmaster.dev/agent", pod)]),
        train_job(trainer=trainer, initializer=pod),
        train_job(runtimePatches=[{"manager": "trainmaster.dev/agent", "trainingRuntimeSpec": patches}]),
    ):
        with contextlib.suppress(ManifestError):
            assert translated(one).spec["roles"]


# -- runtimes


def test_a_cluster_needs_a_runtime_with_the_steps_and_without_requests_of_its_own() -> None:
    workload, needed = capabilities_of(spec_of(train_job()))
    assert workload == "workload:trainer.kubeflow.org/v1alpha1/TrainJob"
    bare = runtime_of(runtime(runtime_job("node", "trainer")))
    assert bare is not None
    assert bare.capability == needed == "runtime:torch jobs=node requests="
    assert is_offered(needed, ["gang", bare.capability])
    greedy = runtime_of(runtime(runtime_job("node", "trainer", resources={"limits": {"nvidia.com/gpu": 2}})))
    assert greedy is not None
    assert not is_offered(needed, [greedy.capability])
    resources = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": 4}}
    _, sized = capabilities_of(spec_of(train_job(trainer={"numNodes": 2, "resourcesPerNode": resources})))
    assert is_offered(sized, [greedy.capability])
    assert is_offered(sized, [bare.capability])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "its agent reports no ClusterTrainingRuntime torch that a TrainJob can use"),
        (
            [runtime(runtime_job("node", "trainer"), name="torch-2")],
            "its agent reports no ClusterTrainingRuntime torch that a TrainJob can use",
        ),
        (
            [runtime(runtime_job("node"), runtime_job("launcher"))],
            "its ClusterTrainingRuntime torch has the jobs launcher and node, and the TrainJob is for node",
        ),
        (
            [runtime(runtime_job("node", "trainer", resources={"requests": {"cpu": "1", "memory": "1Gi"}}))],
            "its ClusterTrainingRuntime torch requests cpu and memory for each node, "
            "and spec.trainer.resourcesPerNode does not say how much",
        ),
    ],
)
def test_the_reason_names_the_runtime_and_what_it_lacks(found: list[Wire], words: str) -> None:
    runtimes = [one.capability for one in map(runtime_of, found) if one is not None]
    _, needed = capabilities_of(spec_of(train_job()))
    assert not is_offered(needed, runtimes)
    assert why_not_offered(needed, runtimes) == words
    assert why_not_offered("gang", runtimes) is None


def test_requests_beside_the_container_that_trains_are_nobodys_to_set() -> None:
    job = runtime_job("node", "trainer")
    pod = job["template"]["spec"]["template"]["spec"]
    pod["containers"].append({"name": "side", "resources": {"requests": {"cpu": "1"}}})
    found = runtime_of(runtime(job))
    assert found is not None
    _, needed = capabilities_of(spec_of(train_job(trainer={"numNodes": 1, "resourcesPerNode": {"limits": {"cpu": 1}}})))
    assert "no TrainJob can set" in str(why_not_offered(needed, [found.capability]))


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [runtime_job("node", "other")],
        [runtime_job("node", "trainer", replicas=2)],
        [with_claim(runtime_job("node", "trainer"))],
        [
            runtime_job("node", "trainer"),
            {**runtime_job("model-initializer"), "template": {"spec": {"parallelism": 2}}},
        ],
        [runtime_job(f"job-{'x' * 50}-{index}") for index in range(5)],
        [runtime_job("node", "trainer")] * 30,
    ],
)
def test_a_runtime_whose_pods_cannot_be_counted_is_not_reported(jobs: list[Wire]) -> None:
    assert runtime_of(runtime(*jobs)) is None


def test_a_runtime_whose_gangs_are_those_of_another_scheduler_is_not_reported() -> None:
    found = runtime(runtime_job("node", "trainer"))
    assert runtime_of(found) is not None
    found["spec"]["podGroupPolicy"] = {"volcano": {}}
    assert runtime_of(found) is None


@given(_ANY)
def test_any_shape_of_a_runtime_can_be_read(value: Any) -> None:
    found = runtime_of({"metadata": {"name": "a"}, "spec": {"template": {"spec": {"replicatedJobs": value}}}})
    assert found is None or isinstance(found, TrainingRuntime)


def test_placements_that_name_a_scheduler_cannot_place_train_jobs() -> None:
    kind = kind_by_name(NAME)
    job = kind_by_name("batch/v1 Job")
    assert kind is not None
    assert job is not None
    assert kind.takes_pod_fields(pod_fields(Gates()))
    assert kind.takes_pod_fields(pod_fields(Native().for_workloads))
    for other in (Volcano(), Gates("other-scheduler")):
        assert not kind.takes_pod_fields(pod_fields(other))
        assert job.takes_pod_fields(pod_fields(other))


def test_its_roles_are_those_of_a_manifest_that_gives_no_patch() -> None:
    kind = kind_by_name(NAME)
    assert kind is not None
    given = train_job()
    assert kind.pod_sets(JsonNode(given, "", [])) == kind.pod_sets(JsonNode(kind.completed(given), "", []))
