"""Fair turns in the api: heavy use yields to light use, nobody starves, long calls hold up nobody, and use is measured as work."""

import asyncio
import time

import pytest

from trainmaster_dispatcher.api import turns as turns_module
from trainmaster_dispatcher.api.turns import CallTurns, Meter, TooManyWaitError, Turn

HEAVY, LIGHT, OTHER = 1, 2, 3


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def turns_of(clock: Clock, at_once: int = 2, most_waiting: int = 128) -> CallTurns:
    """Return turns where one key has used a second and another a tenth of one."""
    turns = CallTurns(at_once, most_waiting, clock)
    turns.end(await turns.begin(HEAVY), used=1.0)
    turns.end(await turns.begin(LIGHT), used=0.1)
    clock.now += turns_module._RECENT_SECONDS + 0.1
    return turns


async def begins(turns: CallTurns, key: int) -> "asyncio.Task[Turn]":
    """Let a call come; return its task, which has its turn or waits for it."""
    task = asyncio.create_task(turns.begin(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_heavy_key_alone_has_as_many_calls_at_once_as_it_may() -> None:
    turns = await turns_of(Clock())
    first, second = await turns.begin(HEAVY), await turns.begin(HEAVY)
    third = await begins(turns, HEAVY)
    assert not third.done()
    turns.end(first)
    turns.end(second)
    turns.end(await asyncio.wait_for(third, 5))


async def test_a_heavy_call_waits_for_a_light_one_and_a_light_one_for_nobody() -> None:
    turns = await turns_of(Clock())
    light = await turns.begin(LIGHT)
    heavy = await begins(turns, HEAVY)
    assert not heavy.done()
    second = await begins(turns, LIGHT)
    assert second.done()
    turns.end(light)
    await asyncio.sleep(0)
    assert not heavy.done(), "the second light call is under way"
    turns.end(await second)
    turns.end(await asyncio.wait_for(heavy, 5))


async def test_calls_that_wait_begin_by_use_and_not_by_time() -> None:
    turns = CallTurns(1, 128, Clock())
    turns.end(await turns.begin(HEAVY), used=1.0)
    turns.end(await turns.begin(OTHER), used=0.5)
    light = await turns.begin(LIGHT)
    heavy, other = await begins(turns, HEAVY), await begins(turns, OTHER)
    assert not heavy.done()
    assert not other.done()
    turns.end(light)
    await asyncio.sleep(0)
    assert other.done()
    assert not heavy.done()
    turns.end(await other)
    turns.end(await asyncio.wait_for(heavy, 5))


async def test_keys_with_about_the_same_use_do_not_wait_for_each_other() -> None:
    turns = CallTurns(2, 128, Clock())
    turns.end(await turns.begin(HEAVY), used=1.0)
    turns.end(await turns.begin(LIGHT), used=0.8)
    both = [await turns.begin(HEAVY), await turns.begin(LIGHT), await turns.begin(HEAVY), await turns.begin(LIGHT)]
    for turn in both:
        turns.end(turn)


async def test_a_heavy_key_has_one_call_under_way_while_light_ones_come_and_two_afterwards() -> None:
    clock = Clock()
    turns = await turns_of(clock)
    turns.end(await turns.begin(LIGHT))
    first = await turns.begin(HEAVY)
    second = await begins(turns, HEAVY)
    assert not second.done()
    turns.end(first)
    first = await asyncio.wait_for(second, 5)
    clock.now += turns_module._RECENT_SECONDS + 0.1
    second = await begins(turns, HEAVY)
    assert second.done()
    turns.end(first)
    turns.end(await second)


async def test_a_heavy_call_yields_for_a_short_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "YIELD_SECONDS", 0.01)
    turns = CallTurns(2, 128)
    turns.end(await turns.begin(HEAVY), used=1.0)
    stops = asyncio.Event()

    async def steady() -> None:
        while not stops.is_set():
            turn = await turns.begin(LIGHT)
            await asyncio.sleep(0.002)
            ahead = asyncio.create_task(turns.begin(LIGHT))  # before the last one ends: a light call is always new
            await asyncio.sleep(0)
            turns.end(turn)
            turns.end(await ahead)

    light = asyncio.create_task(steady())
    for _ in range(5):
        turns.end(await asyncio.wait_for(turns.begin(HEAVY), 5), used=0.1)
    stops.set()
    await light


async def test_nobody_waits_for_a_call_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "YIELD_SECONDS", 0.01)
    turns = CallTurns(2, 128)
    turns.end(await turns.begin(HEAVY), used=1.0)
    lasts = await turns.begin(LIGHT)
    turns.end(await asyncio.wait_for(turns.begin(HEAVY), 5))
    await asyncio.sleep(0.02)
    heavy = await begins(turns, HEAVY)
    assert heavy.done(), "the light call is no longer new"
    second = await asyncio.wait_for(turns.begin(HEAVY), 5)
    turns.end(lasts)
    turns.end(await heavy)
    turns.end(second)


async def test_use_is_forgotten_with_time() -> None:
    clock = Clock()
    turns = await turns_of(clock)
    clock.now += 600
    light = await turns.begin(LIGHT)
    turns.end(await turns.begin(HEAVY))
    turns.end(light)


async def test_who_does_not_wait_is_yielded_to() -> None:
    turns = await turns_of(Clock())
    admin = await turns.begin(OTHER, waits=False)
    heavy = await begins(turns, HEAVY)
    assert not heavy.done()
    turns.end(admin)
    turns.end(await asyncio.wait_for(heavy, 5))
    many = [await turns.begin(HEAVY, waits=False) for _ in range(100)]
    for turn in many:
        turns.end(turn)


async def test_waiting_calls_are_bounded_and_one_that_goes_away_leaves_nothing() -> None:
    turns = await turns_of(Clock(), at_once=1, most_waiting=3)
    first = await turns.begin(HEAVY)
    waiting = [await begins(turns, HEAVY) for _ in range(3)]
    with pytest.raises(TooManyWaitError):
        await turns.begin(HEAVY)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    turns.end(first)
    turns.end(await asyncio.wait_for(turns.begin(HEAVY), 5))
    assert turns._blocked == {}
    assert turns._keys[HEAVY].new == turns._keys[HEAVY].under_way == 0


async def test_keys_that_are_not_used_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_MOST_KEYS", 3)
    turns = CallTurns(1, 128, Clock())
    busy = await turns.begin(0)
    for key in range(1, 10):
        turns.end(await turns.begin(key), used=1.0)
    assert list(turns._keys) == [0, 8, 9]
    turns.end(busy)


async def test_a_meter_counts_work_and_not_waiting() -> None:
    meter = Meter()

    async def work() -> None:
        ends = time.perf_counter() + 0.02
        while time.perf_counter() < ends:
            pass
        await asyncio.sleep(0.5)

    began = time.perf_counter()
    await meter.run(work())
    assert 0.02 <= meter.seconds < time.perf_counter() - began - 0.4


async def test_a_meter_hands_on_errors_both_ways() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        await Meter().run(fails())

    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise

    task = asyncio.create_task(Meter().run(waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_meter_lets_timeouts_work_inside() -> None:
    async def slow() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)

    await asyncio.wait_for(Meter().run(slow()), 5)
