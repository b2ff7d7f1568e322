"""The choice of a waiting job's reason, and the parts of its sentence. The sentences are in the registry of reasons."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil, inf

from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.reasons import NOT_BY_POLICY, Check, Reason, Tier, Token, Verdict
from trainmaster_dispatcher.domain.budgets import Excess
from trainmaster_dispatcher.domain.burst_policies import Bounds
from trainmaster_dispatcher.domain.redaction import ANOTHER_JOB, ANOTHER_QUEUE, protected, sentence_case
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation, Cluster, Queue
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun
from trainmaster_dispatcher.scheduling.state.plan import Eviction
from trainmaster_dispatcher.scheduling.state.reservation import Reservation
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_DECIDING = tuple((check, check.token) for check in Check if check.token not in (None, Token.NO_CLUSTER_ALLOWED))
"""Checks by precedence that decide on the token; without any of them, no cluster is allowed."""


@lru_cache(maxsize=4096)
def _cached(token: Token, **parts: str) -> Reason:
    """Return a reason without verdicts. Cached: classes that wait for quota have the same reasons cycle after cycle."""
    return token.reason(**parts)


def blocked(verdicts: Sequence[Verdict]) -> Reason:
    """Return the reason of a class that no cluster can start now."""
    if not verdicts:
        return _cached(Token.NO_CLUSTERS)
    for check, token in _DECIDING:
        relevant = [verdict for verdict in verdicts if verdict.check is check]
        if relevant and token is not None:
            first, more = relevant[0], len(relevant) - 1
            others = f" (and {more} more cluster{'s' if more > 1 else ''} like it)" if more else ""
            # A cluster that only a burst policy keeps it from is large enough, and offers what it asks for.
            but = " but a public one" if any(verdict.check is Check.BURST for verdict in verdicts) else ""
            return token.reason(verdicts, cluster=first.cluster, finding=first.sentence, others=others, but=but)
    first = verdicts[0]
    none = "The only cluster is not" if len(verdicts) == 1 else f"None of the {len(verdicts)} clusters is"
    return Token.NO_CLUSTER_ALLOWED.reason(verdicts, none=none, cluster=first.cluster, finding=first.sentence)


def over_quota(obstacle: Obstacle, verdicts: Sequence[Verdict] = (), *, for_ever: bool = False) -> Reason:
    """Return the reason of a class that quota holds back; ``for_ever`` if waiting does not help."""
    if for_ever:
        return obstacle.token.reason_for_ever(queue=obstacle.queue.path, finding=obstacle.sentence)
    finding = sentence_case(obstacle.sentence)
    return obstacle.token.reason(verdicts, finding=finding) if verdicts else _cached(obstacle.token, finding=finding)


def makes_room() -> Reason:
    """Return the reason of a class whose queue is at its limit, while runs of the queue are being ended for the class."""
    return _cached(Token.PREEMPTING)


def queue_closed(queue: Queue) -> Reason:
    """Return the reason of a class whose queue, or one above it, starts nothing."""
    return _cached(Token.QUEUE_HELD, queue=queue.path, state=queue.state.value)


def outside_hours(hours: str, at: float) -> Reason:
    """Return the reason of a class whose queue, or one above it, starts jobs in other hours only; ``at``: when these begin."""
    when = (
        f"the next time is {clock(at)}"
        if at < inf
        else "there is no time in the next week at which all of these let jobs start"
    )
    return _cached(Token.OUTSIDE_HOURS, finding=sentence_case(f"{hours}; {when}"))


def queue_suspended(queue: Queue) -> str:
    """Return why a run of a queue, or of one below it, is ended."""
    return f"queue {queue.path} was suspended by an admin"


def internal_error(error: BaseException) -> Reason:
    """Return the reason of a class of jobs that could not be decided on because of a mistake in Trainmaster."""
    error_type = type(error).__name__
    cause = f"an error inside Trainmaster ({error_type}) keeps the scheduler from deciding on it; other jobs go on"
    return _cached(Token.INTERNAL_ERROR, cause=cause)


def unusable(fault: str) -> Reason:
    """Return the reason of a class of jobs that depends on a stored object which cannot be used."""
    return _cached(Token.INTERNAL_ERROR, cause=fault)


def behind(queue: Queue, first: WaitingJob) -> Reason:
    """Return the reason of the jobs behind a job that cannot start, in a queue that keeps its order."""
    whom = protected(job_id(first.name, first.id), queue.path, ANOTHER_JOB)
    return _cached(Token.BEHIND_OTHERS, queue=queue.path, first=whom)


def kept(state: SchedulerState, cluster: Cluster, reservation: Reservation, seconds: RunSeconds) -> Verdict:
    """Return why a job that would fit now may not start: it would delay the job with the reservation."""
    whom = job_id(reservation.name, reservation.job_id)
    owner = state.jobs.get(reservation.job_id)
    if owner is not None:
        whom = protected(whom, state.queues[owner.queue_id].path, ANOTHER_JOB)
    if reservation.at == inf:
        text = (
            f"what is freed there is kept for {whom}, which has waited for so long that nothing starts there before it"
        )
    else:
        if reservation.is_sure or seconds.predicted is None:
            until = _until_after(seconds.latest)
        else:
            until = "is expected to run until after that, as long as such jobs did before"
        text = f"it is kept for {whom} from {clock(reservation.at)} on, and this job {until}"
    return Verdict(cluster=cluster.name, check=Check.RESERVED, sentence=text)


def assumption(reservation: Reservation) -> str:
    """Return the assumption behind the time of a reservation."""
    runs = (
        "keep to their limits"
        if reservation.is_sure
        else "take as long as such runs did before, or else as their limits allow"
    )
    return f"runs there {runs}, and no other job gets its turn before it"


def _until_after(limit: float) -> str:
    return "has no time limit" if limit == inf else "may run until after that"


def reserved(cluster: Cluster, one: AdvanceReservation, queue: Queue | None, limit: float) -> Verdict:
    """Return why a job that would fit now may not start: an admin has reserved nodes for a queue."""
    nodes = "1 node is" if one.nodes == 1 else f"{one.nodes} nodes are"
    until = _until_after(limit)
    whom, name = "?", one.name
    if queue is not None:
        whom, name = f"queue {queue.path}", protected(f" ({one.name})", queue.path, "")
        whom = protected(whom, queue.path, ANOTHER_QUEUE)
    text = (
        f"{nodes} reserved for {whom} from {clock(one.begins_at)} to {clock(one.ends_at)}{name}, and this job {until}"
    )
    return Verdict(cluster=cluster.name, check=Check.WINDOW, sentence=text)


def expected(reason: Reason, reservation: Reservation, state: SchedulerState) -> Reason:
    """Return the same reason with the reservation of the first job of the class, which only the first job shows."""
    name = state.clusters[reservation.cluster_id].name
    first: dict[str, str] = {"job": job_id(reservation.name, reservation.job_id), "cluster": name}
    if reservation.at == inf:
        first["sentence"] = f"What is freed on {name} is kept for it from now on."
    else:
        at, first["assuming"] = clock(reservation.at), assumption(reservation)
        first["notAfter" if reservation.is_sure else "expected"] = at
        when = f"It starts by {at}" if reservation.is_sure else f"It is expected to start at {at}"
        first["sentence"] = f"{when} on {name} if {first['assuming']}."
    return reason.model_copy(update={"details": {"first": first}})


def clock(at: float) -> str:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """Return a duration as people say it."""
    return format_duration(seconds)


def money(nanos: int) -> str:
    """Return an amount of money with two decimals, or more if it is less than a cent."""
    value = nanos / NANOS
    return f"{value:.2f}" if value >= 0.01 or not nanos else f"{value:.6f}".rstrip("0")


def excess(one: Excess, bounds: Bounds, queues: Sequence[str]) -> str:
    """Return which budget a run would exceed; ``queues`` are those that share it."""
    cost = f"this one may cost {money(one.needed)}"
    if one.window is None:
        earlier = f"earlier runs of it have cost {money(one.spent)} and " if one.spent else ""
        cost = f"{earlier}{cost}"
    else:
        others = (
            f"{money(one.spent)} was spent by runs that have ended, {money(one.committed)} is committed to live runs,"
        )
        cost = f"{protected(others, queues, 'other runs spend from it,')} and {cost} in it"
    rate = f"{money(bounds.rate)} an hour for {span(bounds.total)} at most, its start and end included"
    return f"the budget of {money(one.limit)} for {'an' if one.name == 'hour' else 'a'} {one.name} is not enough: {cost} ({rate})"


def grows(pools: Sequence[str], wait: float) -> str:
    """Return the sentence that nodes have to be added first."""
    which = f"its pool {pools[0]} grows" if len(pools) == 1 else f"its pools {', '.join(pools)} grow"
    return f"where {which} for it, which is expected to take {span(wait)}"


def refused(why: Reason, policy: str, token: Token | None, sentence: str, verdicts: Sequence[Verdict]) -> Reason:
    """Return why a job waits, and why a policy does not let it go to a public cluster. ``token`` None: the policy is not the cause."""
    public = {verdict.cluster for verdict in verdicts}
    every = (*(verdict for verdict in why.verdicts if verdict.cluster not in public), *verdicts)
    waits = why
    if why.tier in (Tier.CAPACITY, Tier.CANNOT_RUN):
        if token is not None:
            return token.reason(every, why.details, waits=why.sentence, policy=policy, finding=sentence)
        if verdicts:
            waits = blocked(every)
    text = NOT_BY_POLICY.format(waits=waits.sentence, policy=policy, finding=sentence)
    return waits.model_copy(update={"sentence": text, "verdicts": every, "details": why.details})


def give_way(evicts: Sequence[Eviction]) -> str:
    """Return how many runs end or shrink, such as ``2 runs end and one run shrinks``."""
    ended = sum(one.sizes is None for one in evicts)
    parts = [(ended, "ends", "end"), (len(evicts) - ended, "shrinks", "shrink")]
    return " and ".join(f"one run {one}" if many == 1 else f"{many} runs {all_}" for many, one, all_ in parts if many)


def gives_back(state: SchedulerState, victim: LiveRun, keeps: Mapping[str, int], taker: WaitingJob) -> str:
    """Return why members of an elastic run leave."""
    many = sum(size for _, size in victim.sizes) - sum(keeps.values())
    whom = protected(job_id(taker.name, taker.id), state.queues[taker.queue_id].path, ANOTHER_JOB)
    return f"gives {many} of its members back: {whom} waits for the capacity"


def are_moved(many: int) -> str:
    """Return how many runs are moved."""
    return "one run is moved" if many == 1 else f"{many} runs are moved"


def moved(state: SchedulerState, taker: WaitingJob, home: str) -> str:
    """Return why a run ends for a job that needs its room in one piece."""
    whom = protected(job_id(taker.name, taker.id), state.queues[taker.queue_id].path, ANOTHER_JOB)
    return f"moved to other room on {home}, for {whom}, which fits only in one piece"


def evicted(state: SchedulerState, victim: LiveRun, taker: WaitingJob, queue: Queue, *, by_class: bool) -> str:
    """Return why a run ends for another job."""
    whom = protected(job_id(taker.name, taker.id), state.queues[taker.queue_id].path, ANOTHER_JOB)
    if by_class:
        return f"preempted for {whom}, whose class {state.classes[taker.class_id].name} is higher"
    owed = protected(f"queue {queue.path}", queue.path, ANOTHER_QUEUE)
    borrower = state.queues[victim.queue_id].path
    borrower = protected(borrower, borrower, ANOTHER_QUEUE)
    return f"preempted for {whom}: {owed} takes back what is guaranteed to it, and {borrower} had borrowed"
