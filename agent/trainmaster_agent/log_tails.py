"""Log tails: the last output of each ended run, sent before its end is reported, so that users find it with the job.

Renewing the lease comes first: sending tails never delays a sync for longer than it allows, and a tail that fails although syncs
succeed is dropped with a warning. While the dispatcher is unreachable tails wait for it, as the ends of runs do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from trainmaster.protocol.agent import OutputPiece, StreamPush
from trainmaster.protocol.errors import ProblemError, UnreachableError
from trainmaster_agent.containment import contain
from trainmaster_agent.output_times import OutputTimes
from trainmaster_agent.runtime.port import Runtime
from trainmaster_agent.streams import Pusher, read_chunk

log = logging.getLogger(__name__)

TAIL_BYTES = 65_536
_PUSH_BYTES = 1 << 20
_AT_ONCE = 8
_PAUSE_SECONDS = 0.2


class LogTails:
    """Pushes the tails of one agent session."""

    def __init__(self, pusher: Pusher, runtime: Runtime, session: str, times: OutputTimes) -> None:
        self._times = times
        self._pusher = pusher
        self._runtime = runtime
        self._session = session
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By run: the task that sends its tail, or has sent it."""
        self._began: dict[str, float] = {}
        """By run: when its task began, by the clock of the event loop."""
        self._watch: asyncio.TimerHandle | None = None
        """The next look for late pushes, while there may be any. One timer for all: most tails are sent at once."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._in_contact_since: float | None = None
        self._answered_at = 0.0

    def answered(self) -> None:
        """Note that a sync was answered."""
        self._answered_at = asyncio.get_running_loop().time()
        if self._in_contact_since is None:
            self._in_contact_since = self._answered_at

    def unanswered(self) -> None:
        """Note that a sync was not answered: time until the next answer does not count against a tail."""
        self._in_contact_since = None

    async def keep(self, runs: Iterable[str], within: float, lease: float) -> bool:
        """Send the tails of ended runs; return whether all were sent within ``within`` seconds.

        The others continue; none takes longer than two leases (of ``lease`` seconds) in which syncs are answered.
        """
        requested = set(runs)
        loop = asyncio.get_running_loop()
        for run in requested - self._tasks.keys():
            self._began[run] = loop.time()
            self._tasks[run] = asyncio.create_task(self._hand_over(run), name=f"tail-{run}")
        if self._watch is None:
            self._watch = loop.call_later(2 * lease, self._end_late, lease)
        open_tasks = [self._tasks[run] for run in requested if not self._tasks[run].done()]
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=within)
        return all(self._tasks[run].done() for run in requested)

    def is_over(self, run: str) -> bool:
        """Return whether the tail of this run has been sent or dropped."""
        task = self._tasks.get(run)
        return task is not None and task.done()

    def forget(self, run: str) -> None:
        """Forget the tail of a run whose end has been reported."""
        self._began.pop(run, None)
        task = self._tasks.pop(run, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _hand_over(self, run: str) -> None:
        try:
            await self._push_all(run)
        except ProblemError as error:
            log.warning(
                "the last output of %s is lost, the dispatcher refused it: %s", run, error, extra={"run_id": run}
            )
        except OSError as error:
            log.warning("the last output of %s is lost, it could not be read: %s", run, error, extra={"run_id": run})
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("tail", error, run=run)

    def _end_late(self, lease: float) -> None:
        """Cancel the pushes that are late although the dispatcher is reachable; look again when the next may be."""
        self._watch = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_there = self._in_contact_since is not None and now - self._answered_at < lease
        waits = []
        for run, task in self._tasks.items():
            if task.done():
                continue
            began = self._began[run]
            counted_from = max(began, self._in_contact_since or began) if is_there else now
            wait = counted_from + 2 * lease - now
            if wait > 0:
                waits.append(wait)
                continue
            log.warning(
                "the last output of %s is lost, it could not be sent within %.0f s",
                run,
                now - began,
                extra={"run_id": run},
            )
            task.cancel()
        if waits:
            self._watch = loop.call_later(min(waits), self._end_late, lease)

    async def _push_all(self, run: str) -> None:
        async with self._turns:
            await self._push_members(run)

    async def _push_members(self, run: str) -> None:
        """Push member after member, in pieces, so that the output of a gang of thousands is never in memory at once."""
        chunks: list[OutputPiece] = []
        size = 0
        status = self._runtime.held().get(run)
        for role, index, restarts in [] if status is None else [(m.role, m.index, m.restarts) for m in status.members]:
            chunk, _ = await read_chunk(self._runtime, run, role, index, -TAIL_BYTES, TAIL_BYTES)
            if chunk is None or not chunk.data:
                continue
            key = (run, role, index)
            self._times.note(key, chunk.next_offset)
            marks = self._times.between(key, chunk.offset, chunk.next_offset)
            lives = self._runtime.output_lives(*key) if restarts else ()
            chunks.append(chunk.model_copy(update={"marks": marks, "lives": lives}))
            size += len(chunk.data)
            if size >= _PUSH_BYTES:
                await self._push(run, chunks)
                chunks, size = [], 0
        if chunks:
            await self._push(run, chunks)

    async def _push(self, run: str, chunks: list[OutputPiece]) -> None:
        """Push until the dispatcher takes the chunks or refuses them for good."""
        body = StreamPush(session=self._session, chunks=tuple(chunks), end=True)
        while True:
            with contextlib.suppress(UnreachableError):
                try:
                    await self._pusher.push(run, body)
                except ProblemError as error:
                    if error.code.status != 503:
                        raise
                else:
                    return
            await asyncio.sleep(_PAUSE_SECONDS)
