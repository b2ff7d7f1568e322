"""Retention: data older than the settings allow is removed, in steps of one short transaction each.

Each step takes a lock. A process that finds the lock taken stops: another process removes old data, from a point that misses nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_job_id
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.series import COARSE, FINE, KEEP_COARSE, KEEP_FINE, KEEP_MIDDLE, MIDDLE
from trainmaster_dispatcher.services.series_rollup import SeriesRollup
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.usage_ledger import Accounting
from trainmaster_dispatcher.store import (
    declarations,
    files,
    groups,
    output,
    schedules,
    series,
    simulations,
    use_history,
    workflow_events,
    workflows,
)
from trainmaster_dispatcher.store import retention as store
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.file_store import FileStore, open_file_store
from trainmaster_dispatcher.store.log_store import LogStore, open_log_store

log = logging.getLogger(__name__)

BATCH = 1000
_UNFINISHED_SECONDS = 86_400.0
"""Seconds after which an upload that was begun and not finished is removed."""
_KEEP_SAMPLES, _KEEP_ROLLED_UP = "1d", "7d"
"""Times for which the history of use is kept as it was sampled, and then rolled up."""
Step = Callable[[Transaction, float, int], Awaitable[bool]]


async def _remove_revisions(tx: Transaction, keep: float, limit: int) -> bool:
    """Remove revisions of objects that have more than ``keep``."""
    return await declarations.remove_revisions(tx, int(keep), limit)


def _series_step(grain: int) -> Step:
    async def remove(tx: Transaction, seconds: float, limit: int) -> bool:
        return await series.remove_spans(tx, grain, seconds, limit)

    return remove


async def _remove_series(tx: Transaction, seconds: float, limit: int) -> bool:
    return await series.remove_names(tx, seconds, limit)


_OF_SERIES: tuple[tuple[Step, float], ...] = (
    (_series_step(FINE), KEEP_FINE),
    (_series_step(MIDDLE), KEEP_MIDDLE),
    (_series_step(COARSE), KEEP_COARSE),
    (_remove_series, KEEP_MIDDLE),
)
"""Steps that remove old values of time series, and series of which nothing is left, each with the seconds that these are kept."""


@dataclass(slots=True)
class Removed:
    """The number of rows and partitions that one turn removed, of runs whose output it removed, and of archives.

    ``finished``: the turn came to the end of all old data.
    """

    partitions: int = 0
    jobs: int = 0
    outputs: int = 0
    files: int = 0
    finished: bool = False


class _OthersTurnError(Exception):
    """Another process removes old data."""


class Retention:
    """One turn of removing old data. ``goes_on`` is called between the steps."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        goes_on: Callable[[], bool] = lambda: True,
        batch: int = BATCH,
        logs: LogStore | None = None,
        files_store: FileStore | None = None,
    ) -> None:
        self._database = database
        self._logs = logs or open_log_store(settings.log_store, database)
        self._files = files_store or open_file_store(settings.files_store)
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
            (schedules.remove_schedule_events, keep.keep_events),
            (schedules.remove_deleted, keep.keep_changes),
            (workflow_events.remove_old, keep.keep_events),
            (workflows.remove_old, keep.keep_jobs),
            (groups.remove_old, keep.keep_jobs),
            (declarations.remove_histories, keep.keep_audit),
            (use_history.roll_up, _KEEP_SAMPLES),
            (use_history.remove_old, _KEEP_ROLLED_UP),
        )
        with contained(Part.TASK, "roll-up of series", ProblemError):
            await SeriesRollup(self._database, self._goes_on).run()
        # The usage of jobs is counted before the jobs are removed.
        await Accounting(self._database, keep.counted_labels, self._goes_on).run()
        try:
            with contained(Part.TASK, "retention of events", _OthersTurnError):
                await self._partitions(parse_duration(keep.keep_events))
            for step, kept in steps:
                with contained(Part.TASK, f"retention by {step.__name__}", _OthersTurnError):
                    await self._repeat(step, parse_duration(kept))
            for step, seconds in _OF_SERIES:
                with contained(Part.TASK, "retention of series", _OthersTurnError):
                    await self._repeat(step, seconds)
            with contained(Part.TASK, "retention of revisions", _OthersTurnError):
                await self._repeat(_remove_revisions, keep.keep_revisions)
            with contained(Part.TASK, "retention of jobs", _OthersTurnError):
                await self._left_overs(parse_duration(keep.keep_jobs))
            with contained(Part.TASK, "retention of output", _OthersTurnError):
                await self._output(parse_duration(keep.keep_output), keep.most_output_bytes)
            with contained(Part.TASK, "retention of files", _OthersTurnError):
                await self._files_of_jobs(parse_duration(keep.keep_files))
            self.removed.finished = self._goes_on()
        except _OthersTurnError:
            log.info("another worker removes what is old")
        if self.removed.partitions or self.removed.jobs or self.removed.outputs or self.removed.files:
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
        kept = await self._named_for_later()
        after, is_young = 0, False
        while not is_young and self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                stretch = await store.look_for_ended(tx, after, seconds, self._batch)
                ended = [key for key in stretch.ended if key not in kept]
                if ended:
                    self.removed.jobs += await store.remove_jobs(tx, ended, seconds)
            is_young = stretch.is_young
            after = after if stretch.last is None else stretch.last
        return after

    async def _named_for_later(self) -> set[int]:
        """Return the keys of jobs whose artifacts jobs of schedules and of running workflows will get: once for each turn."""
        async with self._database.reading() as tx:
            named = await files.jobs_named_for_later(tx)
        found = set()
        for text in named:
            with suppress(BadIdError):
                found.add(parse_job_id(text)[1])
        return found

    async def _output(self, seconds: float, most_bytes: int) -> None:
        """Remove output of jobs that were removed, output that is too old, and the oldest beyond the bound of all of it."""
        while self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                gone = await output.runs_without_job(tx)
            if not gone:
                break
            await self._remove_output(gone, with_members=True)
        while self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                old = await output.oldest(tx, seconds)
            if not old:
                break
            await self._remove_output(old)
        while self._goes_on() and most_bytes:
            async with self._database.transaction() as tx:
                await self._begin(tx)
                over = await output.total_size(tx) - most_bytes
                oldest = await output.oldest(tx, None) if over > 0 else []
            if not oldest:
                break
            sizes = accumulate(one.size for one in oldest)
            most = next((number for number, size in enumerate(sizes, 1) if size >= over), len(oldest))
            await self._remove_output(oldest[:most])

    async def _files_of_jobs(self, seconds: float) -> None:
        """Remove uploads that were not finished, files that nothing names any more, and the data of what was removed."""
        await self._repeat(files.remove_stray_rows, _UNFINISHED_SECONDS)
        for step in (files.remove_uses, files.remove_unused):
            await self._repeat(step, seconds)
        while self._files is not None and self._goes_on():
            async with self._database.transaction() as tx:
                await self._begin(tx)
                keys = await files.removals(tx, self._batch)
            if not keys:
                break
            await self._files.delete(keys)
            async with self._database.transaction() as tx:
                await self._begin(tx)
                await files.removed(tx, keys)
            self.removed.files += len(keys)

    async def _remove_output(self, runs: Sequence[output.RunOutput], *, with_members: bool = False) -> None:
        """Remove the pieces first, then their index: if that fails in between, the next turn does it again."""
        refs = [RunRef(one.job_id, one.attempt) for one in runs]
        async with self._database.transaction() as tx:
            keys = await output.keys_of_runs(tx, refs)
        for start in range(0, len(keys), self._batch):
            await self._logs.delete(keys[start : start + self._batch])
        async with self._database.transaction() as tx:
            await self._begin(tx)
            await output.forget_pieces(tx, refs)
            if with_members:
                await output.forget_members(tx, refs)
        self.removed.outputs += len(refs)

    async def _begin(self, tx: Transaction) -> None:
        if not await store.take_turn(tx):
            raise _OthersTurnError
