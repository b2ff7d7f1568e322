"""The connection to Postgres: pools, short transactions with time-outs, and the one place that maps its errors."""

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import lru_cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson
import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster_dispatcher.store.traces import TracedWork

log = logging.getLogger(__name__)

_Typed = TypeVar("_Typed", bound=tuple[Any, ...])
"""A ``NamedTuple`` whose fields are the columns of a statement, in their order."""

_SETTINGS = (
    "-c statement_timeout=30000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=15000 -c timezone=UTC -c jit=off"
    " -c application_name=trainmaster"
)
_IDLE_SECONDS = 15.0
"""The time in the settings above after which Postgres ends a transaction that does nothing."""
_COPY_LINES = 1000
_PARAMETER = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")
_RETRIED = {"40001", "40P01"}  # serialization failure, deadlock
_BAD_VALUE = {"", "22003", "22021", "22P05"}  # refused by the driver, out of range, no text, no JSON text


class StoreAwayError(ProblemError):
    """Postgres is unreachable or stopping; nothing that was not acknowledged is certain to have happened."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.STORE_AWAY, detail, retry_after=1.0)


class DuplicateError(TrainmasterError):
    """A row with this key already exists."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class ColumnsError(TypeError):
    """The columns of a statement differ from the fields of the row type."""


class _RowsOf:
    """The driver's row factory for rows of ``kind``.

    Compares the columns of each result with the fields, also for an empty result, so that no two columns are confused. Values of a
    field whose type is an enum become its members.
    """

    def __init__(self, kind: type[tuple[Any, ...]]) -> None:
        self._kind = kind
        self._fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        self._columns = tuple(name.encode() for name in self._fields)
        self._make = _maker(kind, self._fields)

    def __call__(self, cursor: Any) -> Any:
        result = cursor.pgresult
        columns = () if result is None else tuple([result.fname(place) for place in range(result.nfields)])
        if columns != self._columns:
            found = ", ".join(name.decode(errors="replace") for name in columns)
            raise ColumnsError(
                f"{self._kind.__name__} has the fields {', '.join(self._fields)}; the statement gives {found}"
            )
        return self._make


_rows_of = lru_cache(maxsize=None)(_RowsOf)


