"""One cycle: ``decide(engine, now) -> plan``. Order, quota, filter, fit, score, explain.

The pieces are modules of their own; this one only leads a class of jobs through them, turn by turn. An unexpected error ends the
turn of its class, or closes the object that is to blame, and the others are decided on as if it were not there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple, assert_never

from trainmaster.protocol.reasons import Check, Reason, Tier, Token, Verdict
from trainmaster.protocol.states import Order, QueueState
from trainmaster_dispatcher.scheduling.cycle import explain, faults
from trainmaster_dispatcher.scheduling.cycle.burst import BurstQuestion, BurstRefusal, Bursts, BurstStart, First
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import (
    MOST_LACKING,
    MOST_TOLD,
    Choice,
    CycleContext,
    Look,
    PreparedClass,
    QueueTerms,
    look_at_best,
    look_at_each,
    look_at_growth,
    roles_by_name,
)
from trainmaster_dispatcher.scheduling.cycle.elastic import grow
from trainmaster_dispatcher.scheduling.cycle.engine import Engine, QuotaRefusal
from trainmaster_dispatcher.scheduling.cycle.faults import TurnError
from trainmaster_dispatcher.scheduling.cycle.outcomes import (
    HoldJob,
    MakeRoom,
    Outcome,
    StartAfterEviction,
    Wait,
    after_eviction,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, may_repeat
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan, VictimSearch
from trainmaster_dispatcher.scheduling.quotas.fair_share import LONGEST_ROW, FairShareQueue
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.reservations.backfill import Reservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import Option, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.filters import STATIC
from trainmaster_dispatcher.scheduling.selection.scores import SCORES, deciding
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Fault, Hold, Plan, Start, TableLine
from trainmaster_dispatcher.scheduling.state.state import ClassKey, HeldBack, LoadKey, Queue, SchedulerState, WaitingJob

MOST_STARTS = 2000
"""Starts in one plan at most, so that applying it stays a short transaction; the next cycle follows at once."""


_ALWAYS_SHOWN = ("kind", "packing", "money")


def decide(
    engine: Engine, now: float, most_starts: int = MOST_STARTS, asked: list[BurstQuestion] | None = None
) -> Plan:
    """Return the plan for this moment. ``now`` is in seconds since the epoch, as all times of the state.

    The plan takes over from the one before what the engine has carried over. ``asked`` is given what burst policies said of the
    classes that they were asked about.
    """
    state = engine.state
    held = faults.still_held(state, engine.carried.held_back)
    found: list[Fault] = []
    for restarts in range(faults.MOST_RESTARTS):
        told: list[BurstQuestion] = []
        may_go_on = restarts >= faults.FEW_RESTARTS
        try:
            plan = _decide(engine, now, most_starts, told, held, found, may_go_on=may_go_on)
        except TurnError as failed:
            if not (closed := faults.close_faulty(state, now)):
                found.append(faults.hold_back(state, held, failed.key, failed.error, now))
        except Exception:
            if not (closed := faults.close_faulty(state, now)):
                raise
        else:
            if asked is not None:
                asked += told
            break
        # Derived values may be wrong that the error has left half done.
        engine.reset()
        found += closed
    else:
        raise faults.TooManyFaultsError(found)
    if found:
        engine.reset()
    plan.held_back, plan.faults = held, [*found, *plan.faults]
    return plan


def _decide(
    engine: Engine,
    now: float,
    most_starts: int,
    asked: list[BurstQuestion],
    held: dict[ClassKey, HeldBack],
    found: list[Fault],
    *,
    may_go_on: bool,
) -> Plan:
    """The plan without the classes that are held back. Raises TurnError.

    ``may_go_on``: hold a class back at once whose look has ended in an error; nothing was changed by it that counts.
    """
    plan = Plan()
    state = engine.state
    engine.begin(now)
    index, quotas = engine.index, engine.quotas(now)
    turns = FairShareQueue(state, quotas, now)
    blocked: dict[SchedulingKey, tuple[Reason, list[int]]] = {}
    reservations = Reservations(state, now, engine.carried.reservations, index.later)
    victims = VictimSearch(engine.layouts, quotas, now)
    cycle = CycleContext(
        index,
        engine.rankings,
        quotas,
        reservations,
        victims,
        AdvanceReservations(engine.layouts, now),
        engine.carried,
        blocked,
        now,
        engine.quota_refusals,
    )
    bursts = Bursts(cycle)
    _suspend(cycle, plan, most_starts)
    while (turn := turns.next()) is not None:
        if len(plan.starts) >= most_starts:
            plan.is_cut = True
            break
        key, job_id = turn
        queue = state.queues[key.queue_id]
        outcome: Outcome | None = None
        try:
            is_blocked = _passer(cycle, key, queue, plan)
            if is_blocked is not None and turns.pass_by(queue.id, is_blocked):
                continue
            job = state.jobs[job_id]
            waits = held.get(key) if held else None
            is_held = waits is not None and waits.until > now
            outcome = Wait(waits.reason) if waits and is_held else _attempt(cycle, bursts, job, key, queue)
            _carry_out(cycle, bursts, turns, plan, job, key, queue, outcome, most_starts - len(plan.starts) - 1)
            if waits is not None and not is_held:
                del held[key]
        except Exception as error:
            if outcome is not None or not may_go_on:
                raise TurnError(key, error) from error
            found.append(faults.hold_back(state, held, key, error, now))
            plan.reasons[key] = held[key].reason
            turns.block(key)
    plan.bursting, plan.next_look = frozenset(bursts.open), bursts.next_look
    asked += bursts.asked
    if not plan.is_cut:
        plan.grows = grow(cycle, plan)
    plan.faults += bursts.faults
    plan.reservations = {kept.reservation.job_id: kept.reservation for kept in reservations.kept.values()}
    return plan


def _carry_out(
    cycle: CycleContext,
    bursts: Bursts,
    turns: FairShareQueue,
    plan: Plan,
    job: WaitingJob,
    key: ClassKey,
    queue: Queue,
    outcome: Outcome,
    most_more: int,
) -> None:
    """Enter the outcome of a class's turn in the plan, and count what it takes. ``most_more``: starts beside it that still fit in."""
    state = cycle.index.state
    match outcome:
        case Choice(best, top, verdicts):
            _take(cycle, job, best, _limit_of(state, job))
            plan.starts.append(_start(job, best, top, verdicts))
            _start_alike(cycle, turns, plan, key, most_more)
        case BurstStart():
            _go_by_policy(cycle, bursts, plan, job, outcome)
            turns.done(key)
        case MakeRoom(preemption):
            cycle.victims.take(preemption)
            # What they give back is this job's: nobody behind it may use the quota up before it starts.
            cycle.quotas.add(queue.id, preemption.charge)
            plan.stops += _evictions(state, job, queue, preemption)
            plan.reasons[key] = explain.makes_room()
            turns.block(key)
        case StartAfterEviction(preemption):
            cycle.victims.take(preemption)
            cycle.quotas.add(queue.id, preemption.charge)
            _note_start(cycle, job, preemption.cluster_id, preemption.fitted, _limit_of(state, job))
            cycle.index.replace(preemption.cluster_id, cycle.victims.room(preemption.cluster_id))
            plan.starts.append(_start_after(state, job, queue, preemption))
            turns.done(key)
        case HoldJob(message):
            plan.holds.append(Hold(job, message))
            turns.done(key)
        case Wait():
            _leave(turns, plan, queue, job, key, outcome)
        case _:
            assert_never(outcome)


