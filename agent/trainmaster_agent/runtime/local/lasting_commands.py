"""Lasting commands beside members: each is held by a process of its own, which outlives the connection, and the agent too.

The holder listens at a socket in the folder of the run. What is sent there, either way, is the length of a frame in four bytes and
the frame; a length of 0 ends: from the agent the command, from the holder the frames. First comes from the agent, in eight bytes, the
number of frames that the user has received.
"""

import asyncio
import contextlib
import json
import os
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from trainmaster.protocol.member_streams import COMMANDS, MemberStreamOptions
from trainmaster_agent.runtime.lasting_command import CommandReader, LastingCommand
from trainmaster_agent.runtime.local.member_command import CommandOrders
from trainmaster_agent.runtime.local.member_streams import run_command
from trainmaster_agent.runtime.port import StreamCutError, StreamRefusedError

_NOT_FOUND, _BAD_GATEWAY = 404, 502
_LENGTH, _RECEIVED = struct.Struct(">I"), struct.Struct(">Q")
_LOOK_SECONDS = 1.0
_MOST_DESCRIPTORS = 4096
"""Above every file that is open when a holder starts."""


class HeldCommand:
    """A connection of the agent to the holder of a command."""

    def __init__(self, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.protocol = protocol
        self._reader = reader
        self._writer = writer
        self._is_closed = False

    async def receive(self) -> bytes | None:
        """Return the next frame; None after the last one. Raises StreamCutError."""
        try:
            frame = await _read(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if self._is_closed:
                return None
            raise StreamCutError("the process that holds the command was killed, and the command with it") from error
        return frame or None

    async def send(self, frame: bytes) -> None:
        if frame:
            with contextlib.suppress(ConnectionError):
                _write(self._writer, frame)
                await self._writer.drain()

    async def close(self) -> None:
        """End the command."""
        if not self._is_closed:
            with contextlib.suppress(ConnectionError):
                _write(self._writer, b"")
            await self.leave()

    async def leave(self) -> None:
        """Let go, so that the command can be connected to again."""
        self._is_closed = True
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def start_command(folder: Path, orders: CommandOrders, options: MemberStreamOptions) -> HeldCommand:
    """Start a command and its holder. Raises StreamRefusedError."""
    await asyncio.to_thread(folder.mkdir, mode=0o700, exist_ok=True)
    words = {"folder": str(folder), "orders": orders, "options": options.model_dump(mode="json")}
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    answer, _ = await holder.communicate(json.dumps(words).encode())
    if answer.strip() != b"ready":
        raise StreamRefusedError(_BAD_GATEWAY, answer.decode(errors="replace").strip() or "the command was not started")
    return await connect(folder, options)


async def connect(folder: Path, options: MemberStreamOptions) -> HeldCommand:
    """Connect to the holder of a command. Raises StreamRefusedError where the command is over."""
    try:
        async with _short_path(folder, options.lasting) as path:
            reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise StreamRefusedError(_NOT_FOUND, "this command has ended") from error
    writer.write(_RECEIVED.pack(options.received or 0))
    return HeldCommand(_protocol_of(options), reader, writer)


def _protocol_of(options: MemberStreamOptions) -> str:
    return next((one for one in options.protocols if one in COMMANDS), COMMANDS[0])


@asynccontextmanager
async def _short_path(folder: Path, name: str) -> AsyncIterator[str]:
    """Yield a path of a socket that is never too long for one, whatever the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame, empty at the end. Raises IncompleteReadError where the peer is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_LENGTH.pack(len(frame)) + frame)


# -- the holder


async def _serve(command: LastingCommand, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of an agent."""
    connected = None
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        (received,) = _RECEIVED.unpack(await reader.readexactly(_RECEIVED.size))
        connected = command.connect(received)
        sending = asyncio.create_task(_send(connected, writer))
        try:
            while frame := await _read(reader):
                await connected.send(frame)
            await connected.close()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    if connected is not None:
        await connected.leave()
    writer.close()


async def _send(connected: CommandReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, StreamCutError):
        while (frame := await connected.receive()) is not None:
            _write(writer, frame)
            await writer.drain()
        _write(writer, b"")
        await writer.drain()


async def _hold(folder: Path, orders: CommandOrders, options: MemberStreamOptions) -> None:
    """Run a command and serve its connections until it is over, or the folder of its run is gone."""
    stream = await run_command(CommandOrders({**orders, "parent": os.getpid()}), options)
    ended = asyncio.Event()
    command = LastingCommand(stream, ended.set)
    socket = folder / options.lasting
    async with _short_path(folder, options.lasting) as path:
        server = await asyncio.start_unix_server(lambda reader, writer: _serve(command, reader, writer), path)
    await asyncio.to_thread(socket.chmod, 0o600)
    _say("ready")
    async with server:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await ended.wait()
            if not ended.is_set() and not socket.exists():
                await command.end()
    socket.unlink(missing_ok=True)


def _say(answer: str) -> None:
    """Answer the agent, which waits for the end of the answer."""
    sys.stdout.write(answer)
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def main() -> None:
    """Read the orders from standard input, say ``ready`` or why not, and hold the command."""
    words = json.load(sys.stdin)
    # uvloop leaves copies of its ends of the pipes: while one is open, the agent waits for the end of the answer.
    os.closerange(3, _MOST_DESCRIPTORS)
    if os.fork():
        os._exit(0)  # an agent that stops kills its children
    options = MemberStreamOptions.model_validate(words["options"])
    try:
        asyncio.run(_hold(Path(words["folder"]), words["orders"], options))
    except StreamRefusedError as error:
        _say(str(error))


if __name__ == "__main__":
    main()
