"""Bringing the schema up to date, guarded by an advisory lock so that several processes may try at once."""

import time
from datetime import date
from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from trainmaster.dispatcher.store.database import driver_url, map_error

_LOCK = 0x7472_6D61  # "trma"
_LOOK_SECONDS = 0.2
PARTITION_DAYS_AHEAD = 7


def _config(connection: Connection, location: str) -> Config:
    config = Config()
    config.set_main_option("script_location", location)
    config.attributes["connection"] = connection
    return config


def migrate(url: str) -> str:
    """Upgrade the database at ``url`` to the newest revision; its name. Raises StoreAwayError when Postgres is away."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with as_file(files("trainmaster.migrations")) as folder, engine.connect() as connection:
            _take_lock(connection)
            command.upgrade(_config(connection, str(folder)), "head")
            make_partitions(connection)
            connection.commit()
            revision = MigrationContext.configure(connection).get_current_revision()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
            return revision or ""
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
    with as_file(files("trainmaster.migrations")) as folder:
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


def current_revision(url: str) -> str:
    """The revision of the database at ``url``, empty when it has none. Raises StoreAwayError."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision() or ""
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()
