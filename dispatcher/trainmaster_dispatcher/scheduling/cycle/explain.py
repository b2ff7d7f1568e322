"""From verdicts to the one reason that is told: its token, sentence and what would change it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil, inf

from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.quantities import format_quantity
from trainmaster.protocol.reasons import Check, Reason, Tier, Token, Verdict
from trainmaster_dispatcher.domain.budgets import Excess
from trainmaster_dispatcher.domain.burst_policies import Bounds
from trainmaster_dispatcher.domain.redaction import ANOTHER_JOB, ANOTHER_QUEUE, protected, sentence_case
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.state.plan import Eviction
from trainmaster_dispatcher.scheduling.state.reservation import Reservation
from trainmaster_dispatcher.scheduling.state.state import (
    AdvanceReservation,
    Cluster,
    LiveRun,
    Queue,
    SchedulerState,
    WaitingJob,
)

_PRECEDENCE: tuple[tuple[Check, Token], ...] = (
    (Check.NO_ROOM, Token.INSUFFICIENT_CAPACITY),
    (Check.RESERVED, Token.RESERVED),
    (Check.WINDOW, Token.RESERVED_FOR_QUEUE),
    (Check.COOLING_DOWN, Token.COOLING_DOWN),
    (Check.UNREACHABLE, Token.UNREACHABLE),
    (Check.NO_REPORT, Token.UNREACHABLE),
    (Check.CORDONED, Token.CORDONED),
    (Check.NEVER_FITS, Token.TOO_LARGE),
    (Check.CAPABILITY, Token.NOT_SUPPORTED),
    (Check.ADMISSION, Token.NOT_SUPPORTED),
    (Check.DATASET, Token.NOT_SUPPORTED),
)
"""The check nearest to a start decides: a job that only lacks room on one cluster is not called impossible for another's sake."""

_ADVICE = {
    Token.INSUFFICIENT_CAPACITY: "It starts when enough is freed. Fewer or smaller members may fit sooner.",
    Token.RESERVED: "It starts when that job has started. With a shorter time limit it could go first.",
    Token.RESERVED_FOR_QUEUE: "It starts when the reservation is over; with a time limit that ends before it begins, now.",
    Token.COOLING_DOWN: "It is tried again there when the pause is over.",
    Token.UNREACHABLE: "It can start when the agent is back; the cluster's owner can look at the agent's log.",
    Token.CORDONED: "An admin can let jobs start there again: trainmaster clusters uncordon NAME.",
    Token.TOO_LARGE: "Waiting will not help: make the members smaller or fewer, or ask an admin for larger nodes.",
    Token.NOT_SUPPORTED: "Waiting will not help: drop the feature, or ask an admin for a cluster that offers it.",
    Token.NO_CLUSTER_ALLOWED: "Waiting will not help: change the job's placement or queue, or ask an admin.",
    Token.NO_CLUSTERS: "An admin has to connect a cluster first.",
    Token.QUEUE_LIMIT: "It starts when other jobs of the queue end. An admin can raise the limit.",
    Token.BORROWING_LIMIT: "It starts when other jobs of the queue end. An admin can let the queue borrow more.",
    Token.KEPT_FOR_OTHERS: "It starts when more is free. An admin can let that queue lend what it does not use.",
    Token.BEHIND_OTHERS: "It starts when those before it have started; an admin can let others pass in that queue.",
    Token.PREEMPTING: "It starts when they have gone.",
    Token.BURST_NOT_YET: "It starts when enough is freed, or goes to a public cluster once the policy lets it.",
    Token.BURST_LIMIT: "It starts when enough is freed, or when others that are at public clusters end.",
    Token.BURST_BUDGET: "It starts when enough is freed. With a shorter time limit it may cost less than the budget has left.",
    Token.QUEUE_HELD: "An admin holds the queue; it starts nothing until it is released.",
    Token.INTERNAL_ERROR: "It is tried again by itself. If this stays, tell an admin: the scheduler's log names the error.",
}


def reason(token: Token, sentence: str, verdicts: Sequence[Verdict] = ()) -> Reason:
    """A reason with its tier and advice."""
    return (
        _cached_reason(token, sentence, tuple(verdicts)) if not verdicts else _reason(token, sentence, tuple(verdicts))
    )


def _reason(token: Token, sentence: str, verdicts: tuple[Verdict, ...]) -> Reason:
    return Reason(token=token, tier=token.tier, sentence=sentence, advice=_ADVICE.get(token, ""), verdicts=verdicts)


_cached_reason = lru_cache(maxsize=4096)(_reason)
"""Classes that wait for quota have the same reasons cycle after cycle."""


