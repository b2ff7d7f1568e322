"""A production GPU cluster's tasks through the engine: as one cluster, as three that are scored, and as three chosen at random.

    python -m bench.openb [--shuffles 20] [--data DIR] [--gpus 60] [--draws 2] [--copies 4] [--only filling,lists,waits]

Nodes and tasks are those of Weng et al., *Beware of Fragmentation* (USENIX ATC 2023): 1,523 nodes, 8,152 tasks with requests and
the models that they may run on; a share of a GPU counts as a whole one. The three clusters have a third of each sort of node. At
random is one of those that could hold the task if they were empty. Tasks that no empty node could hold are left out, and counted.

``filling``: tasks arrive in a random order and never leave, until the first one cannot be placed; GPUs that are allocated then, as
parts of all, over ``--shuffles`` shuffles. ``waits``: tasks come and go as recorded, on a fleet scaled to ``--gpus`` that keeps every
model; time limits are the true run times rounded up to a power of two, as people ask. On so few nodes the waits depend on where a
few tasks of weeks happen to run. So there are ``--draws`` other orders of the tasks at the same times as well, and as many draws of
``--copies`` times as many tasks, with replacement, on a fleet that is as many times as large.

``lists``: the figures of ``bench.packing_lists``: these tasks and lists made from them with other parts of constrained, multi-GPU and
shared ones, packed by the engine in one cluster and in three, and in one by first fit, best fit, dot product and fragmentation
gradient descent; GPUs allocated at the first failure, and when all tasks have come.
"""

import argparse
import csv
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from tests.textbook_packing import Filled
from trainmaster.fake_cluster.cluster import FakeCluster as SimulatedCluster
from trainmaster.fake_cluster.fleet import Fleet, FleetCluster, FleetGroup
from trainmaster.fake_cluster.generate import GPU, PRODUCT
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import Order
from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.domain.shapes import shape_from, shape_of
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.from_specs import class_of, cluster_of, queue_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import runs_of
from trainmaster_dispatcher.whatif.engine import Declared, Simulation
from trainmaster_dispatcher.whatif.figures import figures_of
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob
from trainmaster_dispatcher.whatif.values import to_data

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NODES, TASKS = "openb_node_list_all_node.csv", "openb_pod_list_gpuspec33.csv"
Variant = Literal["one", "scored", "random"]
VARIANTS: tuple[Variant, ...] = ("one", "scored", "random")
_THIRDS = 3
_WHOLE_GPU = 1000
_LIST_SHUFFLES = 3
_A_MINUTE = 50
"""The tasks that come in a minute."""
Sort = tuple[int, int, int, str]
"""CPU in thousandths, memory in MiB, GPUs, and their model."""


@dataclass(frozen=True, slots=True)
class Task:
    """Times in seconds since the trace began; ``models``: of any of these, of any at all where empty."""

    cpu: int
    memory: int
    gpus: int
    models: tuple[str, ...]
    submit: float
    run: float
    is_shared: bool = False
    """Whether it takes a share of a GPU, which counts as a whole one."""


