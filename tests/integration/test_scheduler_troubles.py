"""Whatever the store or the scheduler's own code raises, nothing but its cancellation ends a scheduler."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
import pytest

from tests.integration.rows import execute
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import ClusterKind, KeyRole
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.scheduler import loop
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.services import absences, agent_reports, apply_plan, gauges, recovery
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import Submission, submit_one
from trainmaster_dispatcher.store import scheduling
from trainmaster_dispatcher.store.database import StoreAwayError
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.scheduling import StoreRestoredError

AWAITED: list[tuple[Any, str]] = [
    (Follower, "absorb"),
    (Scheduler, "step"),
    (Scheduler, "_rehearse"),
    (Scheduler, "_decide_and_apply"),
    (Scheduler, "_timers"),
    (Scheduler, "_count_usage"),
    (Scheduler, "_wait"),
    (Scheduler, "_measure"),
    (loop.Decider, "decide"),
    (loop, "wait_set"),
    (apply_plan, "apply_plan"),
    (apply_plan, "release_holds"),
    (apply_plan, "count_usage"),
    (apply_plan, "warn_of_budgets"),
    (apply_plan, "keep_house"),
    (absences, "recall_unheard"),
    (agent_reports, "give_up_overdue"),
    (recovery, "finish_when_reported"),
    (gauges, "measure_for_ever"),
    (scheduling, "take_lead"),
    (scheduling, "keep_lead"),
    (scheduling, "leave_lead"),
]
"""All that the loop and its tasks wait for."""


@pytest.fixture
async def scheduler(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scheduler]:
    settings = Settings.model_validate({"database_url": database_url, "redis_url": None, "leader_seconds": 1.0})
    cluster = ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)
    await make_local_installation(settings, [cluster], {"admin": "tmk_admin"}, [QueueSpec(path="default")])
    monkeypatch.setattr(loop, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(loop, "_RECALL_SECONDS", 0.1)
    monkeypatch.setattr(loop, "_USAGE_SECONDS", 0.1)
    monkeypatch.setattr(loop, "_CHORES_SECONDS", 0.1)
    stores = Stores.open(settings)
    spec = {"name": "job", "queue": "default", "roles": [{"name": "main", "template": {"resources": {"cpu": "1"}}}]}
    async with stores.database.transaction() as tx:
        await submit_one(tx, stores, Submission(Caller(1, "admin", KeyRole.ADMIN), prepare(orjson.dumps(spec), Most())))
    yield Scheduler(stores)
    await stores.close()


@pytest.mark.parametrize(
    "error",
    [StoreAwayError("away"), ProblemError(Code.CONFLICT, "odd"), RuntimeError("odd"), StoreRestoredError("restored")],
    ids=lambda error: type(error).__name__,
)
async def test_nothing_that_is_raised_ends_a_scheduler(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for where, name in AWAITED:
        raised: list[str] = []

        async def fails(*_: Any, raised: list[str] = raised, name: str = name, **__: Any) -> Any:
            raised.append(name)
            raise error

        one, stop = Scheduler(scheduler.stores), asyncio.Event()
        is_early = name not in ("keep_lead", "leave_lead", "_rehearse")
        if not is_early:
            monkeypatch.setattr(loop, "_is_large", lambda state: True)
        running = asyncio.create_task(one.run(stop))
        if not is_early:
            await eventually(partial(leads, one), 30)
        with monkeypatch.context() as broken:
            broken.setattr(where, name, fails)
            if name == "_rehearse":
                one.token = None
            if name == "leave_lead":
                stop.set()
                await asyncio.wait_for(running, 30)
            await eventually(partial(is_true, raised), 30)
            await asyncio.sleep(0.1)
            assert name == "leave_lead" or not running.done(), name
        if name != "leave_lead":
            await eventually(partial(leads, one), 30)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 30)
        await execute(scheduler.stores, "UPDATE leadership SET expires_at = now() - interval '1 d'")


async def leads(scheduler: Scheduler) -> bool:
    return scheduler.token is not None


async def is_true(value: object) -> bool:
    return bool(value)


async def test_a_restored_store_is_not_forgotten_where_the_recovery_cannot_be_begun(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the second statement ended the scheduler once."""
    real, tried, leading, begun = recovery.begin_unless_on, 0, list[int | None](), list[bool]()

    async def fails(stores: Stores) -> bool:
        nonlocal tried
        tried += 1
        leading.append(scheduler.token)
        if tried < 4:
            raise (StoreAwayError("away"), RuntimeError("odd"), ProblemError(Code.CONFLICT, "odd"))[tried - 1]
        begun.append(await real(stores))
        return begun[-1]

    absorb, restored = Follower.absorb, True

    async def sees(follower: Follower, stores: Stores, now: float) -> bool:
        nonlocal restored
        if restored:
            restored = False
            raise StoreRestoredError("restored")
        return await absorb(follower, stores, now)

    monkeypatch.setattr(recovery, "begin_unless_on", fails)
    monkeypatch.setattr(Follower, "absorb", sees)
    stop = asyncio.Event()
    running = asyncio.create_task(scheduler.run(stop))

    await eventually(lambda: leads(scheduler), 30)
    assert tried == 4
    assert leading == [None] * 4, "it does not lead before the recovery is begun"
    assert begun == [True]
    stop.set()
    await asyncio.wait_for(running, 30)
