"""The schema: models and migrations say the same, and bringing it up to date is harmless whenever and however often."""

import asyncio
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from importlib.resources import as_file, files
from typing import Any

import orjson
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text

from tests.conftest import FakeAgent, Service, job, on_database
from tests.integration.rows import execute, partition_of, rows, value
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import job_id, parse_job_id
from trainmaster_dispatcher.domain.run_orders import BindingTerm, BurstTerms, NarrowedDevice, RunOrders
from trainmaster_dispatcher.store import migrate as migration
from trainmaster_dispatcher.store.database import Database, driver_url, dumps
from trainmaster_dispatcher.store.migrate import migrate
from trainmaster_dispatcher.store.schema import (
    EARLIER_SCHEMAS,
    IncompatibleSchemaError,
    current_schema,
    known_revisions,
    newest_revision,
)
from trainmaster_dispatcher.store.tables import metadata


@pytest.fixture
def empty_url(database_url: str, postgres_url: str) -> str:
    """A database without any table."""
    name = database_url.partition("?")[0].rsplit("/", 1)[1] + "_empty"
    engine = create_engine(driver_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return on_database(postgres_url, name)


def schema_of(url: str) -> list[Any]:
    """Return every table, column, index and constraint of a database, except partitions of single days: at midnight others are due."""
    engine = create_engine(driver_url(url))
    with engine.connect() as connection:
        found = connection.execute(
            text(
                """
                SELECT c.relname, c.relkind::text, c.reloptions::text, a.attname, format_type(a.atttypid, a.atttypmod)
                FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
                WHERE c.relnamespace = 'public'::regnamespace AND c.relname !~ '^events_[0-9]{8}' ORDER BY 1, 2, 3, 4, 5
                """
            )
        ).all()
    engine.dispose()
    return [tuple(row) for row in found]


def test_models_and_migrations_say_the_same(database_url: str) -> None:
    def is_ours(_object: object, name: str | None, kind: str, _reflected: bool, _other: object) -> bool:
        return not (kind == "table" and (name or "").startswith("events_"))

    engine = create_engine(driver_url(database_url))
    with engine.connect() as connection, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Did not recognize type 'xid8'")
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True, "include_object": is_ours}
        )
        differences = [item for item in compare_metadata(context, metadata) if not _is_xid(item)]
    engine.dispose()
    assert differences == []


def _is_xid(difference: Any) -> bool:
    """Return whether ``difference`` is only of the type xid8, which Alembic cannot read back."""
    items = difference if isinstance(difference, list) else [difference]
    return all(item[0] == "modify_type" and item[3] == "xid" for item in items)


def test_migrating_again_changes_nothing(database_url: str) -> None:
    before = schema_of(database_url)
    assert migrate(database_url).revision == newest_revision()
    assert schema_of(database_url) == before


def test_two_processes_may_migrate_an_empty_database_at_once(empty_url: str, database_url: str) -> None:
    program = (
        "import sys; from trainmaster_dispatcher.store.migrate import migrate; print(migrate(sys.argv[1]).revision)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, empty_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=180) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [out.decode().strip() for out, _ in outputs] == [newest_revision()] * 2
    assert schema_of(empty_url) == schema_of(database_url)


def test_a_process_can_tell_whether_the_schema_is_the_one_it_needs(empty_url: str) -> None:
    assert (current_schema(empty_url).revision, current_schema(empty_url).serves) == ("", False)
    assert "no schema" in current_schema(empty_url).obstacle
    migrate(empty_url)
    assert (current_schema(empty_url).revision, current_schema(empty_url).serves) == (newest_revision(), True)


def change(url: str, *statements: str) -> None:
    engine = create_engine(driver_url(url))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


FUTURE = "UPDATE alembic_version SET version_num = '0999'"
"""What an expanding migration of a newer release leaves behind; beside a column that this one does not know."""


def raised_to(revision: str) -> str:
    """Return the statement by which a contracting migration says that ``revision`` is the oldest that may run."""
    return f"UPDATE schema_compatibility SET oldest_release = '{revision}'"


def test_a_schema_that_a_newer_release_has_expanded_serves_this_one_too(database_url: str) -> None:
    change(database_url, FUTURE, "ALTER TABLE jobs ADD COLUMN future int NOT NULL DEFAULT 7")
    schema = current_schema(database_url)
    assert (schema.is_newer, schema.serves) == (True, True)
    before = schema_of(database_url)
    assert migrate(database_url).revision == "0999"
    assert schema_of(database_url) == before


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ([FUTURE, raised_to("0900")], "the oldest one that runs on it is 0900"),
        ([FUTURE, "DELETE FROM schema_compatibility"], "no older one runs on it"),
        ([FUTURE, "DROP TABLE schema_compatibility"], "no older one runs on it"),
        ([FUTURE, raised_to("soon")], "'soon', which is no revision"),
    ],
)
def test_a_schema_that_a_newer_release_has_contracted_is_refused_and_left_alone(
    database_url: str, statements: list[str], words: str
) -> None:
    change(database_url, *statements)
    before = schema_of(database_url)
    with pytest.raises(IncompatibleSchemaError, match=words):
        migrate(database_url)
    assert schema_of(database_url) == before
    migrating_again_waits_for_nobody(database_url)


