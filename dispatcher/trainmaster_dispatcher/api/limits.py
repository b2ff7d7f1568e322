"""Limits of one key and one address at an api: calls at once and per second, streams, wrong keys. Held in this process' memory
alone.
"""

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
from trainmaster_dispatcher.api.turns import CallTurns, Meter, TooManyWaitError
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.keys import Caller

CALL = "trainmaster.call"
"""The key of a request's ``Call`` in its scope."""
METER = "trainmaster.meter"
"""The key of a request's ``Meter`` in its scope."""
_MOST_BUCKETS = 10_000
_WAITING_PER_CALL = 64
_RATE_BURST_SECONDS = 1.0
"""How many calls of a key may wait, for each that may be under way."""
_IPV6_HOST_BITS = 64
_SLOW_SECONDS, _MOST_SLOWED = 0.5, 500
"""Refused callers wait for up to twice as long, each for another time, so that they do not all come again at once."""


class StreamKind(StrEnum):
    """Kinds of calls that last: the number of each that a key may have is bounded, except for agents' polls."""

    EVENTS = "events"
    LOGS = "logs"
    MEMBERS = "members"
    POLL = "poll"


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """A token bucket for each name; those unused for the longest time are dropped. Rate 0: no bound."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[int | str, _Bucket] = {}

    def take(self, name: int | str) -> float:
        """Take a token; return 0, or the seconds until there is one."""
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
        """Return whether a token could be taken."""
        return self.pause(name) <= 0.0


@dataclass(slots=True)
class Call:
    """A request whose caller is known. ``end`` is called when the request is over."""

    caller: Caller
    _endings: list[Callable[[], None]] = field(default_factory=list)

    def at_end(self, ending: Callable[[], None]) -> None:
        self._endings.append(ending)

    def end(self) -> None:
        while self._endings:
            self._endings.pop()()


class ByteRates:
    """A rate of bytes for each key, which its streams share: who has passed on bytes waits until they are due.

    What a key has not used of the last second may be passed on at once. A rate of 0 bounds nothing.
    """

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._clock = clock
        self._due: dict[int, float] = {}

    def pause(self, key: int, size: int) -> float:
        """Count bytes that were passed on; return the seconds to wait before the next ones."""
        if not self._rate:
            return 0.0
        now = self._clock()
        due = self._due[key] = max(self._due.get(key, 0.0), now - _RATE_BURST_SECONDS) + size / self._rate
        return max(0.0, due - now)

    def forget(self, key: int) -> None:
        """Drop a key that has no streams any more."""
        self._due.pop(key, None)


@dataclass(eq=False, slots=True)
class CountedStream:
    """A call that lasts. Its handler has to call ``check`` repeatedly, and at once after ``wake``, and ``passed`` for the bytes that a
    stream to a member has passed on.
    """

    kind: StreamKind
    caller: Caller
    wake: Callable[[], None]
    rates: ByteRates
    is_ended: bool = False

    async def passed(self, size: int) -> None:
        """Count bytes, and wait where the key's streams have passed on more than they may."""
        if pause := self.rates.pause(self.caller.key_id, size):
            await asyncio.sleep(pause)

    def check(self) -> None:
        """Raise ProblemError UNAUTHENTICATED when the stream's key is no longer valid."""
        if self.is_ended:
            raise ProblemError(Code.UNAUTHENTICATED, "the API key was revoked or has expired")


