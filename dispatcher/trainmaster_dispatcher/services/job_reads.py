"""Reads for single calls of the Kubernetes API that many calls share: of jobs as objects, and of the queues of a namespace."""

import asyncio
from collections.abc import Sequence
from contextvars import Context

from trainmaster_dispatcher.services import job_objects
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store.job_objects import LeafQueue

_MOST = 100
"""The most jobs of one read."""
_KEPT_SECONDS = 1.0
_MOST_NAMESPACES = 10_000


class JobReads:
    """Reads of jobs: those that are wanted while one is under way are made together. For use within one event loop."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._wanted: dict[int, asyncio.Future[ReadJob | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def read(self, key: int) -> ReadJob | None:
        """Return a job as it is stored now or later; None if it does not exist. Raises ProblemError if the store does not answer."""
        found = self._wanted.get(key)
        if found is None or found.cancelled():
            found = self._wanted[key] = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            # Of no request: that of the first job may end before the others.
            self._reading = asyncio.create_task(self._read(), name="jobs as objects", context=Context())
        return await asyncio.shield(found)

    async def _read(self) -> None:
        while self._wanted:
            keys = list(self._wanted)[:_MOST]
            batch = {key: self._wanted.pop(key) for key in keys}
            try:
                async with self._stores.database.reading() as tx:
                    jobs = await job_objects.read(tx, batch)
            except Exception as error:  # noqa: BLE001 - raised where the job is awaited
                for one in batch.values():
                    one.set_exception(error)
                    one.exception()  # a caller who has gone leaves none unseen
                continue
            for key, one in batch.items():
                one.set_result(jobs.get(key))


class NamespaceReads:
    """The queues that take jobs, by namespace, as they were a second ago at most. A namespace without any is looked up each time."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._known: dict[str, tuple[Sequence[LeafQueue], float]] = {}

    async def queues(self, namespace: str) -> Sequence[LeafQueue]:
        """Return the queues of a namespace. Raises ProblemError if the store does not answer."""
        now = self._stores.clock()
        found = self._known.get(namespace)
        if found is not None and now < found[1]:
            return found[0]
        async with self._stores.database.reading() as tx:
            queues = await store.leaf_queues(tx, namespace)
        if len(self._known) >= _MOST_NAMESPACES:
            self._known.clear()
        if queues:
            self._known[namespace] = queues, now + _KEPT_SECONDS
        return queues
