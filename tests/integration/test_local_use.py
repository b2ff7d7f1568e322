"""The use of members of the local runtime: real processes, compared with what this test reads of them in /proc."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.runtime_suite import stop_run
from tests.waiting import eventually
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.layout import boottime
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_agent.runtime.port import MemberUse

CLUSTER = LocalCluster.model_validate({"nodes": [{"allocatable": {"cpu": "8", "memory": "8Gi"}}]})
TICKS = os.sysconf("SC_CLK_TCK")
HOLD = "held = bytearray(200 << 20); held[::4096] = b'x' * len(held[::4096])"
BURN = f"{HOLD}\nimport os\nopen('pid', 'w').write(str(os.getpid()))\nwhile True: pass"
HALF = f"""
{HOLD}
import os, time
open('pid', 'w').write(str(os.getpid()))
while True:
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
    time.sleep(0.02)
"""
CHILDREN = """
import os, subprocess, sys, time
burn = "import time\\nend = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"
open('pid', 'w').write(str(os.getpid()))
while True:
    subprocess.run([sys.executable, "-c", burn])
"""
ELSEWHERE = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "held = bytearray(200 << 20)\\nwhile True: pass"], start_new_session=True)
open('pid', 'w').write(str(os.getpid()))
import time
time.sleep(1000)
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    runtime = LocalRuntime(tmp_path / "state", CLUSTER)
    await runtime.open()
    await runtime.renew(boottime())
    yield runtime
    for run in runtime.held():
        await runtime.stop(stop_run(run, grace=0))

    async def all_ended() -> bool:
        return all(status.state.is_terminal for status in runtime.held().values())

    await eventually(all_ended)
    await runtime.close()


async def start(runtime: LocalRuntime, program: str, tmp_path: Path, replicas: int = 1) -> None:
    """Start a run, and wait until its members have written their process ids."""
    template = {"command": [sys.executable, "-c", program], "resources": {"cpu": "1", "memory": "1Gi"}}
    await runtime.start(
        StartRun(
            run="burn-1234567-r1",
            job="burn-1234567",
            queue="default",
            attempt=1,
            token=1,
            generation=1,
            spec={
                "name": "burn",
                "queue": "default",
                "roles": [{"name": "main", "replicas": replicas, "template": template}],
            },
            sizes={"main": replicas},
            placement_timeout_seconds=30,
        )
    )

    async def all_run() -> bool:
        return len(pids(tmp_path)) == replicas and runtime.held()["burn-1234567-r1"].state is RunState.RUNNING

    await eventually(all_run)


def pids(tmp_path: Path) -> list[int]:
    found = (path.read_text() for path in sorted(tmp_path.glob("state/**/main-*/pid")))
    return [int(text) for text in found if text]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def scheduled_seconds(pid: int) -> float:
    """Return the time on a CPU by the kernel's scheduler, in nanoseconds there: not the clock ticks that the agent reads."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def mapped(pid: int) -> int:
    """Return the resident bytes by the page tables of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss"))


def note_restarts(tmp_path: Path, many: int) -> None:
    """Write what a supervisor notes of restarts: the length of the output at each."""
    (lives,) = (path.with_name("main-0.lives") for path in tmp_path.glob("state/**/main-0") if path.is_dir())
    lives.write_text("10\n" * many)


async def after_burning(runtime: LocalRuntime, pid: int, seconds: float) -> tuple[MemberUse, float]:
    """Return what the runtime reports of the only member after its process has used CPU for so long, and the rate as read here."""
    await runtime.member_use()
    began, at = cpu_seconds(pid), time.monotonic()

    async def has_burnt() -> bool:
        return cpu_seconds(pid) - began >= seconds

    await eventually(has_burnt, 60)
    (found,) = (await runtime.member_use()).members
    return found, (cpu_seconds(pid) - began) / (time.monotonic() - at)


async def test_a_member_that_uses_a_core_and_holds_memory_is_reported_so(runtime: LocalRuntime, tmp_path: Path) -> None:
    await start(runtime, BURN, tmp_path)
    (pid,) = pids(tmp_path)
    found, rate = await after_burning(runtime, pid, 2.0)
    assert (found.run, found.role, found.index) == ("burn-1234567-r1", "main", 0)
    assert found.cpu == pytest.approx(rate, rel=0.15)
    assert found.memory == pytest.approx(resident(pid), rel=0.15)
    assert (found.memory or 0) > 200 << 20
    assert (found.gpu, found.gpu_memory) == (None, None)


async def test_use_is_within_five_percent_of_an_independent_reading(runtime: LocalRuntime, tmp_path: Path) -> None:
    """The kernel's scheduler and page tables say the same as the agent, which counts clock ticks and reads statm."""
    await start(runtime, HALF, tmp_path)
    (pid,) = pids(tmp_path)

    async def read() -> tuple[MemberUse, float, float]:
        before, began = scheduled_seconds(pid), time.monotonic()
        (found,) = (await runtime.member_use()).members
        # The agent reads somewhere in between.
        return found, (before + scheduled_seconds(pid)) / 2, (began + time.monotonic()) / 2

    _, used_before, began = await read()

    async def has_burnt() -> bool:
        return scheduled_seconds(pid) - used_before >= 3.0

    await eventually(has_burnt, 90)
    found, used, ended = await read()
    rate = (used - used_before) / (ended - began)
    assert 0.02 < rate < 0.98, "it sleeps for a part of the time"
    assert found.cpu == pytest.approx(rate, rel=0.05)
    assert found.memory == pytest.approx(mapped(pid), rel=0.05)
    assert (found.memory or 0) > 200 << 20


