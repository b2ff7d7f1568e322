"""Changes of schedules for watches, read once for all watches of a process that have come as far."""

import asyncio
from collections import OrderedDict
from contextvars import Context
from typing import NamedTuple

from trainmaster_dispatcher.services import schedules
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.schedules import ReadSchedule
from trainmaster_dispatcher.store import schedules as store
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.versions import VERSION_BITS

LOOK_SECONDS = 1.0
_MOST_BATCHES = 8
XID_BITS = (1 << VERSION_BITS) - 1


class ScheduleBatch(NamedTuple):
    """The schedules that have changed from a version up to another, as they are now. ``is_known``: nothing may be missing."""

    version: int
    changed: list[ReadSchedule]
    is_known: bool


class ScheduleWatches:
    """The changes of schedules of one process."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._batches: OrderedDict[int, tuple[float, asyncio.Task[ScheduleBatch]]] = OrderedDict()

    async def after(self, version: int) -> ScheduleBatch:
        """Return the changes from a version on. Raises ProblemError if the store does not answer."""
        now = self._stores.clock()
        known = self._batches.get(version)
        if known is None or (known[1].done() and now - known[0] > LOOK_SECONDS / 2):
            # Of no request: that of the first watch may end before the others.
            task = asyncio.create_task(self._read(version), name="watched schedules", context=Context())
            known = self._batches[version] = now, task
            while len(self._batches) > _MOST_BATCHES:
                self._batches.popitem(last=False)
        return await asyncio.shield(known[1])

    async def _read(self, version: int) -> ScheduleBatch:
        async with self._stores.database.reading() as tx:
            horizon = await versions.horizon(tx)
            is_known = version >> VERSION_BITS == horizon.version >> VERSION_BITS and (
                horizon.oldest is None or version >= horizon.oldest
            )
            if not is_known or horizon.version <= version:
                return ScheduleBatch(max(version, horizon.version), [], is_known)
            rows = await store.changed_schedules(tx, version & XID_BITS, horizon.version & XID_BITS)
            return ScheduleBatch(horizon.version, await schedules.read(tx, rows), is_known)
