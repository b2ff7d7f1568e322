"""A large gang through the Kubernetes runtime, and the same manifests through bare requests."""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from bench.agent_setup import (
    CLUSTER,
    HOME,
    NAMESPACE,
    WatchedApi,
    clear,
    cluster_config,
    find_placement,
    manifests_of,
    namespace_uid,
    plane_cpu_seconds,
    start_run,
)
from bench.bare_kube import BareKube, Call
from bench.cpu import cpu_seconds, differences, load_average
from tests.cluster.control_plane import ControlPlane
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.port import RunStatus
from trainmaster_agent.sync import boot_time

_PATIENCE_SECONDS = 300.0


async def gang_rounds(plane: ControlPlane, placement: str, members: int, rounds: int) -> dict[str, Any]:
    """Run the runtime and bare requests in turns; return the figures of the median round."""
    with_runtime, bare = [], []
    for number in range(rounds):
        bare.append(await _bare_round(plane, placement, start_run(2 * number + 1, members, "run")))
        with_runtime.append(await _runtime_round(plane, placement, start_run(2 * number + 2, members, "run")))
    ratios = [members / one["seconds"] / two["pods_per_second"] for one, two in zip(with_runtime, bare, strict=True)]
    return {
        "placement": placement,
        "members": members,
        "start_to_all_pods_seconds": round(statistics.median(one["seconds"] for one in with_runtime), 3),
        "start_to_all_running_seconds": round(statistics.median(one["all_running"] for one in with_runtime), 3),
        "pods_per_second": round(members / statistics.median(one["seconds"] for one in with_runtime), 1),
        "bare_pods_per_second": round(statistics.median(one["pods_per_second"] for one in bare), 1),
        "gang_create_ratio": round(statistics.median(ratios), 3),
        "gang_create_ratio_of_rounds": [round(ratio, 3) for ratio in ratios],
        "gang_create_cpu_ratio": round(_all_cpu(bare, "cpu") / _all_cpu(with_runtime, "agent_cpu"), 3),
        "pod_bytes": bare[0]["bytes"],
        "cpu_milliseconds_per_pod": {
            "agent": round(statistics.median(one["agent_cpu"] for one in with_runtime) / members * 1e3, 3),
            "bare_loop": round(statistics.median(one["cpu"] for one in bare) / members * 1e3, 3),
            **{
                name: round(statistics.median(one["plane_cpu"][name] for one in with_runtime) / members * 1e3, 3)
                for name in with_runtime[0]["plane_cpu"]
            },
        },
        "load_average": [one["load"] for one in with_runtime],
    }


def _all_cpu(rounds: list[dict[str, Any]], client: str) -> float:
    """Return the CPU time of client and control plane; where it limits the rate, it agrees with the rates and ignores other load."""
    return float(statistics.median(one[client] + sum(one["plane_cpu"].values()) for one in rounds))


async def _bare_round(plane: ControlPlane, placement: str, start: StartRun) -> dict[str, Any]:
    members = sum(start.sizes.values())
    async with BareKube(plane, cluster_config({"scheduler": placement}).parallel) as bare:
        record = KubeRunRecord(start, NAMESPACE, 1, owner_uid=await namespace_uid(plane))
        record.take(await bare.make(CONFIG_MAPS.path(HOME), record.to_config_map(CLUSTER, HOME)))
        manifests = manifests_of(record, await find_placement(plane, {"scheduler": placement}))
        for resource, body in manifests.objects():
            await bare.make(resource.path(NAMESPACE), body)
        bodies = [orjson.dumps(manifests.pod("worker", index)) for index in range(members)]
        cpu, of_plane = cpu_seconds(), plane_cpu_seconds(plane)
        seconds = await bare.seconds_for([Call("POST", PODS.path(NAMESPACE), body)] for body in bodies)
        cpu, of_plane = cpu_seconds() - cpu, differences(plane_cpu_seconds(plane), of_plane)
    await clear(plane)
    return {"pods_per_second": members / seconds, "cpu": cpu, "plane_cpu": of_plane, "bytes": len(bodies[-1])}


async def _runtime_round(plane: ControlPlane, placement: str, start: StartRun) -> dict[str, Any]:
    config = cluster_config({"scheduler": placement})
    members = sum(start.sizes.values())
    async with WatchedApi(await open_access(plane.kubeconfig), config.parallel) as api:
        runtime = KubernetesRuntime(api, config, namespace=HOME, clock=boot_time)
        await runtime.open()
        try:
            cpu, of_plane, began = cpu_seconds(), plane_cpu_seconds(plane), time.perf_counter()
            await runtime.start(start)
            await _until(runtime, start.run, lambda _: len(api.created_at) >= members)
            seconds = max(api.created_at.values()) - began
            cpu, of_plane = cpu_seconds() - cpu, differences(plane_cpu_seconds(plane), of_plane)
            await _until(runtime, start.run, _all_at_work)
            all_running = time.perf_counter() - began
            load = load_average()
        finally:
            await runtime.close()
    await clear(plane)
    return {"seconds": seconds, "all_running": all_running, "agent_cpu": cpu, "plane_cpu": of_plane, "load": load}


async def _until(runtime: KubernetesRuntime, run: str, holds: Callable[[RunStatus], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not holds(status := runtime.held()[run]):
            if status.state.is_terminal:
                raise RuntimeError(f"run {run} is {status.state}: {status.message}")
            await asyncio.sleep(0.02)


def _all_at_work(status: RunStatus) -> bool:
    return status.state is RunState.RUNNING and all(member.state == "running" for member in status.members)
