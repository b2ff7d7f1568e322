"""Lasting commands of pods, held by a process: with real processes of this machine in place of those of a container."""

import ast
import asyncio
import contextlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import eventually
from trainmaster.protocol.member_streams import Channel, MemberStreamKind, MemberStreamOptions, end_of_command, frame
from trainmaster_agent.runtime.kubernetes import command_holder, held_commands
from trainmaster_agent.runtime.kubernetes.held_commands import HeldPodCommand
from trainmaster_agent.runtime.port import LastingStream, StreamCutError, StreamRefusedError


class ProcessStream:
    """An exec of a container: a process, in the frames of the API server. Closing it ends the input, as a lost connection does."""

    protocol = "v5.channel.k8s.io"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._input, self._output = process, process.stdin, process.stdout
        self._has_ended = False

    async def receive(self) -> bytes | None:
        if self._has_ended:
            return None
        if data := await self._output.read(1 << 16):
            return frame(Channel.OUTPUT, data)
        self._has_ended = True
        return frame(Channel.STATUS, json.dumps(end_of_command(await self.process.wait())).encode())

    async def send(self, frame: bytes) -> None:
        assert frame[0] == Channel.INPUT
        with contextlib.suppress(ConnectionError):
            self._input.write(frame[1:])
            await self._input.drain()

    async def close(self) -> None:
        self._input.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while await self._output.read(1 << 16):
                    pass


class Container:
    """A place where commands can be run, with or without Python. ``execs``: those that were run in it."""

    def __init__(self, path: str = os.environ["PATH"]) -> None:
        self.path = path
        self.execs: list[ProcessStream] = []

    async def __call__(self, options: MemberStreamOptions) -> ProcessStream:
        assert (options.stdin, options.tty, options.container) == (True, False, "main")
        pipe = asyncio.subprocess.PIPE
        words = ["env", f"PATH={self.path}", *options.command]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=1 << 20
        )
        self.execs.append(ProcessStream(process))
        return self.execs[-1]


@pytest.fixture
async def container() -> AsyncIterator[Container]:
    found = Container()
    yield found
    for one in found.execs:
        # Closes its pipes, too: while they have output that nobody has read, asyncio does not note the end of the process.
        one.process._transport.close()  # type: ignore[attr-defined]


def options_of(*command: str, name: str | None = None, **fields: Any) -> MemberStreamOptions:
    given = {"command": command, "lasting": name or os.urandom(16).hex(), "container": "main", "stdin": True} | fields
    return MemberStreamOptions(kind=MemberStreamKind.EXEC, protocols=("v5.channel.k8s.io",), **given)


async def started(container: Container, *command: str, **fields: Any) -> tuple[HeldPodCommand, MemberStreamOptions]:
    options = options_of(*command, **fields)
    found = await held_commands.start(container, options)
    assert found is not None
    assert isinstance(found, LastingStream)
    return found, options


async def joined(container: Container, options: MemberStreamOptions, received: int) -> HeldPodCommand:
    return await held_commands.join(container, options.model_copy(update={"received": received}))


async def until_end(stream: HeldPodCommand) -> list[bytes]:
    async with asyncio.timeout(20):
        return [one async for one in _frames(stream)]


async def _frames(stream: HeldPodCommand) -> AsyncIterator[bytes]:
    while (found := await stream.receive()) is not None:
        yield found


def output_of(frames: Sequence[bytes], channel: Channel = Channel.OUTPUT) -> bytes:
    return b"".join(one[1:] for one in frames if one[0] == channel)


async def until_no_holder(options: MemberStreamOptions) -> None:
    """Wait until no process of this machine holds a command."""

    async def none_left() -> bool:
        return f"@trainmaster-{options.lasting}" not in await asyncio.to_thread(Path("/proc/net/unix").read_text)

    await eventually(none_left, 10)