def _leave(turns: FairShareQueue, plan: Plan, queue: Queue, job: WaitingJob, key: ClassKey, wait: Wait) -> None:
    """Leave a job waiting, and with it the equivalent ones; in a queue that keeps its order, all others too."""
    reason = plan.reasons[key] = wait.reason
    if queue.order is Order.STRICT and reason.tier in (Tier.QUOTA, Tier.CAPACITY) and not reason.for_ever:
        plan.reasons |= dict.fromkeys(turns.close(key), explain.behind(queue, job))
    elif wait.only_it:
        turns.done(key)
    else:
        turns.block(key)


def _suspend(cycle: CycleContext, plan: Plan, most: int) -> None:
    """End the runs of suspended queues and of those below them, so many at most; the rest follows in the next cycle."""
    state = cycle.index.state
    suspended = {
        queue_id: above
        for queue_id in state.running
        if (above := next((one for one in state.ancestry(queue_id) if one.state is QueueState.SUSPENDED), None))
    }
    if not suspended:
        return
    runs = (run for run in state.runs.values() if run.queue_id in suspended and not run.is_stopping)
    for run in nsmallest(most, runs, key=lambda run: run.job_id):
        cycle.victims.leave(run)
        why = explain.queue_suspended(suspended[run.queue_id])
        plan.stops.append(Eviction(run.job_id, run.attempt, run.cluster_id, why))


