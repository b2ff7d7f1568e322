"""Consolidation with real reports: a job returned for want of room in one piece gets it by a move inside a group of equal nodes."""

import asyncio
from typing import Any

from tests.conftest import Service
from tests.integration.test_simulated_fleet import LABEL, running
from tests.waiting import eventually
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.agent import MemberReport
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.store import scheduling

_FLEET = Fleet.model_validate(
    {
        "key": "tmk_{name}",
        "clusters": [{"name": "private", "groups": [{"name": "cpu", "count": 2, "resources": {"cpu": "8"}}]}],
    }
)
"""One cluster with two equal nodes of 8 CPUs."""


async def declare(service: Service, url: str, **body: Any) -> None:
    answer = await service.http.put(url, json=body)
    assert answer.is_success, answer.text


async def in_pieces(service: Service) -> list[str]:
    """Let a run of 4 CPUs be left on each of the two nodes; return their jobs."""
    stays, goes = {LABEL + "run-time": "10m"}, {LABEL + "run-time": "2s"}
    jobs = []
    for labels in (stays, goes, stays, goes):
        jobs.append(await service.submit(cpu="4", labels=labels))
        await service.until(jobs[-1], "running", seconds=20)
    for job in jobs[1::2]:
        await service.until(job, "succeeded", seconds=20)
    return jobs[0::2]


async def nodes_of(service: Service, job: str) -> set[tuple[str, str]]:
    (run,) = [run for run in (await service.job(job))["runs"] if run["state"] == "running"]
    return {(one["node"], one["group"]) for one in run["members"]}


async def test_a_run_is_moved_beside_another_one_on_an_equal_node(service: Service) -> None:
    await declare(service, "/v1/clusters/private", kind="Cluster", name="private", placementTimeout="2s")
    await declare(service, "/v1/queues/default", kind="Queue", path="default", consolidation={"after": "1s"})
    async with running(service, _FLEET):
        left = await in_pieces(service)
        before = [await nodes_of(service, job) for job in left]
        assert len(set.union(*before)) == 2, (
            "the two runs are on different nodes, and the report tells the group of each"
        )
        whole = await service.submit(cpu="8", labels={LABEL + "run-time": "10m"})
        await service.until(whole, "running", seconds=40)
        states = [await service.until(job, "running", seconds=40) for job in left]
        (moved,) = [job for job, state in zip(left, states, strict=True) if state["attempt"] == 2]
        assert len({(await nodes_of(service, job)).pop() for job in left}) == 1, "both are on one node now"
        runs = [run["state"] for run in (await service.job(whole))["runs"]]
        assert runs == ["returned", "running"], "by groups it had fitted at once"
        events = (await service.http.get(f"/v1/jobs/{moved}/events")).json()["events"]
        (why,) = [event["message"] for event in events if event["kind"] == "preempt"]
        assert why == f"moved to other room on private, for {whole}, which fits only in one piece"


async def test_nothing_is_moved_where_the_queue_does_not_allow_it(service: Service) -> None:
    await declare(service, "/v1/clusters/private", kind="Cluster", name="private", placementTimeout="1s")
    async with running(service, _FLEET):
        left = await in_pieces(service)
        whole = await service.submit(cpu="8")

        async def is_returned() -> bool:
            return [run["state"] for run in (await service.job(whole))["runs"]][:1] == ["returned"]

        await eventually(is_returned, 20)
        await asyncio.sleep(2)
        assert [(await service.job(job))["attempt"] for job in left] == [1, 1]
        assert (await service.job(whole))["state"] == "queued"


async def test_nodes_are_read_as_reported_and_of_an_earlier_agent_where_they_are_certain(service: Service) -> None:
    """Its members have no node groups: all are in the same one, if its runs have members in one alone."""
    agent = service.agent()
    await agent.connect(cpu=8)
    placements: list[dict[str, dict[str, int]]] = [
        {"g": {"main": 2}},
        {"g": {"main": 1}, "h": {"main": 1}},
        {"g": {"main": 1}, "h": {"main": 1}},
    ]
    expected = []
    for number, placement in enumerate(placements):
        job = await service.submit(cpu="1", name=f"j{number}")
        run = (await agent.next_start())["run"]
        groups = ("g", "h") if number == 2 else ("", "")
        members = [
            MemberReport(role="main", index=index, state="running", node=f"n{index}", group=groups[index])
            for index in range(2)
        ]
        await agent.report(run, RunState.RUNNING, 1, placement=placement, members=tuple(members))
        await service.until(job, "running")
        expected.append(parse_job_id(job)[1])
    async with service.stores.database.transaction() as tx:
        (cluster,) = [row.id for row in await scheduling.clusters(tx) if row.name == "private"]
        found = [tuple(row) for row in await scheduling.member_nodes(tx, cluster)]
    first, _, third = expected
    assert found == [
        (first, 1, "g", "n0", "main", 1),
        (first, 1, "g", "n1", "main", 1),
        (third, 1, "g", "n0", "main", 1),
        (third, 1, "h", "n1", "main", 1),
    ]
