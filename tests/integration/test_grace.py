"""Who stops a run leaves its members so much time and no more, whatever was stored; a stop that is under way can be made shorter."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute
from trainmaster.protocol.states import RunState


async def running(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, str]:
    job = await service.submit("stubborn", **fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    return job, run


async def stops(agent: FakeAgent) -> list[tuple[int, str, float, float]]:
    return [
        (one["generation"], one["cause"], one["graceSeconds"], one.get("checkpointSeconds", 0.0))
        for one in (await agent.desired())["stop"]
    ]


async def cancel(service: Service, job: str, grace: str | None = None) -> dict[str, Any]:
    answer = await service.http.post(f"/v1/jobs/{job}/cancel", json=None if grace is None else {"grace": grace})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_cancel_may_leave_less_time_and_a_later_one_still_less(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job, _ = await running(service, agent, stopGrace="10m")
    await cancel(service, job)
    assert await stops(agent) == [(2, "cancel", 600, 0)]
    assert not (await cancel(service, job))["changed"]
    assert (await cancel(service, job, "30s"))["changed"]
    assert await stops(agent) == [(3, "cancel", 30, 0)]
    await cancel(service, job, "5s")
    assert await stops(agent) == [(4, "cancel", 5, 0)]
    await cancel(service, job, "10m")
    assert [grace for _, _, grace, _ in await stops(agent)] == [5]


async def test_a_cancel_with_less_time_ends_a_suspend_that_is_under_way(service: Service) -> None:
    agent = service.agent()
    await agent.connect(capabilities=("gang", "checkpoint"))
    job, run = await running(service, agent, stopGrace="5m", checkpoint={"wait": "10m"})
    assert (await service.http.post(f"/v1/jobs/{job}/suspend")).status_code == 200
    assert await stops(agent) == [(2, "suspend", 300, 600)]
    await cancel(service, job, "0s")
    assert await stops(agent) == [(3, "cancel", 0, 0)]
    await agent.report(run, RunState.CANCELLED, 2, generation=3)
    assert (await service.job(job))["state"] == "cancelled"


async def test_many_are_cancelled_with_less_time(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    await running(service, agent, stopGrace="10m")
    answer = await service.http.post("/v1/jobs/cancel", json={"filter": {"queue": "default"}, "grace": "7s"})
    assert (answer.status_code, answer.json()["changed"]) == (200, 1)
    assert await stops(agent) == [(2, "cancel", 7, 0)]
    refused = await service.http.post("/v1/jobs/suspend", json={"filter": {"queue": "default"}, "grace": "7s"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-spec")


@pytest.mark.parametrize("grace", ["11m", "-1s", "soon", "1" * 60_000])
async def test_a_grace_that_is_none_is_refused_and_nothing_stops(service: Service, grace: str) -> None:
    agent = service.agent()
    await agent.connect()
    job, _ = await running(service, agent)
    answer = await service.http.post(f"/v1/jobs/{job}/cancel", json={"grace": grace})
    assert (answer.status_code, answer.json()["mistakes"][0]["path"]) == (422, "grace")
    assert await stops(agent) == []


async def test_what_was_stored_with_a_longer_grace_is_stopped_within_the_longest_there_is(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job, _ = await running(service, agent)
    await execute(service.stores, """UPDATE job_specs SET spec = spec || '{"stopGrace": "3650d"}'""")
    answer = await service.http.post("/v1/clusters/private/drain", json={})
    assert answer.json()["stopped"] == 1
    assert await stops(agent) == [(2, "preempt", 600, 0)]
    assert (await service.job(job))["state"] == "running"


async def test_a_queue_may_allow_less(service: Service) -> None:
    answer = await service.http.put("/v1/queues/team", json={"path": "team", "mostStopGrace": "1m"})
    assert answer.status_code == 201, answer.text
    assert (await service.http.put("/v1/queues/team/a", json={"path": "team/a"})).status_code == 201
    await service.submit("short", "team/a", stopGrace="60s")
    specification = {"name": "long", "queue": "team/a", "roles": [{"name": "main", "template": {"command": ["x"]}}]}
    refused = await service.http.post("/v1/jobs", json=specification | {"stopGrace": "61s"})
    assert (refused.status_code, refused.json()["mistakes"][0]["path"]) == (422, "stopGrace")
    assert "at most 1m in queue 'team'" in refused.json()["detail"]
