"""A job goes all the way: submitted over HTTP, dispatched by a real scheduler, reported by an agent."""

import pytest

from tests.conftest import Service, job
from tests.integration.rows import age_contact
from tests.waiting import eventually
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory, RunState


async def test_a_job_is_dispatched_runs_and_succeeds(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    start = await agent.next_start()
    assert (start["job"], start["run"], start["token"]) == (job_id, f"{job_id}-r1", 1)
    await agent.report(start["run"], RunState.RUNNING, 1)
    assert (await service.until(job_id, "running"))["cluster"] == "private"
    answer = await agent.report(start["run"], RunState.SUCCEEDED, 2)
    assert answer.json()["settled"] == [start["run"]]
    shown = await service.job(job_id)
    assert shown["state"] == "succeeded"
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [event["kind"] for event in events] == ["submitted", "dispatched", "run.running", "run.succeeded"]
    assert [event["seq"] for event in events] == [1, 2, 3, 4]
    assert shown["version"] == 4


async def test_an_agent_may_first_be_heard_when_the_run_has_already_succeeded(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.SUCCEEDED, 4)
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert events[-1]["states"] == ["accepted", "pending", "running", "succeeded"]
    assert (await service.job(job_id))["startedAt"]


async def test_a_failed_run_is_tried_again_as_its_policy_says(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(retries={"limit": 1, "exitCodes": [3], "backOff": "100ms"})
    for attempt in (1, 2):
        start = await agent.next_start()
        assert start["run"] == f"{job_id}-r{attempt}"
        end = RunEnd(category=FailureCategory.EXIT, exit_code=3, member="main-0", message="exit code 3")
        await agent.report(start["run"], RunState.FAILED, 1, end=end)
    shown = await service.job(job_id)
    assert (shown["state"], shown["retriesUsed"]) == ("failed", 1)
    assert [run["exitCode"] for run in shown["runs"]] == [3, 3]
    assert [("startedAt" in run) for run in shown["runs"]] == [True, True], "whatever ends with an exit code has run"
    assert (shown["ranSeconds"], shown["startedAt"]) == (0.0, shown["runs"][0]["startedAt"])


async def test_the_time_for_which_a_job_ran_is_that_of_its_runs_without_the_time_between(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(retries={"limit": 1, "exitCodes": [3], "backOff": "100ms"})
    assert not {"ranSeconds", "runningSince"} & (await service.job(job_id)).keys()
    first = await agent.next_start()
    await agent.report(first["run"], RunState.RUNNING, 1)
    running = await service.job(job_id)
    assert running["runningSince"] == running["startedAt"]
    assert "ranSeconds" not in running
    end = RunEnd(category=FailureCategory.EXIT, exit_code=3, member="main-0", message="exit code 3")
    await agent.report(first["run"], RunState.FAILED, 2, end=end)
    second = await agent.next_start()
    assert "runningSince" not in await service.job(job_id)
    await agent.report(second["run"], RunState.RUNNING, 1)
    await agent.report(second["run"], RunState.SUCCEEDED, 2)
    async with service.stores.database.transaction() as tx:
        # As if an hour had passed between the two runs, of 10 and 20 seconds.
        await tx.run(
            "UPDATE runs SET started_at = now() - make_interval(secs => CASE attempt WHEN 1 THEN 3630 ELSE 20 END),"
            " ended_at = now() - make_interval(secs => CASE attempt WHEN 1 THEN 3620 ELSE 0 END)"
        )
    ended = await service.job(job_id)
    assert (ended["ranSeconds"], "runningSince" in ended) == (pytest.approx(30), False)
    (line,) = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert line["ranSeconds"] == pytest.approx(30)


async def test_an_exit_code_that_is_not_listed_is_not_tried_again(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(retries={"limit": 5, "exitCodes": [3]})
    start = await agent.next_start()
    await agent.report(start["run"], RunState.FAILED, 1, end=RunEnd(category=FailureCategory.EXIT, exit_code=4))
    assert (await service.job(job_id))["state"] == "failed"


async def test_a_cancel_shows_at_once_and_ends_when_the_members_are_gone(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 1)
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    shown = await service.job(job_id)
    assert (shown["state"], shown["shownState"]) == ("running", "cancelling")
    stop = (await agent.desired(1))["stop"]
    assert [(item["run"], item["generation"], item["cause"]) for item in stop] == [(start["run"], 2, "cancel")]
    await agent.report(start["run"], RunState.CANCELLED, 2, generation=2)
    assert (await service.job(job_id))["state"] == "cancelled"


async def test_a_suspended_job_is_held_and_resumes_as_a_new_run(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 1)
    await service.http.post(f"/v1/jobs/{job_id}/suspend")
    await agent.report(start["run"], RunState.SUSPENDED, 2, generation=2)
    shown = await service.job(job_id)
    assert (shown["state"], shown["holdCause"]) == ("held", "suspended")
    await service.http.post(f"/v1/jobs/{job_id}/resume")
    assert (await agent.next_start())["run"] == f"{job_id}-r2"


async def test_a_returned_run_cools_its_cluster_down_and_goes_elsewhere(service: Service) -> None:
    private, edge = service.agent("private"), service.agent("edge", session="session-e")
    await private.connect()
    await edge.connect()
    job_id = await service.submit()
    start = await private.next_start()
    await private.report(start["run"], RunState.RETURNED, 1, message="unschedulable: no luck")
    assert (await edge.next_start())["run"] == f"{job_id}-r2"
    assert (await service.job(job_id))["retriesUsed"] == 0


async def test_a_job_that_every_eligible_cluster_returned_is_held_as_unplaceable(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(placement={"clusters": ["private"]})
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RETURNED, 1, message="quota exceeded in namespace team-a")
    shown = await service.until(job_id, "held")
    assert shown["holdCause"] == "unplaceable"
    why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
    assert why["token"] == "Unplaceable"
    assert "private; the last one said: quota exceeded in namespace team-a" in why["sentence"]


async def test_a_job_for_which_a_cluster_found_no_room_is_tried_again_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.settings, "cool_down_factor", 0.02)
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(placement={"clusters": ["private"]})
    words = "not started within the placement time-out: 0/3 nodes are available: 3 Insufficient cpu"
    for attempt in (1, 2):
        start = await agent.next_start()
        assert start["run"] == f"{job_id}-r{attempt}"
        end = RunEnd(message=words, lacks_room=True)
        await agent.report(start["run"], RunState.RETURNED, 1, message=words, end=end)
        shown = await service.until(job_id, "queued", "dispatched")
        assert shown.get("holdCause") is None
    assert (await agent.next_start())["run"] == f"{job_id}-r3"


async def test_why_of_a_run_says_that_it_is_being_ended_and_that_its_cluster_is_silent(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 1)

    async def sentence() -> str:
        return str((await service.http.get(f"/v1/jobs/{job_id}/why")).json()["sentence"])

    assert "silent" not in await sentence()
    await age_contact(service.stores, "private", 3600)
    assert "The agent of private has been silent since " in await sentence()
    (run,) = (await service.job(job_id))["runs"]
    assert run["silentSince"] < run["startedAt"]
    assert (await service.http.post(f"/v1/jobs/{job_id}/suspend")).is_success
    assert "it is being suspended, and is over once its members have ended" in await sentence()
    assert (await service.http.post(f"/v1/jobs/{job_id}/cancel")).is_success
    assert "it is being cancelled, and is over once its members have ended" in await sentence()


async def test_why_names_the_shortfall_of_each_cluster(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    job_id = await service.submit(cpu="64", placement={"clusters": ["private"]})

    async def is_reported() -> bool:
        return bool((await service.http.get(f"/v1/jobs/{job_id}/why")).json()["token"] == "TooLarge")

    await eventually(is_reported)
    why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
    verdicts = {verdict["cluster"]: verdict["sentence"] for verdict in why["verdicts"]}
    assert verdicts["private"] == "needs 64 cpu on one node, the best node has 4"
    assert why["tier"] == "cannot run as written"


async def test_free_capacity_is_never_promised_twice(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    await service.http.post("/v1/jobs", json={"jobs": [job(f"j{n}", cpu="1") for n in range(10)]})
    started = [await agent.next_start() for _ in range(4)]
    assert (await agent.desired(0.6))["start"] == []
    await agent.report(started[0]["run"], RunState.SUCCEEDED, 1)
    await agent.next_start()
    assert (await agent.desired(0.6))["start"] == []