def _maker(kind: type[tuple[Any, ...]], fields: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a row of ``kind`` from the driver's values."""
    types = get_type_hints(kind)
    enums = [(place, members) for place, name in enumerate(fields) if (members := _members_of(types[name])) is not None]
    # Not ``_make``, which counts the values: the columns were compared.
    make: Callable[[Sequence[Any]], Any] = partial(tuple.__new__, kind)
    if not enums:
        return make

    def with_members(values: Sequence[Any]) -> Any:
        row = list(values)
        for place, members in enums:
            row[place] = members[row[place]]
        return make(row)

    return with_members


def _members_of(annotation: Any) -> dict[Any, Any] | None:
    """Return an enum's members by their values, with None for None where the type allows it; None for other types."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for option in options:
        if isinstance(option, type) and issubclass(option, Enum):
            found: dict[Any, Any] = {member.value: member for member in option}
            return found | {None: None} if type(None) in options else found
    return None


@lru_cache(maxsize=1024)
def _driver_sql(sql: str) -> str:
    """Return a statement with ``:name`` parameters in the driver's form."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def map_error(error: Exception) -> Exception:
    """Return our own error for a driver's error; return other errors unchanged."""
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
    # 53: no memory, disk or connections; 25006: a standby after a fail-over; 25P03: our idle transaction was ended, as this
    # process was too busy to go on with it: Postgres is there.
    if state == "25P03":
        return _took_too_long()
    gone = invalidated or state[:2] in ("08", "53") or state in ("57P01", "57P02", "57P03", "57P04", "25006")
    if gone or (isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not state):
        return StoreAwayError("Postgres does not answer; try again in a moment")
    if state in ("55P03", "57014") or state in _RETRIED:
        return ProblemError(Code.TOO_BUSY, "the store took too long for this; try again", retry_after=1.0)
    if state == "23503":
        return ProblemError(Code.CONFLICT, "something this refers to was just removed, or has just come into use")
    if isinstance(cause, psycopg.DataError) and state in _BAD_VALUE:
        return ProblemError(Code.INVALID_SPEC, "a number is too large, or a text has a NUL character")
    return error


def _took_too_long() -> ProblemError:
    return ProblemError(Code.TOO_BUSY, "this process took too long for this; try again", retry_after=1.0)


class Transaction:
    """One open transaction. Queries are named functions of the store's modules that take the transaction as first argument.

    SQLAlchemy provides connections, their pool and the transaction's bounds. Statements go to the driver directly: each is written
    once as text, and the way through SQLAlchemy took three times as long as the driver itself.
    """

    def __init__(self, connection: AsyncConnection, traces: "TracedWork | None" = None) -> None:
        self.connection = connection
        self.traces = traces
        self._driver: Any = None
        self._used_at = time.monotonic()
        self.was_left_idle = False
        """Whether there was more time between two statements than Postgres lets a transaction be idle."""
        self._after: list[Callable[[], Awaitable[None]]] = []

    async def _execute(
        self, sql: str, parameters: dict[str, Any], rows: Any = namedtuple_row, *, prepare: bool | None = None
    ) -> Any:
        """Execute a statement; return the cursor. By default, rows have an attribute for each column, and statements that are
        repeated are prepared.
        """
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        cursor = self._driver.cursor(row_factory=rows)
        self.note_use()
        done = await cursor.execute(_driver_sql(sql), parameters, prepare=prepare)
        self._used_at = time.monotonic()
        return done

    def note_use(self) -> None:
        """Note that a statement begins, or the commit."""
        self.was_left_idle = self.was_left_idle or time.monotonic() - self._used_at >= _IDLE_SECONDS

    async def all_of(self, kind: type[_Typed], sql: str, /, **parameters: Any) -> Sequence[_Typed]:
        """Return the rows as ``kind``. Raises ColumnsError unless the fields of ``kind`` are the statement's columns, in their
        order.
        """
        rows: Sequence[_Typed] = await (await self._execute(sql, parameters, _rows_of(kind))).fetchall()
        return rows

    async def planned_of(self, kind: type[_Typed], sql: str, /, **parameters: Any) -> Sequence[_Typed]:
        """Return the rows as ``all_of`` does, with a plan for these parameters: for statements that match few rows with some
        parameters and many with others. Once a statement is prepared, Postgres may use one plan for all parameters.
        """
        rows: Sequence[_Typed] = await (await self._execute(sql, parameters, _rows_of(kind), prepare=False)).fetchall()
        return rows

    async def first_of(self, kind: type[_Typed], sql: str, /, **parameters: Any) -> _Typed | None:
        """Return the first row as ``kind``, or None. Raises ColumnsError as ``all_of`` does."""
        row: _Typed | None = await (await self._execute(sql, parameters, _rows_of(kind))).fetchone()
        return row

    async def one_of(self, kind: type[_Typed], sql: str, /, **parameters: Any) -> _Typed:
        """Return the row of a statement that always returns one, as ``kind``. Raises ColumnsError as ``all_of`` does."""
        row = await self.first_of(kind, sql, **parameters)
        if row is None:
            raise LookupError("a statement that always gives a row gave none")
        return row

    async def pages_of(
        self, kind: type[_Typed], sql: str, size: int, /, **parameters: Any
    ) -> AsyncIterator[Sequence[_Typed]]:
        """Yield the rows of one statement as ``kind``, at most ``size`` at a time: for results too large to read at once.

        The time-outs of statements and of idle transactions apply to each page. Raises ColumnsError as ``all_of`` does.
        """
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        async with self._driver.cursor(name="pages", row_factory=_rows_of(kind)) as cursor:
            await cursor.execute(_driver_sql(sql), parameters)
            while page := await cursor.fetchmany(size):
                yield page

    async def all(self, sql: str, **parameters: Any) -> Sequence[Any]:
        """Return rows with an attribute for each column, for use inside one function: rows that leave the store have a type, by
        ``all_of``.
        """
        rows: Sequence[Any] = await (await self._execute(sql, parameters)).fetchall()
        return rows

    async def first(self, sql: str, **parameters: Any) -> Any | None:
        """Return the first row as ``all`` does, or None."""
        return await (await self._execute(sql, parameters)).fetchone()

    async def one(self, sql: str, **parameters: Any) -> Any:
        """Return the row of a statement that always returns one, as ``all`` does."""
        row = await self.first(sql, **parameters)
        if row is None:
            raise LookupError("a statement that always gives a row gave none")
        return row

    async def run(self, sql: str, **parameters: Any) -> int:
        """Execute a statement without result rows; return how many rows it touched."""
        return int((await self._execute(sql, parameters)).rowcount)

    async def copy(self, statement: str, lines: Sequence[bytes]) -> None:
        """Execute COPY ... FROM STDIN with rows in the text format, each with its line end."""
        if self._driver is None:
            self._driver = (await self.connection.get_raw_connection()).driver_connection
        self.note_use()
        async with self._driver.cursor() as cursor, cursor.copy(statement) as copy:
            for start in range(0, len(lines), _COPY_LINES):
                await copy.write(b"".join(lines[start : start + _COPY_LINES]))
        self._used_at = time.monotonic()

    def after_commit(self, action: Callable[[], Awaitable[None]]) -> None:
        """Register an action to run once the transaction is committed, such as waking a process."""
        self._after.append(action)

    async def committed(self) -> None:
        """Run the actions registered for after the commit. An action that fails is logged; the commit stands, and the caller must
        not see a failure.
        """
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
        self.traces: TracedWork | None = None
        """Takes jobs and runs of traces that have ended; None: this process makes no spans."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction that commits at the end; foreign errors are mapped to our own."""
        transaction: Transaction | None = None
        try:
            async with self.engine.connect() as connection, connection.begin():
                transaction = Transaction(connection, self.traces)
                yield transaction
                transaction.note_use()
            await transaction.committed()
        except (DBAPIError, psycopg.Error, PoolTimeoutError, OSError) as error:
            mapped = map_error(error)
            if mapped is error:
                raise
            if isinstance(mapped, StoreAwayError) and transaction is not None and transaction.was_left_idle:
                # The driver says no more than that the connection is lost.
                mapped = _took_too_long()
            raise mapped from error

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transaction]:
        """Open a connection for single read statements, without a transaction: this saves two round trips.

        Each statement sees the rows as they are when the statement begins, as in a transaction. No lock and no ``SET LOCAL``
        outlasts its statement, and ``pages_of`` does not work here.
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
    """Return the transaction's time by the database clock, in seconds since the epoch."""
    return float((await tx.one("SELECT extract(epoch FROM now())::float8 AS now")).now)


