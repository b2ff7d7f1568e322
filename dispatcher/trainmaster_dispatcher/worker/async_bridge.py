"""The bridge from tasks to asynchronous code: one event loop with one pool of connections for all threads of a worker."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from trainmaster_dispatcher.services.backlog import Backlog
from trainmaster_dispatcher.services.cluster_admissions import ClusterAdmissions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.on_behalf import OnBehalf
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.file_store import open_file_store
from trainmaster_dispatcher.store.log_store import open_log_store
from trainmaster_dispatcher.store.redis_channels import RedisChannels

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
        self._submitting: tuple[Stores, ClusterAdmissions] | None = None

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

    def submitting(self, database: Database) -> tuple[Stores, ClusterAdmissions]:
        """Return what submissions need beside the store, made when first needed; called on the loop."""
        if self._submitting is None:
            settings = self.settings
            channels = RedisChannels(settings.redis_url)
            channels.start()
            logs = open_log_store(settings.log_store, database)
            files = open_file_store(settings.files_store)
            stores = Stores(database, channels, settings, Backlog(settings), logs, OnBehalf(database), files)
            self._submitting = stores, ClusterAdmissions(stores)
        return self._submitting

    async def _close_database(self) -> None:
        if self._submitting is not None:
            await self._submitting[0].channels.close()
            self._submitting = None
        if self._database is not None:
            await self._database.close()
            self._database = None
