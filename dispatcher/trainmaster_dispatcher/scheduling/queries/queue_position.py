"""A waiting job's place and what makes it, and what would become of a job that is not there yet: answers over a state.

A place is counted by bisection in the sorted keys of each class, so that a million jobs in a queue cost as little as a thousand.
For a trial, a cycle decides on a fork of the engine in which few jobs wait: the job on trial and those that it could not pass by,
which are jobs that clusters are kept for and the first one of a queue that keeps its order. All others were looked at in the cycle
before and left waiting, or have come since.
"""

from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from math import ceil, inf

from sortedcontainers import SortedList

from trainmaster.protocol.queue_position import Factors, Place, QueueTurn, QueueUsage, Trial, Usages
from trainmaster.protocol.reasons import Check, Reason, Tier, Verdict
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.quotas.fair_share import Head, head_of
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, Option, SchedulingKey
from trainmaster_dispatcher.scheduling.state.flavors import plain
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import (
    PRIORITY_SECONDS,
    ClassKey,
    Cluster,
    Queue,
    SchedulerState,
    WaitingJob,
)

TRIAL_JOB = (1 << 45) - 1
"""The key of a job on trial: the last that an id can be made of, and so behind all of its age; the store never gets there."""
_TRIAL_SHAPES = count(1 << 62)
"""Keys of shapes on trial: above those of the store, and never the same twice, as caches know shapes by their keys."""


def quotas_of(engine: Engine, now: float) -> QuotaTree:
    """Return what queues use now, for the questions of a moment: it costs more than all else of a place."""
    fork = engine.fork()
    fork.begin(now)
    return fork.quotas(now)


def place_of(state: SchedulerState, quotas: QuotaTree, job_id: int, now: float) -> Place | None:
    """The place of a waiting job. ``now`` is in seconds since the epoch, as all times of the state.

    None if the job does not wait, or if its queue or its class is not known.
    """
    job = state.jobs.get(job_id)
    if job is None or job.queue_id not in state.queues or job.class_id not in state.classes:
        return None
    return _place(state, quotas, job, now)


def _place(state: SchedulerState, quotas: QuotaTree, job: WaitingJob, now: float) -> Place:
    """The place of a job, whether it waits already or not."""
    own = _head(state, job, now)
    classes = state.waiting.get(job.queue_id, {})
    ahead = sum(_before(state, key, keys, own, now) for key, keys in classes.items())
    return Place(
        queue=state.queues[job.queue_id].path,
        position=ahead + 1,
        jobs_ahead=ahead,
        jobs_in_queue=sum(len(keys) for keys in classes.values()) + (job.id not in state.jobs),
        factors=_factors(state, quotas, job, own),
    )


def usage_of(state: SchedulerState, quotas: QuotaTree) -> Usages:
    """What each queue and all below it use now, by path."""
    found = []
    for queue in sorted(state.queues.values(), key=lambda one: one.path):
        account = quotas.account(queue.id)
        beyond, whole = quotas.share(queue)
        used = {str(line): line.format(amount) for line, amount in sorted(account.used.items()) if amount}
        found.append(
            QueueUsage(
                queue=queue.path,
                running=account.running,
                used=used,
                share=round(whole, 6),
                share_beyond_guarantee=round(beyond, 6),
                past_share=round(quotas.past.get(queue.id, 0.0), 6),
            )
        )
    return Usages(queues=tuple(found))


def _head(state: SchedulerState, job: WaitingJob, now: float) -> Head:
    return head_of(state.classes[job.class_id], job.key, now)


def _before(state: SchedulerState, key: ClassKey, keys: SortedList, own: Head, now: float) -> int:
    """How many jobs of a class go before this place. Keys in their order have places in theirs, for the old become urgent first."""
    priority_class = state.classes.get(key.class_id)
    if priority_class is None:
        return 0
    return bisect_left(keys, own, key=lambda other: head_of(priority_class, other, now))


def _factors(state: SchedulerState, quotas: QuotaTree, job: WaitingJob, own: Head) -> Factors:
    priority_class = state.classes[job.class_id]
    longest = priority_class.longest_wait
    return Factors(
        urgent=own.is_urgent,
        urgent_at=None if longest is None else _moment(job.key.at + longest),
        priority_class=priority_class.name,
        class_value=priority_class.value,
        submitted_at=_moment(job.submitted_at),
        priority=job.priority,
        seconds_earlier=PRIORITY_SECONDS * job.priority,
        queues=_turns(state, quotas, job.queue_id),
    )


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _turns(state: SchedulerState, quotas: QuotaTree, queue_id: int) -> tuple[QueueTurn, ...]:
    """The turns of a queue and of those above it, from the root on."""
    way = state.ancestry(queue_id)
    siblings: dict[int | None, set[int]] = {queue.parent_id: {queue.id} for queue in way}
    for waiting in state.waiting:
        for queue in state.ancestry(waiting):
            if queue.parent_id in siblings:
                siblings[queue.parent_id].add(queue.id)
    return tuple(_turn(state, quotas, queue, siblings[queue.parent_id]) for queue in reversed(way))


