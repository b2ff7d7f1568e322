"""A steady stream of one-member runs through the Kubernetes runtime, and the same writes as bare requests."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
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
    until_nothing_is_left,
)
from bench.bare_kube import MERGE_PATCH, BareKube, Call
from bench.cpu import cpu_seconds, differences, load_average
from bench.kube_nodes import NodesProcess
from bench.numbers import summary
from tests.cluster.control_plane import ControlPlane
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.ids import member_id
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord, Progress, RecordedEnd
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.port import RuntimeAwayError
from trainmaster_agent.sync import boot_time

_PLACEMENT = {"scheduler": "native"}
_FIRST = 1_000_000
_TICK_SECONDS = 0.01
_GATHER_SECONDS = 0.005
"""As in the agent, changes close together are processed together."""
_DRAIN_SECONDS = 300.0
_WARM_UP = 1 / 6
"""Part of the time before rates are counted."""


@dataclass
class Log:
    """The times of events of runs, of ``time.perf_counter``."""

    offered: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    away: int = 0
    """Runs that the runtime could not record; the dispatcher would send them again."""
    otherwise: int = 0
    """Ends other than success."""


async def steady_load(plane: ControlPlane, nodes: NodesProcess, rate: float, seconds: float) -> dict[str, Any]:
    config = cluster_config(_PLACEMENT)
    log, first = Log(), _FIRST * round(rate)  # numbers of jobs, different in each call
    async with WatchedApi(await open_access(plane.kubeconfig), config.parallel) as api:
        runtime = KubernetesRuntime(api, config, namespace=HOME, clock=boot_time)
        await runtime.open()
        try:
            cpu, began = _cpu(plane, nodes), time.perf_counter()
            ending = asyncio.create_task(_forget_ended(runtime, log))
            await _offer(runtime, log, first, rate, seconds)
            load, backlog = load_average(), len(log.offered) - len(log.ended)
            at_end = began + seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    while len(log.ended) < len(log.offered):  # noqa: ASYNC110 - it is over once
                        await asyncio.sleep(0.05)
            all_ended = time.perf_counter()
            if len(log.ended) == len(log.offered):
                await until_nothing_is_left(plane)
            cpu = differences(_cpu(plane, nodes), cpu)
            ending.cancel()
        finally:
            await runtime.close()
    runs = len(log.offered)
    created = {name.rpartition("-worker-")[0]: at for name, at in api.created_at.items()}
    since = began + _WARM_UP * seconds
    return {
        "offered_per_second": round(runs / seconds, 1),
        "seconds": seconds,
        "runs": runs,
        "pods_created_per_second": _rate(created.values(), since, at_end),
        "ended_per_second": _rate(log.ended.values(), since, at_end),
        "backlog_at_end_of_offer": backlog,
        "drain_seconds": round(all_ended - at_end, 2),
        "ended_per_second_until_all_had": round(len(log.ended) / (all_ended - began), 1),
        "start_to_pod": summary([created[run] - at for run, at in log.offered.items() if run in created]),
        "start_to_end": summary([at - log.offered[run] for run, at in log.ended.items()]),
        "runs_not_recorded": log.away,
        "runs_not_ended": runs - len(log.ended),
        "runs_not_succeeded": log.otherwise,
        "cpu_milliseconds_per_run": {name: round(used / len(log.ended) * 1e3, 3) for name, used in cpu.items()},
        "load_average": load,
    }


def _cpu(plane: ControlPlane, nodes: NodesProcess) -> dict[str, float]:
    """Return CPU seconds by process; ``agent`` is this process, including the load generator."""
    return {"agent": cpu_seconds(), **plane_cpu_seconds(plane), "nodes": nodes.cpu_seconds}


def _rate(moments: Iterable[float], since: float, until: float) -> float:
    return round(sum(since <= at < until for at in moments) / (until - since), 1)


async def _offer(runtime: KubernetesRuntime, log: Log, first: int, rate: float, seconds: float) -> None:
    """Start runs when they are due, however slow the runtime is."""
    starting: set[asyncio.Task[None]] = set()
    began, number = time.perf_counter(), 0
    while (at := time.perf_counter() - began) < seconds:
        for due in range(number, int(at * rate)):
            task = asyncio.create_task(_start(runtime, log, start_run(first + due, 1, "succeed")))
            starting.add(task)
            task.add_done_callback(starting.discard)
            number = due + 1
        await asyncio.sleep(_TICK_SECONDS)
    await asyncio.gather(*starting)


async def _start(runtime: KubernetesRuntime, log: Log, run: StartRun) -> None:
    log.offered[run.run] = time.perf_counter()
    try:
        await runtime.start(run)
    except RuntimeAwayError:
        log.away += 1
        del log.offered[run.run]


async def _forget_ended(runtime: KubernetesRuntime, log: Log) -> None:
    """Do what the agent does with a run once the dispatcher knows its end."""
    while True:
        await runtime.wait_changed(1.0)
        await asyncio.sleep(_GATHER_SECONDS)
        for status in [one for one in runtime.held().values() if one.state.is_terminal]:
            log.ended[status.run] = time.perf_counter()
            log.otherwise += status.state is not RunState.SUCCEEDED
            await runtime.forget(status.run)


async def bare_writes(plane: ControlPlane, runs: int) -> dict[str, Any]:
    """Measure what the API server alone sustains: the pods are not scheduled, and no agent watches."""
    placement = await find_placement(plane, _PLACEMENT)
    starts = [start_run(_FIRST // 2 + number, 1, "succeed") for number in range(2 * runs)]
    async with BareKube(plane, cluster_config(_PLACEMENT).parallel) as bare:
        uid = await namespace_uid(plane)
        pods = [_pod(start, placement, uid) for start in starts]
        created = await bare.seconds_for([Call("POST", PODS.path(NAMESPACE), pod)] for pod in pods[:runs])
        chains = [_five_writes(*one) for one in zip(starts[runs:], pods[runs:], strict=True)]
        before = plane_cpu_seconds(plane)
        five = await bare.seconds_for(chains)
        used = differences(plane_cpu_seconds(plane), before)
    load = load_average()
    await clear(plane)
    return {
        "pods_created_per_second": round(runs / created, 1),
        "runs_of_five_writes_per_second": round(runs / five, 1),
        "cpu_milliseconds_per_run_of_five_writes": {name: round(value / runs * 1e3, 3) for name, value in used.items()},
        "load_average": load,
    }


def _pod(start: StartRun, placement: PlacementPort, owner_uid: str) -> bytes:
    record = KubeRunRecord(start, NAMESPACE, 1, owner_uid=owner_uid)
    pod = manifests_of(record, placement).pod("worker", 0)
    pod["spec"]["schedulerName"] = "nobody"
    return orjson.dumps(pod)


def _five_writes(start: StartRun, pod: bytes) -> list[Call]:
    """Return the writes of a run: its record, its pod, its end in the record, and the deletion of both."""
    folder, path = CONFIG_MAPS.path(HOME), CONFIG_MAPS.path(HOME, start.run)
    record = KubeRunRecord(start, NAMESPACE, 1)
    ended = Progress(created=True, verdict=RecordedEnd(RunState.SUCCEEDED), ended_at=time.time())
    return [
        Call("POST", folder, orjson.dumps(record.to_config_map(CLUSTER, HOME))),
        Call("POST", PODS.path(NAMESPACE), pod),
        Call("PATCH", path, orjson.dumps({"data": {"progress": ended.dump()}}), MERGE_PATCH),
        Call("DELETE", PODS.path(NAMESPACE, member_id(start.run, "worker", 0))),
        Call("DELETE", path),
    ]
