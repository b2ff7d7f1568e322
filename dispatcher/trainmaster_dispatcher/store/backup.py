"""Facts about a store that is backed up or restored, and the SQL around a dump. Runs no program and writes no file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg.pq import Conninfo
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from trainmaster.protocol.errors import TrainmasterError
from trainmaster_dispatcher.store.database import driver_url, map_error
from trainmaster_dispatcher.store.migrate import hold_lock
from trainmaster_dispatcher.store.recovery import BEGINNING
from trainmaster_dispatcher.store.schema import Schema, schema_of

_PATIENT = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c timezone=UTC"
_OWN_TABLES = frozenset({"alembic_version", "installation", "jobs", "runs", "schema_compatibility"})


class NoStoreError(TrainmasterError):
    """The database holds no store of Trainmaster."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Identity of a store, and the amount of rows in it, at one moment."""

    revision: str
    installation: str
    epoch: int
    taken_at: datetime
    server: str
    """Version of Postgres."""
    rows: dict[str, int]
    """Number of rows by table, of the tables that people count by."""


class StoreSession(NamedTuple):
    """A session of one of the dispatcher's processes."""

    pid: int
    """Of Postgres's process that serves it."""
    address: str
    since: datetime


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The database that a backup is going to be restored into."""

    schema: Schema
    tables: tuple[str, ...]
    sessions: tuple[StoreSession, ...]
    leader: str
    """Name of the scheduler that leads; empty where none does."""

    @property
    def is_foreign(self) -> bool:
        """Return whether somebody else keeps tables here, and Trainmaster none."""
        return bool(self.tables) and not _OWN_TABLES & set(self.tables)


def client_environment(url: str) -> dict[str, str]:
    """Return the variables by which Postgres's own programs reach a database: the list of processes does not show them.

    Raises NoStoreError for an address that cannot be read.
    """
    try:
        options = Conninfo.parse(driver_url(url).replace("postgresql+psycopg://", "postgresql://", 1).encode())
    except psycopg.Error as error:
        raise NoStoreError("DATABASE_URL is no address of a Postgres") from error
    return {
        option.envvar.decode(): option.val.decode()
        for option in options
        if option.envvar is not None and option.val is not None
    }


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Yield a connection without time-outs. Raises what ``map_error`` makes of the driver's errors."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5, "options": _PATIENT})
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()


@contextmanager
def exported_snapshot(url: str) -> Iterator[tuple[str, StoreFacts]]:
    """Yield the name of a snapshot that other sessions can read, and the facts of the store in it, while it is kept.

    Raises NoStoreError, and StoreAwayError when Postgres is unreachable.
    """
    with _connected(url) as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        schema = schema_of(connection)
        if not schema.revision:
            raise NoStoreError("the database has no schema of Trainmaster, so there is nothing to back up")
        name = str(connection.execute(text("SELECT pg_export_snapshot()")).scalar())
        yield name, _facts(connection, schema)


def _facts(connection: Connection, schema: Schema) -> StoreFacts:
    about = connection.execute(
        text("SELECT id::text, store_epoch, clock_timestamp(), current_setting('server_version') FROM installation")
    ).one()
    tables = ("clusters", "queues", "jobs", "runs", "api_keys")
    counts = connection.execute(text("SELECT " + ", ".join(f"(SELECT count(*) FROM {name})" for name in tables))).one()
    rows = dict(zip(tables, (int(count) for count in counts), strict=True))
    return StoreFacts(schema.revision, about[0], int(about[1]), about[2], str(about[3]), rows)


@contextmanager
def held_target(url: str) -> Iterator[Connection]:
    """Yield a connection that holds the lock of migrations, so that nobody else changes the schema meanwhile.

    Raises StoreAwayError when Postgres is unreachable.
    """
    with _connected(url) as connection:
        hold_lock(connection)
        yield connection


def target_of(connection: Connection) -> RestoreTarget:
    """Return what is in the database now and who works on it."""
    connection.rollback()
    schema = schema_of(connection)
    tables = connection.execute(
        text(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace('public') AND c.relkind IN ('r', 'p')"
            " AND NOT c.relispartition ORDER BY c.relname"
        )
    ).scalars()
    sessions = connection.execute(
        text(
            "SELECT pid, coalesce(host(client_addr), 'this machine'), backend_start FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'trainmaster' AND pid <> pg_backend_pid() ORDER BY pid"
        )
    )
    found = RestoreTarget(
        schema, tuple(tables), tuple(StoreSession(*row) for row in sessions), _leader(connection, schema)
    )
    connection.rollback()
    return found


def _leader(connection: Connection, schema: Schema) -> str:
    if not schema.revision:
        return ""
    query = "SELECT holder FROM leadership WHERE expires_at > clock_timestamp()"
    return str(connection.execute(text(query)).scalar() or "")


EMPTYING = """
DO $$
DECLARE command text;
BEGIN
  FOR command IN
    SELECT format('DROP TABLE %I.%I CASCADE', 'public', c.relname) FROM pg_class c
    WHERE c.relnamespace = to_regnamespace('public') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  LOOP EXECUTE command; END LOOP;
  FOR command IN
    SELECT format('DROP FUNCTION %s CASCADE', p.oid::regprocedure) FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace('public') AND p.prokind = 'f'
      AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
  LOOP EXECUTE command; END LOOP;
  FOR command IN
    SELECT format('DROP TYPE %s CASCADE', t.oid::regtype) FROM pg_type t
    WHERE t.typnamespace = to_regnamespace('public') AND t.typtype = 'e'
  LOOP EXECUTE command; END LOOP;
END $$;
"""
"""Removes everything that Trainmaster has in its database, in the transaction of the restore."""

RECOVERING = "SET search_path = public;\n" + "".join(f"{statement};\n" for statement in BEGINNING)
"""Enters a recovery, in the transaction of the restore: the store is never visible without it."""
