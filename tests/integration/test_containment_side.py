"""Side jobs, the leader's answers and an api's own tasks: an error of one object ends the work on that one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import pytest

from tests.conftest import Service
from tests.integration.receiver import SECRET
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.metrics.definitions import contained_errors
from trainmaster.protocol.simulations import SimulationState
from trainmaster_dispatcher import containment
from trainmaster_dispatcher.containment import Part, isolate, run_for_ever
from trainmaster_dispatcher.domain import webhooks as rules
from trainmaster_dispatcher.scheduler import leader_api
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.services import logs, usage_ledger
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.services.usage_ledger import Accounting
from trainmaster_dispatcher.services.webhooks import DeliveryTerms, Relay
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import retention as removing
from trainmaster_dispatcher.store import usage
from trainmaster_dispatcher.store.database import StoreAwayError
from trainmaster_dispatcher.worker import tasks
from trainmaster_dispatcher.worker.async_bridge import AsyncBridge
from trainmaster_dispatcher.worker.simulation_runner import SimulationRunner

FLEET = {
    "seed": 1,
    "clusters": [{"name": "own", "groups": [{"name": "n", "count": 2, "resources": {"cpu": "4", "memory": "16Gi"}}]}],
}


class InjectedError(Exception):
    """An unexpected error."""


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)
    containment._logged.clear()


def counted(part: Part) -> float:
    return float(contained_errors.labels(part.value)._value.get())


async def cancelled_with_hook(service: Service) -> str:
    found = await service.submit(notify=[{"url": "https://8.8.8.8/", "states": ["cancelled"]}])
    await service.http.post(f"/v1/jobs/{found}/cancel")
    await service.until(found, "cancelled")
    return found


async def test_a_message_that_cannot_be_made_counts_as_an_attempt_and_others_go_out(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the whole turn before, again and again, and no message of anybody went out."""
    await cancelled_with_hook(service)
    await execute(service.stores, """UPDATE outbox SET body = '{"nothing": 1}'""")
    good = await cancelled_with_hook(service)
    post, before = AsyncMock(), counted(Part.WEBHOOK)
    tally = await Relay(service.stores.database, DeliveryTerms.of(service.settings), post).run()
    assert (tally.delivered, tally.failed) == (1, 1)
    assert good.encode() in post.call_args.args[2]
    assert counted(Part.WEBHOOK) == before + 1
    assert any(getattr(one, "part", "") == "webhook" and one.exc_info for one in caplog.records)
    (left,) = await rows(service.stores, "SELECT attempts, error FROM outbox")
    assert (left.attempts, left.error) == (1, "KeyError: 'queue'")


