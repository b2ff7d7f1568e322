"""What people do with jobs over REST: submit many, find, change and watch them."""

import asyncio
import time
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import ADMIN_KEY, Service, job
from tests.integration.rows import picture, rows, value
from trainmaster.client.async_http import AsyncClient
from trainmaster.protocol.states import RunState


async def ids_of(service: Service, *names: str, **fields: Any) -> list[str]:
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(name, **fields) for name in names]})
    assert answer.status_code == 201, answer.text
    return [item["id"] for item in answer.json()["jobs"]]


async def names(service: Service, **parameters: Any) -> list[str]:
    answer = await service.http.get("/v1/jobs", params=parameters)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["jobs"]]


async def test_many_jobs_are_stored_in_order_or_not_at_all(service: Service) -> None:
    given = [f"j{number}" for number in range(300)]
    ids = await ids_of(service, *given)
    assert [job_id.rsplit("-", 1)[0] for job_id in ids] == given
    before = await picture(service.stores)
    for last in (job("x", "none"), job("x", priorityClass="none"), job("", "default")):
        answer = await service.http.post("/v1/jobs", json={"jobs": [*[job()] * 50, last]})
        assert answer.status_code == 422
    assert await picture(service.stores) == before


async def test_pages_show_each_job_once_while_others_come(service: Service) -> None:
    given = await ids_of(service, *[f"j{number}" for number in range(25)])
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await service.http.get("/v1/jobs", params={"limit": 10, **({"cursor": cursor} if cursor else {})})
        seen += [item["id"] for item in page.json()["jobs"]]
        cursor = page.json()["next"]
        if cursor is None:
            break
        await ids_of(service, "new")
    assert seen == given[::-1]


async def test_filters_find_what_they_name(service: Service) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    agent = service.agent()
    await agent.connect(cpu=1)
    runs = await service.submit("runs")
    await agent.report((await agent.next_start())["run"], RunState.RUNNING, 1)
    await service.submit("big", cpu="64", priorityClass="high", labels={"team": "a", "kind": "x"})
    await service.submit("held", "other", suspend=True, labels={"team": "a"})
    await service.submit("late", "other", suspend=True)
    await service.until(runs, "running")
    for parameters, found in (
        ({"queue": "default"}, ["big", "runs"]),
        ({"queue": "other"}, ["late", "held"]),
        ({"state": ["running", "held"], "name": "*u*"}, ["runs"]),
        ({"state": "queued"}, ["big"]),
        ({"priorityClass": "high"}, ["big"]),
        ({"label": "team=a"}, ["held", "big"]),
        ({"label": ["team=a", "kind=x"]}, ["big"]),
        ({"cluster": "private"}, ["runs"]),
        ({"cluster": "edge"}, []),
        ({"name": "h*"}, ["held"]),
        ({"name": "b?g"}, []),
    ):
        assert await names(service, **parameters) == found, parameters
    await service.http.post(f"/v1/jobs/{runs}/cancel")
    assert await names(service, state="cancelling") == ["runs"]


async def test_a_queue_shows_its_jobs_by_state(service: Service) -> None:
    await ids_of(service, "a", "b", "c")
    await ids_of(service, "d", "e", suspend=True)
    await service.http.post("/v1/jobs/cancel", json={"filter": {"name": "a"}})
    shown = (await service.http.get("/v1/queues/default")).json()
    assert shown["jobs"] == {"queued": 2, "held": 2}

    async def listed(**query: Any) -> dict[str, int]:
        """Return the numbers of jobs of the only queue."""
        answer = await service.http.get("/v1/queues", params=query)
        (queue,) = answer.json()["queues"]
        found: dict[str, int] = queue["jobs"]
        return found

    assert await listed() == {"queued": 2, "held": 2}
    assert await listed(ended=True) == {"queued": 2, "held": 2, "cancelled": 1}
    assert await listed(ended=True, usage=True) == {"queued": 2, "held": 2, "cancelled": 1}
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        assert [one.jobs.get("cancelled") for one in await client.queues(ended=True)] == [1]
        assert [one.jobs.get("cancelled") for one in await client.queues()] == [None]


async def test_a_waiting_job_is_changed_with_one_event(service: Service) -> None:
    job_id = await service.submit()
    answer = await service.http.patch(f"/v1/jobs/{job_id}", json={"priority": 7, "priorityClass": "high"})
    assert (answer.json()["priority"], answer.json()["priorityClass"], answer.json()["version"]) == (7, "high", 2)
    same = await service.http.patch(f"/v1/jobs/{job_id}", json={"priority": 7})
    assert same.json()["version"] == 2
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert events[-1]["details"] == {"priority": [0, 7], "priorityClass": "high"}
    assert events[-1]["actor"] == "admin"


