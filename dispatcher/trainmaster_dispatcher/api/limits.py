"""What one key and one address may ask of an api: calls at once and per second, streams, wrong keys. In this process' memory alone."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.api.turns import Meter, TooManyWaitError, Turns
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.keys import Caller

CALL = "trainmaster.call"
"""Where a request's ``Call`` is in its scope."""
METER = "trainmaster.meter"
"""Where its ``Meter`` is."""
_MOST_BUCKETS = 10_000
_WAITING_PER_CALL = 64
"""For each call of a key that may be under way, so many more may wait for their turn."""
_IPV6_HOST_BITS = 64
_SLOW_SECONDS, _MOST_SLOWED = 0.5, 500
"""Refused callers wait for up to twice as long, each for another time: they would come again all at once."""


class StreamKind(StrEnum):
    """Calls that last: how many of each a key may have is bounded, except for agents' polls."""

    EVENTS = "events"
    LOGS = "logs"
    POLL = "poll"


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """A token bucket for each of many names; those that were not used for the longest time are forgotten. Rate 0: no bound."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[int | str, _Bucket] = {}

    def take(self, name: int | str) -> float:
        """Take a token: 0, or the seconds until there is one."""
        if not self._rate:
            return 0.0
        now = self._clock()
        bucket = self._buckets.pop(name, None)
        if bucket is None:
            while len(self._buckets) >= _MOST_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = _Bucket(self._burst, now)
        self._buckets[name] = bucket
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self._rate
        bucket.tokens -= 1
        return 0.0

    def pause(self, name: int | str) -> float:
        """Return the seconds until there is a token, without taking one."""
        bucket = self._buckets.get(name)
        if bucket is None or not self._rate:
            return 0.0
        return max(0.0, (1 - bucket.tokens) / self._rate - (self._clock() - bucket.at))

    def has(self, name: int | str) -> bool:
        """Whether a token could be taken."""
        return self.pause(name) <= 0.0


@dataclass(slots=True)
class Call:
    """A request whose caller is known. ``end`` is called when it is over."""

    caller: Caller
    _endings: list[Callable[[], None]] = field(default_factory=list)

    def at_end(self, ending: Callable[[], None]) -> None:
        self._endings.append(ending)

    def end(self) -> None:
        while self._endings:
            self._endings.pop()()


@dataclass(eq=False, slots=True)
class CountedStream:
    """A call that lasts. It is to look at ``check`` again and again, and at once when it is woken by ``wake``."""

    kind: StreamKind
    caller: Caller
    wake: Callable[[], None]
    is_ended: bool = False

    def check(self) -> None:
        """Raise ProblemError UNAUTHENTICATED when its key no longer counts."""
        if self.is_ended:
            raise ProblemError(Code.UNAUTHENTICATED, "the API key was revoked or has expired")


class Limits:
    """The limits of one process. Admins and agents have none but that of streams, as an installation trusts them."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        at_once = settings.calls_at_once_per_key
        self._most_streams = {
            StreamKind.EVENTS: settings.event_streams_per_key,
            StreamKind.LOGS: settings.log_streams_per_key,
        }
        self._calls = TokenBuckets(settings.calls_per_second_per_key, settings.calls_burst_per_key, clock)
        self._wrong_keys = TokenBuckets(settings.wrong_keys_per_second, settings.wrong_keys_burst, clock)
        self._keyless = TokenBuckets(settings.keyless_calls_per_second, settings.keyless_calls_burst, clock)
        self._slowed = 0
        self._turns = Turns(at_once, max(1, at_once) * _WAITING_PER_CALL, clock)
        self._streams: dict[CountedStream, None] = {}
        self._counts = Counter[tuple[StreamKind, int]]()

    # -- who has no key that counts

    def may_look(self, address: str) -> bool:
        """Whether a key that an address shows may be looked for in the store, if it is not known."""
        return self._wrong_keys.has(_site(address))

    def wrong_key(self, address: str) -> ProblemError:
        """Count a wrong key; what its sender is told."""
        pause = self._wrong_keys.take(_site(address))
        if pause:
            return _too_many("wrong-keys", "too many wrong API keys came from your address", pause)
        return ProblemError(Code.UNAUTHENTICATED, "the API key is not known, was revoked, or has expired")

    def keyless(self, address: str) -> None:
        """Count a request without a key. Raises ProblemError TOO_MANY_REQUESTS."""
        pause = self._keyless.take(_site(address))
        if pause:
            raise _too_many("keyless", "too many requests without an API key came from your address", pause)

    async def slow_down(self) -> None:
        """Let a refused caller wait a little, so that one that asks again at once costs less; not when very many wait already."""
        if self._slowed >= _MOST_SLOWED:
            return
        self._slowed += 1
        try:
            await asyncio.sleep(_SLOW_SECONDS * (1 + random.random()))
        finally:
            self._slowed -= 1

    # -- calls

    def over_rate(self, caller: Caller) -> ProblemError | None:
        """Return what a user is told whose calls are over the rate; None where the next one may be."""
        pause = self._calls.pause(caller.key_id)
        return _over_rate(caller, pause) if pause else None

    async def admit(self, scope: MutableMapping[str, Any], caller: Caller) -> None:
        """Let a call begin when it is its key's turn. Raises ProblemError TOO_MANY_REQUESTS."""
        call = scope[CALL] = Call(caller)
        if caller.role is KeyRole.AGENT:
            return
        is_user = caller.role is KeyRole.USER
        pause = self._calls.take(caller.key_id) if is_user else 0.0
        if pause:
            raise _over_rate(caller, pause)
        try:
            turn = await self._turns.begin(caller.key_id, waits=is_user)
        except TooManyWaitError as error:
            raise _too_many("at-once", f"the key {caller.name!r} makes too many calls at once", 1.0) from error
        meter: Meter | None = scope.get(METER)
        call.at_end(lambda: self._turns.end(turn, meter.seconds if meter else 0.0))

    # -- calls that last

    def open_stream(self, scope: MutableMapping[str, Any], kind: StreamKind, wake: Callable[[], None]) -> CountedStream:
        """Make a call one that lasts: it is counted as such until it ends, and no longer as a call.

        Raises ProblemError TOO_MANY_REQUESTS when its key has as many as it may.
        """
        call: Call = scope[CALL]
        most = self._most_streams.get(kind, 0)
        place = kind, call.caller.key_id
        if most and self._counts[place] >= most:
            raise _too_many(
                kind.value, f"the key {call.caller.name!r} has {most} open streams of {kind}, as many as it may", 5.0
            )
        call.end()
        stream = CountedStream(kind, call.caller, wake)
        self._streams[stream] = None
        self._counts[place] += 1

        def close() -> None:
            del self._streams[stream]
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]

        call.at_end(close)
        return stream

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    def end_streams(self, counts: Callable[[int], bool]) -> None:
        """End the streams of keys that no longer count."""
        for stream in self._streams:
            if not stream.is_ended and not counts(stream.caller.key_id):
                stream.is_ended = True
                stream.wake()


def _over_rate(caller: Caller, pause: float) -> ProblemError:
    return _too_many("rate", f"the key {caller.name!r} makes too many calls", pause)


def _too_many(limit: str, text: str, pause: float) -> ProblemError:
    metrics.calls_refused.labels(limit).inc()
    return ProblemError(Code.TOO_MANY_REQUESTS, f"{text}; try again later", retry_after=pause)


def _site(address: str) -> str:
    """The name under which an address is counted: of IPv6 the network that one subscriber has."""
    if ":" not in address:
        return address
    try:
        site = int(ip_address(address)) >> _IPV6_HOST_BITS
    except ValueError:
        return address
    return f"{site:x}"
