"""The example of a hyper-parameter study on a real dispatcher: it finds what theory knows, and stops bad trials early."""

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_sdk import local_agent
from tests.waiting import eventually
from trainmaster import AsyncClient, JobFilter, JobView
from trainmaster.protocol.states import JobState

STUDY = Path(__file__).parents[2] / "examples/study/study.py"
TRIALS = 24


async def started(service: Service, queue: str) -> asyncio.subprocess.Process:
    env = os.environ | {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": ADMIN_KEY}
    return await asyncio.create_subprocess_exec(
        sys.executable, STUDY, queue, env=env, stdout=asyncio.subprocess.PIPE, stderr=-1
    )


async def jobs_of(service: Service) -> list[JobView]:
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        return [job async for job in client.jobs(JobFilter(labels={"study": "rates"}))]


async def test_the_study_finds_the_best_rate_and_stops_bad_trials_early(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        process = await started(service, "default")
        output, errors = await asyncio.wait_for(process.communicate(), 240)
        await service_idle(service)
    assert (process.returncode, errors) == (0, b""), (output, errors)
    *trials, summary, best = output.decode().splitlines()
    found = re.fullmatch(r"best rate (0\.\d+), by theory 0\.1818", best)
    assert found is not None, best
    assert float(found[1]) == pytest.approx(2 / 11, rel=0.2)
    stopped = sum("stopped after step" in line for line in trials)
    assert (len(trials), summary) == (TRIALS, f"{TRIALS} trials, {stopped} stopped early")
    assert stopped > 0
    ends = Counter(job.state for job in await jobs_of(service))
    # A trial may end by itself between its last report and its cancellation.
    assert ends.total() == TRIALS
    assert 0 < ends[JobState.CANCELLED] <= stopped
    assert ends[JobState.CANCELLED] + ends[JobState.SUCCEEDED] == TRIALS


async def service_idle(service: Service) -> None:
    async def ended() -> bool:
        return all(job.state.is_terminal for job in await jobs_of(service))

    await eventually(ended, 60)


async def test_a_study_that_is_interrupted_cancels_its_trials(service: Service, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        process = await started(service, "default")

        async def runs() -> bool:
            return any(job.state is JobState.RUNNING for job in await jobs_of(service))

        await eventually(runs, 120)
        process.send_signal(signal.SIGINT)
        output, errors = await asyncio.wait_for(process.communicate(), 240)
        await service_idle(service)
    assert (process.returncode, errors) == (130, b""), (output, errors)
    assert re.fullmatch(r"stopped after \d+ trials", output.decode().splitlines()[-1])
    ends = {job.state for job in await jobs_of(service)}
    assert JobState.CANCELLED in ends <= {JobState.CANCELLED, JobState.SUCCEEDED}


async def test_a_study_in_a_queue_that_does_not_exist_says_so(service: Service) -> None:
    process = await started(service, "nowhere")
    output, errors = await asyncio.wait_for(process.communicate(), 240)
    assert (process.returncode, output) == (1, b"")
    assert errors.decode().startswith("the study broke off: there is no queue 'nowhere'")
