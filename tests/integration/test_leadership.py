"""One scheduler leads, and only its token writes; when it dies, freezes or leaves, a standby goes on within seconds."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.conftest import Service
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.scheduler import loop
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.services import agent_reports
from trainmaster_dispatcher.services.apply_plan import NotLeaderError, apply_plan, release_holds
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import scheduling

TAKE_OVER_SECONDS = 5.0 if os.environ.get("TRAINMASTER_DEEP") else 60.0
"""From the leader's death to the next decision by a standby: 5 s, on a machine that has nothing else to do."""


@dataclass
class Running:
    """A scheduler in this process, with stores of its own."""

    scheduler: Scheduler
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.scheduler.token is not None

    async def leading(self) -> bool:
        return self.leads

    async def end(self) -> None:
        self.stop.set()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.scheduler.stores.close()


@pytest.fixture
async def settings(database_url: str, redis_url: str) -> Settings:
    """The settings of an installation with one cluster that is not scheduled yet."""
    made = Settings.model_validate({"database_url": database_url, "redis_url": redis_url, "lease_seconds": 60.0})
    cluster = ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)
    await make_local_installation(
        made, [cluster], {"admin": "tmk_admin", "private": "tmk_private"}, [QueueSpec(path="default")]
    )
    return made


@pytest.fixture
async def stores(settings: Settings) -> AsyncIterator[Stores]:
    opened = Stores.open(settings)
    yield opened
    await opened.close()


def run_scheduler(settings: Settings) -> Running:
    stop = asyncio.Event()
    scheduler = Scheduler(Stores.open(settings))
    return Running(scheduler, stop, asyncio.create_task(scheduler.run(stop)))


async def test_of_two_schedulers_one_leads_and_leaves_the_lead_when_it_stops(
    settings: Settings, stores: Stores
) -> None:
    both = [run_scheduler(settings), run_scheduler(settings)]

    async def one_leads() -> bool:
        return any(running.leads for running in both)

    await eventually(one_leads)
    leader, standby = sorted(both, key=lambda running: not running.leads)
    assert not standby.leads
    token = leader.scheduler.token
    began = time.monotonic()
    await leader.end()
    left = "SELECT token > :token OR expires_at <= clock_timestamp() FROM leadership"
    assert await value(stores, left, token=token), "left at once, or the standby has it already"
    await eventually(standby.leading)
    assert time.monotonic() - began < settings.leader_seconds, "nobody had to wait until the lead ran out"
    assert token is not None
    assert standby.scheduler.token == token + 1
    await standby.end()


async def test_a_leader_that_does_not_renew_is_replaced_and_learns_of_it(settings: Settings, stores: Stores) -> None:
    first = run_scheduler(settings)
    await eventually(first.leading)
    async with stores.database.transaction() as tx:
        # As if it had been silent for longer than its lead lasts, seen by somebody who waits for just that.
        assert await scheduling.take_lead(tx, "other", 60) is None
        await tx.run("UPDATE leadership SET expires_at = clock_timestamp() - interval '1 s'")
        assert await scheduling.take_lead(tx, "other", 60)

    async def follows() -> bool:
        return first.scheduler.token is None

    await eventually(follows)
    assert not first.task.done(), "it goes on as a standby"
    assert await value(stores, "SELECT holder FROM leadership") == "other"
    await execute(stores, "UPDATE leadership SET expires_at = clock_timestamp()")
    await eventually(first.leading)
    await first.end()


async def test_the_lead_is_given_to_one_of_many_who_ask_at_once(stores: Stores) -> None:
    async def ask(name: str) -> int | None:
        async with stores.database.transaction() as tx:
            return await scheduling.take_lead(tx, name, 60)

    for turn in range(1, 4):
        tokens = await asyncio.gather(*[ask(f"s{number}") for number in range(8)])
        assert [token for token in tokens if token is not None] == [turn]
        await execute(stores, "UPDATE leadership SET expires_at = clock_timestamp()")


async def test_an_old_token_applies_nothing(service: Service) -> None:
    stores = service.stores
    await service.submit(cpu="64")

    async def led() -> bool:
        return bool(await value(stores, "SELECT token FROM leadership"))

    await eventually(led)
    old = await value(stores, "SELECT token - 1 FROM leadership")
    with pytest.raises(NotLeaderError):
        await apply_plan(stores, old, Plan(), {}, 1)
    assert await release_holds(stores, old) == 0
    assert await agent_reports.give_up_overdue(stores, old) == 0


# -- real processes


