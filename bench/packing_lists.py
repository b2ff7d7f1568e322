"""Packing on many task lists: the engine beside first fit, best fit, dot product and fragmentation gradient descent.

    python -m bench.packing_lists [--lists real,constrained50] [--shuffles 3] [--clusters 1,3] [--data DIR]

Nodes and tasks as in ``bench.openb``. Lists are drawn from the real one with a given part of constrained tasks (that name models),
of tasks with several GPUs, or of tasks that take a share of a GPU (counted as a whole one), until they ask for as many GPUs as there
are. Tasks come one after the other and stay. ``at_first_failure`` and ``at_the_end``: GPUs allocated when the first task found no
place, and once all have come, as parts of all; means over shuffles. The heuristics see one cluster, also where the engine has three.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.openb import (
    DATA,
    NODES,
    TASKS,
    Filling,
    Sort,
    Task,
    fleet_of,
    possible,
    read_nodes,
    read_tasks,
)
from tests.textbook_packing import Filled, Heuristic, Node, Request, fill

_PARTS = (10, 20, 33, 50)
_KINDS: dict[str, Callable[[Task], bool]] = {
    "constrained": lambda task: bool(task.models),
    "multi": lambda task: task.gpus > 1,
    "shared": lambda task: task.is_shared,
}
LISTS = ("real", *(f"{kind}{part}" for kind in _KINDS for part in _PARTS))


def drawn(tasks: Sequence[Task], name: str, gpus: int, seed: int) -> list[Task]:
    """Return tasks that ask for ``gpus`` GPUs in all: the real ones in a random order, or drawn with a part of one kind."""
    chance = random.Random(f"{name} {seed}")
    kind = name.rstrip("0123456789")
    found: list[Task] = []
    requested = 0
    if kind == "real":
        stream: Iterator[Task] = iter(chance.sample(list(tasks), len(tasks)))
    else:
        part, is_one = int(name.removeprefix(kind)) / 100, _KINDS[kind]
        ones, others = [task for task in tasks if is_one(task)], [task for task in tasks if not is_one(task)]
        stream = iter(lambda: chance.choice(ones if chance.random() < part else others), None)
    for task in stream:
        if requested >= gpus:
            break
        found.append(task)
        requested += task.gpus
    return found


def _shown(parts: Sequence[Filled], whole: int) -> dict[str, float]:
    return {
        "at_first_failure": round(statistics.fmean(one.at_first_failure for one in parts) / whole * 100, 2),
        "at_the_end": round(statistics.fmean(one.at_the_end for one in parts) / whole * 100, 2),
    }


def measured(
    name: str, sorts: Sequence[tuple[Sort, int]], tasks: Sequence[Task], shuffles: int, fleets: dict[int, Filling]
) -> dict[str, Any]:
    """Return what each way of packing allocates of one list."""
    nodes = [
        Node((float(cpu), float(memory), float(gpus)), model)
        for (cpu, memory, gpus, model), many in sorts
        for _ in range(many)
    ]
    whole = int(sum(node.amounts[2] for node in nodes))
    lists = [drawn(tasks, name, whole, seed) for seed in range(shuffles)]
    found: dict[str, Any] = {"list": name, "tasks": len(lists[0])}
    for heuristic in Heuristic:
        requests = [[Request((task.cpu, task.memory, task.gpus), task.models) for task in one] for one in lists]
        found[heuristic] = _shown([fill(nodes, one, heuristic) for one in requests], whole)
    for parts, fleet in fleets.items():
        began = time.process_time()
        filled = [fleet.filled(one) for one in lists]
        found[f"engine_{parts}"] = _shown(filled, whole) | {"cpu_seconds": round(time.process_time() - began, 1)}
    for figure in ("at_first_failure", "at_the_end"):
        best = max(found[heuristic][figure] for heuristic in Heuristic)
        for parts in fleets:
            found[f"engine_{parts}"][f"{figure}_less_best"] = round(found[f"engine_{parts}"][figure] - best, 2)
    return found


def all_measured(
    nodes: Counter[Sort], tasks: Sequence[Task], names: Iterable[str], shuffles: int, clusters: Sequence[int] = (1, 3)
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each of these lists on a fleet of as many clusters as each of ``clusters``; print them as they come."""
    fleets = {parts: Filling(fleet_of(nodes, parts)) for parts in clusters}
    for name in names:
        row = measured(name, sorted(nodes.items()), possible(nodes, tasks), shuffles, fleets)
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", default=",".join(LISTS))
    parser.add_argument("--shuffles", type=int, default=3)
    parser.add_argument("--clusters", default="1,3")
    parser.add_argument("--data", type=Path, default=DATA, help=f"where {NODES} and {TASKS} are")
    options = parser.parse_args()
    nodes, tasks = read_nodes(options.data / NODES), read_tasks(options.data / TASKS)
    if unknown := set(options.lists.split(",")) - set(LISTS):
        parser.error(f"no list {sorted(unknown)[0]}; there are: {', '.join(LISTS)}")
    parts = [int(many) for many in options.clusters.split(",")]
    rows = list(all_measured(nodes, tasks, options.lists.split(","), options.shuffles, parts))
    print(json.dumps({"bench": "packing_lists", "shuffles": options.shuffles, "lists": rows}, indent=2))


if __name__ == "__main__":
    main()
