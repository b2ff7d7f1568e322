"""Parser processes of an api: one body never keeps one for long, and other callers find a place."""

import asyncio
import time
from pathlib import Path

import orjson
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from tests.conftest import job
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.parsing import Parser
from trainmaster_dispatcher.services.submission_parsing import Most, PreparedSubmission, prepare

_FOR_EVER = b"for ever"
_LARGE = orjson.dumps({"jobs": [job()] * 3})


def check_slowly(body: bytes, most: Most) -> PreparedSubmission:
    """Do what ``prepare`` does; a body that never ends comes first, naming the file that shows that it has begun."""
    if body.startswith(_FOR_EVER):
        Path(body.removeprefix(_FOR_EVER).decode()).touch()
        while True:
            time.sleep(3600)
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
