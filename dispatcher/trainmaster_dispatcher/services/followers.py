"""State shared by all calls that follow jobs at one api: one poll of the store each second, and shared reads of events."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field

from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.redis_channels import JOBS

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STREAM_SECONDS = 30.0
"""A log stream is over when it is not kept alive for this time."""
_READS_AT_ONCE = 4
_ANSWERS_PER_SLICE = 20
"""Followers that are answered from one read before other calls are served."""


@dataclass(frozen=True, slots=True)
class Happened:
    """Events of a job after a known one, and the job's state and version; ``standing`` is None when the job does not exist."""

    events: Sequence[job_store.StoredEvent]
    standing: job_store.JobVersion | None


@dataclass(slots=True)
class _Read:
    waiting: "list[asyncio.Future[Happened]]" = field(default_factory=list)


class Followers:
    """Wakes calls that wait for a changed job, keeps log streams alive, and knows which clusters are reachable.

    ``reads`` bounds how many followers read the store at once: a change that all of them wait for must not use all connections.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._streams: dict[str, int] = {}
        """The cluster of each log stream."""
        self._reachable: set[int] = set()
        self._versions: dict[int, int] = {}
        self._kept_at = stores.clock()
        self._next_reads: dict[tuple[int, int, int], _Read] = {}
        """Reads that have not begun, by their arguments: calls that join before a read begins share its result."""
        self._reading: set[asyncio.Task[None]] = set()

    async def events_after(self, job_id: int, seq: int, limit: int) -> Happened:
        """Return a job's events after version ``seq``. Raises ProblemError when the store does not answer.

        Calls with the same arguments share a read: an event that wakes many followers of a job is read once.
        """
        place = job_id, seq, limit
        read = self._next_reads.get(place)
        if read is None:
            read = self._next_reads[place] = _Read()
            task = asyncio.create_task(self._read_events(place, read), name="events", context=Context())
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        answer: asyncio.Future[Happened] = asyncio.get_running_loop().create_future()
        read.waiting.append(answer)
        return await answer

    async def _read_events(self, place: tuple[int, int, int], read: _Read) -> None:
        error: Exception | None = None
        try:
            async with self.reads, self._stores.database.reading() as tx:
                del self._next_reads[place]
                happened = Happened(await job_store.events_after(tx, *place), await job_store.standing(tx, place[0]))
        except Exception as failed:  # noqa: BLE001 - raised to every caller that waits for it
            self._next_reads.pop(place, None)
            error = failed
        except BaseException:
            self._next_reads.pop(place, None)
            for answer in read.waiting:
                answer.cancel()
            raise
        for number, answer in enumerate(read.waiting, 1):
            if not answer.done():
                if error is None:
                    answer.set_result(happened)
                else:
                    answer.set_exception(error)
            if number % _ANSWERS_PER_SLICE == 0:
                await asyncio.sleep(0)

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
        """Return whether the agent of a cluster with a log stream held its lease at the last poll."""
        return cluster_id in self._reachable

    async def watch(self) -> None:
        """Poll once a second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Poll once. If the store does not answer, all followers are woken: each of them tries by itself."""
        jobs = self._stores.channels.waited_for(JOBS)
        try:
            changed = await self._read(jobs)
        except ProblemError as error:
            log.warning("jobs that are followed could not be looked at: %s", error)
            changed = jobs
        except Exception:
            # Otherwise, followers whose wake-up was lost would hear of nothing.
            log.exception("jobs that are followed could not be looked at")
            changed = jobs
        self._stores.channels.wake_here(JOBS, changed)

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