async def test_a_member_that_was_started_again_shows_its_restarts(runtime: LocalRuntime, tmp_path: Path) -> None:
    await start(runtime, BURN, tmp_path)
    (found,) = (await runtime.member_use()).members
    assert (found.restarts, found.oom_kills, found.near_limit) == (0, None, None)
    note_restarts(tmp_path, 2)
    (found,) = (await runtime.member_use()).members
    assert found.restarts == 2


async def test_what_ended_children_have_used_counts(runtime: LocalRuntime, tmp_path: Path) -> None:
    await start(runtime, CHILDREN, tmp_path)
    (pid,) = pids(tmp_path)
    found, rate = await after_burning(runtime, pid, 2.0)
    # The child that lives at each end of the interval is counted by the runtime alone.
    assert found.cpu == pytest.approx(rate, abs=0.3)
    assert (found.cpu or 0) > 0.2 * rate


async def test_processes_in_sessions_of_their_own_belong_to_the_member(runtime: LocalRuntime, tmp_path: Path) -> None:
    await start(runtime, ELSEWHERE, tmp_path)

    async def is_counted() -> bool:
        (found,) = (await runtime.member_use()).members
        return (found.memory or 0) > 200 << 20 and (found.cpu or 0) > 0

    await eventually(is_counted)


async def test_each_member_has_its_own_use(runtime: LocalRuntime, tmp_path: Path) -> None:
    holds = f"import os, time\nif os.environ['TRAINMASTER_ROLE_INDEX'] == '1':\n  {HOLD}\n"
    program = f"{holds}open('pid', 'w').write('1')\ntime.sleep(999)"
    await start(runtime, program, tmp_path, replicas=3)
    found = {one.index: one.memory or 0 for one in (await runtime.member_use()).members}
    assert sorted(found) == [0, 1, 2]
    assert found[1] - max(found[0], found[2]) > 150 << 20


async def test_a_new_agent_knows_the_members_of_the_one_before(runtime: LocalRuntime, tmp_path: Path) -> None:
    await start(runtime, BURN, tmp_path)
    await runtime.close()
    again = LocalRuntime(tmp_path / "state", CLUSTER)
    await again.open()
    try:
        (found,) = (await again.member_use()).members
        assert (found.cpu or 0) > 0, "the average since the member's start"
    finally:
        await again.close()
        await asyncio.sleep(0)
        await runtime.open()
