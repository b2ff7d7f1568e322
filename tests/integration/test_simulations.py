"""Simulations in the background: asked for by the API, carried out by a real worker, told as they come, and ended at any moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute, value
from tests.waiting import eventually
from trainmaster.client.async_http import AsyncClient
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.simulations import (
    Installation,
    SimulationOrder,
    SimulationSpec,
    SimulationState,
    SimulationView,
)
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.cli.embedded import free_port, redis_command, wait_for_port
from trainmaster_dispatcher.services import simulations as service_of
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.store import simulations as store
from trainmaster_dispatcher.worker import simulation_runner

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
Worker = Callable[[], "subprocess.Popen[bytes]"]

NODE = {"cpu": "4", "memory": "16Gi"}
FLEET = {
    "seed": 1,
    "clusters": [
        {"name": "own", "groups": [{"name": "n", "count": 2, "resources": NODE}]},
        {"name": "rented", "kind": "public", "groups": [{"name": "n", "count": 4, "resources": NODE}]},
    ],
}
DECLARED: list[dict[str, Any]] = [
    {"kind": "Queue", "path": "work", "allowedKinds": ["private", "public"]},
    {"kind": "PriceBook", "name": "prices", "onDemand": {"cpu": 1}},
    {"kind": "Cluster", "name": "rented", "clusterKind": "public", "priceBook": "prices"},
    {
        "kind": "BurstPolicy",
        "name": "overflow",
        "queues": ["work"],
        "when": {"after": "10m"},
        "budget": {"day": 1000},
        "timeLimit": "2h",
    },
]
CSV = "submit,run,cpu,count\n0,1h,4,6\n600,30m,4,4\n"
SPEC: dict[str, Any] = {
    "title": "What a burst would cost",
    "workload": {"csv": CSV, "name": "jobs.csv"},
    "fleet": FLEET,
    "documents": DECLARED,
    "alone": True,
    "sweep": {"field": "burst.after", "values": ["none", "0s", "10m"]},
}
ENDLESS = {**SPEC, "sweep": None, "workload": {"csv": "submit,run,cpu,count\n" + "0,1h,1,1\n" * 30_000}}
"""Takes longer than any of these tests."""


@pytest.fixture
def worker(database_url: str, tmp_path: Path) -> Iterator[Worker]:
    """Starts a worker; the first time with a beat and a Redis of this test's own."""
    children: list[subprocess.Popen[bytes]] = []
    port = free_port()
    stores = {"DATABASE_URL": database_url, "REDIS_URL": f"redis://127.0.0.1:{port}/0"}

    def begin(name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (tmp_path / f"{name}.log").open("ab") as log:
            children.append(subprocess.Popen(command, env=os.environ | stores, stdout=log, stderr=log))
        return children[-1]

    def start() -> "subprocess.Popen[bytes]":
        if not children:
            wait_for_port(port, begin("redis", redis_command(port)), 60, "Redis")
            begin("beat", [*PROGRAM, "beat"])
        return begin("worker", [*PROGRAM, "worker"])

    yield start
    for child in children:
        child.kill()
        child.wait()


async def request_simulation(service: Service, spec: dict[str, Any]) -> int:
    answer = await service.http.post("/v1/simulations", json=spec)
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] == "queued"
    return int(answer.json()["id"])


async def shown(service: Service, simulation: int) -> SimulationView:
    answer = await service.http.get(f"/v1/simulations/{simulation}")
    assert answer.status_code == 200, answer.text
    return SimulationView.model_validate(answer.json())


async def until(service: Service, simulation: int, *states: SimulationState, seconds: float = 60) -> SimulationView:
    async def look() -> bool:
        return (await shown(service, simulation)).state in states

    await eventually(look, seconds)
    return await shown(service, simulation)


async def at_work(service: Service, simulation: int) -> None:
    """Wait until the process of a simulation reports progress."""

    async def look() -> bool:
        return (await shown(service, simulation)).progress.jobs > 0

    await eventually(look, 60)


