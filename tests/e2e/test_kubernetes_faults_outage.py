"""The API server goes away, or has forgotten where a watch was: running jobs go on, nothing starts twice, all end."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.chart import helm
from tests.cluster.control_plane import SCHEDULER
from tests.cluster.fixtures import need_programs
from tests.e2e.fault_testbed import RESTART_MEMBER, Environment, Site, a_gang, kubectl, open_testbed, until
from trainmaster.protocol.states import RunState

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

AWAY_SECONDS = 120.0 if os.environ.get("TRAINMASTER_DEEP") == "1" else 20.0
NODE = {"cpu": "16", "memory": "64Gi", "pods": "110"}


async def check_end(testbed: Environment, jobs: dict[str, int]) -> str:
    """Check that each job succeeds, its members start once and in one run only, and nothing is left; return it as a sentence."""
    returned = runs = 0
    for job, members in jobs.items():
        done = await testbed.until_job(job, "succeeded", "failed", "cancelled")
        assert done.state == "succeeded", done
        assert done.retries_used == 0
        returned += sum(run.state == "returned" for run in done.runs)
        runs += len(done.runs)
        starts = [testbed.sites[run.cluster].starts(run.id) for run in done.runs]
        assert sorted(count for of_run in starts for count in of_run.values()) == [1] * members, done.runs
    doubled = 0
    for site in testbed.sites.values():
        await site.until_empty()
        doubled += len(site.doubled())
    assert not doubled
    return f"{len(jobs)} jobs succeeded in {runs} runs, {doubled} doubled, 0 leaked, returned {returned} of {runs}"


def uids(site: Site) -> set[str]:
    return {life.uid for life in site.kubelet.living()}


async def until_living(site: Site, count: int) -> None:
    await until(lambda: len(site.kubelet.living()) == count, f"{count} members live; {len(site.kubelet.living())} do")


async def test_jobs_outlive_their_api_server(tmp_path: Path) -> None:
    """One that waits, one that ends meanwhile, one that is being created, and one that is submitted meanwhile."""
    async with open_testbed(tmp_path, {"north": (8, NODE)}) as testbed:
        site = testbed.site
        lasting = await testbed.submit(a_gang("lasting", 4, "gate", "end"))
        short = await testbed.submit(a_gang("short", 2, "gate", "short"))
        await testbed.until_job(lasting, "running")
        await testbed.until_job(short, "running")
        before = uids(site)
        seeing = asyncio.create_task(site.seen("pods", 30))
        await asyncio.sleep(0.3)
        half = await testbed.submit(a_gang("half", 100, "gate", "end"))
        await seeing
        await site.plane.stop_api_server(signal.SIGKILL)
        site.kubelet.open_gate("short")
        early = await testbed.submit(a_gang("early", 3, "succeed"))
        await testbed.until_cluster("north", lambda cluster: "has not answered" in cluster.closed)
        reason = (await testbed.cluster("north")).closed
        given_back = await testbed.until_run(early, RunState.PREEMPTED)
        assert "has not answered" in given_back.message
        later = await testbed.submit(a_gang("later", 3, "succeed"))
        await asyncio.sleep(AWAY_SECONDS)
        still = uids(site) & before
        assert len(still) == 4, "the members of the lasting job run on"
        assert not (await testbed.job(later)).runs, "nothing is sent to a cluster that is closed"
        assert (await testbed.job(early)).state == "queued"
        await site.plane.start_api_server()
        await testbed.until_job(half, "running")
        await testbed.until_cluster("north", lambda cluster: not cluster.closed)
        assert still <= uids(site)
        site.kubelet.open_gate("end")
        words = await check_end(testbed, {lasting: 4, short: 2, half: 100, early: 3, later: 3})
        print(f"\nAPI server away for {AWAY_SECONDS:g} s ({reason!r}): {words}")


async def test_when_one_of_two_clusters_is_full_or_away_jobs_go_to_the_other(tmp_path: Path) -> None:
    sizes = {"north": (2, NODE), "south": (2, NODE)}
    async with open_testbed(tmp_path, sizes) as testbed:
        first = await testbed.submit(a_gang("first", 32, "gate", "first"))
        full = (await testbed.until_job(first, "running")).runs[0].cluster
        second = await testbed.submit(a_gang("second", 24, "gate", "second"))
        other = (await testbed.until_job(second, "running")).runs[0].cluster
        assert {full, other} == {"north", "south"}
        site = testbed.sites[other]
        before = uids(site)
        await site.plane.stop_api_server(signal.SIGKILL)
        third = await testbed.submit(a_gang("third", 16, "gate", "third"))
        fourth = await testbed.submit(a_gang("fourth", 4, "gate", "third"))
        await testbed.until_cluster(other, lambda cluster: bool(cluster.closed))
        closed = (await testbed.cluster(other)).closed
        assert not (await testbed.job(third)).runs
        testbed.sites[full].kubelet.open_gate("first")
        assert (await testbed.until_job(third, "running")).cluster == full
        assert (await testbed.until_job(fourth, "running")).cluster == full
        await asyncio.sleep(AWAY_SECONDS)
        assert uids(site) == before, "the members of the second job run on"
        await site.plane.start_api_server()
        await testbed.until_cluster(other, lambda cluster: not cluster.closed)
        for name in ("second", "third"):
            for one in testbed.sites.values():
                one.kubelet.open_gate(name)
        words = await check_end(testbed, {first: 32, second: 24, third: 16, fourth: 4})
        print(f"\ntwo clusters, one full, the other's API server away ({closed!r}): {words}")


async def test_changes_are_seen_after_the_api_server_has_forgotten_the_place_of_a_watch(tmp_path: Path) -> None:
    """The agent stands still while things change and the API server starts again: its watches then get 410."""
    async with open_testbed(tmp_path, {"north": (2, NODE)}) as testbed:
        site = testbed.site
        ends = await testbed.submit(a_gang("ends", 3, "gate", "ends"))
        mends = await testbed.submit(a_gang("mends", 3, "gate", "mends", memberFailure=RESTART_MEMBER))
        await testbed.until_job(ends, "running")
        run = (await testbed.until_job(mends, "running")).runs[0].id
        testbed.process("agent-north").send_signal(signal.SIGSTOP)
        site.kubelet.open_gate("ends")
        await kubectl(site, "delete", "pod", f"{run}-worker-1")
        await until(lambda: len(site.kubelet.living()) == 2, "what was to end has ended")
        await site.plane.stop_api_server(signal.SIGKILL)
        await site.plane.start_api_server()
        testbed.process("agent-north").send_signal(signal.SIGCONT)
        await testbed.until_job(ends, "succeeded")

        def has_come_again() -> bool:
            # kube-scheduler ends itself where a pod of the same name came while its own watch was broken; as kubelets do:
            site.plane.daemons[SCHEDULER].start()
            return len(site.living(run)) == 3

        await until(has_come_again, "the member that was deleted has come again")
        site.kubelet.open_gate("mends")
        done = await testbed.until_job(mends, "succeeded", "failed")
        assert done.state == "succeeded"
        lost = testbed.log("agent-north").count("listing all ")
        assert lost, "no watch was told 410"
        assert site.starts(run) == {f"{run}-worker-0": 1, f"{run}-worker-1": 2, f"{run}-worker-2": 1}
        assert not site.doubled()
        await site.until_empty()
        print(f"\n{lost} watches met 410 and listed anew: 2 of 2 jobs succeeded, 0 doubled, 0 leaked, returned 0 of 2")
