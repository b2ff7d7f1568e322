"""What one key or address may ask of an api: turns are fair, bounds hold, and nobody pays for another's flood."""

import asyncio
from typing import Any

import pytest

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.api import limits as limits_module
from trainmaster_dispatcher.api.limits import CALL, ByteRates, Limits, StreamKind, TokenBuckets
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.keys import Caller

NOISY = Caller(1, "noisy", KeyRole.USER, ("a",))
QUIET = Caller(2, "quiet", KeyRole.USER, ("b",))
ADMIN = Caller(3, "admin", KeyRole.ADMIN)
AGENT = Caller(4, "agent", KeyRole.AGENT, cluster_id=1, cluster="private")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock | None = None, **settings: Any) -> Limits:
    return Limits(Settings(**settings), clock or Clock())


def refused(error: pytest.ExceptionInfo[ProblemError]) -> float:
    """Check that the call was refused as one too many; return the seconds after which it may be repeated."""
    assert error.value.code is Code.TOO_MANY_REQUESTS
    assert error.value.status == 429
    assert error.value.retry_after is not None
    return error.value.retry_after


async def begin(limits: Limits, caller: Caller) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    await limits.admit(scope, caller)
    return scope


def end(scope: dict[str, Any]) -> None:
    scope[CALL].end()


async def test_a_key_has_a_rate_and_a_burst_and_other_keys_have_their_own() -> None:
    clock = Clock()
    bounds = limits(clock, calls_per_second_per_key=10, calls_burst_per_key=20)
    for _ in range(20):
        end(await begin(bounds, NOISY))
    with pytest.raises(ProblemError) as error:
        await begin(bounds, NOISY)
    assert refused(error) == pytest.approx(0.1)
    end(await begin(bounds, QUIET))
    clock.now += 0.5
    for _ in range(5):
        end(await begin(bounds, NOISY))
    with pytest.raises(ProblemError):
        await begin(bounds, NOISY)


@pytest.mark.parametrize("caller", [ADMIN, AGENT], ids=["admin", "agent"])
async def test_admins_and_agents_have_no_rate_and_wait_for_nobody(caller: Caller) -> None:
    bounds = limits(calls_burst_per_key=1, calls_at_once_per_key=1)
    scopes = [await begin(bounds, caller) for _ in range(100)]
    for scope in scopes:
        end(scope)


async def test_honest_use_never_meets_a_default() -> None:
    """A pipeline of five hundred submissions at once, and then twenty calls a second for ten minutes."""
    clock = Clock()
    bounds = limits(clock)
    for _ in range(500):
        end(await begin(bounds, NOISY))
    for _ in range(12_000):
        clock.now += 0.05
        end(await begin(bounds, NOISY))


