"""Schedules: made by REST, and their due times dealt with by the side job."""

import asyncio
from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.rows import execute, rows, value
from tests.integration.scheduled import ROLES, a_cron_job, a_schedule, create, pass_time, shown, turn
from tests.unit.workload_manifests import SAMPLES
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.schedule_firing import FiringTally


async def jobs_of(service: Service, name: str = "nightly") -> list[dict[str, Any]]:
    found = await service.http.get("/v1/jobs", params={"label": f"trainmaster.dev/schedule={name}"})
    listed: list[dict[str, Any]] = found.json()["jobs"]
    return listed


async def reasons(service: Service, name: str = "nightly") -> list[str]:
    found = await rows(
        service.stores,
        "SELECT e.reason FROM schedule_events e JOIN schedules s ON s.id = e.schedule_id WHERE s.name = :name ORDER BY e.id",
        name=name,
    )
    return [row.reason for row in found]


@pytest.mark.parametrize("document", [a_schedule(), a_cron_job()], ids=["Schedule", "CronJob"])
async def test_a_due_time_becomes_one_job(service: Service, document: dict[str, Any]) -> None:
    if "apiVersion" in document:
        document["metadata"]["namespace"] = "default"
    made = await create(service.http, document)
    assert made["nextDue"].endswith("T03:00:00.000Z")
    assert await turn(service) == FiringTally(), "nothing is due yet"
    await pass_time(service, days=1)
    assert (await turn(service)).submitted == 1
    assert await turn(service) == FiringTally()
    (job,) = await jobs_of(service)
    assert job["submittedBy"] == "admin"
    after = await shown(service)
    assert after["active"] == [job["id"]]
    assert after["lastDue"] is not None
    assert after["message"] == ""
    assert await reasons(service) == ["SuccessfulCreate"]
    lines = (await service.http.get("/v1/audit", params={"action": "submit"})).json()["audit"]
    assert lines[0]["details"]["schedule"] == "default/nightly"


async def test_workers_at_the_same_time_make_each_job_once(service: Service) -> None:
    many = 60
    await asyncio.gather(
        *(create(service.http, a_schedule(f"s{number}", schedule="* * * * *")) for number in range(many))
    )
    for _ in range(3):
        await execute(
            service.stores,
            "UPDATE schedules SET counts_from = counts_from - interval '1 minute', next_look = now(), xid = pg_current_xact_id()"
            " WHERE counts_from > now() - interval '1 minute'",
        )
        await asyncio.gather(*(turn(service, batch=17) for _ in range(4)))
        await turn(service)
    made = await rows(service.stores, "SELECT schedule_id, due_at, count(*) AS many FROM scheduled_jobs GROUP BY 1, 2")
    assert all(row.many == 1 for row in made)
    assert len({row.schedule_id for row in made}) == many
    assert await value(service.stores, "SELECT count(*) FROM jobs") == len(made)


async def test_of_a_missed_window_the_newest_due_time_becomes_a_job(service: Service) -> None:
    await create(service.http, a_schedule(schedule="* * * * *"))
    await pass_time(service, hours=5)
    assert (await turn(service)).submitted == 1
    assert len(await jobs_of(service)) == 1
    assert await reasons(service) == ["TooManyMissedTimes", "SuccessfulCreate"]


async def test_a_missed_window_behind_its_deadline_is_passed_over(service: Service) -> None:
    await create(service.http, a_schedule(schedule="0 0 1 1 *", startingDeadline="1s"))
    await pass_time(service, days=366)
    assert (await turn(service)).late == 1
    after = await shown(service)
    assert "starting deadline has passed" in after["message"]
    assert (after.get("lastDue"), await jobs_of(service)) == (None, [])
    assert await reasons(service) == ["MissSchedule"]
    assert await turn(service) == FiringTally()


async def end(service: Service, job_id: str) -> None:
    assert (await service.http.post(f"/v1/jobs/{job_id}/cancel")).is_success
    await service.until(job_id, "cancelled")


