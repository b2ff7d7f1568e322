"""Schedules by the Kubernetes API: CronJobs and Schedules, their jobs' owners, events and watches."""

from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.scheduled import a_cron_job, a_schedule, create, events, pass_time, turn
from tests.integration.test_kube_changes import APPLY, MERGE, value_of
from tests.integration.test_kube_watches import following, version, watch
from tests.integration.test_kube_workloads import BATCH, STRATEGIC

CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
SCHEDULES = "/apis/trainmaster.dev/v1/namespaces/default/schedules"


async def made(service: Service, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    return value_of(await service.http.post(CRON_JOBS, json=a_cron_job(name, **fields)), 201)


async def test_a_cron_job_is_kept_as_it_was_written(service: Service) -> None:
    item = await made(service, timeZone="Europe/Berlin", metadata={"labels": {"team": "a"}, "annotations": {"x": "y"}})
    assert item["spec"] == a_cron_job(timeZone="Europe/Berlin")["spec"]
    assert item["metadata"]["labels"] == {"team": "a"}
    assert item["metadata"]["annotations"]["x"] == "y"
    assert item["metadata"]["annotations"]["trainmaster.dev/queue"] == "default"
    assert item["metadata"]["annotations"]["trainmaster.dev/next-due-local"][10:19] == "T03:00:00"
    assert item == value_of(await service.http.get(f"{CRON_JOBS}/nightly"))
    assert [one["metadata"]["name"] for one in value_of(await service.http.get(CRON_JOBS))["items"]] == ["nightly"]
    assert value_of(await service.http.get("/apis/batch/v1/cronjobs?labelSelector=team=b"))["items"] == []
    own = value_of(await service.http.get(f"{SCHEDULES}/nightly"))
    assert own["spec"]["job"]["kind"] == "Job"
    assert own["metadata"]["uid"] != item["metadata"]["uid"]


async def test_its_job_is_owned_by_it_and_goes_with_it(service: Service) -> None:
    item = await made(service)
    await pass_time(service, days=1)
    await turn(service)
    (job,) = value_of(await service.http.get(BATCH))["items"]
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("CronJob", "nightly", item["metadata"]["uid"])
    assert job["metadata"]["name"].startswith("nightly-2")
    assert job["metadata"]["labels"]["trainmaster.dev/schedule"] == "nightly"
    assert "T03:00:00" in job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    # A client that writes the object back as it has read it changes nothing.
    written = value_of(await service.http.put(f"{BATCH}/{job['metadata']['name']}", json=job))
    assert (written["spec"], written["metadata"]["ownerReferences"]) == (job["spec"], [owner])
    after = value_of(await service.http.get(f"{CRON_JOBS}/nightly"))
    (active,) = after["status"]["active"]
    assert (active["name"], active["uid"]) == (job["metadata"]["name"], job["metadata"]["uid"])
    assert after["status"]["lastScheduleTime"].endswith("T03:00:00Z")
    value_of(await service.http.delete(f"{CRON_JOBS}/nightly"))
    await turn(service)
    assert value_of(await service.http.get(BATCH))["items"] == []


async def test_orphans_stay(service: Service) -> None:
    await made(service)
    await pass_time(service, days=1)
    await turn(service)
    await service.http.request("DELETE", f"{CRON_JOBS}/nightly", json={"propagationPolicy": "Orphan"})
    await turn(service)
    (job,) = value_of(await service.http.get(BATCH))["items"]
    assert "ownerReferences" not in job["metadata"]


@pytest.mark.parametrize("form", [MERGE, STRATEGIC], ids=["merge", "strategic"])
async def test_it_is_patched(service: Service, form: dict[str, str]) -> None:
    before = await made(service)
    body = {"spec": {"suspend": True}, "metadata": {"labels": {"team": "b"}}}
    after = value_of(await service.http.patch(f"{CRON_JOBS}/nightly", json=body, headers=form))
    assert (after["spec"]["suspend"], after["metadata"]["labels"]) == (True, {"team": "b"})
    assert after["metadata"]["generation"] == 2
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    same = value_of(await service.http.patch(f"{CRON_JOBS}/nightly", json=body, headers=form))
    assert same["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    stale = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "spec": {"suspend": False}}
    assert value_of(await service.http.patch(f"{CRON_JOBS}/nightly", json=stale, headers=form), 409)
    moved = {"metadata": {"annotations": {"trainmaster.dev/queue": "other"}}}
    refused = value_of(await service.http.patch(f"{CRON_JOBS}/nightly", json=moved, headers=form), 422)
    assert "the queue of the schedule is 'default'" in refused["message"]


async def test_it_is_applied_by_the_server(service: Service) -> None:
    item = a_cron_job()
    for status in (201, 200):
        done = await service.http.patch(
            f"{CRON_JOBS}/nightly", json=item, headers=APPLY, params={"fieldManager": "ann"}
        )
        found = value_of(done, status)
    assert [one["manager"] for one in found["metadata"]["managedFields"]] == ["ann"]
    changed = a_cron_job(schedule="0 5 * * *")
    other = {"fieldManager": "bob"}
    conflict = await service.http.patch(f"{CRON_JOBS}/nightly", json=changed, headers=APPLY, params=other)
    assert value_of(conflict, 409)["reason"] == "Conflict"
    forced = await service.http.patch(
        f"{CRON_JOBS}/nightly", json=changed, headers=APPLY, params={**other, "force": "true"}
    )
    assert value_of(forced)["spec"]["schedule"] == "0 5 * * *"


async def test_a_schedule_of_this_system_is_an_object(service: Service) -> None:
    spec = {field: value for field, value in a_schedule().items() if field not in ("kind", "name", "queue")}
    item = {"apiVersion": "trainmaster.dev/v1", "kind": "Schedule", "metadata": {"name": "nightly"}, "spec": spec}
    assert value_of(await service.http.post(SCHEDULES, json=item), 201)["spec"] == spec
    await pass_time(service, days=1)
    await turn(service)
    (job,) = value_of(await service.http.get("/apis/trainmaster.dev/v1/namespaces/default/jobs"))["items"]
    assert job["metadata"]["ownerReferences"][0]["kind"] == "Schedule"
    wrong = {"spec": {"job": {"roles": [{"name": "main", "replicas": 0}]}}}
    refused = value_of(await service.http.patch(f"{SCHEDULES}/nightly", json=wrong, headers=MERGE), 422)
    assert "spec.job.roles[0].replicas" in [one["field"] for one in refused["details"]["causes"]]
    assert value_of(await service.http.get(f"{CRON_JOBS}/nightly"), 404)
    table = await service.http.get(SCHEDULES, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    cells = value_of(table)["rows"][0]["cells"]
    assert (cells[0], cells[1], cells[4]) == ("nightly", "0 3 * * *", 1)


async def test_mistakes_have_the_paths_of_the_object(service: Service) -> None:
    wrong = a_cron_job(jobTemplate={"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}})
    refused = value_of(await service.http.post(CRON_JOBS, json=wrong), 422)
    causes = [one["field"] for one in refused["details"]["causes"]]
    assert all(one.startswith("spec.jobTemplate.spec.template.spec") for one in causes), causes
    unknown = value_of(await service.http.post(CRON_JOBS, json=a_cron_job(every="5m")), 422)
    assert unknown["details"]["causes"][0]["field"] == "spec.every"
    warned = await service.http.post(CRON_JOBS, json=a_cron_job(every="5m"), params={"fieldValidation": "Warn"})
    assert 'unknown field \\"spec.every\\"' in warned.headers["warning"]


async def test_a_job_of_a_cron_job_by_hand(service: Service) -> None:
    item = await made(service, suspend=True)
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": item["metadata"]["uid"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "by-hand",
            "ownerReferences": [owner],
            "annotations": {"cronjob.kubernetes.io/instantiate": "manual"},
        },
        "spec": item["spec"]["jobTemplate"]["spec"],
    }
    found = value_of(await service.http.post(BATCH, json=job), 201)
    assert found["metadata"]["ownerReferences"][0]["uid"] == owner["uid"]
    assert [one["name"] for one in value_of(await service.http.get(f"{CRON_JOBS}/nightly"))["status"]["active"]] == [
        "by-hand"
    ]
    owner["uid"] = "another"
    job["metadata"]["name"] = "of-another"
    assert "metadata.ownerReferences" in value_of(await service.http.post(BATCH, json=job), 422)["message"]


async def test_what_happened_is_in_its_events(service: Service) -> None:
    await made(service)
    await pass_time(service, days=1)
    await turn(service)
    ((reason, message),) = await events(service)
    assert (reason, message[:20]) == ("SuccessfulCreate", "Created job nightly-")
    all_of_them = value_of(await service.http.get("/api/v1/events"))["items"]
    assert "CronJob" in {one["involvedObject"]["kind"] for one in all_of_them}


async def test_a_watch_has_each_change_from_the_version_of_a_list_on(service: Service) -> None:
    await made(service, "before")
    begin = await version(service, CRON_JOBS)
    async with watch(service, CRON_JOBS, resourceVersion=begin, allowWatchBookmarks="true") as found:
        await made(service)
        assert await following(found, 1) == [("ADDED", "nightly")]
        await pass_time(service, days=1)
        await turn(service)
        assert await following(found, 1) == [("MODIFIED", "nightly")]
        await create(service.http, a_schedule("no-cron-job"))
        await service.http.delete(f"{CRON_JOBS}/nightly")
        assert await following(found, 1) == [("DELETED", "nightly")]
        assert (await found.get())["type"] == "BOOKMARK"
    async with watch(service, CRON_JOBS, labelSelector="team=a") as found:
        item = {"metadata": {"labels": {"team": "a"}}}
        await service.http.patch(f"{CRON_JOBS}/before", json=item, headers=MERGE)
        assert [name for _, name in await following(found, 1)] == ["before"]
        item = {"metadata": {"labels": {"team": "b"}}}
        await service.http.patch(f"{CRON_JOBS}/before", json=item, headers=MERGE)
        assert await following(found, 1) == [("DELETED", "before")]
    too_old = await service.http.get(CRON_JOBS, params={"watch": "true", "resourceVersion": "1"})
    assert too_old.status_code == 410


async def test_other_tenants_see_and_change_nothing(service: Service) -> None:
    await made(service)
    await service.http.put("/v1/queues/other", json={"path": "other"})
    key = (await service.http.post("/v1/keys", json={"name": "eve", "role": "user", "queues": ["other"]})).json()["key"]
    async with service.as_key(key) as eve:
        assert value_of(await eve.get("/apis/batch/v1/cronjobs"))["items"] == []
        assert value_of(await eve.get(f"{CRON_JOBS}/nightly"), 404)
        assert value_of(await eve.delete(f"{CRON_JOBS}/nightly"), 404)
        assert value_of(await eve.post(CRON_JOBS, json=a_cron_job("mine")), 404)
        assert (await eve.get("/v1/schedules/nightly")).status_code == 404
        assert (await eve.get("/v1/schedules")).json()["schedules"] == []
