"""Manifests of other APIs that are submitted as jobs: by REST and the command line, to a cluster that takes their kind."""

from copy import deepcopy
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.unit.workload_manifests import SAMPLES, manifest, template
from tests.waiting import eventually
from trainmaster.protocol.states import RunState

Wire = dict[str, Any]
KUBERNETES = ("gang", "podTemplate", "workload:batch/v1/Job")


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(cpu=16, capabilities=KUBERNETES)
    return connected


def a_job(queue: str = "default", **spec: Any) -> Wire:
    made = manifest("batch/v1", "Job", {"template": template(), **spec}, labels={"team": "vision"})
    made["metadata"] |= {"name": "Pi.Example", "annotations": {"trainmaster.dev/queue": queue}}
    return made


async def test_a_manifest_is_a_job_whose_run_has_the_object(service: Service, agent: FakeAgent) -> None:
    answer = await service.http.post("/v1/jobs", json=a_job(parallelism=2, completions=2, activeDeadlineSeconds=60))
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]
    assert job_id.startswith("pi-example-")
    start = await agent.next_start()
    spec = start["spec"]
    assert spec["workload"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "manifest": {
            "metadata": {"labels": {"team": "vision"}},
            "spec": {"template": {}, "parallelism": 2, "completions": 2, "activeDeadlineSeconds": 60},
        },
    }
    assert start["sizes"] == {"main": 2}
    assert spec["roles"][0]["podTemplate"]["spec"]["containers"][0]["image"] == "registry.example.com/train:1"
    await agent.report(start["run"], RunState.RUNNING, 1, placement={"node": {"main": 2}})
    job = await service.until(job_id, "running")
    assert (job["labels"], job["spec"]["timeLimit"]) == ({"team": "vision"}, "60s")
    again = await service.http.post("/v1/jobs", json=job["spec"])
    assert again.status_code == 201, "the specification of a job can be submitted as it is shown"


async def test_jobs_of_several_kinds_are_submitted_together(service: Service) -> None:
    policy = {"path": "default", "admission": {"serviceAccounts": ["spark"]}}  # without one a driver makes no executors
    assert (await service.http.put("/v1/queues/default", json=policy)).status_code in (200, 201)
    jobs = [deepcopy(one.manifest) for one in SAMPLES.values()]
    for one in jobs:
        one["metadata"]["annotations"]["trainmaster.dev/queue"] = "default"
    answer = await service.http.post("/v1/jobs", json={"jobs": jobs})
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["jobs"]) == len(SAMPLES)
    for number, kind in enumerate(one["kind"] for one in jobs):
        stored = (await service.job(answer.json()["jobs"][number]["id"]))["spec"]
        assert stored["workload"]["kind"] == kind


async def test_without_the_operator_anywhere_the_job_says_what_it_needs(service: Service, agent: FakeAgent) -> None:
    given = deepcopy(SAMPLES["ray.io/v1 RayJob"].manifest)
    given["metadata"]["annotations"]["trainmaster.dev/queue"] = "default"
    given["spec"]["submissionMode"] = "HTTPMode"
    answer = await service.http.post("/v1/jobs", json=given)
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]

    async def is_told() -> bool:
        return "takes no RayJob" in (await service.http.get(f"/v1/jobs/{job_id}/why")).text

    await eventually(is_told)
    why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
    assert "it takes no RayJob of ray.io/v1, which needs the KubeRay operator" in str(why)


@pytest.mark.parametrize(
    ("given", "code", "path"),
    [
        ({**a_job(), "kind": "Deployment", "apiVersion": "apps/v1"}, "invalid-spec", "kind"),
        (a_job(parallelism="two"), "invalid-spec", "spec.parallelism"),
        (a_job(queue=""), "invalid-spec", 'metadata.annotations["trainmaster.dev/queue"]'),
        (a_job(managedBy="kueue.x-k8s.io/multikueue"), "invalid-spec", "spec.managedBy"),
        (
            a_job(template=template(hostNetwork=True)),
            "pod-template-refused",
            "spec.template.spec.hostNetwork",
        ),
        (
            a_job(template=template(serviceAccountName="cluster-admin")),
            "pod-template-refused",
            "spec.template.spec.serviceAccountName",
        ),
        (a_job(template={"spec": {"containers": []}}), "pod-template-refused", "spec.template.spec.containers"),
    ],
)
async def test_mistakes_are_told_at_their_place_in_the_manifest(
    service: Service, given: Wire, code: str, path: str
) -> None:
    for body, prefix in ((given, ""), ({"jobs": [given]}, "jobs[0].")):
        answer = await service.http.post("/v1/jobs", json=body)
        assert answer.status_code in (422, 403), answer.text
        problem = answer.json()
        assert problem["code"] == code, problem
        assert f"{prefix}{path}" in [one["path"] for one in problem["mistakes"]], problem


async def test_parameters_fill_the_pods_of_a_manifest(service: Service, agent: FakeAgent) -> None:
    given = a_job()
    given["spec"]["template"]["spec"]["containers"][0]["command"] = ["train", "--rate", "${rate}"]
    answer = await service.http.post("/v1/jobs", json={"job": given, "parameters": [{"rate": "1"}, {"rate": "2"}]})
    assert answer.status_code == 201, answer.text
    starts = [await agent.next_start() for _ in range(2)]
    commands = {one["spec"]["roles"][0]["podTemplate"]["spec"]["containers"][0]["command"][2] for one in starts}
    assert commands == {"1", "2"}


async def test_a_train_job_waits_for_a_cluster_with_its_runtime(service: Service) -> None:
    kind, name = "workload:trainer.kubeflow.org/v1alpha1/TrainJob", "runtime:torch jobs=node requests="
    agent = service.agent()
    await agent.connect(cpu=16, capabilities=("gang", "podTemplate", kind, name.replace("torch", "other")))
    spec = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"cpu": 2}}}}
    given = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", spec)
    given["metadata"]["annotations"]["trainmaster.dev/queue"] = "default"
    answer = await service.http.post("/v1/jobs", json=given)
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]

    async def is_explained() -> bool:
        why = (await service.http.get(f"/v1/jobs/{job_id}/why")).text
        return "its agent reports no ClusterTrainingRuntime torch that a TrainJob can use" in why

    await eventually(is_explained)
    await agent.connect(cpu=16, capabilities=("gang", "podTemplate", kind, name))
    start = await agent.next_start()
    assert start["sizes"] == {"node": 2}
    assert start["spec"]["workload"]["manifest"]["spec"]["trainer"] == {"numNodes": 2}, "the rest is in the template"