def test_the_program_runs_with_old_releases_of_python_and_without_packages() -> None:
    source = inspect.getsource(command_holder)
    ast.parse(source, feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [one.name for one in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
        )
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not imported & {"trainmaster", "trainmaster_agent", "orjson", "pydantic"}
    assert "collections" in imported


async def test_frames_pass_both_ways_and_the_end_has_the_exit_code(container: Container) -> None:
    stream, _ = await started(container, "sh", "-c", "read line; echo got $line; echo oops >&2; exit 7")
    await stream.send(frame(Channel.INPUT, b"hello\n"))
    frames = await until_end(stream)
    assert output_of(frames) == b"got hello\n"
    assert output_of(frames, Channel.ERROR_OUTPUT) == b"oops\n"
    assert json.loads(output_of(frames, Channel.STATUS)) == end_of_command(7)
    await stream.close()


async def test_the_command_goes_on_without_a_connection_and_no_frame_is_lost_or_repeated(container: Container) -> None:
    stream, options = await started(container, "sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done")
    first = await stream.receive()
    assert first == b"\x011\n"
    container.execs[-1].process.kill()  # as the connection of the agent is lost
    with pytest.raises(StreamCutError):
        await until_end(stream)
    await asyncio.sleep(0.5)
    again = await joined(container, options, 1)
    frames = await until_end(again)
    assert output_of(frames) == b"2\n3\n4\n5\n6\n"
    assert json.loads(output_of(frames, Channel.STATUS)) == end_of_command(0)
    once_more = await joined(container, options, 1 + len(frames) - 1)
    assert await until_end(once_more) == frames[-1:], "the last frames can be sent again"
    await once_more.close()
    await until_no_holder(options)
    with pytest.raises(StreamRefusedError, match="this command has ended"):
        await joined(container, options, 0)


async def test_a_terminal_has_a_size_and_echoes_and_a_hang_up_ends_what_runs_in_it(
    container: Container, tmp_path: Path
) -> None:
    script = (
        f"echo $$ > {tmp_path}/pid; trap 'echo over > {tmp_path}/end; exit' HUP; stty size; while :; do sleep 0.1; done"
    )
    stream, options = await started(container, "sh", "-c", f"sleep 0.3; {script}", tty=True)
    await stream.send(frame(Channel.SIZE, b'{"Width": 99, "Height": 33}'))
    await stream.send(frame(Channel.SIZE, b"no size"))
    found = b""
    while b"\n" not in found:
        found += (await asyncio.wait_for(stream.receive(), 10) or b"")[1:]
    assert found == b"33 99\r\n"
    await stream.close()
    await until_no_holder(options)

    async def has_ended() -> bool:
        return (tmp_path / "end").exists()

    await eventually(has_ended, 10)
    pid = int((tmp_path / "pid").read_text())

    async def is_gone() -> bool:
        return not psutil.pid_exists(pid)

    await eventually(is_gone, 10)


async def test_another_connection_takes_the_place_of_the_first_one(container: Container) -> None:
    stream, options = await started(container, "cat")
    await stream.send(frame(Channel.INPUT, b"one"))
    assert await stream.receive() == b"\x01one"
    second = await joined(container, options, 1)
    with pytest.raises(StreamCutError):
        await until_end(stream)
    await second.send(frame(Channel.INPUT, b"two"))
    assert await second.receive() == b"\x01two"
    await second.send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))
    frames = await until_end(second)
    assert json.loads(output_of(frames, Channel.STATUS)) == end_of_command(0)
    await second.close()


async def test_a_command_that_prints_much_waits_for_its_reader_and_loses_nothing(container: Container) -> None:
    many = 3_000_000
    stream, options = await started(container, "sh", "-c", f"head -c {many} /dev/zero; echo end")
    await asyncio.sleep(0.5)
    frames = [await stream.receive() for _ in range(3)]
    await stream.leave()
    again = await joined(container, options, 3)
    rest = await until_end(again)
    output = output_of([one for one in frames if one is not None]) + output_of(rest)
    assert (len(output), output[-4:]) == (many + 4, b"end\n")
    await again.close()


async def test_much_input_waits_for_a_command_that_reads_slowly(container: Container) -> None:
    stream, _ = await started(container, "sh", "-c", "sleep 0.5; wc -c")
    for _ in range(60):
        await stream.send(frame(Channel.INPUT, b"x" * 65_536))
    await stream.send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))
    assert output_of(await until_end(stream)).strip() == b"%d" % (60 * 65_536)
    await stream.close()


async def test_nobody_for_long_ends_the_command(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_commands, "LASTING_SECONDS", 0.5)
    stream, options = await started(container, "sleep", "600")
    await stream.leave()
    await until_no_holder(options)


async def test_a_command_that_does_not_exist_is_refused_with_its_reason(container: Container) -> None:
    with pytest.raises(StreamRefusedError, match=r"could not be started: .*No such file"):
        await held_commands.start(container, options_of("/no/such/program"))


async def test_without_python_in_the_container_the_agent_has_to_keep_the_command(tmp_path: Path) -> None:
    without = Container(str(tmp_path))
    assert await held_commands.start(without, options_of("cat")) is None
    with pytest.raises(StreamRefusedError, match="or the agent of its cluster was started again"):
        await held_commands.join(without, options_of("cat", received=0))


async def test_an_exec_that_answers_something_else_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "python3").chmod(0o755)
    assert await held_commands.start(Container(f"{tmp_path}:/bin:/usr/bin"), options_of("cat")) is None
