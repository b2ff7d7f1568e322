"""Scripts with the SDK and the command line go on while the api is killed and started again, again and again."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.stage import Stage, started
from trainmaster import AsyncClient, Client, Ended, EventView, JobView, LogPiece, TrainmasterError
from trainmaster_dispatcher.cli.embedded import wait_for_port

pytestmark = pytest.mark.faults

AWAY_SECONDS = 0.5
UP_SECONDS = float(os.environ.get("TRAINMASTER_UP_SECONDS", "2.5"))
"""From the moment when the api answers to its next death; with its start that makes some five seconds."""
WORK_SECONDS = 8.0
"""Scripts submit for this time; what they have submitted is then waited for."""
LINES = 12


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with started(tmp_path_factory.mktemp("restarts") / "stage") as built:
        yield built


@dataclass
class Work:
    """What scripts have submitted and how their jobs ended, as they saw it themselves."""

    stage: Stage
    until: float
    submitted: dict[str, str] = field(default_factory=dict)
    """Id by name; each name is submitted by one call."""
    ended: dict[str, str] = field(default_factory=dict)
    """State by id, from waits and watches."""
    retries: int = 0
    whole_outputs: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.stage.api_ports[0]}"

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def check_output(self, text: str) -> None:
        """Check that no line is repeated or left out."""
        lines = text.splitlines()
        assert lines == [f"line {number}" for number in range(LINES)], text
        self.whole_outputs += 1

    def count(self, _error: TrainmasterError, _pause: float) -> None:
        self.retries += 1


def spec(name: str, *, fails: bool = False) -> dict[str, Any]:
    """Return a job that prints lines for about a second."""
    code = f"import time\nfor n in range({LINES}):\n    print('line', n, flush=True)\n    time.sleep(0.08)\n"
    command = [sys.executable, "-I", "-S", "-c", code + f"raise SystemExit({3 if fails else 0})"]
    template = {"command": command, "resources": {"cpu": "100m"}}
    return {"kind": "Job", "name": name, "queue": "default", "roles": [{"name": "main", "template": template}]}


def check_events(events: list[EventView]) -> None:
    """Check that every transition is there once, in order, none left out."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


# The scripts


def blocking_script(work: Work) -> None:
    """Submit, watch, wait, one job after the other; every third fails."""
    number = 0
    with Client(work.url, "tmk_admin", on_retry=work.count) as client:
        while work.goes_on:
            name, fails = f"sync-{number}", number % 3 == 2
            (job,) = client.submit(spec(name, fails=fails))
            work.submitted[name] = job
            items = list(client.watch(job))
            check_events([item for item in items if isinstance(item, EventView)])
            assert items[-1] == Ended("failed" if fails else "succeeded")
            work.ended[job] = client.wait(job).state
            number += 1


def waiting_script(work: Work) -> None:
    """Submit many at once from an event loop and wait for all, while others are submitted."""

    async def one(client: AsyncClient, name: str) -> JobView:
        (job,) = await client.submit(spec(name))
        work.submitted[name] = job
        return await client.wait(job)

    async def main() -> None:
        async with AsyncClient(work.url, "tmk_admin", on_retry=work.count) as client, asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[JobView]] = []
            while work.goes_on:
                tasks.append(group.create_task(one(client, f"async-{len(tasks)}")))
                await asyncio.sleep(0.3)
            for ended in await asyncio.gather(*tasks):
                work.ended[ended.id] = ended.state

    asyncio.run(main())


def table_script(work: Work) -> None:
    """Submit tables of parameters and wait for all of their jobs together."""
    number = 0
    with Client(work.url, "tmk_admin", on_retry=work.count) as client:
        while work.goes_on:
            given = spec(f"table-{number}")
            given["roles"][0]["template"]["env"] = {"RATE": "${rate}"}
            jobs = client.submit_parameters(given, [{"rate": rate} for rate in (0.1, 0.2, 0.3)])
            work.submitted |= {f"table-{number}#{index}": job for index, job in enumerate(jobs)}
            work.ended |= {ended.id: ended.state for ended in client.wait(jobs)}
            number += 1


