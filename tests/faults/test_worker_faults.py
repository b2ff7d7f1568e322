"""Side jobs under faults: a worker is killed again and again while messages flow, and no message is lost or out of order."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.conftest import Service
from tests.integration.receiver import SECRET, Receiver
from tests.integration.rows import value
from tests.waiting import eventually
from trainmaster_dispatcher.cli.embedded import free_port, redis_command, wait_for_port

pytestmark = pytest.mark.faults

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
JOBS, KILLS = (60, 8) if os.environ.get("TRAINMASTER_DEEP") else (40, 5)
ACTIONS = ("resume", "suspend", "resume", "cancel")
EXPECTED_STATES = ["held", "queued", "held", "queued", "cancelled"]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "SECRET": SECRET,
        "ALLOW_HTTP": "true",
        "ALLOW_NETWORKS": "127.0.0.1/32",
        "FIRST_RETRY_SECONDS": "0.05",
        "MOST_RETRY_SECONDS": "0.2",
        "ATTEMPTS": "100",
        "TIMEOUT_SECONDS": "0.2",  # and with it, how long the claims of a worker that was killed last
    }.items():
        monkeypatch.setenv(f"TRAINMASTER_WEBHOOK_{name}", text)


@pytest.fixture
def env(database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of processes on a Redis of this test's own, where a beat runs already."""
    port = free_port()
    redis = subprocess.Popen(redis_command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, redis, 60, "Redis")
    env = os.environ | {"DATABASE_URL": database_url, "REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    beat = subprocess.Popen([*PROGRAM, "beat"], env=env, stderr=subprocess.DEVNULL)
    yield env
    for child in (beat, redis):
        child.kill()
        child.wait()


def worker(env: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*PROGRAM, "worker"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def without_repeats(states: list[str]) -> list[str]:
    """Return the states with repeated messages counted once: repeats directly follow what they repeat."""
    return [state for state, _ in groupby(states)]


async def test_no_message_is_lost_however_often_the_worker_is_killed(service: Service, env: dict[str, str]) -> None:
    with Receiver(lambda number: 503 if number % 5 == 0 else 200) as receiver:
        hooks = [{"url": receiver.url, "states": ["held", "queued", "cancelled"]}]
        ids: list[str] = []

        async def flow() -> None:
            for _ in range(JOBS):
                ids.append(await service.submit(notify=hooks, suspend=True))
                for action in ACTIONS:
                    answer = await service.http.post(f"/v1/jobs/{ids[-1]}/{action}")
                    assert answer.status_code == 200, answer.text

        flowing = asyncio.create_task(flow())
        for _ in range(KILLS):
            process = worker(env)
            before, more = len(receiver.received), random.randint(1, 20)

            async def has_done_some(before: int = before, more: int = more) -> bool:
                left = await value(service.stores, "SELECT count(*) FROM outbox")
                return len(receiver.received) >= before + more or (flowing.done() and left == 0)

            try:
                await eventually(has_done_some, 30)
            finally:
                kill(process)
        await flowing
        process = worker(env)

        async def is_empty() -> bool:
            return bool(await value(service.stores, "SELECT count(*) = 0 FROM outbox"))

        try:
            await eventually(is_empty, 60)
        finally:
            kill(process)
    assert receiver.states().keys() == set(ids)
    for job_id, states in receiver.states().items():
        assert without_repeats(states) == EXPECTED_STATES, (job_id, states)
    assert all(one.is_signed() for one in receiver.received)
