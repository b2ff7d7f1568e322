"""Submission from inside a cluster: the process between the cluster's API server, a fake one, and the real dispatcher."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conformance.kube_lab import plain_access
from tests.conftest import FakeAgent, Service
from tests.fake_kube.server import FakeKube
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster.workload_kinds.specification import ORIGIN_SUSPENDED
from trainmaster_agent.kube.access import KeyAccess
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.submissions.controller import Submissions

JOBS, EVENTS, SPACES = Resource("batch/v1", "jobs"), Resource("v1", "events"), Resource("v1", "namespaces")
TEAM = "team"


@dataclass
class Lab:
    service: Service
    kube: FakeKube
    api: ApiServer
    key: str

    @asynccontextmanager
    async def process(self) -> AsyncIterator[None]:
        """Run the process between the two API servers; it ends as if it were killed."""
        async with (
            ApiServer(plain_access(self.kube.url)) as local,
            ApiServer(KeyAccess(self.service.url, self.key)) as dispatcher,
        ):
            task = asyncio.create_task(Submissions(local, dispatcher, "south").run(asyncio.Event()))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def submit(self, name: str = "pi", **annotations: str) -> dict[str, Any]:
        pods = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "annotations": {f"trainmaster.dev/{key}": text for key, text in annotations.items()},
            },
            "spec": {"managedBy": "trainmaster.dev/dispatcher", "template": {"spec": pods}},
        }
        return await self.api.create(JOBS, TEAM, job)

    async def job(self, name: str = "pi") -> dict[str, Any]:
        return await self.api.get(JOBS, TEAM, name)

    async def until_state(self, state: str, name: str = "pi") -> None:
        """Wait until the annotations of an object say that its job is in a state."""

        async def has_it() -> bool:
            annotations = (await self.job(name))["metadata"].get("annotations") or {}
            return bool(annotations.get("trainmaster.dev/state") == state)

        await eventually(has_it)

    async def until_failed(self, reason: str, name: str = "pi") -> str:
        """Wait until an object has failed for a reason; return the message."""

        async def failed() -> list[dict[str, Any]]:
            found = (await self.job(name)).get("status", {}).get("conditions") or []
            return [one for one in found if (one["type"], one["reason"]) == ("Failed", reason)]

        async def has_failed() -> bool:
            return bool(await failed())

        await eventually(has_failed)
        (condition,) = await failed()
        return str(condition["message"])

    async def states(self) -> list[str]:
        """Return the states of the dispatcher's jobs."""
        return [one["state"] for one in (await self.service.http.get("/v1/jobs")).json()["jobs"]]

    async def warnings(self) -> list[str]:
        found = await self.api.call("GET", EVENTS.path(TEAM))
        return [one["message"] for one in found["items"] if one["type"] == "Warning"]


@pytest.fixture
async def lab(service: Service) -> AsyncIterator[Lab]:
    for path in (TEAM, "other"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    made = await service.http.post("/v1/keys", json={"name": "south", "role": "user", "queues": [TEAM]})
    async with FakeKube() as kube, ApiServer(plain_access(kube.url)) as api:
        await api.create(SPACES, None, {"metadata": {"name": TEAM}})
        yield Lab(service, kube, api, made.json()["key"])


async def running(service: Service) -> tuple[FakeAgent, str]:
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:batch/v1/Job"))
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1, object_status={"active": 1})
    return agent, run


async def test_an_object_becomes_a_job_and_gets_its_status_and_its_events(lab: Lab) -> None:
    async with lab.process():
        await lab.submit()
        agent, run = await running(lab.service)
        await lab.until_state("running")
        done = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        await agent.report(run, RunState.SUCCEEDED, 2, object_status=done)
        await lab.until_state("succeeded")

        async def is_complete() -> bool:
            return bool((await lab.job())["status"] == done)

        await eventually(is_complete)

        async def has_events() -> bool:
            events = (await lab.api.call("GET", EVENTS.path(TEAM)))["items"]
            assert {one["involvedObject"]["name"] for one in events} <= {"pi"}
            return {"Submitted", "RunRunning", "RunSucceeded"} <= {one["reason"] for one in events}

        await eventually(has_events)
    assert await lab.states() == ["succeeded"]


async def test_a_process_that_was_killed_before_it_knew_of_its_job_makes_no_second_one(lab: Lab) -> None:
    made = await lab.submit()
    async with lab.process():
        await lab.until_state("queued")
    # As if that process had ended before it could write it down.
    nothing = {"metadata": {"annotations": {"trainmaster.dev/job": None, "trainmaster.dev/state": None}}}
    await lab.api.patch(JOBS, TEAM, "pi", nothing)
    async with lab.process(), lab.process():
        await lab.until_state("queued")
    assert await lab.states() == ["queued"]
    assert (await lab.job())["metadata"]["uid"] == made["metadata"]["uid"]


