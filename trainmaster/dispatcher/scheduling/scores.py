"""Scores: which of the clusters that fit is best. Each is between 0 and 1 on an absolute curve, never normalised among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainmaster.dispatcher.scheduling.view import Cluster
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import ClusterKind


@dataclass(frozen=True, slots=True)
class Fit:
    """A cluster where the gang fits: what is free there before, and what the gang takes."""

    cluster: Cluster
    free: Resources
    capacity: Resources
    needs: Resources


Score = Callable[[Fit], float]

_KIND = {ClusterKind.PRIVATE: 1.0, ClusterKind.EDGE: 0.6, ClusterKind.PUBLIC: 0.0}


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


_KIND_WEIGHT, _PACKING_WEIGHT = 2.0, 1.0
_KIND_PARTS = {kind: _KIND_WEIGHT * round(value, 4) for kind, value in _KIND.items()}
SCORES: Mapping[str, tuple[float, Score]] = {
    "kind": (_KIND_WEIGHT, kind_preference),
    "packing": (_PACKING_WEIGHT, packing),
}
"""Name, weight and function of each score; the total is the weighted sum."""


def score(fit: Fit) -> tuple[float, dict[str, float]]:
    """The total and each score, rounded as people read it."""
    parts = {name: round(function(fit), 4) for name, (_, function) in SCORES.items()}
    return round(sum(SCORES[name][0] * value for name, value in parts.items()), 4), parts


Measure = Mapping[str, tuple[int, int]]
"""By resource that a cluster has: how much of it is in use there, and how much there is."""


def measure(free: Resources, capacity: Resources) -> Measure:
    """What ``total_score`` goes by, made once for all who ask."""
    return {name: (there - free.get(name, 0), there) for name, there in capacity.items() if there > 0}


def headroom(needs: Resources, least: Resources) -> float:
    """By how much the total of any cluster is higher for these needs than for none, at most; rounding included.

    ``least``: the least amount of each resource that any cluster has.
    """
    more = max((amount / least[name] for name, amount in needs.items() if name in least), default=0.0)
    return _PACKING_WEIGHT * (more + 0.0002) + 0.0001


def total_score(kind: ClusterKind, measured: Measure, needs: Resources) -> float:
    """The total of ``score``, found with less work: it is asked for on every cluster."""
    fullest = 0.0
    for name, amount in needs.items():
        found = measured.get(name)
        if found is not None:
            full = (found[0] + amount) / found[1]
            if full > fullest:
                fullest = full
    return round(_KIND_PARTS[kind] + _PACKING_WEIGHT * round(min(fullest, 1.0), 4), 4)
