"""One specification and a table of parameters: as many jobs as rows, each with its own values, all or nothing."""

import asyncio
from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.rows import picture, value


def sweep(*sets: Any, **fields: Any) -> dict[str, Any]:
    spec = job("sweep", **fields)
    spec["roles"][0]["template"]["args"] = ["--lr", "${lr}", "--backslash", "\\d\t${lr}"]
    spec["labels"] = {"sweep": "one"}
    return {"job": spec, "parameters": list(sets)}


async def test_each_set_is_a_job_with_its_own_values(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=64)
    sets = [{"lr": 0.1}, {"lr": 'a"\\n\tb'}, {"lr": "${lr}"}]
    answer = await service.http.post("/v1/jobs", json=sweep(*sets))
    assert answer.status_code == 201, answer.text
    ids = [item["id"] for item in answer.json()["jobs"]]
    texts = ["0.1", 'a"\\n\tb', "${lr}"]
    arguments = [["--lr", text, "--backslash", f"\\d\t{text}"] for text in texts]
    for job_id, given, expected in zip(ids, sets, arguments, strict=True):
        shown = await service.job(job_id)
        assert shown["parameters"] == given
        assert shown["spec"]["roles"][0]["template"]["args"] == expected
    started: dict[str, Any] = {}
    while len(started) < 3:
        start = await agent.next_start()
        started[start["job"]] = start["spec"]["roles"][0]["template"]["args"]
    assert started == dict(zip(ids, arguments, strict=True)), "agents get the values, not the table"
    assert await value(service.stores, "SELECT count(*) FROM job_specs") == 1, "one specification for all"
    events = (await service.http.get(f"/v1/jobs/{ids[1]}/events")).json()["events"]
    assert [(event["seq"], event["kind"]) for event in events[:2]] == [(1, "submitted"), (2, "dispatched")]
    assert events[0]["states"] == ["queued"]


async def test_a_table_counts_against_the_queues_limit_as_a_whole(service: Service) -> None:
    await service.http.put("/v1/queues/small", json={"path": "small", "maxQueued": 5})
    assert (await service.http.post("/v1/jobs", json=sweep(*[{"lr": n} for n in range(4)], queue="small"))).is_success
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=sweep(*[{"lr": n} for n in range(2)], queue="small"))
    assert (answer.status_code, answer.json()["code"]) == (429, "queue-full")
    assert await picture(service.stores) == before


async def test_a_dry_run_tries_a_table_as_one_and_stores_nothing(service: Service) -> None:
    await service.agent().connect(cpu=4)
    before = await picture(service.stores)
    table = sweep(*[{"lr": n} for n in range(150)])
    answer = await service.http.post("/v1/jobs?dryRun=true", json=table)
    assert answer.status_code == 200, answer.text
    (tried,) = answer.json()["jobs"]
    assert (tried["name"], tried["count"]) == ("sweep", 150)
    await service.http.put("/v1/queues/small", json={"path": "small", "maxQueued": 5})
    before = await picture(service.stores)
    for refused, code in (
        (sweep({"lr": 1}, {"x": 2}), 422),
        (sweep(*[{"lr": n} for n in range(6)], queue="small"), 429),
    ):
        dry = await service.http.post("/v1/jobs?dryRun=true", json=refused)
        real = await service.http.post("/v1/jobs", json=refused)
        assert (dry.status_code, dry.json()["detail"]) == (code, real.json()["detail"])
    assert await picture(service.stores) == before


WRONG: dict[str, tuple[Any, str]] = {
    "no table": ({"job": job()}, "parameters"),
    "an empty table": (sweep(), "parameters"),
    "no job": ({"parameters": [{"lr": 1}]}, "job"),
    "a job with a mistake": ({"job": job(nonsense=3), "parameters": [{"lr": 1}]}, "job.nonsense"),
    "a further field": (sweep({"lr": 1}) | {"more": 1}, "more"),
    "a set that differs": (sweep({"lr": 1}, {"lr": 1, "x": 2}), "parameters[1]"),
    "a parameter that is used nowhere": (sweep({"lr": 1, "x": 2}), "parameters[0].x"),
}


@pytest.mark.parametrize(("body", "path"), WRONG.values(), ids=WRONG)
async def test_a_table_with_a_mistake_stores_nothing(service: Service, body: Any, path: str) -> None:
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert answer.json()["mistakes"][0]["path"] == path
    assert await picture(service.stores) == before


async def test_keys_of_concurrent_submissions_never_meet(service: Service) -> None:
    """Each submission takes a block of keys; blocks taken at the same time lie apart."""
    answers = await asyncio.gather(
        *[service.http.post("/v1/jobs", json=sweep(*[{"lr": n} for n in range(40)])) for _ in range(12)],
        *[service.http.post("/v1/jobs", json=job()) for _ in range(12)],
    )
    ids = [item["id"] for answer in answers for item in answer.json().get("jobs", [answer.json()])]
    assert len(set(ids)) == 12 * 40 + 12
    assert await value(service.stores, "SELECT count(*) FROM jobs") == len(ids)