def blocked(verdicts: Sequence[Verdict]) -> Reason:
    """The reason of a class that no cluster can start now."""
    if not verdicts:
        return reason(Token.NO_CLUSTERS, "No cluster is connected.")
    for check, token in _PRECEDENCE:
        relevant = [verdict for verdict in verdicts if verdict.check is check]
        if relevant:
            return reason(token, _sentence(token, relevant), verdicts)
    first = verdicts[0]
    only = "The only cluster" if len(verdicts) == 1 else f"None of the {len(verdicts)} clusters"
    middle = "is not allowed for it" if len(verdicts) == 1 else "is allowed for it"
    return reason(Token.NO_CLUSTER_ALLOWED, f"{only} {middle}: {first.cluster}: {first.sentence}.", verdicts)


def _sentence(token: Token, relevant: Sequence[Verdict]) -> str:
    first = relevant[0]
    more = len(relevant) - 1
    others = f" (and {more} more cluster{'s' if more > 1 else ''} like it)" if more else ""
    text = f"{first.cluster}: {first.sentence}{others}."
    match token:
        case Token.INSUFFICIENT_CAPACITY:
            return f"It waits for free capacity; {text}"
        case Token.RESERVED:
            return f"It would delay a job that waits for more; {text}"
        case Token.RESERVED_FOR_QUEUE:
            return f"It would use nodes that are reserved; {text}"
        case Token.TOO_LARGE:
            return f"It fits on no cluster, not even on an empty one; {text}"
        case Token.COOLING_DOWN:
            return f"The clusters it could go to have just refused it; {text}"
        case Token.UNREACHABLE:
            return f"The clusters it could go to are not in contact; {text}"
        case Token.CORDONED:
            return f"The clusters it could go to are closed to new jobs; {text}"
        case _:
            return f"No cluster offers what it asks for; {text}"


def over_quota(obstacle: Obstacle, verdicts: Sequence[Verdict] = (), *, for_ever: bool = False) -> Reason:
    """The reason of a class that quota holds back; ``for_ever`` if waiting does not help."""
    if for_ever:
        text = f"It can never start in queue {obstacle.queue.path}: {obstacle.sentence}."
        return reason(obstacle.token, text).model_copy(
            update={
                "advice": "Waiting will not help: make the job smaller, or ask an admin to raise the limit.",
                "for_ever": True,
            }
        )
    return reason(obstacle.token, sentence_case(obstacle.sentence) + ".", verdicts)


def makes_room() -> Reason:
    """The reason of a class whose queue is at its limit, and for which runs of the queue are being ended."""
    return reason(
        Token.PREEMPTING, "Its queue is at its limit, and runs of a lower class in it are being ended for it."
    )


def queue_closed(queue: Queue) -> Reason:
    """The reason of a class whose queue, or one above it, starts nothing."""
    return reason(Token.QUEUE_HELD, f"Queue {queue.path} is {queue.state}.")


def queue_suspended(queue: Queue) -> str:
    """Why a run of a queue, or of one below it, is ended."""
    return f"queue {queue.path} was suspended by an admin"


def internal_error(error: BaseException) -> Reason:
    """The reason of a class of jobs that could not be looked at because of a mistake in Trainmaster."""
    return reason(
        Token.INTERNAL_ERROR,
        f"An error inside Trainmaster ({type(error).__name__}) keeps the scheduler from deciding on it; other jobs go on.",
    )


def unusable(fault: str) -> Reason:
    """The reason of a class of jobs that depends on a stored object which cannot be used."""
    return reason(Token.INTERNAL_ERROR, f"It is held back until this is mended: {fault}.")


def behind(queue: Queue, first: WaitingJob) -> Reason:
    """The reason of what stands behind a job that cannot start, in a queue that keeps its order."""
    whom = protected(job_id(first.name, first.id), queue.path, ANOTHER_JOB)
    return reason(Token.BEHIND_OTHERS, f"Queue {queue.path} keeps its order, and {whom} is before it.")


def kept(state: SchedulerState, cluster: Cluster, reservation: Reservation, limit: float) -> Verdict:
    """Why a job that would fit now may not start: it would delay the one that the room is kept for."""
    whom = job_id(reservation.name, reservation.job_id)
    owner = state.jobs.get(reservation.job_id)
    if owner is not None:
        whom = protected(whom, state.queues[owner.queue_id].path, ANOTHER_JOB)
    if reservation.at == inf:
        text = f"what is freed there is kept for {whom}, which has waited longest"
    elif limit == inf:
        text = f"it is kept for {whom} from {clock(reservation.at)} on, and this job has no time limit"
    else:
        text = f"it is kept for {whom} from {clock(reservation.at)} on, and this job may run until after that"
    return Verdict(cluster=cluster.name, check=Check.RESERVED, sentence=text)


def reserved(cluster: Cluster, one: AdvanceReservation, queue: Queue | None, limit: float) -> Verdict:
    """Why a job that would fit now may not start: an admin has reserved nodes for a queue."""
    nodes = "1 node is" if one.nodes == 1 else f"{one.nodes} nodes are"
    until = "has no time limit" if limit == inf else "may run until after that"
    whom, name = "?", one.name
    if queue is not None:
        whom, name = f"queue {queue.path}", protected(f" ({one.name})", queue.path, "")
        whom = protected(whom, queue.path, ANOTHER_QUEUE)
    text = (
        f"{nodes} reserved for {whom} from {clock(one.begins_at)} to {clock(one.ends_at)}{name}, and this job {until}"
    )
    return Verdict(cluster=cluster.name, check=Check.WINDOW, sentence=text)


