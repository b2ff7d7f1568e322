"""Turns of large pieces: small ones pass at once, large ones in their order, few between two looks of the event loop."""

import asyncio

import pytest

from trainmaster.bulk_turns import BULK_BYTES, BulkTurns


async def test_small_pieces_take_no_turn() -> None:
    turns = BulkTurns()
    waiting = [asyncio.create_task(turns.take(BULK_BYTES)) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(StopIteration):  # it ends without having waited
        turns.take(BULK_BYTES - 1).send(None)
    assert not all(task.done() for task in waiting)
    await asyncio.gather(*waiting)


async def test_large_pieces_pass_in_order_and_leave_the_loop_to_others_in_between() -> None:
    turns, order, looks = BulkTurns(), list[int](), 0

    async def pass_on(number: int) -> None:
        await turns.take(BULK_BYTES)
        order.append(number)

    async def look() -> None:
        nonlocal looks
        while len(order) < 100:
            looks += 1
            await asyncio.sleep(0)

    await asyncio.gather(look(), *(pass_on(number) for number in range(100)))
    assert order == list(range(100))
    assert looks >= 40


async def test_who_gives_up_holds_up_nobody() -> None:
    turns = BulkTurns()
    waiting = [asyncio.create_task(turns.take(BULK_BYTES)) for _ in range(9)]
    await asyncio.sleep(0)
    for task in waiting[:8]:
        task.cancel()
    await asyncio.wait_for(waiting[8], 5)


def test_a_loop_that_was_closed_meanwhile_holds_up_no_other() -> None:
    turns = BulkTurns()

    async def begin() -> None:
        task = asyncio.create_task(turns.take(BULK_BYTES))
        await asyncio.sleep(0)
        task.cancel()

    async def go_on() -> None:
        await asyncio.wait_for(turns.take(BULK_BYTES), 5)

    asyncio.run(begin())
    asyncio.run(go_on())
