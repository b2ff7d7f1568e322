"""Parsing of submissions: small bodies in this process, large ones in parser processes. It never blocks this process for long.

Checking ten thousand specifications holds the interpreter for a second or more; an agent's sync must not wait for that. A parser
process that needs more than its time or its memory for one body is killed and replaced, as is one whose caller hung up.
"""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.services.submission_parsing import Most, PreparedSubmission, check_deadlines, prepare

_MOST_WAITING = 8
_MOST_WAITING_OF_ONE = 6
"""The most bodies of one API key that may wait: other keys always find a place."""
_MOST_WORKERS = 2
"""The most processes for large bodies, and never more than cores: one more is started when all others are at work."""
_PR_SET_PDEATHSIG = 1
_OUT_OF_MEMORY = 70
"""The exit code of a parser process that has reached its bound."""
_SIGNS_OF_IT = (_OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV)
"""Exit codes of such a process: compiled libraries abort, or use what they did not get."""

_IDLE_SECONDS = 0.5
"""Time without work after which a parser process returns free memory."""

Refusal = tuple[Code, str, tuple[Mistake, ...]]
Clusters = tuple[Cluster, ...]
Prepare = Callable[[bytes, Most], PreparedSubmission]
Done = TypeVar("Done")


def _prepare_or_refuse(do: Prepare, body: bytes, most: Most) -> PreparedSubmission | Refusal:
    """Call ``do``; return a refusal as a value, as exceptions with arguments of their own do not cross processes well."""
    try:
        return do(body, most)
    except ProblemError as error:
        return error.code, error.detail, error.mistakes


def _bound_memory(more: int) -> None:
    """Let this process take at most ``more`` bytes of address space beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    # Nobody needs the memory of a process that aborts for lack of it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(connection: Connection, do: Prepare, most: Most, memory: int) -> None:
    """Check bodies one after the other, until the other end is closed. ``memory``: see ``Parser``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An api that is killed cannot end its worker, which would wait for work for ever.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if memory:
        _bound_memory(memory)
    try:
        while True:
            if not connection.poll(_IDLE_SECONDS):
                _release_memory()
            now = replace(most, clusters=connection.recv())
            connection.send(_prepare_or_refuse(do, connection.recv_bytes(), now))
    except (EOFError, OSError):
        return
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)


def _release_memory() -> None:
    """Return free memory of the heap to the system: a large body leaves much of it."""
    with suppress(OSError, AttributeError):  # another C library than glibc does not have it
        ctypes.CDLL(None).malloc_trim(0)


class _Worker:
    """A parser process and the connection to it."""

    def __init__(self, context: SpawnContext, do: Prepare, most: Most, memory: int) -> None:
        self._connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, do, most, memory), daemon=True)
        self.process.start()
        other.close()

    def check(self, body: bytes, clusters: Clusters) -> PreparedSubmission | Refusal:
        """Check a body in the process; block until it has answered. Raises EOFError or OSError when the process ends before."""
        self._connection.send(clusters)
        self._connection.send_bytes(body)
        result: PreparedSubmission | Refusal = self._connection.recv()
        return result

    def kill(self) -> None:
        self.process.kill()

    def reap(self) -> None:
        """Release the resources of a killed process. Blocks until it has ended."""
        self.process.join()
        self._connection.close()


