"""Runs that end for others: told to their agent with the start, applied together or not at all, and queued again by themselves."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import rows
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.scheduling.state.plan import Eviction
from trainmaster_dispatcher.services import apply_plan


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=4)
    for name, value in (("low", 1), ("high", 9)):
        answer = await service.http.put(f"/v1/priority-classes/{name}", json={"name": name, "value": value})
        assert answer.is_success, answer.text
    return agent


async def running(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, str]:
    """Submit a job and let the agent run it; return the ids of the job and of its run."""
    job = await service.submit(**fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await service.until(job, "running")
    return job, run


async def reason_of(service: Service, job: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job}/why")
    assert answer.is_success, answer.text
    return dict(answer.json())


async def next_stop(agent: FakeAgent) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        await agent.sync()
        answer = await agent.desired(0.5)
        agent.starts.extend(answer["start"])
        found.extend(answer["stop"])
        return bool(found)

    await eventually(look)
    return found[0]


async def test_a_lower_class_gives_way_and_is_queued_again_with_its_age(service: Service, agent: FakeAgent) -> None:
    low, run = await running(service, agent, cpu="4", priorityClass="low")
    submitted = (await service.job(low))["submittedAt"]
    high = await service.submit(name="urgent", cpu="4", priorityClass="high")
    stop = await next_stop(agent)
    assert (stop["run"], stop["cause"]) == (run, "preempt")
    started = await agent.next_start()
    assert started["job"] == high, "the taker is sent at once; its cluster starts it when the room is free"
    why = f"preempted for {high}, whose class high is higher"
    assert (await reason_of(service, low))["sentence"] == f"It runs on private; it is being stopped: {why}."
    await agent.report(run, RunState.PREEMPTED, 2, generation=stop["generation"])
    again = await service.until(low, "queued")
    assert again["submittedAt"] == submitted
    waits = await reason_of(service, low)
    assert waits["sentence"].endswith(f" Its last run: {why}.")
    assert waits["details"]["lastRun"] == why
    events = (await service.http.get(f"/v1/jobs/{low}/events")).json()["events"]
    event = next(event for event in events if event["kind"] == "preempt")
    assert (event["actor"], event["message"]) == ("scheduler", why)
    await agent.report(started["run"], RunState.RUNNING, 1)
    await agent.report(started["run"], RunState.SUCCEEDED, 2)
    assert (await agent.next_start())["run"] == f"{low}-r2"
    assert "waitedFor" not in (await reason_of(service, high))["details"], "it was sent in the first cycle that saw it"


async def test_what_a_job_waited_for_is_told_when_it_has_ended(service: Service, agent: FakeAgent) -> None:
    first, run = await running(service, agent, cpu="4")
    second = await service.submit(cpu="2")

    async def is_explained() -> bool:
        return bool((await reason_of(service, second))["token"] == "InsufficientCapacity")

    await eventually(is_explained)
    said = (await reason_of(service, second))["sentence"]
    await agent.report(run, RunState.SUCCEEDED, 2)
    later = (await agent.next_start())["run"]
    await agent.report(later, RunState.RUNNING, 1)
    await agent.report(later, RunState.SUCCEEDED, 2)
    await service.until(second, "succeeded")
    waited = (await reason_of(service, second))["details"]["waitedFor"]
    assert waited["token"] == "InsufficientCapacity"
    assert said.startswith(f"{waited['sentence']} From "), (
        "what would have been kept for it later is of no interest any more"
    )
    assert (await reason_of(service, first)).get("details", {}) == {}


async def test_a_queue_takes_back_what_is_guaranteed_to_it(service: Service, agent: FakeAgent) -> None:
    await service.http.put("/v1/queues/owed", json={"path": "owed", "resources": {"cpu": {"guaranteed": 2}}})
    runs = [await running(service, agent, cpu="2") for _ in range(2)]
    mine = await service.submit(name="mine", queue="owed", cpu="2")
    stop = await next_stop(agent)
    assert stop["run"] in {run for _, run in runs}
    assert (await agent.next_start())["job"] == mine
    assert len(await rows(service.stores, "SELECT 1 FROM runs WHERE stop_cause = 'preempt'")) == 1


async def test_a_start_whose_victim_has_ended_meanwhile_is_decided_anew(
    service: Service, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at the victims says that they cannot end; nothing of the exchange may be stored then."""
    looks: list[Eviction] = []
    real = apply_plan._may_end

    def look(one: Eviction, live: Any) -> bool:
        looks.append(one)
        return len(looks) > 1 and real(one, live)

    monkeypatch.setattr(apply_plan, "_may_end", look)
    low, _ = await running(service, agent, cpu="4", priorityClass="low")
    high = await service.submit(name="urgent", cpu="4", priorityClass="high")
    await next_stop(agent)
    assert (await agent.next_start())["job"] == high
    assert len(looks) > 1
    attempts = await rows(
        service.stores, "SELECT runs.attempt FROM runs JOIN jobs ON jobs.id = job_id WHERE name = 'urgent'"
    )
    assert [row.attempt for row in attempts] == [1], "the exchange that fell through left no run"
    assert (await service.job(low))["state"] == "running"


