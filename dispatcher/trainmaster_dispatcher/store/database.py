"""The connection to Postgres: pools, short transactions with time-outs, and the one place that maps its errors."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import orjson
import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Row as Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError

log = logging.getLogger(__name__)

_SETTINGS = (
    "-c statement_timeout=30000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=15000 -c timezone=UTC -c jit=off"
    " -c application_name=trainmaster"
)
_COPY_LINES = 1000
_PARAMETER = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")
_RETRIED = {"40001", "40P01"}  # serialization failure, deadlock
_BAD_VALUE = {"", "22003", "22021", "22P05"}  # refused by the driver, out of range, no text, no JSON text


class StoreAwayError(ProblemError):
    """Postgres cannot be reached or is stopping; nothing that was not acknowledged has happened for certain."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.STORE_AWAY, detail, retry_after=1.0)


class DuplicateError(TrainmasterError):
    """A row with this key exists already."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


@lru_cache(maxsize=1024)
def _driver_sql(sql: str) -> str:
    """A statement with ``:name`` parameters in the driver's form."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def map_error(error: Exception) -> Exception:
    """The error of our own tree for one of the driver's; others are given back as they are."""
    if isinstance(error, PoolTimeoutError):
        return ProblemError(Code.TOO_BUSY, "all connections to the store are in use", retry_after=1.0)
    invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, psycopg.Error):
        return _map_driver_error(cause, invalidated, error)
    if isinstance(error, OSError | asyncio.TimeoutError):
        return StoreAwayError("Postgres does not answer; try again in a moment")
    return error


def _map_driver_error(cause: psycopg.Error, invalidated: bool, error: Exception) -> Exception:
    state = cause.sqlstate or ""
    if state == "23505":
        return DuplicateError(cause.diag.constraint_name or "")
    # 57P0x: the server is going down or starting; 57014 and 55P03: a time-out of ours; 08: the connection is gone.
    # 53: no memory, disk or connections; 25006: a standby after a fail-over; 25P03: our idle transaction was ended.
    gone = invalidated or state[:2] in ("08", "53") or state in ("57P01", "57P02", "57P03", "57P04", "25006", "25P03")
    if gone or (isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not state):
        return StoreAwayError("Postgres does not answer; try again in a moment")
    if state in ("55P03", "57014") or state in _RETRIED:
        return ProblemError(Code.TOO_BUSY, "the store took too long for this; try again", retry_after=1.0)
    if state == "23503":
        return ProblemError(Code.CONFLICT, "something this refers to was just removed, or has just come into use")
    if isinstance(cause, psycopg.DataError) and state in _BAD_VALUE:
        return ProblemError(Code.INVALID_SPEC, "a number is too large, or a text has a NUL character")
    return error


