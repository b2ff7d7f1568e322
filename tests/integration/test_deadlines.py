"""Jobs with deadlines over REST: told once when they are at risk and when they are missed, and never ended by them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute, picture, rows, value
from tests.waiting import eventually
from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.services import deadlines
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import Submission, submit_one
from trainmaster_dispatcher.store import scheduling
from trainmaster_dispatcher.store.keys import Caller

ADMIN = Caller(1, "admin", KeyRole.ADMIN)
AT_RISK, MISSED = "deadline.atRisk", "deadline.missed"


async def events_of(service: Service, job_id: str) -> list[dict[str, Any]]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


async def noted(service: Service, job_id: str, kind: str) -> dict[str, Any]:
    """Return the only event of a kind, once there is one."""

    async def is_there() -> bool:
        return any(one["kind"] == kind for one in await events_of(service, job_id))

    await eventually(is_there)
    (found,) = [one for one in await events_of(service, job_id) if one["kind"] == kind]
    return found


async def let_it_pass(stores: Stores) -> None:
    await execute(stores, "UPDATE jobs SET deadline = now() - interval '90 s' WHERE deadline IS NOT NULL")


async def why(service: Service, job_id: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/why")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_deadline_is_a_moment_or_counts_from_the_submission_of_each_job(service: Service) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    shown = await service.job(await service.submit(deadline=moment.isoformat()))
    assert datetime.fromisoformat(shown["deadline"]) == moment
    assert shown["deadlineState"] == "ahead"
    template = {"command": ["train", "${seed}"], "resources": {"cpu": "1"}}
    spec = job("swept", deadline="1h") | {"roles": [{"name": "main", "template": template}]}
    answer = await service.http.post("/v1/jobs", json={"job": spec, "parameters": [{"seed": "1"}, {"seed": "2"}]})
    assert answer.status_code == 201, answer.text
    for one in answer.json()["jobs"]:
        shown = await service.job(one["id"])
        after = datetime.fromisoformat(shown["deadline"]) - datetime.fromisoformat(shown["submittedAt"])
        assert abs(after - timedelta(hours=1)) < timedelta(seconds=1)
    listed = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert all(one["deadlineState"] == "ahead" for one in listed)


async def test_a_job_without_a_deadline_shows_none(service: Service) -> None:
    shown = await service.job(await service.submit())
    assert not {"deadline", "deadlineState"} & shown.keys()


async def test_a_queued_job_is_told_once_that_its_deadline_is_at_risk(service: Service) -> None:
    before = counted("atRisk")
    late = await service.submit(deadline="1h", timeLimit="2h")
    in_time = await service.submit(deadline="3h", timeLimit="2h")
    event = await noted(service, late, AT_RISK)
    assert "it is expected to run for 2h" in event["message"]
    assert event["details"]["expectedSeconds"] == 7200.0
    assert (await service.job(late))["deadlineState"] == "atRisk"
    reason = await why(service, late)
    assert "is at risk, as it is expected to run for 2h." in reason["sentence"]
    assert reason["details"]["deadlineState"] == "atRisk"
    assert (await why(service, in_time))["details"]["deadlineState"] == "ahead"
    assert [one["kind"] for one in await events_of(service, in_time)] == ["submitted"]
    assert counted("atRisk") == before + 1
    agent = service.agent()
    await agent.connect(cpu=4)
    assert {(await agent.next_start())["job"] for _ in range(2)} == {late, in_time}


async def test_a_run_goes_on_after_its_deadline(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    late = await service.submit(deadline="1h")
    await agent.next_start()
    await let_it_pass(service.stores)
    assert "by its deadline" in (await noted(service, late, MISSED))["message"]
    shown = await service.job(late)
    assert (shown["state"], shown["deadlineState"]) == ("dispatched", "missed")
    assert "was missed 1m3" in (await why(service, late))["sentence"]


async def test_a_held_job_misses_its_deadline_and_can_be_resumed(service: Service) -> None:
    late = await service.submit(deadline="1h", suspend=True)
    await let_it_pass(service.stores)
    await noted(service, late, MISSED)
    answer = await service.http.post(f"/v1/jobs/{late}/resume")
    assert answer.status_code == 200, answer.text
    agent = service.agent()
    await agent.connect(cpu=4)
    assert (await agent.next_start())["job"] == late


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"deadline": "2020-01-01T00:00:00Z"}, "has passed"),
        ({"deadline": "0s"}, "has passed"),
        ({"deadline": "1h", "startAfter": "2h"}, "after startAfter"),
        ({"deadline": "tomorrow"}, "2h"),
        ({"deadline": True}, "2h"),
    ],
)
async def test_what_is_no_deadline_is_refused_with_its_path(
    service: Service, fields: dict[str, Any], words: str
) -> None:
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json={"jobs": [job("first"), job("later", **fields)]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), answer.text
    (mistake,) = answer.json()["mistakes"]
    assert mistake["path"] == "jobs[1].deadline"
    assert words in mistake["message"]
    assert await picture(service.stores) == before


async def test_jobs_of_workflows_and_schedules_have_deadlines(service: Service) -> None:
    template = {"roles": job()["roles"], "deadline": "2h"}
    flow = {"kind": "Workflow", "name": "flow", "queue": "default", "steps": [{"name": "only", "job": template}]}
    answer = await service.http.post("/v1/workflows", json=flow)
    assert answer.status_code == 201, answer.text

    async def is_there() -> bool:
        return bool((await service.http.get("/v1/jobs")).json()["jobs"])

    await eventually(is_there)
    (found,) = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert datetime.fromisoformat(found["deadline"]) > datetime.now(UTC) + timedelta(minutes=119)
    timed = {"kind": "Schedule", "name": "timed", "queue": "default", "schedule": "@daily"}
    answer = await service.http.post("/v1/schedules", json=timed | {"job": template})
    assert answer.status_code == 201, answer.text
    late = template | {"deadline": "2020-01-01T00:00:00Z"}
    for path, body in (("schedules", timed | {"name": "b", "job": late}), ("workflows", flow)):
        given = body | ({"steps": [{"name": "only", "job": late}]} if path == "workflows" else {})
        answer = await service.http.post(f"/v1/{path}", json=given)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), answer.text
        assert answer.json()["mistakes"][0]["path"].endswith("job.deadline")


async def test_in_a_queue_by_deadlines_the_earliest_starts_first_and_the_position_says_so(service: Service) -> None:
    spec = {"path": "due", "orderBy": "deadline", "fairBy": "none", "allowedKinds": ["private"]}
    answer = await service.http.put("/v1/queues/due", json=spec)
    assert answer.status_code in (200, 201), answer.text
    names = {"none": None, "far": "5h", "near": "1h", "middle": "3h"}
    ids = {
        name: await service.submit(name, "due", **({} if deadline is None else {"deadline": deadline}))
        for name, deadline in names.items()
    }

    async def is_placed() -> bool:
        return all([(await why(service, one)).get("position") is not None for one in ids.values()])

    await eventually(is_placed)
    order = ["near", "middle", "far", "none"]
    assert [(await why(service, ids[name]))["position"] for name in order] == [1, 2, 3, 4]
    agent = service.agent()
    await agent.connect(cpu=4)
    assert {(await agent.next_start())["job"] for _ in range(4)} == set(ids.values())
    started = await rows(service.stores, "SELECT job_id FROM runs ORDER BY leased_at, job_id")
    assert len(started) == 4


def counted(outcome: str) -> float:
    (family,) = metrics.deadlines.collect()
    return sum(
        one.value
        for one in family.samples
        if one.name.endswith("_total") and one.labels == {"queue": "default", "outcome": outcome}
    )


async def test_webhooks_that_want_it_get_a_message_of_each_event(leader: Scheduler) -> None:
    stores, token = leader.stores, leader.token or 0
    hooks = [{"url": "https://a.example/in", "states": ["failed"]}, {"url": "https://b.example/in", "deadline": True}]
    async with stores.database.transaction() as tx:
        body = orjson.dumps(job("hooked", deadline="1h", timeLimit="2h", notify=hooks))
        await submit_one(tx, stores, Submission(ADMIN, prepare(body, Most())))
    await leader._follower.absorb(stores, leader.clock())
    assert await note_at_risk(leader, token) == 3
    await let_it_pass(stores)
    assert await deadlines.note_missed(stores, token, leader._follower.state) == 3
    found = await rows(stores, "SELECT hook, body FROM outbox ORDER BY id")
    shown = [(one.hook, one.body["event"], one.body["states"], one.body["state"]) for one in found]
    assert shown == [(1, AT_RISK, [], "queued"), (1, MISSED, [], "queued")]
    assert "by its deadline" in found[1].body["message"]


# The leader


@pytest.fixture
async def leader(database_url: str) -> AsyncIterator[Scheduler]:
    """A leader whose steps the test makes, with two jobs that have a deadline and a time limit, and one without."""
    settings = Settings.model_validate(
        {"database_url": database_url, "redis_url": None, "webhook_secret": "whsec_" + "a" * 40}
    )
    await make_local_installation(settings, [], {"admin": "tmk_admin"}, [QueueSpec(path="default")])
    stores = Stores.open(settings)
    made = Scheduler(stores)
    late = job("late", deadline="1h", timeLimit="2h")
    async with stores.database.transaction() as tx:
        body = orjson.dumps({"jobs": [late, late, job("other", timeLimit="2h")]})
        await submit_one(tx, stores, Submission(ADMIN, prepare(body, Most())))
        made.token = await scheduling.take_lead(tx, "test", 3600)
    await made._follower.absorb(stores, made.clock())
    yield made
    await stores.close()


async def kinds(stores: Stores) -> list[str]:
    return [one.kind for one in await rows(stores, "SELECT kind FROM events ORDER BY job_id, seq")]


async def note_at_risk(leader: Scheduler, token: int) -> int:
    follower = leader._follower
    return await deadlines.note_at_risk(leader.stores, token, follower.state, follower.now)


async def test_the_loop_twice_at_the_same_time_writes_one_event_of_each_job(leader: Scheduler) -> None:
    token, stores = leader.token or 0, leader.stores
    done = await asyncio.gather(*(note_at_risk(leader, token) for _ in range(2)))
    assert sum(done) == 2
    assert await note_at_risk(leader, token) == 0
    await let_it_pass(stores)
    state = leader._follower.state
    done = await asyncio.gather(*(deadlines.note_missed(stores, token, state) for _ in range(3)))
    assert sum(done) == 2
    assert await deadlines.note_missed(stores, token, state) == 0
    assert await kinds(stores) == [AT_RISK, MISSED, AT_RISK, MISSED]


async def test_who_does_not_lead_any_more_writes_nothing(leader: Scheduler) -> None:
    token, stores = leader.token or 0, leader.stores
    await execute(stores, "UPDATE leadership SET token = token + 1")
    assert await note_at_risk(leader, token) == 0
    await let_it_pass(stores)
    assert await deadlines.note_missed(stores, token, leader._follower.state) == 0
    assert await kinds(stores) == []
    assert await deadlines.note_missed(stores, token + 1, leader._follower.state) == 2


async def test_a_scheduler_that_starts_anew_repeats_no_event(leader: Scheduler) -> None:
    assert await note_at_risk(leader, leader.token or 0) == 2
    leader._follower.begin_anew()
    await leader._follower.absorb(leader.stores, leader.clock())
    assert leader._follower.state.deadlines == {}
    assert await note_at_risk(leader, leader.token or 0) == 0


async def test_a_job_that_misses_its_deadline_unseen_is_at_risk_no_more(leader: Scheduler) -> None:
    await let_it_pass(leader.stores)
    assert await note_at_risk(leader, leader.token or 0) == 0
    assert await deadlines.note_missed(leader.stores, leader.token or 0, leader._follower.state) == 2
    assert await value(leader.stores, "SELECT count(*) FROM jobs WHERE deadline_noted = 2") == 2


async def test_one_that_has_ended_by_its_deadline_has_no_event(leader: Scheduler) -> None:
    await execute(leader.stores, "UPDATE jobs SET state = 'succeeded', ended_at = now() WHERE name = 'late'")
    await let_it_pass(leader.stores)
    assert await deadlines.note_missed(leader.stores, leader.token or 0, leader._follower.state) == 0
