"""Planned nodes: whether gangs run there, and how many whole nodes stay free, with pods that prefer their planned nodes and without.

    python -m bench.fragmentation [--schedulers native,coscheduling,kai] [--gangs 200] [--load 0.75] [--seed 1]

Needs KUBEBUILDER_ASSETS with a control plane, and TRAINMASTER_SCHEDULER_ASSETS for the schedulers of other projects. 60 simulated
nodes of 8 GPUs take random gangs of members with 1, 2, 4 or 8 GPUs, one after the other. The dispatcher's fit plans each gang on the
agent's report; before it starts, the oldest runs end until no more than ``--load`` of all GPUs will be in use. ``off`` and ``on``:
``placement.preferPlannedNodes`` of the agent, with the same gangs.

``as_planned``: the share of runs of which each node has as many members as best fit gives it. ``not_placed``: gangs that the fit
accepted and that did not get nodes within ``--patience`` seconds. ``free_nodes``: nodes without any member, which is the largest gang
of whole nodes that could start, at the end and in the mean of all starts; ``possible``: as many as there could be, with all members
packed anew. ``fragmented``: the share of free GPUs that are on nodes in use, in the mean of all starts.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.agent_setup import HOME, NAMESPACE, cluster_config, manifests_of, print_measured
from bench.gangs import Site, scheduler_names, site_of
from trainmaster.protocol.agent import CapacityReport, StartRun, StopRun
from trainmaster.protocol.ids import job_id, run_id
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.quantities import Resources, parse_resources
from trainmaster.protocol.states import RunState, StopCause
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.sync import boot_time
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit

GPU = "nvidia.com/gpu"
_NODES, _GPUS = 60, 8
_ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(_GPUS)}
_SIZES = {1: 35, 2: 20, 4: 20, 8: 25}
"""Weights of members by their GPUs."""
_MOST_MEMBERS = 8
_ROLE = "worker"


@dataclass(frozen=True)
class DrawnGang:
    """``members`` members of ``gpus`` GPUs each."""

    number: int
    members: int
    gpus: int

    @property
    def total(self) -> int:
        return self.members * self.gpus

    @property
    def run(self) -> str:
        return run_id(job_id("bench", self.number), 1)

    @property
    def resources(self) -> dict[str, str]:
        return {"cpu": str(6 * self.gpus), "memory": f"{48 * self.gpus}Gi", GPU: str(self.gpus)}

    @property
    def needs(self) -> Resources:
        return parse_resources(self.resources)

    def start(self, pins: MemberPlacement) -> StartRun:
        template = {"image": "sim", "command": ["sim", "run"], "resources": self.resources}
        spec = {
            "kind": "Job",
            "name": "bench",
            "queue": "research/nlp",
            "stopGrace": "1s",
            "roles": [{"name": _ROLE, "replicas": self.members, "template": template}],
        }
        return StartRun(
            run=self.run,
            job=job_id("bench", self.number),
            queue="research/nlp",
            attempt=1,
            token=1,
            generation=1,
            spec=spec,
            sizes={_ROLE: self.members},
            pins=pins,
            placement_timeout_seconds=600,
        )


def drawn_gangs(many: int, seed: int) -> list[DrawnGang]:
    chance = random.Random(seed)
    gpus = chance.choices(list(_SIZES), list(_SIZES.values()), k=many)
    return [DrawnGang(number, chance.randint(1, _MOST_MEMBERS), each) for number, each in enumerate(gpus, 1)]


class Planner:
    """Plans gangs as the dispatcher does, from the report of a cluster and what runs there."""

    def __init__(self, report: CapacityReport) -> None:
        self._report = report
        self.running: dict[DrawnGang, MemberPlacement] = {}
        """In the order of their starts."""

    @property
    def used(self) -> int:
        return sum(gang.total for gang in self.running)

    def free(self) -> FreeCapacity:
        free = FreeCapacity.empty(self._report)
        for gang in sorted(self.running, key=lambda one: -one.gpus):
            for group, roles in self.running[gang].items():
                free.subtract(group, gang.needs, roles[_ROLE])
        return free

    def plan(self, gang: DrawnGang) -> MemberPlacement | None:
        shape = Shape((RoleShape(_ROLE, gang.members, gang.members, gang.needs),), gang.members)
        found = fit(shape, {_ROLE: gang.members}, self.free())
        return found.placement if isinstance(found, Fitted) else None

    def most_free_nodes(self) -> int:
        """Return how many nodes are free if all members are packed by best fit."""
        return sum(one.count for one in self.free().nodes if one.free.get(GPU) == _GPUS)


@dataclass
class Tally:
    as_planned: int = 0
    placed: int = 0
    not_placed: int = 0
    not_planned: int = 0
    free_nodes: list[int] = field(default_factory=list)
    possible: list[int] = field(default_factory=list)
    fragmented: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "gangs": self.placed + self.not_placed + self.not_planned,
            "not_planned": self.not_planned,
            "not_placed": self.not_placed,
            "as_planned": round(self.as_planned / self.placed, 3),
            "free_nodes_at_the_end": self.free_nodes[-1],
            "free_nodes_possible_at_the_end": self.possible[-1],
            "free_nodes_mean": round(statistics.mean(self.free_nodes), 2),
            "free_nodes_possible_mean": round(statistics.mean(self.possible), 2),
            "fragmented_mean": round(statistics.mean(self.fragmented), 3),
        }


class Trial:
    """Gangs on one cluster, one after the other."""

    def __init__(self, site: Site, runtime: KubernetesRuntime, planner: Planner, patience: float) -> None:
        self._site = site
        self._runtime = runtime
        self._planner = planner
        self._patience = patience
        self._capacity = NodeCapacity(runtime.inventory)
        self.tally = Tally()

    async def take(self, gang: DrawnGang, most_used: int) -> None:
        while self._planner.running and self._planner.used + gang.total > most_used:
            await self._end(next(iter(self._planner.running)))
        await self._until_counted()
        pins = self._planner.plan(gang)
        if pins is None:
            self.tally.not_planned += 1
            return
        start = gang.start(pins)
        wanted = self._nodes_by_best_fit(start)
        await self._runtime.start(start)
        self._planner.running[gang] = pins
        nodes = await self._nodes_of(gang)
        if nodes is None:
            self.tally.not_placed += 1
            await self._end(gang)
        else:
            self.tally.placed += 1
            self.tally.as_planned += nodes == wanted
        self._note()

    async def _until_counted(self) -> None:
        """Wait until the agent's ledger has the devices of runs that have ended."""
        async with asyncio.timeout(60):
            while sum(self._free().values()) != _NODES * _GPUS - self._planner.used:  # noqa: ASYNC110 - soon
                await asyncio.sleep(0.02)

    def _free(self) -> dict[str, int]:
        """Return the free devices by node."""
        return {node.name: node.free.get(GPU, 0) for node in self._runtime.inventory.standing()}

    def _nodes_by_best_fit(self, start: StartRun) -> Counter[str]:
        record = KubeRunRecord(start, NAMESPACE, 1, owner_uid="none")
        pods = {role.name: role.pod for role in manifests_of(record, self._site.placement).gang.roles}
        found = self._capacity.follow(start.run, facts_of(start), start.pins, pods, None)
        return Counter({node: roles[_ROLE] for node, roles in (found or {}).items()})

    async def _nodes_of(self, gang: DrawnGang) -> Counter[str] | None:
        """Return the members by node once all have one; None if that takes too long."""
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            nodes = [member.node for member in self._runtime.held()[gang.run].members if member.node]
            if len(nodes) == gang.members and self._runtime.held()[gang.run].state is RunState.RUNNING:
                return Counter(nodes)
            await asyncio.sleep(0.02)
        return None

    async def _end(self, gang: DrawnGang) -> None:
        del self._planner.running[gang]
        await self._runtime.stop(StopRun(run=gang.run, generation=2, cause=StopCause.CANCEL, grace_seconds=1))
        async with asyncio.timeout(60):
            while not self._runtime.held()[gang.run].state.is_terminal:  # noqa: ASYNC110 - it is over once
                await asyncio.sleep(0.02)
        await self._runtime.forget(gang.run)

    def _note(self) -> None:
        free = self._free()
        whole = sum(1 for gpus in free.values() if gpus == _GPUS)
        self.tally.free_nodes.append(whole)
        self.tally.possible.append(self._planner.most_free_nodes())
        self.tally.fragmented.append(1 - _GPUS * whole / max(1, sum(free.values())))