async def test_forbid_waits_for_the_earlier_job(service: Service) -> None:
    await create(service.http, a_schedule(schedule="* * * * *", concurrencyPolicy="Forbid"))
    await pass_time(service, minutes=1)
    await turn(service)
    (first,) = await jobs_of(service)
    await pass_time(service, minutes=2)
    assert (await turn(service)).blocked == 1
    assert "concurrencyPolicy is Forbid" in (await shown(service))["message"]
    await pass_time(service, minutes=0)
    await turn(service)
    assert (await reasons(service)).count("JobAlreadyActive") == 1, "each due time is told once"
    await end(service, first["id"])
    tally = await turn(service)
    assert (tally.settled, tally.submitted) == (1, 1)
    assert len(await jobs_of(service)) == 2


async def test_replace_cancels_the_earlier_job(service: Service) -> None:
    await create(service.http, a_schedule(schedule="* * * * *", concurrencyPolicy="Replace"))
    await pass_time(service, minutes=1)
    await turn(service)
    await pass_time(service, minutes=2)
    assert (await turn(service)).submitted == 1
    second, first = await jobs_of(service)
    assert (first["state"], second["state"]) == ("cancelled", "queued")


async def test_the_rights_at_the_due_time_count(service: Service) -> None:
    key = (await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["default"]})).json()
    async with service.as_key(key["key"]) as ann:
        await create(ann, a_schedule())
    await service.http.delete(f"/v1/keys/{key['id']}")
    await pass_time(service, days=1)
    assert (await turn(service)).refused == 1
    assert "'ann' is not valid any more" in (await shown(service))["message"]
    assert await reasons(service) == ["FailedCreate"]
    # With a key of the same name, the job is made up for.
    await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["default"]})
    await pass_time(service, minutes=0)
    assert (await turn(service)).submitted == 1
    (job,) = await jobs_of(service)
    assert job["submittedBy"] == "ann"


async def test_a_closed_or_full_queue_is_told_and_tried_again(service: Service) -> None:
    await create(service.http, a_schedule())
    await service.http.patch("/v1/queues/default", json={"state": "stopped"})
    await pass_time(service, days=1)
    await turn(service)
    assert "takes no jobs (queue-closed)" in (await shown(service))["message"]
    await service.http.patch("/v1/queues/default", json={"state": "open", "maxQueued": 0})
    await pass_time(service, minutes=0)
    await turn(service)
    assert "(queue-full)" in (await shown(service))["message"]
    await service.http.patch("/v1/queues/default", json={"maxQueued": None})
    await pass_time(service, minutes=0)
    assert (await turn(service)).submitted == 1
    assert (await shown(service))["message"] == ""


async def test_one_that_cannot_be_dealt_with_does_not_hinder_others(service: Service) -> None:
    await create(service.http, a_schedule("broken"))
    await create(service.http, a_schedule("whole"))
    await execute(service.stores, "UPDATE schedules SET spec = '{\"schedule\": 7}' WHERE name = 'broken'")
    for name in ("broken", "whole"):
        await pass_time(service, name, days=1)
    assert (await turn(service)).submitted == 1
    assert "does not understand its specification" in (await shown(service, "broken"))["message"]


async def test_a_job_on_behalf_of_a_user_is_that_users(service: Service) -> None:
    spec = {"name": "flows", "role": "user", "queues": ["default"], "onBehalfOf": ["bob"]}
    key = (await service.http.post("/v1/keys", json=spec)).json()["key"]
    async with service.as_key(key) as flows:
        made = await create(flows, a_schedule(), onBehalfOf="bob")
    assert made["submittedBy"] == "bob"
    await pass_time(service, days=1)
    await turn(service)
    (job,) = await jobs_of(service)
    assert (job["submittedBy"], job["submittedThrough"]) == ("bob", "flows")


async def test_suspended_ones_wait_and_make_up_for_the_newest(service: Service) -> None:
    await create(service.http, a_schedule(suspend=True))
    assert "nextDue" not in await shown(service)
    await pass_time(service, days=3)
    assert await turn(service) == FiringTally()
    resumed = await service.http.patch("/v1/schedules/nightly", json={"suspend": False})
    assert resumed.json()["suspend"] is False
    assert (await turn(service)).submitted == 1


