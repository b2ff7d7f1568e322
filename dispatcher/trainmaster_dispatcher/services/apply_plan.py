"""Applying a plan to the store, in one transaction of the leader; and the leader's chores."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from trainmaster.protocol.agent import run_digest
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.reasons import Reason, Token
from trainmaster.protocol.states import JobState, StopCause
from trainmaster_dispatcher.containment import Part, change_jobs, contained, is_of_the_store, isolate
from trainmaster_dispatcher.domain import job_machine, run_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.queries.queue_position import quotas_of
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth, Hold, Plan, Start
from trainmaster_dispatcher.scheduling.state.usage_decay import DecayedUsage
from trainmaster_dispatcher.scheduling.state.writes import RunStart, Writes, victims_of, writes_of
from trainmaster_dispatcher.services import bursting
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Applied, ClassReason, Decision, Follower, Unwritten
from trainmaster_dispatcher.services.resize_orders import may_grow, resizing
from trainmaster_dispatcher.services.stop_orders import stop_seconds
from trainmaster_dispatcher.store import bursts, runs, scheduling, tenants
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import Transaction, to_epoch

log = logging.getLogger(__name__)


class NotLeaderError(TrainmasterError):
    """Another scheduler is the leader now; nothing was applied."""


async def apply_plan(
    stores: Stores,
    token: int,
    plan: Plan,
    reasons: dict[ClassKey, Reason],
    cycle: int,
    waited: Mapping[int, Reason] | None = None,
    factors: Mapping[int, Decimal] | None = None,
) -> Applied:
    """Store a plan and return what of the plan was applied. ``waited``: the last reasons to wait of the jobs that start now.
    ``factors``: by these jobs, what their cost is multiplied by for their charge; where there is none, 1.

    The plan is one transaction, unless a part of it cannot be written: then there are several, and each part that cannot be written is
    left out. A decision whose job has changed since is dropped.

    Raises NotLeaderError when the token is no longer the leader's; then nothing, or nothing more, was applied.
    """
    try:
        return await _apply(stores, token, plan, reasons, cycle, waited, factors)
    except NotLeaderError:
        raise
    except Exception as error:
        if is_of_the_store(error):
            raise
        log.warning("a plan could not be written as a whole: %s; its parts are written apart", error)

    async def write(parts: Sequence[Decision]) -> Applied:
        return await _apply(stores, token, _part_of(plan, parts), _told_in(parts), cycle, waited, factors)

    every: list[Decision] = [*sorted(plan.starts, key=lambda start: start.cluster_id), *plan.holds]
    every += [*plan.stops, *plan.grows, *(ClassReason(key, reason) for key, reason in reasons.items())]
    done, failed = await isolate(every, write, (NotLeaderError,))
    applied = _together(done, tuple(Unwritten(*one) for one in failed))
    instead = {one.item.key: explain.internal_error(one.error) for one in failed if isinstance(one.item, ClassReason)}
    if instead:
        with contained(Part.REASON, f"{len(instead)} classes"):
            await _apply(stores, token, Plan(), instead, cycle, None, None)
    return applied


def _part_of(plan: Plan, parts: Sequence[Decision]) -> Plan:
    """Return the plan with these decisions only."""
    return replace(
        plan,
        starts=[one for one in parts if isinstance(one, Start)],
        holds=[one for one in parts if isinstance(one, Hold)],
        stops=[one for one in parts if isinstance(one, Eviction)],
        grows=[one for one in parts if isinstance(one, Growth)],
    )


def _told_in(parts: Sequence[Decision]) -> dict[ClassKey, Reason]:
    return {one.key: one.reason for one in parts if isinstance(one, ClassReason)}


def _together(done: Sequence[Applied], unwritten: tuple[Unwritten, ...]) -> Applied:
    """Return the merged outcome of several parts of a plan."""
    return Applied(
        {job for one in done for job in one.jobs},
        {job for one in done for job in one.ending},
        max((one.at for one in done), default=0.0),
        tuple(shrunk for one in done for shrunk in one.shrunk),
        tuple(growth for one in done for growth in one.grown),
        unwritten,
        {job: attempt for one in done for job, attempt in one.traced.items()},
    )


async def _apply(
    stores: Stores,
    token: int,
    plan: Plan,
    reasons: Mapping[ClassKey, Reason],
    cycle: int,
    waited: Mapping[int, Reason] | None,
    factors: Mapping[int, Decimal] | None,
) -> Applied:
    """Store a plan in one transaction, all or nothing but for decisions whose jobs have changed since."""
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            raise NotLeaderError("another scheduler leads now")
        holding = await _guard(tx, plan)
        writes = writes_of(
            holding.plan,
            {key: record.job for key, record in holding.jobs.items()},
            {key: record.sizes for key, record in holding.runs.items()},
            cycle=cycle,
            waited=waited,
            stop_seconds=await _stop_seconds(tx, holding),
        )
        await _write(tx, holding, writes, reasons, cycle, factors or {})
        at = await to_epoch(tx)
    traced = {} if stores.traces is None else _traced(holding, writes)
    ending = {one.job_id for one in writes.stops}
    applied = Applied({job.id for job in holding.plan.jobs}, ending, at, writes.shrinks, writes.grows, traced=traced)
    if not applied.is_nothing:
        resized = [*(one.job_id for one in writes.shrinks), *(one.job_id for one in writes.grows)]
        stores.jobs_changed([*applied.jobs, *applied.ending, *resized], writes.clusters)
    return applied


def _traced(holding: "_Holding", writes: Writes) -> dict[int, int]:
    """Return the attempts that begin, of jobs that belong to a trace."""
    return {one.start.job.id: one.attempt for one in writes.starts if holding.jobs[one.start.job.id].trace is not None}


@dataclass(frozen=True, slots=True)
class _Holding:
    """The decisions of a plan that are still valid, and the locked rows of the jobs and live runs that they name."""

    plan: Plan
    jobs: Mapping[int, job_store.JobRecord]
    runs: Mapping[int, runs.RunRecord]


async def _guard(tx: Transaction, plan: Plan) -> _Holding:
    """Lock what a plan changes, and leave out decisions that are outdated. A start stays valid only with all its victims."""
    victims = victims_of(plan)
    touched = [*(one.job_id for one in victims), *(one.job_id for one in plan.grows)]
    wanted = [*(job.id for job in plan.jobs), *touched]
    records = await job_store.lock(tx, wanted) if wanted else {}
    open_clusters = {
        cluster.id
        for cluster in await tenants.clusters_by_id(tx, {start.cluster_id for start in plan.starts})
        if not cluster.row.cordoned
    }
    policy_ids = sorted({start.granted.policy_id for start in plan.starts if start.granted is not None})
    policies = await bursts.revisions(tx, policy_ids)
    live = await runs.lock_live(tx, touched) if touched else {}

    def waits(job: WaitingJob) -> bool:
        record = records.get(job.id)
        return record is not None and record.version == job.version and record.job.state is JobState.QUEUED

    holding = replace(
        plan,
        starts=[
            start
            for start in plan.starts
            if waits(start.job)
            and start.cluster_id in open_clusters
            and _is_granted(start, policies)
            and all(_may_end(one, live) for one in start.evicts)
        ],
        holds=[hold for hold in plan.holds if waits(hold.job)],
        stops=[one for one in plan.stops if _may_end(one, live)],
        grows=[one for one in plan.grows if may_grow(one, live.get(one.job_id))],
    )
    return _Holding(holding, records, live)


async def _write(
    tx: Transaction,
    holding: _Holding,
    writes: Writes,
    reasons: Mapping[ClassKey, Reason],
    cycle: int,
    factors: Mapping[int, Decimal],
) -> None:
    """Store what follows from a plan."""
    jobs, live = holding.jobs, holding.runs
    await job_store.write(
        tx,
        [
            job_store.Transition(
                jobs[one.job_id],
                one.job,
                kind=one.kind,
                states=one.states,
                attempt=one.attempt,
                cluster_id=one.cluster_id,
                actor=one.actor,
                message=one.message,
                details=one.details,
            )
            for one in writes.jobs
        ],
    )
    by_key = {key.of_reason: reason for key, reason in reasons.items()}
    of_users = {key: reason for key, reason in by_key.items() if reason.token is Token.USER_LIMIT}
    of_classes = {key._replace(user=""): reason for key, reason in by_key.items() if key not in of_users}
    await scheduling.save_reasons(tx, [_reason_row(*one) for one in of_classes.items()], cycle)
    await scheduling.drop_reasons_of_users(tx, [key[:5] for key in by_key if key.user and key not in of_users])
    await scheduling.save_reasons_of_users(tx, [(*_reason_row(*one), one[0].user) for one in of_users.items()], cycle)
    desired = await runs.raise_desired(tx, writes.clusters)
    await runs.write(
        tx,
        [
            runs.RunChange(
                live[one.job_id].ref,
                run_machine.ask_stop(live[one.job_id].run, StopCause.PREEMPT),
                desired_version=desired[one.cluster_id],
            )
            for one in writes.stops
        ],
    )
    if writes.shrinks or writes.grows:
        changed = [(one, None) for one in writes.shrinks] + [(one, one.placement) for one in writes.grows]
        await runs.resize(
            tx,
            [
                resizing(live[one.job_id], one.sizes or {}, placement, desired[one.cluster_id])
                for one, placement in changed
            ],
        )
    if writes.starts:
        started = [(one, one.start.job.id) for one in writes.starts]
        await runs.insert(
            tx, [_new_run(one, jobs[job_id], desired, cycle, factors.get(job_id)) for one, job_id in started]
        )


def _reason_row(key: ClassKey, reason: Reason) -> scheduling.ReasonRow:
    stored = reason.model_dump(mode="json", by_alias=True)
    return key.queue_id, key.class_id, key.shape_id, list(key.avoided), stored


def _new_run(
    one: RunStart, record: job_store.JobRecord, desired: Mapping[int, int], cycle: int, price_factor: Decimal | None
) -> runs.NewRun:
    start = one.start
    ref = RunRef(start.job.id, one.attempt)
    return runs.NewRun(
        ref=ref,
        cluster_id=start.cluster_id,
        digest=run_digest(ref),
        desired_version=desired[start.cluster_id],
        disconnect_seconds=record.disconnect_seconds,
        sizes=start.members,
        assumed=start.member_placement,
        orders=one.orders,
        decision=_decision(one, cycle),
        pools=start.pools,
        policy_id=None if start.granted is None else start.granted.policy_id,
        bounds=None if start.granted is None else bursting.bounds_of(start.granted),
        predicted_seconds=start.predicted_seconds,
        price_factor=price_factor,
    )


def _decision(one: RunStart, cycle: int) -> dict[str, Any]:
    """Return why the run was chosen, for people; and its orders where releases before schema 0024 look for them."""
    start = one.start
    keys = one.orders.for_earlier_release()
    if start.granted is not None:
        keys["burst"] = bursting.explanation_of(start.granted) | keys["burst"]
    return {"why": start.why, "table": start.table, "cycle": cycle, **keys}


async def _stop_seconds(tx: Transaction, holding: _Holding) -> dict[int, float]:
    """Return, by job, how long the members of runs that are preempted for a start may take to terminate."""
    evicts = [one for start in holding.plan.starts for one in start.evicts]
    records = holding.jobs
    specs = await job_store.specs(tx, [records[one.job_id].spec_id for one in evicts])
    return {
        # Members that an elastic run gives back save no state: the run goes on.
        one.job_id: stop_seconds(
            specs[records[one.job_id].spec_id], StopCause.PREEMPT if one.sizes is None else StopCause.CANCEL
        )
        for one in evicts
    }


def _is_granted(start: Start, known: Mapping[int, int]) -> bool:
    """Return whether the start's burst policy, if it has one, is unchanged since the decision."""
    granted = start.granted
    return granted is None or known.get(granted.policy_id) == granted.revision


