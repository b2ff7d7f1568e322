"""Byte streams to ports of members, over the frames of a stream that its agent has opened."""

import asyncio

from trainmaster.protocol.errors import TrainmasterError
from trainmaster_dispatcher.services.member_streams import OpenedStream

_DATA = 0
_PORT_BYTES = 2
"""Each channel begins with the number of the port."""
_PIECE = 126_976


class MemberPortError(TrainmasterError):
    """A port of a member is not connected any more."""


class MemberConnection:
    """One connection to a port of a member. A frame is read once the one before was taken: nothing is buffered beyond that."""

    def __init__(self, opened: OpenedStream) -> None:
        self._opened = opened
        self._begun: set[int] = set()
        self._reading: asyncio.Future[bytes | str | None] | None = None
        self.failure = ""

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end, also where this side has closed meanwhile."""
        while (frame := await self._frame()) is not None:
            if isinstance(frame, str) or not frame:
                continue
            channel, data = frame[0], frame[1:]
            if channel not in self._begun:
                self._begun.add(channel)
                data = data[_PORT_BYTES:]
            if data and channel == _DATA:
                return data
            if data:
                self.failure = data.decode(errors="replace").strip()
        return b""

    async def _frame(self) -> bytes | str | None:
        over = self._opened.agent.over
        if over.is_set():
            return None
        self._reading = asyncio.ensure_future(self._opened.agent.line.receive())
        try:
            return await self._reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if over.is_set() and (task is None or not task.cancelling()):
                return None
            raise

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the member does not take them."""
        for start in range(0, len(data), _PIECE):
            await self._opened.agent.line.send(bytes((_DATA,)) + data[start : start + _PIECE])

    def close(self) -> None:
        self._opened.agent.over.set()
        if self._reading is not None:
            self._reading.cancel()
