"""Schema upgrades, guarded by an advisory lock so that several processes may try at once.

A release is identified by its newest revision. It runs on the schema of that revision, on the earlier ones in ``EARLIER_SCHEMAS``,
and on newer ones as long as the table ``schema_compatibility`` names it or an older release: expanding migrations leave that table
unchanged, a contracting one raises it.
"""

import time
from dataclasses import dataclass
from datetime import date
from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from trainmaster.protocol.errors import TrainmasterError
from trainmaster_dispatcher.store.database import driver_url, map_error

_LOCK = 0x7472_6D61  # "trma"
_LOOK_SECONDS = 0.2
PARTITION_DAYS_AHEAD = 7


def _config(connection: Connection, location: str) -> Config:
    config = Config()
    config.set_main_option("script_location", location)
    config.attributes["connection"] = connection
    return config


EARLIER_SCHEMAS: frozenset[str] = frozenset()
"""Earlier revisions on which this code runs as well. Empty in this release, which writes ``runs.orders`` with every run: revision
0024 adds that column.
"""


class IncompatibleSchemaError(TrainmasterError):
    """The release can neither run on the schema nor upgrade it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database, as the release ``release`` finds it. ``revision`` is empty where there is no schema."""

    revision: str
    oldest_release: str
    """The oldest release that may run on the schema; empty where the schema does not name it."""
    release: str
    known: frozenset[str]
    """The revisions that the release knows."""

    @property
    def is_newer(self) -> bool:
        """Return whether a newer release has changed the schema."""
        return bool(self.revision) and self.revision not in self.known

    @property
    def serves(self) -> bool:
        """Return whether the release runs on the schema."""
        if not self.is_newer:
            return self.revision == self.release or self.revision in EARLIER_SCHEMAS
        return bool(self.oldest_release) and _number(self.oldest_release) <= _number(self.release)

    @property
    def obstacle(self) -> str:
        """The reason why the release does not run on the schema, and what to do."""
        if self.is_newer:
            oldest = "no older one runs on it"
            if self.oldest_release:
                oldest = f"the oldest one that runs on it is {self.oldest_release}"
            return (
                f"the database has revision {self.revision} of a newer release and {oldest}, this one is {self.release};"
                " install the newer release, or restore the backup from before the upgrade"
            )
        has = f"revision {self.revision}" if self.revision else "no schema"
        return f"the database has {has}, this version needs {self.release}; run: trainmaster migrate"


def _number(revision: str) -> int:
    """Return the position of a revision in their order. Raises IncompatibleSchemaError for a text that is no revision."""
    if not (revision.isascii() and revision.isdigit()):
        raise IncompatibleSchemaError(
            f"schema_compatibility has {revision[:40]!r}, which is no revision such as '0018'"
        )
    return int(revision)


def _found(connection: Connection, scripts: ScriptDirectory) -> Schema:
    revision = MigrationContext.configure(connection).get_current_revision() or ""
    oldest = None
    if connection.execute(text("SELECT to_regclass('schema_compatibility')")).scalar() is not None:
        oldest = connection.execute(text("SELECT oldest_release FROM schema_compatibility")).scalar()
    known = frozenset(script.revision for script in scripts.walk_revisions())
    return Schema(revision, str(oldest or ""), scripts.get_current_head() or "", known)


def migrate(url: str) -> Schema:
    """Upgrade the database at ``url`` to the newest revision; return its schema.

    A schema that a newer release has changed stays unchanged. Raises IncompatibleSchemaError where this release cannot run on it,
    and StoreAwayError when Postgres is unreachable.
    """
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
            _take_lock(connection)
            config = _config(connection, str(folder))
            scripts = ScriptDirectory.from_config(config)
            before = _found(connection, scripts)
            if before.is_newer and not before.serves:
                raise IncompatibleSchemaError(before.obstacle)
            if not before.is_newer:
                command.upgrade(config, "head")
            make_partitions(connection)
            connection.commit()
            after = _found(connection, scripts)
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
            return after
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()


def _take_lock(connection: Connection) -> None:
    """Take the lock of migrations. Polls, as building an index concurrently would wait for a statement that waits for the lock."""
    while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar():
        connection.commit()
        time.sleep(_LOOK_SECONDS)
    connection.commit()


def newest_revision() -> str:
    """Return the revision that this code needs."""
    with as_file(files("trainmaster_migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder))
        return ScriptDirectory.from_config(config).get_current_head() or ""


PARTITIONS_SQL = f"""
DO $$
DECLARE day date;
BEGIN
  FOR day IN SELECT (current_date - 1 + n)::date FROM generate_series(0, {PARTITION_DAYS_AHEAD + 1}) AS n LOOP
    BEGIN
      EXECUTE format(
        'CREATE TABLE IF NOT EXISTS %I PARTITION OF events FOR VALUES FROM (%L) TO (%L)',
        'events_' || to_char(day, 'YYYYMMDD'), day, day + 1);
    EXCEPTION WHEN check_violation THEN
      NULL; -- events of this day came before its partition and are in the default one; the rest of the day follows them
    END;
  END LOOP;
END $$
"""
"""Creates the partitions from yesterday to a week ahead. Rows of other days go to the default partition and are not lost."""


def make_partitions(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'UTC'"))
    connection.execute(text(PARTITIONS_SQL))


def partition_of(day: date) -> str:
    """Return the name of the events' partition of a day."""
    return f"events_{day:%Y%m%d}"


def current_schema(url: str) -> Schema:
    """Return the schema of the database at ``url``. Raises StoreAwayError."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
            return _found(connection, ScriptDirectory.from_config(_config(connection, str(folder))))
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()