class Transaction:
    """One open transaction. Queries are named functions of the store's modules that take it first.

    Connections, their pool and the transaction's bounds are SQLAlchemy's. Statements go to the driver directly: each is written
    once as text, and SQLAlchemy's way to the driver took three times as long as the driver itself.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self._driver: Any = None
        self._after: list[Callable[[], Awaitable[None]]] = []

    async def _execute(self, sql: str, parameters: dict[str, Any]) -> Any:
        """A cursor with the outcome; rows have an attribute for each column."""
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        cursor = self._driver.cursor(row_factory=namedtuple_row)
        return await cursor.execute(_driver_sql(sql), parameters)

    async def all(self, sql: str, **parameters: Any) -> Sequence[Row[Any]]:
        rows: Sequence[Row[Any]] = await (await self._execute(sql, parameters)).fetchall()
        return rows

    async def pages(self, sql: str, size: int, **parameters: Any) -> AsyncIterator[Sequence[Row[Any]]]:
        """Rows as they are asked for, so many at a time, of one statement: for more than can be read or dealt with in one go.

        The time-outs of statements and of idle transactions are those of a page.
        """
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        async with self._driver.cursor(name="pages", row_factory=namedtuple_row) as cursor:
            await cursor.execute(_driver_sql(sql), parameters)
            while page := await cursor.fetchmany(size):
                yield page

    async def first(self, sql: str, **parameters: Any) -> Row[Any] | None:
        row: Row[Any] | None = await (await self._execute(sql, parameters)).fetchone()
        return row

    async def one(self, sql: str, **parameters: Any) -> Row[Any]:
        row = await self.first(sql, **parameters)
        if row is None:
            raise LookupError("a statement that always gives a row gave none")
        return row

    async def run(self, sql: str, **parameters: Any) -> int:
        """Execute without rows; how many rows were touched."""
        return int((await self._execute(sql, parameters)).rowcount)

    async def copy(self, statement: str, lines: Sequence[bytes]) -> None:
        """COPY ... FROM STDIN of rows in the text format, each with its line end."""
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        async with self._driver.cursor() as cursor, cursor.copy(statement) as copy:
            for start in range(0, len(lines), _COPY_LINES):
                await copy.write(b"".join(lines[start : start + _COPY_LINES]))

    def after_commit(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something once the transaction is committed, such as waking a process."""
        self._after.append(action)

    async def committed(self) -> None:
        """What follows a commit. It may fail, and is told; what was committed stays so, and nobody may think otherwise."""
        for action in self._after:
            try:
                await action()
            except Exception:
                log.exception("what follows a commit failed")


class Database:
    """A pool of connections to one Postgres database."""

    def __init__(self, url: str, *, pool_size: int = 10, overflow: int = 10) -> None:
        self.url = driver_url(url)
        self.engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=overflow,
            pool_timeout=5,
            pool_recycle=1800,
            json_serializer=dumps,
            json_deserializer=orjson.loads,
            connect_args={"options": _SETTINGS, "connect_timeout": 5},
        )
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that commits at the end; foreign errors leave it mapped to our own."""
        try:
            async with self.engine.connect() as connection, connection.begin():
                transaction = Transaction(connection)
                yield transaction
            await transaction.committed()
        except (DBAPIError, psycopg.Error, PoolTimeoutError, OSError) as error:
            mapped = map_error(error)
            if mapped is error:
                raise
            raise mapped from error

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transaction]:
        """Statements that only read, each by itself: two round trips less than in a transaction.

        Each sees the rows as they are when it begins, as it does in a transaction too. No lock and no ``SET LOCAL`` outlasts its
        statement, and ``pages`` has no meaning here.
        """
        try:
            async with self._reading.connect() as connection:
                yield Transaction(connection)
        except (DBAPIError, psycopg.Error, PoolTimeoutError, OSError) as error:
            mapped = map_error(error)
            if mapped is error:
                raise
            raise mapped from error

    async def close(self) -> None:
        await self.engine.dispose()

    async def ping(self) -> None:
        """Raise StoreAwayError unless Postgres answers."""
        async with self.transaction() as tx:
            await tx.one("SELECT 1")


async def to_epoch(tx: Transaction) -> float:
    """The transaction's time by the database clock, in seconds since the epoch."""
    return float((await tx.one("SELECT extract(epoch FROM now())::float8 AS now")).now)


def dumps(value: Any) -> str:
    """A value as the store takes JSON. Raises ProblemError for whole numbers beyond 64 bits and nesting beyond 254."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ProblemError(Code.INVALID_SPEC, f"this cannot be kept: {error}") from error


def driver_url(url: str) -> str:
    """The URL with the driver that is used here, whichever common scheme it was given in."""
    for scheme in ("postgres://", "postgresql://"):
        if url.startswith(scheme):
            return "postgresql+psycopg://" + url[len(scheme) :]
    return url


def process_name(kind: str) -> str:
    """A name for this process that is unique enough for people to find it."""
    return f"{kind}@{os.uname().nodename}:{os.getpid()}"
