"""The outbox: which messages are written with which transitions, and in which order they may leave."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.receiver import SECRET
from tests.integration.rows import execute, rows, value
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.store import outbox

ALL_STATES = ["held", "queued", "dispatched", "running", "succeeded", "failed", "cancelled"]
HOOK = "https://hooks.example/"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)


def hook(*states: str, url: str = HOOK) -> dict[str, Any]:
    return {"url": url, "states": list(states)} if states else {"url": url}


async def messages(service: Service) -> list[tuple[int, str, list[str]]]:
    """Return hook, event and states of all messages, in their order."""
    found = await rows(service.stores, "SELECT hook, body FROM outbox ORDER BY id")
    return [(row.hook, row.body["event"], row.body["states"]) for row in found]


async def connected(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=8)
    return agent


async def test_each_webhook_gets_the_states_that_it_asked_for(service: Service) -> None:
    agent = await connected(service)
    job_id = await service.submit(notify=[hook(*ALL_STATES), hook(), hook("dispatched", "failed")])
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await agent.report(run, RunState.SUCCEEDED, 2)
    await service.until(job_id, "succeeded")
    assert await messages(service) == [
        (0, "submitted", ["queued"]),
        (0, "dispatched", ["dispatched"]),
        (2, "dispatched", ["dispatched"]),
        (0, "run.running", ["running"]),
        (0, "run.succeeded", ["succeeded"]),
        (1, "run.succeeded", ["succeeded"]),
    ]


async def test_a_message_has_all_that_a_receiver_needs(service: Service) -> None:
    agent = await connected(service)
    spec = job("bert", notify=[hook()], labels={"team": "vision"})
    spec["roles"][0]["template"]["args"] = ["${rate}"]
    answer = await service.http.post("/v1/jobs", json={"job": spec, "parameters": [{"rate": 0.1}]})
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["jobs"][0]["id"]
    run = (await agent.next_start())["run"]
    end = RunEnd(category=FailureCategory.EXIT, exit_code=3, message="it ended with code 3")
    await agent.report(run, RunState.FAILED, 1, end=end)
    await service.until(job_id, "failed")
    body = await value(service.stores, "SELECT body FROM outbox")
    moment = body.pop("at")
    assert moment.endswith("Z")
    assert body == {
        "version": 1,
        "job": job_id,
        "name": "bert",
        "queue": "default",
        "labels": {"team": "vision"},
        "parameters": {"rate": 0.1},
        "seq": (await service.job(job_id))["version"],
        "event": "run.failed",
        "states": ["running", "failed"],
        "state": "failed",
        "attempt": 1,
        "cluster": "private",
        "message": "it ended with code 3",
    }


async def test_a_run_that_is_tried_again_is_no_failed_job(service: Service) -> None:
    agent = await connected(service)
    await service.submit(notify=[hook("failed"), hook("held", "queued")], retries={"limit": 1, "backOff": "1h"})
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await agent.report(run, RunState.FAILED, 2, end=RunEnd(category=FailureCategory.EXIT, exit_code=1))
    assert await messages(service) == [(1, "submitted", ["queued"]), (1, "run.failed", ["held"])]


async def test_what_people_do_is_told_and_a_change_of_priority_is_not(service: Service) -> None:
    job_id = await service.submit(notify=[hook(*ALL_STATES)], suspend=True)
    await service.http.patch(f"/v1/jobs/{job_id}", json={"priority": 5})
    for action in ("resume", "cancel", "cancel"):
        await service.http.post(f"/v1/jobs/{job_id}/{action}")
    assert await messages(service) == [
        (0, "submitted", ["held"]),
        (0, "resume", ["queued"]),
        (0, "cancel", ["cancelled"]),
    ]


async def test_every_job_of_a_call_is_told_of_its_own(service: Service) -> None:
    jobs = [job("a", notify=[hook("queued")]), job("b"), job("c", notify=[hook("queued")], suspend=True)]
    answer = await service.http.post("/v1/jobs", json={"jobs": jobs})
    first = answer.json()["jobs"][0]["id"]
    spec = job("d", notify=[hook("queued", "held")])
    spec["roles"][0]["template"]["args"] = ["${x}"]
    answer = await service.http.post("/v1/jobs", json={"job": spec, "parameters": [{"x": 1}, {"x": 2}]})
    ids = [first, *(one["id"] for one in answer.json()["jobs"])]
    assert [row.body["job"] for row in await rows(service.stores, "SELECT body FROM outbox ORDER BY id")] == ids


async def test_a_refused_change_leaves_no_message(service: Service) -> None:
    job_id = await service.submit(notify=[hook(*ALL_STATES)])
    assert (await service.http.post(f"/v1/jobs/{job_id}/retry")).status_code == 409
    assert await messages(service) == [(0, "submitted", ["queued"])]


async def test_webhooks_are_refused_without_a_secret(service: Service) -> None:
    object.__setattr__(service.settings, "webhook_secret", type(service.settings.webhook_secret)(""))
    answer = await service.http.post("/v1/jobs", json=job(notify=[hook()]))
    assert (answer.status_code, answer.json()["code"]) == (422, "webhooks-off")
    assert (await service.http.post("/v1/jobs", json=job())).status_code == 201


async def test_addresses_are_refused_with_their_path(service: Service) -> None:
    wrong = [hook(), hook(url="http://hooks.example/"), hook(url="https://169.254.169.254/")]
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(), job(notify=wrong)]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert [mistake["path"] for mistake in answer.json()["mistakes"]] == [
        "jobs[1].notify[1].url",
        "jobs[1].notify[2].url",
    ]
    answer = await service.http.post("/v1/jobs", json=job(notify=wrong[1:2]))
    assert [mistake["path"] for mistake in answer.json()["mistakes"]] == ["notify[0].url"]
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0


async def claim(service: Service, limit: int = 10) -> list[tuple[int, str]]:
    async with service.stores.database.transaction() as tx:
        return [(message.hook, message.body["state"]) for message in await outbox.claim(tx, limit, 60)]


async def test_only_the_head_of_a_line_is_claimed_and_only_once(service: Service) -> None:
    job_id = await service.submit(notify=[hook("queued", "cancelled"), hook("cancelled")])
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    assert await claim(service) == [(0, "queued"), (1, "cancelled")]
    assert await claim(service) == [], "the next one of the first webhook waits, the others are taken"
    await execute(service.stores, "DELETE FROM outbox WHERE body->>'state' = 'queued'")
    assert await claim(service) == [(0, "cancelled")]
    await execute(service.stores, "UPDATE outbox SET next_at = now()")
    assert await claim(service) == [(0, "cancelled"), (1, "cancelled")], "a claim that has ended counts for nothing"


async def test_two_claimants_at_once_never_get_the_same(service: Service) -> None:
    for _ in range(6):
        await service.submit(notify=[hook("queued")])
    async with service.stores.database.transaction() as one, service.stores.database.transaction() as other:
        first = await outbox.claim(one, 4, 60)
        second = await outbox.claim(other, 4, 60)
    assert (len(first), len(second)) == (4, 2)
    assert not {message.id for message in first} & {message.id for message in second}


async def test_a_dead_head_lets_the_next_one_pass_and_a_failed_one_holds_it_back(service: Service) -> None:
    job_id = await service.submit(notify=[hook("queued", "cancelled")])
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    async with service.stores.database.transaction() as tx:
        (head,) = await outbox.claim(tx, 10, 60)
        assert await outbox.note_failures(tx, [outbox.DeliveryFailure(head, "no", 3600.0)], 2, 1e6) == []
    assert await value(service.stores, "SELECT count(*) FROM outbox WHERE next_at > now() + interval '50 min'") == 2
    async with service.stores.database.transaction() as tx:
        assert await outbox.note_failures(tx, [outbox.DeliveryFailure(head, "never", 0.0)], 2, 1e6) == [head.id]
    await execute(service.stores, "UPDATE outbox SET next_at = now()")
    assert await claim(service) == [(0, "cancelled")]
    kept = (await rows(service.stores, "SELECT attempts, error FROM outbox WHERE dead_at IS NOT NULL"))[0]
    assert (kept.attempts, kept.error) == (2, "never")


async def test_a_message_is_given_up_by_its_age_too(service: Service) -> None:
    await service.submit(notify=[hook("queued")])
    await execute(service.stores, "UPDATE outbox SET created_at = now() - interval '2 h'")
    async with service.stores.database.transaction() as tx:
        (head,) = await outbox.claim(tx, 10, 60)
        assert await outbox.note_failures(tx, [outbox.DeliveryFailure(head, "no", 1.0)], 12, 3600.0) == [head.id]
