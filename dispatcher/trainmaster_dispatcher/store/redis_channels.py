"""Soft state in Redis: wake-ups between processes and the relay of log chunks.

All of it may be lost at any time. Without Redis the system is correct but slower: waiters also poll the store, and log followers
are served by the api process that the agent happens to push to. No answer of Redis, nor its absence, may fail a caller, end the
listener, or block anybody.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from secrets import token_hex
from typing import NamedTuple

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from trainmaster.metrics import definitions as metrics
from trainmaster_dispatcher.store.database import StoreAwayError

log = logging.getLogger(__name__)

_PREFIX = "trainmaster:"
SCHEDULER, CLUSTERS, JOBS = "wake:scheduler", "wake:clusters", "wake:jobs"
_CHANNELS = (SCHEDULER, CLUSTERS, JOBS)
_LOGS = "log:"
_MOST_KEYS = 500
_LONGEST_KEY = 20
_LARGEST_WAKE = 64 * 1024
EVERYONE = "*"

_CALL_SECONDS = 2.0
_PING_SECONDS = 5.0
"""A listener that receives nothing for this long sends a ping, and reconnects if nothing comes for as long again."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_MOST_RELAYED_BYTES = 8 * 1024 * 1024
"""The most bytes of log chunks that wait to be published."""
_INBOX_BYTES = 2 * 1024 * 1024
"""The most bytes of log chunks that wait for one follower; chunks beyond are reported as missed. A push has some 256 KiB."""


class Breaker:
    """A circuit breaker: allows calls until one fails; then none for a pause that doubles with each further failure, then one to
    try.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the last call failed."""
        return self._failures > 0

    def allows(self) -> bool:
        return self._clock() >= self._until

    def failed(self) -> None:
        self._failures += 1
        pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(self._failures, 10))
        self._until = self._clock() + random.uniform(pause / 2, pause)

    def succeeded(self) -> None:
        self._failures, self._until = 0, 0.0


class Inbox:
    """Log chunks for one follower. Chunks that the follower is too slow for are dropped; chunks carry offsets, so that the gap is
    seen.
    """

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._filled = asyncio.Event()

    def put(self, data: bytes) -> None:
        if self._chunks and self._size + len(data) > _INBOX_BYTES:
            metrics.redis_messages_dropped.labels("follower").inc()
            return
        self._chunks.append(data)
        self._size += len(data)
        self._filled.set()

    async def next(self, seconds: float) -> bytes | None:
        """Return the next chunk, or None if none comes within ``seconds``."""
        if not self._chunks:
            self._filled.clear()
            if not await wait_set(self._filled, seconds):
                return None
        data = self._chunks.popleft()
        self._size -= len(data)
        return data


