"""What runs used beside what they requested, and suggestions for recurring jobs, on a real Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute
from tests.integration.test_top import GIB, job_of, report, running, use
from trainmaster.protocol.states import RunState


async def efficiency(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/efficiency", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ran(service: Service, agent: FakeAgent, name: str, cpu: int, memory: int, **fields: Any) -> str:
    """Let a job run that requests 2 cores and 4Gi: an hour with this use."""
    columns, state = fields.pop("columns", {}), fields.pop("state", RunState.SUCCEEDED)
    end = {"end": fields.pop("end")} if "end" in fields else {}
    run = await running(service, agent, name, **fields)
    await report(agent, use(run, cpu, memory, **columns))
    await execute(
        service.stores,
        "UPDATE run_use SET cpu_measured = 3600, cpu_seconds = CAST(:used AS float8) * 3.6, cpu_requested = 7200"
        " WHERE cpu_measured < 3600",
        used=cpu,
    )
    await agent.report(run, state, 3, **end)
    return run


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=64)
    return agent


async def test_a_queue_shows_what_its_runs_requested_and_used(service: Service, agent: FakeAgent) -> None:
    for number, (cpu, memory) in enumerate(((500, GIB), (1500, 2 * GIB))):
        await ran(service, agent, f"train-{number}", cpu, memory)
    found = await efficiency(service.http)
    assert found["rows"] == [
        {
            "of": "default",
            "runs": 2,
            "coreHoursRequested": 4.0,
            "coreHoursUsed": 2.0,
            "cpuPercent": 50.0,
            "gpuHoursHeld": 0.0,
            "gpuHoursBusy": 0.0,
            "memoryP95Percent": 50.0,
            "memoryPeakPercent": 50.0,
            "oomKills": 0,
        }
    ]
    assert (found["suggestions"], found["tooFewRuns"]) == ([], 1)


async def test_the_runs_are_summed_by_user_cluster_and_job(service: Service, agent: FakeAgent) -> None:
    small, large = await ran(service, agent, "a", 100, GIB), await ran(service, agent, "b", 1900, GIB)
    for by, names in (("user", ["admin"]), ("cluster", ["private"]), ("job", [job_of(small), job_of(large)])):
        assert [row["of"] for row in (await efficiency(service.http, by=by))["rows"]] == names
    assert len((await efficiency(service.http, by="job", limit=1))["rows"]) == 1


async def test_a_recurring_job_gets_a_suggestion_from_three_runs_on(service: Service, agent: FakeAgent) -> None:
    for number in range(2):
        await ran(service, agent, f"nightly-{number}", 300, GIB // 2)
    assert (await efficiency(service.http))["suggestions"] == []
    await ran(service, agent, "nightly-2", 500, GIB)
    cpu, memory = sorted((await efficiency(service.http))["suggestions"], key=lambda one: str(one["resource"]))
    assert (cpu["job"], cpu["queue"], cpu["user"], cpu["runs"], cpu["role"]) == (
        "nightly",
        "default",
        "admin",
        3,
        "main",
    )
    assert (cpu["requested"], cpu["suggested"], cpu["observed"]) == ("2", "0.6", "0.5")
    assert cpu["hoursSaved"] == pytest.approx(3 * 1.4)
    assert (memory["requested"], memory["suggested"], memory["observed"]) == ("4Gi", "1.25Gi", "1Gi")
    assert memory["hoursSaved"] == pytest.approx(3 * 2.75)
    assert "from 3 runs" in memory["sentence"]
    assert "saved" not in memory, "the cluster has no price book"


async def test_a_suggestion_says_what_it_would_have_saved(service: Service, agent: FakeAgent) -> None:
    book = {"name": "own", "onDemand": {"cpu": "0.10"}}
    assert (await service.http.put("/v1/price-books/own", json=book)).is_success
    assert (await service.http.put("/v1/clusters/private", json={"name": "private", "priceBook": "own"})).is_success
    for number in range(3):
        await ran(service, agent, f"nightly-{number}", 500, GIB)
    found = {one["resource"]: one for one in (await efficiency(service.http))["suggestions"]}
    assert float(found["cpu"]["saved"]) == pytest.approx(3 * 1.4 * 0.10)
    assert "saved" not in found["memory"], "the book has no price for memory"


async def test_runs_that_were_short_of_memory_get_no_smaller_request(service: Service, agent: FakeAgent) -> None:
    for number in range(3):
        await ran(service, agent, f"tight-{number}", 1900, GIB, columns={"oomKills": [1]})
    found = await efficiency(service.http)
    assert found["suggestions"] == []
    assert found["rows"][0]["oomKills"] == 3


async def test_runs_that_ended_for_lack_of_memory_get_no_smaller_request(service: Service, agent: FakeAgent) -> None:
    """Their last sample was before that: the member may have taken all its memory since."""
    end = {"category": "oom", "member": "main-0", "message": "main-0 was killed"}
    for number in range(3):
        run = await ran(service, agent, f"tight-{number}", 1900, GIB, state=RunState.FAILED, end=end)
    found = await efficiency(service.http)
    assert (await service.job(job_of(run)))["state"] == "failed"
    assert found["suggestions"] == []
    assert found["rows"][0]["oomKills"] == 3


async def test_jobs_with_several_roles_get_no_suggestion(service: Service, agent: FakeAgent) -> None:
    template = {"command": ["true"], "resources": {"cpu": "1", "memory": "2Gi"}}
    for number in range(3):
        roles = [{"name": name, "replicas": 1, "template": template} for name in ("main", "side")]
        await service.submit(f"two-{number}", roles=roles)
        run = str((await agent.next_start())["run"])
        await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1, "side": 1}})
        await report(agent, use(run, 10, GIB // 8))
        await execute(service.stores, "UPDATE run_use SET cpu_measured = 3600, cpu_requested = 7200")
    found = await efficiency(service.http)
    assert (found["rows"][0]["runs"], found["suggestions"]) == (3, [])


async def test_runs_outside_of_the_time_are_left_out(service: Service, agent: FakeAgent) -> None:
    await ran(service, agent, "old", 500, GIB)
    await execute(service.stores, "UPDATE run_use SET sampled_at = sampled_at - interval '40 days'")
    assert (await efficiency(service.http))["rows"] == []
    begin = (datetime.now(UTC) - timedelta(days=50)).isoformat()
    assert len((await efficiency(service.http, begin=begin))["rows"]) == 1


@pytest.mark.parametrize(
    "query",
    [
        {"begin": "2037-01-02T00:00:00Z", "end": "2037-01-01T00:00:00Z"},
        {"begin": "2030-01-01T00:00:00Z", "end": "2037-01-01T00:00:00Z"},
        {"by": "planet"},
        {"begin": "yesterday"},
    ],
)
async def test_a_wrong_time_or_group_is_refused(service: Service, query: dict[str, str]) -> None:
    refused = await service.http.get("/v1/efficiency", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameter")


async def test_users_see_their_queues_alone(service: Service, agent: FakeAgent) -> None:
    for path in ("ours", "theirs"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    made = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["ours"]})
    ann = service.as_key(made.json()["key"])
    for queue in ("ours", "theirs"):
        for number in range(3):
            await ran(service, agent, f"{queue}-{number}", 100, GIB, queue=queue)
    found = await efficiency(ann)
    assert [row["of"] for row in found["rows"]] == ["ours"]
    assert {one["queue"] for one in found["suggestions"]} == {"ours"}
    assert (await ann.get("/v1/efficiency", params={"queue": "theirs"})).json()["code"] == "unknown-queue"
    await ann.aclose()
