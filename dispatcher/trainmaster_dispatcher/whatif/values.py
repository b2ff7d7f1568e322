"""The figures of a simulation as values and as JSON. It does not know how they are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmaster_dispatcher.domain.wait_forecasts import Calibration


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of those jobs that started, in seconds."""

    jobs: int
    started: int
    mean: float
    p50: float
    p95: float
    most: float
    slowdown: float
    """The mean bounded slowdown."""


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """The outcome of a queue. ``share``: the largest part of any resource of all clusters that its runs held, until all had ended."""

    started: int
    unplaced: int
    """Jobs that never started."""
    preempted: int
    """Orders to its runs to end for others."""
    share: float


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """``used``: by resource, the used part of the capacity from the first submission until everything had ended."""

    name: str
    kind: str
    runs: int
    jobs: int
    used: Mapping[str, float]
    cost: float


@dataclass(frozen=True, slots=True)
class Figures:
    """``ends``: the number of jobs that ended in each state, and that never did. Money in the installation's currency."""

    jobs: int
    ends: Mapping[str, int]
    seconds: float
    """The seconds from the first submission until everything had ended."""
    waits: Waits
    by_queue: Mapping[str, Waits]
    by_class: Mapping[str, Waits]
    clusters: Sequence[ClusterUse]
    cost: float
    preemptions: int
    bursts: Mapping[str, int]
    """By burst policy: the number of runs sent to public clusters."""
    fairness: float
    """Jain's index of the queues' mean bounded slowdowns: 1 if all queues are slowed down equally, 1/n if one has all
    of the slowdown."""
    forecasts: Mapping[str, Calibration]
    """By queue: how far the forecasts of waits held."""
    queues: Mapping[str, QueueOutcome] = field(default_factory=dict)
    """By queue, of the jobs in the queue itself."""

    @property
    def all_forecasts(self) -> Calibration:
        """The calibration of all queues together."""
        found = self.forecasts.values()
        return Calibration(
            sum(one.jobs for one in found),
            sum(one.within_half for one in found),
            sum(one.within_most for one in found),
        )


def forecast_rows(figures: Figures) -> list[list[str]]:
    """Return how far forecasts held, of all queues and of each: name, number of jobs, and the parts that started by the times told."""
    groups = [("all", figures.all_forecasts)]
    groups += [(path, one) for path, one in figures.forecasts.items() if len(figures.by_queue) > 1]
    return [
        [name, f"{one.jobs:,}", f"{one.within_half / one.jobs:.0%}", f"{one.within_most / one.jobs:.0%}"]
        for name, one in groups
        if one.jobs
    ]


def to_data(figures: Figures) -> dict[str, Any]:
    """Return the figures as JSON data with camelCase names."""
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
        "forecasts": {
            path: {"jobs": one.jobs, "withinHalf": one.within_half, "withinMost": one.within_most}
            for path, one in figures.forecasts.items()
        },
        "queues": {path: asdict(one) for path, one in figures.queues.items()},
    }


def from_data(data: Mapping[str, Any]) -> Figures:
    """Return the figures from the data of ``to_data``. Raises KeyError for other data."""
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
        forecasts={
            path: Calibration(one["jobs"], one["withinHalf"], one["withinMost"])
            for path, one in data.get("forecasts", {}).items()  # results of releases before had none
        },
        queues={path: QueueOutcome(**one) for path, one in data.get("queues", {}).items()},  # as above
    )


def waits_from(data: Mapping[str, Any]) -> Waits:
    """Return the waits from the data of ``waits_to_data``."""
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
    """Return the waits as JSON data with camelCase names."""
    return {
        "jobs": waits.jobs,
        "started": waits.started,
        "meanSeconds": waits.mean,
        "p50Seconds": waits.p50,
        "p95Seconds": waits.p95,
        "mostSeconds": waits.most,
        "boundedSlowdown": waits.slowdown,
    }