def expected(reason: Reason, reservation: Reservation, state: SchedulerState) -> Reason:
    """The same reason, and what is kept for the first job of the class; that is told to this one alone."""
    name = state.clusters[reservation.cluster_id].name
    first: dict[str, str] = {"job": job_id(reservation.name, reservation.job_id), "cluster": name}
    if reservation.at == inf:
        first["sentence"] = f"What is freed on {name} is kept for it from now on."
    else:
        first["notAfter"] = clock(reservation.at)
        first["sentence"] = f"It starts by {first['notAfter']} on {name} if runs there keep to their time limits."
    return reason.model_copy(update={"details": {"first": first}})


def clock(at: float) -> str:
    """A moment as people read it, in UTC."""
    return datetime.fromtimestamp(ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """A time as people say it."""
    return format_duration(seconds)


def amount(resource: str, of: int) -> str:
    """So much of a resource."""
    return format_quantity(resource, of)


def money(nanos: int) -> str:
    """An amount of money: two places, more where it is less than a cent."""
    value = nanos / NANOS
    return f"{value:.2f}" if value >= 0.01 or not nanos else f"{value:.6f}".rstrip("0")


def excess(one: Excess, bounds: Bounds, queues: Sequence[str]) -> str:
    """Which budget a run would exceed; ``queues`` are those that share it."""
    cost = f"this one may cost {money(one.needed)}"
    if one.window is None:
        earlier = f"earlier runs of it have cost {money(one.spent)} and " if one.spent else ""
        cost = f"{earlier}{cost}"
    else:
        others = f"{money(one.spent)} by runs that have ended, {money(one.committed)} by those at work until they end,"
        cost = f"{protected(others, queues, 'other runs spend from it,')} and {cost} in it"
    rate = f"{money(bounds.rate)} an hour for {span(bounds.total)} at most, its start and end included"
    return f"the budget of {money(one.limit)} for {'an' if one.name == 'hour' else 'a'} {one.name} is not enough: {cost} ({rate})"


def grows(pools: Sequence[str], wait: float) -> str:
    """That nodes have to come first."""
    which = f"its pool {pools[0]} grows" if len(pools) == 1 else f"its pools {', '.join(pools)} grow"
    return f"where {which} for it, which is expected to take {span(wait)}"


def refused(why: Reason, policy: str, token: Token | None, sentence: str, verdicts: Sequence[Verdict]) -> Reason:
    """Why a job waits, and why a policy does not let it go to a public cluster. ``token`` None: that is not up to the policy."""
    asked = {verdict.cluster for verdict in verdicts}
    every = (*(verdict for verdict in why.verdicts if verdict.cluster not in asked), *verdicts)
    told = why
    if why.tier in (Tier.CAPACITY, Tier.CANNOT_RUN):
        if token is not None:
            told = reason(token, why.sentence, every)
        elif verdicts:
            told = blocked(every)
    text = f"{told.sentence} By policy {policy} it does not go to a public cluster: {sentence}."
    return told.model_copy(update={"sentence": text, "verdicts": every, "details": why.details})


def give_way(evicts: Sequence[Eviction]) -> str:
    """How many runs end or shrink, such as ``2 runs end and one run shrinks``."""
    ended = sum(one.sizes is None for one in evicts)
    parts = [(ended, "ends", "end"), (len(evicts) - ended, "shrinks", "shrink")]
    return " and ".join(f"one run {one}" if many == 1 else f"{many} runs {all_}" for many, one, all_ in parts if many)


def gives_back(state: SchedulerState, victim: LiveRun, keeps: Mapping[str, int], taker: WaitingJob) -> str:
    """Why members of an elastic run leave."""
    many = sum(size for _, size in victim.sizes) - sum(keeps.values())
    whom = protected(job_id(taker.name, taker.id), state.queues[taker.queue_id].path, ANOTHER_JOB)
    return f"gives {many} of its members back: {whom} waits for the room"


def evicted(state: SchedulerState, victim: LiveRun, taker: WaitingJob, queue: Queue, *, by_class: bool) -> str:
    """Why a run ends for another job."""
    whom = protected(job_id(taker.name, taker.id), state.queues[taker.queue_id].path, ANOTHER_JOB)
    if by_class:
        return f"preempted for {whom}, whose class {state.classes[taker.class_id].name} is higher"
    owed = protected(f"queue {queue.path}", queue.path, ANOTHER_QUEUE)
    borrower = state.queues[victim.queue_id].path
    borrower = protected(borrower, borrower, ANOTHER_QUEUE)
    return f"preempted for {whom}: {owed} takes back what is guaranteed to it, and {borrower} had borrowed"
