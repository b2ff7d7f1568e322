"""Elastic jobs through the dispatcher: what an agent receives as a run grows and shrinks, and what becomes of its answers."""

from typing import Any

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import rows
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup, RunReport
from trainmaster.protocol.states import RunState


async def connected(service: Service, cpu: int = 8) -> FakeAgent:
    """Connect an agent that can resize runs, with ``cpu`` nodes of one CPU in one group, and return it."""
    agent = service.agent()
    group = NodeGroup(name="node", count=cpu, free={"cpu": 1000})
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang", "resize"))
    answer = await agent.sync(capacity=report)
    assert answer.status_code == 200, answer.text
    if answer.json()["sendFull"]:
        await agent.sync(full=True)
    return agent


def elastic(most: int = 8, least: int = 2, **fields: Any) -> dict[str, Any]:
    spec = job("elastic", replicas=most, elastic={"step": 3, "coolDown": "1s"}, **fields)
    spec["roles"][0]["minReplicas"] = least
    return spec


async def ordered(agent: FakeAgent, kind: str) -> dict[str, Any]:
    """Wait for the next instruction of a kind, and return it."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        answer = await agent.desired(0.5)
        agent.starts += answer["start"]
        found.extend(answer[kind])
        return bool(found)

    await eventually(look)
    return found[0]


def at(run: str, size: int, seq: int, generation: int, *, placed: int | None = None, resized: bool = True) -> RunReport:
    """Return the report of a running run of ``size`` members, of which ``placed`` have a place, by default all."""
    return RunReport(
        run=run,
        generation=generation,
        seq=seq,
        state=RunState.RUNNING,
        placement={"node": {"main": size if placed is None else placed}},
        sizes={"main": size} if resized else None,
    )


async def grown(service: Service, agent: FakeAgent) -> tuple[str, str]:
    """Let a run grow from 2 to 5 members; return the ids of its job and of the run."""
    answer = await service.http.post("/v1/jobs", json=elastic())
    job_id = answer.json()["id"]
    start = await agent.next_start()
    assert (start["sizes"], start["generation"]) == ({"main": 2}, 1)
    run = str(start["run"])
    await agent.sync(at(run, 2, 2, 1, resized=False))
    growth = await ordered(agent, "resize")
    assert (growth["run"], growth["generation"], growth["sizes"]) == (run, 2, {"main": 5})
    assert growth["pins"] == {"node": {"main": 5}}
    assert growth["graceSeconds"] == 10
    await agent.sync(at(run, 5, 3, 2))
    return job_id, run


async def sizes_of(service: Service) -> list[tuple[Any, Any, Any]]:
    found = await rows(
        service.stores, "SELECT sizes, holding, coalesce(placement, assumed) AS placed FROM runs ORDER BY job_id"
    )
    return [(row.sizes, row.holding, row.placed) for row in found]


async def test_a_run_starts_small_and_grows_by_steps_while_nobody_waits(service: Service) -> None:
    agent = await connected(service)
    job_id, run = await grown(service, agent)
    growth = await ordered(agent, "resize")
    assert (growth["generation"], growth["sizes"]) == (3, {"main": 8})
    await agent.sync(at(run, 8, 4, 3))
    assert await sizes_of(service) == [({"main": 8}, None, {"node": {"main": 8}})]
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    told_of = [(event["kind"], event["message"]) for event in events if event["kind"] == "resize"]
    assert told_of == [
        ("resize", "to 5 main: it grows: no job waits for this capacity"),
        ("resize", "to 8 main: it grows: no job waits for this capacity"),
    ]


async def test_it_gives_its_surplus_to_a_job_that_waits(service: Service) -> None:
    agent = await connected(service)
    job_id, run = await grown(service, agent)
    other = await service.submit("other", cpu="1", replicas=4)
    shrink = await ordered(agent, "resize")
    assert (shrink["generation"], shrink["sizes"]) == (3, {"main": 2})
    assert [start["job"] for start in agent.starts] == [other], "it waits there until they have gone"
    assert (await sizes_of(service))[0] == ({"main": 2}, {"main": 5}, {"node": {"main": 5}})
    await agent.sync(at(run, 2, 4, 3, placed=5))
    assert (await sizes_of(service))[0][1] == {"main": 5}, "they have not left yet"
    await agent.sync(at(run, 2, 5, 3))
    assert (await sizes_of(service))[0] == ({"main": 2}, None, {"node": {"main": 2}})
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [event["kind"] for event in events if "resize" in event["kind"]] == ["resize", "resize", "run.resized"]
    assert events[-1]["message"] == "members now: 2 main"


async def test_members_that_find_no_room_are_not_counted_on(service: Service) -> None:
    agent = await connected(service)
    answer = await service.http.post("/v1/jobs", json=elastic())
    run = str((await agent.next_start())["run"])
    await agent.sync(at(run, 2, 2, 1, resized=False))
    await ordered(agent, "resize")
    await agent.sync(at(run, 2, 3, 2))
    assert await sizes_of(service) == [({"main": 2}, None, {"node": {"main": 2}})]
    again = await ordered(agent, "resize")
    assert (again["generation"], again["sizes"]) == (3, {"main": 5}), "it is tried again after the cool-down"
    assert answer.status_code == 201


async def test_what_an_agent_says_before_it_has_heard_of_a_growth_does_not_undo_it(service: Service) -> None:
    agent = await connected(service)
    await service.http.post("/v1/jobs", json=elastic())
    run = str((await agent.next_start())["run"])
    await agent.sync(at(run, 2, 2, 1, resized=False))
    await ordered(agent, "resize")
    await agent.sync(at(run, 2, 3, 1, resized=False))
    assert await sizes_of(service) == [({"main": 5}, None, {"node": {"main": 5}})]


async def test_an_agent_that_has_forgotten_what_it_was_told_is_told_again(service: Service) -> None:
    agent = await connected(service)
    _, run = await grown(service, agent)
    agent.version = 0
    again = await ordered(agent, "resize")
    assert (again["run"], again["generation"], again["sizes"]) == (run, 2, {"main": 5})


async def test_a_cancel_of_a_resized_run_is_a_stop(service: Service) -> None:
    agent = await connected(service)
    job_id, run = await grown(service, agent)
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    stop = await ordered(agent, "stop")
    assert (stop["run"], stop["generation"]) == (run, 3)
    await agent.report(run, RunState.CANCELLED, 9, 3)
    await service.until(job_id, "cancelled")


async def test_a_job_that_cannot_be_resized_is_refused(service: Service) -> None:
    spec = elastic()
    del spec["roles"][0]["minReplicas"]
    answer = await service.http.post("/v1/jobs", json=spec)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert "elastic needs a role with minReplicas below replicas" in answer.json()["detail"]