@dataclass
class Processes:
    """An api and schedulers as processes of their own."""

    url: str
    start_scheduler: Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def processes(settings: Settings, tmp_path: Path) -> Iterator[Processes]:
    env = {key: text for key, text in os.environ.items() if not key.startswith("TRAINMASTER_")}
    env |= {
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url or "",
        "TRAINMASTER_LEASE_SECONDS": "60",
    }
    children: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> "subprocess.Popen[bytes]":
        log = (tmp_path / f"{words[0]}-{len(children)}.log").open("wb")
        command = [sys.executable, "-m", "trainmaster.cli.main", *words]
        children.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        log.close()
        return children[-1]

    port = free_port()
    wait_for_port(port, start("serve", "--port", str(port)), 20, "the api")
    yield Processes(f"http://127.0.0.1:{port}", lambda: start("scheduler"))
    for child in children:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()


@dataclass
class Cast:
    """Two scheduler processes, of which the first leads, and the service that they schedule for."""

    service: Service
    leader: "subprocess.Popen[bytes]"
    standby: "subprocess.Popen[bytes]"

    async def leader_pid(self) -> int:
        holder = str(await value(self.service.stores, "SELECT holder FROM leadership"))
        return int(holder.rpartition(":")[2] or 0)

    async def seconds_to_dispatch(self, began: float) -> float:
        """Submit a job, wait until it has a run, and return the seconds since ``began``."""
        job_id = await self.service.submit()
        await self.service.until(job_id, "dispatched", seconds=30)
        return time.monotonic() - began

    async def double_runs(self) -> list[Any]:
        return await rows(self.service.stores, "SELECT job_id FROM runs GROUP BY job_id HAVING count(*) > 1")


@pytest.fixture
async def cast(processes: Processes, settings: Settings, stores: Stores) -> AsyncIterator[Cast]:
    async with httpx.AsyncClient(
        base_url=processes.url, headers={"Authorization": "Bearer tmk_admin"}, timeout=60
    ) as http:
        service = Service(processes.url, settings, stores, http)
        await service.agent().connect(cpu=100)
        acting = Cast(service, processes.start_scheduler(), processes.start_scheduler())

        async def first_decision() -> bool:
            return await acting.leader_pid() in (acting.leader.pid, acting.standby.pid)

        await eventually(first_decision, 20)
        await acting.seconds_to_dispatch(time.monotonic())
        if await acting.leader_pid() != acting.leader.pid:
            acting.leader, acting.standby = acting.standby, acting.leader

        async def standby_follows() -> bool:
            redis = urlsplit(settings.redis_url or "").port
            return any(
                link.raddr and link.raddr.port == redis for link in psutil.Process(acting.standby.pid).net_connections()
            )

        await eventually(standby_follows, 20)
        yield acting


async def test_a_standby_decides_within_seconds_after_the_leader_was_killed(cast: Cast) -> None:
    began = time.monotonic()
    cast.leader.send_signal(signal.SIGKILL)
    seconds = await cast.seconds_to_dispatch(began)
    print(f"leader killed -> next decision after {seconds:.2f} s")
    assert await cast.leader_pid() == cast.standby.pid
    assert seconds < TAKE_OVER_SECONDS
    assert await cast.double_runs() == []


async def test_a_leader_that_was_frozen_applies_nothing_when_it_wakes(cast: Cast) -> None:
    stores = cast.service.stores

    async def freeze() -> bool:
        """Freeze the leader; undo it and return False if it was inside a transaction, which others would wait for."""
        cast.leader.send_signal(signal.SIGSTOP)
        open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()"
        if await value(stores, open_ones) == 0:
            return True
        cast.leader.send_signal(signal.SIGCONT)
        return False

    began = time.monotonic()
    await eventually(freeze)
    seconds = await cast.seconds_to_dispatch(began)
    print(f"leader frozen -> next decision after {seconds:.2f} s")
    assert seconds < TAKE_OVER_SECONDS
    token = await value(stores, "SELECT token FROM leadership")
    waiting = [await cast.service.submit(f"more-{number}") for number in range(20)]
    cast.leader.send_signal(signal.SIGCONT)
    more = [await cast.service.submit(f"later-{number}") for number in range(20)]
    for job_id in (*waiting, *more):
        await cast.service.until(job_id, "dispatched")
    held = await rows(stores, "SELECT token, holder FROM leadership")
    assert [(row.token, row.holder.rpartition(":")[2]) for row in held] == [(token, str(cast.standby.pid))]
    assert await cast.double_runs() == []
    assert cast.leader.poll() is None, "it goes on as a standby"
    began = time.monotonic()
    cast.standby.send_signal(signal.SIGKILL)
    print(f"and back again after {await cast.seconds_to_dispatch(began):.2f} s")
    assert await cast.leader_pid() == cast.leader.pid


async def test_a_standby_with_many_jobs_has_its_rooms_warm_and_applies_nothing(
    settings: Settings, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_MANY_JOBS", 0)
    leader = run_scheduler(settings)
    await eventually(leader.leading)
    standby = run_scheduler(settings)

    async def is_warm() -> bool:
        return bool(standby.scheduler._follower.engine.index.clusters)

    await eventually(is_warm)
    assert not standby.leads
    assert standby.scheduler.cycle == 0
    await leader.end()
    await eventually(standby.leading)
    await standby.end()