async def test_a_new_expression_counts_from_now(service: Service) -> None:
    await create(service.http, a_schedule())
    await pass_time(service, days=1)
    changed = await service.http.patch("/v1/schedules/nightly", json={"schedule": "30 4 * * *"})
    assert changed.status_code == 200
    assert (await turn(service)).submitted == 0
    assert (await shown(service))["nextDue"].endswith("T04:30:00.000Z")


async def test_whoever_writes_the_job_is_the_one_whose_jobs_they_are(service: Service) -> None:
    await service.http.patch("/v1/queues/default", json={"jobActions": "any"})
    people = {}
    for name in ("ann", "bob"):
        key = await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": ["default"]})
        people[name] = service.as_key(key.json()["key"])
    await create(people["ann"], a_schedule())
    suspended = await people["bob"].patch("/v1/schedules/nightly", json={"suspend": True})
    assert suspended.json()["submittedBy"] == "ann"
    changed = await people["bob"].put("/v1/schedules/nightly", json=a_schedule(schedule="0 4 * * *"))
    assert changed.json()["submittedBy"] == "bob"
    await service.http.patch("/v1/queues/default", json={"jobActions": "own"})
    refused = await people["ann"].delete("/v1/schedules/nightly")
    assert refused.json()["code"] == "job-of-another"
    for http in people.values():
        await http.aclose()


async def test_jobs_of_other_kinds_and_with_jitter(service: Service) -> None:
    sample = SAMPLES["jobset.x-k8s.io/v1alpha2 JobSet"].manifest
    manifest = {field: sample[field] for field in ("apiVersion", "kind", "spec")}
    await create(service.http, a_schedule(job=manifest, schedule="0 * * * *", jitter="30m"))
    await pass_time(service, hours=3)
    assert (await turn(service)).submitted == 1
    objects = await service.http.get("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets")
    (item,) = objects.json()["items"]
    assert item["metadata"]["ownerReferences"][0]["kind"] == "Schedule"
    due = await value(service.stores, "SELECT extract(minute FROM due_at) FROM scheduled_jobs")
    assert due == 0, "the due time is the one of the expression"


async def test_a_schedule_that_rest_replaces_keeps_what_kubernetes_knows(service: Service) -> None:
    spec = {"schedule": "0 3 * * *", "job": {"roles": ROLES}}
    item = {
        "apiVersion": "trainmaster.dev/v1",
        "kind": "Schedule",
        "metadata": {"name": "nightly", "annotations": {"a": "b"}},
        "spec": spec,
    }
    address = "/apis/trainmaster.dev/v1/namespaces/default/schedules"
    made = (await service.http.post(address, json=item)).json()
    assert (await service.http.put("/v1/schedules/nightly", json=a_schedule(schedule="0 4 * * *"))).status_code == 200
    after = (await service.http.get(f"{address}/nightly")).json()
    assert (after["metadata"]["annotations"]["a"], after["spec"]["schedule"]) == ("b", "0 4 * * *")
    assert after["metadata"]["managedFields"] == made["metadata"]["managedFields"]


async def test_run_now_is_beside_due_times(service: Service) -> None:
    await create(service.http, a_schedule(suspend=True))
    made = await service.http.post("/v1/schedules/nightly/run")
    assert made.status_code == 201, made.text
    assert (await shown(service))["active"] == [made.json()["id"]]
    assert made.headers["location"] == f"/v1/jobs/{made.json()['id']}"


async def test_deletion_takes_its_jobs_along_or_leaves_them(service: Service) -> None:
    for name, keeps in (("one", "false"), ("two", "true")):
        await create(service.http, a_schedule(name))
        assert (await service.http.post(f"/v1/schedules/{name}/run")).status_code == 201
        assert (await service.http.delete(f"/v1/schedules/{name}", params={"keepJobs": keeps})).status_code == 204
    assert (await turn(service)).deleted == 1
    assert [job["state"] for job in await jobs_of(service, "one")] == ["cancelled"]
    assert [job["state"] for job in await jobs_of(service, "two")] == ["queued"]
    assert (await service.http.get("/v1/schedules")).json()["schedules"] == []
    await create(service.http, a_schedule("one"))


