"""The life of a cluster: it joins, its key is rotated, it is drained, declared lost, removed, and joins again."""

import asyncio
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import age_contact, age_service, picture, rows, value
from tests.waiting import eventually
from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.states import RunState

SAVES = {"checkpoint": {"signal": "SIGUSR2", "wait": "20s"}, "stopGrace": "3s"}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(capabilities=("gang", "checkpoint"))
    await age_service(service.stores)
    return connected


async def running(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, str]:
    """Submit a job and let the agent run it; return the ids of the job and of its run."""
    await agent.sync()
    job_id = await service.submit(**fields)
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 1)
    await service.until(job_id, "running")
    return job_id, run


async def act(service: Service, what: str, cluster: str = "private", **body: Any) -> Any:
    answer = await service.http.post(f"/v1/clusters/{cluster}/{what}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def refused(service: Service, what: str, cluster: str = "private", **body: Any) -> dict[str, Any]:
    answer = await service.http.post(f"/v1/clusters/{cluster}/{what}", json=body)
    assert answer.status_code == 409, answer.text
    problem: dict[str, Any] = answer.json()
    return problem


async def shown(service: Service, cluster: str = "private") -> dict[str, Any]:
    view: dict[str, Any] = (await service.http.get(f"/v1/clusters/{cluster}")).json()
    return view


async def status_with(service: Service, key: str) -> int:
    async with service.as_key(key) as http:
        answer = await http.post("/agent/v1/sync", json={"session": f"s-{key}", "holder": "h", "number": 1})
        return answer.status_code


# -- joining


async def test_a_cluster_joins_with_a_key_that_opens_its_agent_calls(service: Service) -> None:
    made = await act(service, "join", "new", name="new", clusterKind="edge", labels={"site": "a"})
    assert (made["created"], made["otherKeys"], made["key"]["role"]) == (True, [], "agent")
    view = await shown(service, "new")
    assert (view["clusterKind"], view["labels"], view["state"]) == ("edge", {"site": "a"}, "never connected")
    assert await status_with(service, made["key"]["key"]) == 200
    assert (await shown(service, "new"))["state"] == "ready"
    details = await value(service.stores, "SELECT details FROM audit WHERE action = 'join cluster'")
    assert details == {"key": made["key"]["id"], "revoked": []}, "and no secret"


async def test_joining_again_makes_another_key_and_names_the_old_ones(service: Service) -> None:
    first = await act(service, "join", "new", name="new")
    again = await act(service, "join", "new", name="new")
    assert (again["created"], again["otherKeys"]) == (False, [first["key"]["id"]])
    assert [await status_with(service, made["key"]["key"]) for made in (first, again)] == [200, 200]
    assert (await refused(service, "join", "new", name="new", labels={"a": "b"}))["code"] == "conflict"


async def test_a_key_is_rotated_and_the_old_ones_are_revoked_when_asked(service: Service) -> None:
    first = await act(service, "join", "new", name="new")
    second = await act(service, "rotate", "new")
    assert (second["otherKeys"], second.get("revoked")) == ([first["key"]["id"]], None)
    third = await act(service, "rotate", "new", revokeOld=True)
    assert (third["otherKeys"], third["revoked"]) == ([], [first["key"]["id"], second["key"]["id"]])
    assert await status_with(service, third["key"]["key"]) == 200

    async def are_dead() -> bool:
        return [await status_with(service, made["key"]["key"]) for made in (first, second)] == [401, 401]

    await eventually(are_dead)


# -- draining


async def test_what_runs_on_a_drained_cluster_saves_its_state_and_starts_elsewhere(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent, retries={"limit": 3}, **SAVES)
    assert await act(service, "drain") == {"name": "private", "stopped": 1, "liveRuns": 1, "reachable": True}
    view = await shown(service)
    assert (view["state"], view["cordoned"], view["liveRuns"], view["stoppingRuns"]) == ("draining", True, 1, 1)
    (stop,) = (await agent.desired())["stop"]
    assert (stop["run"], stop["cause"], stop["graceSeconds"]) == (run, "preempt", 3.0)
    assert (stop["checkpointSignal"], stop["checkpointSeconds"]) == ("SIGUSR2", 20.0)
    assert (await act(service, "drain"))["stopped"] == 0, "once is enough"
    elsewhere = service.agent("public", session="session-p")
    await elsewhere.connect(capabilities=("gang", "checkpoint"))
    await agent.report(run, RunState.PREEMPTED, 2, generation=2)
    assert (await elsewhere.next_start())["run"] == run.removesuffix("r1") + "r2"
    job = await service.job(job_id)
    assert (job["retriesUsed"], job["runs"][0]["state"]) == (0, "preempted")
    assert (await shown(service))["state"] == "drained"
    (preemption,) = [event for event in await events(service, job_id) if event["kind"] == "preempt"]
    assert (preemption["actor"], preemption["message"]) == ("admin", "cluster private is drained")
    await service.http.post("/v1/clusters/private/uncordon")
    view = await shown(service)
    assert (view["state"], view["draining"]) == ("ready", False)


async def events(service: Service, job_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    return found


async def test_runs_may_finish_on_a_drained_cluster(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    assert (await act(service, "drain", letFinish=True))["stopped"] == 0
    assert (await shown(service))["state"] == "draining"
    waiting = await service.submit("other")
    assert (await agent.desired())["stop"] == []
    await agent.report(run, RunState.SUCCEEDED, 2)
    await service.until(job_id, "succeeded")
    assert (await shown(service))["state"] == "drained"
    assert (await service.job(waiting))["state"] == "queued"


async def test_nothing_starts_on_a_cluster_that_is_drained_while_jobs_stream_in(
    service: Service, agent: FakeAgent
) -> None:
    async def submit_many() -> None:
        for _ in range(20):
            await service.submit(cpu="100m")

    submitting = asyncio.create_task(submit_many())
    await asyncio.sleep(0.05)
    await act(service, "drain")
    unstopped = "SELECT count(*) FROM runs WHERE ended_at IS NULL AND stop_cause IS NULL"
    assert await value(service.stores, unstopped) == 0
    await submitting
    await asyncio.sleep(0.3)
    assert await value(service.stores, unstopped) == 0


# -- declared lost


async def test_a_cluster_in_contact_is_not_declared_lost_without_force(service: Service, agent: FakeAgent) -> None:
    job_id, _ = await running(service, agent)
    problem = await refused(service, "declare-lost")
    assert problem["code"] == "cluster-in-contact"
    assert "trainmaster clusters drain private" in problem["detail"]
    assert (await service.job(job_id))["state"] == "running"
    assert (await shown(service))["state"] == "ready", "nothing was changed"


async def test_the_jobs_of_a_lost_cluster_start_elsewhere_though_they_were_to_wait(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent, onDisconnect="wait", retries={"limit": 1})
    elsewhere = service.agent("edge", session="session-e")
    await elsewhere.connect()
    await age_contact(service.stores, "private", 60)
    assert (await shown(service))["state"] == "unreachable"
    assert await act(service, "declare-lost") == {"name": "private", "lost": 1}
    assert await act(service, "declare-lost") == {"name": "private", "lost": 0}
    assert (await elsewhere.next_start())["run"] == run.removesuffix("r1") + "r2"
    job = await service.job(job_id)
    assert (job["runs"][0]["state"], job["retriesUsed"]) == ("lost", 0)
    assert job["runs"][0]["message"] == "cluster private was declared lost by admin"
    assert await value(service.stores, "SELECT losses FROM jobs") == 0, "nobody says that it stayed up"
    view = await shown(service)
    assert (view["cordoned"], view["liveRuns"]) == (True, 0)


async def test_an_agent_that_comes_back_is_told_that_its_lost_runs_are_unknown(
    service: Service, agent: FakeAgent
) -> None:
    _, run = await running(service, agent)
    await act(service, "declare-lost", force=True)
    assert (await agent.desired())["stop"] == [], "asking is no reason to end the agent"
    answer = (await agent.sync()).json()
    assert answer["sendFull"], "it begins anew"
    report = RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING)
    for _ in range(2):
        assert (await agent.sync(report, full=True)).json()["unknown"] == [run]
    assert (await shown(service))["state"] == "cordoned", "in contact, and closed until somebody opens it"


async def test_a_session_that_came_between_is_the_newest_after_a_loss(service: Service, agent: FakeAgent) -> None:
    await running(service, agent)
    await act(service, "declare-lost", force=True)
    newer = service.agent(session="session-2")
    assert (await newer.sync()).status_code == 200
    assert (await newer.sync(full=True)).status_code == 200


# -- removed


async def test_a_cluster_with_live_runs_is_removed_only_by_force(service: Service, agent: FakeAgent) -> None:
    job_id, _ = await running(service, agent)
    answer = await service.http.delete("/v1/clusters/private")
    assert (answer.status_code, answer.json()["code"], answer.json()["liveRuns"]) == (409, "in-use", 1)
    for advice in ("1 live run", "clusters drain private", "clusters declare-lost private"):
        assert advice in answer.json()["detail"]
    answer = await service.http.delete("/v1/clusters/private", params={"force": "true"})
    assert answer.status_code == 204, answer.text
    job = await service.job(job_id)
    assert (job["state"], job["runs"][0]["state"], job["runs"][0]["cluster"]) == ("queued", "lost", "private")
    assert (await service.http.get("/v1/clusters/private")).status_code == 404
    assert (await service.http.delete("/v1/clusters/private")).status_code == 404
    assert "private" not in {key["cluster"] for key in (await service.http.get("/v1/keys")).json()["keys"]}

    async def is_shut_out() -> bool:
        return await status_with(service, "tmk_private") == 401

    await eventually(is_shut_out)
    for call in ("cordon", "drain", "rotate"):
        answer = await service.http.post(f"/v1/clusters/private/{call}", json={})
        assert answer.status_code == 404


async def test_a_cluster_in_contact_is_removed_only_when_it_is_closed(service: Service, agent: FakeAgent) -> None:
    await agent.sync()
    key = (await service.http.get("/v1/keys")).json()["keys"]
    for _ in range(2):
        answer = await service.http.delete("/v1/clusters/private")
        assert (answer.status_code, answer.json()["code"]) == (409, "cluster-in-contact")
        assert "clusters drain private --wait" in answer.json()["detail"]
    assert (await shown(service))["state"] == "ready"
    assert [one["revokedAt"] for one in (await service.http.get("/v1/keys")).json()["keys"]] == [
        one["revokedAt"] for one in key
    ]
    await act(service, "cordon")
    assert (await service.http.delete("/v1/clusters/private")).status_code == 204


@pytest.mark.parametrize("what", ["cordon", "drain", "uncordon", "declare-lost", "rotate"])
async def test_an_action_without_options_needs_no_body(service: Service, what: str) -> None:
    answer = await service.http.post(f"/v1/clusters/private/{what}")
    assert answer.is_success, answer.text


async def test_a_mistyped_cluster_is_answered_with_the_nearest_and_nothing_is_changed(service: Service) -> None:
    before = await picture(service.stores)
    for what in ("cordon", "uncordon", "drain", "declare-lost", "rotate", "stop-quarantined"):
        answer = await service.http.post(f"/v1/clusters/privte/{what}", json={})
        assert answer.status_code == 404
        assert answer.json()["detail"] == "there is no cluster 'privte'; did you mean 'private'?", what
    assert await picture(service.stores) == before


async def test_a_removed_cluster_may_join_again_as_a_new_one(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    await agent.report(run, RunState.SUCCEEDED, 2)
    await act(service, "drain")
    assert (await service.http.delete("/v1/clusters/private")).status_code == 204
    waiting = await service.submit("other", placement={"clusters": ["private"]})
    made = await act(service, "join", "private", name="private")
    assert made["created"]
    view = await shown(service)
    assert (view["state"], view["cordoned"], view["nodes"]) == ("never connected", False, 0)
    fresh = service.agent(session="session-9", holder="holder-9")
    fresh.key = made["key"]["key"]
    await fresh.connect()
    start = await fresh.next_start()
    assert start["job"] == waiting


async def test_a_cluster_without_history_leaves_nothing_behind(service: Service) -> None:
    await act(service, "join", "new", name="new")
    assert (await service.http.delete("/v1/clusters/new")).status_code == 204
    assert await rows(service.stores, "SELECT 1 FROM clusters WHERE name = 'new'") == []


async def test_why_its_agent_can_start_nothing_is_shown_and_nothing_starts(service: Service) -> None:
    agent = service.agent()
    await agent.connect(closed="the API server does not answer")
    view = await shown(service)
    assert (view["state"], view["closed"]) == ("closed", "the API server does not answer")
    job_id = await service.submit()

    async def is_told() -> bool:
        why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
        return bool(why["token"] == "ClustersUnreachable" and "the API server does not answer" in str(why["verdicts"]))

    await eventually(is_told)
    await agent.connect()
    assert (await agent.next_start())["job"] == job_id
