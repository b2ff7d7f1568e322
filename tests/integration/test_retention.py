"""Retention: what is old goes, with all that is its own; what lives or may still be asked for stays."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.receiver import SECRET
from tests.integration.rows import execute, partition_of, rows, value
from tests.waiting import eventually
from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.retention import Removed, Retention
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import jobs as jobs_store
from trainmaster_dispatcher.store import retention as store

OWN = ("runs", "run_tails", "events", "outbox", "cool_downs")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)


async def retain(service: Service, batch: int = 1000, **keep: str) -> Removed:
    settings = Settings.model_validate({"database_url": service.settings.database_url, **keep})
    return await Retention(service.stores.database, settings, batch=batch).run()


async def ended(service: Service, agent: FakeAgent, **fields: Any) -> int:
    """Submit a job, let it run and succeed, and return its key."""
    job_id = await service.submit(**fields)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await agent.report(run, RunState.SUCCEEDED, 2)
    await service.until(job_id, "succeeded")
    return parse_job_id(job_id)[1]


async def age_jobs(service: Service, days: int, *keys: int) -> None:
    await execute(
        service.stores,
        "UPDATE jobs SET submitted_at = submitted_at - make_interval(days => :days),"
        " ended_at = ended_at - make_interval(days => :days) WHERE id = ANY(:keys)",
        days=days,
        keys=list(keys),
    )


async def left_of(service: Service, key: int) -> dict[str, int]:
    """Return the number of a job's rows in each table."""
    sql = " UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS many FROM {name} WHERE job_id = :key" for name in OWN
    )
    return {row.name: row.many for row in await rows(service.stores, sql, key=key)}


async def connected(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=8)
    return agent


async def test_an_old_ended_job_goes_with_all_that_is_its_own_and_others_stay(service: Service) -> None:
    agent = await connected(service)
    hooks = [{"url": "https://hooks.example/", "states": ["queued"]}]
    old, young = await ended(service, agent, notify=hooks), await ended(service, agent, notify=hooks)
    live = parse_job_id(await service.submit(notify=hooks))[1]
    for key in (old, young):
        await execute(service.stores, "INSERT INTO run_tails VALUES (:key, 1, 'main', 0, 0, 'text')", key=key)
        await execute(
            service.stores,
            "INSERT INTO cool_downs SELECT :key, id, now() + interval '1 h', '' FROM clusters LIMIT 1",
            key=key,
        )
    await execute(service.stores, "UPDATE outbox SET dead_at = now() WHERE job_id = :key", key=old)
    await age_jobs(service, 31, old, live)
    kept = await left_of(service, young)
    assert min(kept.values()) > 0
    assert await retain(service) == Removed(0, 1, finished=True)
    assert await left_of(service, old) == dict.fromkeys(OWN, 0)
    assert await left_of(service, young) == kept
    assert [row.id for row in await rows(service.stores, "SELECT id FROM jobs ORDER BY id")] == [young, live]
    assert await value(service.stores, "SELECT count(*) FROM job_specs") == 2
    assert await value(service.stores, "SELECT count(*) FROM shapes") == 1


async def test_a_specification_stays_while_one_of_its_jobs_is_left(service: Service) -> None:
    spec = job()
    spec["roles"][0]["template"]["args"] = ["${x}"]
    answer = await service.http.post(
        "/v1/jobs", json={"job": spec, "parameters": [{"x": number} for number in range(5)]}
    )
    ids = [one["id"] for one in answer.json()["jobs"]]
    keys = [parse_job_id(text)[1] for text in ids]
    for text in ids:
        await service.http.post(f"/v1/jobs/{text}/cancel")
    await age_jobs(service, 31, *keys[:2], *keys[3:])
    assert (await retain(service, batch=2)).jobs == 4
    assert (await service.job(ids[2]))["spec"]["roles"][0]["template"]["args"] == ["2"]
    await age_jobs(service, 31, keys[2])
    assert (await retain(service)).jobs == 1
    assert await value(service.stores, "SELECT count(*) FROM job_specs") == 0


async def test_a_job_stays_while_a_message_of_it_is_still_being_brought_out(service: Service) -> None:
    agent = await connected(service)
    key = await ended(service, agent, notify=[{"url": "https://example.com/"}])
    await age_jobs(service, 31, key)
    assert (await retain(service)).jobs == 0
    await execute(service.stores, "UPDATE outbox SET dead_at = now()")
    assert (await retain(service)).jobs == 1


