"""The change feed: nothing that was committed is ever skipped, whatever the order of the commits."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute, rows
from tests.waiting import eventually
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import ClusterKind, FailureCategory, RunState
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import scheduling
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.scheduling import Cursor, Feed


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    """A store with clusters and a queue, and no process that works on it."""
    settings = Settings.model_validate({"database_url": database_url, "redis_url": None, "pool_size": 40})
    await make_local_installation(
        settings,
        [ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)],
        {"admin": "tmk_admin"},
        [QueueSpec(path="default")],
    )
    opened = Stores.open(settings)
    yield opened
    await opened.close()


class _Number(NamedTuple):
    n: int


async def tell(tx: Transaction, job_id: int) -> None:
    """Write what a submission leaves in the feed."""
    await tx.run("INSERT INTO events (job_id, seq, kind) VALUES (:id, 1, 'submitted')", id=job_id)


async def read(stores: Stores, cursor: Cursor) -> Feed:
    async with stores.database.transaction() as tx:
        return await scheduling.read_feed(tx, cursor)


async def start(stores: Stores) -> Cursor:
    async with stores.database.transaction() as tx:
        return await scheduling.start_cursor(tx)


async def test_what_is_read_in_pages_may_take_longer_than_a_transaction_may_be_idle(stores: Stores) -> None:
    found: list[int] = []
    async with stores.database.transaction() as tx:
        await tx.run("SET LOCAL idle_in_transaction_session_timeout = '600ms'")
        async for page in tx.pages_of(_Number, "SELECT n FROM generate_series(1, :last) n", 4, last=22):
            assert len(page) in (4, 2)
            found += [row.n for row in page]
            assert (await tx.one("SELECT count(*) AS queues FROM queues")).queues > 0, (
                "other statements may come between"
            )
            await asyncio.sleep(0.15)
    assert found == list(range(1, 23))


async def test_no_rows_are_no_page(stores: Stores) -> None:
    async with stores.database.transaction() as tx:
        assert [page async for page in tx.pages_of(_Number, "SELECT 1 AS n WHERE false", 4)] == []
        assert (await tx.one("SELECT 1 AS n")).n == 1


async def test_a_commit_that_comes_late_is_not_skipped(stores: Stores) -> None:
    cursor = await start(stores)
    async with stores.database.transaction() as first:
        await tell(first, 1)
        async with stores.database.transaction() as second:
            await tell(second, 2)
        early = await read(stores, cursor)
        assert (early.job_ids, early.unsettled) == ((), True), "the second may still be overtaken by the first"
    late = await read(stores, early.cursor)
    assert (sorted(late.job_ids), late.unsettled) == ([1, 2], False)
    after = await read(stores, late.cursor)
    assert (after.job_ids, after.unsettled) == ((), False)


async def test_what_is_rolled_back_is_never_told_and_holds_nothing_up(stores: Stores) -> None:
    cursor = await start(stores)
    async with stores.database.transaction() as first:
        await tell(first, 1)
        async with stores.database.transaction() as second:
            await tell(second, 2)
        await first.connection.rollback()
    feed = await read(stores, cursor)
    assert (feed.job_ids, feed.unsettled) == ((2,), False)


async def test_changes_of_tenants_are_in_the_same_order(stores: Stores) -> None:
    cursor = await start(stores)
    async with stores.database.transaction() as first:
        await tell(first, 1)
        await execute(stores, "INSERT INTO changes (kind, ref) VALUES ('queue', 7)")
        early = await read(stores, cursor)
        assert (early.others, early.unsettled) == ((), True)
    assert (await read(stores, early.cursor)).others == (("queue", 7),)


@pytest.mark.parametrize("seed", range(3))
async def test_no_interleaving_loses_a_change_or_tells_it_unsettled(stores: Stores, seed: int) -> None:
    rng = random.Random(seed)
    cursor = await start(stores)
    delivered: list[int] = []
    committed: set[int] = set()
    rolled_back: set[int] = set()
    writing = True

    async def write(number: int) -> None:
        for step in range(12):
            job_id = number * 1000 + step
            try:
                async with stores.database.transaction() as tx:
                    await tell(tx, job_id)
                    for _ in range(rng.randrange(6)):
                        await tx.one("SELECT 1")
                    if rng.random() < 0.15:
                        raise ZeroDivisionError
                committed.add(job_id)
            except ZeroDivisionError:
                rolled_back.add(job_id)

    async def follow() -> None:
        nonlocal cursor
        last = False
        while not last:
            last = not writing
            before = cursor
            feed = await read(stores, cursor)
            assert feed.cursor >= before
            found = await rows(
                stores,
                "SELECT job_id, xid::text::bigint AS xid FROM events WHERE job_id = ANY(:ids)",
                ids=list(feed.job_ids),
            )
            assert all(before.xid <= row.xid < feed.cursor.xid for row in found), "told outside of its turn"
            delivered.extend(feed.job_ids)
            cursor = feed.cursor

    following = asyncio.create_task(follow())
    await asyncio.gather(*[write(number) for number in range(25)])
    writing = False
    await following
    assert sorted(delivered) == sorted(committed), "each once, and none that was rolled back"
    assert not rolled_back & set(delivered)
    assert len(committed) > 150


def indexes(state: SchedulerState) -> dict[str, Any]:
    """Return all that a state holds, in a form that compares."""
    waiting = {
        queue: {key: list(jobs) for key, jobs in classes.items() if jobs}
        for queue, classes in state.waiting.items()
        if classes
    }
    return {
        "queues": state.queues,
        "classes": state.classes,
        "clusters": state.clusters,
        "jobs": state.jobs,
        "runs": state.runs,
        "avoided": state.avoided,
        "waiting": waiting,
        "load": {cluster: load for cluster, load in state.load.items() if load},
        "used": state.used,
        "running": state.running,
        "runs_on": {cluster: runs for cluster, runs in state.runs_on.items() if runs},
    }


async def test_a_state_that_follows_equals_a_state_loaded_afresh(service: Service) -> None:
    rng = random.Random(7)
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    agents = [service.agent(), service.agent("edge", session="session-e", holder="holder-e")]
    for agent in agents:
        await agent.connect(cpu=6)
    await service.http.put("/v1/queues/team", json={"path": "team", "weight": 2})
    for turn in range(12):
        queue = rng.choice(["default", "team"])
        jobs = [job(f"j{turn}-{n}", queue, rng.choice("124"), suspend=rng.random() < 0.2) for n in range(4)]
        await service.http.post("/v1/jobs", json={"jobs": jobs})
        await follower.absorb(service.stores, 0.0)
        for agent in agents:
            for run in (await agent.desired())["start"]:
                agent.starts.append(run)
            for run in agent.starts[: rng.randrange(3)]:
                state = rng.choice([RunState.SUCCEEDED, RunState.FAILED, RunState.RETURNED, RunState.RUNNING])
                end = RunEnd(category=FailureCategory.EXIT, exit_code=1) if state is RunState.FAILED else None
                await agent.report(run["run"], state, turn + 1, end=end)
            await agent.sync()
        action = rng.choice(["cancel", "suspend", "resume", "retry"])
        await service.http.post(f"/v1/jobs/{action}", json={"filter": {"name": f"j*-{rng.randrange(4)}"}})
        if turn % 4 == 2:
            await service.http.post(f"/v1/clusters/edge/{rng.choice(['cordon', 'uncordon'])}")
            await service.http.put(f"/v1/queues/q{turn}", json={"path": f"q{turn}", "maxRunning": turn})
        if turn % 4 == 3:
            await service.http.delete(f"/v1/queues/q{turn - 1}")

    async def equal() -> bool:
        fresh = Follower()
        await follower.absorb(service.stores, 0.0)
        await fresh.absorb(service.stores, 0.0)
        return indexes(follower.state) == indexes(fresh.state)

    await eventually(equal)
    fresh = Follower()
    await fresh.absorb(service.stores, 0.0)
    assert indexes(follower.state) == indexes(fresh.state)
    assert fresh.state.jobs
    assert fresh.state.runs
    fresh.state.lease_until = follower.state.lease_until = dict.fromkeys(fresh.state.clusters, 60.0)
    assert decide(follower.engine, 0.0) == decide(fresh.engine, 0.0)
