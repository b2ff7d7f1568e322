"""A real worker and a real beat: messages flow, processes start and end as they should, and outages pass."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.conftest import Service
from tests.integration.mail_server import MailReceiver
from tests.integration.receiver import SECRET, Receiver
from tests.integration.rows import execute, value
from tests.waiting import eventually, eventually_sync
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import free_port, redis_command, wait_for_port

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
HOOKS = {
    "TRAINMASTER_WEBHOOK_SECRET": SECRET,
    "TRAINMASTER_WEBHOOK_ALLOW_HTTP": "true",
    "TRAINMASTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.1/32",
    "TRAINMASTER_WEBHOOK_FIRST_RETRY_SECONDS": "0.05",
    "TRAINMASTER_WEBHOOK_MOST_RETRY_SECONDS": "0.1",
}
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in HOOKS.items():
        monkeypatch.setenv(name, text)


@pytest.fixture
def redis_port() -> int:
    """A port for a Redis of this test's own: others must not take its tasks."""
    return free_port()


@pytest.fixture
def start(database_url: str, redis_port: int, tmp_path: Path) -> Iterator[Start]:
    """Starts a command of the program; all are killed at the end. Their logs are ``tmp_path/NAME.log``."""
    children: list[subprocess.Popen[bytes]] = []
    stores = {"DATABASE_URL": database_url, "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0"}

    def run(name: str, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / f"{name}.log").open("ab") as log:
            command = redis_command(redis_port) if name == "redis" else [*PROGRAM, name, *words]
            child = subprocess.Popen(command, env=os.environ | stores | env, stdout=log, stderr=log)
        children.append(child)
        if name == "redis":
            wait_for_port(redis_port, child, 60, "Redis")
        return child

    yield run
    for child in children:
        child.kill()
        child.wait()


