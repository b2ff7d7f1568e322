"""Log streams: members' output, pushed to the dispatcher while somebody follows."""

import asyncio
import codecs
from typing import Protocol

from trainmaster.protocol.agent import OpenStream, OutputPiece, StreamPush
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster_agent.containment import contain
from trainmaster_agent.output_times import OutputTimes
from trainmaster_agent.runtime.port import Runtime

_CHUNK_BYTES = 32_768
_PUSH_BYTES = 262_144
"""About the most bytes of output in one push. Each push waits for its answer, so this bounds a follower's throughput."""
_LOOK_SECONDS = 0.2
_KEEP_OPEN_SECONDS = 5.0
_MOST_STREAMS = 64
_FIRST_SEARCH, _MOST_SEARCHED = 1 << 16, 1 << 24
"""Bytes before the end of output in which lines are counted first, and at most."""


class Pusher(Protocol):
    async def push(self, stream: str, body: StreamPush) -> None: ...


def whole_text(data: bytes) -> tuple[str, int]:
    """Return the text of the bytes that end on a whole character, and their number.

    Bytes that are not UTF-8 are replaced, so that output of any kind can be sent.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


def members_of(runtime: Runtime, run: str) -> list[tuple[str, int]]:
    """Return role and index of each member of a held run."""
    status = runtime.held().get(run)
    return [] if status is None else [(member.role, member.index) for member in status.members]


async def read_chunk(
    runtime: Runtime, run: str, role: str, index: int, offset: int, limit: int
) -> tuple[OutputPiece | None, bool]:
    """Return at most ``limit`` bytes of a member's output, and whether it has ended; None for a member that is not held."""
    try:
        piece = await runtime.read_log(run, role, index, offset, limit)
    except KeyError:
        return None, True
    text, used = whole_text(piece.data)
    if piece.end and used < len(piece.data):
        text, used = piece.data.decode(errors="replace"), len(piece.data)
    chunk = OutputPiece(role=role, index=index, offset=piece.offset, data=text, next_offset=piece.offset + used)
    return chunk, piece.end


async def offset_of_lines(runtime: Runtime, run: str, role: str, index: int, lines: int) -> int:
    """Return the offset at which the last lines of a member's output begin, found in its last 16 MiB at most."""
    size = _FIRST_SEARCH
    while True:
        try:
            piece = await runtime.read_log(run, role, index, -size, size)
        except KeyError:
            return 0
        data, begin = piece.data, piece.offset
        ends = data.count(b"\n")
        wanted = lines if data.endswith(b"\n") else lines - 1
        if ends > wanted:
            at = 0
            for _ in range(ends - wanted):
                at = data.index(b"\n", at) + 1
            return begin + at
        if begin == 0 or len(data) < size or size >= _MOST_SEARCHED:
            return begin
        size *= 4


class LogStreams:
    """The streams of one agent session."""

    def __init__(self, pusher: Pusher, runtime: Runtime, session: str, times: OutputTimes) -> None:
        self._pusher = pusher
        self._runtime = runtime
        self._session = session
        self._times = times
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, stream: OpenStream) -> None:
        """Start to push; a stream that is open already is left alone. It ends by itself when nobody follows."""
        if stream.stream in self._tasks or len(self._tasks) >= _MOST_STREAMS:
            return
        task = asyncio.create_task(self._serve(stream), name=f"stream-{stream.stream}")
        self._tasks[stream.stream] = task
        task.add_done_callback(lambda _: self._tasks.pop(stream.stream, None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, stream: OpenStream) -> None:
        try:
            await self._follow(stream)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("stream", error, run=stream.run)

    async def _follow(self, stream: OpenStream) -> None:
        """Push existing output, then new output, until the members are over or nobody follows."""
        offsets: dict[tuple[str, int], int] = {}
        turn = 0
        last_push = 0.0
        loop = asyncio.get_running_loop()
        while True:
            chunks, over, turn = await self._collect(stream, offsets, turn)
            # An empty push now and then finds out whether anybody still follows.
            if chunks or over or loop.time() - last_push > _KEEP_OPEN_SECONDS:
                last_push = loop.time()
                if not await self._push(stream, chunks, end=over):
                    return
                for chunk in chunks:
                    offsets[chunk.role, chunk.index] = chunk.next_offset
            if over:
                return
            if not chunks:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _collect(
        self, stream: OpenStream, offsets: dict[tuple[str, int], int], turn: int
    ) -> tuple[list[OutputPiece], bool, int]:
        """Return one push of new output, whether it is the last, and the member that the next one starts with, in rotation."""
        status = self._runtime.held().get(stream.run)
        run_is_over = status is None or status.state.is_terminal
        chunks, size, more = [], 0, False
        members = [
            (role, index)
            for role, index in members_of(self._runtime, stream.run)
            if (not stream.roles or role in stream.roles) and stream.index in (None, index)
        ]
        first = turn % len(members) if members else 0
        share = max(_CHUNK_BYTES, _PUSH_BYTES // max(1, len(members)))
        turn = first
        for role, index in members[first:] + members[:first]:
            turn += 1
            start = offsets.get((role, index))
            if start is None:
                start = await self._first_offset(stream, role, index)
            most = min(max(share, -start if start < 0 else 0), _PUSH_BYTES)
            chunk, ended = await read_chunk(self._runtime, stream.run, role, index, start, most)
            if chunk is not None and chunk.data:
                key = (stream.run, role, index)
                self._times.note(key, chunk.next_offset)  # a follower sees it before those who look now and then
                marks = self._times.between(key, chunk.offset, chunk.next_offset)
                chunks.append(chunk.model_copy(update={"marks": marks}))
                size += len(chunk.data)
            more = more or not ended
            if size >= _PUSH_BYTES:
                more = True
                break
        over = not chunks if not stream.follow else run_is_over and not chunks and not more
        return chunks, over, turn

    async def _first_offset(self, stream: OpenStream, role: str, index: int) -> int:
        """Return where to begin with a member's output; negative: from its end."""
        for start in stream.starts:
            if (start.role, start.index) == (role, index):
                return start.offset
        if stream.since is not None:
            return self._times.since((stream.run, role, index), stream.since)
        if stream.tail_lines is not None:
            return await offset_of_lines(self._runtime, stream.run, role, index, stream.tail_lines)
        return -stream.tail_bytes if stream.tail_bytes else 0

    async def _push(self, stream: OpenStream, chunks: list[OutputPiece], *, end: bool) -> bool:
        """Return whether somebody still follows. Waits while the api is unreachable: the stream ends with its followers."""
        body = StreamPush(session=self._session, chunks=tuple(chunks), end=end)
        for _ in range(50):
            try:
                await self._pusher.push(stream.stream, body)
            except ProblemError as error:
                if error.code in (Code.STREAM_CLOSED, Code.SESSION_SUPERSEDED, Code.NOT_FOUND):
                    return False
                await asyncio.sleep(error.retry_after or _LOOK_SECONDS)
            except UnreachableError:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                return True
        return False
