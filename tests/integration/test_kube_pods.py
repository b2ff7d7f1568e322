"""Pods that are submitted by the Kubernetes API of the dispatcher: each is a job of one member, and a pod by its own name."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.test_kube_changes import MERGE, value_of
from tests.integration.test_kube_events_and_pods import watching
from tests.waiting import eventually
from trainmaster.protocol.states import RunState

PODS = "/api/v1/namespaces/default/pods"
OWN = "/apis/trainmaster.dev/v1/namespaces/default/jobs"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def a_pod(name: str = "train", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


async def made(service: Service, *given: Any, **fields: Any) -> dict[str, Any]:
    return value_of(await service.http.post(PODS, json=a_pod(*given, **fields)), 201)


async def started(service: Service) -> tuple[FakeAgent, str]:
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:v1/Pod"))
    run = await agent.next_start()
    (role,) = run["spec"]["roles"]
    assert (role["name"], role["podTemplate"]["spec"]["containers"][0]["name"]) == ("pod", "main")
    members = [{"role": "pod", "index": 0, "state": "running", "node": "n7"}]
    await agent.report(run["run"], RunState.RUNNING, 1, members=members)
    return agent, run["run"]


async def names(service: Service, **parameters: Any) -> list[str]:
    return [one["metadata"]["name"] for one in value_of(await service.http.get(PODS, params=parameters))["items"]]


async def test_a_pod_waits_runs_and_ends_by_its_own_name(service: Service) -> None:
    item = await made(service, metadata={"labels": {"app": "x"}, "annotations": {"note": "y"}})
    assert (item["kind"], item["metadata"]["name"], item["metadata"]["labels"]) == ("Pod", "train", {"app": "x"})
    assert item["spec"] == a_pod()["spec"]
    assert item["status"]["phase"] == "Pending"
    waits = value_of(await service.http.get(f"{PODS}/train"))
    scheduled = waits["status"]["conditions"][0]
    assert (scheduled["type"], scheduled["status"], scheduled["reason"]) == ("PodScheduled", "False", "Queued")
    assert scheduled["message"] == waits["metadata"]["annotations"]["trainmaster.dev/why"]
    early = value_of(await service.http.get(f"{PODS}/train/log"), 409)
    assert early["message"].startswith("the pod 'train' has no output yet: ")
    agent, run = await started(service)
    runs = value_of(await service.http.get(f"{PODS}/train"))
    assert (runs["status"]["phase"], runs["spec"]["nodeName"]) == ("Running", "n7")
    assert runs["metadata"]["labels"] == {"app": "x", "trainmaster.dev/cluster": "private"}
    assert (runs["metadata"]["uid"], runs["metadata"]["annotations"]["note"]) == (item["metadata"]["uid"], "y")
    assert value_of(await service.http.get(f"{PODS}/train/log", params={"container": "sidecar"}), 422)
    ended = [{"role": "pod", "index": 0, "state": "succeeded", "exitCode": 0}]
    await agent.report(run, RunState.SUCCEEDED, 2, members=ended)
    done = value_of(await service.http.get(f"{PODS}/train"))
    assert done["status"]["phase"] == "Succeeded"
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    job = value_of(await service.http.get(f"{OWN}/train"))
    assert (job["status"]["state"], job["spec"]["workload"]["kind"]) == ("succeeded", "Pod")


async def test_a_pod_that_waits_for_a_node_of_its_cluster_says_why(service: Service) -> None:
    await made(service)
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:v1/Pod"))
    run = (await agent.next_start())["run"]
    words = "waits for nodes for 1 of 1 members: 0/32 nodes are available"
    await agent.report(run, RunState.PENDING, 1, message=words)
    waits = value_of(await service.http.get(f"{PODS}/train"))["status"]
    expected = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    assert (waits["phase"], waits["conditions"][0]) == ("Pending", expected)


async def test_lists_have_members_of_jobs_and_pods_that_were_submitted(service: Service) -> None:
    agent, _ = await started_with(service, "first")
    large = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "100000"}}}
    await made(service, "second", {"labels": {"app": "x"}}, containers=[large])
    job = await service.submit("gang", replicas=2)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    assert await names(service) == [f"{job}.main.0", f"{job}.main.1", "second", "first"]
    assert await names(service, labelSelector="app=x") == ["second"]
    assert await names(service, fieldSelector="metadata.name=first") == ["first"]
    assert await names(service, fieldSelector=f"metadata.name={job}.main.1") == [f"{job}.main.1"]
    assert await names(service, fieldSelector="status.phase=Running") == [f"{job}.main.0", f"{job}.main.1", "first"]
    table = value_of(await service.http.get(PODS, headers=TABLE))
    assert [row["cells"][0] for row in table["rows"]][-2:] == ["second", "first"]
    member = value_of(await service.http.delete(f"{PODS}/{job}.main.0"), 405)
    assert f"is a member of {job}" in member["message"]
    assert value_of(await service.http.delete(f"{PODS}/nothing"), 404)["message"] == 'pods "nothing" not found'


async def started_with(service: Service, name: str) -> tuple[FakeAgent, str]:
    await made(service, name)
    return await started(service)


async def test_a_pod_with_dots_in_its_name_is_no_member(service: Service) -> None:
    await made(service, "a.pod.0")
    assert value_of(await service.http.get(f"{PODS}/a.pod.0"))["status"]["phase"] == "Pending"
    assert await names(service, fieldSelector="metadata.name=a.pod.0") == ["a.pod.0"]
    assert value_of(await service.http.delete(f"{PODS}/a.pod.0"))["status"] == "Success"


async def test_deletion_cancels_and_watches_see_each_state(service: Service) -> None:
    await made(service)

    async def is_over() -> bool:
        return seen[-1:] != [] and seen[-1]["type"] == "DELETED"

    async with watching(service, PODS, fieldSelector="metadata.name=train") as seen:
        agent, run = await started(service)
        assert value_of(await service.http.delete(f"{PODS}/train"))["metadata"]["deletionTimestamp"]
        await agent.report(run, RunState.CANCELLED, 2)
        await eventually(is_over)
    assert (seen[0]["type"], seen[0]["object"]["status"]["phase"]) == ("ADDED", "Pending")
    assert "Running" in [one["object"]["status"]["phase"] for one in seen]
    assert await names(service) == []


async def test_labels_can_be_changed_and_the_specification_cannot(service: Service) -> None:
    await made(service)
    patched = await service.http.patch(f"{PODS}/train", json={"metadata": {"labels": {"a": "b"}}}, headers=STRATEGIC)
    assert value_of(patched)["metadata"]["labels"] == {"a": "b"}
    deadline = {"spec": {"activeDeadlineSeconds": 5}}
    fixed = value_of(await service.http.patch(f"{PODS}/train", json=deadline, headers=MERGE), 422)
    assert "is fixed once the job is submitted" in fixed["message"]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (a_pod(restartPolicy="Always"), "spec.restartPolicy"),
        (a_pod(restartPolicy=None), "spec.restartPolicy"),
        (a_pod(schedulingGroup={"podGroupName": "x"}), "spec.schedulingGroup"),
        (a_pod(metadata={"labels": {"scheduling.x-k8s.io/pod-group": "x"}}), "metadata.labels"),
        (a_pod(containers=[{"name": "main"}], hostNetwork=True), "spec"),
        (a_pod(colour="red"), "spec.colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_honoured_is_refused_with_its_path(
    service: Service, given: dict[str, Any], path: str
) -> None:
    refused = value_of(await service.http.post(PODS, json=given), 422)
    assert any(one["field"].startswith(path) for one in refused["details"]["causes"]), refused
    assert await names(service) == []


async def test_pods_come_by_the_rest_api_and_by_applies_too(service: Service) -> None:
    job = value_of(await service.http.post("/v1/jobs", json=a_pod("by-rest", {"namespace": "default"})), 201)["id"]
    (item,) = value_of(await service.http.get(PODS))["items"]
    assert (item["metadata"]["name"], item["spec"]["containers"][0]["image"]) == (job, "i")
    apply = {"Content-Type": "application/apply-patch+yaml"}
    path = f"{PODS}/applied"
    applied = await service.http.patch(path, json=a_pod("applied"), headers=apply, params={"fieldManager": "me"})
    assert value_of(applied, 201)["metadata"]["managedFields"][0]["manager"] == "me"
    document = value_of(await service.http.get("/openapi/v3/api/v1"))
    kinds = [one["x-kubernetes-group-version-kind"][0]["kind"] for one in document["components"]["schemas"].values()]
    assert "Pod" in kinds
    assert "api/v1" in value_of(await service.http.get("/openapi/v3"))["paths"]
