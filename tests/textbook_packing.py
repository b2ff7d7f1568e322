"""Four ways of choosing a node for a task, as the literature has them, without any code of the product: the yardstick for packing.

First fit, best fit, dot product, and fragmentation gradient descent (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023). Nodes are rows of numbers; a task takes one node, and stays.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

CPU, MEMORY, GPUS = range(3)
_NEVER = np.inf
_MOST_TYPES = 120
"""The largest number of kinds of tasks by which fragmentation is measured; the rarest ones are left out."""


class Heuristic(StrEnum):
    """How a node is chosen among those that have enough free."""

    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"
    DOT_PRODUCT = "dot_product"
    FGD = "fragmentation_gradient_descent"


@dataclass(frozen=True, slots=True)
class Node:
    """Amounts of CPU, memory and GPUs, and the model of the GPUs; empty without any."""

    amounts: tuple[float, float, float]
    model: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a task needs; ``models``: of any of these, of any at all where empty."""

    amounts: tuple[float, float, float]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """How many GPUs were allocated when the first task found no node, and once all tasks had come, where others went on."""

    at_first_failure: int
    at_the_end: int
    failed: int


def fill(nodes: Sequence[Node], tasks: Sequence[Request], heuristic: Heuristic) -> Filled:
    """Place tasks one after the other. Of equally good nodes the first is taken."""
    free = np.array([node.amounts for node in nodes], dtype=float)
    largest = free.max(axis=0)
    largest[largest == 0] = 1.0
    allowed = {models: _allowed(nodes, models) for models in {task.models for task in tasks}}
    fragmentation = _Fragmentation(free, tasks, allowed) if heuristic is Heuristic.FGD else None
    used, failed, first = 0, 0, -1
    for task in tasks:
        need = np.array(task.amounts)
        fits = allowed[task.models] & (free >= need).all(axis=1)
        places = np.flatnonzero(fits)
        if not len(places):
            failed += 1
            first = used if first < 0 else first
            continue
        if heuristic is Heuristic.FIRST_FIT:
            place = int(places[0])
        elif heuristic is Heuristic.BEST_FIT:
            place = int(places[np.argmin(((free[places] - need) / largest).sum(axis=1))])
        elif heuristic is Heuristic.DOT_PRODUCT:
            place = int(places[np.argmin((free[places] / largest) @ (need / largest))])
        else:
            assert fragmentation is not None
            place = int(places[np.argmin(fragmentation.growth(places, need))])
        free[place] -= need
        if fragmentation is not None:
            fragmentation.changed(place)
        used += int(task.amounts[GPUS])
    return Filled(used if first < 0 else first, used, failed)


def _allowed(nodes: Sequence[Node], models: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.array([not models or node.model in models for node in nodes])


class _Fragmentation:
    """The GPUs on each node that a task drawn from the workload cannot use, on average."""

    def __init__(
        self,
        free: NDArray[np.float64],
        tasks: Sequence[Request],
        allowed: dict[tuple[str, ...], NDArray[np.bool_]],
    ) -> None:
        kinds = Counter(tasks).most_common(_MOST_TYPES)
        whole = sum(count for _, count in kinds)
        self._free = free
        self._share = np.array([count / whole for _, count in kinds])
        self._needs = np.array([kind.amounts for kind, _ in kinds])
        self._has_gpus = self._needs[:, GPUS] > 0
        self._allowed = np.array([allowed[kind.models] for kind, _ in kinds]).T
        self._now = self._of(np.arange(len(free)), free)

    def _of(self, places: NDArray[np.intp], free: NDArray[np.float64]) -> NDArray[np.float64]:
        usable = (free[:, None, :] >= self._needs[None, :, :]).all(axis=2) & self._allowed[places] & self._has_gpus
        lost: NDArray[np.float64] = free[:, GPUS] * ((~usable) @ self._share)
        return lost

    def growth(self, places: NDArray[np.intp], need: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how much fragmentation grows on each of these nodes if the task goes there."""
        return self._of(places, self._free[places] - need) - self._now[places]

    def changed(self, place: int) -> None:
        here = np.array([place])
        self._now[place] = self._of(here, self._free[here])[0]
