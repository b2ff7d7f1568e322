"""What happened to jobs as events of Kubernetes, and their members as pods, with their output."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute
from tests.waiting import eventually
from trainmaster.protocol.states import RunState

EVENTS, PODS = "/api/v1/namespaces/default/events", "/api/v1/namespaces/default/pods"
RUNS = "/apis/trainmaster.dev/v1/namespaces/default/runs"


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect()
    return agent


def members(*states: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"role": "main", "index": index, "state": state, "node": f"n{index}", **fields}
        for index, state in enumerate(states)
    ]


async def running(service: Service, agent: FakeAgent, name: str = "train", **fields: Any) -> tuple[str, str]:
    """Submit a job and let it run; return its id and that of its run."""
    job = await service.submit(name, **fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1, members=members("running", "pending"))
    return job, run


async def got(service: Service, path: str, **parameters: Any) -> dict[str, Any]:
    answer = await service.http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@asynccontextmanager
async def watching(service: Service, path: str, **parameters: Any) -> AsyncIterator[list[dict[str, Any]]]:
    """Collect what a watch sends."""
    seen: list[dict[str, Any]] = []

    async def read() -> None:
        nonlocal seen
        async with service.http.stream("GET", path, params={"watch": "1", **parameters}) as answer:
            async for line in answer.aiter_lines():
                seen += [orjson.loads(line)]

    task = asyncio.create_task(read())
    yield seen
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_events_of_a_job_say_what_happened_to_it(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent, replicas=2)
    other = await service.submit("other")
    end = {"category": "exit", "exitCode": 3, "message": "the loss is not a number"}
    await agent.report(run, RunState.FAILED, 2, end=end, members=members("failed", "stopped"))
    found = await got(service, EVENTS, fieldSelector=f"involvedObject.name={job},involvedObject.kind=Job")
    items = found["items"]
    assert {one["involvedObject"]["name"] for one in items} == {job}
    assert [one["reason"] for one in items][:2] == ["Submitted", "Dispatched"]
    last = items[-1]
    assert (last["reason"], last["type"], last["source"]) == ("RunFailed", "Warning", {"component": "trainmaster"})
    assert "exit code 3" in last["message"]
    assert "the loss is not a number" in last["message"]
    assert (
        last["involvedObject"]["uid"]
        == (await got(service, f"{PODS}/{job}.main.0"))["metadata"]["ownerReferences"][0]["uid"]
    )
    one = await got(service, f"{EVENTS}/{last['metadata']['name']}")
    assert one["message"] == last["message"]
    everywhere = (await got(service, "/api/v1/events"))["items"]
    assert {one["involvedObject"]["name"] for one in everywhere} == {job, other}
    warnings = (await got(service, EVENTS, fieldSelector="type=Warning,reason!=RunPreempted"))["items"]
    assert [one["reason"] for one in warnings] == ["RunFailed"]
    pages, following = [], ""
    while True:
        page = await got(service, EVENTS, limit=2, **({"continue": following} if following else {}))
        pages += page["items"]
        following = page["metadata"].get("continue", "")
        if not following:
            break
    before, listed = [one["metadata"]["name"] for one in everywhere], [one["metadata"]["name"] for one in pages]
    assert [name for name in listed if name in before] == before, "the other job may have got another event meanwhile"
    assert len(set(listed)) == len(listed)


async def test_events_of_others_are_not_seen(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent)
    await service.http.put("/v1/queues/own", json={"path": "own"})
    key = (await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["own"]})).json()["key"]
    theirs = service.as_key(key)
    for path in (EVENTS, "/api/v1/events", PODS, "/api/v1/pods"):
        answer = await theirs.get(path)
        assert (answer.status_code, answer.json()["items"]) == (200, []), path
    for path in (f"{PODS}/{job}.main.0", f"{PODS}/{job}.main.0/log", f"{EVENTS}/{job}.1"):
        assert (await theirs.get(path)).status_code == 404, path


async def test_lists_have_the_events_of_the_last_hour(service: Service, agent: FakeAgent) -> None:
    old, _ = await running(service, agent, "old")
    await execute(service.stores, "UPDATE events SET at = at - interval '2 hours'")
    new = await service.submit("new")
    found = {one["involvedObject"]["name"] for one in (await got(service, EVENTS))["items"]}
    assert new in found
    assert old not in found
    assert (await got(service, EVENTS, fieldSelector=f"involvedObject.name={old}"))["items"]


async def test_a_watch_of_events_tells_each_once(service: Service, agent: FakeAgent) -> None:
    listed = await got(service, EVENTS)
    version = listed["metadata"]["resourceVersion"]
    async with watching(service, EVENTS, resourceVersion=version) as seen:
        job, run = await running(service, agent)
        await agent.report(run, RunState.SUCCEEDED, 2)

        async def is_told() -> bool:
            return any(one["object"]["reason"] == "RunSucceeded" for one in seen)

        await eventually(is_told)
    assert {one["type"] for one in seen} == {"ADDED"}
    names = [one["object"]["metadata"]["name"] for one in seen]
    assert len(set(names)) == len(names)
    assert names == [one["metadata"]["name"] for one in (await got(service, EVENTS))["items"]]
    assert {one["object"]["involvedObject"]["name"] for one in seen} == {job}
    refused = await service.http.get(EVENTS, params={"fieldSelector": "involvedObject.colour=red"})
    assert refused.status_code == 422
    assert "involvedObject.name" in refused.json()["message"]


async def test_members_are_pods_of_their_namespace(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent, replicas=2, labels={"team": "a"})
    await service.submit("waits", cpu="1000")
    items = (await got(service, PODS))["items"]
    assert [one["metadata"]["name"] for one in items] == [f"{job}.main.0", f"{job}.main.1"]
    first, second = items
    assert (first["status"]["phase"], second["status"]["phase"]) == ("Running", "Pending")
    assert first["metadata"]["labels"] == {
        "team": "a",
        "trainmaster.dev/job-name": job,
        "trainmaster.dev/role": "main",
        "trainmaster.dev/index": "0",
        "trainmaster.dev/run": "1",
        "trainmaster.dev/cluster": "private",
    }
    assert first["spec"]["nodeName"] == "n0"
    assert first["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    for selector, many in (
        ({"labelSelector": f"trainmaster.dev/job-name={job}"}, 2),
        ({"labelSelector": "trainmaster.dev/job-name=none"}, 0),
        ({"labelSelector": "trainmaster.dev/index=1"}, 1),
        ({"fieldSelector": "status.phase=Running"}, 1),
        ({"fieldSelector": f"metadata.name={job}.main.1"}, 1),
        ({"fieldSelector": "spec.nodeName=n1"}, 1),
    ):
        assert len((await got(service, PODS, **selector))["items"]) == many, selector
    for name in ("none", f"{job}.main.2", f"{job}.other.0", f"{job}.main.x", "a.b.0"):
        answer = await service.http.get(f"{PODS}/{name}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound"), name


async def test_pods_are_listed_by_pages_of_whole_jobs(service: Service, agent: FakeAgent) -> None:
    jobs = [(await running(service, agent, f"j{number}", replicas=number, cpu="100m"))[0] for number in (3, 1, 2)]
    await service.submit("waits", cpu="1000")
    pages: list[list[str]] = []
    following = ""
    while True:
        page = await got(service, PODS, limit=2, **({"continue": following} if following else {}))
        pages.append([one["metadata"]["name"].partition(".")[0] for one in page["items"]])
        following = page["metadata"].get("continue", "")
        if not following:
            break
    assert [page for page in pages if page] == [[jobs[2]] * 2, [jobs[1]] + [jobs[0]] * 3]


async def test_a_watch_of_pods_follows_a_run_to_its_end(service: Service, agent: FakeAgent) -> None:
    version = (await got(service, PODS))["metadata"]["resourceVersion"]
    async with watching(service, PODS, resourceVersion=version) as seen:
        job, run = await running(service, agent, replicas=2)
        await agent.report(run, RunState.SUCCEEDED, 2, members=members("succeeded", "succeeded", exitCode=0))

        async def is_over() -> bool:
            phases: dict[str, str] = {
                one["object"]["metadata"]["name"]: one["object"]["status"]["phase"] for one in seen
            }
            return phases.items() == {f"{job}.main.0": "Succeeded", f"{job}.main.1": "Succeeded"}.items()

        await eventually(is_over)
        await service.http.delete(f"/apis/trainmaster.dev/v1/namespaces/default/jobs/{job}")

        async def is_deleted() -> bool:
            return [one["type"] for one in seen].count("DELETED") == 2

        await eventually(is_deleted)
    assert (await got(service, PODS))["items"] == []


async def test_runs_are_the_attempts_of_jobs(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent, retries={"limit": 1, "backOff": "0s"}, labels={"team": "a"})
    await running(service, agent, "other")
    async with watching(service, RUNS, labelSelector=f"trainmaster.dev/job-name={job}") as seen:

        async def is_listed() -> bool:
            return (run, "running") in states(seen)

        await eventually(is_listed)  # a watch that begins late lists runs as they are by then
        end = {"category": "exit", "exitCode": 3, "message": "out of luck"}
        await agent.report(run, RunState.FAILED, 2, end=end)
        again = (await agent.next_start())["run"]
        await agent.report(again, RunState.RUNNING, 1)
        await service.until(job, "running")

        async def is_told() -> bool:
            return (run, "failed") in states(seen) and (again, "running") in states(seen)

        await eventually(is_told, 10)
    assert {event["type"] for event in seen} == {"ADDED", "MODIFIED"}
    found = await got(service, RUNS)
    assert [one["metadata"]["name"] for one in found["items"]][1:] == [f"{job}-r1", f"{job}-r2"], "newest jobs first"
    first = found["items"][1]
    assert await got(service, f"{RUNS}/{run}") == first
    assert (first["kind"], first["spec"]) == ("Run", {"job": job, "attempt": 1, "cluster": "private"})
    assert (
        first["status"] | {"exitCode": 3, "message": "out of luck", "category": "exit", "state": "failed"}
        == first["status"]
    )
    assert first["metadata"]["labels"] == {
        "team": "a",
        "trainmaster.dev/job-name": job,
        "trainmaster.dev/cluster": "private",
    }
    assert first["metadata"]["ownerReferences"][0]["name"] == job
    selected = await got(
        service, "/apis/trainmaster.dev/v1/runs", fieldSelector="status.state=running,spec.cluster=private"
    )
    assert again in [one["metadata"]["name"] for one in selected["items"]]
    assert run not in [one["metadata"]["name"] for one in selected["items"]]
    page = await got(service, RUNS, limit=1)
    rest = await got(service, RUNS, limit=1, **{"continue": page["metadata"]["continue"]})
    assert [len(one["items"]) for one in (page, rest)] == [1, 2], "runs of one job are in one page"
    for name in ("none-r1", f"{job}-r3", "x", f"{job}-r"):
        assert (await service.http.get(f"{RUNS}/{name}")).status_code == 404
    assert (await service.http.delete(f"{RUNS}/{run}")).status_code == 405


def states(seen: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["object"]["metadata"]["name"], one["object"]["status"]["state"]) for one in seen]


async def test_runs_of_others_are_not_seen(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    await service.http.put("/v1/queues/other", json={"path": "other"})
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["other"]})
    async with service.as_key(made.json()["key"]) as user:
        assert (await user.get(f"{RUNS}/{run}")).status_code == 404
        assert (await user.get("/apis/trainmaster.dev/v1/runs")).json()["items"] == []


async def test_output_of_a_member_is_read_as_that_of_a_pod(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent, replicas=2)
    text = "one\ntwo\nthree\n"
    chunk = {"role": "main", "index": 1, "offset": 0, "data": text, "nextOffset": len(text)}
    body = {"session": agent.session, "chunks": [chunk], "end": False}
    pushed = await agent.http.post(f"/agent/v1/streams/{run}", json=body, headers=agent._headers())
    assert pushed.status_code == 200, pushed.text
    await agent.report(run, RunState.SUCCEEDED, 2, members=members("succeeded", "succeeded", exitCode=0))

    async def read(index: int = 1, **parameters: Any) -> str:
        answer = await service.http.get(f"{PODS}/{job}.main.{index}/log", params=parameters)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    assert await read() == text
    assert await read(container="main") == text
    assert await read(tailLines=1) == "three\n"
    assert await read(tailLines=2, follow="true") == "two\nthree\n"
    assert await read(limitBytes=5) == "one\nt"
    assert await read(index=0) == ""
    lines = (await read(timestamps="true")).splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["one", "two", "three"]
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"container": "side"}, "container"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "2026-01-01T00:00:00"}, "sinceTime"),
        ({"sinceTime": "2026-01-01T00:00:00Z", "sinceSeconds": 5}, "sinceTime"),
        ({"tailLines": "many"}, "tailLines"),
        ({"limitBytes": 0}, "limitBytes"),
    )
    for parameters, expected in wrong:
        answer = await service.http.get(f"{PODS}/{job}.main.1/log", params=parameters)
        assert answer.status_code == 422, parameters
        assert expected in answer.json()["message"], answer.text


async def test_pods_cannot_be_changed(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent)
    for name, words in (("eviction", "on the cluster 'private'"), ("exec", "private does not let users run commands")):
        answer = await service.http.post(f"{PODS}/{job}.main.0/{name}", params={"command": "sh"})
        assert (answer.status_code, answer.json()["reason"]) == (405, "MethodNotAllowed")
        assert words in answer.json()["message"]
    assert (await service.http.delete(f"{PODS}/{job}.main.0")).status_code == 405


async def test_a_key_acts_as_a_user_by_impersonation(service: Service) -> None:
    made = {
        "name": "gate",
        "role": "user",
        "queues": ["default"],
        "onBehalfOf": ["team-*", "system:serviceaccount:ml:*"],
    }
    gate = service.as_key((await service.http.post("/v1/keys", json=made)).json()["key"])
    spec = {"roles": [{"name": "main", "template": {"command": ["true"]}}]}
    body = {"apiVersion": "trainmaster.dev/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
    jobs = "/apis/trainmaster.dev/v1/namespaces/default/jobs"
    for name, user in (("a", "team-a"), ("b", "system:serviceaccount:ml:runner")):
        body["metadata"] = {"name": name}
        answer = await gate.post(jobs, json=body, headers={"Impersonate-User": user})
        assert answer.status_code == 201, answer.text
        assert answer.json()["status"]["submittedBy"] == user
        assert answer.json()["status"]["submittedThrough"] == "gate"
    refused = await gate.post(jobs, json=body, headers={"Impersonate-User": "root"})
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    assert (await gate.get(jobs, headers={"Impersonate-User": "root"})).status_code == 403
    assert (await gate.get(jobs, headers={"Impersonate-User": "team-b"})).status_code == 200
    groups = await gate.get(jobs, headers={"Impersonate-User": "team-b", "Impersonate-Group": "g"})
    assert groups.status_code == 422
    assert "Impersonate-Group" in groups.json()["message"]
    others = await gate.delete(f"{jobs}/a", headers={"Impersonate-User": "team-b"})
    assert others.status_code == 403, others.text
    assert (await gate.delete(f"{jobs}/a", headers={"Impersonate-User": "team-a"})).status_code == 200
