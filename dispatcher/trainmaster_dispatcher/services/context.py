"""The stores and settings that every use case works on, and the wake-ups that follow a commit."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from trainmaster_dispatcher.services.backlog import Backlog
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, JOBS, SCHEDULER, SoftState


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one process and its settings."""

    database: Database
    soft: SoftState
    settings: Settings
    backlog: Backlog

    @classmethod
    def open(cls, settings: Settings) -> "Stores":
        """Create the stores, which connect lazily; call inside a running event loop."""
        soft = SoftState(settings.redis_url)
        soft.start()
        database = Database(settings.database_url, pool_size=settings.pool_size)
        return cls(database, soft, settings, Backlog(settings))

    async def close(self) -> None:
        await self.soft.close()
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
                self.soft.wake(SCHEDULER)
            self.soft.wake(JOBS, ids)
        touched = sorted(set(clusters))
        if touched:
            self.soft.wake(CLUSTERS, touched)

    def jobs_submitted(self) -> None:
        """Wake the scheduler only: nobody else can know of a job whose id was not returned yet."""
        self.soft.wake(SCHEDULER)

    def tenants_changed(self) -> None:
        self.soft.wake(SCHEDULER)
