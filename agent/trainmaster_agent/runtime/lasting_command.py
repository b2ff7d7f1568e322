"""Commands that go on when their connection is lost: their output waits for the next one. Knows no cluster."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from trainmaster_agent.runtime.port import MemberStream, StreamCutError

LASTING_SECONDS = 300.0
"""Seconds for which a command goes on without a connection."""
_MOST_UNREAD = 1 << 20
"""Bytes of output after which the command waits for its connected reader."""
_MOST_CACHED = 1 << 22
"""Bytes of the newest output that are sent again where a connection was lost: more than is on its way at any time."""


class LastingCommand:
    """A command and its newest output. ``ended`` is called once, when the command is over and nobody can connect any more.

    One reader is connected at a time; the next one takes its place.
    """

    def __init__(
        self, stream: MemberStream, ended: Callable[[], object] = lambda: None, seconds: float = LASTING_SECONDS
    ) -> None:
        self.stream = stream
        self._ended = ended
        self._seconds = seconds
        self._frames: deque[bytes] = deque()
        self._first = 0
        """Number of the first cached frame, counted from the command's start."""
        self._size = 0
        self._is_over = False
        self._failure = ""
        self._changed = asyncio.Event()
        self._reader: CommandReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keep(self._read())

    def connect(self, received: int) -> "CommandReader":
        """Return a reader that begins after ``received`` frames, or with the oldest one that is still cached."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        position = max(self._first, min(received, self._first + len(self._frames)))
        unread = sum(len(frame) for number, frame in enumerate(self._frames, self._first) if number >= position)
        self._reader = CommandReader(self, position, unread)
        self._wake()
        return self._reader

    async def next_frame(self, reader: "CommandReader") -> bytes | None:
        """Return the reader's next frame; None after the last one, or once another reader has taken its place.

        Raises StreamCutError where the stream of the command was cut.
        """
        while self._reader is reader:
            if reader.position < self._first + len(self._frames):
                frame = self._frames[reader.position - self._first]
                reader.position += 1
                reader.unread -= len(frame)
                self._wake()
                return frame
            if self._is_over:
                if self._failure:
                    raise StreamCutError(self._failure)
                return None
            await self._changed.wait()
        return None

    def leave(self, reader: "CommandReader") -> None:
        """Wait for another reader, and end the command where none comes."""
        if self._reader is reader:
            self._reader = None
            self._wake()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, lambda: self._keep(self.end()))

    async def end(self, reader: "CommandReader | None" = None) -> None:
        """End the command; not where ``reader`` is given and another one has taken its place."""
        if reader is not None and self._reader is not reader:
            return
        self._reader = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
        others = self._tasks - {task for task in (asyncio.current_task(),) if task is not None}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.stream.close()
        self._ended()

    async def _read(self) -> None:
        try:
            while (frame := await self.stream.receive()) is not None:
                self._frames.append(frame)
                self._size += len(frame)
                if self._reader is not None:
                    self._reader.unread += len(frame)
                while self._size > _MOST_CACHED and (self._reader is None or self._first < self._reader.position):
                    self._size -= len(self._frames.popleft())
                    self._first += 1
                self._wake()
                while self._reader is not None and self._reader.unread > _MOST_UNREAD:
                    await self._changed.wait()
        except StreamCutError as error:
            self._failure = str(error)
        finally:
            self._is_over = True
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class CommandReader:
    """One connection to a lasting command."""

    def __init__(self, command: LastingCommand, position: int, unread: int) -> None:
        self._command = command
        self.position = position
        """Number of the next frame, counted from the command's start."""
        self.unread = unread
        """Bytes from there on."""

    @property
    def protocol(self) -> str:
        return self._command.stream.protocol

    async def receive(self) -> bytes | None:
        return await self._command.next_frame(self)

    async def send(self, frame: bytes) -> None:
        await self._command.stream.send(frame)

    async def close(self) -> None:
        await self._command.end(self)

    async def leave(self) -> None:
        self._command.leave(self)
