"""What people do to a cluster by hand: pods and namespaces deleted, permissions taken away, a quota filled.

A run then ends as documented, with the cluster's own words where it has any, and its job is not lost.
"""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.fixtures import need_programs
from tests.e2e.fault_testbed import RESTART_MEMBER, Environment, a_gang, kubectl, open_testbed, until
from trainmaster.protocol.states import RunState
from trainmaster.protocol.tenants import JobView, RunView

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

NODES = {"north": (2, {"cpu": "16", "memory": "64Gi", "pods": "110"})}


async def run_again(testbed: Environment, job: str) -> JobView:
    """Let a job that is held as unplaceable be tried again, and wait until it runs."""
    held = await testbed.until_job(job, "held", "queued", "dispatched", "running")
    if held.state == "held":
        assert held.hold_cause == "unplaceable", held
        await asyncio.to_thread(testbed.client.resume, job)
    return await testbed.until_job(job, "running")


async def check_end(testbed: Environment, *jobs: str) -> str:
    """Check that all jobs succeed, and that nothing lived twice or is left; return the counts as a sentence."""
    site = testbed.site
    runs: list[RunView] = []
    for job in jobs:
        done = await testbed.until_job(job, "succeeded", "failed", "cancelled")
        assert done.state == "succeeded", done
        assert done.retries_used == 0
        runs += done.runs
    await site.until_empty()
    assert not site.doubled()
    returned = sum(run.state == "returned" for run in runs)
    return f"{len(jobs)} of {len(jobs)} jobs succeeded, 0 doubled, 0 leaked, returned {returned} of {len(runs)} runs"


async def test_a_member_deleted_by_hand_ends_its_gang_or_comes_again_alone(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        site = testbed.site
        whole = await testbed.submit(a_gang("whole", 4, "gate", "end"))
        mends = await testbed.submit(a_gang("mends", 4, "gate", "end", memberFailure=RESTART_MEMBER))
        first = (await testbed.until_job(whole, "running")).runs[0].id
        mending = (await testbed.until_job(mends, "running")).runs[0].id
        stayed = {life.uid for life in site.living(mending) if not life.name.endswith("worker-2")}
        await kubectl(site, "delete", "pod", f"{first}-worker-2", f"{mending}-worker-2")
        preempted = await testbed.until_run(whole, RunState.PREEMPTED)
        assert "somebody deleted worker-2" in preempted.message
        await testbed.until_run(whole, RunState.RUNNING, attempt=2)
        await until(lambda: len(site.living(mending)) == 4, "the deleted member has come again")
        assert stayed <= {life.uid for life in site.living(mending)}
        assert sorted(site.starts(mending).values()) == [1, 1, 1, 2]
        site.kubelet.open_gate("end")
        words = await check_end(testbed, whole, mends)
        assert len(await testbed.runs(mends)) == 1
        print(f"\nmembers deleted by hand: {preempted.state} ({preempted.message!r}) and run again: {words}")


async def test_jobs_run_again_after_their_namespace_was_deleted(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        site = testbed.site
        job = await testbed.submit(a_gang("gang", 8, "gate", "end"))
        await testbed.until_job(job, "running")
        await site.api.delete(f"/api/v1/namespaces/{JOBS}")
        ended = await testbed.until_run(job, RunState.PREEMPTED)

        async def gone() -> bool:
            names = [one["metadata"]["name"] for one in (await site.api.get("/api/v1/namespaces"))["items"]]
            return JOBS not in names

        await until(gone, "the namespace is gone")
        assert not site.kubelet.living()
        await testbed.until_cluster("north", lambda cluster: bool(cluster.closed))
        closed = (await testbed.cluster("north")).closed
        await install_agent(site.plane, "north")
        await testbed.until_cluster("north", lambda cluster: not cluster.closed)
        await run_again(testbed, job)
        new = await testbed.submit(a_gang("new", 2, "gate", "end"))
        await testbed.until_job(new, "running")
        site.kubelet.open_gate("end")
        words = await check_end(testbed, job, new)
        print(f"\nnamespace deleted: {ended.state} ({ended.message!r}), then closed ({closed!r}), then {words}")


async def test_without_a_permission_runs_are_returned_with_the_words_of_the_cluster(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        site = testbed.site
        lasting = await testbed.submit(a_gang("lasting", 4, "gate", "lasting"))
        ends = await testbed.submit(a_gang("ends", 2, "gate", "ends"))
        await testbed.until_job(lasting, "running")
        await testbed.until_job(ends, "running")
        await kubectl(site, "delete", "rolebinding", "--all")
        site.kubelet.open_gate("ends")
        new = await testbed.submit(a_gang("new", 4, "gate", "lasting"))
        returned = await testbed.until_run(new, RunState.RETURNED)
        assert 'cannot create resource "podgroups"' in returned.message
        waiting = await testbed.job(new)
        assert len(site.kubelet.living()) == 4, "what runs is left alone"
        await install_agent(site.plane, "north")
        await run_again(testbed, new)
        site.kubelet.open_gate("lasting")
        words = await check_end(testbed, lasting, ends, new)
        print(
            f"\npermission revoked: {returned.message!r}, the job was {waiting.state} {waiting.hold_cause or ''}; {words}"
        )


async def test_a_run_that_a_quota_refuses_is_returned_with_its_words(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        site = testbed.site
        quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "6"}}}
        services = {"metadata": {"name": "names"}, "spec": {"hard": {"count/services": "1"}}}
        path = f"/api/v1/namespaces/{JOBS}/resourcequotas"
        await site.api.post(path, quota)
        filling = await testbed.submit(a_gang("filling", 4, "gate", "end"))
        await testbed.until_job(filling, "running")
        over = await testbed.submit(a_gang("over", 4, "gate", "end"))
        by_room = await testbed.until_run(over, RunState.RETURNED)
        assert "quota team" in by_room.message
        held = await testbed.until_job(over, "held", "queued")
        await site.api.delete(f"{path}/team")
        await site.api.post(path, services)

        async def counted() -> bool:
            status = (await site.api.get(f"{path}/names"))["status"]
            return bool(status.get("used", {}).get("count/services") == "1")

        await until(counted, "the quota is counted")
        refused = await testbed.submit(a_gang("refused", 4, "gate", "end"))
        by_server = await testbed.until_run(refused, RunState.RETURNED)
        assert "exceeded quota: names" in by_server.message
        assert len(site.kubelet.living()) == 4
        await site.api.delete(f"{path}/names")
        await run_again(testbed, over)
        await run_again(testbed, refused)
        site.kubelet.open_gate("end")
        words = await check_end(testbed, filling, over, refused)
        print(
            f"\nquota filled: {by_room.message!r}, the job was {held.state} {held.hold_cause or ''};"
            f" {by_server.message!r}; {words}"
        )


async def test_without_its_priority_class_runs_are_returned_and_it_is_named(tmp_path: Path) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        await testbed.site.api.delete("/apis/scheduling.k8s.io/v1/priorityclasses/trainmaster")
        job = await testbed.submit(a_gang("gang", 3, "gate", "end"))
        returned = await testbed.until_run(job, RunState.RETURNED)
        assert "no PriorityClass with name trainmaster was found" in returned.message
        await install_agent(testbed.site.plane, "north")
        await run_again(testbed, job)
        testbed.site.kubelet.open_gate("end")
        print(f"\nno PriorityClass: {returned.message!r}; {await check_end(testbed, job)}")
