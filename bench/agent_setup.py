"""The set-up of the benchmarks of the Kubernetes agent: a control plane, what the agent needs in it, and runs to start."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.cpu import cpu_seconds
from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import CONTROLLER_MANAGER, ETCD, SCHEDULER, ControlPlane, assets
from tests.cluster.fixtures import has_default_account
from tests.conformance.kube_lab import PRIORITY_CLASS
from tests.waiting import eventually
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.ids import job_id, run_id
from trainmaster_agent.kube.access import ApiServerAccess, open_access
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.paths import CONFIG_MAPS, NAMESPACES, PODS, SERVICES, Resource
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.placement.choose import PlacementConfig, choose, detect
from trainmaster_agent.placement.native import pod_groups
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT, KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of

NAMESPACE = "jobs"
HOME = "agent"
"""The agent's namespace, where it keeps the records of runs."""
CLUSTER = "bench"
_OURS = f"{LABEL_AGENT}={CLUSTER}"
_OURS_BY_RUN = f"{_OURS},{LABEL_RUN}"


def need_programs(*programs: str) -> None:
    """Exit with a message of one line if there are no programs for a control plane."""
    if assets(*programs) is None:
        wanted = ", ".join(("etcd", "kube-apiserver", *programs))
        sys.exit(f"KUBEBUILDER_ASSETS must name a folder with {wanted}: this benchmark needs a real control plane")


def print_measured(
    measure: Callable[[Path, argparse.Namespace], Coroutine[Any, Any, dict[str, Any]]], options: argparse.Namespace
) -> None:
    """Run a benchmark that needs a whole control plane in a temporary folder, and print its figures as JSON."""
    need_programs(SCHEDULER, CONTROLLER_MANAGER)
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        result = uvloop.run(measure(Path(folder), options))
    print(json.dumps(result, indent=2))


@asynccontextmanager
async def control_plane(folder: Path, *, fsync: bool, whole: bool = True) -> AsyncIterator[ControlPlane]:
    """Provide a control plane with the jobs' namespace and the agent's PriorityClass; ``whole``: with scheduler and
    controller manager."""
    flags = {ETCD: [f"--unsafe-no-fsync={'false' if fsync else 'true'}"]}
    plane = await ControlPlane.start(folder, scheduler=whole, controller_manager=whole, flags=flags)
    try:
        async with plane.client() as api:
            for namespace in (NAMESPACE, HOME):
                await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
            await _make_class(api)
            if whole:
                await has_default_account(api, NAMESPACE)
        yield plane
    finally:
        await plane.stop()


async def _make_class(api: ApiClient) -> None:
    await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", PRIORITY_CLASS)


def plane_cpu_seconds(plane: ControlPlane) -> dict[str, float]:
    """Return the CPU seconds used until now, by program."""
    return {name: cpu_seconds(daemon.pid) for name, daemon in plane.daemons.items()}


def facts(plane: ControlPlane, *, fsync: bool) -> dict[str, Any]:
    """Return what the figures of a control plane depend on."""
    return {"version": plane.version, "etcd_fsync": fsync, "programs": list(plane.daemons)}


def cluster_config(placement: Mapping[str, Any]) -> KubernetesCluster:
    """Return the defaults, except for tombstones that are deleted within the measured time, so that all writes of a run
    are counted."""
    return KubernetesCluster.model_validate(
        {"cluster": CLUSTER, "namespace": NAMESPACE, "placement": placement, "tombstone": "1s"}
    )


def start_run(number: int, members: int, *words: str) -> StartRun:
    """Return a run as the dispatcher sends it, whose members do what ``words`` say (``tests.cluster.behaviour``)."""
    job = job_id("bench", number)
    template = {
        "image": "sim",
        "command": ["sim", *words],
        "env": {"NCCL_DEBUG": "INFO", "DATA": "s3://data/train"},
        "resources": {"cpu": "100m", "memory": "128Mi"},
    }
    spec = {
        "kind": "Job",
        "name": "bench",
        "queue": "research/nlp",
        "stopGrace": "1s",
        "roles": [{"name": "worker", "replicas": members, "template": template}],
    }
    return StartRun(
        run=run_id(job, 1),
        job=job,
        queue="research/nlp",
        attempt=1,
        token=1,
        generation=1,
        spec=spec,
        sizes={"worker": members},
        placement_timeout_seconds=600,
    )


class WatchedApi(ApiServer):
    """The agent's own client; it notes when the creation of each pod was answered."""

    def __init__(self, access: ApiServerAccess, parallel: int) -> None:
        super().__init__(access, parallel=parallel)
        self.created_at: dict[str, float] = {}
        """By the pod's name; of ``time.perf_counter``."""

    async def create(
        self, resource: Resource, namespace: str | None, body: Mapping[str, Any], *, strict: bool = False
    ) -> dict[str, Any]:
        stored = await super().create(resource, namespace, body, strict=strict)
        if resource is PODS:
            self.created_at[body["metadata"]["name"]] = time.perf_counter()
        return stored


async def find_placement(plane: ControlPlane, placement: Mapping[str, Any]) -> PlacementPort:
    """Return the placement that the agent finds in this cluster."""
    async with ApiServer(await open_access(plane.kubeconfig)) as api:
        return choose(PlacementConfig.model_validate(placement), await detect(api))


def manifests_of(record: KubeRunRecord, placement: PlacementPort) -> Manifests:
    """Return the manifests that the agent would create for a run."""
    config = cluster_config({})
    return Manifests(
        record,
        facts_of(record.start),
        placement,
        agent=CLUSTER,
        levels={},
        policy=config.admission,
        priority_class=config.placement.priority_class,
        port=config.port,
        products=lambda _: {},
    )


async def namespace_uid(plane: ControlPlane, name: str = NAMESPACE) -> str:
    """Return the uid of a namespace of jobs, which owns what is made in it."""
    async with plane.client() as api:
        return str((await api.get(NAMESPACES.path(None, name)))["metadata"]["uid"])


async def clear(plane: ControlPlane, also: Iterable[Resource] = ()) -> None:
    """Delete everything that was created for runs, and wait until it is gone.

    ``also``: kinds of which every object in the jobs' namespace is deleted before the pods, which it may hold back.
    """
    async with plane.client() as api:
        for resource in also:
            await api.delete(resource.path(NAMESPACE))
        await api.delete(PODS.path(NAMESPACE), query={"labelSelector": _OURS, "gracePeriodSeconds": 0})
        for namespace in (NAMESPACE, HOME):
            await api.delete(CONFIG_MAPS.path(namespace), query={"labelSelector": _OURS})
        for resource in (SERVICES, pod_groups("v1alpha2"), pod_groups("v1beta1")):
            with suppress(ApiError):  # not every release serves every version of pod groups
                await api.delete(resource.path(NAMESPACE), query={"labelSelector": _OURS})
    await until_nothing_is_left(plane)


async def until_nothing_is_left(plane: ControlPlane) -> None:
    async with plane.client() as api:

        async def gone() -> bool:
            return not [
                one
                for path in (PODS.path(NAMESPACE), CONFIG_MAPS.path(NAMESPACE), CONFIG_MAPS.path(HOME))
                for one in (await api.get(path, {"labelSelector": _OURS_BY_RUN, "limit": 1}))["items"]
            ]

        await eventually(gone, 300)