def migrating_again_waits_for_nobody(url: str) -> None:
    """Check that the lock was released."""
    engine = create_engine(driver_url(url))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": migration._LOCK}).scalar()
    engine.dispose()


def test_a_schema_that_is_too_old_says_what_to_do(database_url: str) -> None:
    change(database_url, "UPDATE alembic_version SET version_num = '0001'", "DROP TABLE schema_compatibility")
    schema = current_schema(database_url)
    assert not schema.serves
    assert schema.obstacle.endswith("run: trainmaster migrate")


def test_the_schema_names_a_release_that_is_not_newer_than_this_one(database_url: str) -> None:
    schema = current_schema(database_url)
    assert schema.oldest_release in schema.known
    assert schema.known - {schema.release} >= EARLIER_SCHEMAS


def test_a_migrations_file_starts_with_its_revision() -> None:
    config = Config()
    with as_file(files("trainmaster_migrations")) as folder:
        config.set_main_option("script_location", str(folder))
        scripts = ScriptDirectory.from_config(config)
        assert {script.revision for script in scripts.walk_revisions()} == known_revisions()
        assert scripts.get_heads() == [newest_revision()]


def test_a_store_that_is_away_is_told_as_such(tmp_path: Any) -> None:
    for look in (current_schema, migrate):
        with pytest.raises(ProblemError) as caught:
            look(f"postgresql://postgres@/nothing?host={tmp_path}")
        assert caught.value.code is Code.STORE_AWAY


async def test_the_service_sets_time_outs_on_every_connection(database_url: str) -> None:
    database = Database(database_url)
    async with database.transaction() as tx:
        shown = {
            name: (await tx.one(f"SHOW {name}"))[0]
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "timezone")
        }
    await database.close()
    assert shown == {
        "statement_timeout": "30s",
        "lock_timeout": "5s",
        "idle_in_transaction_session_timeout": "15s",
        "timezone": "UTC",
    }


def test_migrations_wait_for_locks_only_shortly(database_url: str) -> None:
    engine = create_engine(driver_url(database_url))
    with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
        command.upgrade(migration._config(connection, str(folder)), "head")
        assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "5s"
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "10min"
    engine.dispose()


def place_of(connection: Connection, at: datetime) -> str:
    """Insert an event of this moment, and return the partition that it is stored in."""
    statement = (
        "INSERT INTO events (at, job_id, seq, kind) VALUES (:at, 1, nextval('audit_id_seq'), 'test')"
        " RETURNING tableoid::regclass::text"
    )
    return str(connection.execute(text(statement), {"at": at}).scalar_one())


async def test_events_land_in_the_partition_of_their_day(service: Service) -> None:
    await service.http.post(f"/v1/jobs/{await service.submit()}/cancel")
    today = datetime.now(UTC)
    async with service.stores.database.transaction() as tx:
        found = await tx.all("SELECT DISTINCT tableoid::regclass::text AS place FROM events")
    assert [row.place for row in found] == [partition_of(today.date())]


