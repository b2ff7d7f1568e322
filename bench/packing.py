"""The part of existing packings that the fit misses.

    python -m bench.packing [--gangs 50000] [--seed 1]

Gangs are drawn with one role and with up to four of different form, and clusters of a few nodes that are partly in use,
so that every way of placing all members can be tried. ``possible`` counts the gangs with a packing; ``missed`` those
among them for which the fit finds none, with ``miss_share``. The same for tight ones, which take at least three
quarters of the CPU, or of the devices, that is free on all nodes together. ``wrong`` counts impossible packings, of
which there must be none.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit, size_choices

CORE, GPU = 1000, "nvidia.com/gpu"
MOST_ROLES = 4

_TIGHT = 0.75
_NODES = (2, 6)
_FREE_CORES = (0, 8)
_FREE_GPUS = (0, 0, 0, 1, 2, 3, 4)
_REPLICAS = (1, 4)
_CORES = (1, 5)
_GPUS = (0, 0, 1, 2)


def packs(members: list[Resources], free: list[Resources]) -> bool:
    """Return whether the members fit on the nodes: every way is tried."""
    if not members:
        return True
    first, rest = members[0], members[1:]
    tried: list[Resources] = []
    for index, node in enumerate(free):
        if node in tried or any(node.get(name, 0) < amount for name, amount in first.items()):
            continue
        tried.append(node)
        left = {name: amount - first.get(name, 0) for name, amount in node.items()}
        if packs(rest, [*free[:index], left, *free[index + 1 :]]):
            return True
    return False


@dataclass(slots=True)
class Tally:
    """Gangs with a packing, and how many of these the fit missed."""

    possible: int = 0
    missed: int = 0

    def note(self, *, missed: bool) -> None:
        self.possible += 1
        self.missed += missed

    def figures(self) -> dict[str, Any]:
        return {
            "possible": self.possible,
            "missed": self.missed,
            "miss_share": round(self.missed / self.possible, 5) if self.possible else None,
        }


def drawn(chance: random.Random, roles: int) -> tuple[Shape, list[Resources]]:
    """Return a gang of ``roles`` roles, and the free amounts of each node."""
    parts = []
    for number in range(roles):
        needs = {"cpu": chance.randint(*_CORES) * CORE, GPU: chance.choice(_GPUS)}
        size = chance.randint(*_REPLICAS)
        parts.append(RoleShape(f"r{number}", size, size, {name: amount for name, amount in needs.items() if amount}))
    free = [
        {"cpu": chance.randint(*_FREE_CORES) * CORE, GPU: chance.choice(_FREE_GPUS)}
        for _ in range(chance.randint(*_NODES))
    ]
    return Shape(tuple(parts), sum(part.replicas for part in parts)), free


def found(shape: Shape, free: list[Resources]) -> bool:
    """Return whether the fit places all members."""
    groups = tuple(NodeGroup(name=f"n{number}", count=1, free=node) for number, node in enumerate(free))
    capacity = FreeCapacity.empty(CapacityReport(groups=groups, runtime="simulated", scheduler="simulated"))
    return isinstance(fit(shape, size_choices(shape)[0].members, capacity), Fitted)


def members_of(shape: Shape) -> Iterator[Resources]:
    """Yield what each member needs, the largest first: that ends the search early if there is no packing."""
    for role in sorted(shape.roles, key=lambda role: (-role.needs.get(GPU, 0), -role.needs["cpu"])):
        yield from [role.needs] * role.replicas


def is_tight(shape: Shape, free: list[Resources]) -> bool:
    """Return whether the gang takes most of the CPU, or of the devices, that is free."""
    return any(
        sum(role.replicas * role.needs.get(name, 0) for role in shape.roles)
        >= _TIGHT * sum(node[name] for node in free)
        > 0
        for name in ("cpu", GPU)
    )


def run(gangs: int, seed: int) -> dict[str, Any]:
    """Fit ``gangs`` gangs of each number of roles, and return the counts."""
    out: dict[str, Any] = {}
    wrong = 0
    for roles in range(1, MOST_ROLES + 1):
        chance = random.Random(f"{seed} {roles}")
        overall, tight = Tally(), Tally()
        for _ in range(gangs):
            shape, free = drawn(chance, roles)
            can, does = packs(list(members_of(shape)), free), found(shape, free)
            wrong += does and not can
            if can:
                overall.note(missed=not does)
                if is_tight(shape, free):
                    tight.note(missed=not does)
        out[f"roles_{roles}"] = overall.figures() | {"tight": tight.figures()}
    return {"bench": "packing", "gangs_of_each": gangs, "seed": seed, "wrong": wrong, **out}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=50_000, help="of each number of roles")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(run(options.gangs, options.seed), indent=2))


if __name__ == "__main__":
    main()