class Limits:
    """The limits of one process. Admins and agents have none but that of streams, as an installation trusts them."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        at_once = settings.calls_at_once_per_key
        self._most_streams = {
            StreamKind.EVENTS: settings.event_streams_per_key,
            StreamKind.LOGS: settings.log_streams_per_key,
            StreamKind.MEMBERS: settings.member_streams_per_key,
        }
        self._calls = TokenBuckets(settings.calls_per_second_per_key, settings.calls_burst_per_key, clock)
        self._wrong_keys = TokenBuckets(settings.wrong_keys_per_second, settings.wrong_keys_burst, clock)
        self._keyless = TokenBuckets(settings.keyless_calls_per_second, settings.keyless_calls_burst, clock)
        self._slowed = 0
        self._turns = CallTurns(at_once, max(1, at_once) * _WAITING_PER_CALL, clock)
        self._rates = ByteRates(settings.member_stream_bytes_per_second, clock)
        self._streams: dict[CountedStream, None] = {}
        self._counts = Counter[tuple[StreamKind, int]]()

    # -- callers without a valid key

    def may_look(self, address: str) -> bool:
        """Return whether an unknown key from this address may be looked up in the store."""
        return self._wrong_keys.has(_site(address))

    def wrong_key(
        self, address: str, why: str = "the API key is not known, was revoked, or has expired"
    ) -> ProblemError:
        """Count a wrong key or token; return the problem for its sender. ``why``: what is wrong with it."""
        pause = self._wrong_keys.take(_site(address))
        if pause:
            return _too_many("wrong-keys", "too many wrong API keys came from your address", pause)
        return ProblemError(Code.UNAUTHENTICATED, why)

    def keyless(self, address: str, page: str = "") -> ProblemError | None:
        """Count a call without a key; return the problem for its sender if there were too many of this ``page``."""
        pause = self._keyless.take(f"{_site(address)} {page}")
        if not pause:
            return None
        return _too_many("keyless", "too many requests without an API key came from your address", pause)

    async def slow_down(self) -> None:
        """Delay a refused caller a little, so that immediate retries cost less; skip the delay when very many wait already."""
        if self._slowed >= _MOST_SLOWED:
            return
        self._slowed += 1
        try:
            await asyncio.sleep(_SLOW_SECONDS * (1 + random.random()))
        finally:
            self._slowed -= 1

    # -- calls

    def over_rate(self, caller: Caller) -> ProblemError | None:
        """Return the problem for a user whose calls are over the rate; None where the next call may begin."""
        pause = self._calls.pause(caller.key_id)
        return _over_rate(caller, pause) if pause else None

    async def admit(self, scope: MutableMapping[str, Any], caller: Caller) -> None:
        """Admit a call when it is its key's turn, once. Raises ProblemError TOO_MANY_REQUESTS."""
        if isinstance(known := scope.get(CALL), Call) and known.caller == caller:
            return  # a check of the route has asked who calls: a second turn would wait for the end of the first
        call = scope[CALL] = Call(caller)
        if caller.role is KeyRole.AGENT:
            return
        pause = self._calls.take(caller.key_id) if caller.is_limited else 0.0
        if pause:
            raise _over_rate(caller, pause)
        try:
            turn = await self._turns.begin(caller.key_id, waits=caller.is_limited)
        except TooManyWaitError as error:
            raise _too_many("at-once", f"{caller.title} makes too many calls at once", 1.0) from error
        meter: Meter | None = scope.get(METER)
        call.at_end(lambda: self._turns.end(turn, meter.seconds if meter else 0.0))

    # -- calls that last

    def open_stream(self, scope: MutableMapping[str, Any], kind: StreamKind, wake: Callable[[], None]) -> CountedStream:
        """Make a call one that lasts: until its end it is counted as a stream, and no longer as a call.

        Raises ProblemError TOO_MANY_REQUESTS when the call's key has as many streams as it may.
        """
        call: Call = scope[CALL]
        most = self._most_streams.get(kind, 0)
        place = kind, call.caller.key_id
        if most and self._counts[place] >= most:
            raise _too_many(
                kind.value, f"{call.caller.title} has {most} open streams of {kind}, as many as it may", 5.0
            )
        call.end()
        stream = CountedStream(kind, call.caller, wake, self._rates)
        self._streams[stream] = None
        self._counts[place] += 1

        def close() -> None:
            del self._streams[stream]
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]
                if kind is StreamKind.MEMBERS:
                    self._rates.forget(call.caller.key_id)

        call.at_end(close)
        return stream

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    def end_streams(self, counts: Callable[[Caller], bool]) -> None:
        """End the streams of callers that do not count any more, or have other rights."""
        for stream in self._streams:
            if not stream.is_ended and not counts(stream.caller):
                stream.is_ended = True
                stream.wake()


def _over_rate(caller: Caller, pause: float) -> ProblemError:
    return _too_many("rate", f"{caller.title} makes too many calls", pause)


def _too_many(limit: str, text: str, pause: float) -> ProblemError:
    metrics.calls_refused.labels(limit).inc()
    return ProblemError(Code.TOO_MANY_REQUESTS, f"{text}; try again later", retry_after=pause)


def _site(address: str) -> str:
    """Return the name under which an address is counted: for IPv6 the network of one subscriber."""
    if ":" not in address:
        return address
    try:
        site = int(ip_address(address)) >> _IPV6_HOST_BITS
    except ValueError:
        return address
    return f"{site:x}"
