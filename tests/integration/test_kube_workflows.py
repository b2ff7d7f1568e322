"""Workflows by the Kubernetes API: submitted, watched, applied, deleted, and their events, with the leading scheduler."""

from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.reported_runs import ReportedRuns
from tests.integration.test_kube_changes import APPLY, GROUP, JSON_PATCH, MERGE, value_of
from tests.integration.test_kube_watches import TABLE, following, version, watch
from tests.integration.test_workflows import Flow, Flows, declare_queue, step
from tests.waiting import eventually
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory, RunState

WORKFLOWS = f"{GROUP}/namespaces/default/workflows"
_CANCELLED = (RunState.RUNNING, RunState.CANCELLED)


def manifest(
    *steps: dict[str, Any], name: str = "nightly", metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1",
        "kind": "Workflow",
        "metadata": {**({"name": name} if name else {"generateName": "made-"}), **(metadata or {})},
        "spec": {"steps": list(steps or [step("a"), step("b", after=("a",))]), **spec},
    }


async def made(service: Service, *steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return value_of(await service.http.post(WORKFLOWS, json=manifest(*steps, **fields)), 201)


@pytest.fixture
async def flows(service: Service) -> Flows:
    return Flows(service, await ReportedRuns(service).connect())


def flow_of(flows: Flows, item: dict[str, Any]) -> Flow:
    return flows.of(item["status"]["id"])


async def test_it_runs_and_its_status_follows(service: Service, flows: Flows) -> None:
    item = await made(service, metadata={"labels": {"team": "a"}, "annotations": {"x": "y"}}, onFailure="stop")
    assert item["spec"] == {**manifest(onFailure="stop")["spec"], "queue": "default"}
    assert (item["metadata"]["labels"], item["metadata"]["annotations"]) == ({"team": "a"}, {"x": "y"})
    assert item["status"]["id"].startswith("nightly-w")
    assert [(one["type"], one["status"]) for one in item["status"]["conditions"]] == [("Running", "True")]
    flow = flow_of(flows, item)
    await flow.passes("a")
    job = await flow.job_of("b")
    running = value_of(await service.http.get(f"{WORKFLOWS}/nightly"))["status"]
    assert (running["progress"], running["message"]) == ("1/2", "running: b")
    assert [(one["name"], one["state"], one.get("ids")) for one in running["steps"]][1] == ("b", "running", [job])
    await flow.runs.end(job)
    await flow.until("succeeded")
    ended = value_of(await service.http.get(f"{WORKFLOWS}/nightly"))["status"]
    assert (ended["state"], ended["progress"], ended["conditions"][0]["type"]) == ("succeeded", "2/2", "Complete")
    assert ended["conditions"][0]["lastTransitionTime"] == f"{ended['endedAt'][:19]}Z"
    # By REST it is the same workflow, and one that came by REST is an object with its id as its name.
    shown = await flow.show()
    assert (shown["name"], shown["labels"], shown["spec"]["queue"]) == ("nightly", {"team": "a"}, "default")
    other = await flows.submit(step("a"))
    assert {one["metadata"]["name"] for one in value_of(await service.http.get(WORKFLOWS))["items"]} == {
        "nightly",
        other.id,
    }
    assert "generateName" in value_of(await service.http.get(f"{WORKFLOWS}/{other.id}"))["metadata"]
    audit = (await service.http.get("/v1/audit")).json()["audit"]
    assert [one["action"] for one in audit if one["action"] == "submit workflow"] == ["submit workflow"] * 2


async def test_lists_are_tables_pages_and_selections(service: Service, flows: Flows) -> None:
    for number in range(3):
        await made(service, name=f"flow-{number}", metadata={"labels": {"number": str(number)}})
    table = value_of(await service.http.get(WORKFLOWS, headers=TABLE))
    shown = [one["name"] for one in table["columnDefinitions"] if not one["priority"]]
    assert shown == ["Name", "Queue", "State", "Steps", "Age"]
    assert table["rows"][0]["cells"][:4] == ["flow-2", "default", "running", "0/2"]
    names: list[str] = []
    following_page = ""
    while True:
        page = value_of(await service.http.get(WORKFLOWS, params={"limit": "2", "continue": following_page}))
        names += [one["metadata"]["name"] for one in page["items"]]
        following_page = page["metadata"].get("continue", "")
        if not following_page:
            break
    assert names == ["flow-2", "flow-1", "flow-0"]
    for selector, expected in (
        ({"labelSelector": "number in (0,2)"}, 2),
        ({"fieldSelector": "metadata.name=flow-1"}, 1),
        ({"fieldSelector": "status.state=failed"}, 0),
        ({"fieldSelector": "spec.queue=default,status.state!=failed"}, 3),
    ):
        found = value_of(await service.http.get(f"{GROUP}/workflows", params=selector))["items"]
        assert len(found) == expected, selector
    assert value_of(await service.http.get(WORKFLOWS, params={"fieldSelector": "spec.steps=1"}), 422)


async def test_a_deletion_cancels_it_and_frees_its_name_once_it_has_ended(service: Service, flows: Flows) -> None:
    item = await made(service, step("a"), step("tidy", cleanup=True))
    flow = flow_of(flows, item)
    job = await flow.job_of("a")
    refused = await service.http.request("DELETE", f"{WORKFLOWS}/nightly", json={"propagationPolicy": "Orphan"})
    assert "jobs of a workflow end with it" in value_of(refused, 422)["message"]
    dry = await service.http.delete(f"{WORKFLOWS}/nightly", params={"dryRun": "All"})
    assert value_of(dry)["status"]["state"] == "cancelling"
    assert "deletionTimestamp" not in value_of(await service.http.get(f"{WORKFLOWS}/nightly"))["metadata"]
    going = value_of(await service.http.delete(f"{WORKFLOWS}/nightly"))
    assert going["metadata"]["deletionTimestamp"]
    assert going["status"]["state"] == "cancelling"
    await service.until(job, "cancelling")
    assert value_of(await service.http.post(WORKFLOWS, json=manifest()), 409)["reason"] == "AlreadyExists"
    await flow.runs.come_to(job, *_CANCELLED)
    await flow.passes("tidy")
    await flow.until("cancelled")
    assert value_of(await service.http.get(f"{WORKFLOWS}/nightly"), 404)
    assert value_of(await service.http.get(WORKFLOWS))["items"] == []
    again = await made(service)
    # REST has both; one that goes on has an object again, named by its id as its name has been taken.
    await flow.act("resume")
    assert {one["metadata"]["name"] for one in value_of(await service.http.get(WORKFLOWS))["items"]} == {
        "nightly",
        flow.id,
    }
    assert again["status"]["id"] != flow.id


async def test_a_deletion_at_once_runs_no_cleanup(service: Service, flows: Flows) -> None:
    flow = flow_of(flows, await made(service, step("a"), step("tidy", cleanup=True)))
    job = await flow.job_of("a")
    value_of(await service.http.request("DELETE", f"{WORKFLOWS}/nightly", json={"gracePeriodSeconds": 0}))
    await service.until(job, "cancelling")
    await flow.runs.come_to(job, *_CANCELLED)
    assert (await flow.until("cancelled"))["steps"][1]["state"] == "skipped"


async def test_labels_and_annotations_can_be_changed_and_nothing_else(service: Service, flows: Flows) -> None:
    before = await made(service)
    body = {"metadata": {"labels": {"team": "b"}, "annotations": {"note": "n"}}}
    after = value_of(await service.http.patch(f"{WORKFLOWS}/nightly", json=body, headers=MERGE))
    assert (after["metadata"]["labels"], after["metadata"]["annotations"]) == ({"team": "b"}, {"note": "n"})
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    operation = [{"op": "replace", "path": "/spec/steps/0/name", "value": "other"}]
    refused = value_of(await service.http.patch(f"{WORKFLOWS}/nightly", json=operation, headers=JSON_PATCH), 422)
    assert [one["field"] for one in refused["details"]["causes"]] == ["spec.steps"]
    assert "is fixed once the workflow is submitted" in refused["message"]
    # What means the same changes nothing.
    same = value_of(await service.http.get(f"{WORKFLOWS}/nightly"))
    same["spec"]["onFailure"] = "stop"
    del same["spec"]["queue"], same["metadata"]["resourceVersion"]
    written = value_of(await service.http.put(f"{WORKFLOWS}/nightly", json=same))
    assert written["spec"] == after["spec"]
    stale = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"], "labels": {"team": "c"}}}
    assert value_of(await service.http.patch(f"{WORKFLOWS}/nightly", json=stale, headers=MERGE), 409)
    wrong = {"metadata": {"labels": {"-": "x"}}}
    assert value_of(await service.http.patch(f"{WORKFLOWS}/nightly", json=wrong, headers=MERGE), 422)


async def test_it_is_applied_by_the_server(service: Service, flows: Flows) -> None:
    for status in (201, 200):
        answer = await service.http.patch(
            f"{WORKFLOWS}/nightly",
            json=manifest(metadata={"labels": {"team": "a"}}),
            headers=APPLY,
            params={"fieldManager": "ann"},
        )
        item = value_of(answer, status)
    assert [one["manager"] for one in item["metadata"]["managedFields"]] == ["ann"]
    other = manifest(metadata={"labels": {"team": "b"}})
    conflict = await service.http.patch(
        f"{WORKFLOWS}/nightly", json=other, headers=APPLY, params={"fieldManager": "bob"}
    )
    assert value_of(conflict, 409)["reason"] == "Conflict"
    forced = await service.http.patch(
        f"{WORKFLOWS}/nightly", json=other, headers=APPLY, params={"fieldManager": "bob", "force": "true"}
    )
    assert value_of(forced)["metadata"]["labels"] == {"team": "b"}
    assert len((await service.http.get("/v1/workflows")).json()["workflows"]) == 1


async def test_mistakes_have_the_paths_of_the_object_and_change_nothing(service: Service) -> None:
    wrong = step("a")
    wrong["job"]["roles"][0]["replicas"] = 0
    for given, field in (
        (manifest(wrong), "spec.steps[0].job.roles[0].replicas"),
        (manifest(step("a", after=("none",))), "spec.steps[0].after[0].step"),
        (manifest(name="Not A Name"), "metadata.name"),
        (manifest(kind="Workflow"), "spec.kind"),
        (manifest(queue="elsewhere"), "spec.queue"),
        (manifest(metadata={"labels": {"-": "x"}}), "metadata.labels"),
        (manifest(every="5m"), "spec.every"),
    ):
        refused = value_of(await service.http.post(WORKFLOWS, json=given), 422)
        assert any(one["field"].startswith(field) for one in refused["details"]["causes"]), (field, refused)
    warned = await service.http.post(
        WORKFLOWS, json=manifest(every="5m"), params={"fieldValidation": "Warn", "dryRun": "All"}
    )
    assert 'unknown field \\"spec.every\\"' in warned.headers["warning"]
    typed = await service.http.post(
        WORKFLOWS, json=manifest(step("a", "${rat}"), parameters={"rate": 1}), params={"dryRun": "All"}
    )
    assert "spec.steps[0].job" in typed.headers["warning"]
    assert (await service.http.get("/v1/workflows")).json()["workflows"] == []


async def test_a_name_may_be_made_and_is_unique_in_a_shared_namespace(service: Service) -> None:
    item = await made(service, name="")
    assert item["metadata"]["name"] == item["status"]["id"]
    assert item["status"]["id"].startswith("made-w")
    for path in ("one", "two"):
        await declare_queue(service, path, namespace="shared")
    shared = f"{GROUP}/namespaces/shared/workflows"
    assert "is needed" in value_of(await service.http.post(shared, json=manifest()), 422)["message"]
    value_of(await service.http.post(shared, json=manifest(queue="one")), 201)
    assert value_of(await service.http.post(shared, json=manifest(queue="two")), 409)["reason"] == "AlreadyExists"
    taken = manifest(name=item["metadata"]["name"])
    assert value_of(await service.http.post(WORKFLOWS, json=taken), 409)["reason"] == "AlreadyExists"


async def test_a_watch_has_each_change_from_the_version_of_a_list_on(service: Service, flows: Flows) -> None:
    await made(service, name="before")
    begin = await version(service, WORKFLOWS)
    async with watch(service, WORKFLOWS, resourceVersion=begin, fieldSelector="metadata.name=nightly") as found:
        item = await made(service, step("a"), step("b", after=("a",)))
        flow = flow_of(flows, item)
        assert (await following(found, 1))[0] == ("ADDED", "nightly")
        seen = [item]
        await flow.passes("a")
        await flow.passes("b")

        async def has_ended() -> bool:
            while not found.empty():
                seen.append(found.get_nowait()["object"])
            return bool(seen[-1]["status"]["state"] == "succeeded")

        await eventually(has_ended, 15)
        assert seen[-1] == value_of(await service.http.get(f"{WORKFLOWS}/nightly"))
        value_of(await service.http.delete(f"{WORKFLOWS}/nightly"))
        assert (await following(found, 1)) == [("DELETED", "nightly")]
    async with watch(service, WORKFLOWS, sendInitialEvents="true", allowWatchBookmarks="true") as found:
        first, mark = await following_types(found)
        assert (first, mark) == ("ADDED", "BOOKMARK")
    too_old = await service.http.get(WORKFLOWS, params={"watch": "true", "resourceVersion": "1"})
    assert too_old.status_code == 410


async def following_types(found: Any) -> tuple[str, str]:
    return (await found.get())["type"], (await found.get())["type"]


async def test_what_happened_is_in_its_events(service: Service, flows: Flows) -> None:
    item = await made(service, step("a"), step("b", after=("a",)))
    flow = flow_of(flows, item)
    job = await flow.job_of("a")
    await flow.runs.end(job, failed=True, end=RunEnd(category=FailureCategory.EXIT, exit_code=3))
    await flow.until("failed")
    await flow.act("resume")
    involved = f"involvedObject.name=nightly,involvedObject.uid={item['metadata']['uid']}"
    events = value_of(await service.http.get("/api/v1/namespaces/default/events", params={"fieldSelector": involved}))[
        "items"
    ]
    found = [(one["reason"], one["type"]) for one in events]
    assert found == [
        ("Submitted", "Normal"),
        ("StepRunning", "Normal"),
        ("StepFailed", "Warning"),
        ("StepSkipped", "Normal"),
        ("Failed", "Warning"),
        ("Resume", "Normal"),
    ]
    assert events[2]["message"] == "step a, its job failed: exit code 3"
    assert events[-1]["message"] == "attempt 2, by admin"
    assert events[-1]["involvedObject"]["kind"] == "Workflow"
    everything = value_of(await service.http.get("/api/v1/events"))["items"]
    assert {"Workflow", "Job"} <= {one["involvedObject"]["kind"] for one in everything}


async def test_other_tenants_see_and_change_nothing(service: Service) -> None:
    item = await made(service)
    await declare_queue(service, "other")
    key = (await service.http.post("/v1/keys", json={"name": "eve", "role": "user", "queues": ["other"]})).json()["key"]
    async with service.as_key(key) as eve:
        assert value_of(await eve.get(f"{GROUP}/workflows"))["items"] == []
        assert value_of(await eve.get(f"{WORKFLOWS}/nightly"), 404)
        assert value_of(await eve.delete(f"{WORKFLOWS}/nightly"), 404)
        assert value_of(await eve.patch(f"{WORKFLOWS}/nightly", json={}, headers=MERGE), 404)
        assert value_of(await eve.post(WORKFLOWS, json=manifest(name="mine")), 404)
        assert value_of(await eve.get("/api/v1/events"))["items"] == []
    await declare_queue(service, "default", jobActions="own")
    key = (await service.http.post("/v1/keys", json={"name": "bob", "role": "user", "queues": ["default"]})).json()[
        "key"
    ]
    async with service.as_key(key) as bob:
        assert value_of(await bob.get(f"{WORKFLOWS}/nightly"))["metadata"]["uid"] == item["metadata"]["uid"]
        assert value_of(await bob.delete(f"{WORKFLOWS}/nightly"), 403)
        labelled = {"metadata": {"labels": {"a": "b"}}}
        assert value_of(await bob.patch(f"{WORKFLOWS}/nightly", json=labelled, headers=MERGE), 403)
