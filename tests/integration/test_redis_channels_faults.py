"""Redis that talks nonsense, says nothing, is full or is unreachable costs latency only, and all is well again when it is."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.conftest import Service
from tests.waiting import eventually
from trainmaster.metrics.definitions import redis_listener_restarts, redis_messages_dropped
from trainmaster_dispatcher.cli.embedded import free_port, redis_command, wait_for_port
from trainmaster_dispatcher.store import redis_channels
from trainmaster_dispatcher.store.redis_channels import (
    CLUSTERS,
    JOBS,
    SCHEDULER,
    Breaker,
    Inbox,
    RedisChannels,
    wait_set,
)

GARBAGE = (b"\xff", b"", b"\x00" * 100, b"seven", b"7,\xff", b"-1", b"9" * 1000, b"," * 70_000, b"{}")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisChannels]:
    channels = RedisChannels(url)
    channels.start()
    try:
        yield channels
    finally:
        await asyncio.wait_for(channels.close(), 30)


def counted(metric: Any) -> float:
    return float(metric._value.get())


async def hears(here: RedisChannels, there: RedisChannels, key: int = 7) -> None:
    """Wait until a wake-up sent by ``there`` arrives at ``here``."""
    with here.waiter(JOBS, key) as woken:

        async def through() -> bool:
            there.wake(JOBS, [key])
            return await wait_set(woken, 0.2)

        await eventually(through, 15)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and time-outs are a tenth of what they are else."""
    for name in ("_CALL_SECONDS", "_PING_SECONDS", "_SHORTEST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(redis_channels, name, getattr(redis_channels, name) / 10)


async def test_garbage_on_every_channel_ends_no_listener(redis_url: str) -> None:
    async with opened(redis_url) as here, opened(redis_url) as there:
        await hears(here, there)
        restarts = counted(redis_listener_restarts)
        dropped = counted(redis_messages_dropped.labels("garbage"))
        async with Redis.from_url(redis_url) as stranger:
            for channel in (SCHEDULER, CLUSTERS, JOBS):
                for data in GARBAGE:
                    await stranger.publish(f"trainmaster:{channel}", data)
            await stranger.publish(f"trainmaster:log:{here._own}\xff", b"\xff")
        await hears(here, there)
        assert counted(redis_listener_restarts) == restarts

        async def all_are_dropped() -> bool:
            # Both listeners count here, and only one of them has been heard.
            return counted(redis_messages_dropped.labels("garbage")) - dropped == 2 * 3 * len(GARBAGE)

        await eventually(all_are_dropped)
        assert not here.is_away


async def test_garbage_in_a_followed_log_is_passed_to_nobody_else_and_ends_no_listener(redis_url: str) -> None:
    async with opened(redis_url) as here, opened(redis_url) as there:
        await hears(here, there)
        stream, other = here.new_stream(), here.new_stream()
        async with here.following(stream) as inbox, here.following(other) as another:
            there.relay(stream, b"\xff\x00")
            assert await inbox.next(10) == b"\xff\x00"
            assert await another.next(0.01) is None


async def test_a_whole_service_goes_on_after_garbage(service: Service, redis_url: str) -> None:
    """One byte on a channel ended the listeners of all apis and schedulers once."""
    async with Redis.from_url(redis_url) as stranger:
        for channel in (SCHEDULER, CLUSTERS, JOBS):
            await stranger.publish(f"trainmaster:{channel}", b"\xff")
    agent = service.agent()
    await agent.connect()
    await service.submit()
    assert (await agent.next_start())["run"]
    await hears(service.stores.channels, service.stores.channels)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything and answer nothing."""
    while await reader.read(65_536):
        pass
    writer.close()


async def babbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer everything with nonsense."""
    while await reader.read(65_536):
        writer.write(b"*-7\r\n\xff\xfe$999999999999\r\n:x\r\n")
    writer.close()


async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse everything, as a server without memory or with too many clients does."""
    while await reader.read(65_536):
        writer.write(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n" * 8)
    writer.close()


async def slamming(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection at once."""
    writer.close()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@pytest.mark.parametrize("handler", [silent, babbling, full, slamming], ids=lambda handler: handler.__name__)
async def test_a_server_that_is_no_good_holds_nobody_up_and_takes_no_memory(handler: Handler, quick: None) -> None:
    connections = 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await handler(reader, writer)

    server = await asyncio.start_server(counting, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(f"redis://127.0.0.1:{port}/0") as channels:

        async def is_away() -> bool:
            channels.wake(JOBS, range(600))
            return channels.is_away

        await eventually(is_away)
        loop = asyncio.get_running_loop()
        began, tasks = loop.time(), len(asyncio.all_tasks())
        with channels.waiter(JOBS, 7) as woken:
            for number in range(10_000):
                channels.wake(JOBS, [number])
                channels.relay(f"somebody-{number}", b"x" * 2_000)
            assert woken.is_set(), "who waits in this process is woken all the same"
        assert loop.time() - began < 5
        assert len(asyncio.all_tasks()) <= tasks + 2, "no task for each message"
        assert channels._relayed_bytes <= redis_channels._MOST_RELAYED_BYTES
        failures = connections

        async def tries_again() -> bool:
            channels.wake(JOBS, [1])
            return connections > failures

        await eventually(tries_again)
    assert connections < 200
    server.close()


def start_redis(port: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(redis_command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, process, 60, "Redis")
    return process


async def test_wake_ups_come_through_again_once_redis_is_there(quick: None) -> None:
    port = free_port()
    async with opened(f"redis://127.0.0.1:{port}/0") as here, opened(f"redis://127.0.0.1:{port}/0") as there:

        async def are_away() -> bool:
            there.wake(JOBS, [1])
            return here.is_away and there.is_away

        await eventually(are_away)
        process = await asyncio.to_thread(start_redis, port)
        try:
            await hears(here, there)
            assert not here.is_away
        finally:
            process.kill()
            process.wait()
        await eventually(are_away)


async def test_a_listener_notices_a_server_that_froze_after_it_had_begun(redis_url: str, quick: None) -> None:
    """Nothing comes and nothing breaks: only the missing sign of life tells."""
    port = int(redis_url.rsplit(":", 1)[1].split("/")[0])
    frozen = asyncio.Event()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                if not frozen.is_set():
                    target.write(data)
            target.close()

        await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    async with opened(url) as here, opened(redis_url) as there:
        await hears(here, there)
        frozen.set()

        async def notices() -> bool:
            return here.is_away

        await eventually(notices)
        frozen.clear()
        await hears(here, there)
    server.close()


def test_a_breaker_waits_longer_with_each_failure_and_not_at_all_after_a_success() -> None:
    now = 1000.0
    breaker = Breaker(lambda: now)
    pauses = []
    for _ in range(8):
        assert breaker.allows()
        breaker.failed()
        assert breaker.is_open
        began = now
        while not breaker.allows():
            now += 0.05
        pauses.append(now - began)
    assert 0.4 <= pauses[0] <= 1.1
    assert all(4.9 <= pause <= 10.1 for pause in pauses[-3:])
    breaker.succeeded()
    assert not breaker.is_open
    assert breaker.allows()


async def test_a_follower_that_does_not_read_is_kept_a_bounded_number_of_bytes() -> None:
    inbox = Inbox()
    for _ in range(100):
        inbox.put(b"x" * 100_000)
    assert inbox._size <= 2 * 1024 * 1024
    read = 0
    while await inbox.next(0.01):
        read += 1
    assert read == 20
    inbox.put(b"y" * 5_000_000)
    assert len(await inbox.next(1) or b"") == 5_000_000, "one is always taken"
