"""Real agents in the process of a test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.conftest import Service
from trainmaster.client.aio import AgentClient
from trainmaster_agent.arrays.server import ArrayServer
from trainmaster_agent.runtime.port import Runtime
from trainmaster_agent.sync import Agent


@asynccontextmanager
async def running_agent(
    service: Service,
    runtime: Runtime,
    cluster: str = "private",
    *,
    serve_arrays: Callable[[AgentClient], ArrayServer] | None = None,
    **options: Any,
) -> AsyncIterator[None]:
    """Run the agent of a cluster while the block runs. ``options``: others of the agent."""
    await runtime.open()
    stop = asyncio.Event()
    client = AgentClient(service.url, f"tmk_{cluster}")
    arrays = None if serve_arrays is None else serve_arrays(client)
    running = asyncio.create_task(Agent(client, runtime, lease_hint=1.0, arrays=arrays, **options).run(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(running, return_exceptions=True)
        await client.aclose()
        await runtime.close()