class Parser:
    """A few parser processes for large bodies, started on demand and restarted if one ends.

    ``seconds``: the time-out of one body, and that of each of its MiB. ``memory``: the most bytes that a process may take beyond
    what it has when it starts; 0: no bound.
    """

    def __init__(
        self, inline_bytes: int, most: Most, seconds: float = 10.0, do: Prepare = prepare, memory: int = 0
    ) -> None:
        self._inline_bytes = inline_bytes
        self._most = most
        self._memory = memory
        self._seconds = seconds
        self._do = do
        self._context = multiprocessing.get_context("spawn")
        self._places = min(_MOST_WORKERS, os.cpu_count() or 1)
        """Processes that may still begin to work, beside those at work."""
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._queue: list[tuple[int, asyncio.Future[None]]] = []
        """Callers that wait for a process, in the order of arrival."""
        self._at_work: Counter[int] = Counter()
        """Bodies at work by caller."""
        self._waiting: Counter[int] = Counter()
        """Bodies that wait or are at work by caller."""

    def close(self) -> None:
        for worker in (*self._idle, *self._busy):
            worker.kill()

    async def prepare(
        self, body: bytes, caller: int = 0, request: Request | None = None, clusters: Clusters = ()
    ) -> PreparedSubmission:
        """Check a submission of ``caller``, an API key; stop when the caller of ``request`` hangs up.

        ``clusters``: those that are known now, with what they refuse.

        Raises ProblemError, TOO_BUSY when too many large bodies wait already, and ClientDisconnect.
        """
        if len(body) <= self._inline_bytes:
            prepared = self._do(body, replace(self._most, clusters=clusters))
        else:
            checked = self._in_turn(body, caller, clusters)
            result = await (checked if request is None else while_connected(request, checked))
            if isinstance(result, tuple):
                code, detail, mistakes = result
                raise ProblemError(code, detail, mistakes=mistakes)
            prepared = result
        check_deadlines(prepared, time.time())
        return prepared

    async def _in_turn(self, body: bytes, caller: int, clusters: Clusters) -> PreparedSubmission | Refusal:
        if self._waiting.total() >= _MOST_WAITING or self._waiting[caller] >= _MOST_WAITING_OF_ONE:
            raise ProblemError(Code.TOO_BUSY, "several large submissions are being read already", retry_after=1.0)
        with _counted(self._waiting, caller):
            await self._take_place(caller)
            try:
                with _counted(self._at_work, caller):
                    return await self._in_worker(body, clusters)
            finally:
                self._places += 1
                self._call_next()

    async def _take_place(self, caller: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((caller, turn))
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._places += 1
                self._call_next()
            else:
                self._queue = [one for one in self._queue if one[1] is not turn]
            raise

    def _call_next(self) -> None:
        """Assign free processes: first to the caller with the fewest bodies at work."""
        while self._places and self._queue:
            first = min(self._queue, key=lambda one: self._at_work[one[0]])
            self._queue.remove(first)
            if not first[1].done():
                self._places -= 1
                first[1].set_result(None)

    async def _in_worker(self, body: bytes, clusters: Clusters) -> PreparedSubmission | Refusal:
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._do, self._most, self._memory)
        self._busy.add(worker)
        checking = asyncio.get_running_loop().run_in_executor(None, worker.check, body, clusters)
        is_well = False
        died: Exception
        try:
            async with asyncio.timeout(self._seconds * (1 + len(body) / 2**20)):
                result = await asyncio.shield(checking)
            is_well = True
            return result
        except TimeoutError as error:
            metrics.parsers_killed.inc()
            message = "the submission could not be checked in time; try again later, or with fewer jobs in one call"
            raise ProblemError(Code.TOO_BUSY, message, retry_after=10.0) from error
        except (EOFError, OSError) as error:
            died = error
        finally:
            self._busy.discard(worker)
            if is_well:
                self._idle.append(worker)
            else:
                worker.kill()
                await asyncio.shield(_reap(worker, checking))
        if self._memory and worker.process.exitcode in _SIGNS_OF_IT:
            metrics.parsers_killed.inc()
            message = (
                "checking the submission takes more memory than there is for one call; send fewer jobs in one call"
            )
            raise ProblemError(Code.BODY_TOO_LARGE, message) from died
        message = "the process that reads large bodies died; try again"
        raise ProblemError(Code.TOO_BUSY, message, retry_after=1.0) from died


async def _reap(worker: _Worker, checking: "asyncio.Future[PreparedSubmission | Refusal]") -> None:
    await asyncio.gather(checking, return_exceptions=True)  # its thread ends with the process
    await asyncio.to_thread(worker.reap)


@contextmanager
def _counted(counter: Counter[int], key: int) -> Iterator[None]:
    """Count one more of this key while the block runs."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


async def while_connected(request: Request, work: Coroutine[Any, Any, Done]) -> Done:
    """Do work for a request whose body was read; cancel the work when the caller hangs up, and raise ClientDisconnect."""
    task = asyncio.create_task(work)
    gone: asyncio.Task[Any] = asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
