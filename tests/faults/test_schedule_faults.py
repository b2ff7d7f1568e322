"""Due times under faults: workers and beats are killed again and again while schedules are due, and each due time becomes one job."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import Service
from tests.integration.rows import execute, rows, value
from tests.integration.scheduled import a_schedule, create
from tests.waiting import eventually
from trainmaster_dispatcher.cli.embedded import free_port, redis_command, wait_for_port

pytestmark = pytest.mark.faults

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
EACH, KILLS = (400, 12) if os.environ.get("TRAINMASTER_DEEP") else (200, 6)


class Processes:
    """Two workers and a beat, each of which can be killed and is then started again."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._running = {name: self._start(name) for name in ("worker 1", "worker 2", "beat")}

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        command = [*PROGRAM, name.split()[0]]
        return subprocess.Popen(command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def restart(self, name: str) -> None:
        self.kill(name)
        self._running[name] = self._start(name)

    def end(self) -> None:
        for name in self._running:
            self.kill(name)


@pytest.fixture
def processes(database_url: str) -> Iterator[Processes]:
    port = free_port()
    redis = subprocess.Popen(redis_command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, redis, 60, "Redis")
    env = os.environ | {"DATABASE_URL": database_url, "REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    running = Processes(env)
    yield running
    running.end()
    redis.kill()
    redis.wait()


async def add_due(service: Service, begin: int, many: int) -> None:
    """Add schedules with one due time each that has come, copies of the first."""
    await execute(
        service.stores,
        """
        INSERT INTO schedules (queue_id, name, spec, api_key_id, counts_from, next_look)
        SELECT s.queue_id, 's' || n, s.spec, s.api_key_id, now() - interval '1 year', now()
        FROM schedules s, generate_series(CAST(:first AS int), CAST(:last AS int)) AS n WHERE s.name = 'pattern'
        """,
        first=begin,
        last=begin + many - 1,
    )


async def test_each_due_time_becomes_one_job_whoever_is_killed(service: Service, processes: Processes) -> None:
    await create(service.http, a_schedule("pattern", schedule="0 0 1 1 *"))
    made = 0
    for _ in range(KILLS):
        before = await value(service.stores, "SELECT count(*) FROM scheduled_jobs")
        await add_due(service, made, EACH)
        made += EACH
        more = random.randint(1, EACH)

        async def has_done_some(wanted: int = before + more) -> bool:
            return bool(await value(service.stores, "SELECT count(*) >= :many FROM scheduled_jobs", many=wanted))

        await eventually(has_done_some, 60)
        for name in random.sample(["worker 1", "worker 2", "beat"], k=random.randint(1, 3)):
            processes.restart(name)

    async def is_done() -> bool:
        return bool(
            await value(
                service.stores, "SELECT count(*) = 0 FROM schedules WHERE next_look <= now() AND deleted_at IS NULL"
            )
        )

    await eventually(is_done, 90)
    counted = await rows(
        service.stores,
        "SELECT s.name, count(d.job_id) AS many FROM schedules s LEFT JOIN scheduled_jobs d ON d.schedule_id = s.id"
        " WHERE s.name <> 'pattern' GROUP BY s.name",
    )
    assert len(counted) == made
    assert {row.name for row in counted if row.many != 1} == set()
    assert await value(service.stores, "SELECT count(*) FROM jobs") == made
    assert await value(service.stores, "SELECT count(*) FROM schedule_events WHERE reason = 'SuccessfulCreate'") == made
