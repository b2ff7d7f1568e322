"""Streams to members, which users have opened: connected to the dispatcher, one connection each, and copied both ways.

A slow side makes the other one of its own stream wait, and no other stream.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from trainmaster.bulk_turns import BulkTurns
from trainmaster.protocol.errors import ProblemError, UnreachableError
from trainmaster.protocol.member_streams import MemberStreamOpening, OpenMemberStream
from trainmaster_agent.containment import contain
from trainmaster_agent.runtime.lasting_command import LASTING_SECONDS
from trainmaster_agent.runtime.port import (
    LastingStream,
    MemberStream,
    OutputStream,
    Runtime,
    StreamCutError,
    StreamRefusedError,
)

log = logging.getLogger(__name__)
_turns = BulkTurns()

_MOST_STREAMS = 1000
_OPEN_SECONDS = 20.0
_INTERNAL = 500
_MOST_LOGGED = 200
"""The most characters of a command in the log."""


class StreamLine(Protocol):
    """A connection to the dispatcher for one stream."""

    @property
    def was_cut(self) -> bool:
        """Return whether it has ended though nobody has closed it, or because another connection on the way was lost."""
        ...

    async def receive(self) -> bytes | None:
        """Return the next frame; None after the last one."""
        ...

    async def send(self, frame: bytes | str) -> None:
        """Send a frame, or a text; wait while the dispatcher cannot take it. What nobody receives any more is dropped."""
        ...

    async def close(self, why: str = "") -> None:
        """Close once everything is read; ``why``: the failure, if it is one."""
        ...


class Connector(Protocol):
    async def connect(self, stream: str, session: str) -> StreamLine:
        """Connect to a stream. Raises ProblemError, also where nobody waits for it any more, and UnreachableError."""
        ...


class MemberStreams:
    """The streams to members of one agent session."""

    def __init__(self, connector: Connector, runtime: Runtime, session: str) -> None:
        self._connector = connector
        self._runtime = runtime
        self._session = session
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, order: OpenMemberStream) -> None:
        """Open a stream; one that is open already is left alone."""
        if order.stream in self._tasks:
            return
        if len(self._tasks) >= _MOST_STREAMS:
            log.warning(
                "%d streams to members are open, as many as there may be; another one is not opened", _MOST_STREAMS
            )
            return
        task = asyncio.create_task(self._serve(order), name=f"member-stream-{order.stream}")
        self._tasks[order.stream] = task
        task.add_done_callback(lambda _: self._tasks.pop(order.stream, None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, order: OpenMemberStream) -> None:
        try:
            line = await self._connector.connect(order.stream, self._session)
        except (ProblemError, UnreachableError) as error:
            log.info("the stream %s was not connected: %s", order.stream, error, extra={"run_id": order.run})
            return
        why = ""
        try:
            opened = await self._opened(order)
            if isinstance(opened, MemberStreamOpening):
                await line.send(opened.model_dump_json(by_alias=True))
                return
            _log_use(order)
            try:
                await line.send(_opening_of(opened).model_dump_json(by_alias=True))
                await copy_both(opened, line)
            finally:
                await _let_go(opened, line)
        except StreamCutError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            why = f"an error inside the agent: {contain('member-stream', error, run=order.run)}"
        finally:
            await line.close(why)

    async def _opened(self, order: OpenMemberStream) -> MemberStream | MemberStreamOpening:
        """Return the stream, or why it is not opened."""
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                return await self._runtime.open_stream(order)
        except StreamRefusedError as error:
            return MemberStreamOpening(status=error.status, message=str(error))
        except TimeoutError:
            return MemberStreamOpening(message=f"the cluster did not open the stream within {_OPEN_SECONDS:.0f} s")
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            words = contain("member-stream", error, run=order.run)
            return MemberStreamOpening(status=_INTERNAL, message=f"the agent cannot open the stream: {words}")


def _opening_of(opened: MemberStream) -> MemberStreamOpening:
    return MemberStreamOpening(
        protocol=opened.protocol,
        status=0,
        lasting=LASTING_SECONDS if isinstance(opened, LastingStream) else 0.0,
        offset=opened.offset if isinstance(opened, OutputStream) else None,
    )


async def _let_go(opened: MemberStream, line: StreamLine) -> None:
    """End a stream, but not a lasting command whose user was cut off, or that is left to the agent's successor."""
    task = asyncio.current_task()
    is_stopping = task is not None and task.cancelling() > 0
    if isinstance(opened, LastingStream) and (line.was_cut or is_stopping):
        await opened.leave()
    else:
        await opened.close()


def _log_use(order: OpenMemberStream) -> None:
    """Write down who uses a stream, for the owner of the cluster."""
    options = order.options
    what = f"ports {', '.join(map(str, options.ports))}" if options.ports else " ".join(options.command)[:_MOST_LOGGED]
    text = f"{options.user or 'somebody'} uses {options.kind.value} of {order.run}, {order.role}-{order.index}"
    log.info("%s%s", text, f": {what}" if what else "", extra={"run_id": order.run})


async def copy_both(member: MemberStream, line: StreamLine) -> None:
    """Copy frames both ways until the member has sent its last one, or nobody is connected any more."""
    sending = asyncio.create_task(_copy(member.receive, line.send))
    receiving = asyncio.create_task(_copy(line.receive, member.send))
    try:
        await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, receiving):
            task.cancel()
        outcomes = await asyncio.gather(sending, receiving, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _copy(receive: Callable[[], Awaitable[bytes | None]], send: Callable[[bytes], Awaitable[None]]) -> None:
    while (frame := await receive()) is not None:
        await _turns.take(len(frame))
        await send(frame)
