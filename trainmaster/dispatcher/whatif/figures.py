"""What a simulation comes to: waits, slowdowns, use and cost of clusters, fairness between queues."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from trainmaster.dispatcher.domain.usage import total_cost
from trainmaster.dispatcher.whatif.engine import Outcome, Record
from trainmaster.protocol.admission import pod_requests
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.states import JobState

SLOWDOWN_BOUND = 10.0
"""Seconds: jobs shorter than this count as this long, so that a tiny one's wait does not count for everything.

D. Feitelson, L. Rudolph, "Metrics and Benchmarking for Parallel Job Scheduling", JSSPP 1998.
"""


@dataclass(frozen=True, slots=True)
class Waits:
    """Of some jobs, in seconds; of those that started."""

    jobs: int
    started: int
    mean: float
    p50: float
    p95: float
    most: float
    slowdown: float
    """Mean bounded slowdown."""


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """``used``: by resource, the part of what there was from the first submission until everything had ended."""

    name: str
    kind: str
    runs: int
    jobs: int
    used: Mapping[str, float]
    cost: float


@dataclass(frozen=True, slots=True)
class Figures:
    """``ends``: how many jobs ended in which state, and how many never did. Money in the installation's currency."""

    jobs: int
    ends: Mapping[str, int]
    seconds: float
    """From the first submission until everything had ended."""
    waits: Waits
    by_queue: Mapping[str, Waits]
    by_class: Mapping[str, Waits]
    clusters: Sequence[ClusterUse]
    cost: float
    preemptions: int
    bursts: Mapping[str, int]
    """By burst policy: runs that it sent to public clusters."""
    fairness: float
    """Jain's index of the queues' mean bounded slowdowns: 1 if all queues are slowed down alike, 1/n if one bears it all."""


def figures_of(outcome: Outcome) -> Figures:
    records = outcome.records
    by_queue: dict[str, list[Record]] = defaultdict(list)
    by_class: dict[str, list[Record]] = defaultdict(list)
    ends: dict[str, int] = defaultdict(int)
    for record in records:
        by_queue[record.job.spec.queue].append(record)
        by_class[record.job.spec.priority_class or "default"].append(record)
        ends[record.machine.state.value if record.machine.state.is_terminal else _why_not(record)] += 1
    queues = {name: waits_of(found) for name, found in sorted(by_queue.items())}
    clusters = _clusters(outcome)
    return Figures(
        jobs=len(records),
        ends=dict(sorted(ends.items())),
        seconds=outcome.finished_at,
        waits=waits_of(records),
        by_queue=queues,
        by_class={name: waits_of(found) for name, found in sorted(by_class.items())},
        clusters=clusters,
        cost=round(sum(cluster.cost for cluster in clusters), 9),
        preemptions=outcome.preemptions,
        bursts=dict(outcome.bursts),
        fairness=jain([one.slowdown for one in queues.values() if one.started]),
    )


def _why_not(record: Record) -> str:
    return "held" if record.machine.state is JobState.HELD else "waiting"


