"""The scheduling cycle: ``decide(engine, now) -> plan``. Order, quota, filter, fit, score, explain.

The steps are modules of their own; this one only takes the classes of jobs through them, turn by turn. An unexpected error ends the
turn of its class, or closes the object that is to blame, and the others are decided on as if that object did not exist.
"""

from heapq import nsmallest
from typing import assert_never

from trainmaster.protocol.reasons import Reason, Tier
from trainmaster.protocol.states import Order, QueueState
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.scheduling.cycle import explain, faults
from trainmaster_dispatcher.scheduling.cycle.attempt import attempt
from trainmaster_dispatcher.scheduling.cycle.burst import BurstQuestion, Bursts, BurstStart
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import Choice
from trainmaster_dispatcher.scheduling.cycle.consolidation import Consolidation
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext
from trainmaster_dispatcher.scheduling.cycle.elastic import grow
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.cycle.faults import TurnError
from trainmaster_dispatcher.scheduling.cycle.outcomes import (
    HoldJob,
    MakeRoom,
    Outcome,
    StartAfterEviction,
    Wait,
)
from trainmaster_dispatcher.scheduling.cycle.refusal_lookup import refusal_lookup
from trainmaster_dispatcher.scheduling.cycle.start_accounting import (
    note_start,
    start_burst,
    start_equivalent,
    take,
)
from trainmaster_dispatcher.scheduling.cycle.start_rules import StartRules
from trainmaster_dispatcher.scheduling.cycle.starts import evictions_of, start_after_eviction, start_of
from trainmaster_dispatcher.scheduling.preemption.victims import VictimSearch
from trainmaster_dispatcher.scheduling.quotas.fair_share import FairShareQueue
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.reservations.backfill import Reservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, HeldBack, WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Fault, Hold, Plan

MOST_STARTS = 2000
"""The largest number of starts in one plan, so that its transaction stays short; the next cycle follows at once."""


