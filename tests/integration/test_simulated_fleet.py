"""A whole simulated fleet against a real dispatcher: agents, sessions and keys of many clusters in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.rows import value
from tests.waiting import eventually
from trainmaster.client.pool import AgentPool
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster_agent.runtime.simulated.fleet import NoKeyError, read_key, run_fleet
from trainmaster_dispatcher.services.bootstrap import make_local_installation

LABEL = "sim.trainmaster.dev/"


def fleet_of(names: list[str], **fields: Any) -> Fleet:
    group = {"name": "cpu", "count": 5, "resources": {"cpu": "8", "memory": "32Gi"}, "topology": {"zone": 2}}
    return Fleet.model_validate(
        {"key": "tmk_{name}", "clusters": [{"name": name, "groups": [group], **fields} for name in names]}
    )


@asynccontextmanager
async def running(service: Service, fleet: Fleet, state_dir: Path | None = None) -> AsyncIterator[asyncio.Task[Any]]:
    """Provide the agents of a fleet, until the block ends."""
    pool, stop = AgentPool(service.url), asyncio.Event()
    keys = {cluster.name: read_key(fleet, cluster, Path()) for cluster in fleet.clusters}
    task = asyncio.create_task(
        run_fleet(fleet, lambda cluster: pool.client(keys[cluster.name]), stop, state_dir=state_dir, stagger=0.2)
    )
    try:
        yield task
    finally:
        stop.set()
        await task


async def until_counted(service: Service, queue: str, **states: int) -> None:
    """Wait until the queue has as many jobs in each state as ``states`` says."""

    async def look() -> bool:
        answer = await service.http.get("/v1/jobs", params={"queue": queue, "limit": 1000})
        assert answer.status_code == 200, answer.text
        found = [one["state"] for one in answer.json()["jobs"]]
        return all(found.count(state) == count for state, count in states.items())

    await eventually(look, 60)


async def test_twenty_clusters_run_some_hundred_tiny_jobs_to_their_ends(service: Service) -> None:
    fleet = fleet_of([f"sim-{number:02}" for number in range(20)], speed=10.0)
    await make_local_installation(
        service.settings,
        [ClusterSpec(name=cluster.name) for cluster in fleet.clusters],
        {cluster.name: f"tmk_{cluster.name}" for cluster in fleet.clusters},
        [],
    )
    assert (await service.http.put("/v1/queues/sim", json={"kind": "Queue", "path": "sim"})).is_success
    tiny = {LABEL + "run-time": "100ms-2s"}
    bad = {LABEL + "run-time": "100ms", LABEL + "exit-code": "3"}
    once = {LABEL + "run-time": "100ms", LABEL + "fail-runs": "1"}
    jobs = [
        *(job("tiny", "sim", cpu="1", labels=tiny) for _ in range(300)),
        *(job("gang", "sim", cpu="4", replicas=4, labels=tiny) for _ in range(20)),
        *(job("bad", "sim", labels=bad) for _ in range(10)),
        *(job("flaky", "sim", labels=once, retries={"limit": 1, "backOff": "100ms"}) for _ in range(10)),
    ]
    async with running(service, fleet):
        answer = await service.http.post("/v1/jobs", json={"jobs": jobs})
        assert answer.status_code == 201, answer.text
        await until_counted(service, "sim", succeeded=330, failed=10)
        shown = (await service.http.get("/v1/jobs", params={"queue": "sim", "name": "bad", "limit": 1})).json()["jobs"]
        run = (await service.job(shown[0]["id"]))["runs"][0]
        assert (run["category"], run["exitCode"]) == ("exit", 3)


async def test_one_superseded_cluster_does_not_end_the_others(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_reported() -> bool:
        return "the agent of cluster private ends" in caplog.text

    async with running(service, fleet_of(["private", "public"])) as agents:
        first = await service.submit(placement={"clusters": ["private"]}, labels={LABEL + "run-time": "10ms"})
        await service.until(first, "succeeded")
        names = (
            "SELECT t.holder FROM cluster_contacts t JOIN clusters c ON c.id = t.cluster_id WHERE c.name = 'private'"
        )
        holder = await value(service.stores, names)
        await service.agent("private", session="newer", holder=holder).connect()
        await eventually(is_reported)
        second = await service.submit(placement={"clusters": ["public"]}, labels={LABEL + "run-time": "10ms"})
        await service.until(second, "succeeded", seconds=20)
        assert not agents.done()
    assert await agents == ["private"]


async def test_records_on_disk_carry_runs_over_a_restart(service: Service, tmp_path: Path) -> None:
    fleet = fleet_of(["private"])
    async with running(service, fleet, tmp_path):
        job_id = await service.submit(labels={LABEL + "run-time": "3s"})
        await service.until(job_id, "running")
    async with running(service, fleet, tmp_path):
        done = await service.until(job_id, "succeeded", seconds=20)
    assert done["attempt"] == 1


def test_keys_are_found_by_cluster_by_pattern_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fleet(of_fleet: dict[str, str], of_cluster: dict[str, str]) -> Fleet:
        group = {"name": "cpu", "count": 1, "resources": {"cpu": "1"}}
        return Fleet.model_validate({**of_fleet, "clusters": [{"name": "north-1", "groups": [group], **of_cluster}]})

    def key(of_fleet: dict[str, str], of_cluster: dict[str, str], fallback: str = "") -> str:
        made = fleet(of_fleet, of_cluster)
        return read_key(made, made.clusters[0], tmp_path, fallback)

    (tmp_path / "north-1.key").write_text("from-file\n")
    monkeypatch.setenv("KEY_OF_NORTH_1", "from-env")
    assert key({"key": "k-{name}"}, {}) == "k-north-1"
    assert key({"key": "k-{name}"}, {"key": "own"}) == "own"
    assert key({"keyFile": "{name}.key"}, {}) == "from-file"
    assert key({}, {"keyFile": "north-1.key"}) == "from-file"
    assert key({"keyEnv": "KEY_OF_{name}"}, {}) == "from-env"
    assert key({}, {"key": " own\r"}) == "own"
    with pytest.raises(NoKeyError, match="cluster north-1: this is no API key: its character 2 of 3 is a line break"):
        key({}, {"key": "o\nn"})
    assert key({}, {}, "fallback") == "fallback"
    for of_fleet in ({}, {"keyFile": "no-such"}, {"keyEnv": "NO_SUCH_VARIABLE"}):
        with pytest.raises(NoKeyError, match="north-1"):
            key(of_fleet, {})


async def test_an_elastic_job_fills_a_cluster_and_makes_room_for_others(service: Service) -> None:
    """On 40 CPUs: from 4 members to 40, back for a gang of 30, and up again when that has ended."""

    async def has(size: int) -> bool:
        runs = (await service.job(grower))["runs"]
        placed = [sum(roles.values()) for roles in runs[0]["placement"].values()]
        return bool(sum(placed) == size)

    async with running(service, fleet_of(["private"])):
        spec = job("grows", replicas=40, elastic={"step": 9, "coolDown": "200ms"}, labels={LABEL + "run-time": "1h"})
        spec["roles"][0]["minReplicas"] = 4
        grower = (await service.http.post("/v1/jobs", json=spec)).json()["id"]
        await service.until(grower, "running")
        await eventually(lambda: has(40), 30)
        gang = await service.submit("gang", replicas=30, labels={LABEL + "run-time": "2s"})
        await service.until(gang, "running", seconds=20)
        assert await has(4)
        await service.until(gang, "succeeded", seconds=20)
        await eventually(lambda: has(40), 30)
        assert (await service.job(grower))["attempt"] == 1, "its run went on all the while"
        await service.http.post(f"/v1/jobs/{grower}/cancel")
        await service.until(grower, "cancelled")