async def test_a_job_that_was_retried_or_has_a_live_run_stays(service: Service) -> None:
    agent = await connected(service)
    job_id = await service.submit()
    key = parse_job_id(job_id)[1]
    run = (await agent.next_start())["run"]
    await agent.sync(RunReport(run=run, generation=1, seq=1, state=RunState.RUNNING))
    await execute(
        service.stores, "UPDATE jobs SET state = 'failed', ended_at = now() - interval '90 d' WHERE id = :key", key=key
    )
    async with service.stores.database.transaction() as tx:
        assert await store.remove_jobs(tx, [key], 86400) == 0, "its run is live"
    await execute(service.stores, "UPDATE jobs SET state = 'held', ended_at = NULL WHERE id = :key", key=key)
    await execute(service.stores, "UPDATE runs SET state = 'lost', ended_at = now() WHERE job_id = :key", key=key)
    async with service.stores.database.transaction() as tx:
        assert await store.remove_jobs(tx, [key], 86400) == 0, "it was taken up again since somebody looked"
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 1


async def test_old_days_of_events_are_dropped_and_their_jobs_still_say_where_they_are(service: Service) -> None:
    agent = await connected(service)
    job_id = await service.submit()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await service.until(job_id, "running")
    today = datetime.now(UTC).date()
    days = {number: partition_of(today - timedelta(days=number)) for number in (40, 31, 30, 29)}
    for number, name in days.items():
        day = today - timedelta(days=number)
        await execute(
            service.stores,
            f"CREATE TABLE {name} PARTITION OF events FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')",
        )
    await execute(
        service.stores, "UPDATE events SET at = at - interval '40 d' WHERE job_id = :key", key=parse_job_id(job_id)[1]
    )
    stray = "INSERT INTO events (at, job_id, seq, kind) VALUES (now() - make_interval(days => :days), 999999, :days, 'stray')"
    for number in (35, 20):
        await execute(service.stores, stray, days=number)
    removed = await retain(service)
    assert (removed.partitions, removed.jobs, removed.finished) == (2, 0, True)
    left = {
        row.relname
        for row in await rows(service.stores, "SELECT relname FROM pg_class WHERE relname ~ '^events_[0-9]+$'")
    }
    assert not {days[40], days[31]} & left
    assert {days[30], days[29], partition_of(today)} <= left
    assert [row.seq for row in await rows(service.stores, "SELECT seq FROM events WHERE kind = 'stray'")] == [20]

    shown = await service.job(job_id)
    assert shown["state"] == "running"
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [(event["seq"], event["states"]) for event in events] == [(1, ["queued"]), (shown["version"], ["running"])]
    await agent.report(run, RunState.SUCCEEDED, 2)
    await service.until(job_id, "succeeded")
    events = (await service.http.get(f"/v1/jobs/{job_id}/events")).json()["events"]
    assert [event["kind"] for event in events] == ["submitted", "run.succeeded"]


async def test_a_watcher_of_a_job_without_its_last_event_comes_to_an_end(service: Service) -> None:
    agent = await connected(service)
    key = await ended(service, agent)
    await execute(service.stores, "DELETE FROM events")
    job_id = (await service.http.get("/v1/jobs")).json()["jobs"][0]["id"]
    assert parse_job_id(job_id)[1] == key
    async with service.http.stream(
        "GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}
    ) as stream:
        text = (await stream.aread()).decode()
    assert "event: now" in text
    assert text.rstrip().endswith("event: end\ndata: succeeded")


async def test_a_day_of_events_in_use_is_left_for_another_time(service: Service) -> None:
    day = datetime.now(UTC).date() - timedelta(days=40)
    name = partition_of(day)
    await execute(
        service.stores,
        f"CREATE TABLE {name} PARTITION OF events FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')",
    )
    async with service.stores.database.transaction() as reader:
        await reader.all("SELECT * FROM events LIMIT 1")
        assert (await retain(service)).partitions == 0
    assert (await retain(service)).partitions == 1


