"""The noise of one tenant, as a process of its own: calls, streams, different shapes, wrong keys. Started by ``bench.noisy``.

    python -m bench.noise KINDS URL KEY SECONDS JOB

Speaks HTTP by hand and has the lowest priority, so that what it costs itself costs this machine little: it stands for other
machines. Prints how many answers of each status it got.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson

CALLS_PER_SECOND = 500
CONNECTIONS = 32
EVENT_STREAMS = 1_000
LOG_STREAMS = 300
SHAPES = 6_000
SHAPES_PER_CALL = 100
WRONG_KEYS = 24
_OPENING = 50
"""The number of streams that are opened concurrently."""


class Noise:
    """One tenant's noise against one api for some seconds. ``job``: one of its jobs that runs."""

    def __init__(self, url: str, key: str, seconds: float, job: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._key = key
        self._job = job
        self._ends = time.monotonic() + seconds
        self._opening = asyncio.Semaphore(_OPENING)
        self.statuses = Counter[str]()

    def _is_over(self) -> bool:
        return time.monotonic() > self._ends

    async def calls(self) -> None:
        """Make lists and single submissions at a steady rate, over kept connections."""
        began, done = time.monotonic(), 0

        async def one() -> None:
            nonlocal done
            reader, writer = await self._connect()
            while not self._is_over():
                done += 1
                await asyncio.sleep(max(0.0, began + done / CALLS_PER_SECOND - time.monotonic()))
                is_submission = done % 5 == 0
                body = orjson.dumps(job_of_shape(0)) if is_submission else b""
                status = await self._call(reader, writer, "POST" if is_submission else "GET", "/v1/jobs", body)
                self.statuses[f"calls {status}"] += 1
            writer.close()

        await asyncio.gather(*[self._again(one) for _ in range(CONNECTIONS)])

    async def events(self) -> None:
        """Follow event streams of one job."""
        await self._streams("events", EVENT_STREAMS, f"/v1/jobs/{self._job}/events", "Accept: text/event-stream\r\n")

    async def logs(self) -> None:
        """Follow the output of one job."""
        await self._streams("logs", LOG_STREAMS, f"/v1/jobs/{self._job}/logs?follow=true", "")

    async def shapes(self) -> None:
        """Submit jobs of which no two request the same amounts."""
        reader, writer = await self._connect()
        for first in range(1, SHAPES, SHAPES_PER_CALL):
            if self._is_over():
                break
            jobs = [job_of_shape(first + number) for number in range(SHAPES_PER_CALL)]
            status = await self._call(reader, writer, "POST", "/v1/jobs", orjson.dumps({"jobs": jobs}))
            self.statuses[f"shapes {status}"] += 1
        writer.close()
        await self._rest()

    async def keys(self) -> None:
        """Call with unknown keys, another each time, as fast as they are answered."""

        shown = 0

        async def one() -> None:
            nonlocal shown
            reader, writer = await self._connect()
            while not self._is_over():
                shown += 1
                status = await self._call(reader, writer, "GET", "/v1/jobs", b"", f"tmk_wrong_{shown}")
                self.statuses[f"keys {status}"] += 1
            writer.close()

        await asyncio.gather(*[self._again(one) for _ in range(WRONG_KEYS)])

    async def _streams(self, name: str, many: int, path: str, header: str) -> None:
        async def one() -> None:
            async with self._opening:
                reader, writer = await self._connect()
                writer.write(self._head("GET", path, self._key, header) + b"\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
            self.statuses[f"{name} {head.split(b' ')[1].decode()}"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._ends - time.monotonic())):
                    while await reader.read(65_536):
                        pass
            writer.close()
            await self._rest()

        await asyncio.gather(*[self._once(one) for _ in range(many)])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    def _head(self, method: str, path: str, key: str, header: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: noise\r\nAuthorization: Bearer {key}\r\n{header}".encode()

    async def _call(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes,
        key: str = "",
    ) -> int:
        writer.write(self._head(method, path, key or self._key) + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, found, rest = head.partition(b"content-length: ")
        if found:
            await reader.readexactly(int(rest.split(b"\r\n")[0]))
        return int(head.split(b" ")[1])

    async def _rest(self) -> None:
        await asyncio.sleep(max(0.0, self._ends - time.monotonic()))

    async def _once(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.statuses[type(error).__name__] += 1

    async def _again(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Restart the work after each broken connection, until the time is over."""
        while not self._is_over():
            await self._once(work)
            await asyncio.sleep(0.01)


def job_of_shape(number: int) -> dict[str, Any]:
    """Return a job that fits every cluster and requests amounts of its own."""
    template = {"command": ["true"], "resources": {"cpu": f"{1000 + number}m"}, "env": {"SIM_RUN_TIME": "600s"}}
    return {"kind": "Job", "name": "noise", "queue": "noisy", "roles": [{"name": "main", "template": template}]}


async def main() -> None:
    os.nice(19)
    kinds, url, key, seconds, job = sys.argv[1:]
    noise = Noise(url, key, float(seconds), job)
    works = {
        "calls": noise.calls,
        "events": noise.events,
        "logs": noise.logs,
        "shapes": noise.shapes,
        "keys": noise.keys,
    }
    await asyncio.gather(*[works[kind]() for kind in kinds.split(",")])
    print(json.dumps(dict(sorted(noise.statuses.items()))))


if __name__ == "__main__":
    asyncio.run(main())
