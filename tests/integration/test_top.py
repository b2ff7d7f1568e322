"""What running jobs use: reports of agents over HTTP, the stored samples, and the answers to users, on a real Postgres."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute, rows, value
from tests.integration.test_metrics import page
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.use_history import UseChunk, samples_of
from trainmaster_dispatcher.services import gauges
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.store import member_use, retention

GIB = 2**30


async def running(
    service: Service, agent: FakeAgent, name: str = "train", queue: str = "default", **fields: Any
) -> str:
    """Submit a job with 2 cores and 4Gi for each member, let it run, and return the id of its run."""
    template = {"command": ["true"], "resources": {"cpu": "2", "memory": "4Gi"}}
    replicas = fields.pop("replicas", 1)
    roles = [{"name": "main", "replicas": replicas, "template": template}]
    await service.submit(name, queue, roles=roles, **fields)
    run = str((await agent.next_start())["run"])
    members = [
        {"role": "main", "index": index, "state": "running", "node": f"node-{index}"} for index in range(replicas)
    ]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": replicas}}, members=members)
    return run


async def report(agent: FakeAgent, *runs: dict[str, Any], expect: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"session": agent.session, "seconds": 30, "runs": list(runs), **fields}
    answer = await agent.http.post("/agent/v1/use", headers={"Authorization": f"Bearer {agent.key}"}, json=body)
    assert answer.status_code == expect, answer.text
    found: dict[str, Any] = answer.json()
    return found


def use(run: str, cpu: int, memory: int, *, members: int = 1, **columns: Any) -> dict[str, Any]:
    """Return the use of a run in which each member uses the same."""
    many = list(range(members))
    return {
        "run": run,
        "roles": [{"role": "main", "indexes": many, "cpu": [cpu] * members, "memory": [memory] * members, **columns}],
    }


async def top(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/top", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def job_of(run: str) -> str:
    return run.rsplit("-r", 1)[0]


async def age(service: Service, seconds: int) -> None:
    """Make all samples ``seconds`` older, as if that time had passed since."""
    await execute(service.stores, f"UPDATE run_use SET sampled_at = sampled_at - interval '{seconds} seconds'")


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=64)
    return agent


async def test_a_running_job_shows_what_it_uses_beside_what_it_requested(service: Service, agent: FakeAgent) -> None:
    assert (await agent.sync()).json()["takesUse"] is True
    run = await running(service, agent, replicas=2)
    before = await top(service.http)
    assert before["jobs"][0]["use"] == {
        "attempt": 1,
        "members": 0,
        "cpu": {"requested": 4.0},
        "memory": {"requested": 8.0 * GIB},
        "gpu": {},
        "measuredSeconds": 0.0,
        "cpuAverage": {},
        "gpuAverage": {},
    }
    assert before["clusters"] == [{"name": "private", "missing": ""}]
    await report(agent, use(run, 500, GIB, members=2))
    found = (await top(service.http))["jobs"][0]
    assert (found["job"], found["queue"], found["cluster"], found["user"], found["members"]) == (
        *(job_of(run), "default", "private", "admin", 2),
    )
    assert found["use"]["cpu"] == {"used": 1.0, "requested": 4.0, "percent": 25.0}
    assert found["use"]["memory"] == {"used": 2.0 * GIB, "requested": 8.0 * GIB, "percent": 25.0}
    assert found["use"]["peakMemory"] == GIB
    assert (await service.job(job_of(run)))["use"] == found["use"]


async def test_members_have_their_own_use_and_their_peaks_stay(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent, replicas=2)
    await report(
        agent,
        {"run": run, "roles": [{"role": "main", "indexes": [0, 1], "cpu": [100, None], "memory": [3 * GIB, GIB]}]},
    )
    await age(service, 30)
    await report(
        agent, {"run": run, "roles": [{"role": "main", "indexes": [0, 1], "cpu": [200, 300], "memory": [GIB, 2 * GIB]}]}
    )
    found = (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()
    assert found["members"] == [
        {"role": "main", "index": 0, "node": "node-0", "cpu": 0.2, "memory": GIB, "peakMemory": 3 * GIB},
        {"role": "main", "index": 1, "node": "node-1", "cpu": 0.3, "memory": 2 * GIB, "peakMemory": 2 * GIB},
    ]
    assert found["use"]["peakMemory"] == 3 * GIB


async def test_amounts_are_compared_with_the_requests_of_the_members_that_are_known(
    service: Service, agent: FakeAgent
) -> None:
    run = await running(service, agent, replicas=4)
    await report(agent, use(run, 2000, GIB))
    found = (await top(service.http))["jobs"][0]["use"]
    assert found["members"] == 1
    assert found["cpu"] == {"used": 2.0, "requested": 2.0, "percent": 100.0}


async def test_an_old_sample_is_unknown_and_never_zero(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await report(agent, use(run, 1000, GIB))
    await age(service, 100)
    found = (await top(service.http))["jobs"][0]["use"]
    assert found["cpu"] == {"requested": 2.0}
    assert found["memory"] == {"requested": 4.0 * GIB}
    assert "sampledAt" in found
    members = (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()["members"]
    assert members == [{"role": "main", "index": 0, "node": "node-0", "peakMemory": GIB}]
    groups = (await top(service.http, by="queue"))["groups"]
    assert groups == [{"of": "default", "jobs": 1, "known": 0, "members": 1, "cpu": {}, "memory": {}, "gpu": {}}]


async def test_the_averages_and_the_peak_stay_with_an_ended_run(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await execute(service.stores, "UPDATE runs SET started_at = started_at - interval '10 minutes'")
    await report(agent, use(run, 1000, GIB))  # stands for one interval
    await age(service, 60)
    await report(agent, use(run, 400, 2 * GIB))  # stands for the minute since the last one
    await age(service, 600)
    await report(agent, use(run, 400, GIB))  # of ten minutes no more than three intervals are known
    await agent.report(run, RunState.SUCCEEDED, 3)
    found = (await service.job(job_of(run)))["use"]
    assert found["cpu"] == {"requested": 2.0}
    assert found["peakMemory"] == 2 * GIB
    assert found["measuredSeconds"] == pytest.approx(180, abs=3)
    assert found["cpuAverage"]["used"] == pytest.approx((30 * 1.0 + 150 * 0.4) / 180, abs=0.02)
    assert found["cpuAverage"]["percent"] == pytest.approx(25, abs=1)
    assert (await top(service.http))["running"] == 0
    await report(agent, use(run, 9000, 9 * GIB))
    assert (await service.job(job_of(run)))["use"] == found, "an ended run takes no sample"


async def test_a_run_is_written_once_in_an_interval(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await report(agent, use(run, 1000, GIB))
    await report(agent, use(run, 2000, GIB))
    assert (await top(service.http))["jobs"][0]["use"]["cpu"]["used"] == 1.0
    await age(service, 20)
    await report(agent, use(run, 2000, GIB))
    assert (await top(service.http))["jobs"][0]["use"]["cpu"]["used"] == 2.0


async def test_gpus_at_work_are_counted(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=64)
    template = {"command": ["true"], "resources": {"cpu": "1", "nvidia.com/gpu": "4"}}
    group = NodeGroup(name="node", count=2, free={"cpu": 64_000, "nvidia.com/gpu": 8})
    await agent.sync(capacity=CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang",)))
    await service.submit(roles=[{"name": "main", "replicas": 2, "template": template}])
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 2}})
    await report(agent, use(run, 100, GIB, members=2, gpu=[50, 100], gpuMemory=[GIB, 3 * GIB]))
    found = (await top(service.http))["jobs"][0]["use"]
    assert found["gpu"] == {"used": 6.0, "requested": 8.0, "percent": 75.0}
    assert found["gpuMemory"] == 4 * GIB
    await age(service, 30)
    labels = '{cluster="private",queue="default"}'
    for percents, idle in (([50, 100], 0), ([0, 9], 8), ([0, 10], 0)):
        await report(agent, use(run, 100, GIB, members=2, gpu=percents))
        await age(service, 30)
        await gauges.measure(service.stores, None, leads=True)
        assert page(Process.SCHEDULER)[f"trainmaster_idle_gpus{labels}"] == idle


async def test_jobs_are_sorted_and_limited(service: Service, agent: FakeAgent) -> None:
    small, large, unknown = [await running(service, agent, name) for name in ("small", "large", "unknown")]
    await report(agent, use(small, 10, 3 * GIB), use(large, 1900, GIB))

    async def order(**query: Any) -> list[str]:
        return [str(one["job"]) for one in (await top(service.http, **query))["jobs"]]

    s, m, u = job_of(small), job_of(large), job_of(unknown)
    assert await order() == [m, s, u]
    assert await order(sort="memory") == [s, m, u]
    assert await order(sort="idle") == [s, m, u]
    assert await order(sort="cpu", limit=1) == [m]
    assert (await top(service.http, limit=1))["running"] == 3


async def test_groups_add_up_what_is_known(service: Service, agent: FakeAgent) -> None:
    for path in ("research", "research/vision", "research/text"):
        answer = await service.http.put(f"/v1/queues/{path}", json={"path": path})
        assert answer.status_code in (200, 201), answer.text
    one, two = (
        await running(service, agent, queue="research/vision"),
        await running(service, agent, queue="research/vision"),
    )
    other, silent = (
        await running(service, agent, queue="research/text"),
        await running(service, agent, queue="research/text"),
    )
    await report(agent, use(one, 1000, GIB), use(two, 500, GIB), use(other, 2000, GIB))
    groups = {group["of"]: group for group in (await top(service.http, by="queue", queue="research"))["groups"]}
    assert groups["research/vision"]["cpu"] == {"used": 1.5, "requested": 4.0, "percent": 37.5}
    assert groups["research/text"]["cpu"] == {"used": 2.0, "requested": 2.0, "percent": 100.0}
    assert (groups["research/text"]["jobs"], groups["research/text"]["known"]) == (2, 1)
    assert [group["of"] for group in (await top(service.http, by="cluster"))["groups"]] == ["private"]
    assert [group["of"] for group in (await top(service.http, by="user"))["groups"]] == ["admin"]
    assert silent


async def test_users_see_their_queues_alone(service: Service, agent: FakeAgent) -> None:
    for path in ("ours", "theirs"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    made = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["ours"]})
    ann = service.as_key(made.json()["key"])
    ours, theirs = await running(service, agent, "a", "ours"), await running(service, agent, "b", "theirs")
    await report(agent, use(ours, 100, GIB), use(theirs, 100, GIB))
    assert [one["job"] for one in (await top(ann))["jobs"]] == [job_of(ours)]
    assert [one["of"] for one in (await top(ann, by="queue"))["groups"]] == ["ours"]
    assert (await ann.get(f"/v1/jobs/{job_of(theirs)}/use")).status_code == 404
    assert (await ann.get("/v1/top", params={"queue": "theirs"})).json()["code"] == "unknown-queue"
    assert (await ann.get(f"/v1/jobs/{job_of(ours)}/use")).status_code == 200
    await ann.aclose()


async def test_an_owner_sees_jobs_on_own_clusters(service: Service, agent: FakeAgent) -> None:
    other = service.agent("public", session="s2", holder="h2")
    await other.connect(cpu=64)
    keys = {}
    for name, cluster in (("here", "private"), ("there", "public")):
        made = await service.http.post("/v1/keys", json={"name": name, "role": "owner", "clusters": [cluster]})
        keys[name] = service.as_key(made.json()["key"])
    await service.submit("a", placement={"clusters": ["private"]})
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    assert [one["job"] for one in (await top(keys["here"]))["jobs"]] == [job_of(run)]
    assert (await top(keys["there"]))["running"] == 0
    assert (await keys["here"].get(f"/v1/jobs/{job_of(run)}/use")).status_code == 200
    assert (await keys["there"].get(f"/v1/jobs/{job_of(run)}/use")).status_code == 404
    assert (await keys["here"].get(f"/v1/jobs/x{job_of(run)}/use")).status_code == 404


async def test_an_agent_reports_runs_of_its_own_cluster_alone(service: Service, agent: FakeAgent) -> None:
    other = service.agent("public", session="s2", holder="h2")
    await other.connect(cpu=64)
    await service.submit("a", placement={"clusters": ["private"]})
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await report(other, use(run, 9000, GIB), use("nonsense", 1, 1), use("job-1234567-r1", 1, 1))
    assert "sampledAt" not in (await top(service.http))["jobs"][0]["use"]
    agent.session = "an older one"
    refused = await report(agent, use(run, 9000, GIB), expect=409)
    assert refused["code"] == "session-superseded"


async def test_what_is_missing_is_told_to_users(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await report(agent, missing="install metrics-server")
    found = await top(service.http)
    assert [(one["name"], one["missing"]) for one in found["clusters"]] == [("private", "install metrics-server")]
    assert "reportedAt" in found["clusters"][0]
    assert (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()["missing"] == "install metrics-server"


@pytest.mark.parametrize(
    "roles",
    [
        [{"role": "main", "indexes": [0], "cpu": [-1]}],
        [{"role": "main", "indexes": [0], "cpu": [2**31]}],
        [{"role": "main", "indexes": [0], "memory": [2**50]}],
        [{"role": "main", "indexes": [0], "gpu": [101]}],
        [{"role": "main", "indexes": [0, 1], "cpu": [1]}],
        [{"role": "main", "indexes": list(range(10_001))}],
    ],
)
async def test_a_wrong_report_is_refused(service: Service, agent: FakeAgent, roles: list[dict[str, Any]]) -> None:
    run = await running(service, agent)
    refused = await report(agent, {"run": run, "roles": roles}, expect=422)
    assert refused["code"] == "invalid-spec"


async def test_largest_values_and_strange_roles_do_no_harm(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent, replicas=2)
    largest = use(run, 2**31 - 1, 2**49, members=10_000)
    largest["roles"][0]["indexes"][-1] = 2**31 - 1
    largest["roles"].append({"role": "strange", "indexes": [], "cpu": []})
    await report(agent, largest)
    found = (await top(service.http))["jobs"][0]["use"]
    assert found["memory"]["used"] == 10_000 * 2**49
    assert len((await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()["members"]) == 10_000


async def test_samples_are_removed_with_their_job(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await report(agent, use(run, 100, GIB))
    await agent.report(run, RunState.SUCCEEDED, 3)
    await execute(service.stores, "UPDATE runs SET counted = true")
    async with service.stores.database.transaction() as tx:
        assert await retention.remove_jobs(tx, [parse_run_id(run).job_key], 0) == 1
    for table in ("run_use", "member_use"):
        assert await value(service.stores, f"SELECT count(*) FROM {table}") == 0


async def test_a_crash_of_the_database_loses_the_last_sample_by_member_alone(
    service: Service, agent: FakeAgent
) -> None:
    run = await running(service, agent)
    await report(agent, use(run, 100, 3 * GIB))
    await execute(service.stores, "TRUNCATE member_use")  # as Postgres does with unlogged tables then
    found = (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()
    assert (found["members"], found["use"]["peakMemory"]) == (
        [{"role": "main", "index": 0, "node": "node-0"}],
        3 * GIB,
    )
    await age(service, 30)
    await report(agent, use(run, 100, GIB))
    assert (await service.job(job_of(run)))["use"]["peakMemory"] == 3 * GIB


async def test_the_leader_shows_the_sums_by_cluster_and_queue(service: Service, agent: FakeAgent) -> None:
    known, old = await running(service, agent, "a"), await running(service, agent, "b")
    await report(agent, use(old, 2000, GIB))
    await age(service, 100)
    await report(agent, use(known, 500, GIB))
    async with service.stores.database.transaction() as tx:
        assert await member_use.sums(tx) == [
            member_use.UseSums("private", "default", 500, GIB, None, 2000, 4 * GIB, None, None)
        ]
    await gauges.measure(service.stores, None, leads=True)
    shown = page(Process.SCHEDULER)
    labels = '{cluster="private",queue="default"}'
    assert shown[f"trainmaster_used_cores{labels}"] == 0.5
    assert shown[f"trainmaster_requested_cores{labels}"] == 2
    assert shown[f"trainmaster_used_memory_bytes{labels}"] == GIB
    assert f"trainmaster_used_gpus{labels}" not in shown
    await gauges.measure(service.stores, None, leads=False)
    assert f"trainmaster_used_cores{labels}" not in page(Process.SCHEDULER)


async def series_of(service: Service, run: str, **query: Any) -> list[dict[str, Any]]:
    answer = await service.http.get(f"/v1/jobs/{job_of(run)}/use", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


async def earlier(service: Service, seconds: int) -> None:
    """Move what is stored of the history back: whole rows, and each of their samples."""
    for row in await rows(service.stores, "SELECT job_id, attempt, step, started_at, places, data FROM use_history"):
        places = tuple((role, first, many) for role, first, many in row.places)
        data = bytearray(row.data)
        at = 0
        for one in samples_of(UseChunk(places, bytes(row.data))):
            data[at : at + 4] = struct.pack(">I", one.at - seconds)
            at += 5 + sum((1 if metric == 2 else 2) * len(column) for metric, column in enumerate(one.columns))
        await execute(
            service.stores,
            "UPDATE use_history SET data = :data, started_at = started_at - make_interval(secs => :seconds)"
            " WHERE job_id = :job AND attempt = :attempt AND step = :step AND started_at = :at",
            data=bytes(data),
            seconds=seconds,
            job=row.job_id,
            attempt=row.attempt,
            step=row.step,
            at=row.started_at,
        )


async def test_the_history_of_a_job_is_kept_in_one_row_and_shown_as_series(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent, replicas=2)
    for cpu in (500, 1500):
        await report(agent, use(run, cpu, GIB, members=2))
        await age(service, 30)
    stored = await rows(service.stores, "SELECT step, octet_length(data) AS length FROM use_history")
    assert sum(row.length for row in stored) == 2 * (5 + 4 * 2)
    assert len(stored) <= 2, "two only where the hour has changed"
    series = await series_of(service, run, step=3600)
    assert [(one["member"], one["metric"], one["unit"], one["step"]) for one in series] == [
        ("main-0", "cpu", "cores", 3600),
        ("main-0", "memory", "bytes", 3600),
        ("main-1", "cpu", "cores", 3600),
        ("main-1", "memory", "bytes", 3600),
    ]
    known = [one for one in series[0]["values"] if one is not None]
    assert sum(known) / len(known) == pytest.approx(1.0)
    assert max(one for one in series[1]["values"] if one is not None) == GIB
    assert "series" not in (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()


async def test_history_is_rolled_up_after_a_day_and_removed_after_a_week(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    for _ in range(3):
        await report(agent, use(run, 700, GIB))
        await age(service, 30)
    await earlier(service, 90_000)
    await report(agent, use(run, 100, GIB))
    await Retention(service.stores.database, service.settings).run()
    steps = {row.step: row.data for row in await rows(service.stores, "SELECT step, data FROM use_history")}
    assert sorted(steps) == [0, 300]
    assert 9 <= len(steps[300]) <= 18, "one sample of 5 minutes; two at their border"
    since = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    values = [one for one in (await series_of(service, run, since=since))[0]["values"] if one is not None]
    assert values[0] == pytest.approx(0.7)
    assert values[-1] == pytest.approx(0.1)
    await earlier(service, 13 * 43_200)
    await Retention(service.stores.database, service.settings).run()
    kept = await rows(service.stores, "SELECT step FROM use_history")
    assert [row.step for row in kept] == [300], "the sample that was new has been rolled up, and the older one is gone"


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({"since": "2037-01-01T00:00:00Z"}, "since"),
        ({"since": "2020-01-01T00:00:00Z"}, "since"),
        ({"since": "7d", "step": "10"}, "step"),
    ],
)
async def test_a_history_that_cannot_be_shown_is_refused(
    service: Service, agent: FakeAgent, query: dict[str, str], path: str
) -> None:
    run = await running(service, agent)
    if query["since"] == "7d":
        query = {**query, "since": (datetime.now(UTC) - timedelta(days=7)).isoformat()}
    refused = await service.http.get(f"/v1/jobs/{job_of(run)}/use", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameter"), refused.text
    assert refused.json()["mistakes"][0]["path"] == path


async def test_restarts_ends_for_lack_of_memory_and_near_misses_are_shown(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent, replicas=2)
    for near in ([1, 0], [1, 0], [0, None]):
        await report(agent, use(run, 100, GIB, members=2, restarts=[2, 0], oomKills=[1, 0], nearLimit=near))
        await age(service, 30)
    found = (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()
    counts = [(one["restarts"], one["oomKills"], one["nearMisses"]) for one in found["members"]]
    assert counts == [(2, 1, 2), (0, 0, 0)]
    assert [found["use"][name] for name in ("restarts", "oomKills", "nearMisses")] == [2, 1, 2]
    assert found["use"]["peakCpu"] == 0.1
    unknown = await running(service, agent, "unknown")
    await report(agent, use(unknown, 100, GIB))
    use_of = (await service.http.get(f"/v1/jobs/{job_of(unknown)}/use")).json()
    assert "nearMisses" not in use_of["use"]
    assert "restarts" not in use_of["members"][0]


async def test_the_end_of_a_run_for_lack_of_memory_counts(service: Service, agent: FakeAgent) -> None:
    """The agent sends no sample of a run that has ended."""
    run = await running(service, agent, replicas=2)
    await report(agent, use(run, 100, GIB, members=2, restarts=[1, 0], oomKills=[1, 0]))
    end = {"category": "oom", "member": "main-1", "exitCode": 137, "message": "main-1 was killed"}
    await agent.report(run, RunState.FAILED, 3, end=end)
    found = (await service.http.get(f"/v1/jobs/{job_of(run)}/use")).json()
    assert (found["use"]["oomKills"], [one["oomKills"] for one in found["members"]]) == (2, [1, 1])
    unknown = await running(service, agent, "unknown")
    await report(agent, use(unknown, 100, GIB))
    await agent.report(unknown, RunState.FAILED, 3, end={**end, "category": "exit", "member": "main-0"})
    assert "oomKills" not in (await service.http.get(f"/v1/jobs/{job_of(unknown)}/use")).json()["use"]


async def test_the_history_of_a_removed_job_goes_with_it(service: Service, agent: FakeAgent) -> None:
    run = await running(service, agent)
    await report(agent, use(run, 100, GIB))
    await agent.report(run, RunState.SUCCEEDED, 3)
    await execute(service.stores, "UPDATE jobs SET ended_at = ended_at - interval '60 days'")
    await execute(service.stores, "UPDATE runs SET counted = true")
    ref = parse_run_id(run)
    async with service.stores.database.transaction() as tx:
        assert await retention.remove_jobs(tx, [ref.job_key], 1) == 1
    assert await value(service.stores, "SELECT count(*) FROM use_history") == 0
