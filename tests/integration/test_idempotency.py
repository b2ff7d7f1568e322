"""The same idempotency key never does a thing twice: per API key and route, for seven days."""

import asyncio
from typing import Any

import httpx

from tests.conftest import Service, job
from tests.integration.rows import execute, picture, value

KEY = {"Idempotency-Key": "once"}


async def job_count(service: Service) -> int:
    return int(await value(service.stores, "SELECT count(*) FROM jobs"))


async def user(service: Service) -> httpx.AsyncClient:
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})
    return service.as_key(made.json()["key"])


async def test_a_repeated_submission_gives_the_same_answer_and_makes_one_job(service: Service) -> None:
    body = {"jobs": [job("a"), job("b")]}
    first = await service.http.post("/v1/jobs", json=body, headers=KEY)
    before = await picture(service.stores)
    again = await service.http.post("/v1/jobs", json=body, headers=KEY)
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert await picture(service.stores) == before


async def test_of_many_racing_requests_with_one_key_one_makes_the_job(service: Service) -> None:
    for turn in range(5):
        headers = {"Idempotency-Key": f"race-{turn}"}
        answers = await asyncio.gather(*[service.http.post("/v1/jobs", json=job(), headers=headers) for _ in range(8)])
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert await job_count(service) == 5


async def test_of_two_racing_bodies_with_one_key_one_wins(service: Service) -> None:
    bodies = [job(f"n{number}") for number in range(6)]
    answers = await asyncio.gather(*[service.http.post("/v1/jobs", json=body, headers=KEY) for body in bodies])
    assert sorted(answer.status_code for answer in answers) == [201, 422, 422, 422, 422, 422]
    assert {answer.json().get("code") for answer in answers} == {None, "idempotency-key-reused"}
    assert await job_count(service) == 1


async def test_a_key_that_comes_with_another_body_changes_nothing(service: Service) -> None:
    await service.http.post("/v1/jobs", json=job("a"), headers=KEY)
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=job("b"), headers=KEY)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-key-reused")
    assert await picture(service.stores) == before


async def test_a_key_counts_for_its_api_key_and_its_route(service: Service) -> None:
    other = await user(service)
    ids = [(await http.post("/v1/jobs", json=job(), headers=KEY)).json()["id"] for http in (service.http, other)]
    assert len(set(ids)) == 2
    for job_id in ids:
        for action in ("suspend", "resume", "cancel"):
            answer = await service.http.post(f"/v1/jobs/{job_id}/{action}", headers=KEY)
            assert (answer.status_code, answer.json()["changed"]) == (200, True), action


async def test_a_repeated_action_answers_as_the_first_time(service: Service) -> None:
    job_id = await service.submit()
    first = await service.http.post(f"/v1/jobs/{job_id}/suspend", headers=KEY)
    await service.http.post(f"/v1/jobs/{job_id}/resume")
    again = await service.http.post(f"/v1/jobs/{job_id}/suspend", headers=KEY)
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    assert (await service.job(job_id))["state"] == "queued"


async def test_what_was_refused_may_be_mended_under_the_same_key(service: Service) -> None:
    for path, wrong, right in (
        ("/v1/jobs", job(queue="none"), job()),
        ("/v1/jobs/cancel", {"filter": {"queue": "none"}}, {"filter": {"queue": "default"}}),
    ):
        assert (await service.http.post(path, json=wrong, headers=KEY)).status_code == 422
        answer = await service.http.post(path, json=right, headers=KEY)
        assert (answer.is_success, "idempotency-replayed" in answer.headers) == (True, False), answer.text


async def test_a_key_is_forgotten_after_seven_days(service: Service) -> None:
    async def submit(body: dict[str, Any]) -> httpx.Response:
        return await service.http.post("/v1/jobs", json=body, headers=KEY)

    first = (await submit(job())).json()["id"]
    for age, is_kept in (("6 days 23 hours", True), ("7 days 1 minute", False)):
        await execute(service.stores, f"UPDATE idempotency_keys SET created_at = now() - interval '{age}'")
        assert ((await submit(job())).json()["id"] == first) == is_kept
    await execute(service.stores, "UPDATE idempotency_keys SET created_at = now() - interval '8 days'")
    assert (await submit(job("other"))).status_code == 201


async def test_a_repeated_bulk_action_leaves_later_jobs_alone(service: Service) -> None:
    body = {"filter": {"name": "*"}}
    await service.submit("early")
    first = await service.http.post("/v1/jobs/cancel", json=body, headers=KEY)
    late = await service.submit("late")
    before = await picture(service.stores)
    again = await service.http.post("/v1/jobs/cancel", json=body, headers=KEY)
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    assert await picture(service.stores) == before
    assert (await service.job(late))["state"] == "queued"


async def test_a_bulk_action_with_the_key_of_another_body_changes_nothing(service: Service) -> None:
    for name in ("a", "b"):
        await service.submit(name)
    await service.http.post("/v1/jobs/cancel", json={"filter": {"name": "a"}}, headers=KEY)
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs/cancel", json={"filter": {"name": "b"}}, headers=KEY)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-key-reused")
    assert await picture(service.stores) == before


async def test_a_bulk_action_that_was_cut_off_is_done_again_for_the_same_body(service: Service) -> None:
    body = {"filter": {"name": "*"}}
    await service.submit()
    await service.http.post("/v1/jobs/cancel", json=body, headers=KEY)
    # As an api leaves it that was killed in the middle: the key is taken, and there is no answer yet.
    await execute(service.stores, "UPDATE idempotency_keys SET status = 0, answer = ''")
    late = await service.submit()
    answer = await service.http.post("/v1/jobs/cancel", json=body, headers=KEY)
    assert (answer.status_code, answer.json()["changed"]) == (200, 1)
    assert (await service.job(late))["state"] == "cancelled"


async def test_a_dry_run_takes_no_key(service: Service) -> None:
    await service.submit()
    for dry in (True, False):
        body = {"filter": {"name": "*"}, "dryRun": dry}
        answer = await service.http.post("/v1/jobs/cancel", json=body, headers=KEY)
        assert (answer.status_code, answer.json()["changed"]) == (200, 0 if dry else 1)
