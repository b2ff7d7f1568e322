"""Scores: which of the clusters that fit is best. Each is between 0 and 1 on an absolute curve, never normalised among them.

Weights say how much each counts; the total is the weighted sum. They come from profiles: data of admins, by queue or priority class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.state.state import Cluster


@dataclass(frozen=True, slots=True)
class Fit:
    """A cluster where the gang fits: what is free there before, what the gang takes, and what else is scored.

    ``cost``: what the run is expected to cost, in the installation's currency. ``wait``: seconds until it is expected to start there,
    its data moved. ``local``: the part of its data that is there. ``trouble``: runs that were returned or lost there lately, decayed.
    ``preferred``: the part of its preferences that the cluster meets. ``domains``: over how many domains of the level that it
    prefers it is spread. ``elsewhere``: the part of the runs of its queue that is on other clusters. ``common``: how many
    devices of the product that it takes there the fleet has, as a part of those of the commonest one that it may have.
    """

    cluster: Cluster
    free: Resources
    capacity: Resources
    needs: Resources
    cost: float = 0.0
    wait: float = 0.0
    local: float = 1.0
    trouble: float = 0.0
    preferred: float = 1.0
    domains: int = 1
    elsewhere: float = 1.0
    common: float = 1.0


Score = Callable[[Fit], float]

_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def step_of(trouble: float) -> float:
    """Trouble in coarse steps, so that it fades without every cluster being scored anew all the time; 0 for next to none."""
    return max((step for step in _STEPS if step <= trouble), default=0.0)


_KIND = {ClusterKind.PRIVATE: 1.0, ClusterKind.EDGE: 0.6, ClusterKind.PUBLIC: 0.0}
MONEY_HALF = 10.0
"""A run that is expected to cost so much scores half of one that costs nothing."""
WAIT_HALF = 300.0
"""Seconds: one that is expected to start after so long scores half of one that starts at once."""
TROUBLE_HALF = 4.0
"""A cluster that has returned or lost so many runs just now scores half of one that has not."""


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


def wait(fit: Fit) -> float:
    """The sooner it starts, the better: half as good after ``WAIT_HALF``."""
    return 1.0 / (1.0 + fit.wait / WAIT_HALF)


def data(fit: Fit) -> float:
    """Where its data is."""
    return fit.local


def reliability(fit: Fit) -> float:
    """Clusters without trouble lately."""
    return 1.0 / (1.0 + fit.trouble / TROUBLE_HALF)


def affinity(fit: Fit) -> float:
    """Clusters that it prefers."""
    return fit.preferred


def topology(fit: Fit) -> float:
    """All in one domain of the level that it prefers, before several."""
    return 1.0 / fit.domains


def spread(fit: Fit) -> float:
    """Away from the runs of its queue."""
    return fit.elsewhere


def sparing(fit: Fit) -> float:
    """Common devices before scarce ones, which others may need."""
    return fit.common


SCORES: Mapping[str, Score] = {
    "kind": kind_preference,
    "packing": packing,
    "money": money,
    "wait": wait,
    "data": data,
    "reliability": reliability,
    "affinity": affinity,
    "topology": topology,
    "spread": spread,
    "sparing": sparing,
}
"""Name and function of each score, in the order of ``Weights``."""


def score(fit: Fit, weights: Weights = BALANCED) -> tuple[float, dict[str, float]]:
    """The total and each score, rounded as people read it."""
    parts = {name: round(function(fit), 4) for name, function in SCORES.items()}
    room = weights.kind * parts["kind"] + weights.packing * parts["packing"] + weights.money * parts["money"]
    total = room + _fixed(parts["wait"], parts["data"], parts["reliability"], parts["affinity"], weights)
    # Added up as in ``scorer``, for sums of floats depend on their order.
    total += (
        weights.topology * parts["topology"] + weights.sparing * parts["sparing"] + weights.spread * parts["spread"]
    )
    return round(total, 4), parts


def fixed_score(fit: Fit, weights: Weights) -> float:
    """What counts of the scores that do not depend on the room of a cluster."""
    parts = round(wait(fit), 4), round(data(fit), 4), round(reliability(fit), 4), round(affinity(fit), 4)
    return _fixed(*parts, weights)


def _fixed(waits: float, local: float, reliable: float, preferred: float, weights: Weights) -> float:
    return weights.wait * waits + weights.data * local + weights.reliability * reliable + weights.affinity * preferred


def is_quick(weights: Weights, *, prefers_level: bool) -> bool:
    """Whether the total of a cluster is known without a fit, and does not depend on the queue."""
    return not weights.spread and not (weights.topology and prefers_level)


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
    return weights.packing * (more + 0.0002) + 0.0002


Total = Callable[[ClusterKind, Measure, Resources, float, float | None, float | None], float]
"""The total of a cluster of a kind, by what is in use there, what is needed, what that costs, what counts of the scores that do not
depend on its room, and how common the devices are that it takes there: None for each of the two where it is as good as can be."""


@lru_cache(maxsize=256)
def scorer(weights: Weights) -> Total:
    """What gives the total of ``score`` with less work: it is asked for on every cluster. Where ``is_quick`` holds."""
    kinds = {kind: weights.kind * round(value, 4) for kind, value in _KIND.items()}
    packing, money, best = weights.packing, weights.money, weights.fixed
    topology, spares = weights.topology, weights.sparing
    rest = topology + spares

    def total(
        kind: ClusterKind, measured: Measure, needs: Resources, cost: float, fixed: float | None, common: float | None
    ) -> float:
        fullest = 0.0
        for name, amount in needs.items():
            found = measured.get(name)
            if found is not None:
                full = (found[0] + amount) / found[1]
                if full > fullest:
                    fullest = full
        cheap = round(1.0 / (1.0 + cost / MONEY_HALF), 4) if cost else 1.0
        room = kinds[kind] + packing * round(min(fullest, 1.0), 4) + money * cheap
        fixed = best if fixed is None else fixed
        return round(room + fixed + (rest if common is None else topology + spares * round(common, 4)), 4)

    return total


def deciding(best: Mapping[str, float], second: Mapping[str, float], weights: Weights) -> str:
    """The score by which the best is ahead of the second most."""
    gains = {name: weight * (best[name] - second[name]) for name, weight in zip(SCORES, weights, strict=True)}
    return max(gains, key=lambda name: gains[name])