async def test_history_limits_hide_objects_and_keep_jobs(service: Service) -> None:
    await create(service.http, a_schedule(schedule="* * * * *", failedJobsHistoryLimit=1))
    for _ in range(3):
        await pass_time(service, minutes=2)
        await turn(service)
        (newest, *_) = await jobs_of(service)
        await end(service, newest["id"])
    await turn(service)
    objects = await service.http.get("/apis/trainmaster.dev/v1/namespaces/default/jobs")
    assert len(objects.json()["items"]) == 1
    assert len(await jobs_of(service)) == 3


async def test_success_is_in_its_status(service: Service) -> None:
    await create(service.http, a_schedule())
    await service.http.post("/v1/schedules/nightly/run")
    agent = service.agent()
    await agent.connect()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.SUCCEEDED, 1)
    assert (await turn(service)).settled == 1
    after = await shown(service)
    assert (after["active"], bool(after["lastSucceeded"])) == ([], True)
    # One that is tried once more is active again.
    await agent.http.aclose()


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "expression": (a_schedule(schedule="61 * * * *"), "schedule"),
    "zone": (a_schedule(timeZone="Mars/Base"), "timeZone"),
    "unknown field": (a_schedule(every="5m"), "every"),
    "name": (a_schedule("Bad_Name"), "name"),
    "name in the job": (a_schedule(job={"name": "x", "roles": ROLES}), "job.name"),
    "job": (a_schedule(job={"roles": [{"name": "main", "replicas": 0}]}), "job.roles[0].replicas"),
    "jitter": (a_schedule(jitter="2h"), "jitter"),
    "queue": (a_schedule(queue="nowhere"), ""),
    "manifest": (
        a_schedule(job={"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}}),
        "job.spec.template.spec.containers",
    ),
    "cron job expression": (a_cron_job(metadata={"namespace": "default"}, schedule="x"), "spec.schedule"),
    "cron job template": (
        a_cron_job(metadata={"namespace": "default"}, jobTemplate={"spec": {"completions": -1}}),
        "spec.jobTemplate.spec.completions",
    ),
    "cron job policy": (
        a_cron_job(metadata={"namespace": "default"}, concurrencyPolicy="Never"),
        "spec.concurrencyPolicy",
    ),
    "cron job without a queue": (a_cron_job(), "metadata.namespace"),
    "owners": (a_cron_job(metadata={"namespace": "default", "ownerReferences": [{}]}), "metadata.ownerReferences"),
}


@pytest.mark.parametrize(("document", "path"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_mistakes_have_their_paths(service: Service, document: dict[str, Any], path: str) -> None:
    answer = await service.http.post("/v1/schedules", json=document)
    assert answer.status_code == 422, answer.text
    if path:
        assert path in [one["path"] for one in answer.json()["mistakes"]], answer.text


async def test_a_queue_with_schedules_is_not_removed(service: Service) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    await create(service.http, a_schedule(queue="other"))
    refused = await service.http.delete("/v1/queues/other")
    assert (refused.status_code, refused.json()["code"]) == (409, "in-use")


async def test_names_are_unique_in_a_queue(service: Service) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    await create(service.http, a_schedule())
    again = await service.http.post("/v1/schedules", json=a_schedule())
    assert (again.status_code, again.json()["code"]) == (409, "already-exists")
    await create(service.http, a_schedule(queue="other"))
    several = await service.http.get("/v1/schedules/nightly")
    assert several.json()["code"] == "invalid-parameter"
    assert (await shown(service, queue="other"))["queue"] == "other"
    page = (await service.http.get("/v1/schedules", params={"limit": 1})).json()
    assert [one["queue"] for one in page["schedules"]] == ["other"]
    following = await service.http.get("/v1/schedules", params={"cursor": page["next"]})
    assert [one["queue"] for one in following.json()["schedules"]] == ["default"]