def _start_alike(cycle: CycleContext, turns: FairShareQueue, plan: Plan, key: ClassKey, most: int) -> None:
    """End the turn of a job that starts; with it start equivalent jobs right behind it, as they would one after the other.

    A cluster that takes a job is a still better choice for the next one, as it packs tighter. So they all go where the first one
    goes, as long as they fit and delay nobody that the cluster is kept for, unless quota depends on the place.
    """
    state, quotas, start = cycle.index.state, cycle.quotas, plan.starts[-1]
    sizes = cycle.index.sizes_of(key.shape_id)
    size, charge = sizes[0], sizes[0].charge
    role = may_repeat(state.shapes[key.shape_id], size) if len(sizes) == 1 else None
    most = min(most, LONGEST_ROW - 1)
    if (
        role is None
        or not most
        or state.lines.any_narrowed
        or start.pools
        or state.weights_of(key).spread
        or not turns.has_more(key)
        or cycle.advance.is_on(start.cluster_id)
    ):
        turns.done(key)
        return

    def allowed() -> int:
        within = quotas.most_alike(key.queue_id, charge, most)
        return turns.lead(key.queue_id, charge, within) if within else 0

    job_ids = turns.row(key, allowed)
    if not job_ids:
        turns.end_row(key, 0)
        return
    ends_at = cycle.now + state.limit_of(key.shape_id, key.queue_id)
    kept, roles = cycle.reservations.kept.get(start.cluster_id), {role.name: role}
    gangs, fitted = cycle.index.take_many(
        start.cluster_id,
        role,
        size.total,
        len(job_ids),
        lambda fitted: (
            cycle.index.takes_alike(key.shape_id, start.cluster_id, start.placement, fitted.placement)
            and (kept is None or kept.lets(roles, fitted.placement, ends_at))
        ),
    )
    if fitted is not None:
        if kept is not None:
            kept.take(roles, fitted.placement, ends_at)
        quotas.add(key.queue_id, {line: amount * len(gangs) for line, amount in charge.items()}, len(gangs))
        by_group: dict[str, dict[str, dict[str, int]]] = {}
        for job_id, gang in zip(job_ids, gangs, strict=False):
            if size.total == 1:
                (group,) = gang
                placement = by_group.get(group)
                if placement is None:
                    placement = by_group[group] = {group: {role.name: 1}}
            else:
                placement = {group: {role.name: many} for group, many in gang.items()}
            plan.starts.append(
                Start(state.jobs[job_id], start.cluster_id, start.sizes, placement, start.why, start.table)
            )
        load = {
            LoadKey(group, key.shape_id, name): many
            for group, members in fitted.placement.items()
            for name, many in members.items()
        }
        _note_load(cycle, start.cluster_id, load, ends_at)
    turns.end_row(key, len(gangs))


