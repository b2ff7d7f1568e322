"""Totals of the scores of a cluster, each times its weight. Written once for all scores, by what each depends on.

Weights come from profiles: data of admins, by queue or priority class. ``score`` measures a whole ``Fit``. ``scorer`` gives the same
total with less work where ``is_quick`` is true: it is called for every cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf

from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.selection.scores.base import Applies, DependsOn, Fit, Score, Usage, usage_of
from trainmaster_dispatcher.scheduling.selection.scores.registry import SCORES

# A score as a function of a ``Fit``, and its index in ``Weights``.


def _by_fit(score: Score) -> Callable[[Fit], float]:
    """Return the score as a function of a ``Fit``, whatever its ``measure`` is given."""
    of = score.of
    match score.depends_on:
        case DependsOn.KIND:
            return lambda fit: of(fit.cluster.kind)
        case DependsOn.CAPACITY:
            return lambda fit: of(usage_of(fit.free, fit.capacity), fit.needs)
        case DependsOn.COST:
            return lambda fit: of(fit.cost) if fit.cost else 1.0
        case DependsOn.DEVICES:
            return lambda fit: of(fit.common) if fit.common != 1.0 else 1.0
        case DependsOn.CLUSTER | DependsOn.PLACEMENT | DependsOn.QUEUE:
            return of


def _places(*groups: DependsOn, applies: Sequence[Applies] = tuple(Applies)) -> tuple[int, ...]:
    """Return the indexes in ``Weights`` of the scores that apply to any of these."""
    return tuple(
        place for place, one in enumerate(SCORES.values()) if one.depends_on in groups and one.applies in applies
    )


_ALL = tuple((name, _by_fit(one), int(one.depends_on)) for name, one in SCORES.items())
_GROUPS = len(DependsOn)
_NAMED = tuple(SCORES.items())
_FIXED = tuple((place, tuple(SCORES.values())[place].of) for place in _places(DependsOn.CLUSTER))
_QUEUE = _places(DependsOn.QUEUE)
_DEVICES = _places(DependsOn.DEVICES)
_LEVEL = _places(DependsOn.PLACEMENT, applies=(Applies.WITH_LEVEL,))
_PLACED = tuple(place for place in _places(DependsOn.PLACEMENT) if place not in _LEVEL)
_VARYING = {applies: _places(DependsOn.CLUSTER, applies=(applies,)) for applies in Applies}
_GAINS = tuple((place, tuple(SCORES.values())[place].gain) for place in _places(DependsOn.CAPACITY))


def _rounded(value: float) -> float:
    """Return a score as people read it. Most are 1, and rounding a float is slow."""
    return value if value == 1.0 else round(value, 4)


def score(fit: Fit, weights: Weights = BALANCED) -> tuple[float, dict[str, float]]:
    """Return the total and each score, rounded as people read it."""
    parts: dict[str, float] = {}
    # Grouped by what the scores depend on. Not ``sum``: since Python 3.12 it adds floats up in another way than ``+``.
    sums = [0.0] * _GROUPS
    for (name, of, group), weight in zip(_ALL, weights, strict=True):
        part = of(fit)
        if part != 1.0:  # most are, and rounding is slow
            part = round(part, 4)
        parts[name] = part
        sums[group] += weight * part
    kind, capacity, cost, cluster, placement, devices, queue = sums
    return round((kind + capacity + cost) + cluster + (placement + devices + queue), 4), parts


def fixed_score(fit: Fit, weights: Weights) -> float:
    """Return the weighted sum of the scores that depend on the cluster alone: neither on its free capacity nor on the queue."""
    total = 0.0
    for place, of in _FIXED:
        if weights[place]:
            total += weights[place] * _rounded(of(fit))
    return total


def counts_queue(weights: Weights) -> bool:
    """Return whether any score with a weight depends on the queue."""
    return _counts(weights, _QUEUE)


def counts_devices(weights: Weights) -> bool:
    """Return whether any score with a weight depends on how common devices are."""
    return _counts(weights, _DEVICES)


def varies_by_run(weights: Weights) -> bool:
    """Return whether any score with a weight may be lower for a run once an equivalent one has started on the cluster."""
    return _counts(weights, _QUEUE) or _counts(weights, _PLACED)


def varies(
    weights: Weights, *, with_data: bool, with_preferences: bool, with_trouble: bool, with_predecessors: bool
) -> bool:
    """Return whether ``fixed_score`` may differ between clusters for a job with these properties, or while any cluster has trouble."""
    return (
        _counts(weights, _VARYING[Applies.ALWAYS])
        or (with_data and _counts(weights, _VARYING[Applies.WITH_DATA]))
        or (with_preferences and _counts(weights, _VARYING[Applies.WITH_PREFERENCES]))
        or (with_trouble and _counts(weights, _VARYING[Applies.WITH_TROUBLE]))
        or (with_predecessors and _counts(weights, _VARYING[Applies.WITH_PREDECESSORS]))
    )


def is_quick(weights: Weights, *, prefers_level: bool) -> bool:
    """Return whether the total of a cluster is known without a fit, and does not depend on the queue."""
    return not (varies_by_run(weights) or (prefers_level and _counts(weights, _LEVEL)))


def _counts(weights: Weights, places: tuple[int, ...]) -> bool:
    for place in places:  # noqa: SIM110 - a generator would take several times as long here
        if weights[place]:
            return True
    return False


def headroom(needs: Resources, least: Resources, weights: Weights = BALANCED) -> float:
    """Return the largest increase of the total of any cluster by these needs, compared with no needs; rounding included.

    ``least``: the least amount of each resource that any cluster has. No needs cost nothing, so the cost can only lower the total.
    """
    more = 0.0
    for place, gain in _GAINS:
        if weights[place]:
            more += weights[place] * ((1.0 if gain is None else gain(needs, least)) + 0.0002)
    return more + 0.0002


Total = Callable[[ClusterKind, Usage, Resources, float, float | None, float | None], float]
"""The total of a cluster by its kind, its usage, the needs, their cost, the weighted sum of the scores that depend on the cluster
alone, and how common the devices are that the gang takes there; None for each of the last two if it is the best possible.
"""


@lru_cache(maxsize=256)
def scorer(weights: Weights) -> Total:
    """Return a function that gives the total of ``score`` with less work, where ``is_quick`` is true."""

    def terms(group: DependsOn) -> tuple[tuple[float, Callable[..., float]], ...]:
        """Return the scores with a weight, and their weights."""
        counted = zip(SCORES.values(), weights, strict=True)
        return tuple((weight, one.of) for one, weight in counted if weight and one.depends_on is group)

    def added(group: DependsOn, *given: object) -> float:
        """Return the weighted sum of the scores of a group; of the best possible ones where the value is not given."""
        total = 0.0
        for weight, of in terms(group):
            total += weight * (_rounded(of(*given)) if given else 1.0)
        return total

    kinds = {kind: added(DependsOn.KIND, kind) for kind in ClusterKind}
    by_capacity, by_cost, by_devices = terms(DependsOn.CAPACITY), terms(DependsOn.COST), terms(DependsOn.DEVICES)
    free_of_cost, best, placed = added(DependsOn.COST), added(DependsOn.CLUSTER), added(DependsOn.PLACEMENT)
    rest = placed + added(DependsOn.DEVICES)

    def total(
        kind: ClusterKind, usage: Usage, needs: Resources, cost: float, fixed: float | None, common: float | None
    ) -> float:
        used = 0.0
        for weight, of in by_capacity:
            used += weight * round(of(usage, needs), 4)
        price = free_of_cost
        if cost:
            price = 0.0
            for weight, of in by_cost:
                price += weight * round(of(cost), 4)
        late = rest
        if common is not None:
            devices = 0.0
            for weight, of in by_devices:
                devices += weight * round(of(common), 4)
            late = placed + devices
        return round(kinds[kind] + used + price + (best if fixed is None else fixed) + late, 4)

    return total


def deciding(best: Mapping[str, float], second: Mapping[str, float], weights: Weights) -> Score:
    """Return the score by which the best option is ahead of the second most."""
    found, most = _NAMED[0][1], -inf
    for (name, one), weight in zip(_NAMED, weights, strict=True):
        gain = weight * (best[name] - second[name])
        if gain > most:
            found, most = one, gain
    return found


def shown(options: Sequence[tuple[Mapping[str, float], Weights]]) -> list[str]:
    """Return the scores that a decision shows: those that count and are not the best possible on all; some always."""
    return [
        name
        for place, (name, one) in enumerate(SCORES.items())
        if one.is_always_shown or any(parts[name] < 1.0 and weights[place] for parts, weights in options)
    ]
