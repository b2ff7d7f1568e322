"""Gangs on every in-cluster scheduler: through the agent's runtime, and the same objects by bare requests to that scheduler.

    python -m bench.gangs [--schedulers native,gates,volcano,...] [--members 1000] [--gangs 200] [--size 5] [--rounds 3]

Needs KUBEBUILDER_ASSETS with a control plane, and TRAINMASTER_SCHEDULER_ASSETS for the schedulers of other projects
(``tests.cluster.schedulers``); those without a folder are left out and listed. Each scheduler has a control plane of its own, with
simulated nodes in another process, and two loads: one gang of ``--members``, and ``--gangs`` gangs of ``--size`` that come at once.
Nodes have room for all. Runtime and bare requests go by turns, from the same start: no object exists.

``gang_create_ratio``: pods created per second through the runtime, divided by that of the bare requests; of the median round.
``all_bound_seconds``: until the scheduler has given every pod a node, as a watch sees it. With ``gates`` the bare pods have no gates:
the default scheduler places them one by one, which is no gang.
"""

import argparse
import asyncio
import re
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.agent_setup import (
    CLUSTER,
    HOME,
    NAMESPACE,
    WatchedApi,
    clear,
    cluster_config,
    control_plane,
    facts,
    find_placement,
    manifests_of,
    namespace_uid,
    print_measured,
    start_run,
)
from bench.bare_kube import BareKube, Call
from bench.cpu import load_average
from bench.kube_nodes import NodesProcess
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kueue_queues import make_kueue_queue, set_kueue_quota
from tests.cluster.schedulers import assets_of, installed, released
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.sync import boot_time

OF_KUBERNETES = ("native", "gates")
SCHEDULERS = (*OF_KUBERNETES, "volcano", "kai", "coscheduling", "yunikorn", "kueue")
_NODES, _ALLOCATABLE = 20, {"cpu": "64", "memory": "512Gi", "pods": "1000"}
_QUOTA = {"cpu": "1280", "memory": "10Ti", "ephemeral-storage": "20Ti"}
_PATIENCE_SECONDS = 600.0
_NAME = re.compile(rb'"metadata":\{"name":"([^"]+)"')
_AT_MOST = 4000
"""Bytes of an event in which the name is."""


@dataclass(frozen=True)
class Site:
    """A scheduler on a control plane."""

    plane: ControlPlane
    settings: Mapping[str, Any]
    """The ``placement`` of the agent's configuration."""
    placement: PlacementPort
    parallel: int

    async def clear(self) -> None:
        await clear(self.plane, (*self.placement.holders, *self.placement.created))


class BoundPods:
    """A watch of pods that have a node. It takes their names alone, as it shares the processor with what it measures. The API server
    may end a watch that is not read at once; another one begins with the pods that exist.
    """

    def __init__(self, plane: ControlPlane, wanted: int) -> None:
        self._plane = plane
        self._wanted = wanted
        self._names: set[bytes] = set()
        self._task: asyncio.Task[None] | None = None
        self.at: float | None = None
        """When the last one was bound, of ``time.perf_counter``."""

    async def __aenter__(self) -> "BoundPods":
        opened = asyncio.Event()
        self._task = asyncio.create_task(self._follow(opened))
        await opened.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def all(self) -> float:
        """Wait until all are bound; return the time. Raises RuntimeError when some are not in ten minutes."""
        assert self._task is not None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await asyncio.shield(self._task)
        except TimeoutError:
            message = f"{len(self._names)} of {self._wanted} pods were seen with a node in {_PATIENCE_SECONDS:.0f} s"
            raise RuntimeError(f"{message}; {await _pods_without_node(self._plane)}") from None
        assert self.at is not None
        return self.at

    async def _follow(self, opened: asyncio.Event) -> None:
        query = {"watch": "1", "fieldSelector": "spec.nodeName!=", "timeoutSeconds": str(round(2 * _PATIENCE_SECONDS))}
        trust = ssl.create_default_context(cafile=str(self._plane.ca_file))
        headers = {"Authorization": f"Bearer {self._plane.admin_token}"}
        url = self._plane.url + PODS.path(NAMESPACE)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20) as session:
            while self.at is None:
                async with session.get(url, params=query, headers=headers, ssl=trust) as answer:
                    answer.raise_for_status()
                    opened.set()
                    await self._read(answer.content)

    async def _read(self, content: aiohttp.StreamReader) -> None:
        rest = b""
        async for piece in content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            found = (_NAME.search(line, 0, _AT_MOST) for line in lines)
            self._names |= {one.group(1) for one in found if one is not None}
            if len(self._names) >= self._wanted:
                self.at = time.perf_counter()
                return


