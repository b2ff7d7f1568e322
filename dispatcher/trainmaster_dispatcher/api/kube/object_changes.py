"""Changes of schedules and of workflows for watches, read once for all watches of a process that have come as far."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, NamedTuple, TypeVar

from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.versions import VERSION_BITS

LOOK_SECONDS = 1.0
_MOST_BATCHES = 8
XID_BITS = (1 << VERSION_BITS) - 1
T = TypeVar("T")


class ChangeBatch(NamedTuple, Generic[T]):
    """The objects that have changed from a version up to another, as they are now. ``is_known``: nothing may be missing."""

    version: int
    changed: Sequence[T]
    is_known: bool


class ObjectChanges(Generic[T]):
    """The changes of objects of one process. ``read`` returns those that transactions from one up to another have written last."""

    def __init__(self, stores: Stores, read: Callable[[Transaction, int, int], Awaitable[Sequence[T]]]) -> None:
        self._stores = stores
        self._read_changed = read
        self._batches: OrderedDict[int, tuple[float, asyncio.Task[ChangeBatch[T]]]] = OrderedDict()

    async def after(self, version: int) -> ChangeBatch[T]:
        """Return the changes from a version on. Raises ProblemError if the store does not answer."""
        now = self._stores.clock()
        known = self._batches.get(version)
        if known is None or (known[1].done() and now - known[0] > LOOK_SECONDS / 2):
            # Of no request: that of the first watch may end before the others.
            task = asyncio.create_task(self._read(version), name="watched objects", context=Context())
            known = self._batches[version] = now, task
            while len(self._batches) > _MOST_BATCHES:
                self._batches.popitem(last=False)
        return await asyncio.shield(known[1])

    async def _read(self, version: int) -> ChangeBatch[T]:
        async with self._stores.database.reading() as tx:
            horizon = await versions.horizon(tx)
            is_known = version >> VERSION_BITS == horizon.version >> VERSION_BITS and (
                horizon.oldest is None or version >= horizon.oldest
            )
            if not is_known or horizon.version <= version:
                return ChangeBatch(max(version, horizon.version), (), is_known)
            found = await self._read_changed(tx, version & XID_BITS, horizon.version & XID_BITS)
            return ChangeBatch(horizon.version, found, is_known)
