"""What the control planes of a fleet take without Trainmaster: the same objects, from bare requests that are ready as bytes."""

import asyncio
import time
from collections.abc import Sequence

import orjson

from bench.agent_setup import CLUSTER, manifests_of, namespace_uid, plane_cpu_seconds, start_run
from bench.bare_kube import BareKube, Call
from tests.cluster.chart import JOBS, NAMESPACE
from tests.cluster.control_plane import ControlPlane
from tests.waiting import eventually
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster_agent.placement.choose import PlacementConfig, choose, detect
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT, KubeRunRecord

_PARALLEL = 32
_LABEL = f"{LABEL_AGENT}={CLUSTER}"
_GONE_SECONDS = 60.0


async def bare_jobs(planes: Sequence[ControlPlane], jobs: int, seconds: float) -> dict[str, float]:
    """Create a record and a pod for each job, over all clusters at once; schedulers and kubelets process them as they do ours."""
    share = -(-jobs // len(planes))
    before = sum(sum(plane_cpu_seconds(plane).values()) for plane in planes)
    began = time.monotonic()
    await asyncio.gather(*(_create(plane, number * share, share, seconds) for number, plane in enumerate(planes)))
    took = time.monotonic() - began
    used = sum(sum(plane_cpu_seconds(plane).values()) for plane in planes) - before
    await asyncio.gather(*map(_clear, planes))
    return {"jobs_per_second": round(jobs / took, 1), "control_planes_cpu_seconds_per_job": round(used / jobs, 5)}


async def _create(plane: ControlPlane, first: int, count: int, seconds: float) -> None:
    async with ApiServer(await open_access(plane.kubeconfig)) as api:
        placement = choose(PlacementConfig.model_validate({"scheduler": "native"}), await detect(api))
    words = ("sleep", str(seconds)) if seconds else ("succeed",)
    owner = await namespace_uid(plane, JOBS)
    starts = iter([start_run(number, 1, *words) for number in range(first + 1, first + count + 1)])
    async with BareKube(plane, _PARALLEL) as bare:

        async def create() -> None:
            for start in starts:
                record = KubeRunRecord(start, JOBS, 1, owner_uid=owner)
                record.take(await bare.make(CONFIG_MAPS.path(NAMESPACE), record.to_config_map(CLUSTER, NAMESPACE)))
                pod = orjson.dumps(manifests_of(record, placement).pod("worker", 0))
                await bare.one(Call("POST", PODS.path(JOBS), pod))

        await asyncio.gather(*(create() for _ in range(_PARALLEL)))


async def _clear(plane: ControlPlane) -> None:
    async with plane.client() as api:
        for path in (PODS.path(JOBS), CONFIG_MAPS.path(NAMESPACE)):
            await api.delete(path, query={"labelSelector": _LABEL, "gracePeriodSeconds": 0})

        async def gone() -> bool:
            return not (await api.get(PODS.path(JOBS), {"labelSelector": _LABEL, "limit": 1}))["items"]

        await eventually(gone, _GONE_SECONDS)
