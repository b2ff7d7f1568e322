"""Jobs whose GPUs do nothing, on a real Postgres: warned, and suspended where their queue says so."""

import time
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute, rows, value
from tests.integration.test_metrics import page
from tests.integration.test_sessions import events
from tests.integration.test_top import GIB, job_of, report, top, use
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.member_use import UNKNOWN, MemberValues
from trainmaster_dispatcher.domain.use_history import pack_sample
from trainmaster_dispatcher.services import idle_gpus

GPU = "nvidia.com/gpu"
HOUR = 3600


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=64)
    group = NodeGroup(name="node", count=2, free={"cpu": 64_000, GPU: 8})
    await agent.sync(capacity=CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang",)))
    return agent


async def policy(service: Service, path: str = "default", **terms: Any) -> None:
    answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, "idleGpus": terms})
    assert answer.is_success, answer.text


async def running(service: Service, agent: FakeAgent, queue: str = "default") -> str:
    """Let a job with two members run, of 4 GPUs each; return the id of its run."""
    template = {"command": ["true"], "resources": {"cpu": "1", GPU: "4"}}
    await service.submit("train", queue, roles=[{"name": "main", "replicas": 2, "template": template}])
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 2}})
    return run


async def used(service: Service, agent: FakeAgent, run: str, *percents: tuple[int, int], every: int = 30) -> None:
    """Let the samples of a run until now be these, of both members, ``every`` that many seconds one."""
    ref, now = parse_run_id(run), int(time.time())
    await report(agent, use(run, 100, GIB, members=2, gpu=[None if one == UNKNOWN else one for one in percents[-1]]))
    data = b"".join(
        pack_sample(MemberValues((), [100, 100], (), (), pair, ()), now - every * back)
        for back, pair in zip(range(len(percents) - 1, -1, -1), percents, strict=True)
    )
    await execute(service.stores, "DELETE FROM use_history WHERE job_id = :job", job=ref.job_key)
    await execute(
        service.stores,
        "INSERT INTO use_history (job_id, attempt, step, started_at, places, data)"
        """ VALUES (:job, :attempt, 0, now() - interval '50 minutes', '[["main", 0, 2]]', :data)""",
        job=ref.job_key,
        attempt=ref.attempt,
        data=data,
    )
    await execute(service.stores, "UPDATE run_use SET sampled_at = now()")


async def look(service: Service) -> int:
    """Look at all jobs, as the leader does every minute."""
    return await idle_gpus.advance_all(
        service.stores, await value(service.stores, "SELECT token FROM leadership"), limit=1
    )


async def pass_warning(service: Service, seconds: int) -> None:
    await execute(
        service.stores, "UPDATE run_use SET gpus_warned_at = gpus_warned_at - make_interval(secs => :s)", s=seconds
    )


async def marks(service: Service) -> list[bool]:
    return [row.idle for row in await rows(service.stores, "SELECT gpus_idle_since IS NOT NULL AS idle FROM run_use")]


async def test_a_job_whose_gpus_do_nothing_is_warned_once(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 4)] * 70)
    await look(service)
    await look(service)
    (warning,) = await events(service, job_of(run), "gpu.idle")
    assert warning["message"].startswith("its GPUs were busy for less than 5 % of the time in the last 3")
    assert "idleSince" in warning["details"]
    job = await service.job(job_of(run))
    assert job["shownState"] == "running"
    assert "gpusIdleSince" in job["use"]
    await pass_warning(service, 1_900)
    assert await look(service) == 0, "notify gives nothing back"
    since = await value(service.stores, "SELECT gpus_idle_since FROM run_use")
    await used(service, agent, run, *[(0, 4)] * 60)
    assert await look(service) == 0, "as before, though the samples of the first time are not there any more"
    assert await value(service.stores, "SELECT gpus_idle_since FROM run_use") == since
    assert len(await events(service, job_of(run), "gpu.idle")) == 1


@pytest.mark.parametrize(
    "percents",
    [
        [(0, 0)] * 50,
        [(0, 0)] * 40 + [(0, 9)] + [(0, 0)] * 30,
        [(0, 0)] * 40 + [(0, UNKNOWN)] + [(0, 0)] * 30,
        [(0, 0)] * 69 + [(0, 100)],
        [(0, UNKNOWN)] * 70,
    ],
    ids=["too short", "busy in between", "unknown in between", "busy now", "one member unknown"],
)
async def test_no_job_is_warned_whose_gpus_may_have_worked(
    service: Service, agent: FakeAgent, percents: list[tuple[int, int]]
) -> None:
    await policy(service, after="30m", then="release")
    run = await running(service, agent)
    await used(service, agent, run, *percents)
    assert await look(service) == 0
    assert await events(service, job_of(run), "gpu.idle") == []


async def test_a_time_without_samples_does_not_count(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 20, every=100)
    assert await look(service) == 0
    await used(service, agent, run, *[(0, 0)] * 20, every=90)
    assert await look(service) == 0, "of 19 intervals only 28.5 minutes"
    await used(service, agent, run, *[(0, 0)] * 22, every=90)
    assert await look(service) == 1


