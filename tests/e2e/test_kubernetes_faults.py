"""Faults of the agent's process on real control planes: it is killed while it creates a gang, at many moments.

Whatever the moment: each member starts once, the run ends as it would have, and nothing is left.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.cluster.chart import JOBS, helm
from tests.cluster.fixtures import need_programs
from tests.e2e.fault_testbed import Environment, a_gang, open_testbed

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

SIZE = 200
NODES = {"north": (2, {"cpu": "128", "memory": "512Gi", "pods": "250"})}
MOMENTS = [
    ("before any object", "dispatched", 0),
    ("just after the record", "records", 1),
    ("just after the PodGroup", "podgroups", 1),
    *((f"with {count} pods", "pods", count) for count in (1, 20, 60, 100, 101, 160, 200)),
]
"""The last one is just after all; 100 and 101 are around the end of a batch."""


async def one_kill(testbed: Environment, number: int, kind: str, count: int) -> tuple[int, int, int]:
    """Kill the agent once ``count`` objects of ``kind`` exist, and start it again; return starts, runs and returned runs."""
    site = testbed.site
    gate = f"gate-{number}"
    if kind == "dispatched":
        job = await testbed.submit(a_gang(f"kill-{number}", SIZE, "gate", gate))
        await testbed.until_job(job, "dispatched")
    else:
        seeing = asyncio.create_task(site.seen(kind, count))
        await asyncio.sleep(0.3)
        job = await testbed.submit(a_gang(f"kill-{number}", SIZE, "gate", gate))
        await seeing
    testbed.kill("agent-north")
    await asyncio.sleep(0.3)
    there = len(await site.objects("pods"))
    testbed.start("agent-north")
    await testbed.until_job(job, "running")
    runs = await testbed.runs(job)
    assert len(await site.objects("pods", runs[-1].id)) == SIZE
    site.kubelet.open_gate(gate)
    done = await testbed.until_job(job, "succeeded", "failed", "cancelled")
    assert done.state == "succeeded", done
    await site.until_empty()
    starts = site.starts(runs[-1].id)
    assert len(starts) == SIZE
    assert set(starts.values()) == {1}
    returned = sum(run.state == "returned" for run in done.runs)
    assert len(done.runs) == 1 + returned
    print(f"killed {MOMENTS[number][0]}: {there} pods were there; {sum(starts.values())} starts, {returned} returned")
    return sum(starts.values()), len(done.runs), returned


@pytest.mark.parametrize("placement", ["native", "gates"])
async def test_a_gang_starts_once_whenever_its_agent_is_killed(tmp_path: Path, placement: str) -> None:
    async with open_testbed(tmp_path, NODES, placement=placement) as testbed:
        moments = [(number, kind, count) for number, (_, kind, count) in enumerate(MOMENTS)]
        if placement == "gates":
            moments = [one for one in moments if one[1] != "podgroups"][::3]
        outcomes = [await one_kill(testbed, *moment) for moment in moments]
        doubled = testbed.site.doubled()
        runs, returned = sum(one[1] for one in outcomes), sum(one[2] for one in outcomes)
        print(
            f"\n{placement}: {len(outcomes)} kills, {len(doubled)} doubled, {len(await testbed.site.left())} kinds leaked,"
            f" returned {returned} of {runs} runs"
        )
        assert not doubled
        assert not await testbed.site.left()
    with contextlib.suppress(FileNotFoundError):
        assert "Traceback" not in testbed.log("agent-north")


async def test_a_gang_that_nearly_fills_its_quota_is_completed_by_the_agent_that_comes_after(tmp_path: Path) -> None:
    """The existing part of a gang already counts as used, and must not be subtracted again from the quota that is left.

    The quota has room for 32 more, as many as the agent creates at a time: a creation that was cut off stays counted
    until Kubernetes recounts, which may take five minutes.
    """
    async with open_testbed(tmp_path, NODES) as testbed:
        site = testbed.site
        quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "92"}}}
        await site.api.post(f"/api/v1/namespaces/{JOBS}/resourcequotas", quota)
        seeing = asyncio.create_task(site.seen("pods", 20))
        await asyncio.sleep(0.3)
        job = await testbed.submit(a_gang("quota", 60, "gate", "end"))
        await seeing
        testbed.kill("agent-north")
        await asyncio.sleep(0.3)
        there = len(await site.objects("pods"))
        testbed.start("agent-north")
        await testbed.until_job(job, "running")
        site.kubelet.open_gate("end")
        done = await testbed.until_job(job, "succeeded", "failed", "cancelled")
        assert (done.state, len(done.runs)) == ("succeeded", 1), done
        assert sorted(site.starts(done.runs[0].id).values()) == [1] * 60
        await site.until_empty()
        assert not site.doubled()
        print(f"\nkilled with {there} of 60 pods in a quota for 92: 60 starts, 0 doubled, 0 leaked, returned 0 of 1")
