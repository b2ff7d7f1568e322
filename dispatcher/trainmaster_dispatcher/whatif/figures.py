"""The figures of a simulation: waits, slowdowns, use and cost of clusters, fairness between queues."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from trainmaster.protocol.device_parts import WHOLE, device_of, is_part
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.usage import total_cost
from trainmaster_dispatcher.domain.wait_forecasts import calibration_of
from trainmaster_dispatcher.whatif.engine import StudiedJob, StudyOutcome
from trainmaster_dispatcher.whatif.stays import Stay
from trainmaster_dispatcher.whatif.values import ClusterUse, Figures, QueueOutcome, Waits

SLOWDOWN_BOUND = 10.0
"""Seconds: shorter jobs count as this long, so that the wait of a tiny job does not dominate. D. Feitelson, L. Rudolph,
"Metrics and Benchmarking for Parallel Job Scheduling", JSSPP 1998."""


def figures_of(outcome: StudyOutcome) -> Figures:
    records = outcome.records
    by_queue: dict[str, list[StudiedJob]] = defaultdict(list)
    by_class: dict[str, list[StudiedJob]] = defaultdict(list)
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
        forecasts={path: calibration_of(outcomes) for path, outcomes in sorted(outcome.forecasts.items())},
        queues=_queues(outcome, by_queue),
    )


def _queues(outcome: StudyOutcome, by_queue: Mapping[str, Sequence[StudiedJob]]) -> dict[str, QueueOutcome]:
    there: dict[str, float] = defaultdict(float)
    for capacity in outcome.capacity.values():
        for resource, offered in capacity.items():
            there[resource] += offered * outcome.finished_at
    found = {}
    for path, records in sorted(by_queue.items()):
        held: dict[str, float] = defaultdict(float)
        for record in records:
            for stay, amounts in _held(outcome, record):
                for resource, amount in amounts.items():
                    held[resource] += amount * (stay.ended_at - stay.placed_at)
        started = sum(record.first_start < inf for record in records)
        found[path] = QueueOutcome(
            started=started,
            unplaced=len(records) - started,
            preempted=sum(record.preemptions for record in records),
            share=round(max((held[name] / most for name, most in there.items() if most), default=0.0), 6),
        )
    return found


def _held(outcome: StudyOutcome, record: StudiedJob) -> Iterator[tuple[Stay, dict[str, float]]]:
    """Yield the runs of a job that had nodes, each with the amounts by resource that it held."""
    needs = {role.name: role.unit_amounts for role in record.job.spec.roles}
    for stay in record.stays:
        amounts: dict[str, float] = defaultdict(float)
        for place, amount in stay.amounts(needs, outcome.products[stay.cluster]).items():
            amounts[device_of(place.resource)] += amount / WHOLE if is_part(place.resource) else amount
        yield stay, amounts


def _why_not(record: StudiedJob) -> str:
    return "held" if record.machine.state is JobState.HELD else "waiting"


def waits_of(records: Iterable[StudiedJob]) -> Waits:
    found = list(records)
    started = [(record.wait, record.job.run) for record in found if record.first_start < inf]
    if not started:
        return Waits(len(found), 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return replace(summary_of(started), jobs=len(found))


def summary_of(found: Sequence[tuple[float, float]]) -> Waits:
    """Return the waits of jobs; ``found``: their wait and run time, in seconds."""
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
    """Return the value below which this part of the values lies, linearly interpolated."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984); 1 without any value."""
    total, squares = sum(values), sum(value * value for value in values)
    return 1.0 if not squares else round(total * total / (len(values) * squares), 4)


def _clusters(outcome: StudyOutcome) -> list[ClusterUse]:
    held: dict[str, dict[str, float]] = {name: defaultdict(float) for name in outcome.capacity}
    costs: dict[str, int] = dict.fromkeys(outcome.capacity, 0)
    runs: dict[str, int] = dict.fromkeys(outcome.capacity, 0)
    jobs: dict[str, set[int]] = {name: set() for name in outcome.capacity}
    for record in outcome.records:
        needs = {role.name: role.unit_amounts for role in record.job.spec.roles}
        for stay in record.stays:
            runs[stay.cluster] += 1
            jobs[stay.cluster].add(stay.number)
            amounts = stay.amounts(needs, outcome.products[stay.cluster])
            seconds = stay.ended_at - stay.placed_at
            for place, amount in amounts.items():
                part = amount / WHOLE if is_part(place.resource) else amount
                held[stay.cluster][device_of(place.resource)] += part * seconds
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
