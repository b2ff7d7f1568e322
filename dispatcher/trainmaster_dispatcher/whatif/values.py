"""The figures that a simulation comes to, and how they travel as JSON. Knows nothing of how they are found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