def decide(
    engine: Engine, now: float, most_starts: int = MOST_STARTS, burst_questions: list[BurstQuestion] | None = None
) -> Plan:
    """Return the plan at ``now``, in seconds since the epoch, as all times of the state.

    The plan takes over the values that the engine has carried over from the previous one. ``burst_questions`` gets the outcome of each
    burst policy for each class that it was tried for.
    """
    state = engine.state
    held = faults.still_held(state, engine.carried.held_back)
    found: list[Fault] = []
    for restarts in range(faults.MOST_RESTARTS):
        questions: list[BurstQuestion] = []
        may_go_on = restarts >= faults.FEW_RESTARTS
        try:
            plan = _decide(engine, now, most_starts, questions, held, found, may_go_on=may_go_on)
        except TurnError as failed:
            if not (closed := faults.close_faulty(state, now)):
                found.append(faults.hold_back(state, held, failed.key, failed.error, now))
        except Exception:
            if not (closed := faults.close_faulty(state, now)):
                raise
        else:
            if burst_questions is not None:
                burst_questions += questions
            break
        # The error may have left derived values half updated.
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
    burst_questions: list[BurstQuestion],
    held: dict[ClassKey, HeldBack],
    found: list[Fault],
    *,
    may_go_on: bool,
) -> Plan:
    """Return the plan without the classes that are held back. Raises TurnError.

    ``may_go_on``: hold a class back at once whose attempt has ended in an error; it has changed nothing that counts.
    """
    plan = Plan()
    state = engine.state
    engine.begin(now)
    index, quotas = engine.index, engine.quotas(now)
    turns = FairShareQueue(state, quotas, now)
    blocked: dict[tuple[SchedulingKey, RunSeconds], tuple[Reason, list[int]]] = {}
    reservations = Reservations(state, now, engine.carried.reservations, index.later, index.sizes_of)
    victims = VictimSearch(engine.layouts, quotas, now)
    advance = AdvanceReservations(engine.layouts, now)
    carried = engine.carried
    moved, searched = list(carried.moved), dict(carried.searched_moves)
    cycle = CycleContext(
        index,
        engine.rankings,
        quotas,
        reservations,
        victims,
        advance,
        carried,
        blocked,
        now,
        Consolidation(index, victims, reservations, advance, now, moved, searched),
        StartRules(index, now, carried.quiet),
        engine.quota_refusals,
    )
    bursts = Bursts(cycle)
    cycle.consolidation.keep_homes()
    _suspend(cycle, plan, most_starts)
    while (turn := turns.next()) is not None:
        if len(plan.starts) >= most_starts:
            plan.is_cut = True
            break
        key, job_id = turn
        queue = state.queues[key.queue_id]
        outcome: Outcome | None = None
        try:
            is_blocked = refusal_lookup(cycle, key, queue, plan)
            if is_blocked is not None and turns.pass_by(queue.id, is_blocked):
                continue
            job = state.jobs[job_id]
            waits = held.get(key) if held else None
            is_held = waits is not None and waits.until > now
            outcome = Wait(waits.reason) if waits and is_held else attempt(cycle, bursts, job, key, queue)
            _carry_out(cycle, bursts, turns, plan, job, key, queue, outcome, most_starts - len(plan.starts) - 1)
            reservations.pass_on()
            if waits is not None and not is_held:
                del held[key]
        except Exception as error:
            if outcome is not None or not may_go_on:
                raise TurnError(key, error) from error
            found.append(faults.hold_back(state, held, key, error, now))
            plan.reasons[key] = held[key].reason
            turns.block(key)
    plan.bursting, plan.quiet = frozenset(bursts.open), cycle.start_rules.quiet
    plan.next_look = min(bursts.next_look, cycle.start_rules.next_opening)
    burst_questions += bursts.questions
    if not plan.is_cut:
        plan.grows = grow(cycle, plan)
    plan.faults += bursts.faults
    plan.moved, plan.searched_moves = tuple(cycle.consolidation.moved), cycle.consolidation.searched
    plan.needs_nodes = frozenset(cycle.consolidation.needs_nodes)
    plan.reservations = reservations.carried(is_cut=plan.is_cut)
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
    """Enter the outcome of a class's turn in the plan, and count what it takes. ``most_more``: the most further starts."""
    state = cycle.index.state
    match outcome:
        case Choice(best, top, verdicts):
            seconds = state.run_seconds(key)
            take(cycle, job, best, seconds)
            plan.starts.append(start_of(job, state.shapes[job.shape_id], best, top, verdicts, seconds.predicted))
            start_equivalent(cycle, turns, plan, key, most_more)
        case Wait():
            _leave(turns, plan, queue, job, key, outcome)
        case BurstStart():
            start_burst(cycle, bursts, plan, job, outcome)
            turns.done(key)
        case MakeRoom(preemption):
            cycle.victims.take(preemption)
            # The quota that they give back is for this job: no job behind it may use the quota before this job starts.
            cycle.quotas.add(queue.id, preemption.charge, user=job.user)
            plan.stops += evictions_of(state, job, queue, preemption)
            plan.reasons[key] = explain.makes_room()
            turns.block(key)
        case StartAfterEviction(preemption):
            cycle.victims.take(preemption)
            cycle.quotas.add(queue.id, preemption.charge, user=job.user)
            seconds = state.run_seconds(key)
            note_start(cycle, job, preemption.cluster_id, preemption.fitted, seconds)
            cycle.index.replace(preemption.cluster_id, cycle.victims.free_capacity(preemption.cluster_id))
            cycle.consolidation.note(preemption, job)
            plan.starts.append(start_after_eviction(state, job, queue, preemption, seconds.predicted))
            turns.done(key)
        case HoldJob(message):
            plan.holds.append(Hold(job, message))
            turns.done(key)
        case _:
            assert_never(outcome)


def _leave(turns: FairShareQueue, plan: Plan, queue: Queue, job: WaitingJob, key: ClassKey, wait: Wait) -> None:
    """Leave a job waiting, and the equivalent ones with it; in a queue that keeps its order, all other jobs too."""
    reason = plan.reasons[key] = wait.reason
    if queue.order is Order.STRICT and reason.tier in (Tier.QUOTA, Tier.CAPACITY) and not reason.for_ever:
        plan.reasons |= dict.fromkeys(turns.close(key), explain.behind(queue, job))
    elif wait.only_it:
        turns.done(key)
    else:
        turns.block(key, is_kept_for=reason.tier is Tier.CAPACITY)


def _suspend(cycle: CycleContext, plan: Plan, most: int) -> None:
    """End at most ``most`` runs of suspended queues and of the queues below them; the next cycle ends the rest."""
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
