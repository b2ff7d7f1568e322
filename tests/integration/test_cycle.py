"""One cycle of the scheduler against a store that changes meanwhile: what no longer holds is dropped, and nothing stays behind."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.rows import execute, rows, value
from trainmaster.protocol.agent import CapacityReport, NodeGroup, SyncRequest
from trainmaster.protocol.states import ClusterKind, KeyRole
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.services import apply_plan
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Applied, Follower
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import Submission, submit_one
from trainmaster_dispatcher.store import agents, scheduling, tenants
from trainmaster_dispatcher.store.keys import Caller

ADMIN = Caller(1, "admin", KeyRole.ADMIN)
JOB = b'{"name": "x", "queue": "default", "roles": [{"name": "main", "template": {"resources": {"cpu": "1"}}}]}'


@pytest.fixture
async def scheduler(database_url: str) -> AsyncIterator[Scheduler]:
    """A leader whose steps the test makes, with a cluster in contact that has 4 CPUs, and one job that waits."""
    settings = Settings.model_validate({"database_url": database_url, "redis_url": None})
    cluster = ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)
    await make_local_installation(settings, [cluster], {"admin": "tmk_admin"}, [QueueSpec(path="default")])
    stores = Stores.open(settings)
    group = NodeGroup(name="node", count=1, free={"cpu": 4000})
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test")
    async with stores.database.transaction() as tx:
        await agents.begin_session(tx, 1, SyncRequest(session="session", holder="holder", number=1), 3600)
        await agents.save_capacity(tx, 1, report.model_dump(mode="json", by_alias=True))
        await submit_one(tx, stores, Submission(ADMIN, prepare(JOB, Most())))
    made = Scheduler(stores)
    async with stores.database.transaction() as tx:
        made.token = await scheduling.take_lead(tx, "test", 3600)
    yield made
    await stores.close()


async def run_count(scheduler: Scheduler) -> int:
    return int(await value(scheduler.stores, "SELECT count(*) FROM runs"))


async def test_a_waiting_job_is_started_and_the_next_step_follows_at_once(scheduler: Scheduler) -> None:
    assert await scheduler.step() == 0
    assert await run_count(scheduler) == 1
    assert await scheduler.step() > 0


async def test_a_decision_on_what_has_changed_since_is_dropped_without_a_hurry(scheduler: Scheduler) -> None:
    stores = scheduler.stores
    async with stores.database.transaction() as absorbing:
        await absorbing.run("INSERT INTO changes (kind, ref) VALUES ('test', 0)")  # an older transaction that goes on
        job = (await rows(stores, "UPDATE jobs SET version = 2, state = 'cancelled', ended_at = now() RETURNING id"))[
            0
        ].id
        await execute(stores, "INSERT INTO events (job_id, seq, kind) VALUES (:id, 2, 'cancel')", id=job)
        # What the state has, though the store has it no more: the cancel cannot be taken while the older one is open.
        scheduler._follower = await _follower_of_before(stores, job)
        for _ in range(3):
            assert 0 < await scheduler.step() < 1, "it looks again soon, and not all the time"
    await scheduler.step()
    assert scheduler._follower.state.jobs == {}
    assert await run_count(scheduler) == 0


async def _follower_of_before(stores: Stores, job: int) -> Follower:
    """Return a follower that loaded everything while the job was still queued."""
    follower = Follower()
    await execute(stores, "UPDATE jobs SET version = 1, state = 'queued', ended_at = NULL WHERE id = :id", id=job)
    await follower.absorb(stores, 0.0)
    await execute(stores, "UPDATE jobs SET version = 2, state = 'cancelled', ended_at = now() WHERE id = :id", id=job)
    return follower


async def test_nothing_starts_on_a_cluster_that_was_cordoned_or_removed_since(scheduler: Scheduler) -> None:
    async def meanwhile(*given: Any) -> Applied:
        async with scheduler.stores.database.transaction() as tx:
            await tenants.cordon(tx, "private", True)
        return await apply(*given)

    apply = apply_plan.apply_plan
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply_plan, "apply_plan", meanwhile)
        assert 0 < await scheduler.step() < 1
    assert await run_count(scheduler) == 0
    await scheduler.step()
    assert await value(scheduler.stores, "SELECT reason->>'token' FROM class_reasons") == "ClustersCordoned"


async def test_a_lead_that_is_lost_while_a_plan_is_applied_leaves_none_of_it_in_the_new_state(
    scheduler: Scheduler,
) -> None:
    async def meanwhile(*given: Any) -> Applied:
        applied = await apply(*given)
        scheduler._resign()  # as the task does that renews the lead
        return applied

    apply = apply_plan.apply_plan
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply_plan, "apply_plan", meanwhile)
        await scheduler.step()
    assert await run_count(scheduler) == 1
    await execute(scheduler.stores, "UPDATE runs SET state = 'succeeded', ended_at = now()")
    await execute(scheduler.stores, "UPDATE jobs SET state = 'succeeded', ended_at = now()")
    await scheduler.step()
    assert scheduler._follower.state.runs == {}, (
        "a run that ended before the state was loaded would stay there for ever"
    )


async def test_a_scheduler_that_read_nothing_for_long_reads_everything_anew(scheduler: Scheduler) -> None:
    """The changes in the feed meanwhile may have been removed; a state that only continues would never learn of them."""
    await scheduler.step()
    asleep = [1000.0]
    sleeping = Scheduler(scheduler.stores, boot_clock=lambda: asleep[0])
    await sleeping.step()
    assert len(sleeping._follower.state.runs) == 1
    await execute(scheduler.stores, "UPDATE jobs SET state = 'cancelled', ended_at = now()")
    await execute(scheduler.stores, "UPDATE runs SET state = 'cancelled', ended_at = now()")
    asleep[0] += 500
    await sleeping.step()
    assert len(sleeping._follower.state.runs) == 1, "nobody told it"
    asleep[0] += 700
    await sleeping.step()
    assert sleeping._follower.state.runs == {}


async def test_past_usage_is_stored_and_the_next_leader_goes_on_from_it(scheduler: Scheduler) -> None:
    settings = scheduler.stores.settings.model_copy(update={"usage_half_life": "1h"})
    scheduler.stores = replace(scheduler.stores, settings=settings)
    await scheduler.step()
    assert await run_count(scheduler) == 1
    assert await rows(scheduler.stores, "SELECT * FROM queue_usage") == [], "nothing had run before"
    scheduler._next_usage = 0.0
    await scheduler.step()
    (stored,) = await rows(scheduler.stores, "SELECT queue_id, level FROM queue_usage")
    assert 0 < stored.level < 0.25, "it has had a quarter of the cluster, for a moment"
    (of_user,) = await rows(scheduler.stores, "SELECT queue_id, submitter, level FROM user_usage")
    assert of_user == (stored.queue_id, "admin", pytest.approx(stored.level))
    successor = Scheduler(scheduler.stores)
    successor.token = scheduler.token
    await successor.step()
    past = successor._follower.state.past
    assert past is not None
    assert past.levels[stored.queue_id] >= stored.level * 0.999
    assert past.half_life == 3600
    of_users = successor._follower.state.past_of_users
    assert of_users is not None
    assert of_users.levels[of_user.queue_id, "admin"] >= of_user.level * 0.999
    scheduler.token = -1
    scheduler._next_usage = 0.0
    await apply_plan.count_usage(scheduler.stores, -1, scheduler._follower)
    levels = await rows(scheduler.stores, "SELECT level FROM queue_usage")
    assert [row.level for row in levels] == list(past.levels.values()), "who does not lead counts nothing"


async def test_past_usage_is_off_unless_it_was_asked_for(scheduler: Scheduler) -> None:
    await scheduler.step()
    scheduler._next_usage = 0.0
    await scheduler.step()
    assert await rows(scheduler.stores, "SELECT * FROM queue_usage") == []
    assert scheduler._follower.state.past is None
    assert len(await rows(scheduler.stores, "SELECT * FROM user_usage")) == 1, (
        "that of users is on, unless it is turned off"
    )


async def test_past_usage_of_users_can_be_turned_off(scheduler: Scheduler) -> None:
    settings = scheduler.stores.settings.model_copy(update={"user_usage_half_life": "0s"})
    scheduler.stores = replace(scheduler.stores, settings=settings)
    for _ in range(2):
        await scheduler.step()
        scheduler._next_usage = 0.0
    assert await rows(scheduler.stores, "SELECT * FROM user_usage") == []
    assert scheduler._follower.state.past_of_users is None
