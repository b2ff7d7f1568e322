"""Schema upgrades by Alembic, guarded by an advisory lock so that several processes may try at once."""

import time
from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from trainmaster_dispatcher.store.database import driver_url, map_error
from trainmaster_dispatcher.store.schema import PARTITIONS_SQL, IncompatibleSchemaError, Schema, schema_of

_LOCK = 0x7472_6D61  # "trma"
_LOOK_SECONDS = 0.2


def _config(connection: Connection, location: str) -> Config:
    config = Config()
    config.set_main_option("script_location", location)
    config.attributes["connection"] = connection
    return config


def migrate(url: str) -> Schema:
    """Upgrade the database at ``url`` to the newest revision; return its schema.

    A schema that a newer release has changed stays unchanged. Raises IncompatibleSchemaError where this release cannot run on it,
    and StoreAwayError when Postgres is unreachable.
    """
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with as_file(files("trainmaster_migrations")) as folder, engine.connect() as connection:
            hold_lock(connection)
            before = schema_of(connection)
            if before.is_newer and not before.serves:
                raise IncompatibleSchemaError(before.obstacle)
            if not before.is_newer:
                command.upgrade(_config(connection, str(folder)), "head")
            make_partitions(connection)
            connection.commit()
            after = schema_of(connection)
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
            return after
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()


def hold_lock(connection: Connection) -> None:
    """Take the lock of migrations for the session.

    Polls, as building an index concurrently would wait for a statement that waits for the lock.
    """
    while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar():
        connection.commit()
        time.sleep(_LOOK_SECONDS)
    connection.commit()


def make_partitions(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'UTC'"))
    connection.execute(text(PARTITIONS_SQL))
