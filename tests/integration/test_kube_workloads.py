"""Manifests of other APIs by the Kubernetes API of the dispatcher: they are jobs, and objects of their own kind."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.test_kube_changes import APPLY, JSON_PATCH, MERGE, value_of, without_reason
from tests.integration.test_kube_watches import following, version, watch
from tests.unit.workload_manifests import SAMPLES
from trainmaster.protocol.states import RunState
from trainmaster.workload_kinds.registry import KINDS

BATCH = "/apis/batch/v1/namespaces/default/jobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
OWN = "/apis/trainmaster.dev/v1/namespaces/default/jobs"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
TEMPLATE = {
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
    }
}


def a_job(name: str = "pi", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"parallelism": 2, "completions": 4, "template": TEMPLATE, **spec},
    }


async def made(service: Service, **fields: Any) -> dict[str, Any]:
    return value_of(await service.http.post(BATCH, json=a_job(**fields)), 201)


def annotation(item: dict[str, Any], name: str) -> str:
    return str(item["metadata"]["annotations"][f"trainmaster.dev/{name}"])


async def running(service: Service, **report: Any) -> tuple[FakeAgent, str]:
    """Run the job that is queued on a cluster that takes Jobs of Kubernetes; return its agent, and the run."""
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:batch/v1/Job"))
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1, **report)
    return agent, run


async def running_again(service: Service) -> None:
    """Run the job that is queued on the cluster of ``running``."""
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:batch/v1/Job"))
    await agent.report((await agent.next_start())["run"], RunState.RUNNING, 1)


async def test_a_manifest_is_a_job_and_an_object_of_its_kind(service: Service) -> None:
    item = await made(service, metadata={"labels": {"app": "pi"}, "annotations": {"note": "x"}})
    assert (item["apiVersion"], item["kind"], item["status"]) == ("batch/v1", "Job", {})
    assert item["spec"] == {**a_job()["spec"], "selector": {"matchLabels": {"trainmaster.dev/job-name": "pi"}}}
    assert item["metadata"]["labels"] == {"app": "pi"}
    assert (item["metadata"]["annotations"]["note"], annotation(item, "state")) == ("x", "queued")
    assert without_reason(value_of(await service.http.get(f"{BATCH}/pi"))) == without_reason(item)
    own = value_of(await service.http.get(f"{OWN}/pi"))
    assert own["status"]["id"] == annotation(item, "job")
    assert own["spec"]["workload"]["kind"] == "Job"
    assert "managedFields" not in own["metadata"], "they are those of the manifest"
    assert own["metadata"]["uid"] != item["metadata"]["uid"]
    shown = await service.job(annotation(item, "job"))
    assert (shown["name"], shown["labels"], shown["state"]) == ("pi", {"app": "pi"}, "queued")
    taken = value_of(await service.http.post(BATCH, json=a_job()), 409)
    assert taken["message"].startswith('jobs.batch "pi" already exists')


async def test_lists_have_the_jobs_of_their_kind_however_they_came(service: Service) -> None:
    first = await made(service, metadata={"labels": {"app": "a"}})
    rest = a_job("by-rest", {"namespace": "default", "annotations": {"note": "y"}})
    job = value_of(await service.http.post("/v1/jobs", json=rest), 201)["id"]
    await service.submit("plain")
    value_of(await service.http.post(JOBSETS, json=jobset("set")), 201)
    found = value_of(await service.http.get(BATCH))
    assert found["kind"] == "JobList"
    assert [one["metadata"]["name"] for one in found["items"]] == [job, "pi"], "the newest first"
    by_rest = found["items"][0]
    assert by_rest["metadata"]["annotations"]["note"] == "y"
    (container,) = by_rest["spec"]["template"]["spec"]["containers"]
    assert (by_rest["spec"]["parallelism"], container["name"]) == (2, "main")
    everywhere = value_of(await service.http.get("/apis/batch/v1/jobs", params={"labelSelector": "app=a"}))
    assert [one["metadata"]["uid"] for one in everywhere["items"]] == [first["metadata"]["uid"]]
    page = value_of(await service.http.get(BATCH, params={"limit": 1}))
    rest_of = value_of(await service.http.get(BATCH, params={"limit": 1, "continue": page["metadata"]["continue"]}))
    assert [one["metadata"]["name"] for one in rest_of["items"]] == ["pi"]
    sets = value_of(await service.http.get(JOBSETS))
    assert [one["metadata"]["name"] for one in sets["items"]] == ["set"]
    owns = value_of(await service.http.get(OWN))
    assert len(owns["items"]) == 4, "all are Jobs of this system"
    wrong = await service.http.get(f"{JOBSETS}/pi")
    assert value_of(wrong, 404)["message"] == 'jobsets.jobset.x-k8s.io "pi" not found'


def jobset(name: str) -> dict[str, Any]:
    inner = {"parallelism": 1, "completions": 1, "template": TEMPLATE}
    jobs = [{"name": "workers", "replicas": 2, "template": {"spec": inner}}]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": jobs},
    }


@pytest.mark.parametrize("kind", [one for one in KINDS if one.group], ids=lambda kind: kind.name)
async def test_each_kind_is_created_read_and_deleted(service: Service, kind: Any) -> None:
    sample = SAMPLES[kind.name].manifest
    path = f"/apis/{kind.api_version}/namespaces/default/{kind.plural}"
    policy = {
        "path": "default",
        "admission": {"serviceAccounts": ["spark"]},
    }  # without one a Spark driver makes no executors
    assert (await service.http.put("/v1/queues/default", json=policy)).status_code in (200, 201)
    manifest = {**sample, "metadata": {**sample["metadata"], "annotations": {"trainmaster.dev/queue": "default"}}}
    item = value_of(await service.http.post(path, json=manifest), 201)
    written = {field: value for field, value in item["spec"].items() if field != "selector"}
    assert written == manifest["spec"]
    again = await service.http.patch(f"{path}/example", json=manifest, headers=MERGE)
    assert value_of(again)["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"], "nothing has changed"
    replaced = await service.http.put(f"{path}/example", json=value_of(again))
    assert value_of(replaced)["spec"] == item["spec"]
    table = await service.http.get(path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    (row,) = value_of(table)["rows"]
    assert row["cells"][:2] == ["example", "queued"]
    assert value_of(await service.http.delete(f"{path}/example"))["status"] == "Success"
    assert value_of(await service.http.get(f"{path}/example"), 404)["reason"] == "NotFound"
    job = (await service.http.get("/v1/jobs")).json()["jobs"][0]
    assert job["state"] == "cancelled"


async def test_a_suspended_manifest_is_held_and_a_patch_releases_it(service: Service) -> None:
    item = await made(service, suspend=True)
    job = annotation(item, "job")
    assert (await service.job(job))["state"] == "held"
    resumed = await service.http.patch(f"{BATCH}/pi", json={"spec": {"suspend": False}}, headers=STRATEGIC)
    assert value_of(resumed)["spec"]["suspend"] is False
    assert (await service.job(job))["state"] == "queued"
    await service.http.post(f"/v1/jobs/{job}/suspend")
    shown = value_of(await service.http.get(f"{BATCH}/pi"))
    assert (shown["spec"]["suspend"], annotation(shown, "state")) == (True, "held")


async def test_labels_annotations_and_the_priority_class_can_be_changed_and_nothing_else(service: Service) -> None:
    made_class = await service.http.put("/v1/priority-classes/gold", json={"name": "gold", "value": 500})
    assert made_class.status_code in (200, 201), made_class.text
    item = await made(service)
    job = annotation(item, "job")
    labels = {"app": "b", "kueue.x-k8s.io/priority-class": "gold"}
    patched = await service.http.patch(
        f"{BATCH}/pi", json={"metadata": {"labels": labels, "annotations": {"a": "1"}}}, headers=STRATEGIC
    )
    assert value_of(patched)["metadata"]["labels"] == labels
    shown = await service.job(job)
    assert (shown["labels"], shown["priorityClass"]) == (labels, "gold")
    wrong = [
        ({"spec": {"parallelism": 3}}, "spec.parallelism"),
        ({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "j"}]}}}}, "spec.template"),
        ({"spec": {"selector": {"matchLabels": {"a": "b"}}}}, "spec.selector"),
        (
            {"metadata": {"annotations": {"trainmaster.dev/queue": "other"}}},
            'metadata.annotations["trainmaster.dev/queue"]',
        ),
        ({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": None}}}, "metadata"),
    ]
    for patch, path in wrong:
        refused = value_of(await service.http.patch(f"{BATCH}/pi", json=patch, headers=STRATEGIC), 422)
        assert [one["field"] for one in refused["details"]["causes"]] == [path]
    same = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}}
    before = value_of(await service.http.get(f"{BATCH}/pi"))
    kept = value_of(await service.http.patch(f"{BATCH}/pi", json=same, headers=STRATEGIC))
    assert kept["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    operations = [{"op": "add", "path": "/metadata/annotations/b", "value": "2"}]
    by_json = value_of(await service.http.patch(f"{BATCH}/pi", json=operations, headers=JSON_PATCH))
    assert by_json["metadata"]["annotations"]["b"] == "2"
    sets = value_of(await service.http.post(JOBSETS, json=jobset("set")), 201)["metadata"]["name"]
    refused = value_of(await service.http.patch(f"{JOBSETS}/{sets}", json={}, headers=STRATEGIC), 415)
    assert "strategic" in refused["message"]


async def test_an_apply_twice_changes_nothing_and_conflicts_name_the_manager(service: Service) -> None:
    manifest = a_job(metadata={"labels": {"app": "pi"}})
    terms = {"fieldManager": "me"}
    first = value_of(await service.http.patch(f"{BATCH}/pi", json=manifest, headers=APPLY, params=terms), 201)
    second = value_of(await service.http.patch(f"{BATCH}/pi", json=manifest, headers=APPLY, params=terms))
    for one in (first, second):
        del one["metadata"]["annotations"]["trainmaster.dev/why"]  # the scheduler may look at the job in between
    assert second == first
    other = a_job(metadata={"labels": {"app": "other"}})
    refused = await service.http.patch(f"{BATCH}/pi", json=other, headers=APPLY, params={"fieldManager": "you"})
    assert "me" in value_of(refused, 409)["message"]
    own = await service.http.patch(
        f"{OWN}/pi", json={"metadata": {"labels": {"app": "pi", "more": "1"}}}, headers=MERGE
    )
    value_of(own)
    third = value_of(await service.http.get(f"{BATCH}/pi"))
    assert third["spec"] == first["spec"], "a change as a Job of this system leaves the manifest as it was written"
    assert third["metadata"]["labels"] == {"app": "pi", "more": "1"}


async def test_its_status_is_that_of_the_object_on_its_cluster(service: Service) -> None:
    item = await made(service)
    job = annotation(item, "job")
    begin = await version(service, BATCH)
    agent, run = await running(service, object_status={"active": 2})
    await service.until(job, "running")
    async with watch(service, BATCH, resourceVersion=begin) as events:
        shown = value_of(await service.http.get(f"{BATCH}/pi"))
        assert (shown["status"], annotation(shown, "cluster")) == ({"active": 2}, "private")
        await agent.report(
            run, RunState.RUNNING, 2, object_status={"active": 1, "succeeded": 3}, message="its Job: 1 active"
        )
        for _ in range(20):
            event = await asyncio.wait_for(events.get(), 10)
            if event["object"]["status"] == {"active": 1, "succeeded": 3}:
                break
        else:
            raise AssertionError("the watch did not tell of the new status")
    await agent.report(run, RunState.RUNNING, 3, message="its Job: 1 active")  # the status is as before
    history = (await service.http.get(f"/v1/jobs/{job}/events")).json()["events"]
    assert [one["message"] for one in history if one["kind"] == "run.status"] == ["its Job: 1 active"]
    await agent.report(run, RunState.RUNNING, 4, object_status={"active": 1, "ready": 1}, message="its Job: 1 active")
    selected = {"fieldSelector": "involvedObject.name=pi,reason=RunStatus"}
    (again,) = value_of(await service.http.get("/api/v1/namespaces/default/events", params=selected))["items"]
    assert again["count"] == 2, "an event that is the same again is counted"
    assert again["firstTimestamp"] <= again["lastTimestamp"]
    done = {"succeeded": 4, "conditions": [{"type": "Complete", "status": "True"}]}
    await agent.report(run, RunState.SUCCEEDED, 5, object_status=done)
    await service.until(job, "succeeded")
    assert value_of(await service.http.get(f"{BATCH}/pi"))["status"] == done


async def test_an_end_that_no_controller_told_of_is_a_condition_of_the_object(service: Service) -> None:
    item = await made(service)
    job = annotation(item, "job")
    await service.http.post(f"/v1/jobs/{job}/cancel")
    found = value_of(await service.http.get(f"{BATCH}/pi"))["status"]["conditions"]
    assert [(one["type"], one["status"], one["reason"]) for one in found] == [
        ("FailureTarget", "True", "Cancelled"),
        ("Failed", "True", "Cancelled"),
    ]


async def test_a_job_that_waits_again_has_no_status_of_the_run_before(service: Service) -> None:
    item = await made(service)
    agent, run = await running(service, object_status={"active": 2})
    await agent.report(run, RunState.PREEMPTED, 2, object_status={"active": 0}, message="preempted by the cluster")
    await service.until(annotation(item, "job"), "queued", "held", "dispatched")
    assert value_of(await service.http.get(f"{BATCH}/pi"))["status"] == {}


async def test_members_and_events_are_found_by_the_object(service: Service) -> None:
    item = await made(service)
    await running(service)
    await service.until(annotation(item, "job"), "running")
    for label in ("job-name=pi", "batch.kubernetes.io/job-name=pi", "trainmaster.dev/job-name=pi"):
        pods = await service.http.get("/api/v1/namespaces/default/pods", params={"labelSelector": label})
        assert [one["metadata"]["name"] for one in value_of(pods)["items"]] == ["pi.main.0", "pi.main.1"]
    labelled = await service.submit("labelled", labels={"job-name": "pi"})
    await running_again(service)
    await service.until(labelled, "running")
    for limit in (1, 500):
        wanted = {"labelSelector": "job-name=pi", "limit": limit}
        names: list[str] = []
        while True:
            page = value_of(await service.http.get("/api/v1/namespaces/default/pods", params=wanted))
            names += [one["metadata"]["name"] for one in page["items"]]
            if not (following := page["metadata"].get("continue")):
                break
            wanted["continue"] = following
        assert sorted(names) == sorted(["pi.main.0", "pi.main.1", f"{labelled}.main.0"]), "labels of jobs count as well"
    path = "/api/v1/namespaces/default/events"
    own = value_of(await service.http.get(f"{OWN}/pi"))
    for one in (item, own):
        fields = {"name": "pi", "kind": one["kind"], "uid": one["metadata"]["uid"]}
        selector = ",".join(f"involvedObject.{field}={value}" for field, value in fields.items())
        found = value_of(await service.http.get(path, params={"fieldSelector": selector}))["items"]
        assert len(found) > 2
        assert {event["involvedObject"]["apiVersion"] for event in found} == {one["apiVersion"]}
    listed = value_of(await service.http.get(path))["items"]
    kinds = {(one["involvedObject"]["name"], one["involvedObject"]["apiVersion"]) for one in listed}
    assert kinds == {("pi", "batch/v1"), (labelled, "trainmaster.dev/v1")}


async def test_a_watch_of_a_kind_has_its_objects_alone(service: Service) -> None:
    begin = await version(service, BATCH)
    async with (
        watch(service, BATCH, resourceVersion=begin) as jobs,
        watch(service, JOBSETS, resourceVersion=begin) as sets,
        watch(service, "/apis/batch/v1/jobs", resourceVersion=begin, labelSelector="app=a") as chosen,
    ):
        await service.submit("plain")
        await made(service, metadata={"labels": {"app": "a"}})
        value_of(await service.http.post(JOBSETS, json=jobset("set")), 201)
        assert await following(jobs, 1) == [("ADDED", "pi")]
        assert await following(sets, 1) == [("ADDED", "set")]
        assert await following(chosen, 1) == [("ADDED", "pi")]
        value_of(await service.http.delete(f"{BATCH}/pi"))
        assert (await following(jobs, 1))[0][1] == "pi"


async def test_mistakes_are_where_they_are_in_the_manifest(service: Service) -> None:
    wrong = a_job(parallelism="two")
    refused = value_of(await service.http.post(BATCH, json=wrong), 422)
    assert [one["field"] for one in refused["details"]["causes"]] == ["spec.parallelism"]
    elsewhere = a_job(metadata={"labels": {"kueue.x-k8s.io/queue-name": "other"}})
    refused = value_of(await service.http.post(BATCH, json=elsewhere), 422)
    assert refused["details"]["causes"][0]["field"] == 'metadata.labels["kueue.x-k8s.io/queue-name"]'
    other_kind = {**a_job(), "kind": "CronJob"}
    assert value_of(await service.http.post(BATCH, json=other_kind), 422)["details"]["causes"][0]["field"] == "kind"
    managed = value_of(await service.http.post(BATCH, json=a_job(managedBy="someone/else")), 422)
    assert managed["details"]["causes"][0]["field"] == "spec.managedBy"
    assert not value_of(await service.http.get(OWN))["items"], "none of them is stored"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apis/batch/v1/namespaces/default/cronjobs/x/status"),
        ("POST", "/apis/batch/v1beta1/namespaces/default/jobs"),
        ("GET", "/apis/apps/v1/namespaces/default/deployments/x"),
        ("GET", "/apis/apps"),
        ("GET", "/apis/batch/v2"),
        ("GET", "/openapi/v3/apis/batch/v2"),
    ],
)
async def test_what_is_not_served_is_not_found(service: Service, method: str, path: str) -> None:
    found: httpx.Response = await service.http.request(method, path, json=a_job() if method == "POST" else None)
    assert value_of(found, 404)["message"] == "the server could not find the requested resource"


async def put_queue(service: Service, path: str, **fields: Any) -> None:
    answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, **fields})
    assert answer.status_code in (200, 201), answer.text


async def test_a_queue_may_declare_the_namespace_of_its_jobs(service: Service) -> None:
    await put_queue(service, "research")
    await put_queue(service, "research/vision", namespace="kubeflow")
    place = "/apis/batch/v1/namespaces/kubeflow/jobs"
    item = value_of(await service.http.post(place, json=a_job(metadata={"namespace": "kubeflow"})), 201)
    job = annotation(item, "job")
    assert (item["metadata"]["namespace"], (await service.job(job))["queue"]) == ("kubeflow", "research/vision")
    assert value_of(await service.http.get(f"{place}/pi"))["metadata"]["uid"] == item["metadata"]["uid"]
    assert len(value_of(await service.http.get(place))["items"]) == 1
    await service.submit("plain", "research/vision")
    own = "/apis/trainmaster.dev/v1/namespaces/{}/jobs"
    assert len(value_of(await service.http.get(own.format("kubeflow")))["items"]) == 2
    assert not value_of(await service.http.get(own.format("research-vision")))["items"], "its path counts no more"
    found = value_of(await service.http.get("/api/v1/namespaces/kubeflow"))
    assert found["metadata"]["annotations"] == {"trainmaster.dev/queues": "research/vision"}
    events = value_of(await service.http.get("/api/v1/namespaces/kubeflow/events"))["items"]
    assert {one["metadata"]["namespace"] for one in events} == {"kubeflow"}
    assert len(events) == 2
    begin = await version(service, place)
    async with watch(service, place, resourceVersion=begin) as seen:
        value_of(await service.http.delete(f"{place}/pi"))
        assert (await following(seen, 1))[0][1] == "pi"
    refused = await service.http.put("/v1/queues/research/vision", json={"path": "research/vision", "namespace": "A_b"})
    assert value_of(refused, 422)["mistakes"][0]["path"] == "namespace"


async def test_queues_may_share_a_namespace_and_an_object_names_its_own(service: Service) -> None:
    await put_queue(service, "research")
    for name in ("vision", "audio"):
        await put_queue(service, f"research/{name}", namespace="team")
    place = "/apis/batch/v1/namespaces/team/jobs"
    unnamed = value_of(await service.http.post(place, json=a_job()), 422)["details"]["causes"][0]
    assert unnamed["field"] == 'metadata.annotations["trainmaster.dev/queue"]'
    assert "research/audio, research/vision" in unnamed["message"]
    kueue = a_job("one", {"labels": {"kueue.x-k8s.io/queue-name": "vision"}})
    full = a_job("two", {"annotations": {"trainmaster.dev/queue": "research/audio"}})
    for manifest, queue in ((kueue, "research/vision"), (full, "research/audio")):
        item = value_of(await service.http.post(place, json=manifest), 201)
        assert (await service.job(annotation(item, "job")))["queue"] == queue
        again = await service.http.patch(
            f"{place}/{item['metadata']['name']}", json=manifest, headers=APPLY, params={"fieldManager": "me"}
        )
        value_of(again)
    both = [one["metadata"]["name"] for one in value_of(await service.http.get(place))["items"]]
    assert both == ["two", "one"]
    page = value_of(await service.http.get(place, params={"limit": 1}))
    assert [one["metadata"]["name"] for one in page["items"]] == ["two"]
    taken = a_job("one", {"annotations": {"trainmaster.dev/queue": "research/audio"}})
    assert value_of(await service.http.post(place, json=taken), 409)["reason"] == "AlreadyExists"
    other = a_job("three", {"labels": {"kueue.x-k8s.io/queue-name": "default"}})
    message = value_of(await service.http.post(place, json=other), 422)["details"]["causes"][0]["message"]
    assert "'default' is no queue of the namespace 'team', which has: research/audio, research/vision" in message
