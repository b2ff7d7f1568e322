"""The agent's server for its members: a small HTTP API for those that run elements and those with files, and reports of elements.

``POST /v1/arrays/RUN`` with the array's token is a worker's call; see ``worker.py`` for its fields.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import orjson
from aiohttp import web
from pydantic import Field, StringConstraints, ValidationError

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.arrays import (
    MOST_ELEMENTS,
    ArrayState,
    ElementIndex,
    ElementResult,
    ElementsAnswer,
    ElementsPush,
    FailedElement,
    is_result,
)
from trainmaster.protocol.base import Lenient, bounded
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster_agent.arrays.distribution import LEASE_SECONDS, Distribution, EndedBatch, WorkerCall
from trainmaster_agent.arrays.members import WorkerProgram, of_processes, with_workers
from trainmaster_agent.containment import contain
from trainmaster_agent.files.members import has_files, in_processes
from trainmaster_agent.files.server import FileCalls, FileServer

log = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_CANCELS_SECONDS = 2.0
"""Seconds after which the dispatcher is called although nothing has ended, to learn what users have cancelled."""
_FORGET_SECONDS = 600.0
_MOST_BODY = 16 * 1024 * 1024
FilesWrapper = Callable[[StartRun, str, str], StartRun] | None
_UNAUTHORIZED, _NOT_FOUND, _BAD_REQUEST, _UNAVAILABLE = 401, 404, 400, 503


class ArrayCalls(Protocol):
    """The calls of the protocol that arrays need. Each raises ProblemError or UnreachableError."""

    async def array(self, run: str, session: str) -> ArrayState: ...

    async def report_elements(self, run: str, body: ElementsPush) -> ElementsAnswer: ...


WorkerSpans = Annotated[tuple[tuple[ElementIndex, ElementIndex], ...], bounded(100_000)]


class WorkerBatch(Lenient):
    """Results of a worker."""

    number: Annotated[int, Field(ge=1)]
    succeeded: WorkerSpans
    failed: Annotated[tuple[FailedElement, ...], bounded(100_000)]
    results: Annotated[tuple[tuple[ElementIndex, str], ...], bounded(100_000)] = ()


class WorkerRequest(Lenient):
    """The body of a worker's call."""

    member: Annotated[str, StringConstraints(max_length=64)]
    life: Annotated[str, StringConstraints(max_length=64)]
    call: Annotated[int, Field(ge=0)]
    agent: Annotated[str, StringConstraints(max_length=64)] = ""
    done: Annotated[tuple[WorkerBatch, ...], bounded(100_000)] = ()
    held: WorkerSpans = ()
    running: WorkerSpans = ()
    want: Annotated[int, Field(ge=0, le=MOST_ELEMENTS)] = 0


def read_request(body: bytes) -> WorkerCall:
    """Read a worker's call. Raises ValidationError."""
    given = WorkerRequest.model_validate_json(body)
    done = [
        EndedBatch(
            one.number, one.succeeded, one.failed, {element: text for element, text in one.results if is_result(text)}
        )
        for one in given.done
    ]
    return WorkerCall(given.member, given.life, given.call, given.agent, done, given.held, given.running, given.want)


@dataclass(slots=True)
class RunningArray:
    """A run of an array. ``heard_at``: when the dispatcher was last called, in seconds of the loop's clock."""

    token: str
    distribution: Distribution
    heard_at: float
    is_gone: bool = False

    def is_due(self, now: float) -> bool:
        """Return whether the dispatcher has to be called: with results or, while there are workers, for what was cancelled."""
        if self.is_gone or self.distribution.has_report():
            return not self.is_gone
        has_workers = now - self.distribution.called_at < LEASE_SECONDS
        return has_workers and now - self.heard_at >= _CANCELS_SECONDS


@dataclass(frozen=True, slots=True)
class ArrayListener:
    """Where workers find the agent. ``host``: None: all addresses of the machine.

    ``url``: without a path; with ``{port}`` for the port on which the agent listens.

    ``port_file``: keeps a port that the system has chosen, for the next agent.
    """

    host: str | None
    port: int
    url: str
    program: WorkerProgram
    files: FilesWrapper
    """Gives members the program for their files; None: the cluster takes no jobs with files."""
    port_file: Path | None = None


def listener_of_processes(state_dir: Path) -> ArrayListener:
    """Return where members that are processes of this machine find the agent whose records are in ``state_dir``."""
    return ArrayListener(
        "127.0.0.1", 0, "http://127.0.0.1:{port}", of_processes(), in_processes, state_dir / "arrays-port"
    )


class MemberCalls(ArrayCalls, FileCalls, Protocol):
    """The calls of the protocol that the server for members needs."""