async def _pods_without_node(plane: ControlPlane) -> str:
    """Return how many pods exist, how many of them have no node, and the commonest reasons of these."""
    async with plane.client() as api:
        pods = (await api.get(PODS.path(NAMESPACE)))["items"]
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
    conditions = (condition for pod in waiting for condition in pod["status"].get("conditions", ()))
    reasons = Counter(str(one.get("message")) for one in conditions if one["type"] == "PodScheduled")
    common = "".join(f"; {count} x {reason[:300]}" for reason, count in reasons.most_common(3))
    return f"{len(waiting)} of {len(pods)} pods of the API server have none{common}"


async def bare_round(site: Site, runs: Sequence[StartRun]) -> dict[str, float]:
    """Create the objects of runs by bare requests, those of a gang before its pods."""
    members = sum(sum(run.sizes.values()) for run in runs)
    async with BareKube(site.plane, site.parallel) as bare, BoundPods(site.plane, members) as bound:
        owner = await namespace_uid(site.plane)
        chains = [await _calls(site, bare, run, owner) for run in runs]
        began = time.perf_counter()
        if len(chains) == 1:
            (chain,) = chains
            pods = [call for call in chain if call.path == PODS.path(NAMESPACE)]
            before = await bare.seconds_for([[call for call in chain if call not in pods]])
            seconds = await bare.seconds_for([call] for call in pods)
        else:
            before, seconds = 0.0, await bare.seconds_for(chains)
        all_bound = await bound.all() - began
    await site.clear()
    return {"create": before + seconds, "all_bound": all_bound}


async def _calls(site: Site, bare: BareKube, start: StartRun, owner: str) -> list[Call]:
    """Return the requests that create a gang; its record, which its objects name as their owner, is created at once."""
    record = KubeRunRecord(start, NAMESPACE, 1, owner_uid=owner)
    record.take(await bare.make(CONFIG_MAPS.path(HOME), record.to_config_map(CLUSTER, HOME)))
    manifests = manifests_of(record, site.placement)
    calls = [Call("POST", resource.path(NAMESPACE), orjson.dumps(body)) for resource, body in manifests.objects()]
    for index in range(sum(start.sizes.values())):
        pod = manifests.pod("worker", index)
        pod["spec"].pop("schedulingGates", None)  # only the agent opens gates
        calls.append(Call("POST", PODS.path(NAMESPACE), orjson.dumps(pod)))
    return calls


async def runtime_round(site: Site, runs: Sequence[StartRun]) -> dict[str, float]:
    """Start the runs through the agent's runtime."""
    config = cluster_config(site.settings)
    members = sum(sum(run.sizes.values()) for run in runs)
    async with WatchedApi(await open_access(site.plane.kubeconfig), config.parallel) as api:
        runtime = KubernetesRuntime(api, config, namespace=HOME, clock=boot_time)
        await runtime.open()
        try:
            async with BoundPods(site.plane, members) as bound:
                began = time.perf_counter()
                await asyncio.gather(*map(runtime.start, runs))
                all_bound = await bound.all() - began
            await _until_running(runtime, runs)
            all_running = time.perf_counter() - began
        finally:
            await runtime.close()
    await site.clear()
    return {"create": max(api.created_at.values()) - began, "all_bound": all_bound, "all_running": all_running}


