"""Reads of the store whose result is that of several calls: those that came before the read began.

Open pages read their lists again at the same moments. A call gets nothing that was read before it came.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trainmaster_dispatcher.store.keys import Caller

Result = TypeVar("Result")

_READS_AT_ONCE = 4


def visibility_of(caller: Caller) -> Hashable:
    """Return what decides what a caller may see of jobs, queues and clusters: equal for all who may see the same."""
    return caller.role, caller.has_every_queue, tuple(sorted(caller.queues)), tuple(sorted(caller.clusters))


@dataclass(eq=False, slots=True)
class _Pending(Generic[Result]):
    waiting: "list[asyncio.Future[Result]]" = field(default_factory=list)


class SharedReads(Generic[Result]):
    """Reads by their arguments, at most ``at_once`` at the same time."""

    def __init__(self, at_once: int = _READS_AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._pending: dict[Hashable, _Pending[Result]] = {}
        """Reads that have not begun."""
        self._running: set[asyncio.Task[None]] = set()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of ``read``, or of that of another call with an equal ``key`` that has not begun. Raises its error.

        A caller that hangs up does not end the read, for which others may wait.
        """
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
            task = asyncio.create_task(self._run(key, pending, read), name="shared-read", context=Context())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        pending.waiting.append(result)
        return await result

    async def _run(self, key: Hashable, pending: _Pending[Result], read: Callable[[], Awaitable[Result]]) -> None:
        try:
            async with self._turns:
                del self._pending[key]
                found = await read()
        except Exception as error:  # noqa: BLE001 - raised to every call that waits for it
            for one in pending.waiting:
                if not one.done():
                    one.set_exception(error)
        except BaseException:
            self._pending.pop(key, None)
            for one in pending.waiting:
                one.cancel()
            raise
        else:
            for one in pending.waiting:
                if not one.done():
                    one.set_result(found)
