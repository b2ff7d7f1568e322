"""Open pages for ``bench.pages``: each a stream of changes and a list that it reads again, over plain sockets, in one process.

    python -m bench.page_clients --port PORT --key KEY [--key KEY] --pages 500 --seconds 30

Prints one JSON object at the end. ``received``: jobs that the first page was told of as succeeded, with the time.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
from urllib.parse import urlencode

import psutil

_EVERY, _REREAD_SECONDS = 2, 5.0
_LISTS: tuple[dict[str, str], ...] = (
    {},
    {"state": "running"},
    {"state": "queued"},
    {"state": "failed"},
    {"queue": "default"},
)
_ID = re.compile(rb'"id":"([^"]+)"')
_JOB = re.compile(rb'\{"id":"([^"]+)","queue":"[^"]*","state":"([a-z]+)"')
_LIMIT = 1 << 20


class Pages:
    """All pages, and what they have counted."""

    def __init__(self, port: int, keys: list[str], seconds: float) -> None:
        self._port = port
        self._keys = keys
        self._ends = time.monotonic() + seconds
        self.opened = self.events = self.event_bytes = self.lists = self.resets = 0
        self.list_seconds: list[float] = []
        self.received: dict[str, float] = {}
        self.errors: list[str] = []

    async def page(self, number: int) -> None:
        try:
            await self._page(number)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.errors.append(repr(error))

    async def _page(self, number: int) -> None:
        key = self._keys[number % len(self._keys)]
        query = urlencode({**_LISTS[number // len(self._keys) % len(_LISTS)], "limit": "50"})
        reader, writer = await self._sent(f"/v1/changes?every={_EVERY}", key, "text/event-stream")
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError(head[:200])
        self.opened += 1
        shown, due = await self._list(query, key), time.monotonic() + _REREAD_SECONDS * random.random()
        is_stale = False
        while (left := self._ends - time.monotonic()) > 0:
            wait = min(left, max(0.0, due - time.monotonic())) if is_stale else left
            try:
                async with asyncio.timeout(wait):
                    text = await reader.readuntil(b"\n\n")
            except TimeoutError:
                text = b""
            if b"event: changes" in text:
                self._count(number, text)
                is_stale |= b'"more":true' in text or not shown.isdisjoint(_ID.findall(text))
            elif b"event: reset" in text:
                self.resets += 1
                is_stale = True
            if is_stale and time.monotonic() >= due:
                shown, due, is_stale = await self._list(query, key), time.monotonic() + _REREAD_SECONDS, False
        writer.close()

    def _count(self, number: int, text: bytes) -> None:
        self.events += 1
        self.event_bytes += len(text)
        if number == 0:
            now = time.time()
            for job, state in _JOB.findall(text):
                if state == b"succeeded":
                    self.received.setdefault(job.decode(), now)

    async def _list(self, query: str, key: str) -> set[bytes]:
        began = time.monotonic()
        reader, writer = await self._sent(f"/v1/jobs?{query}", key, "application/json")
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if b" 200 " not in head.partition(b"\r\n")[0] or length is None:
            raise ValueError(head[:200])
        body = await reader.readexactly(int(length[1]))
        writer.close()
        self.lists += 1
        self.list_seconds.append(time.monotonic() - began)
        return set(_ID.findall(body))

    async def _sent(self, path: str, key: str, accept: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nAccept: {accept}\r\n\r\n".encode()
        )
        return reader, writer


async def _run(options: argparse.Namespace) -> dict[str, object]:
    pages = Pages(options.port, options.key, options.seconds)
    await asyncio.gather(*(pages.page(number) for number in range(options.pages)))
    times = psutil.Process().cpu_times()
    return {
        "opened": pages.opened,
        "events": pages.events,
        "event_bytes": pages.event_bytes,
        "lists": pages.lists,
        "resets": pages.resets,
        "list_seconds": sorted(pages.list_seconds),
        "received": pages.received,
        "errors": pages.errors[:5],
        "cpu_seconds": round(times.user + times.system, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", action="append", required=True)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    json.dump(asyncio.run(_run(parser.parse_args())), sys.stdout)


if __name__ == "__main__":
    main()