async def test_an_address_whose_check_fails_holds_up_no_other_message(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cancelled_with_hook(service)
    await cancelled_with_hook(service)
    real, seen = rules.AddressPolicy.read, list[str]()

    def fails(policy: Any, url: str) -> Any:
        seen.append(url)
        if len(seen) == 1:
            raise InjectedError
        return real(policy, url)

    monkeypatch.setattr(rules.AddressPolicy, "read", fails)
    tally = await Relay(service.stores.database, DeliveryTerms.of(service.settings), AsyncMock()).run()
    assert (tally.delivered, tally.failed) == (1, 1)


async def ended_runs(service: Service, many: int) -> None:
    agent = service.agent()
    await agent.connect(cpu=8)
    for _ in range(many):
        await service.submit()
    for _ in range(many):
        await agent.next_start()
    await execute(
        service.stores,
        "UPDATE runs SET state = 'succeeded', started_at = now() - interval '1 minute', placed_at = now() - interval '1 minute',"
        " ended_at = now()",
    )


@pytest.mark.parametrize("where", ["working it out", "writing it down"])
async def test_a_run_that_cannot_be_counted_keeps_no_other_from_being_counted(
    service: Service, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    await ended_runs(service, 3)
    bad = await value(service.stores, "SELECT min(job_id) FROM runs")
    if where == "working it out":
        real = usage_ledger.parts_of

        def fails(row: Any, of: Any) -> Any:
            if row.job_id == bad:
                raise InjectedError
            return real(row, of)

        monkeypatch.setattr(usage_ledger, "parts_of", fails)
    else:
        written = usage.mark_counted

        async def fails_to_write(tx: Any, runs: Any, costs: Any) -> None:
            if any(run[0] == bad for run in runs):
                raise InjectedError
            await written(tx, runs, costs)

        monkeypatch.setattr(usage, "mark_counted", fails_to_write)
    before = counted(Part.RUN)
    assert await Accounting(service.stores.database).run() == 2
    assert counted(Part.RUN) == before + 1
    assert {row.job_id for row in await rows(service.stores, "SELECT job_id FROM runs WHERE NOT counted")} == {bad}
    monkeypatch.undo()
    assert await Accounting(service.stores.database).run() == 1
    assert await Accounting(service.stores.database).run() == 0


async def test_a_step_of_retention_that_fails_keeps_no_other_from_being_done(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def fails(*_: Any) -> bool:
        raise InjectedError

    async def notes(*_: Any) -> bool:
        done.append("audit")
        return False

    fails.__name__, notes.__name__ = "remove_stray_events", "remove_audit"
    monkeypatch.setattr(removing, "remove_stray_events", fails)
    monkeypatch.setattr(removing, "remove_audit", notes)
    before = counted(Part.TASK)
    removed = await Retention(service.stores.database, service.settings).run()
    assert done == ["audit"]
    assert removed.finished
    assert counted(Part.TASK) == before + 1


async def test_a_question_that_fails_is_answered_as_an_error_and_the_next_one_is_answered() -> None:
    engine = Engine()
    app = leader_api.make_leader_api(lambda: leader_api.LeadingEngine(engine, 1000.0), "secret")
    headers, before = {"Authorization": "Bearer secret"}, counted(Part.QUESTION)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://leader", headers=headers) as http:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(leader_api, "usage_of", None)
            answer = await http.get("/usage")
            assert (answer.status_code, answer.text) == (500, "an error inside Trainmaster; its log has it")
        assert (await http.get("/usage")).status_code == 200
    assert counted(Part.QUESTION) == before + 1


async def test_a_job_of_a_dry_run_that_fails_has_no_answer_and_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(_engine: Any, _quotas: Any, question: Any, *_others: Any) -> None:
        if question.name == "bad":
            raise InjectedError

    monkeypatch.setattr(leader_api, "answer_trial", trial)
    app, before = (
        leader_api.make_leader_api(lambda: leader_api.LeadingEngine(Engine(), 1000.0), "secret"),
        counted(Part.QUESTION),
    )
    one = {"queueId": 1, "classId": 1, "priority": 0, "shape": {}}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://leader", headers={"Authorization": "Bearer secret"}
    ) as http:
        answer = await http.post("/try", json={"jobs": [{"name": "bad", **one}, {"name": "good", **one}]})
    assert answer.json() == {"trials": [None, None]}
    assert counted(Part.QUESTION) == before + 1


async def test_an_unreadable_cluster_is_listed_by_its_name_beside_the_others(service: Service) -> None:
    names = {one["name"] for one in (await service.http.get("/v1/clusters")).json()["clusters"]}
    bad = min(names)
    await execute(service.stores, """UPDATE clusters SET spec = '{"region": 5}' WHERE name = :name""", name=bad)
    found = {one["name"]: one for one in (await service.http.get("/v1/clusters")).json()["clusters"]}
    assert found.keys() == names
    assert found[bad]["closed"] == "what is declared of it cannot be read; apply it again"


async def test_a_task_that_ends_by_an_error_begins_again_and_is_counted() -> None:
    lives: list[int] = []

    async def loop() -> None:
        lives.append(1)
        if len(lives) < 3:
            raise InjectedError

    before = counted(Part.TASK)
    await asyncio.wait_for(run_for_ever("a loop", loop, pause=0.0), 10)
    assert len(lives) == 3
    assert counted(Part.TASK) == before + 2


class OneDatabase:
    """As ``AsyncBridge`` for a single task that runs here."""

    def __init__(self, service: Service) -> None:
        self.settings = service.settings

    @staticmethod
    def stopping() -> bool:
        return False


async def test_a_simulation_whose_handling_fails_keeps_no_other_from_being_carried_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"workload": {"csv": "submit,run,cpu,count\n0,1h,1,1\n"}, "fleet": FLEET, "alone": True}
    for _ in range(2):
        assert (await service.http.post("/v1/simulations", json=spec)).status_code == 202
    handled = list[int]()

    async def fails_first(runner: SimulationRunner) -> None:
        handled.append(runner._claimed.id)
        if len(handled) == 1:
            raise InjectedError
        await runner._finish(SimulationState.SUCCEEDED)

    monkeypatch.setattr(SimulationRunner, "run", fails_first)
    before = counted(Part.TASK)
    assert await tasks.simulate(service.stores.database, cast(AsyncBridge, OneDatabase(service))) == 2
    assert len(set(handled)) == 2
    assert counted(Part.TASK) == before + 1
    states = {row.id: row.state for row in await rows(service.stores, "SELECT id, state FROM simulations")}
    assert states == {handled[0]: "running", handled[1]: "succeeded"}, "the first is claimed again after a while"


EVENTS = {"Accept": "text/event-stream"}


async def test_looks_for_followers_that_fail_leave_each_to_look_by_itself(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_logged() -> bool:
        return any("could not be looked at" in one.message for one in caplog.records)

    job_id = await service.submit(cpu="64")
    async with service.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=EVENTS) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        monkeypatch.setattr(job_store, "versions", AsyncMock(side_effect=InjectedError))
        await eventually(is_logged)
        await execute(service.stores, "UPDATE jobs SET state = 'cancelled', version = version + 1, ended_at = now()")
        received = [line async for line in lines if line]
    assert received[-2:] == ["event: end", "data: cancelled"]


async def test_a_stream_that_fails_ends_alone_and_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [await service.submit(cpu="64") for _ in range(2)]
    bad = (await rows(service.stores, "SELECT min(id) AS id FROM jobs"))[0].id
    real = job_store.events_after

    async def fails(tx: Any, key: int, *rest: Any) -> Any:
        if key == bad:
            raise InjectedError
        return await real(tx, key, *rest)

    monkeypatch.setattr(job_store, "events_after", fails)
    before = counted(Part.STREAM)

    async def all_of(job_id: str) -> list[str]:
        async with service.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=EVENTS) as stream:
            return [line async for line in stream.aiter_lines() if line]

    good = asyncio.create_task(all_of(jobs[1]))
    assert await all_of(jobs[0]) == [": an error inside Trainmaster ended this stream; its log has it"]
    assert counted(Part.STREAM) == before + 1
    await service.http.post(f"/v1/jobs/{jobs[1]}/cancel")
    assert (await asyncio.wait_for(good, 30))[-1] == "data: cancelled"