def log_script(work: Work) -> None:
    """Follow the output of one job after the other."""
    number = 0
    with Client(work.url, "tmk_admin", on_retry=work.count) as client:
        while work.goes_on:
            name = f"logs-{number}"
            (job,) = client.submit(spec(name))
            work.submitted[name] = job
            items = list(client.logs(job, follow=True))
            work.check_output("".join(item.data for item in items if isinstance(item, LogPiece)))
            assert items[-1] == Ended("succeeded")
            work.ended[job] = "succeeded"
            number += 1


def command_script(work: Work) -> None:
    """Run the command line: ``submit --wait``, ``submit`` with ``watch``, ``logs -f``, ``job`` and ``jobs``."""
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.yaml")
        while work.goes_on:
            name, fails = f"cli-{number}", number % 4 == 3
            file.write_text(yaml.safe_dump(spec(name, fails=fails)))
            if number % 2 == 0:
                done = command(work, "submit", str(file), "--wait")  # of an even number, which does not fail
                job = done.stdout.split()[0]
            else:
                job = command(work, "submit", str(file)).stdout.strip()
                work.check_output(command(work, "logs", "-f", job).stdout)
                done = command(work, "watch", job, expected=10 if fails else 0)
                assert "failed" in done.stdout if fails else "succeeded" in done.stdout
            work.submitted[name] = job
            work.ended[job] = "failed" if fails else "succeeded"
            assert job in command(work, "jobs", "-A").stdout
            number += 1


def command(work: Work, *words: str, expected: int = 0) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"TRAINMASTER_URL": work.url, "TRAINMASTER_API_KEY": "tmk_admin"}
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == expected, (words, done)
    work.retries += len(re.findall("trying again", done.stderr))
    return done


# The fault


@contextmanager
def restarting(stage: Stage) -> Iterator[list[float]]:
    """Kill and restart the only api repeatedly, when it has been up for a while; yield the times of its deaths."""
    enough, deaths = threading.Event(), list[float]()
    stage.kill("api-1")

    def run() -> None:
        while not enough.wait(UP_SECONDS):
            stage.kill("api-0")
            deaths.append(time.monotonic())
            enough.wait(AWAY_SECONDS)
            _start_api(stage)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield deaths
    finally:
        enough.set()
        thread.join(40)
        stage.kill("api-0")  # the kernel ends a child with the thread that started it; the next one is this thread's
        _start_api(stage)


def _start_api(stage: Stage) -> None:
    stage.revive("api-0")
    process = stage.children["api-0"].process
    assert process is not None
    wait_for_port(stage.api_ports[0], process, 60, "api-0")


@dataclass
class Running:
    """A script in a thread of its own; its error is raised by ``finish``."""

    script: Callable[[Work], None]
    work: Work
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True, name=self.script.__name__)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.script(self.work)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.errors.append(error)

    def finish(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive(), f"{self.thread.name} did not come to an end"
        if self.errors:
            raise self.errors[0]


def test_scripts_and_commands_go_on_and_make_no_job_twice(stage: Stage) -> None:
    work = Work(stage, time.monotonic() + WORK_SECONDS)
    with restarting(stage) as deaths:
        scripts = [
            Running(script, work)
            for script in (blocking_script, waiting_script, table_script, log_script, command_script)
        ]
        for script in scripts:
            script.finish()
    jobs = stage.jobs()
    assert work.whole_outputs > 0
    print(f"{len(deaths)} restarts, {work.retries} retries, {len(jobs)} jobs")
    assert len(deaths) >= 2
    assert work.retries > 0, "no restart was noticed, so nothing was shown"
    assert jobs.keys() == set(work.submitted.values()), "jobs lost or doubled"
    assert len(work.submitted) == len(jobs)
    names = Counter(job["name"] for job in jobs.values())
    assert {name: count for name, count in names.items() if count > 1} == {
        name: 3 for name in names if name.startswith("table-")
    }
    assert work.ended.keys() == jobs.keys()
    for job_id, state in work.ended.items():
        assert jobs[job_id]["state"] == state, (job_id, jobs[job_id])
        assert jobs[job_id]["attempt"] == 1, f"{job_id} was stopped though nobody asked: {stage.history(job_id)}"
