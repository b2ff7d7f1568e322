"""Starts and evictions in the form of a plan, with their explanations. They count nothing."""

from collections.abc import Collection, Sequence
from heapq import nsmallest

from trainmaster.protocol.reasons import Check, Verdict
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.burst import BurstStart
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import MOST_LACKING, MOST_LISTED
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan
from trainmaster_dispatcher.scheduling.selection.cluster_index import Option
from trainmaster_dispatcher.scheduling.selection.scores import deciding, shown
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Start, TableLine
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


def evictions_of(state: SchedulerState, job: WaitingJob, queue: Queue, preemption: PreemptionPlan) -> list[Eviction]:
    """Return the evictions of a preemption, each with its explanation."""
    ended = {victim.run.job_id for victim in preemption.victims if victim.keeps is None}
    out = []
    for victim in preemption.victims:
        run = victim.run
        if victim.keeps is None:
            if victim.moves_to is not None:
                why = explain.moved(state, job, state.clusters[victim.moves_to].name)
            else:
                why = explain.evicted(state, run, job, queue, by_class=victim.by_class)
            out.append(Eviction(run.job_id, run.attempt, preemption.cluster_id, why))
        elif run.job_id not in ended:
            why = explain.gives_back(state, run, victim.keeps, job)
            out.append(Eviction(run.job_id, run.attempt, preemption.cluster_id, why, victim.keeps))
    return out


def start_after_eviction(
    state: SchedulerState, job: WaitingJob, queue: Queue, preemption: PreemptionPlan, predicted_seconds: float | None
) -> Start:
    """Return the start of a job for which runs end."""
    cluster = state.clusters[preemption.cluster_id]
    evicts = tuple(evictions_of(state, job, queue, preemption))
    moved = sum(victim.moves_to is not None for victim in preemption.victims)
    does = explain.are_moved(moved) if moved else explain.give_way(evicts)
    why = f"{cluster.name}, where {does} for it"
    ended = next((one for one in evicts if one.sizes is None), None)
    if ended is not None:
        why += f": {ended.why}"
    return Start(
        job,
        cluster.id,
        preemption.size.members,
        preemption.fitted.placement,
        why,
        (),
        preemption.product,
        evicts,
        predicted_seconds=predicted_seconds,
        members_per_unit=state.shapes[job.shape_id].members_per_unit,
    )


def start_of(
    job: WaitingJob,
    shape: Shape,
    best: Option,
    top: list[Option],
    verdicts: Collection[Verdict],
    predicted_seconds: float | None,
) -> Start:
    """Return the start of a job on the best option; ``top``: the best options, the best one first."""
    table = _table(top[:MOST_LISTED])
    why = _why(best, top, verdicts)
    return Start(
        job,
        best.cluster.id,
        best.size.members,
        best.fitted.placement,
        why,
        table,
        best.product,
        awaits=best.timeout,
        pools=best.pools,
        predicted_seconds=predicted_seconds,
        members_per_unit=shape.members_per_unit,
    )


def start_by_policy(job: WaitingJob, shape: Shape, burst: BurstStart, now: float) -> Start:
    """Return the start of a job that goes to a public cluster by a policy."""
    option, granted = burst.option, burst.granted
    table = _table([option, *burst.others][:MOST_LISTED])
    waited = explain.span(max(0.0, now - job.waits_since))
    rate, most = explain.money(granted.bounds.rate), explain.span(granted.bounds.limit)
    growth = f", {explain.grows(option.pools, option.wait)}," if option.pools else ","
    why = f"{option.cluster.name} by policy {granted.policy}{growth} after it had waited {waited}"
    why += f"; {rate} an hour, for at most {most}"
    return Start(
        job,
        option.cluster.id,
        option.size.members,
        option.fitted.placement,
        why,
        table,
        option.product,
        awaits=option.timeout,
        pools=option.pools,
        granted=granted,
        members_per_unit=shape.members_per_unit,
    )


def _table(options: Sequence[Option]) -> tuple[TableLine, ...]:
    """Return the table that is stored with a decision, one row for each option: scores that count and are not perfect on all."""
    names = shown([(option.parts, option.weights) for option in options])
    return tuple(
        {
            "cluster": option.cluster.name,
            "score": option.total,
            **{name: option.parts[name] for name in names},
            **({} if option.cluster.tariff.is_free and not option.cost else {"cost": round(option.cost, 4)}),
        }
        for option in options
    )


def _why(best: Option, top: list[Option], verdicts: Collection[Verdict]) -> str:
    if best.pools:
        return f"{best.cluster.name}, {explain.grows(best.pools, best.wait)}"
    second = next((option for option in top if option.cluster is not best.cluster), None)
    if second is None:
        full = [verdict for verdict in verdicts if verdict.check is Check.NO_ROOM]
        others = "".join(
            f"; {one.cluster}: {one.sentence}"
            for one in nsmallest(MOST_LACKING, full, key=lambda verdict: verdict.cluster)
        )
        return f"{best.cluster.name} is the only cluster where it fits now{others}"
    if best.total == second.total:
        return f"{best.cluster.name} before {second.cluster.name}: both are as good, and their names decide"
    decides = deciding(best.parts, second.parts, best.weights)
    return f"{best.cluster.name} before {second.cluster.name}: {decides.words(best.scored, second.scored)}"