async def _trial(site: Site, settings: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    config = cluster_config({**site.settings, **settings})
    async with ApiServer(await open_access(site.plane.kubeconfig), parallel=config.parallel) as api:
        runtime = KubernetesRuntime(api, config, namespace=HOME, clock=boot_time)
        await runtime.open()
        try:
            trial = Trial(site, runtime, Planner(await _report(runtime)), options.patience)
            for gang in drawn_gangs(options.gangs, options.seed):
                await trial.take(gang, round(options.load * _NODES * _GPUS))
        finally:
            await runtime.close()
    await site.clear()
    return trial.tally.figures()


async def _report(runtime: KubernetesRuntime) -> CapacityReport:
    """Return the report once it has all nodes."""
    async with asyncio.timeout(60):
        while True:
            report = await runtime.capacity()
            if sum(group.count for group in report.groups) == _NODES:
                return report
            await asyncio.sleep(0.1)


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in options.schedulers:
        async with site_of(name, Path(tempfile.mkdtemp(dir=folder)), _NODES, _ALLOCATABLE) as site:
            found[name] = {
                "off": await _trial(site, {"preferPlannedNodes": False}, options),
                "on": await _trial(site, {"preferPlannedNodes": True}, options),
            }
    return {
        "bench": "fragmentation",
        "nodes": _NODES,
        "gpus_per_node": _GPUS,
        "load": options.load,
        "schedulers": found,
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", type=scheduler_names, default=["native", "coscheduling", "kai"])
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--load", type=float, default=0.75, help="part of all GPUs that may be in use")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds until a gang must have nodes")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> None:
    print_measured(measure, parser().parse_args())


if __name__ == "__main__":
    main()