def _passer(cycle: CycleContext, first: ClassKey, queue: Queue, plan: Plan) -> Callable[[ClassKey], bool] | None:
    """What tells of a class of this queue that it is blocked as equivalent jobs were before it, and notes the reason.

    ``first``: the class that has its turn. It holds until something starts or is ended. None where quota, the queue's order or its
    state may say something else first.
    """
    if cycle.quotas.tree.limits(queue.id):
        return _quota_passer(cycle, queue, plan) if first in cycle.quota_refusals else None
    if not cycle.blocked:
        return None
    if queue.id not in cycle.passed:
        cycle.passed[queue.id] = _passed_in(cycle, queue)
    blocked = cycle.passed[queue.id]
    helpless = cycle.victims.helpless(queue)
    if blocked is None or helpless is None:
        return None
    sizes_of, reasons, reason_of = cycle.index.sizes_of, plan.reasons, blocked.get
    by_class: dict[int, bool | None] = {}

    def passer(key: ClassKey) -> bool:
        reason = reason_of(key.shape_id)
        if reason is None or key.avoided:
            return False
        class_id = key.class_id
        if class_id not in by_class:
            by_class[class_id] = helpless(class_id, None)
        is_helpless = by_class[class_id]
        if is_helpless or (is_helpless is None and helpless(class_id, sizes_of(key.shape_id)[-1])):
            reasons[key] = reason
            return True
        return False

    return passer


def _quota_passer(cycle: CycleContext, queue: Queue, plan: Plan) -> Callable[[ClassKey], bool] | None:
    """Return what tells of a class of this queue that quota refuses it as it did in an earlier cycle, and notes the reason.

    It holds until something starts or is ended. None where something else may be said of its classes, or more than quota decides.
    """
    state, quotas = cycle.index.state, cycle.quotas
    if (
        queue.order is Order.STRICT
        or quotas.tree.keepers
        or state.lines.any_narrowed
        or _closed(cycle, queue) != ("", None)
    ):
        return None
    helpless = cycle.victims.helpless_for_quota(queue)
    if helpless is None:
        return None
    usage, revision, known = quotas.usage_under_limits(queue.id), state.queue_revision, cycle.quota_refusals
    reasons, classes, sizes_of = plan.reasons, state.classes, cycle.index.sizes_of
    by_class: dict[int, bool | None] = {}

    def passer(key: ClassKey) -> bool:
        refusal = known.get(key)
        if refusal is None or refusal.usage != usage or refusal.queue_revision != revision:
            return False
        class_id = key.class_id
        if class_id not in by_class:
            by_class[class_id] = False if classes[class_id].fault else helpless(class_id, None)
        is_helpless = by_class[class_id]
        if is_helpless or (is_helpless is None and helpless(class_id, sizes_of(key.shape_id)[-1])):
            reasons[key] = refusal.reason
            return True
        return False

    return passer


def _passed_in(cycle: CycleContext, queue: Queue) -> dict[int, Reason] | None:
    """Why shapes are blocked, by shape, where that holds for all jobs of a queue; None where something else may come first."""
    state, tree = cycle.index.state, cycle.quotas.tree
    if (
        queue.order is Order.STRICT
        or tree.limits(queue.id)
        or tree.keepers
        or state.lines.any_narrowed
        or state.policies_of(queue.id)
        or not all(above.state.starts_jobs for above in state.ancestry(queue.id))
    ):
        return None
    return cycle.blocked_shapes.setdefault(_terms_of(cycle, queue), {})


def _terms_of(cycle: CycleContext, queue: Queue) -> QueueTerms:
    limit = cycle.index.state.limit_of(None, queue.id)
    return QueueTerms(cycle.index.state.access_of(queue), limit, cycle.advance.entitled(queue.id))


