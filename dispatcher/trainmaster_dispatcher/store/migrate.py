"""Bringing the schema up to date, guarded by an advisory lock so that several processes may try at once.

A release is known by the newest revision that it brings. It runs on the schema of that revision, on the earlier ones in
``EARLIER_SCHEMAS``, and on newer ones as long as the table ``schema_compatibility`` names it or an older release: expanding
migrations leave that table as it is, a contracting one raises it.
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
"""Revisions before the newest on which this code runs as well. None in this release: it uses what its last migration brought."""


class IncompatibleSchemaError(TrainmasterError):
    """The schema is one that this release cannot run on, nor bring up to date."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database, as the release ``release`` finds it. ``revision`` is empty where there is none."""

    revision: str
    oldest_release: str
    """The oldest release that may run on it; empty where the schema does not say so."""
    release: str
    known: frozenset[str]
    """The revisions that the release knows."""

    @property
    def is_newer(self) -> bool:
        """Whether a newer release has changed it."""
        return bool(self.revision) and self.revision not in self.known

    @property
    def serves(self) -> bool:
        """Whether the release runs on it."""
        if not self.is_newer:
            return self.revision == self.release or self.revision in EARLIER_SCHEMAS
        return bool(self.oldest_release) and _number(self.oldest_release) <= _number(self.release)

    @property
    def obstacle(self) -> str:
        """Why the release does not run on it, and what to do."""
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
    """The place of a revision in their order. Raises IncompatibleSchemaError for what is none."""
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
    """Upgrade the database at ``url`` to the newest revision; the schema that it has then.

    One that a newer release has changed stays as it is. Raises IncompatibleSchemaError where this release cannot run on it, and
    StoreAwayError when Postgres is away.
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
    """Wait until nobody else migrates. Not inside the statement: an index that is built concurrently waits for all of those."""
    while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar():
        connection.commit()
        time.sleep(_LOOK_SECONDS)
    connection.commit()


def newest_revision() -> str:
    """The revision that this code needs."""
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
"""Makes the partitions of yesterday to a week ahead. What falls outside goes to the default partition and is not lost."""


def make_partitions(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'UTC'"))
    connection.execute(text(PARTITIONS_SQL))


def partition_of(day: date) -> str:
    """The name of a day's partition of the events."""
    return f"events_{day:%Y%m%d}"


def current_schema(url: str) -> Schema:
    """The schema of the database at ``url``. Raises StoreAwayError."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
            return _found(connection, ScriptDirectory.from_config(_config(connection, str(folder))))
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()