class RedisChannels:
    """Wake-ups and relays of one process. ``url`` None means that there are no other processes."""

    def __init__(self, url: str | None) -> None:
        self._redis: Redis | None = None
        if url:
            self._redis = Redis.from_url(
                url,
                socket_timeout=_CALL_SECONDS,
                socket_connect_timeout=1,
                retry=Retry(NoBackoff(), 0),
                max_connections=8,
            )
        self._own = token_hex(4)
        """The prefix of the names of this process's log streams, by which their chunks are routed to this process."""
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = defaultdict(set)
        self._followers: dict[str, set[Inbox]] = defaultdict(set)
        self._wakes: dict[str, set[str]] = {}
        self._relays: deque[tuple[str, bytes]] = deque()
        self._relayed_bytes = 0
        self._outgoing = asyncio.Event()
        self._publisher: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._breaker = Breaker()

    @property
    def is_away(self) -> bool:
        """Return whether Redis did not answer the last call."""
        return self._breaker.is_open

    def start(self) -> None:
        """Start to listen for the wake-ups of other processes."""
        if self._redis is not None and self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="redis-listener")

    async def close(self) -> None:
        await _end([task for task in (self._publisher, self._listener) if task is not None])
        if self._redis is not None:
            with contextlib.suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(_CALL_SECONDS):
                    await self._redis.aclose()

    def wake(self, channel: str, keys: Iterable[int | str] = (EVERYONE,)) -> None:
        """Wake the waiters for any of these keys, here and in other processes; returns at once and never fails."""
        names = [str(key) for key in keys]
        if len(names) > _MOST_KEYS:
            names = [EVERYONE]
        self._notify(channel, names)
        if names and self._redis is not None:
            self._wakes.setdefault(channel, set()).update(names)
            self._publish_soon()

    @contextmanager
    def waiter(self, channel: str, key: int | str = EVERYONE) -> Iterator[asyncio.Event]:
        """Open an event that is set by each wake-up of ``key``; open it before reading the store, so that no change is missed."""
        event = asyncio.Event()
        place = (channel, str(key))
        self._waiting[place].add(event)
        try:
            yield event
        finally:
            self._waiting[place].discard(event)
            if not self._waiting[place]:
                del self._waiting[place]

    def wake_here(self, channel: str, keys: Iterable[int]) -> None:
        """Wake the waiters for these keys in this process alone."""
        self._notify(channel, [str(key) for key in keys])

    def waited_for(self, channel: str) -> list[int]:
        """Return the keys that somebody in this process waits for."""
        return [int(key) for name, key in self._waiting if name == channel and key != EVERYONE]

    def new_stream(self) -> str:
        """Return a new name of a log stream that is followed in this process."""
        return self._own + token_hex(8)

    def relay(self, stream: str, data: bytes) -> None:
        """Pass log chunks on to the stream's followers, here or at another api."""
        self._deliver(stream, data)
        if self._redis is None or stream.startswith(self._own):
            return
        self._relays.append((stream, data))
        self._relayed_bytes += len(data)
        while self._relayed_bytes > _MOST_RELAYED_BYTES and len(self._relays) > 1:
            self._relayed_bytes -= len(self._relays.popleft()[1])
            metrics.redis_messages_dropped.labels("full").inc()
        self._publish_soon()

    @asynccontextmanager
    async def following(self, stream: str) -> AsyncIterator[Inbox]:
        """Open the inbox of a stream of this process. Chunks may come twice; they carry offsets."""
        inbox = Inbox()
        self._followers[stream].add(inbox)
        try:
            yield inbox
        finally:
            self._followers[stream].discard(inbox)
            if not self._followers[stream]:
                del self._followers[stream]

    def _notify(self, channel: str, names: Iterable[str]) -> None:
        for name in names:
            places = (
                [place for place in self._waiting if place[0] == channel] if name == EVERYONE else [(channel, name)]
            )
            for place in (*places, (channel, EVERYONE)):
                for event in self._waiting.get(place, ()):
                    event.set()

    def _deliver(self, stream: str, data: bytes) -> None:
        for inbox in self._followers.get(stream, ()):
            inbox.put(data)

    # -- to Redis

    def _publish_soon(self) -> None:
        self._outgoing.set()
        if self._publisher is None:
            self._publisher = asyncio.create_task(self._publish_for_ever(), name="redis-publisher")

    async def _publish_for_ever(self) -> None:
        """Publish what has accumulated since the last time, over one connection, so that a slow Redis does not cause a backlog."""
        while True:
            await self._outgoing.wait()
            self._outgoing.clear()
            messages = self._take_outgoing()
            if not self._breaker.allows():
                metrics.redis_messages_dropped.labels("away").inc(len(messages))
                continue
            try:
                await self._publish(messages)
                self._came_back()
            except Exception as error:  # noqa: BLE001 - a server that answers nonsense raises what it likes in the client
                metrics.redis_messages_dropped.labels("away").inc(len(messages))
                self._went_away(error)

    def _take_outgoing(self) -> list[tuple[str, bytes]]:
        messages = [(channel, _wake_of(names)) for channel, names in self._wakes.items()]
        messages += [(_LOGS + stream, data) for stream, data in self._relays]
        self._wakes = {}
        self._relays.clear()
        self._relayed_bytes = 0
        return messages

    async def _publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        assert self._redis is not None  # noqa: S101 - callers publish only with Redis
        async with asyncio.timeout(_CALL_SECONDS), self._redis.pipeline(transaction=False) as pipeline:
            for channel, data in messages:
                pipeline.publish(_PREFIX + channel, data)
            await pipeline.execute()

    def _went_away(self, error: Exception) -> None:
        if not self._breaker.is_open:
            log.warning("Redis does not answer (%r); wake-ups fall back to looking once a second", error)
        self._breaker.failed()

    def _came_back(self) -> None:
        if self._breaker.is_open:
            log.info("Redis is back")
        self._breaker.succeeded()

    # -- from Redis

    async def _messages(self, channels: Iterable[str]) -> AsyncIterator[tuple[str, bytes]]:
        """Yield messages on these channels, and on those of this process's log streams. Raises TimeoutError at silence."""
        assert self._redis is not None  # noqa: S101 - callers start only with Redis
        async with self._redis.pubsub() as pubsub:
            # Log streams first: who hears a wake-up then hears the chunks of its streams, too.
            await pubsub.psubscribe(f"{_PREFIX}{_LOGS}{self._own}*")
            await pubsub.subscribe(*[_PREFIX + channel for channel in channels])
            self._came_back()
            is_asked = False
            while True:
                message = await pubsub.get_message(timeout=_PING_SECONDS)
                if message is None:
                    if is_asked:
                        raise TimeoutError("no sign of life")
                    await pubsub.ping()
                is_asked = message is None
                if message is not None and message["type"] in ("message", "pmessage"):
                    yield message["channel"].decode(errors="replace").removeprefix(_PREFIX), message["data"]

    async def _listen(self) -> None:
        """Receive other processes' messages for ever, whatever Redis sends instead of them."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                async for channel, data in self._messages(_CHANNELS):
                    self._hear(channel, data)
            except Exception as error:  # noqa: BLE001 - as in ``_publish_for_ever``
                self._went_away(error)
            metrics.redis_listener_restarts.inc()
            failures = 1 if time.monotonic() - began > _LONGEST_PAUSE else failures + 1
            pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(failures, 10))
            await asyncio.sleep(random.uniform(pause / 2, pause))

    def _hear(self, channel: str, data: bytes) -> None:
        """Process one message. Messages of unknown form are counted and dropped."""
        if channel.startswith(_LOGS):
            self._deliver(channel.removeprefix(_LOGS), data)
            return
        names = _names_of(data)
        if names is None:
            metrics.redis_messages_dropped.labels("garbage").inc()
            return
        self._notify(channel, names)


def _wake_of(names: set[str]) -> bytes:
    if EVERYONE in names or len(names) > _MOST_KEYS:
        return EVERYONE.encode()
    return ",".join(sorted(names)).encode()


def _names_of(data: bytes) -> list[str] | None:
    """Return the keys in a wake-up; None for data that is no wake-up."""
    if len(data) > _LARGEST_WAKE or not data.isascii():
        return None
    names = data.decode("ascii").split(",")
    if all(name == EVERYONE or (name.isdigit() and len(name) <= _LONGEST_KEY) for name in names):
        return names
    return None


def ping(url: str) -> str:
    """Ping Redis once. Raises StoreAwayError, and ValueError for a text that is no address."""
    with contextlib.closing(SyncRedis.from_url(url, socket_timeout=2, socket_connect_timeout=1)) as redis:
        try:
            return str(redis.ping())
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreAwayError("Redis does not answer") from error


class SideJobs(NamedTuple):
    """Traces of workers and beat: seconds since a side job ended, None if none has, and the number of tasks that wait."""

    age: float | None
    waiting: int


_SIDE_JOB = _PREFIX + "side-job-ended"
TASKS = "side-jobs"
"""The name of the queue of tasks."""


def note_side_job(url: str) -> None:
    """Note that a side job has ended; without Redis, nothing."""
    with contextlib.suppress(TimeoutError, RedisError, OSError), contextlib.closing(_connection(url)) as redis:
        redis.set(_SIDE_JOB, _seconds_of(redis))


def side_jobs(url: str) -> SideJobs:
    """Return the traces of workers and beat. Raises StoreAwayError, and ValueError for a text that is no address."""
    with contextlib.closing(_connection(url)) as redis:
        try:
            noted, now, waiting = redis.get(_SIDE_JOB), _seconds_of(redis), redis.llen(_PREFIX + TASKS)
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreAwayError("Redis does not answer") from error
    return SideJobs(None if noted is None else max(0.0, now - float(str(noted))), int(str(waiting)))


def _connection(url: str) -> SyncRedis:
    return SyncRedis.from_url(url, socket_timeout=2, socket_connect_timeout=1, decode_responses=True)


def _seconds_of(redis: SyncRedis) -> float:
    """Return the time by the clock of Redis, which all processes share."""
    seconds, micros = redis.time()
    return float(seconds) + float(micros) / 1e6


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended.

    One cancellation may not be enough: before Python 3.12 ``asyncio.wait_for``, with which redis sends its commands, loses a
    cancellation that comes just as the awaited task is done (https://github.com/python/cpython/issues/86296).
    """
    rest = set(tasks)
    while rest:
        for task in rest:
            task.cancel()
        done, rest = await asyncio.wait(rest, timeout=0.5)
        await asyncio.gather(*done, return_exceptions=True)


async def wait_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for ``event`` at most ``seconds``; return whether it was set. It is clear afterwards."""
    try:
        async with asyncio.timeout(seconds):  # not ``wait_for``, which makes a task
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
