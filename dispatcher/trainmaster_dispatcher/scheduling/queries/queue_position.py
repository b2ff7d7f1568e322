"""A waiting job's position and its factors, and what queues use: answers over a state. Nothing here changes it.

A position is counted by bisection in the sorted keys of each class, so that a million jobs in a queue cost as little as
a thousand.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil

from sortedcontainers import SortedList

from trainmaster.protocol.queue_position import Factors, Place, QueueTurn, QueueUsage, Usages, UserTurn
from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.quotas.fair_share import (
    FairShareQueue,
    Head,
    charge_of,
    head_of,
    lifted_users,
    ordering_seconds,
    slowdown,
)
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import charge_anywhere
from trainmaster_dispatcher.scheduling.state.jobs import (
    PRIORITY_SECONDS,
    ClassKey,
    StaticKey,
    WaitingJob,
    is_by_deadline,
)
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

    Jobs that by their reason can never start as they are written are ahead of nobody.

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
    classes = state.waiting.get(job.queue_id, {})
    cannot_run = {key for key in classes if key in reasons and reasons[key].has_no_turn}
    shares = state.grouping_of(job.queue_id).shares
    of_user: dict[str, dict[ClassKey, SortedList]] = {job.user if shares else "": {}}
    for key, keys in classes.items():
        if key not in cannot_run and key.class_id in state.classes:
            of_user.setdefault(key.user if shares else "", {})[key] = keys
    if shares:
        ahead, own, turn = _among_users(state, quotas, job, of_user, now)
    else:
        own, turn = head_of_job(state, job, now), None
        ahead = sum(_before(state, key, keys, own, now) for key, keys in of_user[""].items())
    return Place(
        queue=state.queues[job.queue_id].path,
        position=ahead + 1,
        jobs_ahead=ahead,
        jobs_in_queue=sum(len(keys) for keys in classes.values()) + (job.id not in state.jobs),
        jobs_that_cannot_run=sum(len(classes[key]) for key in cannot_run),
        factors=_factors(state, quotas, job, own, now).model_copy(update={"user": turn}),
    )


def _among_users(
    state: SchedulerState,
    quotas: QuotaTree,
    job: WaitingJob,
    of_user: Mapping[str, Mapping[ClassKey, SortedList]],
    now: float,
) -> tuple[int, Head, UserTurn]:
    """Return how many jobs would start before a job if nothing ended meanwhile, its position among those of its user, and the turn
    of its user.

    Jobs of a higher class, and urgent ones of users who may have these lifted, go first. Of its own class a user has a turn as long
    as the share that the user has reached is lower; a job of another user counts there with the mean of that user's waiting jobs.
    """
    queue = state.queues[job.queue_id]
    lifted = lifted_users(state, quotas, queue, of_user)

    def head(key: ClassKey, one: StaticKey) -> Head:
        seconds = ordering_seconds(state, key)
        return head_of(state.classes[key.class_id], one, now, knows_urgency=key.user in lifted, run_seconds=seconds)

    def each(key: ClassKey) -> float:
        """Return the share that a job of a class adds to that of its user."""
        shape, weight = state.shapes.get(key.shape_id), state.weight_of_user(key.queue_id, key.user)
        needs: dict[str, int] = {}
        for role in shape.roles if shape is not None else ():
            for name, amount in role.needs.items():
                needs[name] = needs.get(name, 0) + amount * role.replicas
        there = ((amount, quotas.capacity.get(flavor, 0)) for flavor, amount in charge_anywhere(needs).items())
        return max((amount / has for amount, has in there if has > 0), default=0.0) / weight

    own = head(state.key_of(job), state.static_key_of(job))
    share = quotas.standing_of_user(queue, job.user)
    before = {
        key: bisect_left(keys, own, key=lambda one, key=key: head(key, one))  # type: ignore[misc]
        for key, keys in of_user[job.user].items()
    }
    reached = share + sum(many * each(key) for key, many in before.items())
    oldest = min([job.key.at, *(_since(state, keys[0]) for keys in of_user[job.user].values())])
    first = min([own.rank, *(head(key, keys[0]).rank for key, keys in of_user[job.user].items())])
    others, rank = 0, 1
    for user, classes in of_user.items():
        if user == job.user:
            continue
        has, since = quotas.standing_of_user(queue, user), min(_since(state, keys[0]) for keys in classes.values())
        rank += (min(head(key, keys[0]).rank for key, keys in classes.items()), has, since, user) < (
            *(first, share),
            *(oldest, job.user),
        )
        many, adds = 0, 0.0
        for key, keys in classes.items():
            higher = bisect_left(keys, own.rank, key=lambda one, key=key: head(key, one).rank)  # type: ignore[misc]
            level_with = bisect_right(keys, own.rank, key=lambda one, key=key: head(key, one).rank) - higher  # type: ignore[misc]
            others, has = others + higher, has + higher * each(key)
            many, adds = many + level_with, adds + level_with * each(key)
        others += _until_level(many, adds / many if many else 0.0, reached - has, is_older=since < oldest)
    ahead = sum(before.values())
    weight = state.weight_of_user(job.queue_id, job.user)
    turn = UserTurn(user=job.user, weight=weight, share=share, rank=rank, users=len(of_user), jobs_ahead=ahead)
    return ahead + others, own, turn


def _since(state: SchedulerState, key: StaticKey) -> float:
    """Return since when the job with a key waits, shifted by its priority."""
    return state.jobs[key.job_id].key.at if is_by_deadline(key.at) else key.at


def _until_level(many: int, step: float, lead: float, *, is_older: bool) -> int:
    """Return how many of a user's jobs start until the user's share, which is lower by ``lead``, is no longer lower.

    ``step``: the share that each adds. The start at which both are level is the last one; one more if the user's jobs are older.
    """
    if lead < -_SAME_SHARE or not many:
        return 0
    if step <= 0.0:
        return many
    steps = lead / step
    is_level = abs(steps - round(steps)) < _SAME_SHARE
    return min(many, round(steps) + is_older if is_level else ceil(steps))


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
    seconds = ordering_seconds(state, state.key_of(job))
    return head_of(state.classes[job.class_id], state.static_key_of(job), now, run_seconds=seconds)


def _before(state: SchedulerState, key: ClassKey, keys: SortedList, own: Head, now: float) -> int:
    """Return the number of jobs of a class ahead of ``own``. Keys in order have positions in order, because the oldest
    become urgent first."""
    priority_class = state.classes.get(key.class_id)
    if priority_class is None:
        return 0
    seconds = ordering_seconds(state, key)
    return bisect_left(keys, own, key=lambda other: head_of(priority_class, other, now, run_seconds=seconds))


def _factors(state: SchedulerState, quotas: QuotaTree, job: WaitingJob, own: Head, now: float) -> Factors:
    priority_class = state.classes[job.class_id]
    by_deadline = is_by_deadline(own.at)
    longest = None if by_deadline else priority_class.longest_wait
    seconds = ordering_seconds(state, state.key_of(job))
    return Factors(
        urgent=own.is_urgent,
        urgent_at=None if longest is None else moment(job.key.at + longest),
        priority_class=priority_class.name,
        class_value=priority_class.value,
        submitted_at=moment(job.waits_since),
        priority=job.priority,
        seconds_earlier=PRIORITY_SECONDS * job.priority,
        slowdown=None if seconds is None else round(slowdown(now - job.key.at, seconds), 3),
        by_deadline=by_deadline,
        deadline=moment(job.deadline) if by_deadline and job.deadline is not None else None,
        queues=_turns(state, quotas, job, now),
    )


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _turns(state: SchedulerState, quotas: QuotaTree, job: WaitingJob, now: float) -> tuple[QueueTurn, ...]:
    """Return the turns of a job's queue and of those above it, from the root down."""
    order = FairShareQueue(state, quotas, now)
    charge, shape = order.charge_of_next(job.queue_id), state.shapes.get(job.shape_id)
    if charge is None:
        charge = {} if shape is None else charge_of(shape)
    tree = order.tree_of(charge)
    way = reversed(state.ancestry(job.queue_id))
    return tuple(_turn(quotas, order, queue, tree, has_jobs=queue.id == job.queue_id) for queue in way)


def _turn(quotas: QuotaTree, order: FairShareQueue, queue: Queue, tree: str, *, has_jobs: bool) -> QueueTurn:
    compared_by = None if has_jobs else order.compared_by(queue.id, tree)
    own, rivals = order.standing(queue, compared_by), order.rivals(queue, tree)
    beyond, whole = quotas.share(queue, resource=compared_by)
    return QueueTurn(
        queue=queue.path,
        weight=queue.weight,
        share_beyond_guarantee=beyond,
        share=whole,
        past_share=quotas.past.get(queue.id, 0.0),
        rank=1 + sum(other < own for other in rivals),
        siblings=1 + len(rivals),
        resource=compared_by,
    )
