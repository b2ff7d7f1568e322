"""`OutputCollector`: sends members' output to the dispatcher, which stores it: the first and the last half of a limit.

While a run lives its members' output is sent in pieces, up to the first half; at its end, what is left of the last half. The end of
the run is reported without waiting for that; the runtime forgets the run once its output is stored, or cannot be any more.

Whatever members print, one piece is in memory at a time, and at most ``_BYTES_PER_SECOND`` are sent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainmaster.protocol.agent import OutputAnswer, OutputPiece, OutputPush
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster_agent.containment import contain
from trainmaster_agent.output_times import Key, OutputTimes
from trainmaster_agent.runtime.port import RunStatus, Runtime
from trainmaster_agent.streams import read_chunk

log = logging.getLogger(__name__)

TAIL_BYTES = 65_536
"""Output up to this length comes with the end of its run, and is not sent before."""
_PIECE = 1 << 18
_ENOUGH = 1 << 16
"""New bytes of a member that are sent at once; fewer wait for ``_PATIENCE`` seconds."""
_PATIENCE = 60.0
_LOOK_SECONDS = 1.0
_UNSIZED_SECONDS = 30.0
"""Time between two looks at a member whose runtime cannot say how much it has printed."""
_MOST_UNSIZED = 128
"""The most such members that are read while they live; of more, output is sent at the end alone."""
_BYTES_PER_SECOND = 16 << 20
_LATEST_SECONDS = 900.0
"""Time after which the output of an ended run is given up."""
_PAUSE_SECONDS = 1.0
_REFUSED_FOR_GOOD = (Code.NOT_FOUND, Code.SESSION_SUPERSEDED, Code.INVALID_SPEC, Code.FORBIDDEN, Code.BODY_TOO_LARGE)


class OutputSender(Protocol):
    async def store_output(self, run: str, body: OutputPush) -> OutputAnswer: ...


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress in sending the output of a run's members."""

    stored: dict[Key, int] = field(default_factory=dict)
    """Offset up to which the dispatcher has a member's output."""
    waiting_since: dict[Key, float] = field(default_factory=dict)
    """Since when a member has output that was not sent."""