async def test_keys_audit_changes_and_dead_letters_go_when_they_are_old(service: Service) -> None:
    hooks = [{"url": "https://hooks.example/", "states": ["queued"]}]
    for number in range(3):
        answer = await service.http.post(
            "/v1/jobs", json=job(notify=hooks), headers={"Idempotency-Key": f"key-{number}"}
        )
        assert answer.status_code == 201
    first = "(SELECT min(id) FROM {0})"
    for table, column, days in (("audit", "at", 366), ("changes", "created_at", 2)):
        await execute(
            service.stores,
            f"UPDATE {table} SET {column} = now() - make_interval(days => :days) WHERE id = {first.format(table)}",
            days=days,
        )
    await execute(service.stores, "UPDATE idempotency_keys SET created_at = now() - interval '8 d' WHERE key = 'key-0'")
    await execute(service.stores, "UPDATE idempotency_keys SET created_at = now() - interval '6 d' WHERE key = 'key-1'")
    await execute(
        service.stores, "UPDATE outbox SET dead_at = now() - interval '31 d' WHERE id = (SELECT min(id) FROM outbox)"
    )
    tables = ("audit", "changes", "idempotency_keys", "outbox")
    before = {table: await value(service.stores, f"SELECT count(*) FROM {table}") for table in tables}
    assert (await retain(service, batch=2)).finished
    after = {table: await value(service.stores, f"SELECT count(*) FROM {table}") for table in tables}
    assert {table: before[table] - after[table] for table in tables} == dict.fromkeys(tables, 1)
    kept = await rows(service.stores, "SELECT key FROM idempotency_keys ORDER BY key")
    assert [row.key for row in kept] == ["key-1", "key-2"]


async def test_a_change_that_a_reader_may_still_wait_for_is_never_removed(service: Service) -> None:
    async with service.stores.database.transaction() as writer:
        await writer.one("SELECT pg_current_xact_id()")
        await service.submit()
        await execute(service.stores, "UPDATE changes SET created_at = now() - interval '9 d'")
        newest = await value(service.stores, "SELECT max(id) FROM changes")
        await retain(service)
        assert await value(service.stores, "SELECT max(id) FROM changes") == newest
    await retain(service)
    # The newest stays: it tells how far back the feed reaches.
    assert await value(service.stores, "SELECT array_agg(id) FROM changes") == [newest]


async def test_two_at_once_do_not_fight(service: Service) -> None:
    agent = await connected(service)
    keys = [await ended(service, agent) for _ in range(4)]
    await age_jobs(service, 31, *keys)
    async with service.stores.database.transaction() as other:
        assert await store.take_turn(other)
        assert await retain(service) == Removed()
    done = await asyncio.gather(*(retain(service, batch=1) for _ in range(3)))
    assert sum(one.jobs for one in done) == 4
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0


async def test_it_stops_between_two_steps_when_told_to(service: Service) -> None:
    agent = await connected(service)
    await age_jobs(service, 31, *[await ended(service, agent) for _ in range(3)])
    answers = iter([True] * 23)  # the first ones are asked before series are rolled up and what was used is counted
    turn = Retention(service.stores.database, service.settings, lambda: next(answers, False), batch=1)
    removed = await turn.run()
    assert (removed.jobs, removed.finished) == (1, False)


async def test_of_each_declared_object_the_latest_revisions_are_kept(service: Service) -> None:
    for path, many in (("busy", 7), ("quiet", 2)):
        for weight in range(many):
            body = {"path": path, "weight": weight + 1}
            assert (await service.http.put(f"/v1/queues/{path}", json=body)).is_success
    await service.http.delete("/v1/queues/quiet")
    assert (await retain(service, batch=2, keep_revisions="3")).finished
    kept = await rows(
        service.stores, "SELECT name, revision FROM declared_revisions WHERE kind = 'Queue' ORDER BY 1, 2"
    )
    paths = [(row.name, row.revision) for row in kept]
    assert paths == [("busy", 5), ("busy", 6), ("busy", 7), ("default", 1), ("quiet", 1), ("quiet", 2), ("quiet", 3)]
    page = (await service.http.get("/v1/history", params={"kind": "Queue", "name": "busy"})).json()["revisions"]
    assert [(one["revision"], len(one["fields"])) for one in page] == [(7, 1), (6, 1), (5, 0)]
    restored = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "busy", "revision": 5})
    assert restored.json()["object"]["fields"] == [{"field": "weight", "before": 7.0, "after": 5.0}]