def read_nodes(path: Path) -> Counter[Sort]:
    with path.open(newline="") as lines:
        return Counter(
            (int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"] or "")
            for row in csv.DictReader(lines)
        )


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks by creation. A task that never ran has no run time; it counts for filling only."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    tasks = []
    for row in rows:
        began = float(row["scheduled_time"] or row["creation_time"])
        tasks.append(
            Task(
                cpu=int(row["cpu_milli"]),
                memory=int(row["memory_mib"]),
                gpus=int(row["num_gpu"]),
                models=tuple(sorted(set(filter(None, row["gpu_spec"].split("|"))))),
                submit=float(row["creation_time"]),
                run=float(row["deletion_time"]) - began,
                is_shared=int(row["num_gpu"]) == 1 and int(row["gpu_milli"]) < _WHOLE_GPU,
            )
        )
    return sorted(tasks, key=lambda task: task.submit)


def dealt(nodes: Counter[Sort], parts: int) -> list[Counter[Sort]]:
    """Return an equal part of each sort for each of ``parts`` clusters; the remainder is dealt in turn."""
    counts: list[Counter[Sort]] = [Counter() for _ in range(parts)]
    turn = 0
    for sort, count in sorted(nodes.items()):
        for part in counts:
            part[sort] += count // parts
        for _ in range(count % parts):
            counts[turn % parts][sort] += 1
            turn += 1
    return [+part for part in counts]


def fleet_of(nodes: Counter[Sort], parts: int) -> Fleet:
    clusters = [
        FleetCluster(name=f"c{number}", groups=tuple(_group(sort, count) for sort, count in sorted(part.items())))
        for number, part in enumerate(dealt(nodes, parts))
    ]
    return Fleet(clusters=tuple(clusters))


def _group(sort: Sort, count: int) -> FleetGroup:
    cpu, memory, gpus, model = sort
    resources = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"} | ({GPU: str(gpus)} if gpus else {})
    name = f"{model.lower() or 'cpu'}-{gpus}-{cpu // 1000}-{memory // 1024}"
    return FleetGroup(name=name, count=count, resources=resources, labels={PRODUCT: model} if model else {})


def scaled(nodes: Counter[Sort], gpus: int) -> Counter[Sort]:
    """Return nodes with about ``gpus`` GPUs: of each model as large a part as in the whole, and the smallest of its
    nodes at least once."""
    whole = sum(sort[2] * count for sort, count in nodes.items())
    out: Counter[Sort] = Counter()
    for model in sorted({sort[3] for sort in nodes}):
        sorts = {sort: count for sort, count in nodes.items() if sort[3] == model}
        for sort, count in sorts.items():
            out[sort] = round(count * gpus / whole)
        if not any(out[sort] for sort in sorts):
            out[min(sorts, key=lambda sort: sort[2])] = 1
    return +out


def spec_of(task: Task, cluster: str | None) -> dict[str, Any]:
    resources = {"cpu": f"{task.cpu}m", "memory": f"{task.memory}Mi"} | ({GPU: str(task.gpus)} if task.gpus else {})
    template: dict[str, Any] = {"image": "task", "command": ["true"], "resources": resources}
    if task.models:
        template["nodeAffinity"] = [{"key": PRODUCT, "operator": "In", "values": list(task.models)}]
    return {
        "name": "task",
        "queue": "tasks",
        "roles": [{"name": "main", "template": template}],
        "labels": {"sim.trainmaster.dev/run-time": "forever"},
        **({"placement": {"clusters": [cluster]}} if cluster is not None else {}),
    }


class Filling:
    """One fleet to which tasks come in turn and stay."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._reports = [SimulatedCluster(one, 0.0).report() for one in fleet.clusters]
        self._shapes: dict[str, Any] = {}

    def fill(self, tasks: Sequence[Task], clusters: Sequence[str | None]) -> tuple[int, int]:
        """Return the tasks and GPUs that are placed when the first task cannot be. ``clusters``: that of each task, None for any."""
        left = self._left(tasks, clusters, Order.STRICT)
        placed = min(left, default=len(tasks) + 1) - 1
        return placed, sum(task.gpus for task in tasks[:placed])

    def filled(self, tasks: Sequence[Task]) -> Filled:
        """Return what is allocated at the first failure, and once all tasks have come, where others go on."""
        anywhere = [None] * len(tasks)
        _, first = self.fill(tasks, anywhere)
        left = self._left(tasks, anywhere, Order.BEST_EFFORT)
        return Filled(
            first, sum(task.gpus for number, task in enumerate(tasks, start=1) if number not in left), len(left)
        )

    def _left(self, tasks: Sequence[Task], clusters: Sequence[str | None], order: Order) -> set[int]:
        """Return the tasks without a place, numbered from 1. In each minute a few come; what comes later is not known."""
        engine = Engine()
        state = engine.state
        state.put_queue(queue_of(1, None, QueueSpec(path="tasks", order=order)))
        state.put_class(class_of(1, PriorityClassSpec(name="normal", value=0)))
        for key, (one, report) in enumerate(zip(self._fleet.clusters, self._reports, strict=True), start=1):
            state.put_cluster(cluster_of(key, ClusterSpec(name=one.name), report))
            state.lease_until[key] = inf
        ids: dict[str, int] = {}
        for number, (task, cluster) in enumerate(zip(tasks, clusters, strict=True), start=1):
            text = json.dumps(spec_of(task, cluster), sort_keys=True)
            if text not in ids:
                ids[text] = len(ids) + 1
                if text not in self._shapes:
                    self._shapes[text] = shape_from(shape_of(JobSpec.model_validate_json(text)))
                state.put_shape(ids[text], self._shapes[text])
            state.put_waiting(WaitingJob(number, 1, f"t{number}", 1, 1, ids[text], 0, float(number), 0))
            if number % _A_MINUTE == 0 or number == len(tasks):
                now = 60.0 * number / _A_MINUTE
                while (plan := decide(engine, now)).starts:
                    state.put_runs(runs_of(plan.starts, now))
                    engine.carry_over(plan)
        return set(state.jobs)


def may_hold(sort: Sort, task: Task) -> bool:
    """Return whether an empty node can hold a task."""
    cpu, memory, gpus, model = sort
    has_model = not task.models or model in task.models
    return has_model and cpu >= task.cpu and memory >= task.memory and gpus >= task.gpus


def possible(nodes: Counter[Sort], tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if any(may_hold(sort, task) for sort in nodes)]


def _bound(variant: Variant, nodes: Counter[Sort], tasks: Sequence[Task], seed: int) -> list[str | None]:
    """Return the cluster that each task is bound to, or None for a task that may go to any."""
    if variant != "random":
        return [None] * len(tasks)
    chance = random.Random(f"clusters {seed}")
    parts = dealt(nodes, _THIRDS)
    found: list[str | None] = []
    for task in tasks:
        able = [number for number, part in enumerate(parts) if any(may_hold(sort, task) for sort in part)]
        found.append(f"c{chance.choice(able)}")
    return found


def filling(nodes: Counter[Sort], tasks: Sequence[Task], shuffles: int) -> Iterator[dict[str, Any]]:
    whole = sum(sort[2] * count for sort, count in nodes.items())
    for variant in VARIANTS:
        began = time.process_time()
        fleet = Filling(fleet_of(nodes, 1 if variant == "one" else _THIRDS))
        parts, placed = [], []
        for seed in range(shuffles):
            order = list(tasks)
            random.Random(seed).shuffle(order)
            many, gpus = fleet.fill(order, _bound(variant, nodes, order, seed))
            parts.append(gpus / whole)
            placed.append(many)
        yield {
            "clusters": variant,
            "gpus_allocated": {
                "mean": round(statistics.fmean(parts), 4),
                "least": round(min(parts), 4),
                "most": round(max(parts), 4),
            },
            "tasks_placed_mean": round(statistics.fmean(placed), 1),
            "cpu_seconds": round(time.process_time() - began, 1),
        }


def reordered(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks in another order, at the same times."""
    others = random.Random(f"order {seed}").sample(list(tasks), len(tasks))
    return [replace(other, submit=task.submit) for task, other in zip(tasks, others, strict=True)]


def multiplied(tasks: Sequence[Task], copies: int, seed: int) -> list[Task]:
    """Return ``copies`` tasks for each, drawn from all, within ten minutes of its time."""
    chance = random.Random(f"copies {seed}")
    found = [
        replace(chance.choice(tasks), submit=task.submit + chance.uniform(0, 600))
        for task in tasks
        for _ in range(copies)
    ]
    return sorted(found, key=lambda task: task.submit)


def all_waits(nodes: Counter[Sort], tasks: Sequence[Task], gpus: int, draws: int, copies: int) -> dict[str, Any]:
    """Return the waits as recorded, in other orders, and on a larger fleet."""
    return {
        "recorded": list(waits(nodes, tasks, gpus)),
        "reordered": [list(waits(nodes, reordered(tasks, seed), gpus)) for seed in range(draws)],
        "multiplied": [
            list(waits(nodes, multiplied(tasks, copies, seed), copies * gpus)) for seed in range(draws if copies else 0)
        ],
    }


def waits(nodes: Counter[Sort], tasks: Sequence[Task], gpus: int) -> Iterator[dict[str, Any]]:
    small = scaled(nodes, gpus)
    runs = possible(small, [task for task in tasks if task.run > 0])
    first = runs[0].submit
    for variant in VARIANTS:
        began = time.process_time()
        specs: dict[str, JobSpec] = {}
        jobs = []
        for number, (task, cluster) in enumerate(zip(runs, _bound(variant, small, runs, 0), strict=True), start=1):
            text = json.dumps(
                {**spec_of(task, cluster), "timeLimit": f"{2 ** math.ceil(math.log2(task.run + 1))}s"}, sort_keys=True
            )
            if text not in specs:
                specs[text] = JobSpec.model_validate_json(text)
            jobs.append(TraceJob(number, task.submit - first, task.run, specs[text]))
        fleet = fleet_of(small, 1 if variant == "one" else _THIRDS)
        outcome = Simulation(fleet, Declared([QueueSpec(path="tasks")])).run(Trace(TASKS, tuple(jobs)))
        found = to_data(figures_of(outcome))
        yield {
            "clusters": variant,
            "gpus": sum(sort[2] * count for sort, count in small.items()),
            "tasks": len(runs),
            "ends": found["ends"],
            "waits": found["waits"],
            "cpu_seconds": round(time.process_time() - began, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shuffles", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=60, help="of the fleet on which waits are measured")
    parser.add_argument("--draws", type=int, default=2, help="of other orders of the tasks, and of more tasks")
    parser.add_argument("--copies", type=int, default=4, help="how many times as many tasks and GPUs; 0: no such draws")
    parser.add_argument("--data", type=Path, default=DATA, help=f"where {NODES} and {TASKS} are")
    parser.add_argument("--only", default="filling,lists,waits", help="the parts to measure")
    options = parser.parse_args()
    only = options.only.split(",")
    for name in (NODES, TASKS):
        if not (options.data / name).is_file():
            parser.error(f"no {name} in {options.data}; --data says where it is")
    nodes, tasks = read_nodes(options.data / NODES), read_tasks(options.data / TASKS)
    placeable = possible(nodes, tasks)
    result = {
        "bench": "openb",
        "nodes": sum(nodes.values()),
        "gpus": sum(sort[2] * count for sort, count in nodes.items()),
        "tasks": len(tasks),
        "fit_on_no_node": len(tasks) - len(placeable),
        "shuffles": options.shuffles,
    }
    if "filling" in only:
        result["filling"] = list(filling(nodes, placeable, options.shuffles))
    if "lists" in only:
        from bench.packing_lists import LISTS, all_measured

        result["lists"] = list(all_measured(nodes, tasks, LISTS, min(options.shuffles, _LIST_SHUFFLES)))
    if "waits" in only:
        result["waits"] = all_waits(nodes, tasks, options.gpus, options.draws, options.copies)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
