"""Commands that go on when their connection is lost: frames for the next reader, bounds, and their end."""

import asyncio

import pytest

from tests.waiting import eventually
from trainmaster_agent.runtime import lasting_command
from trainmaster_agent.runtime.lasting_command import CommandReader, LastingCommand
from trainmaster_agent.runtime.port import LastingStream, OutputStream, StreamCutError


class ScriptedStream:
    """A stream that yields what a test puts in."""

    protocol = "v5.channel.k8s.io"

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.is_closed = False
        self.is_cut = False

    async def receive(self) -> bytes | None:
        frame = await self.frames.get()
        if frame is None and self.is_cut:
            raise StreamCutError("gone")
        return frame

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def close(self) -> None:
        self.is_closed = True


def put(stream: ScriptedStream, *numbers: int) -> None:
    for number in numbers:
        stream.frames.put_nowait(b"%d" % number)


async def numbers_of(reader: CommandReader, many: int) -> list[int]:
    frames = [await asyncio.wait_for(reader.receive(), 5) for _ in range(many)]
    return [int(frame or b"-1") for frame in frames]


async def test_the_next_reader_gets_what_the_one_before_has_not_received() -> None:
    stream = ScriptedStream()
    command = LastingCommand(stream)
    first = command.connect(0)
    put(stream, 0, 1, 2)
    assert await numbers_of(first, 3) == [0, 1, 2]
    await first.leave()
    put(stream, 3, 4)
    second = command.connect(2)  # the third frame was on its way
    assert await numbers_of(second, 3) == [2, 3, 4]
    await second.send(b"key")
    assert stream.sent == [b"key"]
    stream.frames.put_nowait(None)
    assert await second.receive() is None
    await second.close()
    assert stream.is_closed


async def test_a_reader_whose_place_was_taken_ends_nothing() -> None:
    stream = ScriptedStream()
    command = LastingCommand(stream)
    first = command.connect(0)
    second = command.connect(0)
    assert await first.receive() is None
    await first.close()
    await first.leave()
    put(stream, 0)
    assert await numbers_of(second, 1) == [0]
    assert not stream.is_closed


async def test_without_a_reader_the_oldest_output_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_command, "_MOST_CACHED", 20)
    stream = ScriptedStream()
    command = LastingCommand(stream)
    put(stream, *range(10, 60))

    async def is_read() -> bool:
        return stream.frames.empty()

    await eventually(is_read)
    reader = command.connect(0)
    assert await numbers_of(reader, 10) == list(range(50, 60))
    assert reader.position == 50


async def test_a_slow_reader_makes_the_command_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_command, "_MOST_UNREAD", 20)
    stream = ScriptedStream()
    command = LastingCommand(stream)
    reader = command.connect(0)
    put(stream, *range(10, 60))
    await asyncio.sleep(0.05)
    assert stream.frames.qsize() == 50 - 11
    assert await numbers_of(reader, 50) == list(range(10, 60))


async def test_a_command_ends_without_a_reader_and_not_with_one() -> None:
    stream, ended = ScriptedStream(), asyncio.Event()
    command = LastingCommand(stream, ended.set, seconds=0.05)
    reader = command.connect(0)
    await reader.leave()
    again = command.connect(0)
    await asyncio.sleep(0.15)
    assert not ended.is_set()
    await again.leave()
    await asyncio.wait_for(ended.wait(), 5)
    assert stream.is_closed


async def test_a_stream_that_was_cut_is_no_end() -> None:
    stream = ScriptedStream()
    stream.is_cut = True
    command = LastingCommand(stream)
    put(stream, 0)
    stream.frames.put_nowait(None)
    reader = command.connect(0)
    assert await numbers_of(reader, 1) == [0]
    with pytest.raises(StreamCutError, match="gone"):
        await reader.receive()


async def test_what_a_stream_can_do_is_known_by_its_methods() -> None:
    reader = LastingCommand(ScriptedStream()).connect(0)
    assert isinstance(reader, LastingStream)
    assert not isinstance(reader, OutputStream)
    assert not isinstance(ScriptedStream(), LastingStream)