async def test_an_object_that_is_deleted_while_nobody_looks_has_its_job_cancelled(lab: Lab) -> None:
    await lab.submit()
    async with lab.process():
        await lab.until_state("queued")
    await lab.api.delete(JOBS, TEAM, "pi")
    async with lab.process():

        async def is_cancelled() -> bool:
            return await lab.states() == ["cancelled"]

        await eventually(is_cancelled)


async def test_a_job_that_is_deleted_in_the_dispatcher_fails_its_object(lab: Lab) -> None:
    async with lab.process():
        await lab.submit()
        await lab.until_state("queued")
        path = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
        (found,) = (await lab.service.http.get(path)).json()["items"]
        deleted = await lab.service.http.delete(f"{path}/{found['metadata']['name']}")
        assert deleted.status_code == 200, deleted.text
        assert "deleted in the dispatcher" in await lab.until_failed("JobDeleted")
    assert await lab.states() == ["cancelled"]


async def test_a_job_with_the_labels_of_another_object_changes_nothing_of_it(lab: Lab) -> None:
    async with lab.process():
        made = await lab.submit()
        await lab.until_state("queued")
        labels = {"trainmaster.dev/origin-cluster": "south", "trainmaster.dev/origin-uid": made["metadata"]["uid"]}
        forged = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "forged", "labels": labels}}
        forged["spec"] = {"suspend": True, "template": made["spec"]["template"]}
        path = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
        answer = await lab.service.http.post(path, json=forged)
        assert answer.status_code == 201, answer.text
        await lab.submit("later")
        await lab.until_state("queued", "later")
        await lab.until_state("queued")
        assert (await lab.service.http.delete(f"{path}/forged")).status_code == 200
        await lab.submit("last")
        await lab.until_state("queued", "last")
        assert not (await lab.job()).get("status", {}).get("conditions")
    assert sorted(await lab.states()) == ["cancelled", "queued", "queued", "queued"]


async def test_a_queue_without_the_right_is_tried_again_until_it_is_given(lab: Lab) -> None:
    async with lab.process():
        await lab.submit(queue="other")

        async def is_warned() -> bool:
            return any("does not take it" in one for one in await lab.warnings())

        await eventually(is_warned)
        assert "status" not in await lab.job() or not (await lab.job())["status"]
    assert await lab.states() == []


async def test_what_can_never_be_taken_fails_the_object_with_each_mistake(lab: Lab) -> None:
    async with lab.process():
        made = await lab.submit()
        await lab.until_state("queued")
        other = {**made, "metadata": {"name": "bad"}}
        other["spec"] = {
            **made["spec"],
            "template": {"spec": {**made["spec"]["template"]["spec"], "hostNetwork": True}},
        }
        await lab.api.create(JOBS, TEAM, other)
        message = await lab.until_failed("Refused", "bad")
        assert "spec.template.spec.hostNetwork" in message
    assert await lab.states() == ["queued"]


async def test_an_object_is_bound_to_the_queue_of_its_namespace(lab: Lab) -> None:
    await lab.api.patch(SPACES, None, TEAM, {"metadata": {"annotations": {"trainmaster.dev/queue": TEAM}}})
    async with lab.process():
        await lab.submit()
        await lab.submit("misplaced", queue="other")
        await lab.until_state("queued")
        message = await lab.until_failed("Refused", "misplaced")
        assert message == "the dispatcher refuses it: its namespace is of the queue 'team', and it names 'other'"


async def test_a_job_that_somebody_suspends_in_the_dispatcher_is_not_resumed_by_its_object(lab: Lab) -> None:
    async with lab.process():
        await lab.submit()
        await lab.until_state("queued")
        job = (await lab.job())["metadata"]["annotations"]["trainmaster.dev/job"]
        await lab.service.http.post(f"/v1/jobs/{job}/suspend")
        await lab.until_state("held")
        await lab.api.patch(JOBS, TEAM, "pi", {"spec": {"suspend": True}})

        async def is_passed_on() -> bool:
            (item,) = (await lab.service.http.get("/apis/batch/v1/jobs")).json()["items"]
            return bool(item["metadata"]["annotations"][ORIGIN_SUSPENDED] == "true")

        await eventually(is_passed_on)  # a change that is undone before anybody has seen it is none
        await lab.api.patch(JOBS, TEAM, "pi", {"spec": {"suspend": False}})
        await lab.until_state("queued")


async def test_lost_answers_and_failures_of_both_sides_are_made_good(lab: Lab) -> None:
    lab.kube.faults.lose_next_answer("patch", "jobs")
    lab.kube.faults.fail_next("update", "jobs/status", 409)
    lab.kube.faults.fail_next("create", "events", 500)
    async with lab.process():
        await lab.submit()
        agent, run = await running(lab.service)
        failed = {
            "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "x"}]
        }
        await agent.report(run, RunState.FAILED, 2, object_status=failed)
        await lab.until_failed("BackoffLimitExceeded")
    assert len(await lab.states()) == 1
