"""Output of members that are processes, as of a terminal attached to their first one: read from its file, without input."""

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from trainmaster.protocol.member_streams import COMMANDS, Channel, MemberStreamOptions, end_of_command, frame
from trainmaster_agent.runtime.port import LogSlice, StreamCutError

_PIECE = 126_976
_LOOK_SECONDS = 0.1

ReadOutput = Callable[[int, int], Awaitable[LogSlice]]
"""Returns at most ``limit`` bytes of output from ``offset`` on. Raises KeyError for a run that is not held any more."""


class AttachedOutput:
    """The output of a member from ``offset`` on. Its last frame says that the member has ended; not how, as on Kubernetes."""

    def __init__(self, options: MemberStreamOptions, read: ReadOutput, offset: int) -> None:
        self.protocol = next((one for one in options.protocols if one in COMMANDS), COMMANDS[0])
        self.offset = offset
        self._read = read
        self._next = offset
        self._is_over = False

    async def receive(self) -> bytes | None:
        """Return the next frame; None after the last one. Raises StreamCutError at a gap, behind which another stream begins."""
        while not self._is_over:
            try:
                piece = await self._read(self._next, _PIECE)
            except KeyError:
                piece = LogSlice(self._next, b"", end=True)
            if piece.data and piece.offset != self._next:
                raise StreamCutError("a part of the output is too old to be shown; connect again")
            self._next = piece.offset + len(piece.data)
            if piece.data:
                return frame(Channel.OUTPUT, piece.data)
            if piece.end:
                self._is_over = True
                return frame(Channel.STATUS, orjson.dumps(end_of_command(0)))
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def send(self, frame: bytes) -> None:
        """Drop a frame: the member reads none."""

    async def close(self) -> None:
        self._is_over = True
