"""Agents that have lost their records, and agents with one key: no run ends, and none starts again, without evidence."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import age_contact, age_service, picture, value
from tests.waiting import eventually
from trainmaster.protocol.agent import NOT_HELD_SEQ, Absence, RunEnd, RunReport
from trainmaster.protocol.states import RunState, StopCause
from trainmaster_dispatcher.services import absences

ON_PRIVATE: dict[str, Any] = {"placement": {"clusters": ["private"]}}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect()
    await age_service(service.stores)
    return connected


async def running(service: Service, agent: FakeAgent, **fields: Any) -> tuple[str, str]:
    """Submit a job and let the agent run it on the private cluster; return the ids of the job and of its run."""
    job_id = await service.submit(**ON_PRIVATE, **fields)
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 1)
    await service.until(job_id, "running")
    return job_id, run


async def takes_over(service: Service, *reports: RunReport, **fields: Any) -> FakeAgent:
    """Let an agent with other records and the same key take over from one that was silent for a lease, and return it."""
    await age_contact(service.stores, "private", 60)
    other = service.agent(**({"session": "session-2", "holder": "holder-2"} | fields))
    assert (await other.sync()).json()["sendFull"]
    assert (await other.sync(*reports, full=True)).json()["unknown"] == []
    return other


def absent(stop: dict[str, Any], absence: Absence | None) -> RunReport:
    """Return an agent's report of a run that it was asked to stop and does not hold.

    ``absence`` is None in reports of releases that did not have this field.
    """
    state = StopCause(stop["cause"]).ends_as
    return RunReport(
        run=stop["run"],
        generation=stop["generation"],
        seq=NOT_HELD_SEQ,
        state=state,
        end=RunEnd(message="the cluster's agent has no record of it"),
        absence=absence,
    )


async def stops(agent: FakeAgent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await agent.desired(1))["stop"]
    return found


async def act(service: Service, path: str, **body: Any) -> dict[str, Any]:
    answer = await service.http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


# -- who may act for a cluster


async def test_an_agent_with_other_records_is_refused_while_the_lease_of_the_first_runs(
    service: Service, agent: FakeAgent
) -> None:
    _, run = await running(service, agent)
    before = await picture(service.stores)
    other = service.agent(session="session-2", holder="holder-2")
    answer = await other.sync()
    assert (answer.status_code, answer.json()["code"]) == (409, "cluster-held")
    assert int(answer.headers["retry-after"]) >= 1
    assert "stop one of them" in answer.json()["detail"]
    assert await picture(service.stores) == before
    assert (await agent.report(run, RunState.SUCCEEDED, 2)).status_code == 200, (
        "the first goes on as if nothing had been"
    )
    await age_contact(service.stores, "private", 60)
    assert (await other.sync()).status_code == 200, "the refused session may come again"
    assert (await agent.sync()).json()["code"] == "session-superseded"


async def test_a_restart_that_kept_its_records_waits_for_nothing(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    restarted = service.agent(session="session-2", held={run})
    assert (await restarted.sync()).json()["sendFull"]
    report = RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING)
    answer = await restarted.sync(report, full=True)
    assert (answer.status_code, answer.json()["unknown"]) == (200, [])


# -- stops of runs that the agent does not hold


@pytest.mark.parametrize("action", ["cancel", "suspend", "drain"])
@pytest.mark.parametrize("said", [Absence.UNRECORDED, None], ids=["by this release", "by the release before"])
async def test_a_run_that_was_reported_does_not_end_because_records_lack_it(
    service: Service, agent: FakeAgent, action: str, said: Absence | None
) -> None:
    job_id, run = await running(service, agent)
    other = await takes_over(service)
    await act(service, "clusters/private/drain" if action == "drain" else f"jobs/{job_id}/{action}")
    (stop,) = await stops(other)
    answer = await other.sync(absent(stop, said))
    assert answer.json()["settled"] == []
    shown = await service.job(job_id)
    assert (shown["runs"][0]["state"], len(shown["runs"])) == ("stopping", 1)
    answer = await other.sync(absent(stop, Absence.VERIFIED))
    assert answer.json()["settled"] == [run], "it has looked where the members were"
    after = {"cancel": "cancelled", "suspend": "held", "drain": "queued"}[action]
    assert (await service.job(job_id))["state"] == after


async def test_what_is_verified_in_another_place_is_no_evidence(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    other = await takes_over(service, place="another machine")
    await act(service, f"jobs/{job_id}/cancel")
    (stop,) = await stops(other)
    for _ in range(2):
        assert (await other.sync(absent(stop, Absence.VERIFIED))).json()["settled"] == []
    shown = await service.job(job_id)
    assert (shown["shownState"], shown["message"]) == ("cancelling", absences.unverified("private"))
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [event["kind"] for event in events].count("run.unverified") == 1, "told once"
    assert (await act(service, "clusters/private/declare-lost", orphans=True))["lost"] == 1
    assert (await service.job(job_id))["state"] == "cancelled"
    assert (await other.sync(absent(stop, Absence.UNRECORDED))).json()["settled"] == [run]


async def test_an_agent_that_cannot_look_verifies_nothing(service: Service) -> None:
    agent = service.agent(place="")
    await agent.connect()
    job_id, _ = await running(service, agent)
    other = await takes_over(service, place="")
    await act(service, f"jobs/{job_id}/cancel")
    (stop,) = await stops(other)
    assert (await other.sync(absent(stop, Absence.VERIFIED))).json()["settled"] == []


async def test_records_that_moved_to_another_place_do_not_speak_for_the_first(
    service: Service, agent: FakeAgent
) -> None:
    job_id, _ = await running(service, agent)
    moved = service.agent(session="session-2", place="another machine")
    await moved.sync()
    await moved.sync(full=True)
    await age_contact(service.stores, "private", 1)
    (stop,) = await stops(moved)
    assert stop["cause"] == "unknown"
    assert (await moved.sync(absent(stop, Absence.VERIFIED))).json()["settled"] == []
    assert (await service.job(job_id))["runs"][0]["state"] == "stopping"


async def test_a_run_that_these_records_never_had_never_started(service: Service, agent: FakeAgent) -> None:
    job_id = await service.submit(**ON_PRIVATE)
    await service.until(job_id, "dispatched")
    await act(service, f"jobs/{job_id}/cancel")
    (stop,) = await stops(agent)
    assert (await agent.sync(absent(stop, Absence.UNRECORDED))).json()["settled"] == [stop["run"]]
    assert (await service.job(job_id))["state"] == "cancelled"


# -- records that are gone under the same agent


async def test_a_run_that_its_own_records_lack_is_lost_once_nothing_of_it_is_left(
    service: Service, agent: FakeAgent
) -> None:
    job_id, run = await running(service, agent)
    agent.held.clear()
    await agent.sync(full=True)
    assert (await service.job(job_id))["runs"][0]["state"] == "stopping"
    (stop,) = await stops(agent)
    assert (stop["run"], stop["cause"]) == (run, "unknown")
    assert (await agent.sync(absent(stop, Absence.UNRECORDED))).json()["settled"] == []
    assert (await agent.sync(absent(stop, Absence.VERIFIED))).json()["settled"] == [run]
    assert (await agent.next_start())["run"] == run.removesuffix("r1") + "r2"
    shown = await service.job(job_id)
    assert (shown["runs"][0]["state"], shown["runs"][0]["message"]) == ("lost", absences.MISSING)
    assert await value(service.stores, "SELECT losses FROM jobs") == 1, "its cluster stayed up"


# -- runs that another agent was sent


async def test_a_run_that_may_have_started_at_an_earlier_agent_is_not_sent_to_the_next(
    service: Service, agent: FakeAgent
) -> None:
    job_id = await service.submit(**ON_PRIVATE)
    await service.until(job_id, "dispatched")
    other = await takes_over(service)

    async def is_asked_for() -> bool:
        return bool(await value(service.stores, "SELECT stop_cause = 'unknown' FROM runs"))

    await eventually(is_asked_for)
    wanted = await other.desired()
    assert wanted["start"] == []
    (stop,) = wanted["stop"]
    assert (await other.sync(absent(stop, Absence.UNRECORDED))).json()["settled"] == []
    assert (await other.sync(absent(stop, Absence.VERIFIED))).json()["settled"] == [f"{job_id}-r1"]
    await other.connect()
    assert (await other.next_start())["run"] == f"{job_id}-r2"
    assert await value(service.stores, "SELECT losses FROM jobs") == 0


async def test_runs_left_behind_go_on_until_their_agent_is_back(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await takes_over(service)
    shown = await service.job(job_id)
    assert (shown["state"], shown["message"]) == ("running", absences.orphaned("private"))
    cluster = (await service.http.get("/v1/clusters/private")).json()
    assert (cluster["liveRuns"], cluster["orphanedRuns"]) == (1, 1)
    report = RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING)
    back = await takes_over(service, report, session="session-3", holder="holder-1")
    shown = await service.job(job_id)
    assert (shown["state"], shown.get("message", "")) == ("running", "")
    assert (await service.http.get("/v1/clusters/private")).json()["orphanedRuns"] == 0
    await back.report(run, RunState.SUCCEEDED, 2)
    assert (await service.job(job_id))["state"] == "succeeded"
    assert len((await service.job(job_id))["runs"]) == 1


async def test_an_admin_gives_up_what_was_left_behind_and_nothing_else(service: Service, agent: FakeAgent) -> None:
    left, run = await running(service, agent)
    other = await takes_over(service)
    await other.connect()
    own, own_run = await running(service, other)
    assert await act(service, "clusters/private/declare-lost", orphans=True) == {"name": "private", "lost": 1}
    assert (await service.job(left))["runs"][0]["state"] == "lost"
    assert (await service.job(own))["runs"][0]["state"] == "running"
    cluster = (await service.http.get("/v1/clusters/private")).json()
    assert (cluster["state"], cluster["cordoned"]) == ("ready", False)
    assert (await other.next_start())["run"] == run.removesuffix("r1") + "r2"
    assert (await other.sync(RunReport(run=own_run, generation=1, seq=1, state=RunState.RUNNING))).status_code == 200


async def test_records_under_another_name_are_taken_for_what_they_hold(service: Service, agent: FakeAgent) -> None:
    job_id, run = await running(service, agent)
    await age_contact(service.stores, "private", 60)
    renamed = service.agent(session="session-2", holder="holder-2", held={run})
    await renamed.sync()
    report = RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING)
    assert not (await renamed.sync(report, full=True)).json()["sendFull"]
    assert (await service.http.get("/v1/clusters/private")).json()["orphanedRuns"] == 0
    assert not (await renamed.sync()).json()["sendFull"], "both sides hold the same"
    await renamed.report(run, RunState.SUCCEEDED, 2)
    assert (await service.job(job_id))["state"] == "succeeded"