async def test_bulk_actions_count_first_and_then_do(service: Service) -> None:
    ids = await ids_of(service, *["many"] * 1100)
    await ids_of(service, "other")
    wanted = {"filter": {"name": "many"}}
    for action, extra, field, after in (
        ("reprioritise", {"patch": {"priority": 3}}, "priority", 3),
        ("suspend", {}, "state", "held"),
        ("resume", {}, "state", "queued"),
        ("cancel", {}, "state", "cancelled"),
        ("retry", {}, "state", "queued"),
    ):
        before = await picture(service.stores)
        dry = await service.http.post(f"/v1/jobs/{action}", json={**wanted, **extra, "dryRun": True})
        assert dry.json() == {"matched": 1100, "changed": 0, "refused": 0, "dryRun": True}
        assert await picture(service.stores) == before
        done = await service.http.post(f"/v1/jobs/{action}", json={**wanted, **extra})
        assert done.json() == {"matched": 1100, "changed": 1100, "refused": 0, "dryRun": False}
        assert (await service.job(ids[-1]))[field] == after
        assert (await service.http.post(f"/v1/jobs/{action}", json={**wanted, **extra})).json()["changed"] == 0
    assert await value(service.stores, "SELECT version FROM jobs WHERE name = 'other'") == 1


async def test_a_full_queue_refuses_until_there_is_room(service: Service) -> None:
    await service.http.put("/v1/queues/small", json={"path": "small", "maxQueued": 3})
    ids = await ids_of(service, "a", "b", queue="small")
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(queue="small"), job(queue="small")]})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "queue-full", "5")
    assert await picture(service.stores) == before
    await ids_of(service, "c", queue="small")
    assert (await service.http.post("/v1/jobs", json=job(queue="small"))).status_code == 429
    await service.http.post(f"/v1/jobs/{ids[0]}/cancel")
    await ids_of(service, "d", queue="small")


async def test_one_user_does_not_fill_a_queue_alone(service: Service) -> None:
    await service.http.put("/v1/queues/shared", json={"path": "shared", "maxQueuedPerUser": 2})
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["shared"]})
    theirs = {"Authorization": f"Bearer {made.json()['key']}"}
    await ids_of(service, "a", "b", queue="shared")
    refused = await service.http.post("/v1/jobs", json=job(queue="shared"))
    assert (refused.status_code, refused.json()["code"]) == (429, "queue-full")
    assert "its limit for each user of 2" in refused.json()["detail"]
    for _ in range(2):
        assert (await service.http.post("/v1/jobs", json=job(queue="shared"), headers=theirs)).status_code == 201
    assert (await service.http.post("/v1/jobs", json=job(queue="shared"), headers=theirs)).status_code == 429


@pytest.mark.parametrize("state", ["draining", "stopped"])
async def test_a_queue_that_is_closed_takes_no_jobs_and_neither_do_those_below(service: Service, state: str) -> None:
    await service.http.put("/v1/queues/x", json={"path": "x"})
    await service.http.put("/v1/queues/x/y", json={"path": "x/y"})
    await service.http.put("/v1/queues/x", json={"path": "x", "state": state})
    answer = await service.http.post("/v1/jobs", json=job(queue="x/y"))
    assert (answer.status_code, answer.json()["code"]) == (409, "queue-closed")
    assert answer.json()["detail"] == f"queue 'x' is {state} and takes no jobs"
    await service.http.put("/v1/queues/x", json={"path": "x", "state": "held"})
    assert (await service.http.post("/v1/jobs", json=job(queue="x/y"))).status_code == 201


async def test_racing_submitters_never_exceed_a_queues_limit(service: Service) -> None:
    for path in ("small", "tiny"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path, "maxQueued": 20})
    pairs = [["small", "tiny"], ["tiny", "small"]] * 20
    bodies = [{"jobs": [job(queue=queue) for queue in pair]} for pair in pairs]
    answers = await asyncio.gather(*[service.http.post("/v1/jobs", json=body) for body in bodies])
    assert sorted(answer.status_code for answer in answers) == [201] * 20 + [429] * 20
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 40


RESERVATION = {
    "name": "w",
    "queue": "default",
    "nodes": 1,
    "start": "2099-11-28T00:00:00Z",
    "end": "2099-11-30T00:00:00Z",
}