async def test_output_that_cannot_be_read_ends_its_own_stream_with_a_problem(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await service.submit(cpu="64")
    before = counted(Part.STREAM)

    async def fails(*given: Any) -> AsyncIterator[Any]:
        for one in given:
            if one is given[0]:
                raise InjectedError
            yield one

    with monkeypatch.context() as patched:
        patched.setattr(logs, "read", fails)
        answer = await service.http.get(f"/v1/jobs/{job_id}/logs")
    assert [line["problem"]["code"] for line in map(json.loads, answer.text.splitlines())] == ["internal"]
    assert counted(Part.STREAM) == before + 1
    assert "problem" not in (await service.http.get(f"/v1/jobs/{job_id}/logs")).text


async def writes(bad: set[int], parts: list[list[int]]) -> Callable[[Any], Any]:
    async def write(items: Any) -> int:
        parts.append(list(items))
        if bad & set(items):
            raise InjectedError
        return len(items)

    return write


@pytest.fixture
def parts() -> list[list[int]]:
    return []


async def test_culprits_are_found_by_halves_and_all_others_are_written(parts: list[list[int]]) -> None:
    done, failed = await isolate(range(500), await writes({7, 400}, parts))
    assert sum(done) == 498
    assert [one.item for one in failed] == [7, 400]
    assert len(parts) < 45


async def test_where_nothing_at_all_can_be_written_the_first_error_is_raised_soon(parts: list[list[int]]) -> None:
    with pytest.raises(InjectedError):
        await isolate(range(500), await writes(set(range(500)), parts))
    assert len(parts) == containment.MOST_FAILURES


async def test_a_store_that_is_away_is_no_item_s_fault(parts: list[list[int]]) -> None:
    async def away(items: Any) -> None:
        parts.append(list(items))
        raise StoreAwayError("away")

    with pytest.raises(StoreAwayError):
        await isolate([1, 2], away)
    assert parts == [[1, 2]]
