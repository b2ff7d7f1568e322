"""What cannot be read of an agent's sync costs that part alone: other runs, other clusters and the scheduler go on."""

from math import inf, nan
from typing import Any

import orjson
import pytest

from tests.conftest import FakeAgent, Service
from tests.fuzz.values import to_json
from tests.integration.rows import age_contact, execute, value
from tests.integration.test_bad_input import World, world
from tests.unit.test_metrics import value_of
from tests.waiting import eventually
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.states import RunState

__all__ = ["world"]

GROUP: dict[str, Any] = {"name": "node", "count": 1, "free": {"cpu": 4000}}
REPORT: dict[str, Any] = {"groups": [GROUP], "runtime": "test", "scheduler": "test", "capabilities": ["gang"]}
UNUSABLE: dict[str, dict[str, Any]] = {
    "startSeconds: endless": {"startSeconds": inf},
    "startSeconds: no number": {"startSeconds": nan},
    "startSeconds: more than ten years": {"startSeconds": 1e12},
    "groups[0].count": {"groups": [GROUP | {"count": -1}]},
    "groups[0].free.cpu: too much": {"groups": [GROUP | {"free": {"cpu": 10**30}}]},
    "groups[0].free.cpu: less than nothing": {"groups": [GROUP | {"free": {"cpu": -1}}]},
    "groups[0].name": {"groups": [GROUP | {"name": "n" * 1000}]},
    "groups: no list": {"groups": None},
    "groups: too many": {"groups": [GROUP | {"name": f"n{n}"} for n in range(20_001)]},
    "groups: the same twice": {"groups": [GROUP, GROUP]},
    "groups[0].taints": {"groups": [GROUP | {"taints": [{"key": "k"}] * 501}]},
    "pools[0].most": {"pools": [GROUP | {"most": 2**70}]},
    "runtime": {"runtime": 7},
    "datasets": {"datasets": ["d"] * 10_001},
}