def _turn(state: SchedulerState, quotas: QuotaTree, queue: Queue, siblings: set[int]) -> QueueTurn:
    own = (*quotas.standing(queue), queue.id)
    beyond, whole = quotas.share(queue)
    return QueueTurn(
        queue=queue.path,
        weight=queue.weight,
        share_beyond_guarantee=beyond,
        share=whole,
        past_share=quotas.past.get(queue.id, 0.0),
        rank=1 + sum((*quotas.standing(state.queues[other]), other) < own for other in siblings),
        siblings=len(siblings),
    )


def try_out(engine: Engine, quotas: QuotaTree, job: WaitingJob, shape: Shape, now: float) -> Trial | None:
    """Return what would become of this job; its own key and that of its shape do not count. The engine is left as it is.

    None if its queue or its class is not known to the state.
    """
    state = engine.state
    queue = state.queues.get(job.queue_id)
    if queue is None or job.class_id not in state.classes:
        return None
    trial = replace(job, id=TRIAL_JOB, shape_id=next(_TRIAL_SHAPES))
    place = _place(state, quotas, trial, now)
    fork = engine.fork(waiting=[*_not_passed_by(engine, queue, now), trial], shapes={trial.shape_id: shape})
    fork.begin(now)
    index = fork.index
    access = state.access_of(queue)
    if state.policies_of(queue.id):
        access = access._replace(kinds=access.kinds | {ClusterKind.PUBLIC})
    scheduling_key = SchedulingKey(trial.shape_id, 1, access, (), 0.0)
    ruled_out = {
        cluster.id: index.not_allowed(scheduling_key, cluster) or index.never(trial.shape_id, cluster)
        for cluster in index.clusters
    }
    # Those whose pools could bring nodes for it are among the others.
    ruled_out = {key: None if one is None or one.check is Check.NO_ROOM else one for key, one in ruled_out.items()}
    cannot = _cannot_run(quotas, index, queue, trial.shape_id, ruled_out)
    fitting = [cluster for cluster in index.clusters if ruled_out[cluster.id] is None]
    with_room = [cluster for cluster in fitting if _has_room(index, scheduling_key, cluster)]
    plan = decide(fork, now)
    return _told(fork.state, plan, trial, place, cannot).model_copy(
        update={
            "fits_empty": tuple(cluster.name for cluster in fitting),
            "fits_now": tuple(cluster.name for cluster in with_room),
        }
    )


def _cannot_run(
    quotas: QuotaTree, index: ClusterIndex, queue: Queue, shape_id: int, ruled_out: dict[int, Verdict | None]
) -> Reason | None:
    """Why the job can never run as it is written."""
    least = index.sizes_of(shape_id)[-1]
    obstacle = quotas.never(queue.id, {plain(name): amount for name, amount in least.needs.items() if amount})
    if obstacle is not None:
        return explain.over_quota(obstacle, for_ever=True)
    verdicts = [verdict for cluster in index.clusters if (verdict := ruled_out[cluster.id]) is not None]
    if len(verdicts) < len(ruled_out):
        return None
    reason = explain.blocked(verdicts)
    return reason if reason.tier is Tier.CANNOT_RUN else None


def _has_room(index: ClusterIndex, scheduling_key: SchedulingKey, cluster: Cluster) -> bool:
    """Whether the gang fits on a cluster beside what runs there; quota and what is kept for others are not looked at."""
    if index.passing(scheduling_key, cluster) is not None:
        return False
    return isinstance(
        index.option(scheduling_key.shape_id, index.sizes_of(scheduling_key.shape_id), cluster, None), Option
    )


def _not_passed_by(engine: Engine, queue: Queue, now: float) -> list[WaitingJob]:
    """Return the waiting jobs that a job of this queue cannot pass by."""
    state = engine.state
    wanted = engine.carried.reservations.keys() & state.jobs.keys()
    if queue.order is Order.STRICT:
        classes = state.waiting.get(queue.id, {})
        firsts = [keys[0].job_id for key, keys in classes.items() if key.class_id in state.classes]
        wanted |= {min(firsts, key=lambda job_id: _head(state, state.jobs[job_id], now))} if firsts else set()
    return [state.jobs[job_id] for job_id in wanted]


def _told(state: SchedulerState, plan: Plan, trial: WaitingJob, place: Place, cannot: Reason | None) -> Trial:
    """What a plan says about the job on trial."""
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
    reason = {key.shape_id: reason for key, reason in plan.reasons.items()}[trial.shape_id]
    reason = reason.model_copy(update={"details": {}})  # they name the job, too
    kept = plan.reservations.get(TRIAL_JOB)
    has_time = kept is not None and kept.at < inf
    return Trial(
        could_run=True,
        starts_now=False,
        why=reason.sentence,
        cluster=state.clusters[kept.cluster_id].name if kept is not None and has_time else None,
        expected_start=_moment(ceil(kept.at)) if kept is not None and has_time else None,
        place=place,
        reason=reason,
    )
