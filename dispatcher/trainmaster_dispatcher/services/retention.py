"""Retention: data older than the settings allow is removed, in steps of one short transaction each.

Each step takes a lock. A process that finds the lock taken stops: another process removes old data, from a point that misses nothing.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.usage_ledger import Accounting
from trainmaster_dispatcher.store import declarations, simulations
from trainmaster_dispatcher.store import retention as store
from trainmaster_dispatcher.store.database import Database, Transaction

log = logging.getLogger(__name__)

BATCH = 1000
Step = Callable[[Transaction, float, int], Awaitable[bool]]


async def _remove_revisions(tx: Transaction, keep: float, limit: int) -> bool:
    """Remove revisions of objects that have more than ``keep``."""
    return await declarations.remove_revisions(tx, int(keep), limit)


@dataclass(slots=True)
class Removed:
    """The number of rows and partitions that one turn removed. ``finished``: the turn came to the end of all old data."""

    partitions: int = 0
    jobs: int = 0
    finished: bool = False


class _OthersTurnError(Exception):
    """Another process removes old data."""


class Retention:
    """One turn of removing old data. ``goes_on`` is called between the steps."""

    def __init__(
        self, database: Database, settings: Settings, goes_on: Callable[[], bool] = lambda: True, batch: int = BATCH
    ) -> None:
        self._database = database
        self._settings = settings
        self._goes_on = goes_on
        self._batch = batch
        self.removed = Removed()

    async def run(self) -> Removed:
        """Remove old data and return what was removed.

        Raises ProblemError when the store is unreachable; what was removed until then stays removed.
        """
        keep = self._settings
        steps: tuple[tuple[Step, str], ...] = (
            (store.remove_stray_events, keep.keep_events),
            (store.remove_idempotency_keys, keep.keep_idempotency),
            (store.remove_audit, keep.keep_audit),
            (store.remove_changes, keep.keep_changes),
            (store.remove_dead_letters, keep.keep_dead_letters),
            (simulations.remove_old, keep.keep_simulations),
            (declarations.remove_histories, keep.keep_audit),
        )
        # The usage of jobs is counted before the jobs are removed.
        await Accounting(self._database, keep.counted_labels, self._goes_on).run()
        try:
            with contained(Part.TASK, "retention of events", _OthersTurnError):
                await self._partitions(parse_duration(keep.keep_events))
            for step, kept in steps:
                with contained(Part.TASK, f"retention by {step.__name__}", _OthersTurnError):
                    await self._repeat(step, parse_duration(kept))
            with contained(Part.TASK, "retention of revisions", _OthersTurnError):
                await self._repeat(_remove_revisions, keep.keep_revisions)
            with contained(Part.TASK, "retention of jobs", _OthersTurnError):
                await self._left_overs(parse_duration(keep.keep_jobs))
            self.removed.finished = self._goes_on()
        except _OthersTurnError:
            log.info("another worker removes what is old")
        if self.removed.partitions or self.removed.jobs:
            log.info("old things were removed", extra=asdict(self.removed))
        return self.removed

    async def _partitions(self, seconds: float) -> None:
        async with self._database.transaction() as tx:
            names = await store.old_partitions(tx, seconds)
        for name in names:
            try:
                async with self._database.transaction() as tx:
                    await self._begin(tx)
                    await store.drop_partition(tx, name)
                self.removed.partitions += 1
            except ProblemError as error:
                if error.code is not Code.TOO_BUSY:
                    raise
                log.info("%s is in use; it is dropped another time", name)
                return

    async def _repeat(self, step: Step, seconds: float) -> None:
        more = True
        while more and self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                more = await step(tx, seconds, self._batch)

    async def _left_overs(self, seconds: float) -> None:
        """Remove old jobs, and what jobs and agents leave behind."""
        last_old = await self._jobs(seconds)

        async def remove_shapes(tx: Transaction, seconds: float, limit: int) -> bool:
            return await store.remove_shapes(tx, seconds, limit, last_old)

        for step in (store.remove_reasons, remove_shapes, store.remove_sessions):
            await self._repeat(step, seconds)

    async def _jobs(self, seconds: float) -> int:
        """Remove old jobs and return the key after which all jobs are young; the key is meaningless if ``goes_on`` said no."""
        after, is_young = 0, False
        while not is_young and self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                stretch = await store.look_for_ended(tx, after, seconds, self._batch)
                if stretch.ended:
                    self.removed.jobs += await store.remove_jobs(tx, stretch.ended, seconds)
            is_young = stretch.is_young
            after = after if stretch.last is None else stretch.last
        return after

    async def _begin(self, tx: Transaction) -> None:
        if not await store.take_turn(tx):
            raise _OthersTurnError
