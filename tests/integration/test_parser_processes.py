"""Parser processes of an api: one body never keeps one for long, and other callers find a place."""

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from tests.conftest import job
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.parsing import Parser
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import MOST_MARKS, Most, PreparedSubmission, prepare

_FOR_EVER = b"for ever"
_LARGE = orjson.dumps({"jobs": [job()] * 3})


_HUNGRY = b"hungry"
_MOST_MEMORY = 256 * 2**20


def check_slowly(body: bytes, most: Most) -> PreparedSubmission:
    """Do what ``prepare`` does; a body that never ends comes first, naming the file that shows that it has begun."""
    if body.startswith(_FOR_EVER):
        Path(body.removeprefix(_FOR_EVER).decode()).touch()
        while True:
            time.sleep(3600)
    if body.startswith(_HUNGRY):
        held = [bytes(2**20) for _ in range(int(body.removeprefix(_HUNGRY)))]
        body = _LARGE if held else b""
    return prepare(body, most)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    return tmp_path / "begun"


def parser(seconds: float) -> Parser:
    return Parser(0, Most(), seconds, check_slowly)


async def has_begun(file: Path) -> None:
    async def look() -> bool:
        return await asyncio.to_thread(file.exists)

    await eventually(look, 60)


async def test_a_body_that_takes_too_long_is_refused_and_its_process_replaced(begun: Path) -> None:
    checking = parser(1.0)
    try:
        with pytest.raises(ProblemError) as refused:
            await checking.prepare(_FOR_EVER + str(begun).encode())
        assert refused.value.code is Code.TOO_BUSY
        assert "in time" in refused.value.detail
    finally:
        checking.close()
    checking = parser(60.0)
    try:
        assert len(await checking.prepare(_LARGE)) == 3
    finally:
        checking.close()


async def test_a_caller_that_hangs_up_frees_the_process_at_once(begun: Path) -> None:
    hung_up = asyncio.Event()

    async def receive() -> Message:
        await hung_up.wait()
        return {"type": "http.disconnect"}

    checking = parser(3600.0)
    checking._places = 1  # one process, so that the second body needs the place of the first
    try:
        request = Request({"type": "http", "headers": [], "method": "POST", "path": "/"}, receive)
        first = asyncio.create_task(checking.prepare(_FOR_EVER + str(begun).encode(), 1, request))
        await has_begun(begun)
        second = asyncio.create_task(checking.prepare(_LARGE, 2))
        hung_up.set()
        with pytest.raises(ClientDisconnect):
            await first
        assert len(await asyncio.wait_for(second, 60)) == 3
        assert not checking._busy
    finally:
        checking.close()


async def test_another_caller_comes_before_the_second_body_of_one_that_is_at_work(begun: Path) -> None:
    checking = parser(3600.0)
    checking._places = 2
    try:
        slow = asyncio.create_task(checking.prepare(_FOR_EVER + str(begun).encode(), 1))
        await has_begun(begun)
        ended: list[int] = []

        async def submit(caller: int) -> None:
            await checking.prepare(_LARGE, caller)
            ended.append(caller)

        await asyncio.gather(*(submit(caller) for caller in (1, 1, 2)))
        assert ended == [1, 2, 1]
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
    finally:
        checking.close()


async def test_one_caller_cannot_fill_all_places_to_wait(begun: Path) -> None:
    checking = parser(3600.0)
    checking._places = 1
    try:
        many = [asyncio.create_task(checking.prepare(_FOR_EVER + str(begun).encode(), 1)) for _ in range(6)]
        await has_begun(begun)
        with pytest.raises(ProblemError, match="several large submissions"):
            await checking.prepare(_LARGE, 1)
        other = asyncio.create_task(checking.prepare(_LARGE, 2))
        for one in many:
            one.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        assert len(await asyncio.wait_for(other, 60)) == 3
    finally:
        checking.close()


def peak_bytes(checking: Parser) -> int:
    """Return the most memory that the only process of a parser has held so far."""
    (worker,) = checking._idle
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def test_a_body_that_takes_too_much_memory_is_refused_and_its_process_replaced() -> None:
    checking = Parser(0, Most(), 60.0, check_slowly, _MOST_MEMORY)
    try:
        assert len(await checking.prepare(_HUNGRY + b"100")) == 3
        other = asyncio.create_task(checking.prepare(_HUNGRY + b"50", 2))
        with pytest.raises(ProblemError) as refused:
            await checking.prepare(_HUNGRY + b"1000", 1)
        assert refused.value.code is Code.BODY_TOO_LARGE
        assert "memory" in refused.value.detail
        assert len(await other) == 3
        assert len(await checking.prepare(_LARGE, 1)) == 3
        assert not checking._busy
    finally:
        checking.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (orjson.dumps(job() | {f"{n:05}": 1 for n in range(1_000_000)}), Code.INVALID_SPEC),
        (b'{"jobs":[' + b"[]," * 5_000_000 + b"[]]}", Code.BODY_TOO_LARGE),
        (b'{"jobs":[' + b'{"a":{}},' * (MOST_MARKS // 5) + b"{}]}", Code.INVALID_SPEC),
        (orjson.dumps({"jobs": [job() | {f"{n}": 1 for n in range(200)}] * 5000}), Code.INVALID_SPEC),
    ],
    ids=["unknown fields", "empty lists", "many jobs", "unknown fields of many jobs"],
)
async def test_a_refusal_takes_bounded_memory(body: bytes, code: Code) -> None:
    checking = Parser(0, Most(), 60.0, prepare, Settings().parser_memory_bytes)
    try:
        with pytest.raises(ProblemError):
            await checking.prepare(b"{}")
        empty = peak_bytes(checking)
        with pytest.raises(ProblemError) as refused:
            await checking.prepare(body)
        assert refused.value.code is code
        assert sum(len(one.path) + len(one.message) for one in refused.value.mistakes) < 20_000
        assert peak_bytes(checking) - empty < 300 * 2**20
    finally:
        checking.close()


async def test_the_largest_submissions_have_room() -> None:
    checking = Parser(0, Most(), 60.0, prepare, Settings().parser_memory_bytes)
    long, row = job(), job()
    long["roles"][0]["template"]["env"] = {f"NAME_{n}": "x" * 40 for n in range(50)}
    row["roles"][0]["template"]["args"] = ["${a}", "${b}", "${c}"]
    table: dict[str, Any] = {"job": row}
    try:
        assert len(await checking.prepare(orjson.dumps({"jobs": [long] * 10_000}))) == 10_000
        table["parameters"] = [{"a": n, "b": f"{n / 7:.4f}", "c": f"{n:050}"} for n in range(100_000)]
        assert len(await checking.prepare(orjson.dumps(table))) == 100_000
    finally:
        checking.close()
