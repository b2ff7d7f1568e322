"""Whose jobs a user may change: own ones, and those of others only where the queue says so."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import picture

ACTIONS = ("cancel", "suspend", "resume", "retry")


@dataclass
class Users:
    """Two users with rights to the same queues, ``team/own`` and ``team/open``."""

    service: Service
    ann: httpx.AsyncClient
    bob: httpx.AsyncClient

    async def put(self, path: str, **fields: object) -> None:
        answer = await self.service.http.put(f"/v1/queues/{path}", json={"path": path, **fields})
        assert answer.is_success, answer.text


async def make_key(service: Service, name: str) -> tuple[int, str]:
    answer = await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": ["team"]})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.json()["key"]


@pytest.fixture
async def users(service: Service) -> AsyncIterator[Users]:
    async with AsyncExitStack() as stack:
        ann, bob = [
            await stack.enter_async_context(service.as_key((await make_key(service, name))[1]))
            for name in ("ann", "bob")
        ]
        yield Users(service, ann, bob)


@pytest.fixture(autouse=True)
async def queues(service: Service) -> None:
    for path, fields in (("team", {}), ("team/own", {}), ("team/open", {"jobActions": "any"})):
        answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, **fields})
        assert answer.is_success, answer.text


async def submit(http: httpx.AsyncClient, queue: str, name: str = "a") -> str:
    answer = await http.post("/v1/jobs", json=job(name, queue, labels={"of": "all"}))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_a_job_of_another_is_seen_and_not_changed(users: Users) -> None:
    job_id = await submit(users.ann, "team/own")
    before = await picture(users.service.stores)
    assert (await users.bob.get(f"/v1/jobs/{job_id}")).json()["submittedBy"] == "ann"
    answers = [await users.bob.post(f"/v1/jobs/{job_id}/{action}") for action in ACTIONS]
    answers.append(await users.bob.patch(f"/v1/jobs/{job_id}", json={"priority": 5}))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (403, "job-of-another")
        assert job_id in answer.json()["detail"]
        assert "jobActions: any on queue 'team/own' or on one above it" in answer.json()["detail"]
    assert await picture(users.service.stores) == before
    assert (await users.ann.post(f"/v1/jobs/{job_id}/suspend")).json()["changed"]
    assert (await users.service.http.post(f"/v1/jobs/{job_id}/cancel")).json()["changed"], "an admin may"


async def test_the_nearest_queue_that_says_it_decides(users: Users) -> None:
    own, shared = await submit(users.ann, "team/own"), await submit(users.ann, "team/open")
    assert (await users.bob.patch(f"/v1/jobs/{shared}", json={"priority": 5})).status_code == 200
    await users.put("team", jobActions="any")
    assert (await users.bob.patch(f"/v1/jobs/{own}", json={"priority": 5})).status_code == 200
    await users.put("team/own", jobActions="own")
    assert (await users.bob.post(f"/v1/jobs/{own}/cancel")).json()["code"] == "job-of-another"
    assert (await users.bob.post(f"/v1/jobs/{shared}/cancel")).json()["changed"]


@pytest.mark.parametrize("action", ["suspend", "cancel", "reprioritise"])
async def test_actions_by_filter_leave_out_jobs_of_others_and_count_them(users: Users, action: str) -> None:
    others = [await submit(users.ann, "team/own") for _ in range(2)]
    allowed = [await submit(users.bob, "team/own"), await submit(users.ann, "team/open")]
    patch = {"patch": {"priority": 7}} if action == "reprioritise" else {}
    body = {"filter": {"labels": {"of": "all"}}, **patch}
    numbers = {"matched": 4, "refused": 2}
    tried = await users.bob.post(f"/v1/jobs/{action}", json=body | {"dryRun": True})
    assert tried.json() == numbers | {"changed": 0, "dryRun": True}
    done = await users.bob.post(f"/v1/jobs/{action}", json=body)
    assert done.json() == numbers | {"changed": 2, "dryRun": False}
    assert [(await users.service.job(one))["version"] for one in [*others, *allowed]] == [1, 1, 2, 2]
    written = (await users.service.http.get("/v1/audit", params={"action": f"bulk {action}"})).json()["audit"][0]
    assert (written["details"]["refused"], sorted(written["details"]["jobs"])) == (2, sorted(allowed))


async def test_a_new_key_of_the_same_name_has_the_rights_of_the_revoked_one(users: Users) -> None:
    key_id, secret = await make_key(users.service, "carl")
    async with users.service.as_key(secret) as before:
        job_id = await submit(before, "team/own")
    taken = await users.service.http.post("/v1/keys", json={"name": "carl", "role": "user", "queues": ["team"]})
    assert taken.status_code == 409, "while the key is valid, its name is taken"
    assert (await users.service.http.delete(f"/v1/keys/{key_id}")).status_code == 204
    async with users.service.as_key((await make_key(users.service, "carl"))[1]) as after:
        assert (await after.post(f"/v1/jobs/{job_id}/cancel")).json()["changed"]
