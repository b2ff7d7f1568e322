"""The schema of the database: which revision it has, whether this release runs on it, and the partitions of events.

Every process reads it as it starts, so nothing here imports Alembic: ``migrate`` does.

A release is identified by its newest revision. It runs on the schema of that revision, on the earlier ones in ``EARLIER_SCHEMAS``,
and on newer ones as long as the table ``schema_compatibility`` names it or an older release: expanding migrations leave that table
unchanged, a contracting one raises it.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from trainmaster.protocol.errors import TrainmasterError
from trainmaster_dispatcher.store.database import driver_url, map_error

PARTITION_DAYS_AHEAD = 7
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


@cache
def known_revisions() -> frozenset[str]:
    """Return the revisions that this release has, by the names of their files."""
    versions = files("trainmaster_migrations").joinpath("versions")
    return frozenset(
        name[:4] for file in versions.iterdir() if (name := file.name)[:4].isdigit() and name.endswith(".py")
    )


def newest_revision() -> str:
    """Return the revision that this release is written for."""
    return max(known_revisions())


def schema_of(connection: Connection) -> Schema:
    """Return the schema of the database that ``connection`` reaches."""
    revision = _scalar_if(connection, "alembic_version", "SELECT version_num FROM alembic_version")
    oldest = _scalar_if(connection, "schema_compatibility", "SELECT oldest_release FROM schema_compatibility")
    return Schema(revision, oldest, newest_revision(), known_revisions())


def _scalar_if(connection: Connection, table: str, query: str) -> str:
    """Return the value of a query, or nothing where its table does not exist."""
    if connection.execute(text("SELECT to_regclass(:name)"), {"name": table}).scalar() is None:
        return ""
    return str(connection.execute(text(query)).scalar() or "")


def current_schema(url: str) -> Schema:
    """Return the schema of the database at ``url``. Raises StoreAwayError."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            return schema_of(connection)
    except DBAPIError as error:
        raise map_error(error) from error
    finally:
        engine.dispose()


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
