"""The outcome for a job that does not exist yet (a dry run): an answer over a fork of the engine, which is not changed.

A cycle decides on a fork in which few jobs wait: the trial job and those that it could not overtake, which are jobs with a
reservation and the first one of a queue that keeps its order. All others were considered in the cycle before and did not
start, or have come since.
"""

from dataclasses import replace
from itertools import count
from math import ceil, inf

from trainmaster.protocol.queue_position import Place, Trial
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import Order
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.cycle.feasibility import impossible, possible_cluster, widest_access
from trainmaster_dispatcher.scheduling.queries.queue_position import (
    NO_REASONS,
    Reasons,
    head_of_job,
    moment,
    position_of,
)
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster, start_forecast
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, Option, SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, Queue
from trainmaster_dispatcher.scheduling.state.flavors import charge_anywhere
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

TRIAL_JOB = (1 << 45) - 1
"""The id of the trial job: the largest possible id, so the job sorts behind all jobs of the same age; the store never
reaches it."""
_TRIAL_SHAPES = count(1 << 62)
"""Ids of trial shapes: above those of the store and never reused, as caches look shapes up by id."""


def try_out(
    engine: Engine,
    quotas: QuotaTree,
    job: WaitingJob,
    shape: Shape,
    now: float,
    reasons: Reasons = NO_REASONS,
    forecaster: WaitForecaster | None = None,
) -> Trial | None:
    """Return the outcome for this job; its own id and that of its shape are ignored. The engine is not changed.

    ``reasons``: of classes of waiting jobs. None if its queue or its class is unknown to the state.
    """
    state = engine.state
    queue = state.queues.get(job.queue_id)
    if queue is None or job.class_id not in state.classes:
        return None
    trial = replace(job, id=TRIAL_JOB, shape_id=next(_TRIAL_SHAPES))
    shapes = {trial.shape_id: shape}
    knowing = state.knowing(shapes)
    place = position_of(knowing, quotas, trial, now, reasons)
    fork = engine.fork(waiting=[*_not_overtaken(engine, queue, now, reasons), trial], shapes=shapes)
    known = next((shape_id for shape_id, other in state.shapes.items() if other == shape), None)
    if known is not None:
        knowing.run_times = fork.state.run_times = state.run_times.with_alias(trial.shape_id, known, trial.user)
    fork.begin(now)
    index, access = fork.index, widest_access(state, queue)
    scheduling_key = SchedulingKey(trial.shape_id, 1, access, ())
    cannot = _cannot_run(quotas, index, queue, trial.shape_id)
    fitting = [one for one in index.clusters if impossible(index, access, trial.shape_id, one) is None]
    fitting_now = [cluster for cluster in fitting if _fits_now(index, scheduling_key, cluster)]
    plan = decide(fork, now)
    found = _trial_of(fork.state, plan, trial, place, cannot)
    if forecaster is not None and found.reason is not None and found.expected_start is None:
        forecast = start_forecast(forecaster, knowing, trial, now, found.reason)
        found = found.model_copy(update={"place": place.model_copy(update={"forecast": forecast})})
    return found.model_copy(
        update={
            "fits_empty": tuple(cluster.name for cluster in fitting),
            "fits_now": tuple(cluster.name for cluster in fitting_now),
        }
    )


def _cannot_run(quotas: QuotaTree, index: ClusterIndex, queue: Queue, shape_id: int) -> Reason | None:
    """Return why the job can never run as specified; None if it can."""
    least = index.sizes_of(shape_id)[-1]
    obstacle = quotas.never(queue.id, charge_anywhere(least.needs))
    if obstacle is not None:
        return explain.over_quota(obstacle, for_ever=True)
    possible = possible_cluster(index, queue, shape_id)
    return possible if isinstance(possible, Reason) else None


def _fits_now(index: ClusterIndex, scheduling_key: SchedulingKey, cluster: Cluster) -> bool:
    """Return whether the gang fits on a cluster besides what runs there; quota and reservations are ignored."""
    if index.passing(scheduling_key, cluster) is not None:
        return False
    return isinstance(
        index.option(scheduling_key.shape_id, index.sizes_of(scheduling_key.shape_id), cluster, None), Option
    )


def _not_overtaken(engine: Engine, queue: Queue, now: float, reasons: Reasons) -> list[WaitingJob]:
    """Return the waiting jobs that a job of this queue cannot overtake. Those that can never run are passed in every queue."""
    state = engine.state
    job_ids = engine.carried.reservations.keys() & state.jobs.keys()
    if queue.order is Order.STRICT:
        classes = state.waiting.get(queue.id, {})
        firsts = [
            keys[0].job_id
            for key, keys in classes.items()
            if key.class_id in state.classes and not (key in reasons and reasons[key].has_no_turn)
        ]
        job_ids |= {min(firsts, key=lambda job_id: head_of_job(state, state.jobs[job_id], now))} if firsts else set()
    return [state.jobs[job_id] for job_id in job_ids]


def _trial_of(state: SchedulerState, plan: Plan, trial: WaitingJob, place: Place, cannot: Reason | None) -> Trial:
    """Return what a plan says about the trial job."""
    if cannot is not None:
        return Trial(could_run=False, starts_now=False, why=cannot.sentence, place=place, reason=cannot)
    start = next((start for start in plan.starts if start.job.id == TRIAL_JOB), None)
    if start is not None:
        cluster, many = state.clusters[start.cluster_id].name, len(start.evicts)
        # The sentence of such a start names the job, which has no name yet.
        ended = f"{cluster}, where {'one run ends' if many == 1 else f'{many} runs end'} for it"
        return Trial(
            could_run=True,
            starts_now=True,
            why=ended if many else start.why,
            cluster=cluster,
            runs_ended=many,
            place=place,
        )
    reason = plan.reasons[state.class_of(TRIAL_JOB)]
    reason = reason.model_copy(update={"details": {}})  # the details name the job, too
    kept = plan.reservations.get(TRIAL_JOB)
    has_time = kept is not None and kept.at < inf
    return Trial(
        could_run=True,
        starts_now=False,
        why=reason.sentence,
        cluster=state.clusters[kept.cluster_id].name if kept is not None and has_time else None,
        expected_start=moment(ceil(kept.at)) if kept is not None and has_time else None,
        assuming=explain.assumption(kept) if kept is not None and has_time else None,
        place=place,
        reason=reason,
    )