def log_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the log of a process; every line of it is JSON."""
    return [json.loads(line) for line in (folder / f"{name}.log").read_text().splitlines()]


async def all_delivered(service: Service, seconds: float = 30) -> None:
    async def is_empty() -> bool:
        return bool(await value(service.stores, "SELECT count(*) = 0 FROM outbox WHERE dead_at IS NULL"))

    await eventually(is_empty, seconds)


async def test_a_worker_mails_what_users_want_to_know_within_seconds(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MailReceiver() as mails:
        monkeypatch.setenv("TRAINMASTER_SMTP_URL", mails.url)
        monkeypatch.setenv("TRAINMASTER_MAIL_FROM", "tm@example.com")
        monkeypatch.setattr(service.stores.settings, "smtp_url", SecretStr(mails.url))
        start("redis")
        start("beat")
        start("worker")
        me = (await service.http.get("/v1/whoami")).json()["id"]
        assert (await service.http.post(f"/v1/keys/{me}/email", json={"email": "ada@example.com"})).status_code == 204
        stored = await service.http.put("/v1/notices", json={"email": True, "events": ["cancelled"]})
        assert stored.status_code == 200, stored.text
        job_id = await service.submit()
        await service.http.post(f"/v1/jobs/{job_id}/cancel")

        async def has_come() -> bool:
            return bool(mails.taken)

        await eventually(has_come, 30)
        await all_delivered(service)
    assert [mail.subject for mail in mails.taken] == [f"[Trainmaster] Job {job_id} was cancelled"]


async def test_messages_flow_and_are_given_up_after_the_attempts(
    service: Service, start: Start, tmp_path: Path
) -> None:
    start("redis")
    port = free_port()
    start("beat")
    worker = start("worker", "--metrics-port", str(port), TRAINMASTER_WEBHOOK_ATTEMPTS="3")
    with Receiver(lambda number: 500 if number % 5 == 0 else 200) as receiver, Receiver(lambda number: 500) as broken:
        ids: list[str] = []
        for _ in range(10):
            urls = [{"url": url, "states": ["queued", "cancelled"]} for url in (receiver.url, broken.url)]
            ids.append(await service.submit(notify=urls[: 2 if len(ids) == 0 else 1]))
            await service.http.post(f"/v1/jobs/{ids[-1]}/cancel")
        await all_delivered(service)
    dead = (await service.http.get("/v1/webhooks/dead")).json()["dead"]
    assert [letter["attempts"] for letter in dead if letter["hook"] == 1] == [3, 3]
    lost = sum(letter["hook"] == 0 for letter in dead)  # five times a failure, three in a row: hardly ever
    received = receiver.states()
    assert sum(len(states) for states in received.values()) == 20 - lost
    assert all(states in (["queued", "cancelled"], ["queued"], ["cancelled"]) for states in received.values())
    assert all(one.is_signed() for one in receiver.received)
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    assert 'trainmaster_tasks_total{outcome="success",task="relay"}' in page
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    given_up = [line for line in log_of(tmp_path, "worker") if line["message"].startswith("a message was given up")]
    assert {line["job"] for line in given_up} == {letter["job"] for letter in dead}


async def test_many_messages_leave_quickly(service: Service, start: Start) -> None:
    with Receiver() as receiver:
        spec = [{"url": receiver.url, "states": ["queued"]}]
        answer = await service.http.post(
            "/v1/jobs",
            json={
                "job": {
                    "name": "many",
                    "queue": "default",
                    "notify": spec,
                    "roles": [{"name": "m", "template": {"command": ["true"], "args": ["${x}"]}}],
                },
                "parameters": [{"x": number} for number in range(500)],
            },
        )
        assert answer.status_code == 201, answer.text
        start("redis")
        start("beat")
        start("worker")
        await all_delivered(service, 60)
        assert len(receiver.states()) == 500
        assert len(receiver.received) == 500, "none went twice"


async def test_an_outage_of_redis_passes_and_nothing_waits_for_it(
    service: Service, start: Start, tmp_path: Path
) -> None:
    redis = start("redis")
    beat, worker = start("beat"), start("worker")
    with Receiver() as receiver:

        async def delivered(job_id: str) -> None:
            async def is_told() -> bool:
                return job_id in receiver.states()

            await eventually(is_told, 40)

        notify = [{"url": receiver.url, "states": ["queued"]}]
        await delivered(await service.submit(notify=notify))
        redis.kill()
        redis.wait()
        waiting = await service.submit(notify=notify)
        eventually_sync(
            lambda: any("Redis" in str(line) or "connect" in str(line) for line in log_of(tmp_path, "beat")), 20
        )
        start("redis")
        await delivered(waiting)
    assert (beat.poll(), worker.poll()) == (None, None)


async def test_several_beats_and_workers_send_each_message_once(service: Service, start: Start) -> None:
    start("redis")
    for _ in range(2):
        start("beat")
        start("worker")
    with Receiver() as receiver:
        for _ in range(30):
            await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
        await all_delivered(service)
    assert len(receiver.received) == 30


async def test_tasks_do_not_pile_up_where_no_worker_is(start: Start, redis_port: int, tmp_path: Path) -> None:
    start("redis")
    beat = start("beat")

    from redis import Redis

    with Redis(port=redis_port) as redis:
        eventually_sync(lambda: int(redis.llen("trainmaster:side-jobs")) >= 2, 20)
        for _ in range(30):
            redis.lpush("trainmaster:side-jobs", b"{}")
        eventually_sync(lambda: any("no more are sent" in line["message"] for line in log_of(tmp_path, "beat")), 20)
    beat.send_signal(signal.SIGTERM)
    assert beat.wait(20) == 0


async def test_retention_is_on_the_timetable_and_done_by_a_worker(
    service: Service, start: Start, redis_port: int
) -> None:
    from trainmaster_dispatcher.services.settings import Settings
    from trainmaster_dispatcher.worker.app import make_app

    start("redis")
    start("worker")
    await execute(service.stores, "UPDATE changes SET created_at = now() - interval '2 d'")
    assert await value(service.stores, "SELECT count(*) FROM changes") > 1
    settings = Settings.model_validate({"redis_url": f"redis://127.0.0.1:{redis_port}/0"})
    app = make_app(settings)
    tasks = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert tasks == {"labels", "notices", "relay", "retention", "schedules", "simulate", "usage"}
    app.send_task("retention")

    async def is_done() -> bool:
        return bool(await value(service.stores, "SELECT count(*) = 1 FROM changes"))  # the newest stays

    await eventually(is_done, 30)


@pytest.mark.parametrize("name", ["worker", "beat"])
@pytest.mark.parametrize("store", ["Postgres", "Redis"])
def test_a_store_away_at_the_start_ends_it_with_a_line(
    database_url: str, redis_url: str, name: str, store: str
) -> None:
    env = os.environ | {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "TRAINMASTER_START_RETRY_SECONDS": "1"}
    nowhere = f"127.0.0.1:{free_port()}"
    env |= (
        {"DATABASE_URL": f"postgresql://u@{nowhere}/x"}
        if store == "Postgres"
        else {"REDIS_URL": f"redis://{nowhere}/0"}
    )
    ended = subprocess.run([*PROGRAM, name], env=env, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == Exit.STORE_AWAY
    assert ended.stderr.splitlines()[-1].startswith(f"error: {store} did not answer for 1 s: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_without_redis_it_says_what_to_set(database_url: str, name: str) -> None:
    env = {key: text for key, text in os.environ.items() if key != "REDIS_URL"} | {"DATABASE_URL": database_url}
    ended = subprocess.run([*PROGRAM, name], env=env, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == Exit.USAGE
    assert ended.stderr.startswith("error: set REDIS_URL")


def test_a_side_loop_ends_with_its_threads(database_url: str) -> None:
    from trainmaster_dispatcher.services.settings import Settings
    from trainmaster_dispatcher.store.database import Database
    from trainmaster_dispatcher.worker.async_bridge import AsyncBridge

    async def ask(database: Database) -> str:
        await database.ping()
        return threading.current_thread().name

    bridge = AsyncBridge(Settings.model_validate({"database_url": database_url}))
    assert bridge.run(ask) == bridge.run(ask) == "side-jobs"
    bridge.close()
    eventually_sync(lambda: all(thread.name != "side-jobs" for thread in threading.enumerate()))
