"""Service accounts: jobs that a key submits on behalf of users are these users' in all that follows."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import rows, value
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import on_behalf
from trainmaster_dispatcher.services.usage_ledger import Accounting


@pytest.fixture
async def engine(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """Calls with the key of a workflow engine, which may submit for Bob and for the users of a team."""
    spec = {"name": "flows", "role": "user", "queues": ["default"], "onBehalfOf": ["bob", "vision-*"]}
    made = await service.http.post("/v1/keys", json=spec)
    async with service.as_key(made.json()["key"]) as http:
        yield http


@pytest.fixture
async def bob(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    made = await service.http.post("/v1/keys", json={"name": "bob", "role": "user", "queues": ["default"]})
    async with service.as_key(made.json()["key"]) as http:
        yield http


async def submit(http: httpx.AsyncClient, user: str, name: str = "job", **headers: str) -> httpx.Response:
    return await http.post("/v1/jobs", params={"onBehalfOf": user}, json=job(name), headers=headers)


async def test_a_job_on_behalf_of_a_user_is_that_users(
    service: Service, engine: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    answer = await submit(engine, "bob")
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]
    shown = (await bob.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["submittedBy"], shown["submittedThrough"]) == ("bob", "flows")
    (listed,) = (await bob.get("/v1/jobs", params={"submittedBy": "bob"})).json()["jobs"]
    assert (listed["id"], listed["submittedThrough"]) == (job_id, "flows")
    assert (await engine.get("/v1/jobs", params={"submittedBy": "flows"})).json()["jobs"] == []
    own = (await bob.post("/v1/jobs", json=job("own"))).json()["id"]
    # Bob and the engine may act on it, the engine not on what Bob submitted himself, others on neither.
    refused = await engine.post(f"/v1/jobs/{own}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (403, "job-of-another")
    made = await service.http.post("/v1/keys", json={"name": "eve", "role": "user", "queues": ["default"]})
    async with service.as_key(made.json()["key"]) as eve:
        assert (await eve.post(f"/v1/jobs/{job_id}/cancel")).json()["code"] == "job-of-another"
        found = (await eve.post("/v1/jobs/cancel", json={"filter": {"queue": "default"}})).json()
        assert (found["changed"], found["refused"]) == (0, 2)
    assert (await engine.post(f"/v1/jobs/{job_id}/suspend")).is_success
    found = (await bob.post("/v1/jobs/cancel", json={"filter": {"queue": "default"}})).json()
    assert (found["changed"], found["refused"]) == (2, 0)


async def test_its_user_counts_for_the_scheduler_and_for_limits(service: Service, engine: httpx.AsyncClient) -> None:
    assert (await service.http.patch("/v1/queues/default", json={"maxQueuedPerUser": 1})).is_success
    assert (await submit(engine, "bob")).status_code == 201
    full = await submit(engine, "bob")
    assert (full.status_code, full.json()["code"]) == (429, "queue-full")
    assert "waiting jobs of 'bob'" in full.json()["detail"]
    assert (await submit(engine, "vision-ann")).status_code == 201, "the limit is each user's"
    tried = await engine.post("/v1/jobs", params={"onBehalfOf": "vision-ben", "dryRun": "true"}, json=job("tried"))
    assert tried.status_code == 200
    assert tried.json()["jobs"][0]["trial"]["place"]["factors"]["user"]["user"] == "vision-ben"


async def test_its_usage_is_that_users(service: Service, engine: httpx.AsyncClient) -> None:
    agent = service.agent()
    await agent.connect()
    assert (await submit(engine, "bob")).status_code == 201
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await agent.report(run, RunState.SUCCEEDED, 3)
    for _ in range(2):
        found = (await service.http.get("/v1/usage", params={"by": "user"})).json()
        assert [row["of"] for row in found["rows"]] == [{"user": "bob"}]
        await Accounting(service.stores.database).run()


async def test_who_may_not_is_refused_and_nothing_is_stored(
    service: Service, engine: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    before = await value(service.stores, "SELECT count(*) FROM api_keys")
    for http, user, words in (
        (engine, "carl", "the key 'flows' may not submit on behalf of 'carl'; it may on behalf of: bob, vision-*."),
        (engine, "vision", "may not submit on behalf of 'vision'"),
        (bob, "vision-ann", "it may on behalf of: nobody. An admin makes a key that may"),
    ):
        answer = await submit(http, user)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert words in answer.json()["detail"]
    for wrong in ("", " ", "a\nb", "vision-*", "x" * 101):
        answer = await submit(engine, wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), wrong
        assert "onBehalfOf" in answer.text
    elsewhere = await engine.post("/v1/jobs", params={"onBehalfOf": "bob"}, json=job("job", "nowhere"))
    assert "the key 'flows' has no right to queue 'nowhere'" in elsewhere.json()["detail"]
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0
    assert await value(service.stores, "SELECT count(*) FROM api_keys WHERE through_id IS NULL") == before
    assert (await submit(bob, "bob")).status_code == 201, "in one's own name"
    assert (await submit(service.http, "anybody")).status_code == 201, "an admin may for everybody"


async def test_a_user_through_a_key_is_no_key_and_is_made_once(service: Service, engine: httpx.AsyncClient) -> None:
    keys = (await service.http.get("/v1/keys")).json()["keys"]
    (own,) = [key for key in keys if key["name"] == "flows"]
    assert own["onBehalfOf"] == ["bob", "vision-*"]
    assert (await engine.get("/v1/whoami")).json()["onBehalfOf"] == ["bob", "vision-*"]
    for number in range(3):
        assert (await submit(engine, "bob", f"job{number}")).status_code == 201
    (row,) = await rows(service.stores, "SELECT * FROM api_keys WHERE through_id IS NOT NULL")
    assert (row.name, row.through_id, row.role, row.queues) == ("bob", own["id"], "user", [])
    assert row.revoked_at is not None
    assert [key["id"] for key in (await service.http.get("/v1/keys")).json()["keys"]] == [key["id"] for key in keys]
    assert (await service.http.post("/v1/keys", json={"name": "bob", "role": "admin"})).status_code == 201
    audit = (await service.http.get("/v1/audit", params={"action": "submit"})).json()["audit"]
    assert {(line["actor"], line["details"]["onBehalfOf"]) for line in audit} == {("flows", "bob")}


async def test_a_repeated_call_is_for_the_same_user(service: Service, engine: httpx.AsyncClient) -> None:
    once = {"Idempotency-Key": "k1"}
    first = await submit(engine, "bob", **once)
    again = await submit(engine, "bob", **once)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    other = await submit(engine, "vision-ann", **once)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 1


async def test_one_key_has_so_many_users(
    service: Service, engine: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_behalf, "MOST_USERS", 2)
    for user in ("bob", "vision-1", "bob"):
        assert (await submit(engine, user)).status_code == 201
    answer = await submit(engine, "vision-2")
    assert answer.status_code == 403
    assert "has submitted for 2 users" in answer.json()["detail"]


@pytest.mark.parametrize("role", ["admin", "owner", "agent"])
async def test_only_a_users_key_has_a_list(service: Service, role: str) -> None:
    of_role: dict[str, dict[str, Any]] = {"owner": {"clusters": ["private"]}, "agent": {"cluster": "private"}}
    more = of_role.get(role, {})
    answer = await service.http.post("/v1/keys", json={"name": "x", "role": role, "onBehalfOf": ["bob"], **more})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter")
    assert "list of users for whom" in answer.json()["detail"]


@pytest.mark.parametrize("wrong", ["", "a*b", "**", "x" * 101, 7])
async def test_what_names_no_users_is_refused(service: Service, wrong: object) -> None:
    spec = {"name": "x", "role": "user", "queues": ["default"], "onBehalfOf": [wrong]}
    answer = await service.http.post("/v1/keys", json=spec)
    assert answer.status_code == 422, answer.text
    assert answer.json()["mistakes"][0]["path"].startswith("onBehalfOf")
