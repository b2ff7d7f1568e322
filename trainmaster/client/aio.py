"""The calls of the agent protocol, asynchronous. No retries: the agent's loop decides how to handle a failure."""

from typing import TYPE_CHECKING, Self

import httpx

from trainmaster.client import calls, core
from trainmaster.client.async_transport import AsyncTransport
from trainmaster.protocol.agent import DesiredAnswer, OutputAnswer, OutputPush, StreamPush, SyncAnswer, SyncRequest
from trainmaster.protocol.arrays import ArrayState, ElementsAnswer, ElementsPush
from trainmaster.protocol.files import (
    FilesCall,
    FilesProblem,
    OutputFilesAnswer,
    OutputFilesSpec,
    RunFiles,
    UploadedPart,
)
from trainmaster.protocol.member_use import UsePush

if TYPE_CHECKING:
    from trainmaster.client.web_sockets import WebSocketLine

_ANSWER_SECONDS = 10.0
_BEYOND_WAIT_SECONDS = 5.0
_PART_SECONDS, _VERIFY_SECONDS = 60.0, 900.0
"""Seconds for a part of a file, and for the dispatcher to verify a whole one."""


class AgentClient:
    """The agent's side of the protocol. Each call raises ProblemError or UnreachableError."""

    def __init__(self, url: str, key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url, self._key = url, key
        self._transport = AsyncTransport(url, key, transport=transport)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Report the agent's state; renew the session lease."""
        return core.read_model(await self._transport.send(calls.agent_sync(request), _ANSWER_SECONDS), SyncAnswer)

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer:
        """Return the changes after version ``after``; waits for one at most ``wait`` seconds."""
        request = calls.agent_desired(session, after, wait)
        return core.read_model(await self._transport.send(request, wait + _BEYOND_WAIT_SECONDS), DesiredAnswer)

    async def push(self, stream: str, body: StreamPush) -> None:
        """Push output for a follower, or the tail that is stored with a run."""
        core.check(await self._transport.send(calls.agent_push(stream, body), _ANSWER_SECONDS))

    async def store_output(self, run: str, body: OutputPush) -> OutputAnswer:
        """Send output of a run's members to be stored; return up to where it is."""
        return core.read_model(await self._transport.send(calls.agent_output(run, body), _ANSWER_SECONDS), OutputAnswer)

    async def report_use(self, body: UsePush) -> None:
        """Report what the members of running runs use."""
        core.check(await self._transport.send(calls.agent_use(body), _ANSWER_SECONDS))

    async def array(self, run: str, session: str) -> ArrayState:
        """Return what is to be known to run the elements of a live run's array."""
        return core.read_model(await self._transport.send(calls.agent_array(run, session), _ANSWER_SECONDS), ArrayState)

    async def report_elements(self, run: str, body: ElementsPush) -> ElementsAnswer:
        """Report elements of a run's array that have ended."""
        answer = await self._transport.send(calls.agent_elements(run, body), _ANSWER_SECONDS)
        return core.read_model(answer, ElementsAnswer)

    async def files(self, run: str, session: str) -> RunFiles:
        """Return the inputs and outputs of a live run."""
        return core.read_model(await self._transport.send(calls.agent_files(run, session), _ANSWER_SECONDS), RunFiles)

    async def read_input(self, run: str, session: str, number: int, offset: int, limit: int) -> bytes:
        """Return a part of an input; nothing behind its end."""
        request = calls.agent_read_input(run, session, number, offset, limit)
        return core.read_bytes(await self._transport.send(request, _PART_SECONDS))

    async def begin_output(self, run: str, body: OutputFilesSpec) -> OutputFilesAnswer:
        """Begin to store an output that a member has packed."""
        answer = await self._transport.send(calls.agent_begin_output(run, body), _ANSWER_SECONDS)
        return core.read_model(answer, OutputFilesAnswer)

    async def write_output(self, run: str, session: str, upload: str, offset: int, data: bytes) -> UploadedPart:
        """Write a part of an output."""
        request = calls.agent_write_output(run, session, upload, offset, data)
        return core.read_model(await self._transport.send(request, _PART_SECONDS), UploadedPart)

    async def finish_output(self, run: str, upload: str, body: FilesCall) -> None:
        """Let the dispatcher verify an output and store it as an artifact of the run."""
        core.check(await self._transport.send(calls.agent_finish_output(run, upload, body), _VERIFY_SECONDS))

    async def files_problem(self, run: str, body: FilesProblem) -> None:
        """Say why files of a run were not fetched or stored."""
        core.check(await self._transport.send(calls.agent_files_problem(run, body), _ANSWER_SECONDS))

    async def connect(self, stream: str, session: str) -> "WebSocketLine":
        """Connect to a stream to a member that a user has opened."""
        from trainmaster.client.web_sockets import WebSocketLine  # most agents never need it

        return await WebSocketLine.open(self._url, self._key, f"/agent/v1/member-streams/{stream}?session={session}")

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
