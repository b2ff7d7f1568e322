"""The bridge from tasks to asynchronous code: one event loop with one pool of connections for all threads of a worker."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import Database

Result = TypeVar("Result")

_CONNECTIONS = 4


class AsyncBridge:
    """Starts its loop when it is first needed, in a daemon thread."""

    def __init__(self, settings: Settings, stopping: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings
        self.stopping = stopping
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._database: Database | None = None

    def run(self, work: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        """Run the work on the loop and wait for it; called by the worker's threads."""
        loop = self._started()
        return asyncio.run_coroutine_threadsafe(self._with_database(work), loop).result()

    def close(self) -> None:
        """Stop the loop and close the connections; no work may run any more."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._close_database(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="side-jobs", daemon=True).start()
            return self._loop

    async def _with_database(self, work: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        if self._database is None:
            self._database = Database(self.settings.database_url, pool_size=_CONNECTIONS, overflow=0)
        return await work(self._database)

    async def _close_database(self) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None
