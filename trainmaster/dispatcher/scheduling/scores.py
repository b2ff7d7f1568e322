"""Scores: which of the clusters that fit is best. Each is between 0 and 1 on an absolute curve, never normalised among them.

Weights say how much each counts; the total is the weighted sum. They come from profiles: data of admins, by queue or priority class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from trainmaster.dispatcher.domain.weights import BALANCED, Weights
from trainmaster.dispatcher.scheduling.view import Cluster
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import ClusterKind


@dataclass(frozen=True, slots=True)
class Fit:
    """A cluster where the gang fits: what is free there before, what the gang takes, and what the run is expected to cost.

    ``cost`` is in the installation's currency.
    """

    cluster: Cluster
    free: Resources
    capacity: Resources
    needs: Resources
    cost: float = 0.0


Score = Callable[[Fit], float]

_KIND = {ClusterKind.PRIVATE: 1.0, ClusterKind.EDGE: 0.6, ClusterKind.PUBLIC: 0.0}
MONEY_HALF = 10.0
"""A run that is expected to cost so much scores half of one that costs nothing."""


def kind_preference(fit: Fit) -> float:
    """Own machines before rented ones."""
    return _KIND[fit.cluster.kind]


def packing(fit: Fit) -> float:
    """How full the cluster is afterwards, by its fullest resource, so that large free shapes stay whole elsewhere."""
    fullest = 0.0
    for name, amount in fit.needs.items():
        there = fit.capacity.get(name, 0)
        if there > 0:
            fullest = max(fullest, (there - fit.free.get(name, 0) + amount) / there)
    return min(fullest, 1.0)


def money(fit: Fit) -> float:
    """The less it costs, the better: half as good at ``MONEY_HALF``."""
    return 1.0 / (1.0 + fit.cost / MONEY_HALF)


SCORES: Mapping[str, Score] = {"kind": kind_preference, "packing": packing, "money": money}
"""Name and function of each score, in the order of ``Weights``."""


def score(fit: Fit, weights: Weights = BALANCED) -> tuple[float, dict[str, float]]:
    """The total and each score, rounded as people read it."""
    parts = {name: round(function(fit), 4) for name, function in SCORES.items()}
    total = 0.0
    for weight, value in zip(weights, parts.values(), strict=True):
        total += weight * value
    return round(total, 4), parts


Measure = Mapping[str, tuple[int, int]]
"""By resource that a cluster has: how much of it is in use there, and how much there is."""


def measure(free: Resources, capacity: Resources) -> Measure:
    """What ``total_score`` goes by, made once for all who ask."""
    return {name: (there - free.get(name, 0), there) for name, there in capacity.items() if there > 0}


def headroom(needs: Resources, least: Resources, weights: Weights = BALANCED) -> float:
    """By how much the total of any cluster is higher for these needs than for none, at most; rounding included.

    ``least``: the least amount of each resource that any cluster has. For none a cluster costs nothing, so that money only lowers it.
    """
    more = max((amount / least[name] for name, amount in needs.items() if name in least), default=0.0)
    return weights.packing * (more + 0.0002) + 0.0001


class _Parts(NamedTuple):
    kinds: dict[ClusterKind, float]
    packing: float
    money: float


@lru_cache(maxsize=256)
def _parts_of(weights: Weights) -> _Parts:
    return _Parts(
        {kind: weights.kind * round(value, 4) for kind, value in _KIND.items()}, weights.packing, weights.money
    )


def total_score(
    kind: ClusterKind, measured: Measure, needs: Resources, cost: float = 0.0, weights: Weights = BALANCED
) -> float:
    """The total of ``score``, found with less work: it is asked for on every cluster."""
    fullest = 0.0
    for name, amount in needs.items():
        found = measured.get(name)
        if found is not None:
            full = (found[0] + amount) / found[1]
            if full > fullest:
                fullest = full
    parts = _parts_of(weights)
    cheap = round(1.0 / (1.0 + cost / MONEY_HALF), 4) if cost else 1.0
    return round(parts.kinds[kind] + parts.packing * round(min(fullest, 1.0), 4) + parts.money * cheap, 4)


def deciding(best: Mapping[str, float], second: Mapping[str, float], weights: Weights) -> str:
    """The score by which the best is ahead of the second most."""
    gains = {name: weight * (best[name] - second[name]) for name, weight in zip(SCORES, weights, strict=True)}
    return max(gains, key=lambda name: gains[name])
