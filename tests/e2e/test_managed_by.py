"""Jobs of Kubernetes that are submitted in one cluster, by ``managedBy``, and run in another: two real control planes."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY, PROGRAM
from tests.cluster.api import ApiClient
from tests.cluster.chart import NAMESPACE, helm, install_agent
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.waiting import eventually
from trainmaster.client.http import Client
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import JobView, KeySpec

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

NODE = {"cpu": "8", "memory": "16Gi", "pods": "100"}
HOME = "team"
"""The namespace in which the objects are made, which is that of a queue."""
JOBS = f"/apis/batch/v1/namespaces/{HOME}/jobs"
PROCESS = "submissions"
VICTIMS = (PROCESS, "api-users-0", "agent-north", "scheduler-0", "api-agents-0")
"""The processes that tests kill."""


@dataclass
class Fleet:
    """The cluster where objects are made, the dispatcher, and the cluster where its jobs run."""

    stage: KubeStage
    origin: ApiClient
    dispatcher: Client

    async def submit(self, name: str, *words: str, annotations: dict[str, str] | None = None, **spec: Any) -> str:
        """Create a Job that the dispatcher is to run; return its uid."""
        made = await self.origin.post(JOBS, a_job(name, *words, annotations=annotations, **spec))
        return str(made["metadata"]["uid"])

    async def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.origin.get(f"{JOBS}/{name}")
        return found

    async def until(self, name: str, condition: str, seconds: float = 10) -> dict[str, Any]:
        """Return the Job, once it has a condition."""

        async def has_ended() -> bool:
            return bool({condition, "Complete", "Failed"} & conditions(await self.job(name)).keys())

        try:
            await eventually(has_ended, seconds)
        except AssertionError as error:
            waiting = [one.id for one in await self.jobs() if not one.state.is_terminal]
            why = [str(await asyncio.to_thread(self.dispatcher.why, one)) for one in waiting]
            raise AssertionError(f"{name} has not become {condition}: {await self.job(name)}; {why}") from error
        assert condition in conditions(await self.job(name)), await self.job(name)
        return await self.job(name)

    async def jobs(self) -> list[JobView]:
        """Return the jobs of the dispatcher."""
        return await asyncio.to_thread(lambda: list(self.dispatcher.jobs()))


def a_job(name: str, *words: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "sim",
        "command": ["sim", *words],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"managedBy": "trainmaster.dev/dispatcher", "template": template, **spec},
    }


def conditions(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = (job.get("status") or {}).get("conditions") or []
    return {one["type"]: one for one in found if one["status"] == "True"}


@pytest.fixture
async def fleet(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Fleet]:
    (tmp_path / "origin").mkdir()
    origin = await ControlPlane.start(tmp_path / "origin")
    try:
        async with open_fleet(cluster, origin, tmp_path) as opened:
            yield opened
    finally:
        await origin.stop()


@asynccontextmanager
async def open_fleet(cluster: Cluster, origin: ControlPlane, folder: Path) -> AsyncIterator[Fleet]:
    """Provide a dispatcher that takes objects of the cluster ``origin`` and runs them on the other one."""
    await cluster.kubelet.add_nodes("node", 4, allocatable=NODE)
    runs_here = await install_agent(cluster.plane, "north", f"queues={{default,{HOME}}}")
    stage = KubeStage(
        folder / "stage",
        [KubeCluster("north", runs_here.kubeconfig, runs_here.config)],
        queues=("default", HOME, "other"),
    )
    (folder / "stage").mkdir()
    try:
        await install_agent(
            origin,
            "south",
            "submissions.enabled=true",
            "submissions.byNamespace=true",
            f"submissions.key=tmk_{'s' * 32}",
            "fullnameOverride=agent",
        )
        kubeconfig = await origin.service_account_kubeconfig(NAMESPACE, "agent-submissions", 24 * 3600)
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as dispatcher:
            made = dispatcher.make_key(KeySpec(name="south", role=KeyRole.USER, queues=(HOME,)))
            key = folder / "submissions.key"
            key.write_text(made.key)
            stage.add(
                PROCESS,
                [
                    *PROGRAM,
                    *("agent", "submissions", "--url", stage.urls[0], "--cluster", "south"),
                    *("--key-file", str(key), "--kubeconfig", str(kubeconfig)),
                ],
            )
            async with origin.client() as api:
                await api.post("/api/v1/namespaces", {"metadata": {"name": HOME}})
                yield Fleet(stage, api, dispatcher)
    finally:
        stage.stop()


async def test_a_job_of_one_cluster_runs_in_another_and_has_its_status_and_its_events(
    fleet: Fleet, cluster: Cluster
) -> None:
    await fleet.submit("pi", "sleep", "1", "succeed", parallelism=2, completions=4)
    job = await fleet.until("pi", "Complete")
    assert (job["status"]["succeeded"], "completionTime" in job["status"]) == (4, True)
    annotations = job["metadata"]["annotations"]
    assert (annotations["trainmaster.dev/cluster"], annotations["trainmaster.dev/state"]) == ("north", "succeeded")
    assert not (await fleet.origin.get(f"/api/v1/namespaces/{HOME}/pods"))["items"], "no pod was made here"
    selector = {"fieldSelector": f"involvedObject.uid={job['metadata']['uid']}"}

    async def has_events() -> bool:
        events = (await fleet.origin.get(f"/api/v1/namespaces/{HOME}/events", selector))["items"]
        return {"Submitted", "RunRunning", "RunSucceeded"} <= {one["reason"] for one in events}

    await eventually(has_events)
    (found,) = await fleet.jobs()
    assert (found.id, found.queue) == (annotations["trainmaster.dev/job"], HOME)

    await fleet.submit("bad", "exit", "3", backoffLimit=0)
    bad = await fleet.until("bad", "Failed")
    assert conditions(bad)["Failed"]["reason"] == "BackoffLimitExceeded"


async def test_in_a_labelled_namespace_jobs_need_not_name_the_dispatcher(fleet: Fleet) -> None:
    label = {"metadata": {"labels": {"trainmaster.dev/submit": "true"}}}
    await fleet.origin.patch(f"/api/v1/namespaces/{HOME}", label, kind="merge")

    async def is_labelled() -> bool:
        made = await fleet.origin.post(f"{JOBS}?dryRun=All", a_job("try", "succeed", managedBy=None))
        return bool(made["spec"].get("managedBy") == "trainmaster.dev/dispatcher")

    await eventually(is_labelled)
    await fleet.submit("plain", "succeed", managedBy=None)
    plain = await fleet.until("plain", "Complete")
    assert plain["metadata"]["annotations"]["trainmaster.dev/cluster"] == "north"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "00000000-0000-0000-0000-000000000001"}
    owned = a_job("owned", "succeed", managedBy=None)
    owned["metadata"]["ownerReferences"] = [owner]
    made = await fleet.origin.post(f"{JOBS}?dryRun=All", owned)
    assert "managedBy" not in made["spec"], "what another controller makes is its own"


async def test_a_deleted_job_is_cancelled_and_a_suspended_one_is_held(fleet: Fleet) -> None:
    await fleet.submit("long", "run")
    await fleet.submit("held", "succeed", suspend=True)

    async def states(**expected: str) -> bool:
        return {one.name[:4]: one.state for one in await fleet.jobs()} == expected

    await eventually(lambda: states(long="running", held="held"), 10)
    await fleet.origin.delete(f"{JOBS}/long")
    await eventually(lambda: states(long="cancelled", held="held"), 10)
    await fleet.origin.patch(f"{JOBS}/held", {"spec": {"suspend": False}}, kind="merge")
    await fleet.until("held", "Complete")


async def test_what_the_dispatcher_refuses_says_so_in_its_cluster(fleet: Fleet) -> None:
    await fleet.submit("elsewhere", "succeed", annotations={"trainmaster.dev/queue": "other"})
    await fleet.submit("root", "succeed")
    root = a_job("rooted", "succeed")
    root["spec"]["template"]["spec"]["hostNetwork"] = True
    await fleet.origin.post(JOBS, root)
    await fleet.until("root", "Complete")
    rooted = await fleet.until("rooted", "Failed")
    assert conditions(rooted)["Failed"]["reason"] == "Refused"
    assert "hostNetwork" in conditions(rooted)["Failed"]["message"]
    events = (await fleet.origin.get(f"/api/v1/namespaces/{HOME}/events"))["items"]
    (refused,) = [one for one in events if one["involvedObject"]["name"] == "elsewhere"]
    assert (refused["reason"], refused["type"]) == ("NotSubmitted", "Warning")
    assert not conditions(await fleet.job("elsewhere")), "it is tried again: the queue may be opened to the cluster"

    await fleet.origin.patch(
        f"/api/v1/namespaces/{HOME}", {"metadata": {"annotations": {"trainmaster.dev/queue": HOME}}}, kind="merge"
    )
    misplaced = await fleet.until("elsewhere", "Failed", 30)
    assert "its namespace is of the queue 'team', and it names 'other'" in conditions(misplaced)["Failed"]["message"]


async def test_a_job_that_was_deleted_in_the_dispatcher_has_failed_in_its_cluster(fleet: Fleet) -> None:
    await fleet.submit("long", "run")

    async def runs() -> bool:
        return [one.state for one in await fleet.jobs()] == ["running"]

    await eventually(runs, 10)
    (found,) = await fleet.jobs()
    await asyncio.to_thread(fleet.dispatcher.cancel, found.id)
    cancelled = await fleet.until("long", "Failed")
    assert conditions(cancelled)["Failed"]["reason"] == "Cancelled"
    assert len(await fleet.jobs()) == 1


async def test_whatever_is_killed_each_job_runs_once_and_none_is_stuck(fleet: Fleet) -> None:
    chance = random.Random(21)
    victims = VICTIMS * 4
    names = []
    for number, victim in enumerate(victims):
        for part in range(2):
            names.append(f"job-{number}-{part}")
            await fleet.submit(names[-1], "sleep", "1", "succeed", parallelism=2, completions=2)
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        await asyncio.to_thread(fleet.stage.kill, victim)
    for name in names:
        job = await fleet.until(name, "Complete", 30)
        assert job["status"]["succeeded"] == 2
    found = await fleet.jobs()
    assert len(found) == len(names), "none was lost or made twice"
    assert {one.state for one in found} == {"succeeded"}
    attempts = [one.attempt for one in found]
    print(f"\n{len(names)} Jobs, {len(victims)} kills, {sum(attempts) - len(names)} runs more than jobs")