def _closed(cycle: CycleContext, queue: Queue) -> tuple[str, Queue | None]:
    """Return the fault of the nearest queue that cannot be used, and the nearest one that starts no jobs."""
    found = cycle.closed_queues.get(queue.id)
    if found is None:
        ancestry = cycle.index.state.ancestry(queue.id)
        fault = next((above.fault for above in ancestry if above.fault), "")
        closed = next((above for above in ancestry if not above.state.starts_jobs), None)
        found = cycle.closed_queues[queue.id] = fault, closed
    return found


def _prepare(cycle: CycleContext, key: ClassKey, queue: Queue) -> PreparedClass:
    known = cycle.prepared.get((queue.id, key.shape_id))
    if known is None:
        state = cycle.index.state
        queue_fault, closed = _closed(cycle, queue)
        if fault := state.shapes[key.shape_id].fault or queue_fault:
            found = cycle.prepared[queue.id, key.shape_id] = PreparedClass([], 0.0, explain.unusable(fault))
            return found
        sizes = cycle.index.sizes_of(key.shape_id)
        for_ever = cycle.quotas.never(queue.id, sizes[-1].charge)
        stops = None
        if closed is not None:
            stops = explain.queue_closed(closed)
        elif for_ever is not None:
            stops = explain.over_quota(for_ever, for_ever=True)
        known = cycle.prepared[queue.id, key.shape_id] = PreparedClass(
            sizes, state.limit_of(key.shape_id, queue.id), stops
        )
    return known


def _attempt(cycle: CycleContext, bursts: Bursts, job: WaitingJob, key: ClassKey, queue: Queue) -> Outcome:
    """Return what comes of the first job of a class."""
    state, quotas = cycle.index.state, cycle.quotas
    prepared = _prepare(cycle, key, queue)
    if prepared.stops is not None:
        return Wait(prepared.stops)
    if fault := state.classes[key.class_id].fault:
        return Wait(explain.unusable(fault))
    allowed = prepared.sizes
    obstacle = quotas.obstacle(queue.id, allowed[-1].charge)
    if obstacle is not None:
        is_limit = obstacle.token is not Token.KEPT_FOR_OTHERS
        exchange = _exchange(cycle, key, queue, allowed, None, for_quota=is_limit)
        if exchange is not None:
            return after_eviction(exchange)
        reason = explain.over_quota(obstacle)
        if is_limit and not quotas.tree.keepers:
            usage = quotas.usage_under_limits(queue.id)
            cycle.quota_refusals[key] = QuotaRefusal(state.queue_revision, usage, reason)
        return Wait(reason)
    if len(allowed) > 1:
        allowed = [size for size in allowed if quotas.obstacle(queue.id, size.charge) is None]
    entitled = cycle.advance.entitled(queue.id)
    weights = state.weights_of(key)
    scheduling_key = SchedulingKey(
        key.shape_id, len(allowed), state.access_of(queue), key.avoided, prepared.limit, entitled, weights
    )
    if scheduling_key in cycle.blocked:
        # Whether runs may be ended for it depends on its queue and class.
        reason, full = cycle.blocked[scheduling_key]
        exchange = _exchange(cycle, key, queue, allowed, full)
        if exchange is not None:
            return after_eviction(exchange)
        grown = _grown(cycle, scheduling_key, queue, allowed).choice
        return grown or _told(reason, bursts.attempt(First(job, key, queue, allowed, full)))
    look = look_at_best(cycle, scheduling_key, allowed)
    if isinstance(look, Choice):
        return look
    if look is None:
        look = look_at_each(cycle, scheduling_key, job, queue, allowed)
    if look.options:
        top = nsmallest(
            MOST_TOLD + 1, look.options, key=lambda one: (-one.total, one.cluster.name, one.product or ("", ""))
        )
        return Choice(top[0], top, look.verdicts)
    return _lacking(cycle, bursts, job, key, queue, scheduling_key, allowed, look)


