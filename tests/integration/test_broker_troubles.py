"""A worker and a beat on a Redis that refuses, talks nonsense or holds what it should not: neither ends, and side jobs go on."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import InvalidResponse, OutOfMemoryError, ResponseError

from tests.conftest import Service
from tests.integration.receiver import Receiver
from tests.integration.test_worker import Start, hooks, redis_port, start
from tests.waiting import eventually
from trainmaster.metrics.definitions import contained_errors
from trainmaster_dispatcher import containment
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.worker import app as worker_app
from trainmaster_dispatcher.worker import broker_troubles
from trainmaster_dispatcher.worker.app import Timetable, make_app

__all__ = ["hooks", "redis_port", "start"]

ANSWERS = {
    "full": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "no permission": b"-NOPERM this user has no permissions to run the 'brpop' command\r\n",
    "a replica without its master": b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    "nonsense": b"\xff\xfe$99999999999\r\n:x\r\n",
}
SPOILED = {
    "side-jobs": "string",
    "unacked": "string",
    "unacked_index": "string",
    "unacked_mutex": "list",
    "_kombu.binding.side-jobs": "string",
}
GARBAGE = (b"x", b"{}", b"[]", b"\xff\xfe", b'{"properties": 7}', b'{"body": "x", "properties": {"delivery_tag": "1"}}')


def log_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the log of a process, without what it says before the log is set up."""
    lines = (folder / f"{name}.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


class Door:
    """Passes connections on to Redis; while ``answer`` is set, each command gets that instead."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answer = b""
        self._writers: set[asyncio.StreamWriter] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}

        async def forth() -> None:
            while data := await reader.read(65_536):
                if self.answer:
                    writer.write(self.answer * max(1, len(re.findall(rb"(?:^|\r\n)\*\d+\r\n", data))))
                else:
                    back.write(data)
            back.close()

        async def here() -> None:
            while data := await there.read(65_536):
                writer.write(data)
            writer.close()

        await asyncio.gather(forth(), here(), return_exceptions=True)

    def heal(self) -> None:
        """Pass everything on again, on new connections."""
        self.answer = b""
        for writer in self._writers:
            writer.close()
        self._writers.clear()


@asynccontextmanager
async def door_to(port: int) -> AsyncIterator[tuple[Door, str]]:
    door = Door(port)
    server = await asyncio.start_server(door.take, "127.0.0.1", 0)
    try:
        yield door, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()


def spoil(redis: Redis, key: str, kind: str) -> None:
    redis.delete(key)
    if kind == "list":
        redis.rpush(key, b"x")
    else:
        redis.set(key, b"x")


async def tells(service: Service, receiver: Receiver, seconds: float = 60) -> None:
    """Wait until the messages of a new job have gone out."""
    job = await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])

    async def is_told() -> bool:
        return job in receiver.states()

    await eventually(is_told, seconds)


async def test_worker_and_beat_outlive_every_trouble_and_go_on_without_a_restart(
    service: Service, start: Start, redis_port: int, tmp_path: Path
) -> None:
    """`SET trainmaster:side-jobs x` ended both of them once."""
    start("redis")
    async with door_to(redis_port) as (door, url):
        with Receiver() as receiver, Redis(port=redis_port) as redis:
            beat, worker = start("beat", REDIS_URL=url), start("worker", REDIS_URL=url)
            await tells(service, receiver)
            for key, kind in SPOILED.items():
                spoil(redis, f"trainmaster:{key}", kind)
            await tells(service, receiver)
            redis.rpush("trainmaster:side-jobs", *GARBAGE)
            redis.sadd("trainmaster:_kombu.binding.side-jobs", b"garbage")
            await tells(service, receiver)
            for name, answer in ANSWERS.items():
                door.answer = answer

                await asyncio.sleep(3)
                assert (beat.poll(), worker.poll()) == (None, None), name
                door.heal()
                await tells(service, receiver)
            for process in (beat, worker):
                process.terminate()
            assert (await asyncio.to_thread(beat.wait, 30), await asyncio.to_thread(worker.wait, 30)) == (0, 0)
    for who in ("beat", "worker"):
        lines = log_of(tmp_path, who)
        said = [line["message"].split("\n")[0] for line in lines if line["level"].lower() == "error"]
        assert any("contained" in line for line in said)
        assert len(said) < 40, said
    assert any("was deleted" in line["message"] for who in ("beat", "worker") for line in log_of(tmp_path, who))


async def test_a_worker_whose_acknowledgements_failed_while_all_its_places_were_taken_receives_again(
    service: Service, start: Start, redis_port: int
) -> None:
    """It asked Redis for nothing more, met no error therefore, and idled until it was restarted."""
    may_end, is_called = threading.Event(), threading.Event()

    def slowly(number: int) -> int:
        is_called.set()
        may_end.wait(60)
        return 200

    start("redis")
    async with door_to(redis_port) as (door, url):
        with Receiver(slowly) as receiver:
            start("beat")
            start("worker", "--concurrency", "1", REDIS_URL=url)
            await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
            assert await asyncio.to_thread(is_called.wait, 60)
            await asyncio.sleep(2)  # the answer to its last question is in: it has a message and may not have another
            door.answer = ANSWERS["a replica without its master"]
            may_end.set()
            await asyncio.sleep(1)
            door.heal()
            await tells(service, receiver)


@pytest.fixture
def timetable(redis_url: str) -> Timetable:
    containment._logged.clear()
    return Timetable(app=make_app(Settings.model_validate({"redis_url": redis_url})))


def counted() -> float:
    return float(contained_errors.labels(Part.TASK.value)._value.get())


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("MASTERDOWN Link with MASTER is down"),
        ResponseError("NOPERM no permissions"),
        OutOfMemoryError("command not allowed"),
        InvalidResponse("Protocol Error"),
        ValueError("garbage"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:30],
)
@pytest.mark.parametrize("where", ["asking how many wait", "sending", "connecting"])
def test_an_error_of_redis_never_leaves_beat(
    timetable: Timetable,
    error: Exception,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as broken:
        match where:
            case "asking how many wait":
                broken.setattr(worker_app, "_waiting", fails)
            case "sending":
                broken.setattr(worker_app, "_waiting", lambda producer: 0)
                broken.setattr(timetable, "send_task", fails)
            case _:
                broken.setattr(timetable, "_ensure_connected", fails)
        before = counted()
        for entry in timetable.schedule.values():
            entry.last_run_at = entry.last_run_at.replace(year=2000)
        for _ in range(20):
            assert timetable.tick() <= 1.0
    assert counted() > before + 2
    said = [line for line in caplog.records if "an unexpected error was contained" in line.message]
    assert len(said) == 1, "once for each kind of trouble"
    sent: list[str] = []
    monkeypatch.setattr(worker_app, "_waiting", lambda producer: 0)
    monkeypatch.setattr(timetable, "send_task", lambda task, *_, **__: sent.append(task))
    for entry in timetable.schedule.values():
        entry.last_run_at = entry.last_run_at.replace(year=2000)
    timetable._heap = None
    for _ in range(20):
        timetable.tick()
    assert set(sent) == {"labels", "notices", "relay", "usage", "simulate", "retention", "schedules"}, (
        "no entry was lost"
    )


def test_keys_of_a_wrong_type_are_deleted_and_all_after_something_that_cannot_be_read(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.set("trainmaster:side-jobs", b"x")
        redis.hset("trainmaster:unacked", "tag", "x")
        redis.set("trainmaster:other", b"kept")
        redis.set("side-jobs", b"somebody else's")
        assert broker_troubles.clear_up(redis, ResponseError("WRONGTYPE")) == ["side-jobs"]
        assert broker_troubles.clear_up(redis, ResponseError("WRONGTYPE")) == []
        assert broker_troubles.clear_up(redis, ValueError("no JSON")) == ["unacked"]
        assert (redis.get("trainmaster:other"), redis.get("side-jobs")) == (b"kept", b"somebody else's")
