"""A stub of the dispatcher with as much as an idle agent needs, and a record of what the agent sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from trainmaster.protocol.agent import DesiredAnswer, SyncAnswer

LEASE_SECONDS = 15.0
"""The dispatcher's default."""


class Heard(NamedTuple):
    """A capacity report; ``at`` of the loop's clock."""

    at: float
    bytes: int
    capacity: dict[str, Any]

    def total_free(self, resource: str) -> int:
        return sum(group["count"] * group["free"].get(resource, 0) for group in self.capacity["groups"])


class DispatcherStub:
    def __init__(self) -> None:
        self.reports: list[Heard] = []
        self.first = asyncio.Event()
        self.syncs = 0

    async def sync(self, request: web.Request) -> web.Response:
        raw = await request.read()
        said = orjson.loads(raw)
        self.syncs += 1
        if said.get("capacity") is not None:
            self.reports.append(Heard(asyncio.get_running_loop().time(), len(raw), said["capacity"]))
            self.first.set()
        answer = SyncAnswer(
            number=said["number"], epoch="bench", lease_seconds=LEASE_SECONDS, send_capacity=not self.reports
        )
        return _json(answer)

    async def desired(self, request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query["wait"]))
        return _json(DesiredAnswer(version=1))


def _json(answer: SyncAnswer | DesiredAnswer) -> web.Response:
    return web.Response(body=answer.model_dump_json(by_alias=True).encode(), content_type="application/json")


@asynccontextmanager
async def serve_stub(port: int) -> AsyncIterator[DispatcherStub]:
    stub = DispatcherStub()
    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.post("/agent/v1/sync", stub.sync), web.get("/agent/v1/desired", stub.desired)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield stub
    finally:
        await runner.cleanup()