def test_old_and_far_events_are_kept_in_the_default_partition(database_url: str) -> None:
    migrate(database_url)  # the day may have changed since the database was made
    now = datetime.now(UTC)
    engine = create_engine(driver_url(database_url))
    with engine.begin() as connection:
        connection.execute(text("SET timezone = 'Asia/Tokyo'"))
        places = {days: place_of(connection, now + timedelta(days=days)) for days in (-400, -1, 0, 7, 400)}
    engine.dispose()
    assert places == {
        -400: "events_default",
        -1: partition_of((now - timedelta(days=1)).date()),
        0: partition_of(now.date()),
        7: partition_of((now + timedelta(days=7)).date()),
        400: "events_default",
    }


async def test_a_day_whose_events_are_in_the_default_partition_already_stops_nothing(database_url: str) -> None:
    """After a pause of more than a week the first events come before the leader has made the day's partition."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    engine = create_engine(driver_url(database_url))
    with engine.begin() as connection:
        for days in (1, 2):
            connection.execute(text(f"DROP TABLE {partition_of((datetime.now(UTC) + timedelta(days=days)).date())}"))
        assert place_of(connection, tomorrow) == "events_default"
    await asyncio.to_thread(migrate, database_url)
    with engine.connect() as connection:
        assert place_of(connection, tomorrow) == "events_default"
        after = tomorrow + timedelta(days=1)
        assert place_of(connection, after) == partition_of(after.date())
    engine.dispose()


def test_two_new_installations_do_not_begin_with_the_same_job_ids(database_url: str, empty_url: str) -> None:
    migrate(empty_url)
    firsts = []
    for url in (database_url, empty_url):
        engine = create_engine(driver_url(url))
        with engine.begin() as connection:
            firsts.append(connection.execute(text("SELECT take_ids('jobs_id_seq', 1)")).scalar_one())
        engine.dispose()
    # That the database which others are copied from and a new one are the same has the probability 2^-34.
    assert firsts[0] != firsts[1]
    assert all(len(job_id("a", first)) == len("a-1234567") for first in firsts)
    assert all(parse_job_id(job_id("a", first)) == ("a", first) for first in firsts)


def upgrade_to(url: str, revision: str) -> None:
    engine = create_engine(driver_url(url))
    with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
        command.upgrade(migration._config(connection, str(folder)), revision)
        connection.commit()
    engine.dispose()


def test_an_installation_with_jobs_goes_on_counting(empty_url: str) -> None:
    upgrade_to(empty_url, "0020")
    engine = create_engine(driver_url(empty_url))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT take_ids('jobs_id_seq', 5)")).scalar_one() == 1
        connection.commit()
        migrate(empty_url)
        assert connection.execute(text("SELECT take_ids('jobs_id_seq', 1)")).scalar_one() == 6
    engine.dispose()


def test_only_classes_that_are_as_they_were_shipped_get_a_longest_wait(empty_url: str) -> None:
    upgrade_to(empty_url, "0030")
    engine = create_engine(driver_url(empty_url))
    with engine.connect() as connection:
        connection.execute(
            text("UPDATE priority_classes SET spec = spec || '{\"description\": \"ours\"}' WHERE name = 'low'")
        )
        connection.commit()
        migrate(empty_url)
        found = connection.execute(text("SELECT name, spec->>'longestWait' FROM priority_classes ORDER BY name")).all()
    engine.dispose()
    assert [tuple(row) for row in found] == [("high", "10m"), ("low", None), ("normal", "30m")]


# Orders of runs: a column since 0024, keys of the decision before

GPU = "nvidia.com/gpu"
H100 = NarrowedDevice(resource=GPU, selector={"nvidia.com/gpu.product": "H100"})
SPOT = BurstTerms(
    limit_seconds=90.5, binding=(BindingTerm(key="trainmaster.dev/spot", operator="In", values=("true", "yes")),)
)
ORDERS = {
    "plain": RunOrders(),
    "narrowed": RunOrders(narrowed=H100),
    "burst": RunOrders(burst=SPOT),
    "awaiting": RunOrders(awaits_seconds=12.5),
    "all": RunOrders(narrowed=H100, awaits_seconds=7.0, burst=SPOT),
}
"""By the name of a job, what its run is told."""
READ_BY_0023 = """
    SELECT j.name, r.decision->'narrowed' AS narrowed, (r.decision->>'awaitsSeconds')::float8 AS awaits,
           r.decision->'burst' AS burst
    FROM runs r JOIN jobs j ON j.id = r.job_id