def _may_end(one: Eviction, live: Mapping[int, runs.RunRecord]) -> bool:
    """Return whether the run is still the one that was decided on, and has not been ordered to stop."""
    record = live.get(one.job_id)
    if record is None or record.ref.attempt != one.attempt or record.run.stop_cause is not None:
        return False
    return one.sizes is None or not record.is_shrinking


async def release_holds(stores: Stores, token: int, limit: int = 1000) -> int:
    """Queue held jobs whose hold has ended by the clock; return how many. A job that cannot be written does not keep others held."""
    async with stores.database.transaction() as tx:
        due = await job_store.due_holds(tx, limit)
    return await change_jobs(due, partial(_release, stores, token))


async def _release(stores: Stores, token: int, job_ids: Sequence[int]) -> int:
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        records = await job_store.lock(tx, job_ids)
        now = await to_epoch(tx)
        transitions = [
            job_store.Transition(record, after, JobEventKind.RELEASED, (after.state.value,))
            for record in records.values()
            if record.job.hold_cause is not None
            and record.job.hold_cause.ends_by_itself
            and record.job.hold_until is not None
            and record.job.hold_until <= now
            and (after := job_machine.release(record.job)) != record.job
        ]
        await job_store.write(tx, transitions)
    if transitions:
        stores.jobs_changed([t.record.id for t in transitions])
    return len(transitions)