async def test_the_history_of_a_removed_object_goes_with_the_audit(service: Service) -> None:
    for path in ("gone", "there"):
        for weight in (1, 2):
            await service.http.put(f"/v1/queues/{path}", json={"path": path, "weight": weight})
    await service.http.delete("/v1/queues/gone")
    await retain(service, keep_audit="30d")
    sql = "SELECT count(*) FROM declared_revisions WHERE name = :name"
    assert await value(service.stores, sql, name="gone") == 3
    await execute(service.stores, "UPDATE declared_revisions SET at = at - interval '31 d'")
    await retain(service, batch=2, keep_audit="30d")
    assert (await value(service.stores, sql, name="gone"), await value(service.stores, sql, name="there")) == (0, 2)


async def age_left_overs(service: Service, days: int) -> None:
    for sql in (
        "UPDATE shapes SET used_on = used_on - CAST(:days AS int)",
        "UPDATE class_reasons SET at = at - make_interval(days => :days)",
        "UPDATE agent_sessions SET created_at = created_at - make_interval(days => :days)",
    ):
        await execute(service.stores, sql, days=days)


async def is_judged(service: Service, job_id: str) -> bool:
    """Return whether a verdict of the job's class is reported."""
    answer = await service.http.get(f"/v1/jobs/{job_id}/why")
    return bool(answer.json()["token"] != Token.NOT_LOOKED_AT)


async def counted(service: Service) -> dict[str, int]:
    tables = ("shapes", "class_reasons", "agent_sessions")
    sql = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS many FROM {name}" for name in tables)
    return {row.name: row.many for row in await rows(service.stores, sql)}


async def test_shapes_verdicts_and_sessions_go_once_nothing_has_them(service: Service) -> None:
    before = await connected(service)
    gone = await ended(service, before)
    agent = service.agent()
    agent.session = "newer"
    await agent.connect(cpu=8)
    waiting = await service.submit(cpu="100")
    await eventually(lambda: is_judged(service, waiting))
    await age_left_overs(service, 34)
    await age_jobs(service, 34, gone, parse_job_id(waiting)[1])
    assert await counted(service) == {"shapes": 2, "class_reasons": 1, "agent_sessions": 2}
    await retain(service)
    assert await counted(service) == {"shapes": 1, "class_reasons": 1, "agent_sessions": 1}
    assert await is_judged(service, waiting), "the waiting job's verdict is still told"
    assert (await service.http.post(f"/v1/jobs/{waiting}/cancel")).is_success
    await service.until(waiting, "cancelled")
    await retain(service)
    assert await counted(service) == {"shapes": 1, "class_reasons": 0, "agent_sessions": 1}, "it may be retried"
    await age_jobs(service, 34, parse_job_id(waiting)[1])
    await retain(service)
    assert await counted(service) == {"shapes": 0, "class_reasons": 0, "agent_sessions": 1}
    assert await ended(service, agent), "a shape that went is made anew"


async def test_a_shape_is_safe_from_the_moment_a_submission_refers_to_it(service: Service) -> None:
    agent = await connected(service)
    key_of_job = await ended(service, agent)
    await age_left_overs(service, 34)
    await age_jobs(service, 34, key_of_job)
    key = (await rows(service.stores, "SELECT hash, body::text AS body FROM shapes"))[0]
    async with service.stores.database.transaction() as submission:
        ids = await jobs_store.shape_ids(submission, {bytes(key.hash): key.body.encode()})
        removing = asyncio.create_task(retain(service))
        done, _ = await asyncio.wait({removing}, timeout=0.5)
        assert not done, "the removal waits for the submission"
    await removing
    assert [row.id for row in await rows(service.stores, "SELECT id FROM shapes")] == list(ids.values())


async def test_a_shape_that_goes_while_it_is_looked_up_is_made_anew(service: Service) -> None:
    agent = await connected(service)
    key_of_job = await ended(service, agent)
    await age_left_overs(service, 34)
    await age_jobs(service, 34, key_of_job)
    key = (await rows(service.stores, "SELECT id, hash, body::text AS body FROM shapes"))[0]

    async def look_up() -> dict[bytes, int]:
        async with service.stores.database.transaction() as submission:
            return await jobs_store.shape_ids(submission, {bytes(key.hash): key.body.encode()})

    async with service.stores.database.transaction() as removal:
        await store.remove_shapes(removal, 0, 10, 0)
        looking = asyncio.create_task(look_up())
        done, _ = await asyncio.wait({looking}, timeout=0.5)
        assert not done, "the submission waits for the removal"
    (found,) = (await looking).values()
    assert found != key.id
    assert [row.id for row in await rows(service.stores, "SELECT id FROM shapes")] == [found]
