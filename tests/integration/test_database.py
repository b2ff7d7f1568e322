"""Transactions, and statements that only read."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import orjson
import pytest

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import JobState, Wish
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import ColumnsError, Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection, so that both kinds of use have the same one in turn."""
    opened = Database(database_url, pool_size=1, overflow=0)
    async with opened.transaction() as tx:
        await tx.run("CREATE TABLE numbers (number int)")
    yield opened
    await opened.close()


async def test_a_connection_that_was_used_to_read_rolls_back_again(database: Database) -> None:
    async def give_up() -> None:
        async with database.transaction() as tx:
            await tx.run("INSERT INTO numbers VALUES (1)")
            raise ValueError("given up")

    for _ in range(3):
        async with database.reading() as tx:
            first = await tx.one("SELECT now() AS at")
            assert (await tx.one("SELECT now() AS at")).at > first.at, "each statement is a transaction of its own"
            assert await tx.all("SELECT number FROM numbers") == []
        with pytest.raises(ValueError, match="given up"):
            await give_up()
    async with database.transaction() as tx:
        await tx.run("INSERT INTO numbers VALUES (2)")
    async with database.reading() as tx:
        assert [row.number for row in await tx.all("SELECT number FROM numbers")] == [2]


async def test_an_error_while_reading_is_mapped_and_leaves_the_connection_usable(database: Database) -> None:
    with pytest.raises(ProblemError) as refused:
        async with database.reading() as tx:
            await tx.one("SELECT CAST(:number AS int) AS number", number=2**40)
    assert refused.value.code is Code.INVALID_SPEC
    async with database.reading() as tx:
        assert (await tx.one("SELECT 1 AS one")).one == 1


async def test_a_caller_that_goes_away_while_reading_gives_its_connection_back(database: Database) -> None:
    async def read() -> None:
        async with database.reading() as tx:
            await tx.one("SELECT pg_sleep(30) AS slept")

    task = asyncio.create_task(read())
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10), database.reading() as tx:
        assert (await tx.one("SELECT 1 AS one")).one == 1


class _Weighed(NamedTuple):
    """A row with an enum, one that may be null, and a number."""

    state: JobState
    wish: Wish | None
    weight: int


_WEIGHED = "SELECT * FROM (VALUES ('held', 'cancelling', 3), ('running', NULL, 1)) AS v(state, wish, weight)"


async def test_rows_have_the_type_that_was_asked_for(database: Database) -> None:
    held, running = _Weighed(JobState.HELD, Wish.CANCEL, 3), _Weighed(JobState.RUNNING, None, 1)
    async with database.transaction() as tx:
        rows = await tx.all_of(_Weighed, _WEIGHED)
        first = await tx.first_of(_Weighed, f"{_WEIGHED} WHERE weight = :weight", weight=1)
        only = await tx.one_of(_Weighed, f"{_WEIGHED} WHERE weight = :kind", kind=3)
        assert await tx.first_of(_Weighed, f"{_WEIGHED} WHERE weight = 2") is None
        assert [page async for page in tx.pages_of(_Weighed, _WEIGHED, 1)] == [[held], [running]]
        with pytest.raises(LookupError):
            await tx.one_of(_Weighed, f"{_WEIGHED} WHERE weight = 2")
    assert (rows, first, only) == ([held, running], running, held)
    assert all(type(row) is _Weighed and type(row.state) is JobState for row in [*rows, first, only])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'cancelling' AS wish, 'held' AS state, 3 AS weight",
        "SELECT 'held' AS state, 'cancelling' AS wish, 3 AS weight, 4 AS height",
        "SELECT 'held' AS state, 'cancelling' AS wish",
        "SELECT 'held' AS state, 'cancelling' AS wish, 3 AS weigth",
        "SELECT 'cancelling' AS wish, 'held' AS state, 3 AS weight WHERE false",
        "SET LOCAL lock_timeout = 5000",
    ],
    ids=["other order", "one more", "one less", "another name", "no rows", "no columns"],
)
async def test_columns_that_are_not_the_fields_of_the_type_are_an_error(database: Database, statement: str) -> None:
    async with database.transaction() as tx:
        with pytest.raises(ColumnsError, match="_Weighed has the fields state, wish, weight; the statement gives"):
            await tx.all_of(_Weighed, statement)
        with pytest.raises(ColumnsError):
            await tx.first_of(_Weighed, statement)
        assert (await tx.one("SELECT 1 AS n")).n == 1, "the transaction goes on"


async def test_large_shapes_cost_little_time_and_end_no_transaction(database: Database) -> None:
    """The driver took more than the 15 s that a transaction may be idle to quote 30 MB, and the call ended as `store-away`."""
    values = orjson.dumps([f"value-{number:010d}" for number in range(45_000)])
    shapes = {key.to_bytes(16, "big"): b'{"key":%d,"values":%b}' % (key, values) for key in range(35)}
    began = time.process_time()
    async with database.transaction() as tx:
        ids = await job_store.shape_ids(tx, shapes)
        assert await job_store.shape_ids(tx, shapes) == ids
        kept = await tx.one(
            "SELECT body->>'key' AS key, jsonb_array_length(body->'values') AS many FROM shapes ORDER BY id"
        )
    assert time.process_time() - began < 3
    assert len(set(ids.values())) == 35
    assert (kept.key, kept.many) == ("0", 45_000)


async def test_a_transaction_that_this_process_left_idle_for_too_long_is_no_outage(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster_dispatcher.store.database._IDLE_SECONDS", 0.05)

    async def is_too_slow() -> None:
        async with database.transaction() as tx:
            await tx.run("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
            await asyncio.sleep(0.5)
            await tx.one("SELECT 1")

    with pytest.raises(ProblemError) as caught:
        await is_too_slow()
    assert caught.value.code is Code.TOO_BUSY