async def count_usage(stores: Stores, token: int, follower: Follower) -> None:
    """Add the current usage of queues, and of users in them, to their past usage, and store it, where past usage counts.

    At the first call for a state, the stored usage is loaded, whichever scheduler stored it.
    """
    half_life, of_users = stores.settings.usage_half_life, parse_duration(stores.settings.user_usage_half_life)
    if half_life is None and not of_users:
        return
    state, now = follower.state, follower.now
    past, past_of_users = state.past, state.past_of_users
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return
        quotas = quotas_of(follower.engine, now)
        if half_life is not None:
            if past is None:
                past = DecayedUsage(parse_duration(half_life), *(await scheduling.usage_levels(tx) or (now, {})))
            # No queue has used more than all capacity, though runs on lost clusters may use more than what exists now.
            shares = {queue.id: min(quotas.share(queue)[0], 1.0 / queue.weight) for queue in state.queues.values()}
            past = past.advanced(now, shares)
            await scheduling.save_usage_levels(tx, past.at, past.levels)
        if of_users:
            if past_of_users is None:
                found = await scheduling.usage_levels_of_users(tx) or (now, {})
                past_of_users = DecayedUsage(of_users, *found)
            past_of_users = past_of_users.advanced(now, quotas.shares_of_users())
            await scheduling.save_usage_levels_of_users(tx, past_of_users.at, past_of_users.levels)
    state.past, state.past_of_users = past, past_of_users


async def warn_of_budgets(stores: Stores, token: int, follower: Follower) -> None:
    """Warn of budgets of burst policies that are used up, or nearly."""
    if not follower.state.policies:
        return
    async with stores.database.transaction() as tx:
        if await scheduling.is_lead(tx, token):
            await bursting.warn(tx, follower.state, follower.now)


async def keep_house(stores: Stores, token: int, partitions_sql: str) -> None:
    """Do the leader's rare chores: create partitions for the days ahead, end cool-downs that are over."""
    async with stores.database.transaction() as tx:
        if await scheduling.is_lead(tx, token):
            await scheduling.make_partitions(tx, partitions_sql)
            await scheduling.drop_old_cool_downs(tx)
            await runs.drop_old_provisionings(tx)