class OutputCollector:
    """The collector of one agent session. ``forget`` is called for an ended run whose output was sent or given up."""

    def __init__(
        self,
        sender: OutputSender,
        runtime: Runtime,
        session: str,
        times: OutputTimes,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self._runtime = runtime
        self._session = session
        self._times = times
        self._forget = forget
        self._limit = 0
        self._progress: dict[str, _Progress] = {}
        """By run; of runs of which something is known."""
        self._given_up: set[str] = set()
        self._settled: dict[str, float] = {}
        """Ended runs that the dispatcher knows to have ended, by the time when their output is given up."""
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0

    def set_limit(self, limit: int) -> None:
        """Set how many bytes of each member are stored, as the dispatcher says; start when it is the first time."""
        self._limit = limit
        if limit and self._task is None:
            self._task = asyncio.create_task(self._run(), name="output")

    def keeps(self, run: str, status: RunStatus | None) -> bool:
        """Return whether an ended run has output that has to be sent before the runtime forgets it; if so, ``forget`` follows.

        ``status``: what the runtime holds of the run; None: nothing.
        """
        if run in self._settled:
            return True
        if self._task is None or status is None or run in self._given_up or not self._has_more(status):
            self._drop(run)
            return False
        self._settled[run] = asyncio.get_running_loop().time() + _LATEST_SECONDS
        return True

    def is_settled(self, run: str) -> bool:
        """Return whether the dispatcher knows the end of a run that waits for its output to be sent."""
        return run in self._settled

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _has_more(self, status: RunStatus) -> bool:
        progress = self._progress.get(status.run)
        if progress is not None and progress.stored:
            return True
        for member in status.members:
            end = self._runtime.output_end(status.run, member.role, member.index)
            if end is None or end > TAIL_BYTES:
                return True
        return False

    def _drop(self, run: str) -> None:
        self._settled.pop(run, None)
        self._given_up.discard(run)
        self._times.forget(run)
        self._progress.pop(run, None)

    def _progress_of(self, run: str) -> _Progress:
        progress = self._progress.get(run)
        if progress is None:
            progress = self._progress[run] = _Progress()
        return progress

    async def _run(self) -> None:
        while True:
            try:
                for status in list(self._runtime.held().values()):
                    await self._look_at(status)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("output", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look_at(self, status: RunStatus) -> None:
        run = status.run
        self._note(status)
        try:
            if run not in self._given_up and not status.state.is_terminal:
                await self._send_news(status)
            elif run in self._settled:
                await self._finish(status)
        except UnreachableError:
            return  # it is sent when the dispatcher answers again
        except ProblemError as error:
            if error.code in _REFUSED_FOR_GOOD:
                log.warning("the dispatcher does not store output of %s: %s", run, error, extra={"run_id": run})
                self._given_up.add(run)
            elif error.retry_after:
                await asyncio.sleep(min(error.retry_after, _PAUSE_SECONDS))
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("output", error, run=run)
            self._given_up.add(run)
        if run not in self._settled:
            return
        if asyncio.get_running_loop().time() > self._settled[run] and run not in self._given_up:
            log.warning("the rest of the output of %s could not be stored in time", run, extra={"run_id": run})
            self._given_up.add(run)
        if run in self._given_up:
            await self._let_go(run)

    def _note(self, status: RunStatus) -> None:
        for member in status.members:
            key = (status.run, member.role, member.index)
            end = self._runtime.output_end(*key)
            if end is not None:
                self._times.note(key, end)

    async def _let_go(self, run: str) -> None:
        self._drop(run)
        await self._forget(run)

    async def _send_news(self, status: RunStatus) -> None:
        now = asyncio.get_running_loop().time()
        unsized = 0
        progress = self._progress_of(status.run)
        for member in status.members:
            key = (status.run, member.role, member.index)
            stored, end = progress.stored.get(key, 0), self._runtime.output_end(*key)
            if stored >= self._limit // 2:
                continue
            if end is None:
                unsized += 1
                if unsized > _MOST_UNSIZED or now - progress.waiting_since.setdefault(key, now) < _UNSIZED_SECONDS:
                    continue
            elif end <= stored:
                progress.waiting_since.pop(key, None)
                continue
            elif end - stored < _ENOUGH and now - progress.waiting_since.setdefault(key, now) < _PATIENCE:
                continue
            progress.waiting_since.pop(key, None)
            await self._send_piece(key, self._limit // 2)

    async def _send_piece(self, key: Key, most: int) -> bool:
        """Send the next piece of a member's output, up to offset ``most``; return whether there is more."""
        start = await self._start_of(key)
        if start >= most:
            return False
        chunk, is_over = await read_chunk(self._runtime, *key, start, min(_PIECE, most - start))
        if chunk is None or not chunk.data or chunk.offset >= most:
            return False
        if chunk.offset > start and not is_over and self._runtime.output_end(*key) is None:
            return False  # a reader is ahead: what it has passed can be read again once the member has ended
        marks = self._times.between(key, chunk.offset, chunk.next_offset)
        await self._push(key, chunk.model_copy(update={"marks": marks, "lives": self._runtime.output_lives(*key)}))
        return not is_over or chunk.next_offset < most

    async def _start_of(self, key: Key) -> int:
        """Return up to where a member's output is stored; asked for where it is not known, as after a restart of this agent."""
        stored = self._progress_of(key[0]).stored
        if key not in stored:
            await self._push(key, OutputPiece(role=key[1], index=key[2], offset=0, data="", next_offset=0))
        return stored[key]

    async def _push(self, key: Key, piece: OutputPiece) -> None:
        loop = asyncio.get_running_loop()
        if (wait := self._next_at - loop.time()) > 0:
            await asyncio.sleep(wait)
        self._next_at = max(self._next_at, loop.time()) + len(piece.data) / _BYTES_PER_SECOND
        answer = await self._sender.store_output(key[0], OutputPush(session=self._session, pieces=(piece,)))
        stored = next((one.next_offset for one in answer.stored if (one.role, one.index) == key[1:]), None)
        if stored is None or (piece.data and stored <= piece.offset):
            raise ValueError(f"the dispatcher does not say that it has stored output of {key[1]}-{key[2]}")
        self._progress_of(key[0]).stored[key] = stored

    async def _finish(self, status: RunStatus) -> None:
        """Send what is left of an ended run's output, and let the runtime forget the run."""
        half = self._limit // 2
        sent = self._progress_of(status.run).stored
        for member in status.members:
            key = (status.run, member.role, member.index)
            end = self._runtime.output_end(*key)
            if end is None:
                await self._finish_unsized(key, half)
            elif end > TAIL_BYTES or key in sent:
                if end > self._limit:
                    await self._send_all(key, half)
                    sent[key] = max(await self._start_of(key), end - half)
                await self._send_all(key, end)
        self._given_up.discard(status.run)
        await self._let_go(status.run)

    async def _send_all(self, key: Key, most: int) -> None:
        while await self._send_piece(key, most):
            pass

    async def _finish_unsized(self, key: Key, half: int) -> None:
        """Send the rest of output whose end is found by reading it: the last half of the limit is held back until then."""
        await self._send_all(key, half)
        start = await self._start_of(key)
        held: deque[OutputPiece] = deque()
        size = 0
        while True:
            chunk, is_over = await read_chunk(self._runtime, *key, start, _PIECE)
            if chunk is None or not chunk.data:
                break
            start = chunk.next_offset
            held.append(chunk.model_copy(update={"lives": self._runtime.output_lives(*key)}))
            size += len(chunk.data)
            while size > half + _PIECE:
                size -= len(held.popleft().data)
            if is_over:
                break
        for piece in held:
            await self._push(key, piece)