"""
"""How the release of schema 0023 reads what a run is told."""


async def lease_all(service: Service, agent: FakeAgent) -> None:
    """Lease runs with all kinds of orders, leased and not delivered yet, as this release stores them."""
    await agent.connect(cpu=64)
    template = {"command": ["true", "${seed}"], "resources": {"cpu": "1"}}
    for name in ORDERS:
        await service.submit(name, roles=[{"name": "main", "template": template}])
    parameters = {"job": job("swept", roles=[{"name": "main", "template": template}]), "parameters": [{"seed": 1}]}
    assert (await service.http.post("/v1/jobs", json=parameters)).is_success
    many = len(ORDERS) + 1

    async def are_leased() -> bool:
        return bool(await value(service.stores, "SELECT count(*) = :many FROM runs", many=many))

    await eventually(are_leased)
    for name, orders in ORDERS.items():
        # What the scheduler stores of a start with these orders, and what members take of the device.
        await execute(
            service.stores,
            "UPDATE runs SET orders = CAST(:orders AS jsonb), decision = decision || CAST(:decision AS jsonb)"
            " WHERE job_id = (SELECT id FROM jobs WHERE name = :name)",
            orders=dumps(orders.stored()),
            decision=dumps(orders.for_earlier_release()),
            name=name,
        )
        await execute(
            service.stores,
            "UPDATE job_specs SET spec = jsonb_set(spec, '{roles,0,template,resources,nvidia.com/gpu}', '\"1\"')",
        )


async def delivered(agent: FakeAgent) -> bytes:
    """Return all that is sent to the agent, to the byte."""
    headers = {"Authorization": f"Bearer {agent.key}"}
    answer = await agent.http.get(f"/agent/v1/desired?session={agent.session}&after=0&wait=0", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_runs_that_the_release_before_leased_are_delivered_after_the_migration_as_they_were(
    service: Service,
) -> None:
    agent = service.agent()
    await lease_all(service, agent)
    before = await delivered(agent)
    starts = {start["job"].rsplit("-", 1)[0]: start for start in orjson.loads(before)["start"]}
    assert starts.keys() == {*ORDERS, "swept"}
    assert starts["all"]["spec"]["roles"][0]["template"]["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}
    assert starts["all"]["spec"]["timeLimit"] == "90.500s"
    assert starts["all"]["placementTimeoutSeconds"] == starts["plain"]["placementTimeoutSeconds"] + 7.0
    assert starts["swept"]["spec"]["roles"][0]["template"]["command"] == ["true", "1"]
    # Back to the schema of the release before: what its runs are told is in their decisions alone.
    change(
        service.settings.database_url,
        "ALTER TABLE runs DROP COLUMN orders",
        "UPDATE alembic_version SET version_num = '0023'",
    )
    assert not current_schema(service.settings.database_url).serves
    # Only the migration that is tested: the tables of later ones exist already.
    await asyncio.to_thread(upgrade_to, service.settings.database_url, "0024")
    change(service.settings.database_url, f"UPDATE alembic_version SET version_num = '{newest_revision()}'")
    assert await value(service.stores, "SELECT count(*) FROM runs WHERE orders IS NOT NULL") == 0, (
        "no data is rewritten"
    )
    assert await delivered(agent) == before


async def test_runs_that_this_release_leases_are_read_by_the_one_before(service: Service) -> None:
    await lease_all(service, service.agent())
    found = {row.name: row for row in await rows(service.stores, READ_BY_0023)}
    for name, orders in ORDERS.items():
        row = found[name]
        assert row.narrowed == (None if orders.narrowed is None else {"resource": GPU, "selector": H100.selector})
        assert row.awaits == (orders.awaits_seconds or None)
        assert (row.burst is None) == (orders.burst is None)
        if row.burst is not None:
            assert row.burst["limitSeconds"] == 90.5
            assert row.burst["binding"] == [["trainmaster.dev/spot", "In", ["true", "yes"]]]
    assert found["swept"].narrowed is found["swept"].awaits is found["swept"].burst is None


async def test_the_release_before_goes_on_leasing_runs_on_the_new_schema(service: Service) -> None:
    agent = service.agent()
    await lease_all(service, agent)
    before = await delivered(agent)
    await execute(service.stores, "UPDATE runs SET orders = NULL")  # as its INSERT leaves the column
    assert await delivered(agent) == before
    assert await value(service.stores, "SELECT oldest_release <= '0023' FROM schema_compatibility"), "it may start"


# Declared state: owners of fields and revisions, since 0025

PUT_BY_0024 = """
    INSERT INTO queues (path, spec, parent_id) VALUES (:path, CAST(:spec AS jsonb), NULL)
    ON CONFLICT (path) DO UPDATE SET spec = excluded.spec, parent_id = excluded.parent_id