async def sync(agent: FakeAgent, **fields: Any) -> dict[str, Any]:
    """Send a sync with these fields and return its answer; the dispatcher must take it."""
    agent.number += 1
    body = {"session": agent.session, "holder": agent.holder, "number": agent.number, **fields}
    answer = await agent.http.post(
        "/agent/v1/sync", content=to_json(body), headers={"Authorization": f"Bearer {agent.key}"}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def shown(service: Service, cluster: str = "private") -> dict[str, Any]:
    answer = await service.http.get(f"/v1/clusters/{cluster}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_capacity_report_that_cannot_be_read_closes_its_cluster_alone(service: Service) -> None:
    evil, good = service.agent(), service.agent("edge", session="session-2")
    await good.connect(cpu=64)
    series = 'trainmaster_agent_parts_refused_total{cluster="private",part="capacity"}'
    for what, fields in UNUSABLE.items():
        path, before = what.partition(":")[0], value_of(Process.API, series)
        answer = await sync(evil, capacity=REPORT | fields)
        assert [(one["part"], one["code"]) for one in answer["refused"]] == [("capacity", "invalid-spec")], what
        assert path in answer["refused"][0]["message"]
        cluster = await shown(service)
        assert cluster["state"] == "closed", what
        assert path in cluster["closed"]
        assert value_of(Process.API, series) == before + 1
        job = await service.submit()
        await good.sync()  # its lease must not end while the machine is busy
        assert (await good.next_start())["job"] == job, what


async def test_of_very_many_bad_reports_the_first_hundred_are_answered_and_logged(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    agent = service.agent()
    await agent.connect()
    series = 'trainmaster_agent_parts_refused_total{cluster="private",part="run"}'
    before = value_of(Process.API, series)
    caplog.clear()
    answer = await sync(agent, runs=[{}] * 50_000, padding="x" * 300_000)
    assert len(answer["refused"]) == 101
    assert answer["refused"][-1]["message"] == "and 49900 more reports have mistakes"
    assert value_of(Process.API, series) == before + 50_000
    assert len([one for one in caplog.records if "mistake" in one.getMessage()]) <= 101
    assert len(orjson.dumps(answer)) < 50_000
    job = await service.submit()
    assert (await agent.next_start())["job"] == job


async def test_bodies_beyond_their_bounds_are_refused_as_a_whole(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    headers = {"Authorization": f"Bearer {agent.key}"}
    named = {"session": agent.session, "holder": agent.holder, "number": 9}
    cases: tuple[tuple[str, dict[str, Any], int, str], ...] = (
        ("sync", {"runs": [{}] * 200_000}, 422, "runs: has 200000 entries, at most 100000 are allowed"),
        ("streams/x", {"chunks": [{}] * 100_000}, 422, "chunks: has 100000 entries, at most 20000 are allowed"),
        ("sync", {"other": [{}] * 1_200_000}, 413, "the body has more than 1000000 values, the most that it may have"),
        ("streams/x", {"chunks": [{}] * 20_000}, 422, "chunks[0].role: is missing; it is needed"),
    )
    for path, fields, status, message in cases:
        answer = await agent.http.post(f"/agent/v1/{path}", content=orjson.dumps(named | fields), headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (status, message)
    broken = await agent.http.post("/agent/v1/sync", content=b"[" * 100, headers=headers)
    assert broken.status_code == 422
    assert "is not JSON" in broken.json()["detail"]


async def test_why_tells_of_the_unreadable_report_and_a_good_one_opens_the_cluster(service: Service) -> None:
    agent = service.agent()
    await sync(agent, capacity=REPORT | {"startSeconds": inf})
    job = await service.submit()

    async def tells() -> bool:
        return "startSeconds" in (await service.http.get(f"/v1/jobs/{job}/why")).text

    await eventually(tells)
    await sync(agent, capacity=REPORT)
    assert (await shown(service))["state"] == "ready"
    assert (await agent.next_start())["job"] == job


async def test_what_a_cluster_had_is_still_shown_when_a_later_report_cannot_be_read(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=3)
    await sync(agent, capacity=REPORT | {"startSeconds": inf})
    cluster = await shown(service)
    assert (cluster["state"], cluster["capacity"]["cpu"]) == ("closed", "3")


async def test_a_stored_report_that_cannot_be_read_closes_its_cluster_alone(service: Service) -> None:
    """Such reports were stored before infinite numbers were refused."""
    evil, good = service.agent(), service.agent("edge", session="session-2")
    await evil.connect()
    await good.connect()
    for broken in ('{"startSeconds": null}', '{"groups": 7}', '{"groups": [{"name": "a", "count": -5, "free": {}}]}'):
        await execute(
            service.stores,
            "UPDATE capacity SET report = report || CAST(:broken AS jsonb)"
            " WHERE cluster_id = (SELECT id FROM clusters WHERE name = 'private')",
            broken=broken,
        )
        # Makes the scheduler read all clusters anew, as a new one would.
        assert (await service.http.put("/v1/queues/other", json={"path": "other"})).status_code in (200, 201)
        job = await service.submit()
        await good.sync()
        assert (await good.next_start())["job"] == job
        cluster = await shown(service)
        assert cluster["state"] == "closed"
        assert "restart its agent" in cluster["closed"]
        assert (await service.http.get("/v1/queues")).status_code == 200
        assert (await service.http.get("/v1/queues?usage=true")).status_code == 200
    pinned = await service.submit("waits", placement={"clusters": ["private"]})

    async def tells() -> bool:
        return "closed until this is fixed" in (await service.http.get(f"/v1/jobs/{pinned}/why")).text

    await eventually(tells)
    for call in ("cordon", "uncordon", "drain"):
        assert (await service.http.post(f"/v1/clusters/private/{call}", json={})).status_code == 200
    await age_contact(service.stores, "private", 60)
    assert (await service.http.delete("/v1/clusters/private?force=true")).status_code == 204
    assert (await service.http.get("/v1/clusters/private")).status_code == 404


async def test_one_bad_report_of_a_run_leaves_the_others_alone(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=8)
    jobs = [await service.submit(f"job{n}") for n in range(3)]
    runs = {(start := await agent.next_start())["job"]: start["run"] for _ in jobs}
    good = {"generation": 1, "seq": 1, "state": "running"}
    answer = await sync(
        agent,
        runs=[
            good | {"run": runs[jobs[0]]},
            good | {"run": runs[jobs[1]], "seq": 2**31},
            {"run": "r" * 1000},
            7,
            good | {"run": runs[jobs[2]]},
        ],
    )
    assert [one["part"] for one in answer["refused"]] == [runs[jobs[1]], "r" * 253, "(a run without a name)"]
    states = [(await service.job(job))["state"] for job in jobs]
    assert states == ["running", "dispatched", "running"]


EXCESS: dict[str, dict[str, Any]] = {
    "members": {"members": [{"role": "main", "index": 0, "state": "running"}] * 10_001},
    "placement": {"placement": {"node": {"main": 10**20}}},
    "sizes": {"sizes": {"main": -1}},
    "end": {"end": {"category": "exit", "exitCode": 2**40}},
    "endedSecondsAgo": {"endedSecondsAgo": inf},
}


@pytest.mark.parametrize("field", EXCESS)
async def test_a_report_is_taken_without_its_fields_that_cannot_be_read(world: World, field: str) -> None:
    agent = world.service.agent()
    report = {"run": world.names["run"], "generation": 1, "seq": 5, "state": "failed", "message": "it broke"}
    answer = await sync(agent, runs=[report | EXCESS[field]])
    assert [(one["part"], one["leftOut"]) for one in answer["refused"]] == [(world.names["run"], [field])]
    assert answer["settled"] == [world.names["run"]]
    job = await world.service.job(world.names["running"])
    assert (job["state"], job["message"]) == ("failed", "it broke")


async def test_long_sentences_are_cut(world: World) -> None:
    agent = world.service.agent()
    long = "a" * 100_000
    report = {"run": world.names["run"], "generation": 1, "seq": 5, "state": "failed", "message": long}
    answer = await sync(agent, runs=[report], capacity=REPORT | {"closed": long, "notCounted": ["n"] * 2000})
    assert answer["refused"] == []
    message = await value(world.service.stores, "SELECT result->>'message' FROM runs WHERE result IS NOT NULL")
    assert message == "a" * 4096
    stored = await value(
        world.service.stores,
        "SELECT report FROM capacity WHERE cluster_id = (SELECT id FROM clusters WHERE name = 'private')",
    )
    assert (len(stored["closed"]), len(stored["notCounted"])) == (4096, 1000)


async def test_runs_whose_reports_cannot_be_read_are_not_missing_from_a_full_list(world: World) -> None:
    """A run that a full list lacks is lost and starts again; one that is in it, however badly, is not."""
    agent, run = world.service.agent(), world.names["run"]

    async def is_missing() -> bool:
        return "no longer holds it" in (await world.service.job(world.names["running"])).get("message", "")

    held = {"run": run, "generation": 1, "seq": 3, "state": "running"}
    for strange in ({"run": run, "state": "x"}, held | {"seq": inf}, held | {"state": "cancelled", "absence": "x"}):
        await sync(agent, full=True, runs=[strange])
        assert not await is_missing()
    # Whose report this is, nobody can say, so no run counts as missing.
    await sync(agent, full=True, runs=[{"run": 7}])
    assert not await is_missing()
    assert (await world.service.job(world.names["running"]))["state"] == "running"
    await sync(agent, full=True, runs=[])
    assert await is_missing()


async def test_pushes_of_output_are_bounded(world: World) -> None:
    agent, run = world.service.agent(), world.names["run"]
    chunk = {"role": "main", "index": 0, "offset": 0, "data": "x", "nextOffset": 1}
    for wrong in (
        {"data": "x" * (2**20 + 1)},
        {"offset": -1},
        {"nextOffset": 2**63},
        {"index": 2**31},
        {"role": "r" * 300},
    ):
        body = {"session": agent.session, "chunks": [chunk | wrong]}
        answer = await agent.http.post(
            f"/agent/v1/streams/{run}", content=orjson.dumps(body), headers={"Authorization": f"Bearer {agent.key}"}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), wrong
    body = {"session": agent.session, "chunks": [chunk] * 20_001}
    answer = await agent.http.post(
        f"/agent/v1/streams/{run}", content=orjson.dumps(body), headers={"Authorization": f"Bearer {agent.key}"}
    )
    assert answer.status_code == 422
    assert RunState((await world.service.job(world.names["running"]))["state"]) is RunState.RUNNING