def array_text(numbers: Sequence[int]) -> str:
    """Return numbers as the text of an array, for statements that take an array of arrays, which Postgres has not."""
    return "{" + ",".join(map(str, numbers)) + "}"


def dumps(value: Any) -> str:
    """Return a value as JSON for the store. Raises ProblemError for whole numbers beyond 64 bits and nesting beyond 254."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ProblemError(Code.INVALID_SPEC, f"this value cannot be stored: {error}") from error


def driver_url(url: str) -> str:
    """Return the URL with this package's driver, for each common scheme."""
    for scheme in ("postgres://", "postgresql://"):
        if url.startswith(scheme):
            return "postgresql+psycopg://" + url[len(scheme) :]
    return url


def check_address(url: str) -> str:
    """Return the address of a Postgres database. Raises ValueError, which does not repeat the address: it may have a password."""
    try:
        dialect = make_url(driver_url(url)).get_backend_name()
    except (ArgumentError, ValueError):
        dialect = ""
    if dialect != "postgresql":
        raise ValueError("must be the address of a Postgres database, such as postgresql://user@host:5432/trainmaster")
    return url


def process_name(kind: str) -> str:
    """Return a name for this process that is unique enough for people to find the process."""
    return f"{kind}@{os.uname().nodename}:{os.getpid()}"
