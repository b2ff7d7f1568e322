"""Transactions, and statements that only read."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store.database import Database


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