async def _until_running(runtime: KubernetesRuntime, runs: Sequence[StartRun]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        for one in runs:
            while not _is_at_work(status := runtime.held()[one.run]):
                if status.state.is_terminal:
                    raise RuntimeError(f"run {one.run} is {status.state}: {status.message}")
                await asyncio.sleep(0.02)


def _is_at_work(status: Any) -> bool:
    return status.state is RunState.RUNNING and all(member.state == "running" for member in status.members)


async def measure_load(site: Site, gangs: int, size: int, rounds: int, first: int) -> dict[str, Any]:
    """Run bare requests and the runtime by turns; return the figures of the median round of each."""
    bare: list[dict[str, float]] = []
    ours: list[dict[str, float]] = []
    for number in range(rounds):
        at = first + 2 * number * gangs
        bare.append(await bare_round(site, [start_run(at + one, size, "run") for one in range(gangs)]))
        _report(f"{gangs} of {size}, bare", bare[-1])
        at += gangs
        ours.append(await runtime_round(site, [start_run(at + one, size, "run") for one in range(gangs)]))
        _report(f"{gangs} of {size}, agent", ours[-1])
    members = gangs * size

    def median(of: list[dict[str, float]], name: str) -> float:
        return statistics.median(one[name] for one in of)

    ratios = [one["create"] / two["create"] for one, two in zip(bare, ours, strict=True)]
    return {
        "gangs": gangs,
        "members_of_each": size,
        "pods_per_second": round(members / median(ours, "create"), 1),
        "bare_pods_per_second": round(members / median(bare, "create"), 1),
        "gang_create_ratio": round(statistics.median(ratios), 3),
        "gang_create_ratio_of_rounds": [round(ratio, 3) for ratio in ratios],
        "all_bound_seconds": round(median(ours, "all_bound"), 3),
        "all_bound_seconds_of_rounds": [round(one["all_bound"], 3) for one in ours],
        "bare_all_bound_seconds": round(median(bare, "all_bound"), 3),
        "bare_all_bound_seconds_of_rounds": [round(one["all_bound"], 3) for one in bare],
        "all_running_seconds": round(median(ours, "all_running"), 3),
        "load_average": load_average(),
    }


def _report(load: str, seconds: Mapping[str, float]) -> None:
    figures = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    print(f"  {load}: {figures}", file=sys.stderr, flush=True)


@asynccontextmanager
async def site_of(
    name: str, folder: Path, nodes: int, allocatable: Mapping[str, str], *, fsync: bool = False
) -> AsyncIterator[Site]:
    """Provide a control plane with simulated nodes and the scheduler ``name``."""
    async with (
        control_plane(folder / "plane", fsync=fsync) as plane,
        NodesProcess(plane, nodes, allocatable),
        _scheduler(name, plane, folder) as settings,
    ):
        if name == "kueue":
            async with plane.client() as api:
                await set_kueue_quota(api, _QUOTA)
                await make_kueue_queue(api, NAMESPACE)
        yield Site(plane, settings, await find_placement(plane, settings), cluster_config(settings).parallel)


@asynccontextmanager
async def _scheduler(name: str, plane: ControlPlane, folder: Path) -> AsyncIterator[Mapping[str, Any]]:
    if name in OF_KUBERNETES:
        yield {"scheduler": name}
        return
    async with installed(name, plane, folder) as scheduler:
        yield scheduler.placement


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in options.schedulers if name in OF_KUBERNETES or assets_of(name)]
    found: dict[str, Any] = {}
    planes: dict[str, Any] = {}
    for name in names:
        async with site_of(name, Path(tempfile.mkdtemp(dir=folder)), _NODES, _ALLOCATABLE, fsync=options.fsync) as site:
            print(f"{name} ...", file=sys.stderr, flush=True)
            planes = facts(site.plane, fsync=options.fsync)
            found[name] = {
                "release": released(name) or site.plane.version,
                "one_gang": await measure_load(site, 1, options.members, options.rounds, 1),
                "many_gangs": await measure_load(site, options.gangs, options.size, options.rounds, 1_000),
            }
    return {
        "bench": "gangs",
        "control_plane": planes,
        "left_out": [name for name in options.schedulers if name not in names],
        "schedulers": found,
    }


def scheduler_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SCHEDULERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; there are {', '.join(SCHEDULERS)}")
    return names


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--schedulers", type=scheduler_names, default=list(SCHEDULERS), help="names with commas; default: all"
    )
    parser.add_argument("--members", type=int, default=1000, help="of the one gang")
    parser.add_argument("--gangs", type=int, default=200, help="that come at once")
    parser.add_argument("--size", type=int, default=5, help="members of each of these")
    parser.add_argument("--rounds", type=int, default=3, help="of runtime and bare requests")
    parser.add_argument("--fsync", action="store_true", help="etcd waits for the disk with every write")
    return parser


def main() -> None:
    print_measured(measure, parser().parse_args())


if __name__ == "__main__":
    main()