def processes(of: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Return the processes of simulations that a worker has started."""
    found = []
    for child in psutil.Process(of.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie is none either
            found += [child] if "trainmaster_dispatcher.worker.simulation_process" in child.cmdline() else []
    return found


async def test_it_is_carried_out_and_compares_policies(service: Service, worker: Worker) -> None:
    worker()
    simulation = await request_simulation(service, SPEC)
    found = await until(service, simulation, SimulationState.SUCCEEDED, SimulationState.FAILED)
    assert (found.state, found.message, found.title) == (SimulationState.SUCCEEDED, "", "What a burst would cost")
    assert found.started_at is not None
    assert found.ended_at is not None
    assert found.created_at <= found.started_at <= found.ended_at
    assert found.result is not None
    none, at_once, later = found.result["cases"]
    assert [case["name"] for case in found.result["cases"]] == [
        f"burst.after={value}" for value in ("none", "0s", "10m")
    ]
    assert [case["ends"] for case in found.result["cases"]] == [{"succeeded": 10}] * 3
    # A node takes one job, and a rented one costs four an hour: four jobs go there for an hour each; of those that come after ten
    # minutes, which find all nodes taken until the hour is over, two go there for half an hour each.
    assert none["bursts"] == {"overflow": 0}
    assert none["cost"] == 0
    assert at_once["bursts"] == {"overflow": 6}
    assert at_once["waits"]["meanSeconds"] < later["waits"]["meanSeconds"] < none["waits"]["meanSeconds"]
    assert at_once["waits"]["meanSeconds"] == pytest.approx(4 * 3000 / 10, abs=1)
    assert at_once["cost"] == pytest.approx(4 * 4 + 2 * 2, abs=0.1)
    assert found.spec is not None
    assert "csv" not in found.spec["workload"], "texts of workloads are not sent back"


async def test_cases_have_their_documents_on_top_of_all_else(service: Service, worker: Worker) -> None:
    worker()
    paused = {**DECLARED[3], "paused": True}
    cases = [{"name": "as it is"}, {"name": "without", "documents": [paused]}]
    simulation = await request_simulation(service, {**SPEC, "sweep": None, "cases": cases})
    found = await until(service, simulation, SimulationState.SUCCEEDED, SimulationState.FAILED)
    assert found.result is not None, found.message
    bursts = [(case["name"], case["bursts"]) for case in found.result["cases"]]
    assert bursts == [("as it is", {"overflow": 6}), ("without", {"overflow": 0})]


async def test_the_report_is_a_page_that_runs_nothing(service: Service, worker: Worker) -> None:
    simulation = await request_simulation(service, {**SPEC, "title": "<script>alert(1)</script>"})
    early = await service.http.get(f"/v1/simulations/{simulation}/report")
    assert (early.status_code, early.json()["type"].rpartition("#")[2]) == (409, "wrong-state")
    worker()
    await until(service, simulation, SimulationState.SUCCEEDED)
    page = await service.http.get(f"/v1/simulations/{simulation}/report")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<svg" in page.text
    assert "<script" not in page.text


async def test_what_was_really_done_is_simulated_on_what_is_there(service: Service, worker: Worker) -> None:
    agent: FakeAgent = service.agent()
    await agent.connect(cpu=8)
    for name in ("first", "second"):
        await service.submit(name, cpu="2")
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
        await agent.report(run, RunState.SUCCEEDED, 3)
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    simulation = await request_simulation(service, {"workload": {"history": {"since": since}}})
    worker()
    found = await until(service, simulation, SimulationState.SUCCEEDED, SimulationState.FAILED)
    assert found.result is not None, found.message
    (case,) = found.result["cases"]
    assert case["ends"] == {"succeeded": 2}
    assert [one["name"] for one in case["clusters"]] == ["private"]
    assert found.result["whatWas"]["jobs"] == 2


async def test_edited_quotas_are_compared_with_the_present_ones(service: Service, worker: Worker) -> None:
    agent = service.agent()
    await agent.connect(cpu=8)
    for path in ("team", "team/a", "team/b"):
        answer = await service.http.put(f"/v1/queues/{path}", json={"kind": "Queue", "path": path})
        assert answer.status_code == 201, answer.text
    for queue in ("team/a", "team/a", "team/b"):
        await service.submit("job", queue, cpu="2")
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
        await agent.report(run, RunState.SUCCEEDED, 3)
    edited = {"path": "team/a", "resources": {"cpu": {"limit": "1"}}}
    answer = await service.http.post("/v1/queues/team/a/what-if", json={"queues": [edited]})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/simulations/{answer.json()['id']}"
    worker()
    found = await until(service, answer.json()["id"], SimulationState.SUCCEEDED, SimulationState.FAILED)
    assert found.result is not None, found.message
    assert found.title == "what-if of team/a"
    present, other = found.result["cases"]
    assert (present["name"], other["name"]) == ("present", "edited")
    assert {path: (one["started"], one["unplaced"]) for path, one in present["queues"].items()} == {
        "team/a": (2, 0),
        "team/b": (1, 0),
    }
    assert {path: (one["started"], one["unplaced"]) for path, one in other["queues"].items()} == {
        "team/a": (0, 2),
        "team/b": (1, 0),
    }
    queue = next(one for one in (await service.http.get("/v1/queues")).json()["queues"] if one["path"] == "team/a")
    assert queue["resources"] == {}, "nothing has changed"


WHAT_IF_BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a queue that does not exist": ("teams", {"queues": [{"path": "teams"}]}, 404, "there is no queue 'teams'"),
    "a queue elsewhere": ("team/a", {"queues": [{"path": "team/b"}]}, 422, "team/b is neither team/a nor below it"),
    "a queue above": ("team/a", {"queues": [{"path": "team"}]}, 422, "team is neither team/a nor below it"),
    "no queue": ("team", {"queues": []}, 422, "queues"),
    "a queue twice": ("team", {"queues": [{"path": "team/a"}] * 2}, 422, "the same path"),
    "times the wrong way round": (
        "team",
        {"queues": [{"path": "team"}], "since": "2037-01-01T00:00:00Z"},
        422,
        "since has to be earlier than until, and than now",
    ),
    "a queue without one above": ("team", {"queues": [{"path": "team/x/y"}]}, 422, "team/x"),
    "no clusters": ("team", {"queues": [{"path": "team"}]}, 422, "no cluster has reported any nodes"),
}


@pytest.mark.parametrize("case", WHAT_IF_BAD)
async def test_what_ifs_that_make_no_sense_are_refused(service: Service, case: str) -> None:
    path, body, status, said = WHAT_IF_BAD[case]
    if case != "no clusters":
        await service.agent().connect(cpu=8)
    for queue in ("team", "team/a", "team/b"):
        await service.http.put(f"/v1/queues/{queue}", json={"kind": "Queue", "path": queue})
    answer = await service.http.post(f"/v1/queues/{path}/what-if", json=body)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    assert await value(service.stores, "SELECT count(*) FROM simulations") == 0


async def test_a_what_if_of_too_many_jobs_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_of, "MOST_WHAT_IF_JOBS", 2)
    await service.agent().connect(cpu=8)
    for _ in range(3):
        await service.submit(cpu="100")
    answer = await service.http.post("/v1/queues/default/what-if", json={"queues": [{"path": "default"}]})
    assert answer.status_code == 422
    assert "3 jobs were submitted in this time, at most 2 are replayed" in answer.json()["detail"]


async def test_without_any_history_it_fails_with_the_reason(service: Service, worker: Worker) -> None:
    await service.agent().connect(cpu=8)
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    simulation = await request_simulation(service, {"workload": {"history": {"since": since}}})
    worker()
    found = await until(service, simulation, SimulationState.FAILED)
    assert found.message == "history has no job that ran and ended"
    assert found.result is None


async def test_one_that_runs_is_cancelled_and_its_process_is_gone(service: Service, worker: Worker) -> None:
    started = worker()
    simulation = await request_simulation(service, ENDLESS)
    await at_work(service, simulation)
    assert len(processes(started)) == 1
    refused = await service.http.delete(f"/v1/simulations/{simulation}")
    assert (refused.status_code, "cancel it first" in refused.text) == (409, True)
    answer = await service.http.post(f"/v1/simulations/{simulation}/cancel")
    assert answer.json()["state"] == "cancelled"

    async def is_gone() -> bool:
        return not processes(started)

    await eventually(is_gone, 20)
    again = await service.http.post(f"/v1/simulations/{simulation}/cancel")
    assert (again.status_code, "it has ended already" in again.text) == (409, True)
    # Its worker goes on with others.
    other = await request_simulation(service, SPEC)
    await until(service, other, SimulationState.SUCCEEDED)
    assert (await service.http.delete(f"/v1/simulations/{simulation}")).status_code == 204
    assert (await service.http.get(f"/v1/simulations/{simulation}")).status_code == 404


async def test_a_worker_that_stops_gives_it_back_to_the_next(service: Service, worker: Worker) -> None:
    first = worker()
    simulation = await request_simulation(service, ENDLESS)
    await at_work(service, simulation)
    first.send_signal(signal.SIGTERM)
    await until(service, simulation, SimulationState.QUEUED, seconds=30)
    assert first.wait(30) == 0
    assert await value(service.stores, "SELECT attempts FROM simulations") == 0, "it was not the simulation's fault"
    worker()
    await at_work(service, simulation)


async def test_one_whose_worker_was_killed_is_taken_over_and_not_for_ever(service: Service, worker: Worker) -> None:
    first = worker()
    simulation = await request_simulation(service, ENDLESS)
    await at_work(service, simulation)
    (apart,) = processes(first)
    first.kill()
    first.wait()

    async def has_ended() -> bool:
        return not apart.is_running()

    await eventually(has_ended, 20)  # nobody is there to whom it could tell anything
    assert (await shown(service, simulation)).state is SimulationState.RUNNING
    await execute(service.stores, "UPDATE simulations SET claimed_until = now() - interval '1 s', attempts = 3")
    worker()
    found = await until(service, simulation, SimulationState.FAILED)
    assert found.message.startswith("its worker ended 3 times while it ran")


async def test_a_process_that_dies_is_told(service: Service, worker: Worker) -> None:
    started = worker()
    simulation = await request_simulation(service, ENDLESS)
    await at_work(service, simulation)
    (apart,) = processes(started)
    apart.kill()
    found = await until(service, simulation, SimulationState.FAILED)
    assert found.message == "its process ended with code -9: out of memory, or ended by hand"


async def test_a_store_that_is_away_for_a_moment_ends_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = await request_simulation(service, SPEC)
    async with service.stores.database.transaction() as tx:
        claimed = await store.claim(tx, 30)
    assert claimed is not None
    failures = iter([True, True])
    renew = store.renew

    async def sometimes(*words: Any) -> bool:
        if next(failures, False):
            raise ProblemError(Code.STORE_AWAY, "Postgres does not answer")
        return await renew(*words)

    monkeypatch.setattr(store, "renew", sometimes)
    monkeypatch.setattr(simulation_runner, "_RENEW_SECONDS", 0.05)
    await simulation_runner.SimulationRunner(service.stores.database, claimed, "EUR", lambda: False).run()
    assert next(failures, None) is None, "it was away twice"
    assert (await shown(service, simulation)).state is SimulationState.SUCCEEDED


def test_its_process_ends_as_it_should_and_tells_nothing_else() -> None:
    command = [sys.executable, "-m", "trainmaster_dispatcher.worker.simulation_process"]
    spec = SimulationSpec.model_validate({**SPEC, "sweep": None})
    order = SimulationOrder(spec=spec, installation=Installation()).model_dump_json(by_alias=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(order.encode() + b"\n")
        process.stdin.flush()
        assert b'"result"' in process.stdout.read()
        assert (process.wait(10), process.stderr.read()) == (0, b"")


async def test_who_was_slow_writes_nothing_any_more(service: Service) -> None:
    simulation = await request_simulation(service, SPEC)
    async with service.stores.database.transaction() as tx:
        slow = await store.claim(tx, -1)
    async with service.stores.database.transaction() as tx:
        quick = await store.claim(tx, 30)
        assert slow is not None
        assert quick is not None
        assert (slow.id, slow.token, quick.token) == (simulation, 1, 2)
        assert await store.claim(tx, 30) is None, "one at a time"
        assert not await store.renew(tx, simulation, slow.token, {}, 30)
        await store.finish(tx, simulation, slow.token, SimulationState.FAILED, "late")
        await store.give_back(tx, simulation, slow.token)
        assert await store.renew(tx, simulation, quick.token, {"case": 1}, 30)
    assert (await shown(service, simulation)).progress.case == 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no workload": ({**SPEC, "workload": {}}, "give exactly one of history, swf and csv"),
    "two workloads": ({**SPEC, "workload": {"csv": CSV, "swf": ""}}, "give exactly one of history, swf and csv"),
    "a mistake in the workload": ({**SPEC, "workload": {"csv": "submit,run\n0,soon\n"}}, "'soon' is neither"),
    "nothing in the workload": ({**SPEC, "workload": {"csv": "submit,run\n"}}, "csv has no job that ran"),
    "more jobs than there may be": (
        {**SPEC, "workload": {"csv": "submit,run,count\n0,1,100000000000\n"}},
        "1,000,000 jobs at most",
    ),
    "a moment that is none": ({**SPEC, "workload": {"csv": "submit,run\n1e999,1\n"}}, "is neither a number of seconds"),
    "processors without end": (
        {**SPEC, "workload": {"swf": "1 0 0 9 inf 0 0 4 -1 -1 1 1 1 1 1 1 1 1\n"}},
        "swf: line 1",
    ),
    "too many processors": (
        {**SPEC, "workload": {"swf": "1 0 0 9 99999 0 0 4 -1 -1 1 1 1 1 1 1 1 1\n"}},
        "swf: line 1",
    ),
    "a number that is none": (
        {**SPEC, "workload": {"swf": "nan 0 0 9 4 0 0 4 -1 -1 1 1 1 1 1 1 1 1\n"}},
        "swf: line 1",
    ),
    "a field without end": ({**SPEC, "workload": {"csv": "submit,run\n0," + "1" * 140_000 + "\n"}}, "csv: line"),
    "more nodes than there may be": (
        {
            **SPEC,
            "fleet": {
                "clusters": [
                    {"name": "a", "groups": [{"name": n, "count": 100_000, "resources": NODE} for n in ("x", "y")]}
                ]
            },
        },
        "fleet: 200,000 nodes; a simulation in the background has 100,000 at most",
    ),
    "turns that take no time": (
        {
            **SPEC,
            "fleet": {
                "clusters": [
                    {
                        "name": "a",
                        "groups": [
                            {
                                "name": "n",
                                "count": 1,
                                "resources": NODE,
                                "foreign": [{"resources": NODE, "every": "0s"}],
                            }
                        ],
                    }
                ]
            },
        },
        "a turn takes longer than nothing",
    ),
    "a mistake in the fleet": ({**SPEC, "fleet": {"clusters": []}}, "fleet.clusters"),
    "a mistake in a document": ({**SPEC, "documents": [{"kind": "Queue"}]}, "documents[0]: path"),
    "a document of no kind": ({**SPEC, "documents": [{"kind": "Pod"}]}, "not 'Pod'"),
    "a queue that is not there": ({**SPEC, "documents": DECLARED[1:]}, "there is no queue 'work'"),
    "a mistake in a case": (
        {**SPEC, "sweep": None, "cases": [{"name": "a", "documents": [{"kind": "Queue"}]}]},
        "cases[0].documents[0]: path",
    ),
    "cases and a sweep": ({**SPEC, "cases": [{"name": "a"}]}, "give cases or sweep, not both"),
    "two cases of a name": (
        {**SPEC, "sweep": None, "cases": [{"name": "a"}, {"name": "a"}]},
        "two cases have the same name",
    ),
    "a field that is none": (
        {**SPEC, "sweep": {"field": "burst.x", "values": ["1"]}},
        "burst.x=1: this field is not known",
    ),
    "a field of nothing": ({**SPEC, "sweep": {"field": "after", "values": ["1"]}}, "sweep.field"),
    "no policy to sweep over": (
        {**SPEC, "documents": DECLARED[:3]},
        "burst.after is a field of burst policies, and there is no burst policy",
    ),
    "no clusters": ({"workload": {"csv": CSV}}, "no cluster has reported any nodes"),
    "times the wrong way round": (
        {"workload": {"history": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}}},
        "until has to be later than since",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_mistakes_are_told_at_once_and_change_nothing(service: Service, what: str) -> None:
    spec, said = BAD[what]
    answer = await service.http.post("/v1/simulations", json=spec)
    assert answer.status_code == 422, answer.text
    assert said in answer.text
    assert await value(service.stores, "SELECT count(*) FROM simulations") == 0


async def test_an_order_that_is_repeated_is_taken_once(service: Service) -> None:
    head = {"Idempotency-Key": "once"}
    first, second = [await service.http.post("/v1/simulations", json=SPEC, headers=head) for _ in range(2)]
    assert first.json()["id"] == second.json()["id"]


async def test_not_more_are_queued_than_can_be_done(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_of, "MOST_OPEN", 1)
    await request_simulation(service, SPEC)
    refused = await service.http.post("/v1/simulations", json=SPEC)
    assert (refused.status_code, refused.json()["type"].rpartition("#")[2]) == (503, "too-busy")


async def test_they_are_listed_by_pages_and_forgotten_when_old(service: Service) -> None:
    async with AsyncClient(service.url, "tmk_admin") as client:
        ids = [(await client.simulate(SimulationSpec.model_validate(SPEC))).id for _ in range(3)]
        assert [one.id async for one in client.simulations(page_size=2)] == ids[::-1]
        for one in ids[:2]:
            await client.cancel_simulation(one)
        await execute(
            service.stores, "UPDATE simulations SET ended_at = now() - interval '31 d' WHERE id = :id", id=ids[0]
        )
        await Retention(service.stores.database, service.settings).run()
        assert [one.id async for one in client.simulations()] == ids[:0:-1]
