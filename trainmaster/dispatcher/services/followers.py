"""What the calls that follow jobs at one api share: one look a second at the store, however many they are."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import agents
from trainmaster.dispatcher.store import jobs as job_store
from trainmaster.dispatcher.store.soft import JOBS
from trainmaster.protocol.errors import ProblemError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STREAM_SECONDS = 30.0
"""A log stream that is not kept alive for so long is over."""
_READS_AT_ONCE = 4


class Followers:
    """Wakes who waits for a job that has changed, keeps log streams alive, and knows which clusters are reachable.

    ``reads`` bounds how many followers read the store at once: a change that all of them wait for must not take all connections.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._streams: dict[str, int] = {}
        """The cluster of each log stream."""
        self._reachable: set[int] = set()
        self._versions: dict[int, int] = {}
        self._kept_at = stores.clock()

    @contextmanager
    def stream(self, stream: str, cluster_id: int, *, is_reachable: bool) -> Iterator[None]:
        """Keep a log stream alive during the block."""
        self._streams[stream] = cluster_id
        (self._reachable.add if is_reachable else self._reachable.discard)(cluster_id)
        try:
            yield
        finally:
            del self._streams[stream]

    def is_reachable(self, cluster_id: int) -> bool:
        """Whether the agent of a cluster with a log stream held its lease at the last look."""
        return cluster_id in self._reachable

    async def watch(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look once. A store that does not answer is told to those who follow by waking them: each tries by itself."""
        jobs = self._stores.soft.waited_for(JOBS)
        try:
            changed = await self._read(jobs)
        except ProblemError as error:
            log.warning("jobs that are followed could not be looked at: %s", error)
            changed = jobs
        except Exception:
            # Without it, followers whose wake-up was lost would hear of nothing.
            log.exception("jobs that are followed could not be looked at")
            changed = jobs
        self._stores.soft.wake_here(JOBS, changed)

    async def _read(self, jobs: list[int]) -> list[int]:
        is_due = bool(self._streams) and self._stores.clock() - self._kept_at > STREAM_SECONDS / 3
        if not jobs and not self._streams:
            self._versions = {}
            return []
        async with self._stores.database.transaction() as tx:
            versions = await job_store.versions(tx, jobs) if jobs else {}
            if self._streams:
                self._reachable = await agents.reachable(tx, set(self._streams.values()))
            if is_due:
                await agents.keep_streams(tx, self._streams, STREAM_SECONDS)
        if is_due:
            self._kept_at = self._stores.clock()
        changed = [job for job in jobs if job not in versions or versions[job] != self._versions.get(job)]
        self._versions = versions
        return changed