class ArrayServer:
    """Serves the members of one agent session from ``start`` to ``close``: those that run elements of arrays, and those with files."""

    def __init__(self, listener: ArrayListener, calls: MemberCalls) -> None:
        self._files = FileServer(calls)
        self._listener = listener
        self._calls = calls
        self._session = ""
        self._runs: dict[str, RunningArray] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._runner: web.AppRunner | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._port = listener.port
        self._is_listening = False
        self._has_warned = False

    @property
    def is_listening(self) -> bool:
        """Return whether workers can call the agent."""
        return self._is_listening

    @property
    def takes_files(self) -> bool:
        """Return whether members can get files."""
        return self._is_listening and self._listener.files is not None

    @property
    def reads_entry_points(self) -> bool:
        """Return whether members can execute the entry points of their images for elements."""
        return self._is_listening and bool(self._listener.program.entry_point)

    def concerns(self, spec: Mapping[str, Any]) -> bool:
        """Return whether members of a run with this specification call the agent."""
        return is_array(spec) or has_files(spec)

    async def start(self, session: str) -> None:
        """Serve the workers of the runs of an agent's session: at once, or as soon as the port is free."""
        self._session = session
        application = web.Application(client_max_size=_MOST_BODY)
        application.router.add_post("/v1/arrays/{run}", self._answer)
        self._files.add_to(application, session)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await self._try_to_listen(self._runner)
        self._reporting = asyncio.create_task(self._report_for_ever(), name="arrays")

    async def _try_to_listen(self, runner: web.AppRunner) -> None:
        try:
            await self._listen(runner)
            self._is_listening = True
        except OSError as error:
            if not self._has_warned:
                log.warning("arrays cannot run here until port %d is free: %s", self._listener.port, error)
            self._has_warned = True

    async def _listen(self, runner: web.AppRunner) -> None:
        file, port = self._listener.port_file, self._listener.port
        if file is not None and not port:
            with suppress(OSError, ValueError):
                port = int(file.read_text())
        try:
            await web.TCPSite(runner, self._listener.host, port).start()
        except OSError:
            if port == self._listener.port:
                raise
            log.warning("port %d, on which workers of arrays look for the agent, is taken; using another one", port)
            await web.TCPSite(runner, self._listener.host, 0).start()
        self._port = int(runner.addresses[0][1])
        if file is not None:
            file.write_text(f"{self._port}\n")

    async def close(self) -> None:
        """Let go; workers go on, and call again."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def prepared(self, run: StartRun) -> StartRun:
        """Return a run as the runtime starts it: members of an array are workers, those with files get the program for them.

        Raises ProblemError and UnreachableError.
        """
        base = self._listener.url.format(port=self._port)
        if is_array(run.spec):
            state = await self._calls.array(run.run, self._session)
            run = with_workers(run, f"{base}/v1/arrays/{run.run}", state.token, self._listener.program)
        if has_files(run.spec) and self._listener.files is not None:
            files = await self._files.files_of(run.run, fresh=True)
            run = self._listener.files(run, f"{base}/v1/files/{run.run}", files.token)
        return run

    # Workers

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info["run"]
        try:
            array = await self._array(name)
        except ProblemError as error:
            status = _NOT_FOUND if error.code is Code.NOT_FOUND else _UNAVAILABLE
            return web.json_response({"error": error.detail}, status=status)
        except UnreachableError as error:
            return web.json_response({"error": str(error)}, status=_UNAVAILABLE)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), array.token.encode()):
            return web.json_response({"error": "this is not the token of the array"}, status=_UNAUTHORIZED)
        if array.is_gone:
            return web.json_response({"error": f"run {name} has ended"}, status=_NOT_FOUND)
        try:
            call = read_request(await request.read())
        except ValidationError as error:
            return web.json_response({"error": str(error)}, status=_BAD_REQUEST)
        answer = array.distribution.call(call, asyncio.get_running_loop().time())
        return web.Response(body=orjson.dumps(answer.to_wire()), content_type="application/json")

    async def _array(self, run: str) -> RunningArray:
        """Return a run's array; of one that is not known here, ask the dispatcher. Raises ProblemError and UnreachableError."""
        found = self._runs.get(run)
        if found is not None:
            return found
        async with self._loading.setdefault(run, asyncio.Lock()):
            if (found := self._runs.get(run)) is not None:
                return found
            state = await self._calls.array(run, self._session)
            now = asyncio.get_running_loop().time()
            distribution = Distribution(state.count, state.ended, state.retries, now, self._session, state.max_running)
            array = RunningArray(state.token, distribution, now)
            if state.over:
                array.distribution.set_over()
            self._runs[run] = array
        self._loading.pop(run, None)
        return array

    # Reports

    async def _report_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if not self._is_listening and self._runner is not None:
                await self._try_to_listen(self._runner)
            now = asyncio.get_running_loop().time()
            due = {run: array for run, array in self._runs.items() if array.is_due(now)}
            await asyncio.gather(*(self._report(run, array) for run, array in due.items()))
            for run, array in list(self._runs.items()):
                if now - array.distribution.called_at > _FORGET_SECONDS:
                    del self._runs[run]

    async def _report(self, run: str, array: RunningArray) -> None:
        report = array.distribution.report()
        body = ElementsPush(
            session=self._session,
            running=report.running,
            succeeded=report.succeeded,
            failed=report.failed,
            results=tuple(ElementResult(element=element, value=value) for element, value in report.results),
        )
        try:
            answer = await self._calls.report_elements(run, body)
            array.heard_at = asyncio.get_running_loop().time()
            array.distribution.reported(report)
            array.distribution.cancel(answer.cancelled)
            if answer.over:
                array.distribution.set_over()
        except UnreachableError:
            pass  # the loop of the syncs says so
        except ProblemError as error:
            if error.code is Code.NOT_FOUND:
                array.is_gone = True
            elif error.code is not Code.SESSION_SUPERSEDED:
                log.warning("the dispatcher did not take the report of elements of %s: %s", run, error)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("arrays", error, run=run)


def is_array(spec: Mapping[str, Any]) -> bool:
    """Return whether the members of a run with this specification run elements of an array."""
    return spec.get("array") is not None
