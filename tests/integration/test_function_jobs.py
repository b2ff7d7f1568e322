"""Functions as jobs on a real dispatcher, whose agent runs members as processes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_sdk import local_agent
from trainmaster import (
    AsyncClient,
    AsyncFunctionJob,
    Client,
    Ended,
    FunctionJob,
    JobFailedError,
    LogPiece,
    ProblemError,
    WaitTimeoutError,
)
from trainmaster.client.functions import MOST_FUNCTION_BYTES
from trainmaster.protocol.states import JobState

JOB = {"queue": "default", "resources": {"cpu": "100m"}}


@pytest.fixture
async def client(service: Service, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with local_agent(service, tmp_path), AsyncClient(service.url, ADMIN_KEY) as made:
        yield made


async def test_a_function_runs_as_a_job_and_its_value_comes_back(client: AsyncClient) -> None:
    factor = 7

    def scaled(number: int, *, plus: int = 0) -> dict[str, object]:
        print("scaling", number)
        return {"value": number * factor + plus, "half": 0.5}

    handle = await client.submit_function(scaled, 5, plus=1, job=JOB | {"labels": {"study": "first"}})
    assert await handle.result(30) == {"value": 36, "half": 0.5}
    ended = await handle.wait()
    assert (ended.name, ended.labels, ended.cluster) == ("scaled", {"study": "first"}, "private")
    assert ended.results == {"value": {"value": 36, "half": 0.5}}
    assert "".join([item.data async for item in handle.logs() if isinstance(item, LogPiece)]) == "scaling 5\n"
    again: AsyncFunctionJob[object] = AsyncFunctionJob(client, handle.job)
    assert await again.result() == {"value": 36, "half": 0.5}


async def test_the_largest_function_that_is_accepted_runs(client: AsyncClient) -> None:
    data = bytes(range(256)) * 4
    blob = _incompressible(MOST_FUNCTION_BYTES - 10_000)
    handle = await client.submit_function(lambda *parts: [len(one) for one in parts], data, blob, job=JOB)
    assert await handle.result(30) == [1024, MOST_FUNCTION_BYTES - 10_000]


def _incompressible(length: int) -> bytes:
    import random

    return random.Random(7).randbytes(length)


async def test_an_exception_is_raised_where_the_value_is_asked_for(client: AsyncClient) -> None:
    def fails(path: str) -> None:
        raise LookupError(f"no data in {path}")

    handle = await client.submit_function(fails, "/data", job=JOB)
    with pytest.raises(LookupError, match="no data in /data") as caught:
        await handle.result(30)
    assert f"in job {handle.job}:\nTraceback" in str(caught.value.__cause__)
    assert (await handle.wait()).state is JobState.FAILED


async def test_a_function_is_tried_again_as_any_job(client: AsyncClient) -> None:
    def third_time() -> int:
        import os

        attempt = int(os.environ["TRAINMASTER_ATTEMPT"])
        if attempt < 3:
            raise RuntimeError(f"attempt {attempt}")
        return attempt

    handle = await client.submit_function(third_time, job=JOB | {"retries": {"limit": 2, "backOff": "0s"}})
    assert await handle.result(30) == 3


async def test_a_job_that_is_killed_or_cancelled_has_no_value(client: AsyncClient) -> None:
    def kills_itself() -> None:
        import os

        os.kill(os.getpid(), 9)

    killed = await client.submit_function(kills_itself, job=JOB)
    sleeping = await client.submit_function(time.sleep, 60, job=JOB)
    with pytest.raises(JobFailedError, match="killed by signal 9"):
        await killed.result(30)
    with pytest.raises(WaitTimeoutError):
        await sleeping.result(0.1)
    assert (await sleeping.cancel(grace="0s")).changed
    with pytest.raises(JobFailedError, match="cancelled"):
        await sleeping.result(30)


async def test_a_field_that_jobs_do_not_have_is_refused_by_the_dispatcher(client: AsyncClient) -> None:
    with pytest.raises(ProblemError) as caught:
        await client.submit_function(len, "abc", job=JOB | {"quee": "default"})
    assert [one.path for one in caught.value.mistakes] == ["jobs[0].quee"]


async def test_the_blocking_client_does_the_same(client: AsyncClient, service: Service) -> None:
    def counting(last: int) -> int:
        for number in range(last):
            print(number)
        return last

    def work() -> None:
        with Client(service.url, ADMIN_KEY) as blocking:
            handle = blocking.submit_function(counting, 3, job=JOB)
            *pieces, end = list(handle.logs(follow=True))
            assert "".join(piece.data for piece in pieces if isinstance(piece, LogPiece)) == "0\n1\n2\n"
            assert end == Ended("succeeded")
            assert FunctionJob[int](blocking, handle.job).result(30) == 3
            assert not handle.cancel().changed
            assert handle.wait().state is JobState.SUCCEEDED

    await asyncio.to_thread(work)
