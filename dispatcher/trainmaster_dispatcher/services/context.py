"""The stores and settings that every use case works on, and the wake-ups that follow a commit."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from trainmaster.tracing import recording
from trainmaster_dispatcher.services.backlog import Backlog
from trainmaster_dispatcher.services.job_traces import JobTraces
from trainmaster_dispatcher.services.on_behalf import OnBehalf
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.file_store import FileStore, open_file_store
from trainmaster_dispatcher.store.log_store import LogStore, open_log_store
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, JOBS, SCHEDULER, RedisChannels


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one process and its settings."""

    database: Database
    channels: RedisChannels
    settings: Settings
    backlog: Backlog
    logs: LogStore
    on_behalf: OnBehalf
    files: FileStore | None = None
    """None where the installation stores no files of jobs."""
    traces: JobTraces | None = None
    """None where this process makes no spans."""

    @classmethod
    def open(cls, settings: Settings) -> "Stores":
        """Create the stores, which connect lazily; call inside a running event loop."""
        channels = RedisChannels(settings.redis_url)
        channels.start()
        database = Database(settings.database_url, pool_size=settings.pool_size)
        logs = open_log_store(settings.log_store, database)
        traces = None if recording.recorder is None else JobTraces(database, recording.recorder)
        database.traces = traces
        return cls(
            database,
            channels,
            settings,
            Backlog(settings),
            logs,
            OnBehalf(database),
            open_file_store(settings.files_store),
            traces,
        )

    async def close(self) -> None:
        if self.traces is not None:
            await self.traces.close()
        await self.channels.close()
        await self.database.close()

    @staticmethod
    def clock() -> float:
        """Return monotonic seconds, for waiting."""
        return time.monotonic()

    def jobs_changed(self, jobs: Iterable[int], clusters: Iterable[int] = (), *, for_scheduler: bool = True) -> None:
        """Wake watchers of these jobs, the scheduler, and the agents of these clusters. Call it after the commit."""
        ids = list(jobs)
        if ids:
            if for_scheduler:
                self.channels.wake(SCHEDULER)
            self.channels.wake(JOBS, ids)
        touched = sorted(set(clusters))
        if touched:
            self.channels.wake(CLUSTERS, touched)

    def jobs_submitted(self) -> None:
        """Wake the scheduler only: nobody else can know of a job whose id was not returned yet."""
        self.channels.wake(SCHEDULER)

    def tenants_changed(self) -> None:
        self.channels.wake(SCHEDULER)