def _lacking(
    cycle: CycleContext,
    bursts: Bursts,
    job: WaitingJob,
    key: ClassKey,
    queue: Queue,
    scheduling_key: SchedulingKey,
    allowed: list[Size],
    look: Look,
) -> Outcome:
    """Return what becomes of a job that fits nowhere now: others end for it, a policy lets it go, or it waits."""
    state = cycle.index.state
    is_returned = bool(scheduling_key.avoided) and not look.over and _returned_everywhere(look.verdicts)
    exchange = None
    if not is_returned:
        exchange = _exchange(cycle, key, queue, allowed, look.full) or _exchange_for_narrowed(
            cycle, key, queue, allowed, look
        )
    if exchange is not None:
        return after_eviction(exchange)
    growth = _grown(cycle, scheduling_key, queue, allowed)
    if growth.choice is not None:
        return growth.choice
    burst = bursts.attempt(First(job, key, queue, allowed, look.full))
    if isinstance(burst, BurstStart):
        return burst
    if is_returned:
        all_told = look.verdicts if burst is None else [*look.verdicts, *burst.verdicts]
        if (burst is None or burst.token is None) and _returned_everywhere(all_told):
            return HoldJob(_all_returned(all_told))
    longest = state.classes[key.class_id].longest_wait
    reservation = cycle.reservations.reserve(
        job.id,
        job.name,
        key.shape_id,
        allowed[-1],
        look.full,
        accumulates=longest is not None and cycle.now - job.submitted_at >= longest,
        not_before=lambda cluster_id, at: cycle.advance.not_before(
            cluster_id, scheduling_key.entitled, at, scheduling_key.limit
        ),
    )
    over = look.over[0] if look.over else growth.over
    if over is not None:
        reason = explain.over_quota(over, look.verdicts)
    else:
        reason = look.reason()
        is_shared = not is_returned
        if is_shared:
            cycle.blocked[scheduling_key] = reason, look.full
        if is_shared and len(allowed) == len(cycle.index.sizes_of(key.shape_id)) == 1 and not key.avoided:
            cycle.blocked_shapes.setdefault(_terms_of(cycle, queue), {})[key.shape_id] = reason
    return _told(reason if reservation is None else explain.expected(reason, reservation, state), burst)


class _Growth(NamedTuple):
    """Where pools grow for a job; ``over``: nowhere, and on some cluster because of this quota."""

    choice: Choice | None
    over: Obstacle | None = None


_NO_GROWTH = _Growth(None)


def _grown(cycle: CycleContext, scheduling_key: SchedulingKey, queue: Queue, sizes: list[Size]) -> _Growth:
    if not cycle.index.any_pools:
        return _NO_GROWTH
    found = look_at_growth(cycle, scheduling_key, queue, sizes)
    if isinstance(found, Option):
        return _Growth(Choice(found, [found], ()))
    return _Growth(None, found)


def _told(reason: Reason, burst: BurstStart | BurstRefusal | None) -> BurstStart | Wait:
    """Return why a job waits, and why it does not go to a public cluster; or that it does."""
    if burst is None:
        return Wait(reason)
    if isinstance(burst, BurstStart):
        return burst
    # What can run nowhere, and would never go by a policy, is told as such, and no queue waits for it.
    token = None if burst.is_for_ever and reason.tier is Tier.CANNOT_RUN else burst.token
    told = explain.refused(reason, burst.policy, token, burst.sentence, burst.verdicts)
    return Wait(told, only_it=burst.is_own)


def _exchange_for_narrowed(
    cycle: CycleContext, key: ClassKey, queue: Queue, sizes: list[Size], look: Look
) -> PreemptionPlan | None:
    """Runs that may be ended on clusters with room, where quota on a narrowed line is in the way."""
    if not look.over_on:
        return None
    is_limit = any(one.token is not Token.KEPT_FOR_OTHERS for one in look.over)
    return _exchange(cycle, key, queue, sizes, look.over_on, for_quota=is_limit)