def waits_of(records: Iterable[Record]) -> Waits:
    found = list(records)
    started = [(record.wait, record.job.run) for record in found if record.first_start < inf]
    if not started:
        return Waits(len(found), 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return replace(summary_of(started), jobs=len(found))


def summary_of(found: Sequence[tuple[float, float]]) -> Waits:
    """Of jobs of which the wait and the run time are known, in seconds."""
    waits = sorted(wait for wait, _ in found)
    slowdowns = [max(1.0, (wait + run) / max(run, SLOWDOWN_BOUND)) for wait, run in found]
    return Waits(
        jobs=len(waits),
        started=len(waits),
        mean=round(sum(waits) / len(waits), 3),
        p50=round(quantile(waits, 0.5), 3),
        p95=round(quantile(waits, 0.95), 3),
        most=round(waits[-1], 3),
        slowdown=round(sum(slowdowns) / len(slowdowns), 4),
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which so large a part of the values lies, between two of them by their distance."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def jain(values: Sequence[float]) -> float:
    """R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984. Without any value 1."""
    total, squares = sum(values), sum(value * value for value in values)
    return 1.0 if not squares else round(total * total / (len(values) * squares), 4)


def _clusters(outcome: Outcome) -> list[ClusterUse]:
    held: dict[str, dict[str, float]] = {name: defaultdict(float) for name in outcome.capacity}
    costs: dict[str, int] = dict.fromkeys(outcome.capacity, 0)
    runs: dict[str, int] = dict.fromkeys(outcome.capacity, 0)
    jobs: dict[str, set[int]] = {name: set() for name in outcome.capacity}
    for record in outcome.records:
        needs = {
            role.name: role.template.amounts if role.template is not None else pod_requests(role.pod_template or {})
            for role in record.job.spec.roles
        }
        for stay in record.stays:
            runs[stay.cluster] += 1
            jobs[stay.cluster].add(stay.number)
            amounts = stay.amounts(needs, outcome.products[stay.cluster])
            seconds = stay.ended_at - stay.placed_at
            for place, amount in amounts.items():
                held[stay.cluster][place.resource] += amount * seconds
            tariff = outcome.tariffs[stay.cluster]
            if not tariff.is_free:
                costs[stay.cluster] += total_cost(stay.used(amounts, tariff))
    whole = outcome.finished_at
    return [
        ClusterUse(
            name=name,
            kind=outcome.kinds[name],
            runs=runs[name],
            jobs=len(jobs[name]),
            used={
                resource: round(held[name].get(resource, 0.0) / (amount * whole), 4)
                for resource, amount in sorted(capacity.items())
                if amount and whole
            },
            cost=costs[name] / NANOS,
        )
        for name, capacity in outcome.capacity.items()
    ]


def to_data(figures: Figures) -> dict[str, Any]:
    """As JSON, with camelCase names."""
    return {
        "jobs": figures.jobs,
        "ends": dict(figures.ends),
        "seconds": round(figures.seconds, 3),
        "waits": waits_to_data(figures.waits),
        "byQueue": {name: waits_to_data(one) for name, one in figures.by_queue.items()},
        "byClass": {name: waits_to_data(one) for name, one in figures.by_class.items()},
        "clusters": [
            {
                "name": one.name,
                "kind": one.kind,
                "runs": one.runs,
                "jobs": one.jobs,
                "used": dict(one.used),
                "cost": round(one.cost, 9),
            }
            for one in figures.clusters
        ],
        "cost": figures.cost,
        "preemptions": figures.preemptions,
        "bursts": dict(figures.bursts),
        "fairness": figures.fairness,
    }


def from_data(data: Mapping[str, Any]) -> Figures:
    """What ``to_data`` was given. Raises KeyError for what is no such data."""
    return Figures(
        jobs=data["jobs"],
        ends=data["ends"],
        seconds=data["seconds"],
        waits=waits_from(data["waits"]),
        by_queue={name: waits_from(one) for name, one in data["byQueue"].items()},
        by_class={name: waits_from(one) for name, one in data["byClass"].items()},
        clusters=[ClusterUse(**one) for one in data["clusters"]],
        cost=data["cost"],
        preemptions=data["preemptions"],
        bursts=data["bursts"],
        fairness=data["fairness"],
    )


def waits_from(data: Mapping[str, Any]) -> Waits:
    """What ``waits_to_data`` was given."""
    return Waits(
        jobs=data["jobs"],
        started=data["started"],
        mean=data["meanSeconds"],
        p50=data["p50Seconds"],
        p95=data["p95Seconds"],
        most=data["mostSeconds"],
        slowdown=data["boundedSlowdown"],
    )


def waits_to_data(waits: Waits) -> dict[str, float]:
    """As JSON, with camelCase names."""
    return {
        "jobs": waits.jobs,
        "started": waits.started,
        "meanSeconds": waits.mean,
        "p50Seconds": waits.p50,
        "p95Seconds": waits.p95,
        "mostSeconds": waits.most,
        "boundedSlowdown": waits.slowdown,
    }