async def test_calls_of_a_key_wait_for_their_turn_in_order_and_others_do_not_wait_for_them() -> None:
    bounds = limits(calls_at_once_per_key=2)
    first, second = await begin(bounds, NOISY), await begin(bounds, NOISY)
    order: list[int] = []

    async def later(number: int) -> dict[str, Any]:
        scope = await begin(bounds, NOISY)
        order.append(number)
        return scope

    waiting = [asyncio.create_task(later(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert order == []
    end(await asyncio.wait_for(begin(bounds, QUIET), 5))
    end(first)
    third = await waiting[0]
    waiting[1].cancel()
    end(second)
    fifth = await waiting[2]
    assert order == [0, 2], "who went away takes no turn"
    end(third)
    end(fifth)
    end(await asyncio.wait_for(begin(bounds, NOISY), 5))


async def test_a_call_that_is_given_up_as_its_turn_comes_hands_the_turn_on() -> None:
    bounds = limits(calls_at_once_per_key=1)
    first = await begin(bounds, NOISY)
    given_up = asyncio.create_task(begin(bounds, NOISY))
    patient = asyncio.create_task(begin(bounds, NOISY))
    await asyncio.sleep(0)
    end(first)
    given_up.cancel()
    end(await asyncio.wait_for(patient, 5))
    end(await asyncio.wait_for(begin(bounds, NOISY), 5))


async def test_no_more_calls_wait_than_a_multiple_of_those_at_once() -> None:
    bounds = limits(calls_at_once_per_key=1)
    first = await begin(bounds, NOISY)
    waiting = [asyncio.create_task(begin(bounds, NOISY)) for _ in range(64)]
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as error:
        await begin(bounds, NOISY)
    assert refused(error) == 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    end(first)


@pytest.mark.parametrize("kind", [StreamKind.EVENTS, StreamKind.LOGS])
async def test_streams_of_a_key_are_bounded_by_their_kind_and_take_no_turn(kind: StreamKind) -> None:
    bounds = limits(calls_at_once_per_key=1, event_streams_per_key=2, log_streams_per_key=2)
    scopes = []
    for _ in range(2):
        scopes.append(await begin(bounds, NOISY))
        bounds.open_stream(scopes[-1], kind, lambda: None)
    third = await begin(bounds, NOISY)
    with pytest.raises(ProblemError) as error:
        bounds.open_stream(third, kind, lambda: None)
    assert refused(error) == 5
    end(third)
    bounds.open_stream(await begin(bounds, QUIET), kind, lambda: None)
    end(scopes[0])
    bounds.open_stream(await begin(bounds, NOISY), kind, lambda: None)


async def test_streams_of_a_key_that_no_longer_counts_are_woken_and_end() -> None:
    bounds = limits()
    woken: list[str] = []
    ours = bounds.open_stream(await begin(bounds, QUIET), StreamKind.EVENTS, lambda: woken.append("quiet"))
    polls = await begin(bounds, AGENT)
    theirs = bounds.open_stream(polls, StreamKind.POLL, lambda: woken.append("agent"))
    bounds.end_streams(lambda caller: caller == QUIET)
    bounds.end_streams(lambda caller: caller == QUIET)
    assert woken == ["agent"], "once"
    ours.check()
    with pytest.raises(ProblemError) as error:
        theirs.check()
    assert error.value.code is Code.UNAUTHENTICATED
    end(polls)


async def test_wrong_keys_of_an_address_are_answered_429_after_a_while() -> None:
    clock = Clock()
    bounds = limits(clock, wrong_keys_burst=3)
    assert bounds.may_look("9.9.9.9")
    codes = [bounds.wrong_key("9.9.9.9").code for _ in range(5)]
    assert codes == [Code.UNAUTHENTICATED] * 3 + [Code.TOO_MANY_REQUESTS] * 2
    assert not bounds.may_look("9.9.9.9")
    assert bounds.wrong_key("9.9.9.8").code is Code.UNAUTHENTICATED
    clock.now += 1
    assert bounds.may_look("9.9.9.9")


async def test_refused_callers_wait_a_little_but_not_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_SLOW_SECONDS", 60)
    monkeypatch.setattr(limits_module, "_MOST_SLOWED", 2)
    bounds = limits()
    waiting = [asyncio.create_task(bounds.slow_down()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.wait_for(bounds.slow_down(), 5)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert bounds._slowed == 0


async def test_addresses_of_one_ipv6_subscriber_are_one() -> None:
    bounds = limits(keyless_calls_burst=2)
    assert bounds.keyless("2001:db8:1:2::1") is None
    assert bounds.keyless("2001:db8:1:2:ffff::2") is None
    assert bounds.keyless("2001:db8:1:2:0:9::") is not None
    assert bounds.keyless("2001:db8:1:3::1") is None
    assert bounds.keyless("fe80::1%eth0") is None


def test_buckets_of_many_names_take_bounded_memory() -> None:
    buckets = TokenBuckets(1, 1, Clock())
    for number in range(30_000):
        buckets.take(number)
    assert len(buckets._buckets) == 10_000
    assert buckets.take(29_999) > 0
    assert buckets.take(0) == 0, "forgotten"


def test_streams_of_a_key_share_a_rate_of_bytes_and_what_was_not_used_of_a_second() -> None:
    clock = Clock()
    rates = ByteRates(1000, clock)
    assert [rates.pause(1, 400) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.2, 0.6])
    assert rates.pause(2, 1000) == 0.0, "another key"
    clock.now += 0.6
    assert rates.pause(1, 500) == pytest.approx(0.5)
    clock.now += 3600
    assert rates.pause(1, 1000) == 0.0
    assert rates.pause(1, 1000) == pytest.approx(1.0), "an hour without use is no more than a second"
    rates.forget(1)
    assert rates.pause(1, 1000) == 0.0


def test_without_a_rate_nothing_waits() -> None:
    assert ByteRates(0, Clock()).pause(1, 10**12) == 0.0
