"""What waits in a queue is bounded for users without anybody having set a limit: jobs, bytes, different shapes."""

from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import value
from tests.integration.test_authorization import make_key
from tests.integration.test_limits_api import OtherApi
from trainmaster_dispatcher.store import jobs as store


def jobs(many: int, **fields: Any) -> dict[str, Any]:
    return {"jobs": [job(cpu="64", **fields) for _ in range(many)]}


def shapes(first: int, many: int) -> dict[str, Any]:
    return {"jobs": [job(cpu=str(64 + first + number)) for number in range(many)]}


async def bounded(service: Service, **bounds: int) -> OtherApi:
    return OtherApi(service.settings.model_copy(update=bounds))


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 429, answer.text
    assert answer.json()["code"] == "queue-full"
    assert answer.headers["retry-after"] == "5"
    return str(answer.json()["detail"])


async def test_jobs_of_a_user_and_of_a_queue_are_bounded_and_starts_make_room(service: Service) -> None:
    api = await bounded(service, most_queued_jobs_per_user=10, most_queued_jobs=15)
    one, other = [{"Authorization": f"Bearer {await make_key(service, 'user', queues=['default'])}"} for _ in range(2)]
    async with api as http:
        assert (await http.post("/v1/jobs", json=jobs(10), headers=one)).status_code == 201
        assert "they would be 11, and this installation allows 10 for one user" in refusal(
            await http.post("/v1/jobs", json=jobs(1), headers=one)
        )
        refusal(await http.post("/v1/jobs", json=jobs(6), headers=other))
        answer = await http.post("/v1/jobs", json=jobs(5), headers=other)
        assert answer.status_code == 201
        admin = {"Authorization": "Bearer tmk_admin"}
        assert (await http.post("/v1/jobs", json=jobs(5), headers=admin)).status_code == 201, "admins are trusted"
        assert await value(service.stores, "SELECT count(*) FROM jobs") == 20
        mine = {"filter": {"queue": "default"}}
        assert (await http.post("/v1/jobs/cancel", json=mine, headers=one)).json()["changed"] == 10
        assert (await http.post("/v1/jobs/cancel", json=mine, headers=admin)).json()["changed"] == 10
        api.forget_counts()
        assert (await http.post("/v1/jobs", json=jobs(10), headers=one)).status_code == 201


async def test_bytes_of_specifications_are_bounded_and_a_table_of_parameters_counts_once(service: Service) -> None:
    api = await bounded(service, most_queued_bytes_per_user=100_000)
    user = {"Authorization": f"Bearer {await make_key(service, 'user', queues=['default'])}"}
    large = job(cpu="64")
    large["roles"][0]["template"]["env"] = {"TEXT": "x" * 30_000}
    async with api as http:
        for _ in range(3):
            assert (await http.post("/v1/jobs", json=large, headers=user)).status_code == 201
        assert "bytes of specifications" in refusal(await http.post("/v1/jobs", json=large, headers=user))
        small = job(cpu="64")
        small["roles"][0]["template"]["args"] = ["${n}"]
        table = {"job": small, "parameters": [{"n": str(number)} for number in range(200)]}
        assert (await http.post("/v1/jobs", json=table, headers=user)).status_code == 201, "one specification"


async def test_different_shapes_are_bounded_and_known_ones_are_not_refused(service: Service) -> None:
    api = await bounded(service, most_queued_shapes_per_user=20)
    user = {"Authorization": f"Bearer {await make_key(service, 'user', queues=['default'])}"}
    async with api as http:
        assert (await http.post("/v1/jobs", json=shapes(0, 20), headers=user)).status_code == 201
        message = refusal(await http.post("/v1/jobs", json=shapes(20, 1), headers=user))
        assert "20 different shapes of jobs" in message
        assert (await http.post("/v1/jobs", json=shapes(5, 10), headers=user)).status_code == 201
        api.forget_counts()
        refusal(await http.post("/v1/jobs", json=shapes(20, 1), headers=user))
        assert (await http.post("/v1/jobs", json=shapes(5, 10), headers=user)).status_code == 201, (
            "counted in the store"
        )
        assert await value(service.stores, "SELECT count(*) FROM jobs") == 40


async def test_what_waits_is_counted_once_for_many_submissions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0
    count = store.waiting_by_key

    async def counting(*arguments: Any) -> Any:
        nonlocal counted
        counted += 1
        return await count(*arguments)

    monkeypatch.setattr(store, "waiting_by_key", counting)
    user = service.as_key(await make_key(service, "user", queues=["default"]))
    async with user:
        for _ in range(20):
            assert (await user.post("/v1/jobs", json=job(cpu="64"))).status_code == 201
    assert counted == 1
