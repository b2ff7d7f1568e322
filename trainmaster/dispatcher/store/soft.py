"""Soft state in Redis: wake-ups between processes and the relay of log chunks.

All of it may be lost at any time. Without Redis the system is correct and slower: who waits also looks by itself, and log
followers are served by the api process that the agent happens to push to.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from trainmaster.dispatcher.store.database import StoreAwayError

log = logging.getLogger(__name__)

_PREFIX = "trainmaster:"
SCHEDULER, CLUSTERS, JOBS = "wake:scheduler", "wake:clusters", "wake:jobs"
_CHANNELS = (SCHEDULER, CLUSTERS, JOBS)
_MOST_KEYS = 500
_MOST_WAITING = 64
"""Pushes of log chunks, of some 256 KiB each, that wait for a slow follower; what comes beyond is told as missed."""
EVERYONE = "*"


class SoftState:
    """Wake-ups and relays of one process. ``url`` None means that this process is alone."""

    def __init__(self, url: str | None) -> None:
        self._redis: Redis | None = None
        if url:
            self._redis = Redis.from_url(url, socket_timeout=2, socket_connect_timeout=1, health_check_interval=15)
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = defaultdict(set)
        self._followers: dict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._away_until = 0.0
        self.is_away = False

    def start(self) -> None:
        """Begin to listen for the wake-ups of other processes."""
        if self._redis is not None and self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="redis-wake-ups")

    async def close(self) -> None:
        await _end([*self._tasks, *([self._listener] if self._listener else [])])
        if self._redis is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.aclose()

    def wake(self, channel: str, keys: Iterable[int | str] = (EVERYONE,)) -> None:
        """Wake who waits for any of these keys, here and in other processes; returns at once and never fails."""
        names = [str(key) for key in keys]
        if len(names) > _MOST_KEYS:
            names = [EVERYONE]
        self._notify(channel, names)
        if names and self._redis is not None:
            self._spawn(self._publish(channel, ",".join(names).encode()))

    @contextmanager
    def waiter(self, channel: str, key: int | str = EVERYONE) -> Iterator[asyncio.Event]:
        """An event that is set by each wake-up of ``key``; open it before looking, so that nothing falls in between."""
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
        """As ``wake``, for this process alone."""
        self._notify(channel, [str(key) for key in keys])

    def waited_for(self, channel: str) -> list[int]:
        """The keys that somebody in this process waits for."""
        return [int(key) for name, key in self._waiting if name == channel and key != EVERYONE]

    def relay(self, stream: str, data: bytes) -> None:
        """Pass log chunks on to whoever follows the stream, here or at another api."""
        for queue in self._followers.get(stream, ()):
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(data)
        if self._redis is not None:
            self._spawn(self._publish(f"log:{stream}", data))

    @asynccontextmanager
    async def following(self, stream: str) -> AsyncIterator[asyncio.Queue[bytes]]:
        """A bounded queue of what is relayed on a stream. Chunks may come twice; they carry offsets."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=_MOST_WAITING)
        self._followers[stream].add(queue)
        task = asyncio.create_task(self._follow(stream, queue)) if self._redis is not None else None
        try:
            yield queue
        finally:
            self._followers[stream].discard(queue)
            if not self._followers[stream]:
                del self._followers[stream]
            if task is not None:
                await _end([task])

    def _notify(self, channel: str, names: Iterable[str]) -> None:
        for name in names:
            places = (
                [place for place in self._waiting if place[0] == channel] if name == EVERYONE else [(channel, name)]
            )
            for place in (*places, (channel, EVERYONE)):
                for event in self._waiting.get(place, ()):
                    event.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, channel: str, data: bytes) -> None:
        if self._redis is None or time.monotonic() < self._away_until:
            return
        try:
            await self._redis.publish(_PREFIX + channel, data)
            self._came_back()
        except (TimeoutError, RedisError, OSError) as error:
            self._went_away(error)

    def _went_away(self, error: Exception) -> None:
        self._away_until = time.monotonic() + 1.0
        if not self.is_away:
            log.warning("Redis does not answer (%s); wake-ups fall back to looking once a second", error)
        self.is_away = True

    def _came_back(self) -> None:
        if self.is_away:
            log.info("Redis is back")
        self.is_away = False

    async def _messages(self, channels: Iterable[str]) -> AsyncIterator[tuple[str, bytes]]:
        assert self._redis is not None  # noqa: S101 - callers start only with Redis
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(*[_PREFIX + channel for channel in channels])
            self._came_back()
            while True:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
                if message is not None:
                    yield message["channel"].decode().removeprefix(_PREFIX), message["data"]

    async def _listen(self) -> None:
        while True:
            try:
                async for channel, data in self._messages(_CHANNELS):
                    self._notify(channel, data.decode().split(","))
            except (TimeoutError, RedisError, OSError) as error:
                self._went_away(error)
            await asyncio.sleep(random.uniform(0.5, 1.0))

    async def _follow(self, stream: str, queue: asyncio.Queue[bytes]) -> None:
        while True:
            try:
                async for _, data in self._messages([f"log:{stream}"]):
                    with contextlib.suppress(asyncio.QueueFull):
                        queue.put_nowait(data)
            except (TimeoutError, RedisError, OSError) as error:
                self._went_away(error)
            await asyncio.sleep(random.uniform(0.5, 1.0))


def ping(url: str) -> str:
    """Ask Redis once for a sign of life. Raises StoreAwayError, and ValueError for an address that is none."""
    with contextlib.closing(SyncRedis.from_url(url, socket_timeout=2, socket_connect_timeout=1)) as redis:
        try:
            return str(redis.ping())
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreAwayError("Redis does not answer") from error


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended.

    Once may not do: before Python 3.12 ``asyncio.wait_for``, with which redis sends its commands, loses a cancellation that
    comes just as what it waits for is done (https://github.com/python/cpython/issues/86296).
    """
    rest = set(tasks)
    while rest:
        for task in rest:
            task.cancel()
        done, rest = await asyncio.wait(rest, timeout=0.5)
        await asyncio.gather(*done, return_exceptions=True)


async def wait_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for a wake-up at most so long; the event is clear afterwards."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    event.clear()
    return True
