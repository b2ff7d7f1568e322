"""The attempt to start the first job of a class: on a free cluster, by preemption, by growth of a pool, by a burst policy.

It changes no plan: it returns an outcome, which ``decide`` carries out.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from trainmaster.protocol.reasons import Check, Reason, Tier, Token, Verdict
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.burst import BurstRefusal, Bursts, BurstStart, First
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import (
    MOST_LISTED,
    Choice,
    SearchResult,
    roles_by_name,
    search_best,
    search_each,
    search_growth,
)
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext, PreparedClass, closed_queue, terms_of
from trainmaster_dispatcher.scheduling.cycle.engine import QuotaRefusal
from trainmaster_dispatcher.scheduling.cycle.feasibility import possible_cluster
from trainmaster_dispatcher.scheduling.cycle.outcomes import (
    HoldJob,
    Outcome,
    Wait,
    after_eviction,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.reservations.backfill import ReservationRequest, has_waited_long
from trainmaster_dispatcher.scheduling.selection.cluster_index import Option, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.filters import STATIC
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob


def _prepare(cycle: CycleContext, key: ClassKey, queue: Queue) -> PreparedClass:
    """Return the values that hold for a class during the whole cycle."""
    known = cycle.prepared.get((queue.id, key.shape_id))
    if known is None:
        state = cycle.index.state
        queue_fault, closed = closed_queue(cycle, queue)
        if fault := state.shapes[key.shape_id].fault or queue_fault:
            found = cycle.prepared[queue.id, key.shape_id] = PreparedClass([], explain.unusable(fault))
            return found
        sizes = cycle.index.sizes_of(key.shape_id)
        for_ever = cycle.quotas.never(queue.id, sizes[-1].charge)
        stops = None
        if closed is not None:
            stops = explain.queue_closed(closed)
        elif for_ever is not None:
            stops = explain.over_quota(for_ever, for_ever=True)
        else:
            stops = cycle.start_rules.outside_hours(queue)
        known = cycle.prepared[queue.id, key.shape_id] = PreparedClass(sizes, stops)
    return known


def attempt(cycle: CycleContext, bursts: Bursts, job: WaitingJob, key: ClassKey, queue: Queue) -> Outcome:
    """Return the outcome of the attempt to start the first job of a class."""
    state, quotas = cycle.index.state, cycle.quotas
    had_room_kept = cycle.reservations.release(key) | cycle.consolidation.release(key)
    prepared = _prepare(cycle, key, queue)
    if prepared.stops is not None:
        return Wait(prepared.stops)
    if fault := state.classes[key.class_id].fault:
        return Wait(explain.unusable(fault))
    allowed = prepared.sizes
    obstacle = quotas.obstacle(queue.id, allowed[-1].charge, user=key.user)
    if obstacle is not None:
        return _over_quota(cycle, key, queue, allowed, obstacle)
    if len(allowed) > 1:
        allowed = [size for size in allowed if quotas.obstacle(queue.id, size.charge, user=key.user) is None]
    entitled = cycle.advance.entitled(queue.id)
    weights = state.weights_of(key)
    scheduling_key = SchedulingKey(
        key.shape_id, len(allowed), state.access_of(queue), key.avoided, entitled, weights, key.predecessors
    )
    seconds = state.run_seconds(key)
    if (scheduling_key, seconds) in cycle.blocked and not had_room_kept:
        # The right to end runs depends on the queue and class of the job.
        reason, full = cycle.blocked[scheduling_key, seconds]
        preemption = _preemption(cycle, key, queue, allowed, full)
        if preemption is not None:
            return after_eviction(preemption)
        grown = _grown(cycle, scheduling_key, queue, allowed).choice
        return grown or _wait_or_burst(reason, bursts.attempt(First(job, key, queue, allowed, full)))
    found = search_best(cycle, scheduling_key, seconds, allowed)
    if isinstance(found, Choice):
        return found
    if found is None:
        found = search_each(cycle, scheduling_key, seconds, job, queue, allowed)
    if found.options:
        top = nsmallest(
            MOST_LISTED + 1, found.options, key=lambda one: (-one.total, one.cluster.name, one.product or ("", ""))
        )
        return Choice(top[0], top, found.verdicts)
    return _lacking(cycle, bursts, job, key, queue, scheduling_key, seconds, allowed, found)


def _over_quota(cycle: CycleContext, key: ClassKey, queue: Queue, allowed: list[Size], obstacle: Obstacle) -> Outcome:
    """Return the outcome for a job that would exceed a quota: preemption, or a wait. No run ends for a limit of users."""
    quotas = cycle.quotas
    is_limit = obstacle.token is not Token.KEPT_FOR_OTHERS
    if obstacle.token is not Token.USER_LIMIT:
        preemption = _preemption(cycle, key, queue, allowed, None, for_quota=is_limit)
        if preemption is not None:
            return after_eviction(preemption)
    possible = possible_cluster(cycle.index, queue, key.shape_id)
    if isinstance(possible, Reason):
        return Wait(possible)
    reason = explain.over_quota(obstacle)
    if is_limit and possible is not None and not quotas.tree.lending_limited:
        usage = quotas.usage_under_limits(queue.id, key.user)
        cycle.quota_refusals[key] = QuotaRefusal(cycle.index.state.queue_revision, usage, possible.id, reason)
    return Wait(reason)


def _lacking(
    cycle: CycleContext,
    bursts: Bursts,
    job: WaitingJob,
    key: ClassKey,
    queue: Queue,
    scheduling_key: SchedulingKey,
    seconds: RunSeconds,
    allowed: list[Size],
    found: SearchResult,
) -> Outcome:
    """Return the outcome for a job that fits nowhere now: preemption, growth of a pool, a burst policy, or a wait."""
    state = cycle.index.state
    is_returned = bool(scheduling_key.avoided) and not found.over and _returned_everywhere(found.verdicts)
    preemption = None if is_returned else _any_preemption(cycle, key, queue, allowed, found)
    if preemption is not None:
        return after_eviction(preemption)
    growth = _grown(cycle, scheduling_key, queue, allowed)
    if growth.choice is not None:
        return growth.choice
    moves = cycle.consolidation.find(job, key, queue, allowed[-1], found.full, _returned_for_room(cycle, job, found))
    if moves is not None:
        return after_eviction(moves)
    burst = bursts.attempt(First(job, key, queue, allowed, found.full))
    if isinstance(burst, BurstStart):
        return burst
    if is_returned:
        verdicts = found.verdicts if burst is None else [*found.verdicts, *burst.verdicts]
        if (burst is None or burst.token is None) and _returned_everywhere(verdicts):
            if job.id in state.returned_for_room:
                return Wait(found.reason(), only_it=True)
            return HoldJob(_all_returned(verdicts))
    request = ReservationRequest(
        job.id,
        job.name,
        key.shape_id,
        allowed[-1],
        accumulates=has_waited_long(state, job, cycle.now),
        not_before=lambda cluster_id, at: cycle.advance.not_before(
            cluster_id, scheduling_key.entitled, at, seconds.latest
        ),
    )
    if cycle.reservations.due:
        cycle.reservations.note_refused(request, _refused_on(cycle, found))
    reservation = cycle.reservations.reserve(request, found.full)
    over = found.over[0] if found.over else growth.over
    if over is not None:
        reason = explain.over_quota(over, found.verdicts)
    else:
        reason = found.reason()
        is_shared = not is_returned
        if is_shared:
            cycle.blocked[scheduling_key, seconds] = reason, found.full
            # How long a job of another user is expected to run, on which it depends what is kept for others, may differ.
            is_shared = not state.run_times or all(one.check is not Check.RESERVED for one in found.verdicts)
        if is_shared and len(allowed) == len(cycle.index.sizes_of(key.shape_id)) == 1 and not key.avoided:
            cycle.blocked_shapes.setdefault(terms_of(cycle, queue), {})[key.shape_id] = reason
    return _wait_or_burst(reason if reservation is None else explain.expected(reason, reservation, state), burst)


def _refused_on(cycle: CycleContext, found: SearchResult) -> Iterator[int]:
    """Return the clusters that lack capacity, and those that have enough but are kept for other jobs."""
    yield from found.full
    kept = {verdict.cluster for verdict in found.verdicts if verdict.check is Check.RESERVED}
    yield from (cluster.id for cluster in cycle.index.clusters if cluster.name in kept)


class _Growth(NamedTuple):
    """The option with grown pools for a job; ``over``: the quota obstacle on some cluster, if no option was found."""

    choice: Choice | None
    over: Obstacle | None = None


_NO_GROWTH = _Growth(None)


def _grown(cycle: CycleContext, scheduling_key: SchedulingKey, queue: Queue, sizes: list[Size]) -> _Growth:
    if not cycle.index.any_pools:
        return _NO_GROWTH
    found = search_growth(cycle, scheduling_key, queue, sizes)
    if isinstance(found, Option):
        return _Growth(Choice(found, [found], ()))
    return _Growth(None, found)


def _wait_or_burst(reason: Reason, burst: BurstStart | BurstRefusal | None) -> BurstStart | Wait:
    """Return the start by a burst policy, or the wait with the reasons of the job and of the policy."""
    if burst is None:
        return Wait(reason)
    if isinstance(burst, BurstStart):
        return burst
    # A job that can run nowhere, and never by a policy, keeps that reason, and its queue does not wait for it.
    token = None if burst.is_for_ever and reason.tier is Tier.CANNOT_RUN else burst.token
    refused = explain.refused(reason, burst.policy, token, burst.sentence, burst.verdicts)
    return Wait(refused, only_it=burst.is_own)


def _any_preemption(
    cycle: CycleContext, key: ClassKey, queue: Queue, allowed: list[Size], found: SearchResult
) -> PreemptionPlan | None:
    """Return the preemption for a class that lacks capacity, or quota on a narrowed flavor."""
    return _preemption(cycle, key, queue, allowed, found.full) or _preemption_for_narrowed_quota(
        cycle, key, queue, allowed, found
    )


def _preemption_for_narrowed_quota(
    cycle: CycleContext, key: ClassKey, queue: Queue, sizes: list[Size], found: SearchResult
) -> PreemptionPlan | None:
    """Return the preemption on clusters with enough free capacity, where quota on a narrowed flavor is the obstacle."""
    if not found.over_on:
        return None
    is_limit = any(one.token is not Token.KEPT_FOR_OTHERS for one in found.over)
    return _preemption(cycle, key, queue, sizes, found.over_on, for_quota=is_limit)


def _preemption(
    cycle: CycleContext,
    key: ClassKey,
    queue: Queue,
    sizes: list[Size],
    clusters: list[int] | None,
    *,
    for_quota: bool = False,
) -> PreemptionPlan | None:
    """Return the preemption for a class that lacks capacity on these clusters or, if ``clusters`` is None, quota."""
    if not cycle.victims.may_help(key, queue, sizes[-1], for_quota=for_quota):
        return None
    access = cycle.index.state.access_of(queue)
    if access.conditions and cycle.start_rules.needs_quiet(access):
        return None
    if clusters is None:
        scheduling_key = SchedulingKey(key.shape_id, len(sizes), access, key.avoided)
        looked_at = cycle.index.looked_at(scheduling_key)
        clusters = [
            cluster.id
            for cluster, ruled_out in looked_at
            if ruled_out is None and cycle.start_rules.refusal(scheduling_key, sizes[-1].members, cluster) is None
        ]
    if cycle.advance:
        # No run is ended for a job that might then use what is reserved for a third job.
        entitled, end = cycle.advance.entitled(queue.id), cycle.now + cycle.index.state.limit_of(key.shape_id, queue.id)
        clusters = [one for one in clusters if cycle.advance.open_groups(one, entitled, end) is None]
    while (found := cycle.victims.find(key, queue, sizes, clusters, for_quota=for_quota)) is not None:
        if not for_quota or not found.victims or _may_start_then(cycle, key, queue, found):
            return found
        clusters = [one for one in clusters if one != found.cluster_id]
    return None


def _may_start_then(cycle: CycleContext, key: ClassKey, queue: Queue, plan: PreemptionPlan) -> bool:
    """Return whether the job may start beside the reservation of its cluster once the victims have ended.

    Runs that are ended for quota end before the job starts. If the job could not start then, they would start again, and end again.
    """
    state = cycle.index.state
    gone = [victim.run for victim in plan.victims if victim.keeps is None]
    ends = state.run_seconds(key).ends(cycle.now)
    roles = roles_by_name(state, key.shape_id)
    return cycle.reservations.let_once_gone(plan.cluster_id, roles, plan.fitted.placement, ends, gone)


def _returned_for_room(cycle: CycleContext, job: WaitingJob, found: SearchResult) -> list[int]:
    """Return the clusters that rule a job out only because they returned it for want of room."""
    state = cycle.index.state
    if job.id not in state.returned_for_room:
        return []
    names = {verdict.cluster for verdict in found.verdicts if verdict.check is Check.COOLING_DOWN}
    return [one for one in state.avoided.get(job.id, ()) if one in state.clusters and state.clusters[one].name in names]


def _returned_everywhere(verdicts: list[Verdict]) -> bool:
    """Return whether every cluster that the job could go to has returned it."""
    ruled_out = {check for check, _ in STATIC} | {Check.NEVER_FITS}
    eligible = [verdict for verdict in verdicts if verdict.check not in ruled_out]
    return bool(eligible) and all(verdict.check is Check.COOLING_DOWN for verdict in eligible)


def _all_returned(verdicts: list[Verdict]) -> str:
    names = [verdict.cluster for verdict in verdicts if verdict.check is Check.COOLING_DOWN]
    return f"every cluster it could go to returned it: {', '.join(names)}"
