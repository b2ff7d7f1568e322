"""What was really done, as a workload for simulations."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import FakeAgent, Service
from trainmaster.protocol.documents import Document
from trainmaster.protocol.states import RunState
from trainmaster.protocol.workload import Workload
from trainmaster_dispatcher.services import workload_export
from trainmaster_dispatcher.whatif.installation import documents_of, fleet_of
from trainmaster_dispatcher.whatif.trace import read_history


async def ran(service: Service, agent: FakeAgent, **fields: Any) -> None:
    await service.submit(**fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await agent.report(run, RunState.SUCCEEDED, 3)


async def pages(service: Service, **query: Any) -> list[Workload]:
    out: list[Workload] = []
    begin = query.pop("begin", datetime.now(UTC) - timedelta(hours=1)).isoformat()
    while True:
        cursor = {} if not out or out[-1].next is None else {"cursor": out[-1].next}
        answer = await service.http.get("/v1/workload", params={"begin": begin, **query, **cursor})
        assert answer.status_code == 200, answer.text
        out.append(Workload.model_validate(answer.json()))
        if out[-1].next is None:
            return out


async def test_jobs_that_have_run_are_told_with_their_specifications_and_times(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=8)
    await ran(service, agent, name="first", cpu="2", timeLimit="1h", labels={"team": "a"})
    await ran(service, agent, name="second", priority=3)
    await service.submit("never", cpu="100")
    (page,) = await pages(service)
    second, first = page.jobs
    assert (second.priority, second.queue, page.specs[first.spec]["name"]) == (3, "default", "first")
    assert 0 <= first.run < 10
    trace = read_history("history", [page])
    assert [job.spec.name for job in trace.jobs] == ["first", "second"]
    assert trace.jobs[0].submit == 0.0
    assert trace.jobs[0].spec.time_limit == "1h"
    assert trace.jobs[0].spec.labels["team"] == "a"
    assert trace.jobs[0].spec.labels["sim.trainmaster.dev/run-time"] == "forever"
    assert all(job.waited is not None and job.waited >= 0 for job in trace.jobs)
    assert read_history("history", [page], "none").jobs[0].spec.time_limit is None


async def test_it_comes_page_by_page_and_ends_where_it_was_asked_to(service: Service, monkeypatch: Any) -> None:
    agent = service.agent()
    await agent.connect(cpu=8)
    for number in range(5):
        await ran(service, agent, name=f"j{number}")
    monkeypatch.setattr(workload_export, "PAGE", 2)
    found = await pages(service)
    assert [len(page.jobs) for page in found if page.jobs] == [2, 2, 1]
    assert len({job.job for page in found for job in page.jobs}) == 5
    none = await pages(service, begin=datetime.now(UTC) + timedelta(hours=1))
    assert [page.jobs for page in none] == [()]


async def test_the_installation_as_it_is_makes_a_fleet_and_declarations(service: Service) -> None:
    await service.agent().connect(cpu=8, nodes=3)
    shown = (await service.http.get("/v1/clusters")).json()["clusters"]
    fleet = fleet_of(shown)
    assert [(one.name, one.groups[0].count, one.groups[0].resources["cpu"]) for one in fleet.clusters] == [
        ("private", 3, "8")
    ]

    queues = (await service.http.get("/v1/queues")).json()["queues"]
    documents = documents_of({"Queue": queues, "Cluster": shown})
    assert {one.kind for one in documents} == {"Queue", "Cluster"}
    assert Document({**documents[0].value}, documents[0].place).value["path"] == "default"
