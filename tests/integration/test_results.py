"""Results of jobs: from the report of a run's end to those who see the job."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import value
from tests.integration.test_authorization import make_key
from tests.integration.test_top_cli import agent_of
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_dispatcher.store import runs

FOUND = {"accuracy": 0.93, "model": "s3://models/7", "best": [3, None, {"lr": 1e-4}]}
FAILED = RunEnd(category=FailureCategory.EXIT, exit_code=3, member="main-0", message="exit code 3")


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect()
    return connected


async def results_of(service: Service, *jobs: str) -> dict[str, Any]:
    keys = {parse_job_id(job)[1]: job for job in jobs}
    async with service.stores.database.transaction() as tx:
        return {keys[key]: found for key, found in (await runs.results_of(tx, list(keys))).items()}


async def test_a_job_shows_the_results_of_its_run_and_lists_do_not(service: Service, agent: FakeAgent) -> None:
    job = await service.submit()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    assert "results" not in await service.job(job)
    await agent.report(run, RunState.SUCCEEDED, 2, results=FOUND)
    await agent.report(run, RunState.SUCCEEDED, 2, results={"late": 1})
    shown = await service.job(job)
    assert (shown["results"], shown["runs"][0]["results"]) == (FOUND, FOUND)
    assert "resultsError" not in shown
    (line,) = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert "results" not in line
    by_kubectl = await service.http.get(f"/apis/trainmaster.dev/v1/namespaces/default/runs/{run}")
    assert by_kubectl.json()["status"]["results"] == FOUND
    by_kubectl = await service.http.get(f"/apis/trainmaster.dev/v1/namespaces/default/jobs/{job}")
    assert by_kubectl.json()["status"]["results"] == FOUND
    assert await results_of(service, job) == {job: FOUND}


async def test_the_results_of_the_latest_run_that_ended_by_itself_are_those_of_the_job(
    service: Service, agent: FakeAgent
) -> None:
    job = await service.submit(retries={"limit": 1, "exitCodes": [3], "backOff": "100ms"})
    first = (await agent.next_start())["run"]
    await agent.report(first, RunState.FAILED, 1, end=FAILED, results={"step": 70})
    second = (await agent.next_start())["run"]
    await agent.report(second, RunState.RUNNING, 1)
    assert (await service.job(job))["results"] == {"step": 70}
    await agent.report(second, RunState.PREEMPTED, 2, results={"step": 80}, results_error="none")
    shown = await service.job(job)
    assert (shown["results"], "results" in shown["runs"][1]) == ({"step": 70}, False), "a preempted run has none"
    assert await results_of(service, job) == {job: {"step": 70}}
    third = (await agent.next_start())["run"]
    error = "the results of main-0 have more than 4096 bytes"
    await agent.report(third, RunState.SUCCEEDED, 1, results_error=error)
    shown = await service.job(job)
    assert (shown["state"], shown["resultsError"], "results" in shown) == ("succeeded", error, False)
    assert (shown["runs"][0]["results"], shown["runs"][2]["resultsError"]) == ({"step": 70}, error)
    assert await results_of(service, job) == {}


async def test_an_older_agent_sends_none_and_nothing_is_stored(service: Service, agent: FakeAgent) -> None:
    job = await service.submit()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.SUCCEEDED, 1)
    assert not {"results", "resultsError"} & (await service.job(job)).keys()
    assert await value(service.stores, "SELECT results IS NULL AND results_error IS NULL FROM runs")
    assert await results_of(service, job) == await results_of(service) == {}


async def test_who_may_see_the_job_sees_them_and_the_owner_of_its_cluster_does_not(
    service: Service, agent: FakeAgent
) -> None:
    job = await service.submit()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.SUCCEEDED, 1, results={"secret": 1}, results_error="x")
    seen = {}
    rights_of = {"user": {"queues": ["default"]}, "owner": {"clusters": ["private"]}}
    for role, rights in rights_of.items():
        async with service.as_key(await make_key(service, role, **rights)) as http:
            seen[role] = (await http.get(f"/v1/jobs/{job}")).json()
    assert seen["user"]["results"] == seen["user"]["runs"][0]["results"] == {"secret": 1}
    assert "secret" not in str(seen["owner"])
    assert not {"results", "resultsError"} & (seen["owner"].keys() | seen["owner"]["runs"][0].keys())


async def test_a_real_agent_reports_what_the_first_member_has_left(service: Service, tmp_path: Path) -> None:
    nodes = [{"name": "cpu", "count": 2, "resources": {"cpu": "4", "memory": "8Gi"}}]
    runtime = SimulatedRuntime(FleetCluster.model_validate({"name": "private", "groups": nodes}), state_dir=tmp_path)
    async with agent_of(service, runtime, "private"):
        jobs = []
        for text in ('{"accuracy": 0.5}', "accuracy 0.5"):
            template = {"command": ["x"], "env": {"SIM_RUN_TIME": "0s", "SIM_RESULTS": text}, "resources": {"cpu": "1"}}
            jobs.append(await service.submit(roles=[{"name": "main", "replicas": 2, "template": template}]))
        good, bad = [await service.until(job, "succeeded", seconds=30) for job in jobs]
    assert good["results"] == {"accuracy": 0.5}
    assert bad["resultsError"].startswith("the results of main-0 are not a JSON object: ")