"""
"""How the release of schema 0024 stores a queue."""


async def put_by_0024(service: Service, weight: int, **fields: Any) -> None:
    spec = {"path": "old", "weight": weight, **fields}
    await execute(service.stores, PUT_BY_0024, path="old", spec=dumps(spec))


async def test_what_the_release_before_has_declared_belongs_to_nobody_and_can_be_returned_to(service: Service) -> None:
    change(
        service.settings.database_url,
        "DROP TABLE field_owners, declared_revisions",
        "UPDATE alembic_version SET version_num = '0024'",
    )
    await put_by_0024(service, 2, maxRunning=5)
    await asyncio.to_thread(upgrade_to, service.settings.database_url, "0025")
    change(service.settings.database_url, f"UPDATE alembic_version SET version_num = '{newest_revision()}'")
    document = {"kind": "Queue", "path": "old", "weight": 3}
    answer = await service.http.post("/v1/apply", json={"documents": [document], "applier": "git"})
    assert answer.status_code == 200, answer.text
    assert (await service.http.get("/v1/queues/old")).json()["maxRunning"] == 5
    back = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "old"})
    assert back.json()["object"]["fields"] == [{"field": "weight", "before": 3.0, "after": 2.0}]


async def test_the_release_before_goes_on_changing_objects_that_this_one_has_applied(service: Service) -> None:
    documents = [{"kind": "Queue", "path": path, "weight": 2} for path in ("old", "other")]
    body = {"documents": documents, "applier": "git"}
    assert (await service.http.post("/v1/apply", json=body)).is_success
    await put_by_0024(service, 9)
    page = (await service.http.get("/v1/history", params={"kind": "Queue", "name": "old"})).json()
    assert len(page["revisions"]) == 1, "it records nothing"
    again = await service.http.post("/v1/apply", json=body)
    changed = [one for one in again.json()["objects"] if one["outcome"] == "changed"]
    assert [one["fields"] for one in changed] == [[{"field": "weight", "before": 9.0, "after": 2.0}]]
    page = (await service.http.get("/v1/history", params={"kind": "Queue", "name": "old"})).json()
    assert [one["action"] for one in page["revisions"]] == ["apply", "unrecorded", "apply"]
    await execute(service.stores, "DELETE FROM queues WHERE path = 'old'")
    pruned = await service.http.post("/v1/apply", json=body | {"documents": documents[1:], "prune": "git"})
    assert [one["outcome"] for one in pruned.json()["objects"]] == ["unchanged"], "it does not exist any more"
    assert await value(service.stores, "SELECT count(*) FROM field_owners WHERE name = 'old'") == 0
    assert await value(service.stores, "SELECT oldest_release <= '0024' FROM schema_compatibility"), "it may start"


def test_the_index_of_quiet_events_is_built_for_each_partition(empty_url: str) -> None:
    """One that was interrupted leaves unfinished indexes; the next run builds them again."""
    upgrade_to(empty_url, "0030")
    engine = create_engine(driver_url(empty_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0029'"))
        connection.execute(text("DROP INDEX ix_events_quiet"))
        on = "(quiet_xid) WHERE quiet_xid IS NOT NULL"
        connection.execute(text(f"CREATE INDEX ix_events_quiet ON ONLY events {on}"))
        connection.execute(text(f"CREATE INDEX events_default_quiet_xid_idx ON events_default {on}"))
    migrate(empty_url)
    with engine.connect() as connection:
        valid = connection.execute(
            text("SELECT indisvalid FROM pg_index WHERE indexrelid = 'ix_events_quiet'::regclass")
        ).scalar()
        many = connection.execute(
            text(
                "SELECT (SELECT count(*) FROM pg_inherits WHERE inhparent = 'ix_events_quiet'::regclass)"
                " - (SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass)"
            )
        ).scalar()
    engine.dispose()
    assert (valid, many) == (True, 0)
