"""Many jobs from one event loop, each followed while the others go on: ``python asynchronous.py [QUEUE]``."""

import asyncio
import sys

from trainmaster import AsyncClient, EventView, JobView


async def run(client: AsyncClient, queue: str, number: int) -> JobView:
    """Submit one job, print its transitions as they happen, and return it once it has ended."""
    command = [sys.executable, "-c", f"print({number} ** 2)"]
    spec = {
        "name": f"square-{number}",
        "queue": queue,
        "roles": [{"name": "main", "template": {"command": command, "resources": {"cpu": "1"}}}],
    }
    (job,) = await client.submit(spec)
    async for item in client.watch(job):
        if isinstance(item, EventView):
            print(f"{job} {item.kind}")
    return await client.job(job)


async def main(queue: str = "default") -> None:
    async with AsyncClient() as client:
        jobs = await asyncio.gather(*(run(client, queue, number) for number in range(4)))
    print(", ".join(f"{job.name} {job.state}" for job in jobs))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
