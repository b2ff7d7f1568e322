"""Lasting commands of pods: each is held by a process in the container (``command_holder.py``), which outlives the agent.

The container needs ``python3``. Where it has none, ``start`` returns None, and the command lasts in the memory of the agent alone.
"""

import asyncio
import contextlib
import inspect
import json
import struct
from collections.abc import Awaitable, Callable
from functools import cache

from trainmaster.protocol.member_streams import (
    COMMANDS,
    LARGEST_FRAME,
    Channel,
    MemberStreamKind,
    MemberStreamOptions,
    frame,
)
from trainmaster_agent.runtime.kubernetes import command_holder
from trainmaster_agent.runtime.lasting_command import LASTING_SECONDS
from trainmaster_agent.runtime.port import MemberStream, StreamCutError, StreamRefusedError

OpenExec = Callable[[MemberStreamOptions], Awaitable[MemberStream]]
"""Opens a stream to a command that is run in the container. Raises StreamRefusedError."""
_NOT_FOUND, _BAD_GATEWAY = 404, 502
_READY_SECONDS = 20.0
_LENGTH = struct.Struct(">I")
_LONGEST_LINE = 10_000
_PIECE = 65_536
_BOOT = (
    "import os,sys\nn=int(sys.argv[2]);d=b''\nwhile len(d)<n:\n p=os.read(0,n-len(d))\n if not p:sys.exit(1)\n d+=p\n"
    "exec(compile(d,'holder','exec'))"
)
"""Reads the program from its input: it would be long for an argument, and be shown in every list of processes."""


class HeldPodCommand:
    """A connection to the holder of a command, through an exec of its container."""

    def __init__(self, exec_stream: MemberStream, protocol: str, begun: bytes) -> None:
        self.protocol = protocol
        self._exec = exec_stream
        self._data = bytearray(begun)
        self._is_closed = False

    async def receive(self) -> bytes | None:
        """Return the next frame; None after the last one. Raises StreamCutError."""
        while (found := self._next()) is None:
            piece = await self._exec.receive()
            if piece is None or piece[:1] == bytes((Channel.STATUS,)):
                if self._is_closed:
                    return None
                raise StreamCutError("the process that holds the command has ended")
            if piece[:1] == bytes((Channel.OUTPUT,)):
                self._data += piece[1:]
        return found or None

    def _next(self) -> bytes | None:
        """Return the next frame; None where it has not come yet. Raises StreamCutError for what is no frame."""
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > LARGEST_FRAME:
            raise StreamCutError("the process that holds the command sends no frames")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        found = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return found

    async def send(self, frame: bytes) -> None:
        if frame:
            await self._write(frame)

    async def close(self) -> None:
        """End the command."""
        if not self._is_closed:
            await self._write(b"")
            with contextlib.suppress(StreamCutError, TimeoutError):
                async with asyncio.timeout(
                    1.0
                ):  # until the holder has taken it: what is on its way may be lost with the exec
                    while await self.receive() is not None:
                        pass
            await self.leave()

    async def leave(self) -> None:
        """Let go, so that the command can be connected to again."""
        self._is_closed = True
        await self._exec.close()

    async def _write(self, data: bytes) -> None:
        await _send_input(self._exec, _LENGTH.pack(len(data)) + data)


async def start(open_exec: OpenExec, options: MemberStreamOptions) -> HeldPodCommand | None:
    """Start a command and its holder; None where the container has no Python. Raises StreamRefusedError."""
    found = await _run(open_exec, options, "hold")
    if isinstance(found, HeldPodCommand):
        return found
    if found:
        raise StreamRefusedError(_BAD_GATEWAY, found)
    return None


async def join(open_exec: OpenExec, options: MemberStreamOptions) -> HeldPodCommand:
    """Connect to the holder of a command. Raises StreamRefusedError where the command is over."""
    found = await _run(open_exec, options, "join")
    if isinstance(found, HeldPodCommand):
        return found
    raise StreamRefusedError(
        _NOT_FOUND, found or "this command has ended, or the agent of its cluster was started again"
    )


async def _run(open_exec: OpenExec, options: MemberStreamOptions, mode: str) -> HeldPodCommand | str:
    """Run the program in the container; return a connection, or why it was refused, which is empty where it did not run."""
    program = _program()
    wanted = MemberStreamOptions(
        kind=MemberStreamKind.EXEC,
        user=options.user,
        protocols=COMMANDS,
        container=options.container,
        command=("python3", "-c", _BOOT, mode, str(len(program))),
        stdin=True,
    )
    stream = await open_exec(wanted)
    try:
        orders = json.dumps(
            {
                "name": options.lasting,
                "received": options.received or 0,
                "seconds": LASTING_SECONDS,
                "command": list(options.command),
                "tty": options.tty,
                "stdin": options.stdin,
                "stdout": options.stdout,
                "stderr": options.stderr,
            }
        ).encode()
        await _send_input(stream, program + _LENGTH.pack(len(orders)) + orders)
        async with asyncio.timeout(_READY_SECONDS):
            line, rest = await _first_line(stream)
    except TimeoutError:
        line, rest = b"", b""
    except BaseException:
        await stream.close()
        raise
    if line + b"\n" == command_holder.READY:
        protocol = next((one for one in options.protocols if one in COMMANDS), COMMANDS[0])
        return HeldPodCommand(stream, protocol, rest)
    await stream.close()
    return line.decode(errors="replace").removeprefix("refused: ") if line.startswith(b"refused: ") else ""


async def _first_line(stream: MemberStream) -> tuple[bytes, bytes]:
    """Return the first line of the output, empty where it ends before, and what came after it."""
    data = b""
    while b"\n" not in data and len(data) < _LONGEST_LINE:
        try:
            piece = await stream.receive()
        except StreamCutError:
            return b"", b""
        if piece is None or piece[:1] == bytes((Channel.STATUS,)):
            return b"", b""
        if piece[:1] == bytes((Channel.OUTPUT,)):
            data += piece[1:]
    line, _, rest = data.partition(b"\n")
    return line, rest


async def _send_input(stream: MemberStream, data: bytes) -> None:
    for begin in range(0, len(data), _PIECE):
        await stream.send(frame(Channel.INPUT, data[begin : begin + _PIECE]))


@cache
def _program() -> bytes:
    return inspect.getsource(command_holder).encode()
