"""A store that was restored from a backup: what runs goes on, nothing starts twice, and what was forgotten is shown."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import age_service, execute, rows, value
from tests.waiting import eventually
from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import recovery
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.store import recovery as store
from trainmaster_dispatcher.store.scheduling import Cursor, StoreRestoredError, read_feed

ON_PRIVATE: dict[str, Any] = {"placement": {"clusters": ["private"]}}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect()
    await age_service(service.stores)
    return connected


async def running(service: Service, agent: FakeAgent, name: str = "job", **fields: Any) -> tuple[str, str]:
    job_id = await service.submit(name, **ON_PRIVATE, **fields)
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 1, placement={"node": {"main": 1}})
    await service.until(job_id, "running")
    return job_id, run


async def forget_dispatch(service: Service, run: str) -> None:
    """Put job and run back to what a backup had that was made before the dispatch."""
    ref = parse_run_id(run)
    await execute(service.stores, "DELETE FROM runs WHERE job_id = :job", job=ref.job_key)
    await execute(service.stores, "DELETE FROM events WHERE job_id = :job AND seq > 1", job=ref.job_key)
    await execute(
        service.stores,
        "UPDATE jobs SET state = 'queued', attempt = 0, version = 1, started_at = NULL WHERE id = :job",
        job=ref.job_key,
    )


async def forget_job(service: Service, run: str) -> None:
    """Put the store back to before the job was submitted."""
    ref = parse_run_id(run)
    for table, key in (("runs", "job_id"), ("events", "job_id"), ("jobs", "id")):
        await execute(service.stores, f"DELETE FROM {table} WHERE {key} = :job", job=ref.job_key)


async def restored(service: Service, *, behind: int = 0) -> None:
    """Do what ``admin recovered`` does, with the scheduler forgetting what it has read."""
    await execute(service.stores, "UPDATE cluster_desired SET version = greatest(0, version - :by)", by=behind)
    await recovery.begin(service.stores)


def report(run: str, state: RunState = RunState.RUNNING, seq: int = 1, generation: int = 1) -> RunReport:
    return RunReport(run=run, generation=generation, seq=seq, state=state, placement={"node": {"main": 1}})


async def full(agent: FakeAgent, *reports: RunReport) -> dict[str, Any]:
    answer = await agent.sync(*reports, full=True)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def cluster(service: Service, name: str = "private") -> dict[str, Any]:
    shown: dict[str, Any] = (await service.http.get(f"/v1/clusters/{name}")).json()
    return shown


async def is_over(service: Service) -> bool:
    return bool(await value(service.stores, "SELECT recovering_since IS NULL FROM installation"))


async def test_a_run_that_the_backup_does_not_have_is_adopted_and_its_job_is_not_started_again(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent)
    await forget_dispatch(service, run)
    await restored(service)
    shown = await cluster(service)
    assert shown["state"] == "unreachable"
    answer = (await agent.sync()).json()
    assert answer["sendFull"]
    assert (await cluster(service))["state"] == "closed"
    assert "restored from a backup" in (await cluster(service))["closed"]
    reply = await full(agent, report(run))
    assert (reply["unknown"], reply["quarantined"]) == ([], [])
    job = await service.job(job_id)
    assert (job["state"], job["attempt"], len(job["runs"])) == ("running", 1, 1)
    await eventually(lambda: is_over(service))
    await agent.report(run, RunState.SUCCEEDED, 2)
    job = await service.job(job_id)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)


async def test_an_end_that_the_backup_does_not_have_is_taken_up_as_well(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await forget_dispatch(service, run)
    await restored(service)
    await agent.sync()
    assert (await full(agent, report(run, RunState.SUCCEEDED, 2)))["settled"] == [run]
    assert (await service.job(job_id))["state"] == "succeeded"


async def test_clusters_of_other_queues_are_named_to_those_alone_who_may_use_them(service: Service) -> None:
    edge, private = service.agent("edge", session="session-e"), service.agent()
    await edge.connect()
    await private.connect()
    for path in ("open", "secret"):
        assert (await service.http.put(f"/v1/queues/{path}", json={"path": path})).status_code == 201
    restricted = {"name": "edge", "clusterKind": "edge", "onlyQueues": ["secret"]}
    assert (await service.http.put("/v1/clusters/edge", json=restricted)).status_code in (200, 201)
    await restored(service)
    await private.sync()
    waiting = await service.submit("waits", queue="open", placement={"clusters": ["private"]})
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["open"]})
    user = {"Authorization": f"Bearer {made.json()['key']}"}

    async def texts(headers: dict[str, str] | None = None) -> tuple[str, str]:
        answer = await service.http.get("/v1/clusters/private", headers=headers)
        why = (await service.http.get(f"/v1/jobs/{waiting}/why", headers=headers)).json()
        return answer.json()["closed"], str(why)

    async def says_why() -> bool:
        await private.sync()  # on a slow machine its lease would end
        return "restored from a backup" in (await texts())[1]

    await eventually(says_why)
    for text in await texts():
        assert "what they run: edge, private." in text
    for text in await texts(user):
        assert "what they run: a cluster of other queues, private." in text


async def test_nothing_starts_before_every_agent_has_told_what_it_runs(service: Service, agent: FakeAgent) -> None:
    edge = service.agent("edge", session="session-e")
    await edge.connect()
    job_id, run = await running(service, agent)
    await forget_dispatch(service, run)
    await restored(service)
    await edge.connect()
    waiting = await service.submit("other", placement={"clusters": ["edge"]})

    async def says_why() -> bool:
        await edge.sync()  # on a slow machine its lease would end
        why = (await service.http.get(f"/v1/jobs/{waiting}/why")).json()
        return "restored from a backup" in str(why)

    await eventually(says_why)
    assert (await edge.desired())["start"] == []
    assert await value(service.stores, "SELECT count(*) FROM runs") == 0
    await agent.sync()
    await full(agent, report(run))
    await eventually(lambda: is_over(service))
    await edge.sync()
    assert (await edge.next_start())["job"] == waiting
    assert (await service.job(job_id))["attempt"] == 1


async def test_a_cluster_that_is_gone_is_not_waited_for_once_it_is_declared_lost(
    service: Service, agent: FakeAgent
) -> None:
    edge = service.agent("edge", session="session-e")
    await edge.connect()
    await restored(service)
    await edge.connect()
    assert not await is_over(service)
    answer = await service.http.post("/v1/clusters/private/declare-lost", json={})
    assert answer.status_code == 200, answer.text
    await eventually(lambda: is_over(service))


async def test_a_run_of_a_job_that_the_backup_does_not_have_goes_on_until_an_admin_stops_it(
    service: Service, agent: FakeAgent
) -> None:
    _, run = await running(service, agent)
    await forget_job(service, run)
    await restored(service)
    await agent.sync()
    for _ in range(2):
        reply = await full(agent, report(run))
        assert (reply["unknown"], reply["quarantined"]) == ([], [run])
    await eventually(lambda: is_over(service))
    assert not (await agent.sync()).json()["sendFull"], "both sides hold the same"
    restarted = service.agent(session="session-2", held={run})
    await restarted.sync()
    assert (await full(restarted, report(run)))["unknown"] == [], "an agent that starts again leaves it alone, too"
    assert (await cluster(service))["quarantinedRuns"] == 1
    path = "/v1/clusters/private"
    (item,) = (await service.http.get(f"{path}/quarantined-runs")).json()["runs"]
    assert (item["run"], item["state"], item["stopping"]) == (run, "running", False)
    answer = await service.http.post(f"{path}/stop-quarantined", json={"runs": ["none-0000001-r1"]})
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert (await service.http.post(f"{path}/stop-quarantined", json={})).json()["stopping"] == [run]
    reply = await full(restarted, report(run))
    assert (reply["unknown"], reply["quarantined"]) == ([run], [])
    restarted.held.clear()
    assert (await restarted.sync()).json()["sendFull"], "whether it is gone is asked for"
    await full(restarted)
    assert (await cluster(service))["quarantinedRuns"] == 0
    assert not (await restarted.sync()).json()["sendFull"]


async def test_keys_and_versions_that_were_given_out_after_the_backup_are_not_given_out_again(
    service: Service, agent: FakeAgent
) -> None:
    _, run = await running(service, agent)
    version = agent.version
    await forget_job(service, run)
    await execute(
        service.stores,
        "SELECT setval(pg_get_serial_sequence('jobs', 'id'), :key, false)",
        key=parse_run_id(run).job_key,
    )
    await restored(service, behind=1)
    await agent.connect()
    await full(agent, report(run))
    await eventually(lambda: is_over(service))
    another = await service.submit()
    start = await agent.next_start()
    assert start["job"] == another
    assert parse_run_id(start["run"]).job_key > parse_run_id(run).job_key
    assert agent.version > version


async def test_stops_that_the_backup_does_not_have_are_believed(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await restored(service)
    await agent.sync()
    await full(agent, report(run, RunState.STOPPING, 2, generation=3))
    answer = await agent.report(run, RunState.CANCELLED, 3, generation=3)
    assert answer.json()["settled"] == [run]
    assert (await service.job(job_id))["state"] == "cancelled"


async def test_an_agent_that_was_told_more_than_the_store_knows_protects_its_own_runs_alone(
    service: Service, agent: FakeAgent
) -> None:
    """Nobody has said that the store was restored. What one agent says may be wrong, so nothing else is held up."""
    _, run = await running(service, agent)
    await forget_job(service, run)
    ahead = 10**9
    answer = (await agent.sync(report(run, seq=2), desired_version=ahead)).json()
    assert (answer["unknown"], answer["sendFull"]) == ([], True)
    reply = (await agent.sync(report(run, seq=2), full=True, desired_version=ahead)).json()
    assert (reply["unknown"], reply["quarantined"]) == ([], [run])
    assert (await cluster(service))["quarantinedRuns"] == 1
    assert await is_over(service), "no recovery has begun"
    other = await service.submit("other")
    assert (await agent.next_start())["job"] == other


async def test_a_scheduler_that_has_read_what_the_store_has_not_any_more_begins_a_recovery(
    service: Service, agent: FakeAgent
) -> None:
    await running(service, agent)
    async with service.stores.database.transaction() as tx:
        with pytest.raises(StoreRestoredError):
            await read_feed(tx, Cursor(2**40))
    assert await recovery.begin_unless_on(service.stores)
    assert not await recovery.begin_unless_on(service.stores), "once"


async def test_a_state_of_another_epoch_is_read_anew(service: Service, agent: FakeAgent) -> None:
    job_id, _ = await running(service, agent)
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    (key,) = (row.id for row in await rows(service.stores, "SELECT id FROM jobs"))
    assert key in {run.job_id for run in follower.state.runs.values()}
    await execute(service.stores, "DELETE FROM runs")
    await execute(service.stores, "UPDATE jobs SET state = 'queued', attempt = 0, version = 1")
    await restored(service)
    await follower.absorb(service.stores, 0.0)
    assert follower.state.runs == {}, job_id


async def test_an_admin_may_end_a_recovery(service: Service, agent: FakeAgent) -> None:
    await restored(service)
    assert not await is_over(service)
    assert await recovery.finish(service.stores)
    assert not await recovery.finish(service.stores)
    assert await is_over(service)


async def test_a_change_beside_the_beginning_of_a_recovery_is_not_forgotten(service: Service, agent: FakeAgent) -> None:
    """Its transaction may have begun after the recovery's and be over before the recovery clears the feed."""
    async with service.stores.database.transaction() as tx:
        mine = (await tx.one("SELECT pg_current_xact_id() AS xid")).xid
        await service.http.put("/v1/queues/beside", json={"path": "beside"})
        await store.begin(tx)
    assert (
        await value(service.stores, "SELECT count(*) FROM changes WHERE xid > CAST(:mine AS xid8)", mine=str(mine)) == 1
    )