def _exchange(
    cycle: CycleContext,
    key: ClassKey,
    queue: Queue,
    sizes: list[Size],
    clusters: list[int] | None,
    *,
    for_quota: bool = False,
) -> PreemptionPlan | None:
    """Runs that may be ended for a class that lacks room on these clusters or, where none are named, quota."""
    if not cycle.victims.may_help(key, queue, sizes[-1], for_quota=for_quota):
        return None
    if clusters is None:
        scheduling_key = SchedulingKey(key.shape_id, len(sizes), cycle.index.state.access_of(queue), key.avoided, 0.0)
        looked_at = cycle.index.looked_at(scheduling_key)
        clusters = [cluster.id for cluster, ruled_out in looked_at if ruled_out is None]
    if cycle.advance:
        # Nobody's run is ended for a job that might then use what is kept for a third one.
        entitled, end = cycle.advance.entitled(queue.id), cycle.now + cycle.index.state.limit_of(key.shape_id, queue.id)
        clusters = [one for one in clusters if cycle.advance.open_groups(one, entitled, end) is None]
    while (found := cycle.victims.find(key, queue, sizes, clusters, for_quota=for_quota)) is not None:
        if not for_quota or not found.victims or _may_start_then(cycle, key, queue, found):
            return found
        clusters = [one for one in clusters if one != found.cluster_id]
    return None


def _may_start_then(cycle: CycleContext, key: ClassKey, queue: Queue, plan: PreemptionPlan) -> bool:
    """Return whether the job may start beside what its cluster is kept for, once the victims have gone.

    Runs that end for quota end before the job starts. If it could not start then, they would start again, and end again.
    """
    state = cycle.index.state
    gone = [victim.run for victim in plan.victims if victim.keeps is None]
    ends_at = cycle.now + state.limit_of(key.shape_id, queue.id)
    roles = roles_by_name(state, key.shape_id)
    return cycle.reservations.let_once_gone(plan.cluster_id, roles, plan.fitted.placement, ends_at, gone)


def _evictions(state: SchedulerState, job: WaitingJob, queue: Queue, exchange: PreemptionPlan) -> list[Eviction]:
    ended = {victim.run.job_id for victim in exchange.victims if victim.keeps is None}
    out = []
    for victim in exchange.victims:
        run = victim.run
        if victim.keeps is None:
            why = explain.evicted(state, run, job, queue, by_class=victim.by_class)
            out.append(Eviction(run.job_id, run.attempt, exchange.cluster_id, why))
        elif run.job_id not in ended:
            why = explain.gives_back(state, run, victim.keeps, job)
            out.append(Eviction(run.job_id, run.attempt, exchange.cluster_id, why, victim.keeps))
    return out


def _start_after(state: SchedulerState, job: WaitingJob, queue: Queue, exchange: PreemptionPlan) -> Start:
    """The start of a job for which runs end."""
    cluster = state.clusters[exchange.cluster_id]
    evicts = tuple(_evictions(state, job, queue, exchange))
    why = f"{cluster.name}, where {explain.give_way(evicts)} for it"
    ended = next((one for one in evicts if one.sizes is None), None)
    if ended is not None:
        why += f": {ended.why}"
    return Start(job, cluster.id, exchange.size.members, exchange.fitted.placement, why, (), exchange.product, evicts)


def _take(cycle: CycleContext, job: WaitingJob, option: Option, limit: float) -> None:
    """Count a start; ``limit``: seconds that it is counted on to run."""
    cycle.quotas.add(job.queue_id, option.charge)
    if option.pools:
        cycle.index.take_grown(job.shape_id, option)
        limit += option.timeout
    else:
        cycle.index.take(option)
    _note_start(cycle, job, option.cluster.id, option.fitted, limit)


