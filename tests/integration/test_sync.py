"""What an agent and the dispatcher make of each other's messages: sessions, holders, reports, losses and stops."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import age_contact, age_service, execute, give_up_now, picture, value
from tests.waiting import eventually
from trainmaster.protocol.agent import NOT_HELD_SEQ, Absence, RunEnd, RunReport
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.domain.spec_rendering import render
from trainmaster_dispatcher.services import agent_reports
from trainmaster_dispatcher.services import agents as agent_service
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.services.stop_orders import stop_of
from trainmaster_dispatcher.store import agents as agent_store
from trainmaster_dispatcher.store.database import Transaction

LIMIT = {"onDisconnect": {"requeueAfter": "10s"}}


async def running(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, str]:
    """Submit a job and let the agent run it on the private cluster; return the ids of the job and of its run."""
    await agent.sync()
    job_id = await service.submit(placement={"clusters": ["private"]}, **fields)
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 1)
    await service.until(job_id, "running")
    return job_id, run


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect()
    await age_service(service.stores)
    return connected


# -- what holds a run up


async def why(service: Service, job_id: str) -> dict[str, Any]:
    return dict((await service.http.get(f"/v1/jobs/{job_id}/why")).json())


async def message_of(service: Service, job_id: str) -> str:
    return str((await service.job(job_id))["runs"][-1].get("message", ""))


async def test_what_holds_a_run_up_is_told_as_long_as_it_does(service: Service, agent: FakeAgent) -> None:
    await agent.sync()
    job_id = await service.submit(placement={"clusters": ["private"]})
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.PENDING, 1)
    trouble = "worker-0 cannot start yet (ErrImagePull): not found"
    await agent.report(run, RunState.PENDING, 2, message=trouble)
    reason = await why(service, job_id)
    assert reason["sentence"].endswith(f" Its cluster says: {trouble}.")
    assert reason["details"]["clusterSays"] == trouble
    assert await message_of(service, job_id) == trouble
    await agent.report(run, RunState.PENDING, 3)
    assert "Its cluster says" not in (await why(service, job_id))["sentence"]
    await agent.report(run, RunState.RUNNING, 4)
    silence = "worker-0 on node n3, which Kubernetes has counted as silent since 10:00"
    await agent.report(run, RunState.RUNNING, 5, message=silence)
    reason = await why(service, job_id)
    assert reason["sentence"].startswith("It runs on private")
    assert reason["sentence"].endswith(f" Its cluster says: {silence}.")
    await agent.report(run, RunState.RUNNING, 6)
    assert await message_of(service, job_id) == ""
    full = "worker-0 was evicted by its node: its disk is full."
    await agent.report(run, RunState.RUNNING, 7, message=full)
    assert (await why(service, job_id))["sentence"].endswith(
        " Its cluster says: worker-0 was evicted by its node: its disk is full."
    )
    await agent.report(run, RunState.FAILED, 8, category="evicted", message=full)
    assert (await why(service, job_id))[
        "sentence"
    ] == "It has failed: worker-0 was evicted by its node: its disk is full."


async def test_an_agent_that_was_configured_for_another_cluster_than_its_keys_is_refused(
    service: Service, agent: FakeAgent
) -> None:
    job_id = await service.submit()
    start = await agent.next_start()
    answer = await agent.sync(cluster="weat")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.json()["detail"] == (
        "the key is of cluster private, and the agent's configuration names cluster 'weat'; "
        "correct the name, or use a key of that cluster"
    )
    refused = service.agent("private", session="other")
    assert (await refused.sync(cluster="weat")).status_code == 403
    assert (await agent.sync(cluster="private")).is_success, (
        "nothing of the refused syncs was used, and no session has begun"
    )
    await agent.report(start["run"], RunState.RUNNING, 1)
    await service.until(job_id, "running")


async def test_the_end_of_a_job_is_told_once(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    await agent.report(run, RunState.CANCELLED, 2, generation=2)
    assert (await why(service, job_id))["sentence"] == "It was cancelled."


# -- sessions and holders


async def test_only_the_newest_session_of_a_cluster_is_served(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    newer = service.agent(session="session-2", held={run})
    assert (await newer.sync()).json()["sendFull"]
    before = await picture(service.stores)
    late = await agent.report(run, RunState.SUCCEEDED, 2)
    desired = await agent.http.get("/agent/v1/desired", params={"session": agent.session}, headers=agent._headers())
    for answer in (late, desired):
        assert (answer.status_code, answer.json()["code"]) == (409, "session-superseded")
    assert await picture(service.stores) == before
    assert (await service.job(job_id))["state"] == "running"
    assert (await newer.sync()).status_code == 200
    assert (await agent.sync()).status_code == 409, "a session that was superseded never comes back"


async def lose(agent: FakeAgent, run: str) -> None:
    """Let the agent have no record of a run, and find nothing of it."""
    agent.held.discard(run)
    await agent.sync(full=True)
    (stop,) = (await agent.desired())["stop"]
    assert (stop["run"], stop["cause"]) == (run, "unknown")
    gone = RunReport(
        run=run,
        generation=stop["generation"],
        seq=NOT_HELD_SEQ,
        state=RunState.CANCELLED,
        absence=Absence.VERIFIED,
    )
    await agent.sync(gone)


async def test_a_run_that_its_own_holder_no_longer_lists_is_looked_for_and_lost(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent)
    restarted = service.agent(session="session-2")
    await restarted.sync()
    assert (await service.job(job_id))["state"] == "running", "only a full list can lack a run"
    await lose(restarted, run)
    shown = await service.job(job_id)
    assert shown["runs"][0]["state"] == "lost"
    assert shown["runs"][0]["message"] == "the cluster's agent no longer holds it"
    assert (await restarted.next_start())["run"] == run.removesuffix("r1") + "r2"
    assert await value(service.stores, "SELECT losses FROM jobs") == 1, "its cluster stayed up"


async def test_a_job_lost_three_times_while_its_cluster_stays_up_has_failed(service: Service, agent: FakeAgent) -> None:
    job_id = await service.submit(placement={"clusters": ["private"]})
    for number in range(3):
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 1)
        await lose(agent, run)
        assert (await service.job(job_id))["runs"][number]["state"] == "lost"
    shown = await service.job(job_id)
    assert (shown["state"], shown["retriesUsed"]) == ("failed", 0)
    assert shown["message"].startswith("lost 3 times while the cluster stayed up")


async def test_runs_of_an_earlier_holder_are_lost_only_when_their_members_must_be_dead(
    service: Service, agent: FakeAgent
) -> None:
    job_id, _ = await running(service, agent, **LIMIT)
    await execute(service.stores, "UPDATE cluster_contacts SET lease_until = 'epoch'")
    other = service.agent(session="session-2", holder="holder-2")
    await other.sync()
    await other.sync(full=True)
    assert (await service.job(job_id))["state"] == "running", "the new holder knows nothing of it"
    pass_time = "UPDATE cluster_holders SET contact_at = contact_at - make_interval(secs => :s)"
    leased_earlier = "UPDATE runs SET leased_at = leased_at - make_interval(secs => :s)"
    for seconds, lost in ((8.0, 0), (3.0, 1)):
        await execute(service.stores, leased_earlier, s=seconds)
        await execute(service.stores, pass_time, s=seconds)
        await other.sync()
        if not lost:
            assert await give_up_now(service) == 0, "D and the margin have not passed"
    await other.next_start()
    shown = await service.job(job_id)
    assert shown["runs"][0]["state"] == "lost"
    assert "replaced" in shown["runs"][0]["message"]


# -- reports


async def test_a_digest_that_differs_asks_for_the_full_list(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    assert not (await agent.sync()).json()["sendFull"]
    agent.held.clear()
    assert (await agent.sync()).json()["sendFull"]
    agent.held = {run.replace("-r1", "-r2")}
    assert (await agent.sync()).json()["sendFull"], "as many, but others"
    agent.held = {run}
    assert not (await agent.sync()).json()["sendFull"]


async def test_reports_that_come_twice_late_or_in_another_order_change_nothing(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent)
    reports = [
        RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING),
        RunReport(run=run, generation=1, seq=0, state=RunState.PENDING),
        RunReport(run=run, generation=2, seq=9, state=RunState.SUCCEEDED),
    ]
    for report in reports:
        before = await picture(service.stores)
        await agent.sync(report)
        assert await picture(service.stores) == before, report
    agent.held = {run}
    await agent.report(run, RunState.SUCCEEDED, 5)
    done = await picture(service.stores)
    for state, seq in ((RunState.SUCCEEDED, 5), (RunState.FAILED, 5), (RunState.FAILED, 6), (RunState.RUNNING, 4)):
        answer = await agent.report(run, state, seq)
        assert answer.status_code == 200
        assert await picture(service.stores) == done, (state, seq)
    assert (await service.job(job_id))["state"] == "succeeded"


async def test_a_run_that_ended_and_is_reported_as_live_is_told_back_as_unknown(
    service: Service, agent: FakeAgent
) -> None:
    _, run = await running(service, agent, **LIMIT)
    await age_contact(service.stores, "private", 20)
    await age_service(service.stores)
    assert await give_up_now(service) in (0, 1)
    answer = await agent.report(run, RunState.RUNNING, 2)
    assert (answer.json()["unknown"], answer.json()["settled"]) == ([run], [])
    answer = await agent.report(run, RunState.SUCCEEDED, 3)
    assert (answer.json()["unknown"], answer.json()["settled"]) == ([], [run])


async def test_messages_of_other_versions_are_read_as_far_as_they_are_known(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    recorded: dict[str, Any] = {
        "protocol": 1,
        "session": agent.session,
        "holder": agent.holder,
        "number": 77,
        "moods": ["happy"],
        "capacity": {
            "groups": [
                {"name": "node", "count": 1, "free": {"cpu": 4000}, "color": "red", "taints": [{"key": "k", "x": 1}]}
            ],
            "runtime": "test",
            "scheduler": "test",
            "weather": {"sun": True},
        },
        "runs": [
            {"run": run, "generation": 1, "seq": 3, "state": "succeeded", "end": {"exitCode": 0, "why": "?"}, "x": []}
        ],
    }
    for protocol, status in ((99, 400), (0, 400), (1, 200)):
        body = orjson.dumps(recorded | {"protocol": protocol})
        answer = await agent.http.post("/agent/v1/sync", content=body, headers=agent._headers())
        assert answer.status_code == status, answer.text
        assert answer.json().get("code") == ("protocol-unsupported" if status == 400 else None)
    assert answer.json()["settled"] == [run]


# -- losing contact


async def test_a_job_is_lost_and_queued_again_when_its_disconnect_limit_has_passed(
    service: Service, agent: FakeAgent
) -> None:
    job_id, _ = await running(service, agent, **LIMIT)
    waits, _ = await running(service, agent)
    await age_contact(service.stores, "private", 8)
    assert await give_up_now(service) == 0, "D has not passed"
    await age_contact(service.stores, "private", 3)
    shown = await service.until(job_id, "queued")
    assert (shown["runs"][0]["state"], shown["retriesUsed"]) == ("lost", 0)
    assert await value(service.stores, "SELECT losses FROM jobs WHERE name = 'job' ORDER BY id LIMIT 1") == 0
    await age_contact(service.stores, "private", 365 * 86400.0)
    assert await give_up_now(service) == 0
    assert (await service.job(waits))["state"] == "running", "it asked to wait"


async def test_nothing_is_lost_within_a_lease_of_the_services_own_return(service: Service, agent: FakeAgent) -> None:
    job_id, _ = await running(service, agent, **LIMIT)
    # The api was away for a minute: its next heartbeat finds the gap.
    await execute(service.stores, "UPDATE installation SET seen_at = seen_at - interval '1 min', up_since = 'epoch'")

    async def back() -> bool:
        return bool(await value(service.stores, "SELECT up_since > now() - interval '1 min' FROM installation"))

    await eventually(back)
    await age_contact(service.stores, "private", 20)
    since = await value(
        service.stores, "SELECT extract(epoch FROM clock_timestamp() - up_since)::float8 FROM installation"
    )
    assert since < service.settings.lease_seconds
    assert await give_up_now(service) == 0
    assert (await service.job(job_id))["state"] == "running"
    await age_service(service.stores)
    await service.until(job_id, "queued")


async def test_an_unreachable_cluster_gets_nothing_new_and_the_reason_says_so(
    service: Service, agent: FakeAgent
) -> None:
    running_job, _ = await running(service, agent)
    await age_contact(service.stores, "private", 60)

    async def unreachable() -> bool:
        return bool((await service.http.get("/v1/clusters/private")).json()["state"] == "unreachable")

    await eventually(unreachable)
    job_id = await service.submit(placement={"clusters": ["private"]})

    async def is_reported() -> bool:
        return bool((await service.http.get(f"/v1/jobs/{job_id}/why")).json()["token"] == "ClustersUnreachable")

    await eventually(is_reported)
    assert (await service.job(running_job))["state"] == "running", "nothing is stopped"
    await agent.sync()
    assert (await agent.next_start())["job"] == job_id


# -- stopping


async def test_a_leased_run_that_its_agent_never_saw_can_be_cancelled(service: Service, agent: FakeAgent) -> None:
    job_id = await service.submit()
    await service.until(job_id, "dispatched")
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    assert (await service.job(job_id))["shownState"] == "cancelling"
    wanted = await agent.desired(1)
    assert wanted["start"] == []
    assert [(item["run"], item["generation"], item["cause"]) for item in wanted["stop"]] == [
        (f"{job_id}-r1", 2, "cancel")
    ]
    answer = await agent.report(f"{job_id}-r1", RunState.CANCELLED, 1, generation=2)
    assert answer.json()["settled"] == [f"{job_id}-r1"]
    assert (await service.job(job_id))["state"] == "cancelled"


async def test_each_stop_is_a_generation_and_a_cancel_outranks_a_suspend(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await agent.desired()
    stops = []
    for action in ("suspend", "suspend", "cancel", "cancel"):
        await service.http.post(f"/v1/jobs/{job_id}/{action}")
        stops += [(item["generation"], item["cause"]) for item in (await agent.desired())["stop"]]
    assert stops == [(2, "suspend"), (3, "cancel")]
    await agent.report(run, RunState.SUSPENDED, 2, generation=2)
    assert (await service.job(job_id))["state"] == "cancelled", "the job was cancelled, whatever its run ended as"


async def test_a_run_that_ends_by_itself_before_its_stop_keeps_its_end(service: Service, agent: FakeAgent) -> None:
    for state, end, expected in (
        (RunState.SUCCEEDED, None, "succeeded"),
        (RunState.FAILED, RunEnd(category=FailureCategory.EXIT, exit_code=1), "cancelled"),
    ):
        job_id, run = await running(service, agent)
        await service.http.post(f"/v1/jobs/{job_id}/cancel")
        await agent.report(run, state, 2, generation=1, end=end)
        assert (await service.job(job_id))["state"] == expected


async def test_a_cordon_stops_new_starts_alone(service: Service, agent: FakeAgent) -> None:
    runs, run = await running(service, agent)
    await service.http.post("/v1/clusters/private/cordon")
    job_id = await service.submit(placement={"clusters": ["private"]})

    async def is_reported() -> bool:
        return bool((await service.http.get(f"/v1/jobs/{job_id}/why")).json()["token"] == "ClustersCordoned")

    await eventually(is_reported)
    assert (await agent.desired())["start"] == []
    await agent.report(run, RunState.SUCCEEDED, 2)
    assert (await service.job(runs))["state"] == "succeeded"
    await service.http.post("/v1/clusters/private/uncordon")
    assert (await agent.next_start())["job"] == job_id


# -- desired state


async def test_an_answer_holds_so_many_specifications_and_the_rest_comes_next(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_store, "_MOST_SPEC_BYTES", 2000)
    agent = service.agent()
    await agent.connect(cpu=64)
    ids = [await service.submit(f"j{number}", labels={"filler": "x" * 60}) for number in range(20)]

    async def all_are_leased() -> bool:
        return bool(await value(service.stores, "SELECT count(*) = 20 FROM runs"))

    await eventually(all_are_leased)
    answers: list[list[str]] = []
    while sum(map(len, answers)) < 20:
        given = [start["run"] for start in (await agent.desired())["start"]]
        assert given, "more are wanted, so more are given"
        answers.append(given)
        await agent.sync(*[RunReport(run=run, generation=1, seq=1, state=RunState.ACCEPTED) for run in given])
    assert max(map(len, answers)) < 20
    assert sorted(run.removesuffix("-r1") for given in answers for run in given) == sorted(ids), "each once"
    assert (await agent.desired())["start"] == []


async def test_a_run_of_which_no_order_can_be_made_has_failed_and_the_others_get_theirs(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(spec: str, *terms: Any) -> bytes:
        if "is-odd" in spec:
            raise TypeError("string indices must be integers, not 'str'")
        return render(spec, *terms)

    monkeypatch.setattr(agent_service, "render", broken)
    agent = service.agent()
    await agent.connect(cpu=64)
    odd = await service.submit("odd", labels={"kind": "is-odd"})
    plain = await service.submit("plain")
    start = await agent.next_start()
    assert start["run"] == f"{plain}-r1"
    job = await service.until(odd, "failed")
    assert job["runs"][0]["state"] == "failed"
    assert job["runs"][0]["category"] == "config"
    words = "its order for the cluster cannot be made: TypeError: string indices must be integers, not 'str'"
    assert job["message"] == words
    await agent.report(start["run"], RunState.RUNNING, 2)
    await agent.report(start["run"], RunState.SUCCEEDED, 3)
    assert (await service.until(plain, "succeeded"))["runs"][0]["attempt"] == 1


async def test_a_run_whose_orders_this_release_cannot_read_has_failed_and_one_that_is_stopped_is_stopped(
    service: Service,
) -> None:
    agent = service.agent()
    await agent.connect(cpu=64)
    ids = [await service.submit(name) for name in ("newer", "plain", "stopped")]

    async def all_are_leased() -> bool:
        return bool(await value(service.stores, "SELECT count(*) = 3 FROM runs"))

    await eventually(all_are_leased)
    await execute(
        service.stores,
        "UPDATE runs SET orders = '{\"version\": 2}' WHERE job_id IN (SELECT id FROM jobs WHERE name <> 'plain')",
    )
    assert (await service.http.post(f"/v1/jobs/{ids[2]}/cancel")).is_success
    answer = await agent.desired()
    assert [start["run"] for start in answer["start"]] == [f"{ids[1]}-r1"]
    assert [stop["run"] for stop in answer["stop"]] == [f"{ids[2]}-r1"]
    job = await service.until(ids[0], "failed")
    assert job["message"] == (
        "its order for the cluster cannot be made: the stored orders of the run have version 2, this release reads version 1"
    )
    assert job["runs"][0]["category"] == "config"


async def test_a_run_is_stopped_though_its_order_cannot_be_made_as_its_specification_wants(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = service.agent()
    await agent.connect(cpu=64)
    odd = await service.submit("odd")
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 2)
    original = stop_of

    def broken(spec: Mapping[str, Any], cause: str, most: float | None = None) -> dict[str, Any]:
        if spec:
            raise ValueError("an odd duration")
        return original(spec, cause, most)

    monkeypatch.setattr(agent_service, "stop_of", broken)
    assert (await service.http.post(f"/v1/jobs/{odd}/cancel")).status_code == 200
    (stop,) = (await agent.desired())["stop"]
    assert (stop["run"], stop["cause"], stop["graceSeconds"]) == (start["run"], "cancel", 10.0)


# -- placement


async def test_members_that_move_in_an_unchanged_state_reach_the_schedulers_state(
    service: Service, agent: FakeAgent
) -> None:
    follower = Follower()
    job_id, run = await running(service, agent)
    await follower.absorb(service.stores, 0.0)
    for seq, group in ((5, "elsewhere"), (6, "elsewhere"), (7, "back")):
        await agent.report(run, RunState.RUNNING, seq, placement={group: {"main": 1}})

        async def has_followed(group: str = group) -> bool:
            await follower.absorb(service.stores, 0.0)
            (live,) = follower.state.runs.values()
            return live.placement == ((group, (("main", 1),)),)

        await eventually(has_followed, 5)
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [event["kind"] for event in events].count("run.moved") == 2, "told when it moved, and not when it did not"


async def test_a_run_that_comes_while_an_answer_is_written_is_told_once(
    service: Service, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan commits after the version was read and before the runs are."""
    agent.version = (await agent.desired())["version"]
    await service.submit("first")
    await eventually(lambda: is_leased(service, 1))

    async def slow(tx: Transaction, cluster_id: int) -> Any:
        found = await wanted(tx, cluster_id)
        monkeypatch.setattr(agent_store, "wanted", wanted)
        await service.submit("second")
        await eventually(lambda: is_leased(service, 2))
        return found

    wanted = agent_store.wanted
    monkeypatch.setattr(agent_store, "wanted", slow)
    started = [start["run"] for _ in range(3) for start in (await agent.desired())["start"]]
    assert [run.partition("-")[0] for run in started] == ["first", "second"]


async def is_leased(service: Service, many: int) -> bool:
    return bool(await value(service.stores, "SELECT count(*) FROM runs WHERE state = 'leased'") == many)


# -- what an agent may not hold up


@pytest.mark.parametrize("full", [False, True])
async def test_a_report_on_another_clusters_run_takes_no_lock(
    service: Service, agent: FakeAgent, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 reported keys held up the cancels of others."""
    _, run = await running(service, agent)
    thief = service.agent("edge", session="session-e", holder="holder-e")
    await thief.connect()
    free: list[int] = []
    write = agent_reports.write_findings

    async def looks(tx: Transaction, found: Any) -> None:
        async with service.stores.database.transaction() as other:
            free.append(len(await other.all("SELECT id FROM jobs FOR UPDATE NOWAIT")))
            free.append(len(await other.all("SELECT job_id FROM runs FOR UPDATE NOWAIT")))
        await write(tx, found)

    monkeypatch.setattr(agent_service, "write_findings", looks)
    answer = await thief.sync(RunReport(run=run, generation=1, seq=7, state=RunState.RUNNING), full=full)
    assert answer.status_code == 200, answer.text
    assert answer.json()["unknown"] == [run]
    assert free == [1, 1]
