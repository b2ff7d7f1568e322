"""A waiting job's position and its factors, and what queues use: answers over a state. Nothing here changes it.

A position is counted by bisection in the sorted keys of each class, so that a million jobs in a queue cost as little as
a thousand.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import ceil, inf, isinf

from sortedcontainers import SortedList

from trainmaster.protocol.queue_position import Factors, Place, QueueTurn, QueueUsage, Usages, UserTurn
from trainmaster.protocol.reasons import Reason, Tier
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.quotas.fair_share import Head, head_of
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import plain
from trainmaster_dispatcher.scheduling.state.jobs import PRIORITY_SECONDS, ClassKey, StaticKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

Reasons = Mapping[ClassKey, Reason]
"""The reasons for which classes of jobs wait, as far as they are known."""
NO_REASONS: Reasons = {}
_SAME_SHARE = 1e-9


def quotas_of(engine: Engine, now: float) -> QuotaTree:
    """Return what queues use now, for questions within a short time: it costs more than the rest of a position."""
    fork = engine.fork()
    fork.begin(now)
    return fork.quotas(now)


def place_of(
    state: SchedulerState, quotas: QuotaTree, job_id: int, now: float, reasons: Reasons = NO_REASONS
) -> Place | None:
    """Return the position of a waiting job. ``now`` is in seconds since the epoch, as all times of the state.

    Jobs that by their reason cannot run as they are written are ahead of nobody.

    None if the job does not wait, or if its queue or its class is unknown.
    """
    job = state.jobs.get(job_id)
    if job is None or job.queue_id not in state.queues or job.class_id not in state.classes:
        return None
    return position_of(state, quotas, job, now, reasons)


def position_of(
    state: SchedulerState, quotas: QuotaTree, job: WaitingJob, now: float, reasons: Reasons = NO_REASONS
) -> Place:
    """Return the position of a job, whether or not it waits already. ``reasons``: see ``place_of``."""
    own = head_of_job(state, job, now)
    classes = state.waiting.get(job.queue_id, {})
    cannot_run = {key for key in classes if key in reasons and reasons[key].tier is Tier.CANNOT_RUN}
    shares = state.grouping_of(job.queue_id).shares
    of_user: dict[str, dict[ClassKey, SortedList]] = {}
    for key, keys in classes.items():
        if key not in cannot_run and key.class_id in state.classes:
            of_user.setdefault(key.user if shares else "", {})[key] = keys
    before = {
        key: _before(state, key, keys, own, now) for key, keys in of_user.pop(job.user if shares else "", {}).items()
    }
    own_ahead = sum(before.values())
    others, turn = 0, None
    if shares:
        others, turn = _among_users(state, quotas, job, before, of_user)
    return Place(
        queue=state.queues[job.queue_id].path,
        position=own_ahead + others + 1,
        jobs_ahead=own_ahead + others,
        jobs_in_queue=sum(len(keys) for keys in classes.values()) + (job.id not in state.jobs),
        jobs_that_cannot_run=sum(len(classes[key]) for key in cannot_run),
        factors=_factors(state, quotas, job, own).model_copy(update={"user": turn}),
    )


def _among_users(
    state: SchedulerState,
    quotas: QuotaTree,
    job: WaitingJob,
    before: Mapping[ClassKey, int],
    others: Mapping[str, Mapping[ClassKey, SortedList]],
) -> tuple[int, UserTurn]:
    """Return how many jobs of other users would start before a job if nothing ended meanwhile, and the turn of its user.

    A user has a turn as long as the share that the user has reached is lower. ``before``: by class, the jobs of the job's own user
    that are before it. A job of another user counts with the mean of that user's waiting jobs.
    """
    queue = state.queues[job.queue_id]

    def each(key: ClassKey) -> float:
        """Return the share that a job of a class adds to that of its user."""
        shape, weight = state.shapes.get(key.shape_id), state.weight_of_user(key.queue_id, key.user)
        needs: dict[str, int] = {}
        for role in shape.roles if shape is not None else ():
            for name, amount in role.needs.items():
                needs[name] = needs.get(name, 0) + amount * role.replicas
        there = ((amount, quotas.capacity.get(plain(name), 0)) for name, amount in needs.items())
        return max((amount / has for amount, has in there if has > 0), default=0.0) / weight

    share = quotas.standing_of_user(queue, job.user)
    reached = share + sum(many * each(key) for key, many in before.items())

    def first_of(firsts: Iterable[tuple[int, StaticKey]]) -> float:
        """Return the time of the first job by class, which decides between equal shares."""
        return min((-state.classes[class_id].value, key) for class_id, key in firsts)[1].at

    own = [(job.class_id, job.key), *((key.class_id, state.waiting[job.queue_id][key][0]) for key in before)]
    oldest = first_of(own)
    ahead, rank = 0, 1
    for user, classes in others.items():
        has = quotas.standing_of_user(queue, user)
        first = first_of((key.class_id, keys[0]) for key, keys in classes.items())
        rank += (has, first, user) < (share, oldest, job.user)
        many = sum(map(len, classes.values()))
        step = sum(len(keys) * each(key) for key, keys in classes.items()) / many
        if has > reached + _SAME_SHARE:
            continue
        steps = (reached - has) / step if step > 0.0 else inf
        if isinf(steps):
            ahead += many
            continue
        # The start that brings it level with this job's user is the last one, unless its jobs are older.
        is_level = abs(steps - round(steps)) < _SAME_SHARE
        ahead += min(many, round(steps) + (first < oldest) if is_level else ceil(steps))
    weight = state.weight_of_user(job.queue_id, job.user)
    turn = UserTurn(
        user=job.user, weight=weight, share=share, rank=rank, users=1 + len(others), jobs_ahead=sum(before.values())
    )
    return ahead, turn


def usage_of(state: SchedulerState, quotas: QuotaTree) -> Usages:
    """Return what each queue and all queues below it use now, by path."""
    found = []
    for queue in sorted(state.queues.values(), key=lambda one: one.path):
        account = quotas.account(queue.id)
        beyond, whole = quotas.share(queue)
        used = {str(flavor): flavor.format(amount) for flavor, amount in sorted(account.used.items()) if amount}
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


def head_of_job(state: SchedulerState, job: WaitingJob, now: float) -> Head:
    return head_of(state.classes[job.class_id], job.key, now)


def _before(state: SchedulerState, key: ClassKey, keys: SortedList, own: Head, now: float) -> int:
    """Return the number of jobs of a class ahead of ``own``. Keys in order have positions in order, because the oldest
    become urgent first."""
    priority_class = state.classes.get(key.class_id)
    if priority_class is None:
        return 0
    return bisect_left(keys, own, key=lambda other: head_of(priority_class, other, now))


def _factors(state: SchedulerState, quotas: QuotaTree, job: WaitingJob, own: Head) -> Factors:
    priority_class = state.classes[job.class_id]
    longest = priority_class.longest_wait
    return Factors(
        urgent=own.is_urgent,
        urgent_at=None if longest is None else moment(job.key.at + longest),
        priority_class=priority_class.name,
        class_value=priority_class.value,
        submitted_at=moment(job.submitted_at),
        priority=job.priority,
        seconds_earlier=PRIORITY_SECONDS * job.priority,
        queues=_turns(state, quotas, job.queue_id),
    )


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _turns(state: SchedulerState, quotas: QuotaTree, queue_id: int) -> tuple[QueueTurn, ...]:
    """Return the turns of a queue and of those above it, from the root down."""
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