def _limit_of(state: SchedulerState, job: WaitingJob) -> float:
    return state.limit_of(job.shape_id, job.queue_id)


def _note_start(cycle: CycleContext, job: WaitingJob, cluster_id: int, fitted: Fitted, limit: float) -> None:
    """``limit``: seconds that it is counted on to run."""
    state = cycle.index.state
    ends_at = cycle.now + limit
    kept, roles = cycle.reservations.kept.get(cluster_id), roles_by_name(state, job.shape_id)
    if kept is not None:
        kept.take(roles, fitted.placement, ends_at)
    if cycle.advance:
        entitled = cycle.advance.entitled(job.queue_id)
        cycle.advance.note_start(cluster_id, entitled, roles, fitted.placement, ends_at)
    load = {
        LoadKey(group, job.shape_id, role): count
        for group, roles in fitted.placement.items()
        for role, count in roles.items()
    }
    _note_load(cycle, cluster_id, load, ends_at)


def _note_load(cycle: CycleContext, cluster_id: int, load: Mapping[LoadKey, int], ends_at: float) -> None:
    cycle.reservations.note_start(cluster_id, load.items(), ends_at)
    cycle.victims.note_start(cluster_id, load)


def _start(job: WaitingJob, best: Option, top: list[Option], verdicts: Collection[Verdict]) -> Start:
    """``top``: the best options, the best one first."""
    table = _table(top[:MOST_TOLD])
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
    )


def _go_by_policy(cycle: CycleContext, bursts: Bursts, plan: Plan, job: WaitingJob, burst: BurstStart) -> None:
    _take(cycle, job, burst.option, burst.granted.bounds.total)
    plan.starts.append(_start_by_policy(job, burst, cycle.now))
    bursts.note_start(job, burst)


def _start_by_policy(job: WaitingJob, burst: BurstStart, now: float) -> Start:
    option, granted = burst.option, burst.granted
    table = _table([option, *burst.others][:MOST_TOLD])
    waited = explain.span(max(0.0, now - job.submitted_at))
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
    )


def _table(options: Sequence[Option]) -> tuple[TableLine, ...]:
    """The table that is kept with a decision, a line for each candidate: scores that count and are not as good as can be on all."""
    shown = [
        name
        for name in SCORES
        if name in _ALWAYS_SHOWN
        or any(option.parts[name] < 1.0 and getattr(option.weights, name) for option in options)
    ]
    return tuple(
        {
            "cluster": option.cluster.name,
            "score": option.total,
            **{name: option.parts[name] for name in shown},
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
    words = {
        "kind": f"{best.cluster.kind} clusters are preferred to {second.cluster.kind} ones",
        "packing": "it packs tighter there",
        "money": f"it is expected to cost {best.cost:.2f} there and {second.cost:.2f} on the other",
        "wait": "it is expected to start sooner there",
        "data": "more of its data is there",
        "reliability": "fewer runs were returned or lost there lately",
        "affinity": "the job prefers it",
        "topology": "it is spread over fewer domains there",
        "spread": "fewer of the runs of its queue are there",
        "sparing": "the devices that it takes there are more common",
    }
    name = deciding(best.parts, second.parts, best.weights)
    return f"{best.cluster.name} before {second.cluster.name}: {words[name]}"


def _returned_everywhere(verdicts: list[Verdict]) -> bool:
    """Whether every cluster that the job could go to has returned it."""
    ruled_out = {check for check, _ in STATIC} | {Check.NEVER_FITS}
    eligible = [verdict for verdict in verdicts if verdict.check not in ruled_out]
    return bool(eligible) and all(verdict.check is Check.COOLING_DOWN for verdict in eligible)


def _all_returned(verdicts: list[Verdict]) -> str:
    names = [verdict.cluster for verdict in verdicts if verdict.check is Check.COOLING_DOWN]
    return f"every cluster it could go to returned it: {', '.join(names)}"
