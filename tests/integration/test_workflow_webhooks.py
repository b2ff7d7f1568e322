"""Webhooks of workflows: which changes are reported, once each, signed, and what people see of messages that were given up."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Service
from tests.integration.receiver import SECRET, Receiver
from tests.integration.reported_runs import ReportedRuns
from tests.integration.rows import execute, rows, value
from tests.integration.test_webhooks import POLICY, relay_all
from tests.integration.test_workflows import Flows, declare_queue, step, workflow
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.services.webhooks import Tally
from trainmaster_dispatcher.worker.http import Poster


@pytest.fixture(autouse=True)
def open_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_HTTP", "true")
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_NETWORKS", "127.0.0.1/32")


@pytest.fixture
async def post() -> AsyncIterator[Poster]:
    async with Poster(POLICY) as poster:
        yield poster


@pytest.fixture
async def flows(service: Service) -> Flows:
    return Flows(service, await ReportedRuns(service).connect())


async def test_a_failed_step_and_each_end_are_reported_once(service: Service, flows: Flows, post: Poster) -> None:
    with Receiver(lambda number: 503 if number == 2 else 200) as receiver:
        hooks = [
            {"url": f"{receiver.url}/all", "states": ["running", "succeeded", "failed"], "stepFailed": True},
            {"url": f"{receiver.url}/end"},
        ]
        flow = await flows.submit(
            step("prepare"), step("train", after=("prepare",)), notify=hooks, labels={"team": "vision"}
        )
        await flow.passes("prepare")
        job = await flow.job_of("train")
        await flow.runs.end(job, failed=True, end=RunEnd(category=FailureCategory.EXIT, exit_code=3))
        await flow.until("failed")
        await flow.act("resume")
        await flow.runs.have_another(job)
        await flow.runs.end(job)
        await flow.until("succeeded")
        done = await relay_all(service, post)
    assert (done.delivered, done.failed, done.dead) == (7, 1, 0)
    got = {
        path: [one.value for one in receiver.received if (one.path, one.status) == (path, 200)]
        for path in ("/all", "/end")
    }
    assert [(one["event"], one["states"], one["state"], one["attempt"]) for one in got["/all"]] == [
        ("submitted", ["running"], "running", 1),
        ("step.failed", [], "running", 1),
        ("failed", ["failed"], "failed", 1),
        ("resume", ["running"], "running", 2),
        ("succeeded", ["succeeded"], "succeeded", 2),
    ]
    assert [one["event"] for one in got["/end"]] == ["failed", "succeeded"]
    failed = got["/all"][2]
    assert (failed["workflow"], failed["name"], failed["queue"]) == (flow.id, "flow", "default")
    assert (failed["step"], failed["steps"], failed["labels"]) == (
        "train",
        {"failed": 1, "succeeded": 1},
        {"team": "vision"},
    )
    assert failed["message"] == "its job failed: exit code 3"
    assert failed["link"] == f"/v1/workflows/{flow.id}"
    assert all(one.is_signed() for one in receiver.received)
    assert all(one.headers["trainmaster-event"] == f"{flow.id}/{one.value['seq']}" for one in receiver.received)
    numbers = [one["seq"] for one in got["/all"]]
    assert numbers == sorted(set(numbers))
    assert await value(service.stores, "SELECT count(*) FROM outbox") == 0
    assert (await flow.show())["undelivered"] == 0


async def test_a_cancellation_is_reported(service: Service, flows: Flows, post: Poster) -> None:
    with Receiver() as receiver:
        flow = await flows.submit(step("a"), step("b", after=("a",)), notify=[{"url": receiver.url}])
        await flow.job_of("a")
        await flow.act("cancel", {"cleanup": False})
        await relay_all(service, post)
        assert receiver.received == [], "it has not ended"
        (job,) = (await flow.step("a"))["ids"]
        await flow.runs.end(job)
        await flow.until("cancelled")
        await relay_all(service, post)
    ((event, steps),) = [(one.value["event"], one.value["steps"]) for one in receiver.received]
    assert (event, steps) == ("cancelled", {"skipped": 1, "succeeded": 1})


async def test_messages_that_are_given_up_are_seen_tried_again_and_removed(
    service: Service, flows: Flows, post: Poster
) -> None:
    with Receiver(lambda number: 500) as receiver:
        flow = await flows.submit(step("a"), notify=[{"url": receiver.url}])
        await flow.passes("a")
        await flow.until("succeeded")
        # A message that waits keeps the workflow.
        await execute(service.stores, "UPDATE workflows SET ended_at = now() - interval '400 d'")
        await execute(service.stores, "DELETE FROM workflow_jobs")
        await Retention(service.stores.database, service.stores.settings).run()
        assert (await flow.show())["state"] == "succeeded"
        assert await relay_all(service, post) == Tally(0, 4, 1)
    (letter,) = (await service.http.get("/v1/webhooks/dead")).json()["dead"]
    assert (letter["workflow"], letter["states"], letter["url"]) == (flow.id, ["succeeded"], receiver.url)
    assert "job" not in letter
    assert (await flow.show())["undelivered"] == 1
    retried = await service.http.post(f"/v1/webhooks/dead/{letter['id']}/retry")
    assert retried.json()["workflow"] == flow.id
    await execute(service.stores, "UPDATE outbox SET dead_at = now()")
    await Retention(service.stores.database, service.stores.settings).run()
    assert await rows(service.stores, "SELECT 1 FROM outbox UNION ALL SELECT 1 FROM workflow_events") == []


async def test_a_receiver_is_told_nothing_of_another_queue(service: Service, flows: Flows, post: Poster) -> None:
    await declare_queue(service, "hidden")
    with Receiver() as receiver:
        flow = await flows.submit(
            step("a", spec={"queue": "hidden"}) | {"job": {**step("a")["job"], "queue": "hidden"}},
            notify=[{"url": receiver.url, "stepFailed": True}],
        )
        await flow.runs.end(await flow.job_of("a"), failed=True)
        await flow.until("failed")
        await relay_all(service, post)
    assert [(one.value["event"], one.value["message"]) for one in receiver.received] == [
        ("step.failed", "its jobs are of another queue"),
        ("failed", "its jobs are of another queue"),
    ]


async def test_wrong_webhooks_are_refused_and_store_nothing(service: Service) -> None:
    for hooks, path in (
        ([{"url": "ftp://example.org"}], "notify[0].url"),
        ([{"url": "http://127.0.0.1:9000"}, {"url": "http://user@127.0.0.1:9000"}], "notify[1].url"),
        ([{"url": "http://127.0.0.1:9000", "states": []}], "notify[0]"),
        ([{"url": "http://127.0.0.1:9000", "states": ["queued"]}], "notify[0].states[0]"),
        ([{"url": "http://127.0.0.1:9000", "step_failed": True}], "notify[0].step_failed"),
        ([{"url": "http://127.0.0.1:9000"}] * 9, "notify"),
    ):
        refused = await service.http.post("/v1/workflows", json=workflow(step("a"), notify=hooks))
        assert refused.status_code == 422, refused.text
        assert path in [one["path"] for one in refused.json()["mistakes"]], refused.text
    assert await value(service.stores, "SELECT count(*) FROM workflows") == 0


async def test_without_a_secret_webhooks_are_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(service.stores.settings), "webhook_secrets", ())
    refused = await service.http.post(
        "/v1/workflows", json=workflow(step("a"), notify=[{"url": "https://example.org"}])
    )
    assert refused.json()["code"] == "webhooks-off", refused.text
