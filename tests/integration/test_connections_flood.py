"""A real api process under floods of connections: its memory stays bounded, it goes on, and others are answered meanwhile."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.conftest import Service
from tests.waiting import eventually_sync
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port

MIB = 1024 * 1024
SILENT = 3_000


@dataclass
class Api:
    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def rss(self) -> int:
        """Its resident memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def is_well(self) -> bool:
        """Return whether a new connection is answered, in seconds and not in minutes."""
        began = time.monotonic()
        answer = httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=60)
        return answer.status_code == 200 and self.process.poll() is None and time.monotonic() - began < 20


@pytest.fixture
def api(database_url: str) -> Iterator[Api]:
    port = free_port()
    environment = os.environ | {
        "DATABASE_URL": database_url,
        "TRAINMASTER_HEADER_SECONDS": "6",
        "TRAINMASTER_BODY_SECONDS": "6",
    }
    environment.pop("REDIS_URL", None)
    command = [sys.executable, "-m", "trainmaster.cli.main", "serve", "--port", str(port), "--plain-logs"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process, 60, "the api")
        yield Api(process, port)
    finally:
        process.kill()
        process.wait()


def test_endless_headers_take_no_memory_and_hold_nobody_up(api: Api) -> None:
    before = api.rss
    sent = 0
    for _ in range(4):
        with api.connect() as peer, contextlib.suppress(ConnectionError):
            peer.sendall(b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\nx: ")
            for _ in range(100):
                peer.sendall(b"x" * MIB)
                sent += MIB
    assert sent < 40 * MIB, "it was cut off"
    assert api.is_well()
    print(f"\nendless headers: {sent / MIB:.0f} MiB sent, the api grew by {(api.rss - before) / MIB:.1f} MiB")
    assert api.rss - before < 30 * MIB


def test_thousands_of_silent_and_half_connections_are_let_go(api: Api) -> None:
    before = api.rss
    starts = (
        b"",
        b"GET /v1/jobs HTTP/1.1\r\nx: ",
        b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{",
    )
    peers = [api.connect() for _ in range(SILENT)]
    for number, peer in enumerate(peers):
        peer.sendall(starts[number % len(starts)])
    assert api.is_well()
    assert api.rss - before < 150 * MIB

    def are_gone() -> bool:
        held = Path(f"/proc/{api.process.pid}/fd")
        return len(list(held.iterdir())) < SILENT / 10

    eventually_sync(are_gone, 15)
    assert api.is_well()
    print(f"\n{SILENT} silent and half connections: the api grew by {(api.rss - before) / MIB:.1f} MiB")
    assert api.rss - before < 150 * MIB
    for peer in peers:
        peer.close()


def test_large_bodies_of_one_agent_that_never_end_are_bounded(service: Service, api: Api) -> None:
    before, size, numbers = api.rss, 31 * MIB, count(1)
    head = b"POST /agent/v1/sync HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tmk_private\r\n"
    peers = [api.connect() for _ in range(12)]
    for peer in peers:
        with contextlib.suppress(ConnectionError):
            peer.sendall(head + b"content-length: %d\r\n\r\n" % size)
            for number in range(31):
                peer.sendall(b" " * (MIB - (number == 30)))
    refused = peers[-1].recv(4096)
    assert refused.startswith(b"HTTP/1.1 503 "), refused
    assert b"retry-after: 1" in refused
    print(f"\n12 bodies without an end: the api grew by {(api.rss - before) / MIB:.1f} MiB")
    assert api.rss - before < 160 * MIB

    def sync(key: str, padding: int) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        body = b'{"session": "%s", "holder": "h", "number": %d}' % (key.encode(), next(numbers)) + b" " * padding
        return httpx.post(f"http://127.0.0.1:{api.port}/agent/v1/sync", content=body, headers=headers, timeout=60)

    assert sync("tmk_public", 2 * MIB).status_code == 200, "others have room"
    assert sync("tmk_private", 0).status_code == 200, "the lease is renewed"
    assert api.is_well()
    for peer in peers:
        peer.close()
    eventually_sync(lambda: sync("tmk_private", 20 * MIB).status_code == 200, 30)
