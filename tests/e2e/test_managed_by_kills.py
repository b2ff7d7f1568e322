"""Jobs and JobSets of ``managedBy`` with the real JobSet controller in both clusters, while processes are killed a hundred times."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import ApiClient
from tests.cluster.chart import helm
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, need_programs, open_cluster
from tests.cluster.operators import ASSETS, operators, present
from tests.e2e.test_managed_by import HOME, JOBS, VICTIMS, Fleet, a_job, conditions, open_fleet
from tests.waiting import eventually

need_programs(whole_module=True)
if not present("jobset"):
    pytest.skip(f"{ASSETS} names no folder with jobset", allow_module_level=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

KILLS_OF_EACH = 20
PODS = 2
"""The pods of each object."""
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{HOME}/jobsets"
MEMBER = f"trainmaster-jobs-{HOME}"
"""The namespace for jobs on the cluster where they run."""
_ENDS = {JOBS: "Complete", JOBSETS: "Completed"}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Fleet, Cluster]]:
    """Return two control planes with the JobSet controller, the dispatcher between them, and the one where jobs run."""
    async with AsyncExitStack() as stack:
        planes = []
        for name in ("north", "origin"):
            (tmp_path / name).mkdir()
            plane = await ControlPlane.start(tmp_path / name)
            stack.push_async_callback(plane.stop)
            await stack.enter_async_context(operators(plane, tmp_path / f"{name}-operators", ["jobset"]))
            planes.append(plane)
        cluster = await stack.enter_async_context(open_cluster(planes[0]))
        yield await stack.enter_async_context(open_fleet(cluster, planes[1], tmp_path)), cluster


def _a_jobset(name: str, *words: str) -> dict[str, Any]:
    template = a_job(name, *words)["spec"]["template"]
    replicated = {"name": "main", "replicas": PODS, "template": {"spec": {"template": template}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"managedBy": "trainmaster.dev/dispatcher", "replicatedJobs": [replicated]},
    }


async def _objects(api: ApiClient, namespace: str) -> list[str]:
    """Return the pods, Jobs and JobSets of a namespace."""
    found = []
    for root in ("/api/v1/{}/pods", "/apis/batch/v1/{}/jobs", "/apis/jobset.x-k8s.io/v1alpha2/{}/jobsets"):
        items = (await api.get(root.format(f"namespaces/{namespace}")))["items"]
        found += [f"{root.rpartition('/')[2]}/{one['metadata']['name']}" for one in items]
    return found


async def test_whatever_is_killed_jobs_and_jobsets_run_once_and_leave_nothing(pair: tuple[Fleet, Cluster]) -> None:
    fleet, cluster = pair
    chance = random.Random(21)
    made: list[tuple[str, str]] = []
    for turn in range(KILLS_OF_EACH):
        words = ("sleep", str(chance.randint(1, 6)), "succeed")
        await fleet.submit(f"job-{turn}", *words, parallelism=PODS, completions=PODS)
        await fleet.origin.post(JOBSETS, _a_jobset(f"set-{turn}", *words))
        made += [(JOBS, f"job-{turn}"), (JOBSETS, f"set-{turn}")]
        for victim in chance.sample(VICTIMS, len(VICTIMS)):
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await asyncio.to_thread(fleet.stage.kill, victim)

    async def has_ended(path: str, name: str) -> bool:
        return _ENDS[path] in conditions(await fleet.origin.get(f"{path}/{name}"))

    for path, name in made:
        await eventually(lambda path=path, name=name: has_ended(path, name), 30)  # type: ignore[misc]
    found = await fleet.jobs()
    submitted = sorted(
        one.name.rpartition("-")[0] for one in found
    )  # behind the name is the beginning of the object's uid
    assert submitted == sorted(name for _, name in made), "none was lost or made twice"
    assert {one.state for one in found} == {"succeeded"}
    attempts = sum(one.attempt for one in found)
    assert PODS * len(made) <= len(cluster.kubelet.starts) <= PODS * attempts, "no run had its pods twice"
    assert not (await fleet.origin.get("/api/v1/pods"))["items"], "no pod was made where they were submitted"

    async def is_empty(api: ApiClient, namespace: str) -> bool:
        return not await _objects(api, namespace)

    await eventually(lambda: is_empty(cluster.api, MEMBER), 30)
    for path, name in made:
        await fleet.origin.delete(f"{path}/{name}", {"propagationPolicy": "Background"})
    await eventually(lambda: is_empty(fleet.origin, HOME), 30)
    kills = KILLS_OF_EACH * len(VICTIMS)
    print(f"\n{len(made)} objects, {kills} kills, {attempts - len(made)} runs more than jobs")
