"""Simulated nodes in a process of their own, so that what they cost is seen apart and slows no event loop that is measured."""

import asyncio
import multiprocessing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvloop

from bench.cpu import cpu_seconds
from tests.cluster.api import ApiClient
from tests.cluster.certificates import Certificates
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet

_READY_SECONDS, _END_SECONDS = 60.0, 20.0


@dataclass(frozen=True)
class _PlaneElsewhere:
    """What a kubelet asks of a control plane that another process has started."""

    url: str
    ca_file: Path
    token: str
    certificates: Certificates

    def client(self) -> ApiClient:
        return ApiClient(self.url, self.ca_file, self.token)


class NodesProcess:
    """Equivalent nodes, with the kubelet that simulates them. A pipe reports to either side that the other one has ended."""

    def __init__(self, plane: ControlPlane, count: int, allocatable: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, self._theirs = context.Pipe()
        elsewhere = _PlaneElsewhere(plane.url, plane.ca_file, plane.admin_token, plane.certificates)
        self._process = context.Process(
            target=_play, args=(elsewhere, count, dict(allocatable), self._theirs), daemon=True
        )

    async def __aenter__(self) -> "NodesProcess":
        self._process.start()
        self._theirs.close()
        if not await asyncio.to_thread(self._ours.poll, _READY_SECONDS):
            raise TimeoutError("the simulated nodes did not come up")
        self._ours.recv_bytes()  # raises EOFError where the process has ended
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ours.close()
        await asyncio.to_thread(self._process.join, _END_SECONDS)
        self._process.kill()

    @property
    def cpu_seconds(self) -> float:
        assert self._process.pid is not None
        return cpu_seconds(self._process.pid)


def _play(plane: _PlaneElsewhere, count: int, allocatable: dict[str, str], parent: Connection) -> None:
    async def play() -> None:
        async with await Kubelet.start(cast(ControlPlane, plane)) as kubelet:
            await kubelet.add_nodes("node", count, allocatable)
            parent.send_bytes(b"ready")
            with suppress(EOFError):
                await asyncio.to_thread(parent.recv_bytes)

    uvloop.run(play())
