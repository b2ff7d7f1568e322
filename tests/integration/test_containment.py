"""What cannot be read or worked with of one tenant, cluster or policy keeps nobody else from starting, and mends itself."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from tests.integration.rows import execute, rows, value
from trainmaster.metrics.definitions import contained_errors
from trainmaster.protocol.agent import CapacityReport, NodeGroup, SyncRequest, run_digest
from trainmaster.protocol.states import ClusterKind, KeyRole
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher import containment
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services import apply_plan, feed_follower, pricing, view_objects
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import Submission, submit_one
from trainmaster_dispatcher.store import agents, runs, scheduling
from trainmaster_dispatcher.store.keys import Caller

ADMIN = Caller(1, "admin", KeyRole.ADMIN)
QUEUES = ("org", "org/a", "org/b")


class InjectedError(Exception):
    """An unexpected error."""


@dataclass
class World:
    """A leader whose steps the test makes and whose clock it sets, two clusters in contact, and jobs of the tenants a and b."""

    stores: Stores
    scheduler: Scheduler
    clock: list[float]
    jobs: dict[str, int] = field(default_factory=dict)

    async def submit(self, tenant: str, **fields: Any) -> None:
        spec = {
            "name": tenant,
            "queue": f"org/{tenant}",
            "roles": [{"name": "main", "template": {"resources": {"cpu": "2" if tenant == "a" else "1"}}}],
            **fields,
        }
        async with self.stores.database.transaction() as tx:
            await submit_one(tx, self.stores, Submission(ADMIN, prepare(orjson.dumps(spec), Most())))
        self.jobs[tenant] = await value(self.stores, "SELECT max(id) FROM jobs")

    async def steps(self, many: int = 4) -> None:
        for _ in range(many):
            await self.scheduler.step()

    async def started(self) -> set[str]:
        found = {row.job_id for row in await rows(self.stores, "SELECT job_id FROM runs")}
        return {name for name, key in self.jobs.items() if key in found}

    async def reason(self, tenant: str) -> str | None:
        found = await rows(
            self.stores,
            "SELECT r.reason->>'token' AS token FROM class_reasons r JOIN jobs j ON j.id = :job"
            " AND r.queue_id = j.queue_id AND r.class_id = j.class_id AND r.shape_id = j.shape_id",
            job=self.jobs[tenant],
        )
        return found[0].token if found else None

    async def execute(self, sql: str, **parameters: Any) -> None:
        await execute(self.stores, sql, **parameters)

    async def changed(self, kind: str = "queue") -> None:
        """Let the scheduler read all objects of a kind again."""
        await self.execute("INSERT INTO changes (kind, ref) VALUES (:kind, 0)", kind=kind)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    settings = Settings.model_validate({"database_url": database_url, "redis_url": None})
    clusters = [ClusterSpec(name=name, cluster_kind=ClusterKind.PRIVATE) for name in ("c", "d")]
    queues = [QueueSpec(path=path) for path in QUEUES]
    await make_local_installation(settings, clusters, {"admin": "tmk_admin"}, queues)
    stores, clock = Stores.open(settings), [1000.0]
    report = CapacityReport(groups=(NodeGroup(name="node", count=1, free={"cpu": 4000}),), runtime="t", scheduler="t")
    async with stores.database.transaction() as tx:
        for cluster in (1, 2):
            session = SyncRequest(session=f"session{cluster}", holder="holder", number=1)
            await agents.begin_session(tx, cluster, session, 3600)
            await agents.save_capacity(tx, cluster, report.model_dump(mode="json", by_alias=True))
    made = World(stores, Scheduler(stores, clock=lambda: clock[0]), clock)
    async with stores.database.transaction() as tx:
        made.scheduler.token = await scheduling.take_lead(tx, "test", 3600)
    containment._logged.clear()
    yield made
    await stores.close()


def counted(part: Part) -> float:
    return float(contained_errors.labels(part.value)._value.get())


Change = Callable[[World], Awaitable[None]]


def spec_of(table: str, name: str, column: str = "name") -> tuple[Change, Change]:
    """Return a change that makes a stored specification unreadable, and one that restores it."""
    old: list[Any] = []

    async def spoil(world: World) -> None:
        old.append(await value(world.stores, f"SELECT spec FROM {table} WHERE {column} = :name", name=name))
        await world.execute(f"""UPDATE {table} SET spec = '{{"nonsense": [null]}}' WHERE {column} = :name""", name=name)
        await world.changed()

    async def mend(world: World) -> None:
        sql = f"UPDATE {table} SET spec = CAST(:spec AS jsonb) WHERE {column} = :name"
        await world.execute(sql, spec=orjson.dumps(old[0]).decode(), name=name)
        await world.changed()

    return spoil, mend


async def only_c(world: World) -> None:
    await world.execute("UPDATE clusters SET cordoned = true WHERE name = 'd'")
    await world.changed("cluster")


async def spoil_class(world: World) -> None:
    await world.execute(
        """INSERT INTO priority_classes (name, value, is_default, spec) VALUES ('bad', 900, false, '{"name": 7}')"""
    )
    await world.execute(
        "UPDATE jobs SET class_id = (SELECT id FROM priority_classes WHERE name = 'bad'), version = version + 1 WHERE id = :id",
        id=world.jobs["a"],
    )
    await world.execute("INSERT INTO events (job_id, seq, kind) VALUES (:id, 2, 'edit')", id=world.jobs["a"])
    await world.changed()


async def mend_class(world: World) -> None:
    await world.execute("""UPDATE priority_classes SET spec = '{"name": "bad", "value": 900}' WHERE name = 'bad'""")
    await world.changed()


async def spoil_shape(world: World) -> None:
    await world.execute(
        "UPDATE shapes SET body = '[1]' WHERE id = (SELECT shape_id FROM jobs WHERE id = :id)", id=world.jobs["a"]
    )


async def mend_shape(world: World) -> None:
    body = {"roles": [{"name": "main", "replicas": 1, "least": 1, "needs": {"cpu": 2000}}], "leastMembers": 1}
    await world.execute(
        "UPDATE shapes SET body = CAST(:body AS jsonb) WHERE id = (SELECT shape_id FROM jobs WHERE id = :id)",
        id=world.jobs["a"],
        body=orjson.dumps(body).decode(),
    )
    world.clock[0] += 400


ROWS: dict[str, tuple[Part, tuple[Change, Change]]] = {
    "a queue": (Part.QUEUE, spec_of("queues", "org/a", "path")),
    "a priority class": (Part.PRIORITY_CLASS, (spoil_class, mend_class)),
    "a shape": (Part.SHAPE, (spoil_shape, mend_shape)),
}


@pytest.mark.parametrize(("part", "changes"), ROWS.values(), ids=ROWS)
async def test_jobs_that_depend_on_a_row_that_cannot_be_read_wait_alone(
    world: World, caplog: pytest.LogCaptureFixture, part: Part, changes: tuple[Change, Change]
) -> None:
    await world.submit("a")
    await world.submit("b")
    spoil, mend = changes
    await spoil(world)
    before = counted(part)
    with caplog.at_level(logging.ERROR):
        await world.steps()
    assert await world.started() == {"b"}
    assert await world.reason("a") == "InternalError"
    assert counted(part) > before
    (entry,) = world.scheduler._follower.quarantine.entries.values()
    assert entry.part is part
    noted = [one for one in caplog.records if getattr(one, "part", None) == part.value]
    assert noted
    assert all(one.exc_info is not None for one in noted)
    await mend(world)
    await world.steps()
    assert await world.started() == {"a", "b"}
    assert not world.scheduler._follower.quarantine.entries


CLUSTER_FAULTS = {
    "a spec": """UPDATE clusters SET spec = '{"kind": []}' WHERE name = 'c'""",
    "a report": """UPDATE capacity SET report = '{"groups": 5}' WHERE cluster_id = 1""",
    "a report with nonsense inside": (
        """UPDATE capacity SET report = jsonb_set(report, '{startSeconds}', '"often"') WHERE cluster_id = 1"""
    ),
    "a price book": """INSERT INTO tariffs (cluster_id, book, correction) VALUES (1, '{"currency": 3}', 'x')""",
    "a price correction": (
        """INSERT INTO tariffs (cluster_id, book, correction)
           VALUES (1, '{"name": "x", "onDemand": {"cpu": "1"}}', 'not a number')"""
    ),
}


@pytest.mark.parametrize("sql", CLUSTER_FAULTS.values(), ids=CLUSTER_FAULTS)
async def test_a_cluster_of_which_something_cannot_be_read_is_closed_and_others_take_the_jobs(
    world: World, sql: str
) -> None:
    saved = [
        await value(world.stores, "SELECT spec FROM clusters WHERE id = 1"),
        await value(world.stores, "SELECT report FROM capacity WHERE cluster_id = 1"),
    ]
    await world.execute(sql)
    await world.changed("cluster")
    before = counted(Part.CLUSTER)
    await world.submit("a")
    await world.submit("b")
    await world.steps()
    assert await world.started() == {"a", "b"}
    assert await value(world.stores, "SELECT array_agg(DISTINCT cluster_id) FROM runs") == [2]
    assert counted(Part.CLUSTER) > before
    fault = world.scheduler._follower.state.clusters[1].fault
    assert fault.startswith("cluster c cannot be used (")
    await only_c(world)
    await world.submit("c", queue="org/b")
    await world.steps()
    assert await world.started() == {"a", "b"}
    verdicts = await value(world.stores, "SELECT reason->'verdicts' FROM class_reasons ORDER BY at DESC LIMIT 1")
    assert fault in {one["cluster"]: one["sentence"] for one in verdicts}["c"]
    await world.execute("DELETE FROM tariffs")
    await world.execute(
        "UPDATE clusters SET spec = CAST(:spec AS jsonb) WHERE id = 1", spec=orjson.dumps(saved[0]).decode()
    )
    await world.execute(
        "UPDATE capacity SET report = CAST(:report AS jsonb) WHERE cluster_id = 1",
        report=orjson.dumps(saved[1]).decode(),
    )
    await world.changed("cluster")
    await world.steps()
    assert await world.started() == {"a", "b", "c"}


LEFT_OUT = {
    Part.BURST_POLICY: """INSERT INTO burst_policies (name, spec) VALUES ('bad', '{"queues": ["org/a"], "budget": 5}')""",
    Part.DATASET: """INSERT INTO datasets (name, spec) VALUES ('bad', '{"size": []}')""",
    Part.RESERVATION: """INSERT INTO reservations (name, queue_id, starts_at, ends_at, spec)
        SELECT 'bad', id, now(), now() + interval '1 day', '{"nodes": "x"}' FROM queues WHERE path = 'org/a'""",
}


@pytest.mark.parametrize(("part", "sql"), LEFT_OUT.items(), ids=LEFT_OUT)
async def test_what_cannot_be_read_of_what_admins_declare_is_left_out(world: World, part: Part, sql: str) -> None:
    await world.execute(sql)
    await world.changed()
    before = counted(part)
    await world.submit("a")
    await world.submit("b")
    await world.steps()
    assert await world.started() == {"a", "b"}
    assert counted(part) > before
    assert [entry.name for entry in world.scheduler._follower.quarantine.entries.values()] == ["bad"]
    if part is Part.BURST_POLICY:
        (policy,) = world.scheduler._follower.state.policies.values()
        assert (policy.queues, policy.paused) == (("org/a",), True)
    table = {"burst_policy": "burst_policies"}.get(part.value, f"{part.value}s")
    await world.execute(f"DELETE FROM {table} WHERE name = 'bad'")
    await world.changed()
    await world.steps(1)
    assert not world.scheduler._follower.quarantine.entries


def fails_for(real: Callable[..., Any], is_meant: Callable[..., bool]) -> Callable[..., Any]:
    def fails(*given: Any, **named: Any) -> Any:
        if is_meant(*given):
            raise InjectedError
        return real(*given, **named)

    return fails


PUTS: dict[str, tuple[Any, str, Callable[..., Any] | None]] = {
    "reading a waiting job": (view_objects, "waiting_from", lambda row: row.name == "a"),
    "putting a waiting job": (SchedulerState, "put_waiting", lambda _state, job: job.name == "a"),
    "half of putting a waiting job": (
        SchedulerState,
        "_set_head",
        lambda state, key: state.queues[key.queue_id].path == "org/a",
    ),
    "putting a queue": (
        SchedulerState,
        "put_queue",
        lambda _state, queue: queue.path == "org/a" and not queue.fault,
    ),
    "writing the start": (apply_plan, "run_digest", None),
}


@pytest.mark.parametrize(("owner", "name", "is_meant"), PUTS.values(), ids=PUTS)
async def test_an_error_while_one_job_or_queue_is_taken_in_or_written_hurts_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_meant: Callable[..., bool] | None
) -> None:
    await world.submit("a")
    await world.submit("b")
    if is_meant is None:
        key = world.jobs["a"]
        is_meant = lambda ref: ref.job_key == key  # noqa: E731 - the job's key is known only here
    monkeypatch.setattr(owner, name, fails_for(getattr(owner, name), is_meant))
    before = sum(counted(part) for part in Part)
    await world.steps()
    assert await world.started() == {"b"}
    assert sum(counted(part) for part in Part) > before
    assert world.scheduler._follower.quarantine.entries
    monkeypatch.undo()
    world.clock[0] += 400
    await world.steps()
    assert await world.started() == {"a", "b"}
    assert not world.scheduler._follower.quarantine.entries
    rebuilt = feed_follower.Follower()
    await rebuilt.absorb(world.stores, world.clock[0])
    kept = world.scheduler._follower.state
    assert (rebuilt.state.runs, rebuilt.state.jobs, rebuilt.state.used) == (kept.runs, kept.jobs, kept.used)


async def test_a_start_that_cannot_be_written_is_found_among_many_and_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await world.submit("b", name=f"b{number}")
        world.jobs[f"b{number}"] = world.jobs.pop("b")
    await world.submit("a")
    key = world.jobs["a"]
    monkeypatch.setattr(apply_plan, "run_digest", fails_for(run_digest, lambda ref: ref.job_key == key))
    await world.steps(2)
    assert await world.started() == {"b0", "b1", "b2"}
    (entry,) = world.scheduler._follower.quarantine.entries.values()
    assert (entry.part, entry.key) == (Part.JOB, key)
    tried = AsyncMock(wraps=apply_plan._apply)
    monkeypatch.setattr(apply_plan, "_apply", tried)
    await world.steps(3)
    assert tried.call_count == 0, "it is not tried again all the time"


async def test_a_cluster_on_which_no_start_can_be_written_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        await world.submit("b", name=f"b{number}")
        world.jobs[f"b{number}"] = world.jobs.pop("b")
    real = runs.raise_desired

    async def fails(tx: Any, clusters: Any) -> Any:
        if 1 in clusters:
            raise InjectedError
        return await real(tx, clusters)

    monkeypatch.setattr(runs, "raise_desired", fails)
    await world.steps(6)
    assert await value(world.stores, "SELECT array_agg(DISTINCT cluster_id) FROM runs") == [2]
    assert await value(world.stores, "SELECT count(*) FROM runs") == 4
    assert world.scheduler._follower.state.clusters[1].fault
    monkeypatch.undo()
    world.clock[0] += 400
    await world.steps(6)
    assert await value(world.stores, "SELECT count(*) FROM runs") == 6


async def test_a_reason_that_cannot_be_written_is_told_as_an_error_and_others_are_written(world: World) -> None:
    """Postgres takes no NUL in JSON: words of a cluster with one made every cycle fail."""
    await world.submit("a", roles=[{"name": "main", "template": {"resources": {"cpu": "64"}}}])
    await world.submit("b", roles=[{"name": "main", "template": {"resources": {"cpu": "32"}}}])
    await world.steps(1)
    await world.submit("d", queue="org/b", name="d")
    follower = world.scheduler._follower
    shape = await value(world.stores, "SELECT shape_id FROM jobs WHERE id = :id", id=world.jobs["a"])
    key = next(key for of in follower.state.waiting.values() for key in of if key.shape_id == shape)
    stored = world.scheduler._book.stored[key]
    real = scheduling.save_reasons

    async def with_nul(tx: Any, written: Any, cycle: int) -> None:
        spoilt = [
            (*row[:4], {**row[4], "sentence": "a\0b"}) if row[2] == shape and "fits" in row[4]["sentence"] else row
            for row in written
        ]
        await real(tx, spoilt, cycle)

    del world.scheduler._book.stored[key]
    assert "fits" in stored.sentence
    before = counted(Part.REASON)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduling, "save_reasons", with_nul)
        await world.steps(2)
    assert "d" in await world.started()
    assert await world.reason("a") == "InternalError"
    assert await world.reason("b") == "TooLarge"
    assert counted(Part.REASON) == before + 1


@pytest.mark.parametrize("chore", ["release_holds", "count_usage", "warn_of_budgets", "keep_house"])
async def test_a_chore_that_fails_keeps_neither_the_cycle_nor_other_chores_from_being_done(
    world: World, monkeypatch: pytest.MonkeyPatch, chore: str
) -> None:
    async def fails(*_: Any) -> None:
        raise InjectedError

    monkeypatch.setattr(apply_plan, chore, fails)
    before, state = counted(Part.CHORE), world.scheduler._follower.state
    await world.submit("b")
    await world.steps(4)
    assert await world.started() == {"b"}
    assert counted(Part.CHORE) > before
    assert world.scheduler._follower.state is state, "the state is not read anew for it"


async def test_a_hold_that_cannot_be_released_keeps_no_other_job_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit("a")
    await world.submit("b")
    await world.execute(
        "UPDATE jobs SET state = 'held', hold_cause = 'backOff', hold_until = now() - interval '1 second'"
    )
    real = job_machine.release
    await world.execute("UPDATE jobs SET attempt = 7 WHERE id = :id", id=world.jobs["a"])
    monkeypatch.setattr(job_machine, "release", fails_for(real, lambda job: job.attempt == 7))
    token = world.scheduler.token
    assert token is not None
    assert await apply_plan.release_holds(world.stores, token) == 1
    states = {row.id: row.state for row in await rows(world.stores, "SELECT id, state::text AS state FROM jobs")}
    assert states == {world.jobs["a"]: "held", world.jobs["b"]: "queued"}
    monkeypatch.undo()
    assert await apply_plan.release_holds(world.stores, token) == 1


async def test_an_error_outside_of_any_object_ends_neither_the_process_nor_what_is_quarantined(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit("a")
    await world.submit("b")
    monkeypatch.setattr(view_objects, "waiting_from", fails_for(view_objects.waiting_from, lambda row: row.name == "a"))
    before = counted(Part.CYCLE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply_plan, "apply_plan", None)
        assert await world.scheduler._guarded_step() > 0
    assert counted(Part.CYCLE) == before + 1
    assert world.scheduler._follower.quarantine.entries
    await world.steps()
    assert await world.started() == {"b"}


async def test_unreadable_rows_keep_lists_from_nobody(world: World) -> None:
    """One row that cannot be read made every list of its kind, and every submission, fail."""
    spoil, mend = spec_of("queues", "org/a", "path")
    await spoil(world)
    await world.submit("b")
    async with world.stores.database.transaction() as tx:
        from trainmaster_dispatcher.store import tenants

        assert {row.spec.path for row in await tenants.QUEUES.every(tx)} == {"org", "org/b"}
        assert (await pricing.histories(tx)).unreadable == {}
    await mend(world)
    await world.submit("a")
