"""How far the promises of priority classes were kept: counted once for each job, and told beside what is not counted yet."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.services.usage_ledger import Accounting


async def attainment(service: Service, client: httpx.AsyncClient | None = None, **query: Any) -> list[dict[str, Any]]:
    answer = await (client or service.http).get("/v1/attainment", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows


async def start(service: Service, agent: FakeAgent, *, waited: float, **fields: Any) -> tuple[str, str]:
    """Submit a job as if that was ``waited`` seconds ago, let its members have nodes now, and return its id and that of its run."""
    job_id = await service.submit(**fields)
    run = (await agent.next_start())["run"]
    await submitted_ago(service, job_id, waited)
    await agent.report(run, RunState.RUNNING, 1, placement={"node": {"main": 1}})
    return job_id, run


async def submitted_ago(service: Service, job_id: str, seconds: float) -> None:
    moved = "UPDATE jobs SET submitted_at = now() - make_interval(secs => :seconds) WHERE id = :id"
    await execute(service.stores, moved, seconds=seconds, id=parse_job_id(job_id)[1])


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(cpu=100)
    return connected


async def test_each_job_counts_once_in_the_month_of_its_first_start(service: Service, agent: FakeAgent) -> None:
    _, on_time = await start(service, agent, waited=1700)
    _, late = await start(service, agent, waited=1900)
    _, later = await start(service, agent, waited=2400)
    (before,) = await attainment(service)
    month = datetime.now(UTC).strftime("%Y-%m-01T00:00:00.000Z")
    assert (before["since"], before["queue"], before["priorityClass"], before["promise"]) == (
        month,
        "default",
        "normal",
        "30m",
    )
    assert (before["met"], before["missed"], before["held"], before["attained"]) == (1, 2, 0, 0.333333)
    assert before["meanSecondsLate"] == pytest.approx((100 + 600) / 2, abs=5)
    assert before["mostSecondsLate"] == pytest.approx(600, abs=5)
    for run in (on_time, late, later):
        await agent.report(run, RunState.SUCCEEDED, 2)
    accounting = Accounting(service.stores.database)
    assert await accounting.run() == 3
    assert await accounting.run() == 0
    assert await attainment(service) == [before]


async def test_a_second_run_does_not_count_again(service: Service, agent: FakeAgent) -> None:
    job_id, run = await start(service, agent, waited=10, retries={"limit": 1, "backOff": "0s"})
    await agent.report(run, RunState.FAILED, 2, end=RunEnd(category=FailureCategory.EXIT, exit_code=1))
    again = (await agent.next_start())["run"]
    assert again == f"{job_id}-r2"
    await submitted_ago(service, job_id, 5000)
    await agent.report(again, RunState.RUNNING, 1, placement={"node": {"main": 1}})
    (row,) = await attainment(service)
    assert (row["met"] + row["missed"]) == 1
    await Accounting(service.stores.database).run()
    (row,) = await attainment(service)
    assert (row["met"] + row["missed"]) == 1


async def test_a_late_job_that_was_held_is_neither_met_nor_missed(service: Service, agent: FakeAgent) -> None:
    job_id = await service.submit(suspend=True)
    await submitted_ago(service, job_id, 5000)
    assert (await service.http.post(f"/v1/jobs/{job_id}/resume")).is_success
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1, placement={"node": {"main": 1}})
    (row,) = await attainment(service)
    assert (row["met"], row["missed"], row["held"], row["attained"]) == (0, 0, 1, None)


async def test_jobs_that_wait_are_told_within_the_promise_and_beyond(service: Service) -> None:
    for seconds in (10, 20, 4000):
        await submitted_ago(service, await service.submit(), seconds)
    (row,) = await attainment(service)
    assert (row["waiting"], row["overdue"], row["met"], row["missed"]) == (2, 1, 0, 0)
    assert await attainment(service, begin="2020-01-15T00:00:00Z", end="2020-03-01T00:00:00Z") == []


async def test_a_class_without_a_promise_is_left_out(service: Service, agent: FakeAgent) -> None:
    made = await service.http.put("/v1/priority-classes/endless", json={"name": "endless", "value": 0})
    assert made.is_success
    await start(service, agent, waited=10, priorityClass="endless")
    assert await attainment(service) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"begin": "2026-03-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}, "end must not be before begin"),
        ({"begin": "2010-03-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}, "at most 60 months"),
        ({"end": "9999-12-31T23:59:59Z", "begin": "9999-12-31T23:59:59Z"}, "within the years 1 to 9999"),
    ],
)
async def test_times_that_make_no_sense_are_refused(service: Service, query: dict[str, str], words: str) -> None:
    answer = await service.http.get("/v1/attainment", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter")
    assert words in answer.text
