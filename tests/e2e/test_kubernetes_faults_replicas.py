"""Two replicas of an agent: the second takes over from one that stands still or leaves, and no running pod is touched."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.chart import helm
from tests.cluster.fixtures import need_programs
from tests.e2e.fault_testbed import Environment, a_gang, open_testbed, until

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

NODES = {"north": (2, {"cpu": "128", "memory": "512Gi", "pods": "250"})}
LEASE = "10s"
"""As it is by default."""
ACTS = "this replica holds the lease and acts now"
FIRST, SECOND = "agent-north", "agent-north-b"


async def open_second(testbed: Environment) -> None:
    testbed.replica("north", SECOND)
    await testbed.until_said(SECOND, "waiting for the lease, which another replica holds:")


async def check_end(testbed: Environment, jobs: dict[str, int]) -> str:
    site = testbed.site
    returned = 0
    for job, members in jobs.items():
        done = await testbed.until_job(job, "succeeded", "failed", "cancelled")
        assert done.state == "succeeded", done
        returned += sum(run.state == "returned" for run in done.runs)
        assert len(done.runs) == 1
        starts = site.starts(done.runs[0].id)
        assert sorted(starts.values()) == [1] * members
    await site.until_empty()
    assert not site.doubled()
    return f"{sum(jobs.values())} members started once, 0 doubled, 0 leaked, returned {returned} of {len(jobs)}"


async def creating(testbed: Environment) -> tuple[str, str, set[str]]:
    """Let a second replica wait, a gang of 10 run, and one of 200 have 60 pods; return both jobs, and the first gang's pods."""
    site = testbed.site
    await open_second(testbed)
    steady = await testbed.submit(a_gang("steady", 10, "gate", "end"))
    await testbed.until_job(steady, "running")
    before = {life.uid for life in site.kubelet.living()}
    seeing = asyncio.create_task(site.seen("pods", 60))
    await asyncio.sleep(0.3)
    gang = await testbed.submit(a_gang("gang", 200, "gate", "end"))
    await seeing
    return steady, gang, before


async def test_an_agent_that_stood_still_creates_nothing_more_when_it_wakes(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES, lease=LEASE) as testbed:
        site = testbed.site
        steady, gang, before = await creating(testbed)
        testbed.process(FIRST).send_signal(signal.SIGSTOP)
        seconds = await testbed.until_said(SECOND, ACTS)
        assert seconds < 15
        await testbed.until_job(gang, "running")
        pods = {one["metadata"]["uid"] for one in await site.objects("pods")}
        assert len(pods) == 210
        testbed.process(FIRST).send_signal(signal.SIGCONT)
        began = time.monotonic()
        await until(lambda: testbed.process(FIRST).poll() is not None, "the one that woke ends itself")
        woke = time.monotonic() - began
        code, said = testbed.process(FIRST).poll(), testbed.log(FIRST).strip().splitlines()[-1]
        assert code == 16
        assert "another" in said or "newer session" in said, said
        assert {one["metadata"]["uid"] for one in await site.objects("pods")} == pods
        assert before <= {life.uid for life in site.kubelet.living()}
        site.kubelet.open_gate("end")
        words = await check_end(testbed, {steady: 10, gang: 200})
        print(
            f"\nSIGSTOP with 60 of 200 pods: the second acts after {seconds:.1f} s; the first woke, created nothing and left"
        )
        print(f"after {woke:.1f} s with code {code}: {said!r}; {words}")


async def test_an_agent_that_leaves_hands_over_at_once(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES, lease=LEASE) as testbed:
        site = testbed.site
        steady, gang, before = await creating(testbed)
        testbed.process(FIRST).send_signal(signal.SIGTERM)
        seconds = await testbed.until_said(SECOND, ACTS)
        await until(lambda: testbed.process(FIRST).poll() is not None, "the first has left")
        assert testbed.process(FIRST).poll() == 0, testbed.log(FIRST)
        assert seconds < 8
        await testbed.until_job(gang, "running")
        assert before <= {life.uid for life in site.kubelet.living()}
        site.kubelet.open_gate("end")
        words = await check_end(testbed, {steady: 10, gang: 200})
        print(f"\nSIGTERM with 60 of 200 pods: the second acts after {seconds:.1f} s; {words}")
