"""Output on its way from members to the dispatcher: times, what is sent and when, and the disk space of long files."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import eventually
from trainmaster.protocol.agent import (
    MemberReport,
    OpenStream,
    OutputAnswer,
    OutputMark,
    OutputPiece,
    OutputPush,
    StoredOutput,
    StreamPush,
)
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.states import RunState
from trainmaster_agent import output_collector
from trainmaster_agent.output_collector import OutputCollector
from trainmaster_agent.output_times import OutputTimes
from trainmaster_agent.runtime.local import logs
from trainmaster_agent.runtime.local.output_bounds import bound_output
from trainmaster_agent.runtime.port import LogSlice, RunStatus
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_agent.streams import LogStreams

RUN, LIMIT = "job-8fj0jgx-r1", 1 << 20
KEY = (RUN, "main", 0)


class Printing(SimulatedRuntime):
    """Holds one run whose member has printed ``text``. ``sized``: whether its length is known without reading it."""

    def __init__(self, text: bytes, *, sized: bool = True) -> None:
        self.text = text
        self.sized = sized
        self.state = RunState.RUNNING

    @property
    def stores_output(self) -> bool:
        return True

    def held(self) -> dict[str, RunStatus]:
        member = MemberReport(role="main", index=0, state="running")
        return {RUN: RunStatus(RUN, 1, 1, self.state, members=(member,))}

    def output_end(self, run: str, role: str, index: int) -> int | None:
        return len(self.text) if self.sized else None

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        start = min(offset, len(self.text)) if offset >= 0 else max(0, len(self.text) + offset)
        data = self.text[start : start + limit]
        return LogSlice(start, data, self.state.is_terminal and start + len(data) == len(self.text))


@dataclass
class Store:
    """Takes pieces as the dispatcher does, or fails as ``error`` says."""

    pieces: list[OutputPiece] = field(default_factory=list)
    next: int = 0
    error: Exception | None = None
    calls: int = 0

    async def store_output(self, run: str, body: OutputPush) -> OutputAnswer:
        self.calls += 1
        if self.error is not None:
            raise self.error
        for piece in body.pieces:
            if piece.data:
                self.pieces.append(piece)
                self.next = piece.next_offset
        return OutputAnswer(stored=(StoredOutput(role="main", index=0, next_offset=self.next),))

    @property
    def ranges(self) -> tuple[int, int, int]:
        """Begin of the first piece, bytes in all, and end of the last one."""
        return self.pieces[0].offset, sum(len(one.data) for one in self.pieces), self.pieces[-1].next_offset


@dataclass
class Bench:
    runtime: Printing
    store: Store
    collector: OutputCollector
    forgotten: list[str]

    def keeps(self) -> bool:
        return self.collector.keeps(RUN, self.runtime.held().get(RUN))

    async def until_forgotten(self) -> None:
        async def look() -> bool:
            return self.forgotten == [RUN]

        await eventually(look, 20)


@pytest.fixture
async def benches(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator["list[Bench]"]:
    monkeypatch.setattr(output_collector, "_LOOK_SECONDS", 0.01)
    made: list[Bench] = []
    yield made
    for one in made:
        await one.collector.close()


def bench(benches: "list[Bench]", runtime: Printing) -> Bench:
    store, forgotten = Store(), list[str]()

    async def forget(run: str) -> None:
        forgotten.append(run)

    collector = OutputCollector(store, runtime, "session", OutputTimes(lambda: 5.0), forget)
    benches.append(Bench(runtime, store, collector, forgotten))
    collector.set_limit(LIMIT)
    return benches[-1]


async def test_short_output_comes_with_the_end_alone(benches: list[Bench]) -> None:
    one = bench(benches, Printing(b"short\n"))
    one.runtime.state = RunState.SUCCEEDED
    assert not one.keeps(), "the runtime may forget the run at once"
    assert one.store.calls == 0


@pytest.mark.parametrize("sized", [True, False])
async def test_all_output_within_the_limit_is_sent(benches: list[Bench], sized: bool) -> None:
    one = bench(benches, Printing(b"0123456789abcde\n" * 40_000, sized=sized))
    one.runtime.state = RunState.SUCCEEDED
    assert one.keeps()
    await one.until_forgotten()
    assert "".join(piece.data for piece in one.store.pieces).encode() == one.runtime.text


@pytest.mark.parametrize("sized", [True, False])
async def test_of_longer_output_the_first_and_the_last_half_of_the_limit_are_sent(
    benches: list[Bench], sized: bool
) -> None:
    one = bench(benches, Printing(b"0123456789abcde\n" * 400_000, sized=sized))
    one.runtime.state = RunState.SUCCEEDED
    assert one.keeps()
    await one.until_forgotten()
    begin, size, end = one.store.ranges
    assert (begin, end) == (0, 6_400_000)
    assert LIMIT <= size <= LIMIT + (1 << 18)


async def test_a_live_member_sends_its_first_half_and_no_more(benches: list[Bench]) -> None:
    one = bench(benches, Printing(b"x" * (3 * LIMIT)))

    async def has_sent() -> bool:
        return one.store.next >= LIMIT // 2

    await eventually(has_sent)
    for _ in range(20):
        await asyncio.sleep(0)
    assert one.store.ranges == (0, LIMIT // 2, LIMIT // 2)


async def test_a_new_agent_asks_up_to_where_output_is_stored(benches: list[Bench]) -> None:
    one = bench(benches, Printing(b"x" * 200_000))
    one.store.next = 150_000
    one.runtime.state = RunState.SUCCEEDED
    assert one.keeps()
    await one.until_forgotten()
    assert one.store.ranges == (150_000, 50_000, 200_000)


async def test_an_unreachable_dispatcher_is_waited_for(benches: list[Bench]) -> None:
    one = bench(benches, Printing(b"x" * 100_000))
    one.store.error = UnreachableError("cut off")
    one.runtime.state = RunState.SUCCEEDED
    assert one.keeps()

    async def has_tried() -> bool:
        return one.store.calls > 3

    await eventually(has_tried)
    assert one.forgotten == []
    one.store.error = None
    await one.until_forgotten()
    assert one.store.ranges == (0, 100_000, 100_000)


@pytest.mark.parametrize("error", [ProblemError(Code.NOT_FOUND, "no such run"), ValueError("odd")])
async def test_output_that_is_refused_for_good_does_not_keep_the_run(benches: list[Bench], error: Exception) -> None:
    one = bench(benches, Printing(b"x" * 100_000))
    one.store.error = error
    one.runtime.state = RunState.SUCCEEDED
    if one.keeps():
        await one.until_forgotten()
    assert one.store.pieces == []


async def test_an_answer_that_stores_nothing_does_not_keep_the_run_and_is_not_asked_for_ever(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench(benches, Printing(b"x" * 100_000))
    monkeypatch.setattr(Store, "next", property(lambda _: 0, lambda *_: None))
    one.runtime.state = RunState.SUCCEEDED
    assert one.keeps()
    await one.until_forgotten()
    assert one.store.calls < 5


def test_times_are_those_of_the_first_sight() -> None:
    now = [100.0]
    times = OutputTimes(lambda: now[0])
    for end, at in ((10, 100.0), (10, 101.0), (30, 102.0)):
        now[0] = at
        times.note(KEY, end)
    assert times.between(KEY, 0, 30) == (OutputMark(offset=0, at=100), OutputMark(offset=10, at=102))
    assert times.between(KEY, 12, 20) == (OutputMark(offset=12, at=102),)
    assert times.between(KEY, 30, 40) == ()
    assert [times.since(KEY, moment) for moment in (0, 100.5, 103)] == [0, 10, 30]
    times.forget(RUN)
    assert times.between(KEY, 0, 30) == ()


async def test_each_piece_for_a_follower_has_the_time_at_which_it_was_first_seen() -> None:
    now, pushed = [100.0], list[StreamPush]()
    runtime = Printing(b"one\n")
    times = OutputTimes(lambda: now[0])

    class Follower:
        async def push(self, stream: str, body: StreamPush) -> None:
            pushed.append(body)

    def marks() -> list[tuple[str, list[tuple[int, float]]]]:
        return [(one.data, [(mark.offset, mark.at) for mark in one.marks]) for push in pushed for one in push.chunks]

    async def until(count: int) -> None:
        async def look() -> bool:
            return len(marks()) == count

        await eventually(look, 20)

    streams = LogStreams(Follower(), runtime, "session", times)
    try:
        streams.open(OpenStream(stream="s", run=RUN))
        await until(1)
        now[0] = 107.0
        runtime.text += b"two\n"
        await until(2)
        assert marks() == [("one\n", [(0, 100.0)]), ("two\n", [(4, 107.0)])]
        now[0] = 120.0
        times.note(KEY, 8)
        assert [mark.at for mark in times.between(KEY, 0, 8)] == [100.0, 107.0], (
            "what is stored later has the same times"
        )
    finally:
        await streams.close()


def test_times_of_a_long_log_become_coarser() -> None:
    times = OutputTimes(lambda: 1.0)
    for end in range(1, 20_000):
        times.note(KEY, end)
    assert 1000 < len(times.between(KEY, 0, 20_000)) <= 4001
    assert times.between(KEY, 0, 20_000)[0].offset == 0


def test_the_middle_of_a_long_file_is_given_back_and_its_offsets_stay(tmp_path: Path) -> None:
    path, most = tmp_path / "main-0.log", 1 << 20
    line = b"0123456789abcde\n"
    path.write_bytes(line * (16 << 16))
    size = path.stat().st_size
    if bound_output(path, most) == size and path.stat().st_blocks * 512 > 2 * most:
        pytest.skip("this file system has no holes")
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= most + (2 << 16)
    first = logs.read(path, 0, size, over=True)
    assert (first.offset, first.end) == (0, False)
    assert most // 2 <= len(first.data) <= most // 2 + (1 << 16)
    rest = logs.read(path, len(first.data), size, over=True)
    assert rest.offset > len(first.data), "the hole is passed over"
    assert rest.offset + len(rest.data) == size
    assert rest.end
    assert set(first.data.splitlines()[:-1]) == {line.strip()} == set(rest.data.splitlines()[1:])
    with path.open("ab") as more:
        more.write(b"end\n")
    assert logs.read(path, -4, 100, over=True).data == b"end\n"


def test_a_file_within_the_bound_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "main-0.log"
    path.write_bytes(os.urandom(100_000))
    blocks = path.stat().st_blocks
    assert bound_output(path, 1 << 20) == 100_000
    assert path.stat().st_blocks == blocks
    with pytest.raises(FileNotFoundError):
        bound_output(tmp_path / "none.log", 1)