async def test_each_mutating_call_leaves_one_audit_row(service: Service) -> None:
    http, job_id = service.http, await service.submit()
    calls: list[tuple[str, str, Any, str, str]] = [
        ("POST", "/v1/jobs", {"jobs": [job(), job()]}, "submit", "2 jobs"),
        ("PATCH", f"/v1/jobs/{job_id}", {"priority": 1}, "patch", job_id),
        ("POST", f"/v1/jobs/{job_id}/suspend", None, "suspend", job_id),
        ("POST", f"/v1/jobs/{job_id}/resume", None, "resume", job_id),
        ("POST", f"/v1/jobs/{job_id}/cancel", None, "cancel", job_id),
        ("POST", f"/v1/jobs/{job_id}/retry", None, "retry", job_id),
        ("POST", "/v1/jobs/cancel", {"filter": {"name": "a"}}, "bulk cancel", '{"filter":{"name":"a"}}'),
        ("PUT", "/v1/queues/q", {"path": "q"}, "put queue", "q"),
        ("DELETE", "/v1/queues/q", None, "delete queue", "q"),
        ("PUT", "/v1/priority-classes/c", {"name": "c", "value": 1}, "put priority class", "c"),
        ("DELETE", "/v1/priority-classes/c", None, "delete priority class", "c"),
        ("PUT", "/v1/reservations/w", RESERVATION, "put reservation", "w"),
        ("DELETE", "/v1/reservations/w", None, "delete reservation", "w"),
        ("PUT", "/v1/clusters/k", {"name": "k"}, "put cluster", "k"),
        ("POST", "/v1/clusters/k/cordon", None, "cordon", "k"),
        ("POST", "/v1/clusters/k/uncordon", None, "uncordon", "k"),
        ("POST", "/v1/clusters/k/join", {"name": "k"}, "join cluster", "k"),
        ("POST", "/v1/clusters/k/rotate", {"revokeOld": True}, "rotate key", "k"),
        ("POST", "/v1/clusters/k/drain", {}, "drain", "k"),
        ("POST", "/v1/clusters/k/declare-lost", {}, "declare lost", "k"),
        ("DELETE", "/v1/clusters/k", None, "delete cluster", "k"),
        ("POST", "/v1/keys", {"name": "new", "role": "admin"}, "make key", "new"),
    ]
    before = await value(service.stores, "SELECT max(id) FROM audit")
    for number, (method, path, body, _, _) in enumerate(calls):
        answer = await http.request(method, path, json=body, headers={"X-Request-Id": f"call-{number}"})
        assert answer.is_success, (path, answer.text)
    found = await rows(service.stores, "SELECT * FROM audit WHERE id > :id ORDER BY id", id=before)
    assert [(row.action, row.target, row.request_id, row.actor) for row in found] == [
        (action, target, f"call-{number}", "admin") for number, (*_, action, target) in enumerate(calls)
    ]
    page = (await http.get("/v1/audit", params={"target": job_id, "limit": 2})).json()
    assert [item["action"] for item in page["audit"]] == ["retry", "cancel"]
    rest = (await http.get("/v1/audit", params={"target": job_id, "cursor": page["next"]})).json()
    assert [item["action"] for item in rest["audit"]] == ["resume", "suspend", "patch"]


async def watch(http: httpx.AsyncClient, job_id: str, last: str = "", most: int = 100) -> list[tuple[str, str]]:
    """Return id and kind of a job's server-sent events, until the stream ends or ``most`` of them were read."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    out: list[tuple[str, str]] = []
    number = ""
    async with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            number = value if name == "id" else number
            if name == "event":
                out.append((number if value != "end" else "", value))
            if len(out) >= most:
                break
    return out


async def test_a_watcher_sees_each_event_once_even_over_a_broken_link(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    whole = asyncio.create_task(watch(service.http, job_id))
    start = await agent.next_start()
    first = await watch(service.http, job_id, most=2)
    assert first == [("1", "submitted"), ("2", "dispatched")]
    resumed = asyncio.create_task(watch(service.http, job_id, first[-1][0]))
    await agent.report(start["run"], RunState.RUNNING, 1)
    await agent.report(start["run"], RunState.SUCCEEDED, 2)
    rest = [("3", "run.running"), ("4", "run.succeeded"), ("", "end")]
    assert await resumed == rest
    assert await whole == first + rest
    assert await watch(service.http, job_id, "4") == rest[-1:]


@pytest.mark.parametrize("many", [10_000])
async def test_agents_are_heard_while_large_bodies_are_read(service: Service, many: int) -> None:
    agent = service.agent()
    await agent.connect(cpu=0)
    body = orjson.dumps({"jobs": [job(f"j{number}", labels={"n": str(number)}) for number in range(many)]})

    async def submit() -> float:
        began = time.monotonic()
        answer = await service.http.post("/v1/jobs", content=body, timeout=60)
        assert (answer.status_code, len(answer.json()["jobs"])) == (201, many)
        return time.monotonic() - began

    submitting = asyncio.create_task(submit())
    slowest, heard = 0.0, 0
    while not submitting.done():
        began = time.monotonic()
        assert (await agent.sync()).status_code == 200
        slowest, heard = max(slowest, time.monotonic() - began), heard + 1
    seconds = await submitting
    print(f"{many} jobs in {seconds:.2f} s; meanwhile {heard} syncs, the slowest took {slowest:.3f} s")
    assert await value(service.stores, "SELECT count(*) FROM jobs") == many
    assert heard > 10
    assert slowest < max(0.5, seconds / 2)