async def test_a_job_of_a_silent_agent_is_neither_warned_nor_suspended(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m", then="release")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 70)
    await execute(service.stores, "UPDATE run_use SET sampled_at = now() - interval '5 minutes'")
    assert await look(service) == 0
    await execute(service.stores, "UPDATE run_use SET sampled_at = now()")
    assert await look(service) == 1
    await pass_warning(service, HOUR)
    await execute(service.stores, "UPDATE run_use SET sampled_at = now() - interval '5 minutes'")
    assert await look(service) == 0
    assert (await service.job(job_of(run)))["shownState"] == "running"


async def test_an_idle_job_is_suspended_after_its_warning_and_says_why(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m", then="release")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 70)
    assert await look(service) == 1
    await used(service, agent, run, *[(0, 0)] * 90)
    assert await look(service) == 0, "the warning is too new"
    await pass_warning(service, 1790)
    assert await look(service) == 0
    await pass_warning(service, 10)
    before = page(Process.SCHEDULER).get('trainmaster_idle_gpu_jobs_total{outcome="released",queue="default"}', 0)
    assert await look(service) == 1
    assert page(Process.SCHEDULER)['trainmaster_idle_gpu_jobs_total{outcome="released",queue="default"}'] == before + 1
    (event,) = await events(service, job_of(run), "suspend")
    assert (event["actor"], "its GPUs were given back" in event["message"]) == ("idle-gpus", True)
    await agent.report(run, RunState.SUSPENDED, 3)
    held = await service.until(job_of(run), "held")
    assert held["holdCause"] == "suspended"
    assert "its GPUs were given back, as they were busy for less than 5 %" in held["message"]
    why = (await service.http.get(f"/v1/jobs/{job_of(run)}/why")).text
    assert "its GPUs were given back" in why
    assert await look(service) == 0


async def test_a_job_that_works_again_has_a_new_warning_before_it_is_suspended(
    service: Service, agent: FakeAgent
) -> None:
    await policy(service, after="30m", then="release")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 70)
    assert await look(service) == 1
    await used(service, agent, run, *[(0, 0)] * 70, (90, 90))
    assert await look(service) == 0
    assert await marks(service) == [False]
    await used(service, agent, run, *[(0, 0)] * 90)
    assert await look(service) == 1
    assert len(await events(service, job_of(run), "gpu.idle")) == 2
    assert (await service.job(job_of(run)))["shownState"] == "running"


async def test_without_a_policy_nothing_is_looked_at_and_a_policy_counts_below_its_queue(
    service: Service, agent: FakeAgent
) -> None:
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 99)
    assert await look(service) == 0
    await policy(service, "lab", after="30m")
    assert (await service.http.put("/v1/queues/lab/a", json={"path": "lab/a"})).is_success
    below = await running(service, agent, "lab/a")
    await used(service, agent, below, *[(0, 0)] * 99)
    assert await look(service) == 1
    assert await events(service, job_of(run), "gpu.idle") == []
    assert len(await events(service, job_of(below), "gpu.idle")) == 1


async def test_top_shows_the_jobs_whose_gpus_are_idle_to_who_may_see_them(service: Service, agent: FakeAgent) -> None:
    assert (await service.http.put("/v1/queues/lab", json={"path": "lab"})).is_success
    await policy(service, after="30m")
    busy, idle = await running(service, agent), await running(service, agent)
    await used(service, agent, busy, *[(80, 90)] * 99)
    await used(service, agent, idle, *[(0, 0)] * 99)
    everywhere, here = await top(service.http, gpusIdle=True), await top(service.http, gpusIdle=True, queue="default")
    assert everywhere | {"at": ""} == here | {"at": ""}
    assert (await top(service.http, gpusIdle=True))["running"] == 0, "nobody has looked yet"
    await look(service)
    await look(service)
    found = await top(service.http, gpusIdle=True)
    assert (found["running"], [one["job"] for one in found["jobs"]]) == (1, [job_of(idle)])
    assert (found["jobs"][0]["use"]["gpu"]["requested"], "gpusIdleSince" in found["jobs"][0]["use"]) == (8, True)
    assert [(one["of"], one["jobs"]) for one in (await top(service.http, gpusIdle=True, by="queue"))["groups"]] == [
        ("default", 1)
    ]
    assert (await top(service.http))["running"] == 2
    for queue, many in (("default", 1), ("lab", 0)):
        key = (await service.http.post("/v1/keys", json={"name": queue, "role": "viewer", "queues": [queue]})).json()
        async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": f"Bearer {key['key']}"}) as http:
            assert (await top(http, gpusIdle=True))["running"] == many
    await execute(service.stores, "UPDATE run_use SET sampled_at = now() - interval '5 minutes'")
    assert (await top(service.http, gpusIdle=True))["running"] == 0, "nothing is known of now"


async def test_somebody_who_does_not_lead_warns_nobody(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m")
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 99)
    token = await value(service.stores, "SELECT token FROM leadership")
    assert await idle_gpus.advance_all(service.stores, token - 1) == 0
    assert await events(service, job_of(run), "gpu.idle") == []


async def test_the_user_of_an_idle_job_gets_a_notice(service: Service, agent: FakeAgent) -> None:
    await policy(service, after="30m")
    await execute(
        service.stores,
        """INSERT INTO notice_preferences (api_key_id, spec, least_seconds)
           SELECT id, '{"email": true, "events": ["gpu.idle"]}', 0 FROM api_keys WHERE name = 'admin'""",
    )
    run = await running(service, agent)
    await used(service, agent, run, *[(0, 0)] * 99)
    assert await look(service) == 1
    bodies = [row.body for row in await rows(service.stores, "SELECT body FROM notice_events")]
    assert [(body["event"], body["job"]) for body in bodies] == [("gpu.idle", job_of(run))]
