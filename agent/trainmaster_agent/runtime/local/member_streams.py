"""Streams to members that are processes: commands run beside them, with or without a terminal, and their ports."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import orjson

from trainmaster.protocol.member_streams import (
    COMMANDS,
    PORTS,
    Channel,
    MemberStreamOptions,
    OpenMemberStream,
    end_of_command,
    frame,
)
from trainmaster_agent.runtime.local import process_table
from trainmaster_agent.runtime.local.member_command import CommandOrders
from trainmaster_agent.runtime.port import MemberStream, StreamRefusedError

_PIECE = 126_976
"""The most bytes of a frame. What each frame costs matters more than its length, up to 128 KiB: memory for larger ones comes from the
kernel, and goes back, each time.
"""
_MOST_SHOWN = 65_536
"""The most bytes that are read from a terminal at once, which has 4,096 for a reader as a rule."""
_MOST_FRAMES = 2
"""The most frames that wait for their reader; then the member waits."""
_REST_SECONDS = 1.0
"""Seconds after the end of a command for which its output is read on, if processes that it has started hold it open."""
_HANG_UP_SECONDS = 5.0
"""Seconds between SIGHUP and SIGKILL for a command that nobody is connected to any more."""
_BAD_REQUEST, _BAD_GATEWAY = 400, 502
_LARGEST_SIZE = 65_535
_END_OF_INPUT = b"\x04"


class _Source(Protocol):
    async def read(self, size: int, /) -> bytes: ...


class _Frames:
    """Frames from a member, in order. A full queue makes their sources wait."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_FRAMES)
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def put(self, data: bytes | None) -> None:
        await self._queue.put(data)

    async def next(self) -> bytes | None:
        return await self._queue.get()

    async def copy(self, source: _Source, channel: int) -> None:
        """Pass on what is read until its end."""
        with contextlib.suppress(OSError):
            while data := await source.read(_PIECE):
                await self.put(frame(channel, data))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Terminal:
    """The agent's side of a terminal. Read and written as a file: an event loop's own pipes would read also to find its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    async def read(self, size: int) -> bytes:
        """Return what the terminal shows; nothing once the last process that has it is gone."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self._descriptor, min(size, _MOST_SHOWN))
            except BlockingIOError:
                await self._ready(loop.add_reader, loop.remove_reader)
            except OSError:
                return b""

    async def write(self, data: bytes) -> None:
        """Type ``data`` in."""
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                await self._ready(loop.add_writer, loop.remove_writer)

    async def end(self) -> None:
        """Type the character that ends input."""
        await self.write(_END_OF_INPUT)

    def resize(self, data: bytes) -> None:
        """Set the size; one that cannot be read is ignored."""
        with contextlib.suppress(orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OSError):
            wanted = orjson.loads(data)
            rows, columns = (min(_LARGEST_SIZE, max(0, int(wanted[name]))) for name in ("Height", "Width"))
            fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        os.close(self._descriptor)

    async def _ready(self, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        add(self._descriptor, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(self._descriptor)


class _Pipe:
    """The input of a command without a terminal."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.close()

    def close(self) -> None:
        self._writer.close()


class CommandStream:
    """A command run beside a member."""

    def __init__(self, protocol: str, process: asyncio.subprocess.Process, terminal: int | None) -> None:
        self.protocol = protocol
        self._process = process
        self._terminal = None if terminal is None else _Terminal(terminal)
        self._input: _Terminal | _Pipe | None = self._terminal
        if process.stdin is not None:
            self._input = _Pipe(process.stdin)
        self._frames = _Frames()
        sources: list[tuple[_Source, int]] = [] if self._terminal is None else [(self._terminal, Channel.OUTPUT)]
        for stream, channel in ((process.stdout, Channel.OUTPUT), (process.stderr, Channel.ERROR_OUTPUT)):
            if stream is not None:
                sources.append((stream, channel))
        copies = [self._frames.keep(self._frames.copy(source, channel)) for source, channel in sources]
        self._frames.keep(self._report_end(copies))

    async def _report_end(self, copies: list[asyncio.Task[None]]) -> None:
        code = await self._process.wait()
        if copies:
            await asyncio.wait(copies, timeout=_REST_SECONDS)
        status = end_of_command(128 - code if code < 0 else code)
        await self._frames.put(frame(Channel.STATUS, orjson.dumps(status)))
        await self._frames.put(None)

    async def receive(self) -> bytes | None:
        return await self._frames.next()

    async def send(self, frame: bytes) -> None:
        channel, data = frame[0] if frame else None, frame[1:]
        with contextlib.suppress(OSError):  # it has ended, or reads no more
            if channel == Channel.INPUT and self._input is not None:
                await self._input.write(data)
            elif channel == Channel.SIZE and self._terminal is not None:
                self._terminal.resize(data)
            elif channel == Channel.CLOSE and data[:1] == bytes((Channel.INPUT,)) and self._input is not None:
                await self._input.end()
                self._input = None if self._terminal is None else self._input

    async def close(self) -> None:
        """End the command and all of its session's processes: SIGHUP, as when a terminal is closed, then SIGKILL."""
        await self._frames.close()
        if self._process.returncode is None:
            process_table.send_group(self._process.pid, signal.SIGHUP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HANG_UP_SECONDS):
                    await self._process.wait()
        process_table.send_group(self._process.pid, signal.SIGKILL)
        # Pipes that nobody reads to their end stay open else, and with them the process's transport.
        self._process._transport.close()  # type: ignore[attr-defined]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_SECONDS):
                await self._process.wait()
        if self._input is not None:
            self._input.close()
            self._input = None


class PortStream:
    """A connection to a port of a member, in the frames of ``v4.channel.k8s.io``."""

    protocol = PORTS[0]

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._frames = _Frames()
        self._frames.keep(self._copy(port, reader))

    async def _copy(self, port: int, reader: asyncio.StreamReader) -> None:
        for channel in (0, 1):
            await self._frames.put(frame(channel, struct.pack("<H", port)))
        await self._frames.copy(reader, 0)
        await self._frames.put(None)

    async def receive(self) -> bytes | None:
        return await self._frames.next()

    async def send(self, frame: bytes) -> None:
        if frame[:1] == b"\0":
            with contextlib.suppress(OSError):
                self._writer.write(frame[1:])
                await self._writer.drain()

    async def close(self) -> None:
        await self._frames.close()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class OpenStreams:
    """The open streams of a runtime. Those of members that have ended are closed."""

    def __init__(self) -> None:
        self._streams: dict[MemberStream, tuple[str, str, int]] = {}

    def add(self, order: OpenMemberStream, stream: MemberStream) -> None:
        self._streams[stream] = (order.run, order.role, order.index)

    async def close_unless(self, is_running: Callable[[str, str, int], bool]) -> None:
        """Close the streams of members that do not run."""
        for stream, member in tuple(self._streams.items()):
            if not is_running(*member):
                del self._streams[stream]
                await stream.close()


async def run_command(orders: CommandOrders, options: MemberStreamOptions) -> CommandStream:
    """Run a command. Raises StreamRefusedError."""
    protocols = [one for one in options.protocols if one in COMMANDS] or list(COMMANDS)
    orders_pipe, writes = os.pipe()
    ours, theirs = pty.openpty() if options.tty else (None, None)
    nothing = asyncio.subprocess.DEVNULL
    pipe = asyncio.subprocess.PIPE
    try:
        if theirs is not None and orders["user"] is not None:
            os.fchown(theirs, *orders["user"])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trainmaster_agent.runtime.local.member_command",
            str(orders_pipe),
            stdin=theirs if theirs is not None else pipe if options.stdin else nothing,
            stdout=theirs if theirs is not None else pipe if options.stdout else nothing,
            stderr=theirs if theirs is not None else pipe if options.stderr else nothing,
            pass_fds=(orders_pipe,),
            limit=_PIECE,
        )
        with os.fdopen(writes, "wb") as file:
            writes = -1
            file.write(json.dumps(orders).encode())
    except OSError as error:
        if ours is not None:
            os.close(ours)
        raise StreamRefusedError(_BAD_GATEWAY, f"the command could not be started: {error.strerror}") from error
    finally:
        for one in (orders_pipe, writes, theirs):
            if one is not None and one >= 0:
                os.close(one)
    return CommandStream(protocols[0], process, ours)


async def connect_to_port(options: MemberStreamOptions) -> MemberStream:
    """Connect to a port of a member, which is one of this machine. Raises StreamRefusedError."""
    if PORTS[0] not in options.protocols or len(options.ports) != 1:
        message = (
            f"this cluster's members are processes: their ports are reached one at a time, by the sub-protocol {PORTS[0]},"
            " as 'trainmaster port-forward' does"
        )
        raise StreamRefusedError(_BAD_REQUEST, message)
    port = options.ports[0]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_PIECE)
    except OSError as error:
        message = f"nothing answers at port {port} of the member: {error.strerror or error}"
        raise StreamRefusedError(_BAD_GATEWAY, message) from error
    return PortStream(port, reader, writer)
