"""The audit: what a change was before and after, ids of jobs, where calls came from, and calls that were refused."""

from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.rows import rows
from tests.integration.test_authorization import make_key
from tests.integration.test_conditions import OBJECTS
from tests.integration.test_parameter_sets import sweep
from tests.waiting import eventually


async def lines(service: Service, **filters: Any) -> list[dict[str, Any]]:
    answer = await service.http.get("/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["audit"]
    return found


async def last(service: Service, action: str) -> dict[str, Any]:
    return (await lines(service, action=action))[0]


async def test_a_change_is_told_before_and_after(service: Service) -> None:
    for weight in (1, 2):
        await service.http.put("/v1/queues/q", json={"path": "q", "weight": weight, "limits": {"cpu": 3}})
    changed, made = await lines(service, action="put queue", target="q")
    assert changed["details"] == {"before": {"weight": 1.0}, "after": {"weight": 2.0}}
    assert (made["details"]["before"], made["details"]["after"]["resources"]) == (None, {"cpu": {"limit": "3"}})
    assert (changed["actor"], changed["address"]) == ("admin", "127.0.0.1")
    await service.http.delete("/v1/queues/q")
    gone = (await last(service, "delete queue"))["details"]
    assert (gone["before"]["weight"], gone["after"]) == (2.0, None)


@pytest.mark.parametrize(("address", "body", "_changed"), OBJECTS.values(), ids=OBJECTS)
async def test_each_kind_of_object_is_told(
    service: Service, address: str, body: dict[str, Any], _changed: dict[str, Any]
) -> None:
    for text in ("one", "two"):
        assert (await service.http.put(address, json=body | {"description": text})).is_success
    await service.http.delete(address)
    name = address.rpartition("/")[2]
    removed, changed, made = (one["details"] for one in (await lines(service, target=name))[:3])
    assert changed == {"before": {"description": "one"}, "after": {"description": "two"}}
    assert (made["before"], made["after"].get("name", made["after"].get("path"))) == (None, name)
    assert (removed["before"]["description"], removed["after"]) == ("two", None)


async def test_a_large_object_is_cut_off(service: Service) -> None:
    images = [f"registry.example.com/{'n' * 200}{number:04d}:*" for number in range(200)]
    answer = await service.http.put("/v1/queues/big", json={"path": "big", "admission": {"images": images}})
    assert answer.status_code == 201, answer.text
    details = (await last(service, "put queue"))["details"]
    assert details["after"]["bytes"] > 30_000
    assert len(details["after"]["truncated"]) == 8_192


async def test_a_submission_names_its_jobs(service: Service) -> None:
    ids = [one["id"] for one in (await service.http.post("/v1/jobs", json={"jobs": [job()] * 2})).json()["jobs"]]
    assert (await last(service, "submit"))["details"] == {"jobs": ids}
    many = (await service.http.post("/v1/jobs", json={"jobs": [job()] * 120})).json()["jobs"]
    assert (await last(service, "submit"))["details"] == {"jobs": [one["id"] for one in many[:50]], "more": 70}
    table = sweep({"lr": "1"}, {"lr": "2"})
    made = (await service.http.post("/v1/jobs", json=table)).json()["jobs"]
    assert (await last(service, "submit"))["details"] == {"jobs": [one["id"] for one in made]}


async def test_what_is_done_to_jobs_is_told(service: Service) -> None:
    job_id = await service.submit(suspend=True)
    await service.http.post(f"/v1/jobs/{job_id}/resume")
    held = {"state": "held", "holdCause": "user"}
    details = (await last(service, "resume"))["details"]
    assert details == {"before": held, "after": {"state": "queued", "holdCause": None}}
    await service.http.patch(f"/v1/jobs/{job_id}", json={"priority": 3})
    assert (await last(service, "patch"))["details"] == {"priority": 3, "changed": {"priority": [0, 3]}}
    await service.http.post("/v1/jobs/cancel", json={"filter": {"queue": "default"}})
    assert (await last(service, "bulk cancel"))["details"] == {"matched": 1, "changed": 1, "jobs": [job_id]}


async def test_refused_calls_are_counted_and_stored(service: Service) -> None:
    user = service.as_key(await make_key(service, "user", queues=["default"], name="a user"))
    nobody = service.as_key("tmk_nobody")
    for _ in range(3):
        assert (await nobody.get("/v1/jobs")).status_code == 401
    assert (await user.put("/v1/queues/x%00y", json={})).status_code == 403
    assert (await user.post("/v1/jobs", json=job(priorityClass="high"))).status_code == 403
    assert (await user.get("/v1/jobs/x-0000001")).status_code == 404
    await user.aclose()
    await nobody.aclose()

    async def all_there() -> bool:
        found = await lines(service, action="refused")
        return sum(int(one["details"].get("count", 0)) for one in found) == 5

    await eventually(all_there)
    found = await lines(service, action="refused")
    assert {(one["actor"], one["target"], one["details"]["code"]) for one in found} == {
        ("", "GET /v1/jobs", "unauthenticated"),
        ("a user", "PUT /v1/queues/x?y", "forbidden"),
        ("a user", "POST /v1/jobs", "priority-class-not-allowed"),
    }
    assert {one["address"] for one in found} == {"127.0.0.1"}
    assert "tmk_" not in str(found)


async def test_the_audit_is_read_by_actor_action_and_time(service: Service) -> None:
    other = service.as_key(await make_key(service, "admin", name="a admin"))
    await other.put("/v1/queues/a", json={"path": "a"})
    await service.http.put("/v1/queues/b", json={"path": "b"})
    await other.aclose()
    assert [one["target"] for one in await lines(service, actor="an admin")] == []
    assert [one["target"] for one in await lines(service, actor="a admin")] == ["a"]
    assert [one["target"] for one in await lines(service, action="put queue")] == ["b", "a"]
    at = (await lines(service, target="b"))[0]["at"]
    assert [one["target"] for one in await lines(service, since=at)] == ["b"]
    assert [one["target"] for one in await lines(service, until=at, action="put queue")] == ["a"]
    bad = await service.http.get("/v1/audit?since=yesterday")
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid-parameter")


async def test_a_call_writes_one_line_in_the_transaction_of_its_change(service: Service) -> None:
    await service.http.put("/v1/queues/q", json={"path": "q"})
    (line,) = await rows(service.stores, "SELECT xmin::text AS tx FROM audit WHERE target = 'q'")
    (queue,) = await rows(service.stores, "SELECT xmin::text AS tx FROM queues WHERE path = 'q'")
    assert line.tx == queue.tx
