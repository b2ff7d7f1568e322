"""The whole way from a submission to pods, over a fleet of real clusters.

    KUBEBUILDER_ASSETS=... python -m bench.fleet [--jobs 1000] [--clusters 3] [--singles 50] [--job-seconds 30]

Dispatcher (real Postgres with its durability settings, real HTTP) and an agent process for each of several real control planes (etcd,
API server, scheduler, controller manager), each agent under the role that its chart gives it. Jobs of one member are submitted in one
call: jobs per second until all their pods exist, and CPU over all processes, control planes and the simulated kubelets included. Then
single jobs one after another, from before the POST until the pod exists. Beside it what one API server takes alone, and what the
control planes with their kubelets take when the same objects come from bare requests (``control_planes_alone``).

etcd runs without fsync, so that the disk of this machine does not decide. ``--no-kubelets``: pods stay pending, which costs less;
``--job-seconds 0``: jobs end as soon as they run, so that the first ones are ended and cleared away while the last ones start.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.fleet_bare import bare_jobs
from bench.kube_stage import KubeCluster, KubeStage
from bench.numbers import stores, summary
from bench.stage import ADMIN_KEY
from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.control_plane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane, assets
from tests.cluster.kubelet import Kubelet
from trainmaster.client.http import Client
from trainmaster.protocol.states import JobState

_PATIENCE = 300.0
_NODES = 20
_SPARE = 1.2
"""Room in the fleet, for what runs at the same time."""
_PROBE_PODS, _PROBE_PARALLEL = 1000, 32


class Pods:
    """When the pods of jobs came to exist, by their jobs' ids, as watches of the API servers report."""

    def __init__(self) -> None:
        self.made: dict[str, float] = {}
        self._fresh = asyncio.Event()

    async def follow(self, plane: ControlPlane) -> None:
        async with plane.client() as api:
            path = f"/api/v1/namespaces/{JOBS}/pods"
            listed = await api.get(path)
            version = listed["metadata"]["resourceVersion"]
            while True:
                try:
                    async for event in api.watch(path, version):
                        self._take(event)
                        version = event["object"]["metadata"]["resourceVersion"]
                except (TimeoutError, aiohttp.ClientError):
                    await asyncio.sleep(0.05)

    def _take(self, event: dict[str, Any]) -> None:
        job = (event["object"]["metadata"].get("labels") or {}).get("trainmaster.dev/job")
        if event["type"] == "ADDED" and job is not None:
            self.made.setdefault(job, time.monotonic())
            self._fresh.set()

    async def until(self, jobs: set[str]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while jobs - self.made.keys():
                self._fresh.clear()
                await self._fresh.wait()


def a_job(number: int, seconds: float = 0) -> dict[str, Any]:
    command = ["sim", "sleep", str(seconds)] if seconds else ["sim", "succeed"]
    template = {"image": "sim", "command": command, "resources": {"cpu": "1", "memory": "1Gi"}}
    return {"name": f"job-{number}", "queue": "default", "roles": [{"name": "main", "template": template}]}


async def run(jobs: int, clusters: int, singles: int, seconds: float, *, kubelets: bool) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainmaster-fleet-")))
        planes: dict[str, ControlPlane] = {}
        members: list[KubeCluster] = []
        for number in range(clusters):
            name = f"cluster-{number}"
            plane = planes[name] = await ControlPlane.start(folder / name)
            stack.push_async_callback(plane.stop)
            kubelet = await stack.enter_async_context(await Kubelet.start(plane))
            cpu = math.ceil(jobs * _SPARE / clusters / _NODES)  # each takes its part, and none of them all
            await kubelet.add_nodes("node", _NODES, allocatable={"cpu": str(cpu), "memory": "512Gi", "pods": "1000"})
            if not kubelets:
                kubelet.freeze()
            installed = await install_agent(plane, name)
            members.append(KubeCluster(name, installed.kubeconfig, {**installed.config, "tombstone": "5s"}))
        alone = await api_server_alone(planes["cluster-0"])
        bare = await bare_jobs(list(planes.values()), jobs, seconds)
        system = folder / "system"
        system.mkdir()
        stage = KubeStage(system, members)
        stack.callback(stage.stop)
        await asyncio.to_thread(stage.start)
        pods = Pods()
        for plane in planes.values():
            task = asyncio.create_task(pods.follow(plane))
            stack.callback(task.cancel)
        await asyncio.sleep(2)
        return {
            "benchmark": "fleet",
            "clusters": clusters,
            "kubelets": kubelets,
            "job_seconds": seconds,
            **stores(stage.database_url),
            **await at_once(stage, planes, pods, jobs, seconds, ends=kubelets),
            "single": await one_by_one(stage, pods, singles),
            "control_planes_alone": bare,
            "api_server_alone_pods_per_second": round(alone),
            "loadavg": os.getloadavg()[0],
        }


async def at_once(
    stage: KubeStage, planes: dict[str, ControlPlane], pods: Pods, jobs: int, seconds: float, *, ends: bool
) -> dict[str, Any]:
    """Submit all jobs in one call; return rates and CPU time. ``ends``: wait until the jobs have ended, too."""
    before = cpu_seconds(stage, planes)
    began = time.monotonic()
    ids = await asyncio.to_thread(_submit, stage.urls[0], [a_job(number, seconds) for number in range(jobs)])
    stored = time.monotonic()
    await pods.until(set(ids))
    took = max(pods.made[job] for job in ids) - began
    created = cpu_seconds(stage, planes)
    waits = [pods.made[job] - began for job in ids]
    out = {
        "jobs": jobs,
        "jobs_per_second": round(jobs / took, 1),
        "seconds_until_all_pods_exist": round(took, 3),
        "seconds_to_submit": round(stored - began, 3),
        "submit_to_pod": summary(waits),
        "cpu_seconds_per_job_until_pods_exist": _per_job(before, created, jobs),
    }
    if ends:
        ended = await asyncio.to_thread(_until_ended, stage.urls[0], jobs)
        out["seconds_until_all_ended"] = round(ended - began, 2)
        out["cpu_seconds_per_job_until_all_ended"] = _per_job(before, cpu_seconds(stage, planes), jobs)
    return out


async def one_by_one(stage: KubeStage, pods: Pods, many: int) -> dict[str, float]:
    """Submit single jobs to an idle system; return the times from before the POST until the pod exists."""
    waits = []
    for number in range(many):
        await asyncio.sleep(0.2)
        began = time.monotonic()
        (job,) = await asyncio.to_thread(_submit, stage.urls[0], [a_job(10_000 + number)])
        await pods.until({job})
        waits.append(pods.made[job] - began)
    return summary(waits)


async def api_server_alone(plane: ControlPlane) -> float:
    """Return the pods that one API server takes in a second from a bare loop, with nothing else at work."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": "none",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "sim", "resources": {"requests": {"cpu": "1"}}}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }
    body["spec"]["containers"][0]["securityContext"] = {  # type: ignore[index]
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    async with plane.client() as api:
        path = f"/api/v1/namespaces/{JOBS}/pods"
        numbers = iter(range(_PROBE_PODS))

        async def create() -> None:
            for number in numbers:
                await api.post(path, {**body, "metadata": {"name": f"probe-{number}"}})

        began = time.monotonic()
        await asyncio.gather(*(create() for _ in range(_PROBE_PARALLEL)))
        took = time.monotonic() - began
        await api.delete(path, query={"gracePeriodSeconds": 0})
    return _PROBE_PODS / took


def cpu_seconds(stage: KubeStage, planes: dict[str, ControlPlane]) -> dict[str, float]:
    """Return the CPU seconds of all processes until now; control planes and agents each as one; ``load`` is this
    process with the kubelets."""
    used = {"control_planes": 0.0, "agents": 0.0}
    for name, seconds in stage.cpu_seconds().items():
        kind = "agents" if name.startswith("agent-") else name
        used[kind] = used.get(kind, 0.0) + seconds
    for plane in planes.values():
        for daemon in plane.daemons.values():
            times = psutil.Process(daemon.pid).cpu_times()
            used["control_planes"] += times.user + times.system
    return used


def _per_job(before: dict[str, float], after: dict[str, float], jobs: int) -> dict[str, float]:
    parts = {name: round((after[name] - before[name]) / jobs, 5) for name in after}
    return {"all": round(sum(parts.values()), 4), **parts}


def _submit(url: str, specs: list[dict[str, Any]]) -> list[str]:
    with Client(url, ADMIN_KEY) as client:
        return client.submit(specs)


def _until_ended(url: str, jobs: int) -> float:
    with Client(url, ADMIN_KEY) as client:
        ends = time.monotonic() + _PATIENCE
        while time.monotonic() < ends:
            counts = next(queue.jobs for queue in client.queues(ended=True) if queue.path == "default")
            if counts.get(JobState.SUCCEEDED, 0) >= jobs:
                return time.monotonic()
            time.sleep(0.1)
    raise TimeoutError("not all jobs have ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--singles", type=int, default=50)
    parser.add_argument("--job-seconds", type=float, default=30.0, help="how long each of the many jobs runs")
    parser.add_argument("--no-kubelets", action="store_true")
    options = parser.parse_args()
    if assets(SCHEDULER, CONTROLLER_MANAGER) is None or helm() is None:
        sys.exit(
            "KUBEBUILDER_ASSETS must name a folder with etcd, kube-apiserver, kube-scheduler, kube-controller-manager and helm"
        )
    result = asyncio.run(
        run(options.jobs, options.clusters, options.singles, options.job_seconds, kubelets=not options.no_kubelets)
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