async def test_guarantees_beyond_what_there_is_are_a_warning(service: Service, agent: FakeAgent) -> None:
    for path, cpu in (("a", 3), ("b", 6)):
        spec = {"path": path, "resources": {"cpu": {"guaranteed": cpu}}}
        assert (await service.http.put(f"/v1/queues/{path}", json=spec)).is_success
    shown = {queue["path"]: queue for queue in (await service.http.get("/v1/queues")).json()["queues"]}
    together = "9 cpu are guaranteed to it and other queues together, the clusters have 4"
    assert shown["a"]["warnings"] == [together]
    assert shown["b"]["warnings"] == ["6 cpu are guaranteed to it, the clusters have 4", together]
    assert "warnings" not in shown["default"]


async def test_a_victim_saves_its_state_and_the_taker_waits_as_much_longer(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4, capabilities=("checkpoint", "gang"))
    for name, value in (("low", 1), ("high", 9)):
        await service.http.put(f"/v1/priority-classes/{name}", json={"name": name, "value": value})
    saving = {"checkpoint": {"signal": "SIGUSR2", "wait": "2m"}, "stopGrace": "20s"}
    _, run = await running(service, agent, cpu="4", priorityClass="low", **saving)
    await service.submit(name="urgent", cpu="4", priorityClass="high")
    stop = await next_stop(agent)
    assert (stop["run"], stop["graceSeconds"]) == (run, 20)
    assert (stop["checkpointSignal"], stop["checkpointSeconds"]) == ("SIGUSR2", 120)
    taker = await agent.next_start()
    assert taker["placementTimeoutSeconds"] == 300 + 140


async def test_a_cancel_lets_nobody_save_state(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4, capabilities=("checkpoint", "gang"))
    job, run = await running(service, agent, cpu="4", checkpoint={})
    await service.http.post(f"/v1/jobs/{job}/cancel")
    stop = await next_stop(agent)
    assert (stop["run"], stop["cause"]) == (run, "cancel")
    assert "checkpointSeconds" not in stop


async def test_what_runs_in_a_suspended_queue_waits_until_the_queue_is_open_again(
    service: Service, agent: FakeAgent
) -> None:
    job, run = await running(service, agent, cpu="4")
    queue = {"path": "default", "allowedKinds": ["private"], "state": "suspended"}
    assert (await service.http.put("/v1/queues/default", json=queue)).is_success
    stop = await next_stop(agent)
    assert (stop["run"], stop["cause"]) == (run, "preempt")
    await agent.report(run, RunState.PREEMPTED, 2, 2)
    shown = await service.until(job, "queued")
    assert shown["message"] == "queue default was suspended by an admin"

    async def waits() -> bool:
        return bool((await reason_of(service, job))["token"] == "QueueHeld")

    await eventually(waits)
    assert (await service.http.put("/v1/queues/default", json=queue | {"state": "open"})).is_success
    assert (await agent.next_start())["job"] == job
