"""Soft state: a process that is asked to stop stops, whatever its Redis client was doing at that moment."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from trainmaster_dispatcher.store.redis_channels import JOBS, RedisChannels, wait_set


async def test_a_wake_up_reaches_another_process(redis_url: str) -> None:
    here, there = RedisChannels(redis_url), RedisChannels(redis_url)
    here.start()
    with here.waiter(JOBS, 7) as seven, here.waiter(JOBS, 8) as eight:
        for _ in range(100):  # until the listener has subscribed
            there.wake(JOBS, [7])
            if await wait_set(seven, 0.05):
                break
        else:
            raise AssertionError("nobody was woken")
        assert not eight.is_set()
    await here.close()
    await there.close()


async def test_closing_ends_even_when_a_cancellation_is_lost(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = asyncio.Event()

    async def losing(_self: RedisChannels, _channels: Iterable[str]) -> AsyncIterator[tuple[str, bytes]]:
        listening.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield JOBS, b"1"  # as asyncio.wait_for does before Python 3.12 when its future is done in that moment
        await asyncio.Event().wait()

    monkeypatch.setattr(RedisChannels, "_messages", losing)
    channels = RedisChannels(redis_url)
    channels.start()
    await listening.wait()
    listener = channels._listener
    assert listener is not None
    closing = asyncio.create_task(channels.close())
    done, _ = await asyncio.wait([closing], timeout=5)
    listener.cancel()
    assert done, "it would have waited for ever"


async def test_stores_that_are_closed_at_once_are_closed(redis_url: str) -> None:
    for turn in range(30):
        channels = RedisChannels(redis_url)
        channels.start()
        for _ in range(turn):
            await asyncio.sleep(0)
        await channels.close()
