"""Accounting of starts within a cycle: capacity, quota and reservations that a start takes from the ones after it."""

from collections.abc import Mapping

from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.run_times import Ends, RunSeconds
from trainmaster_dispatcher.scheduling.cycle.burst import Bursts, BurstStart
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import roles_by_name
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext
from trainmaster_dispatcher.scheduling.cycle.starts import start_by_policy
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, may_repeat
from trainmaster_dispatcher.scheduling.quotas.fair_share import LONGEST_ROW, FairShareQueue
from trainmaster_dispatcher.scheduling.selection.cluster_index import Option
from trainmaster_dispatcher.scheduling.selection.scores import varies_by_run
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LoadKey
from trainmaster_dispatcher.scheduling.state.plan import Plan, Start


def start_equivalent(cycle: CycleContext, turns: FairShareQueue, plan: Plan, key: ClassKey, most: int) -> None:
    """End the turn of a job that starts, and start equivalent jobs directly behind it, with the same result as one after the other.

    A cluster that takes a job is a better choice for the next equivalent one, because packing is tighter. So all of them go to the
    cluster of the first one, as long as they fit and do not delay a job with a reservation, unless quota depends on the place.
    """
    state, quotas, start = cycle.index.state, cycle.quotas, plan.starts[-1]
    sizes = cycle.index.sizes_of(key.shape_id)
    size, charge = sizes[0], sizes[0].charge
    role = may_repeat(state.shapes[key.shape_id], size) if len(sizes) == 1 else None
    most = min(most, LONGEST_ROW - 1)
    if (
        role is None
        or not most
        or state.flavors.any_narrowed
        or start.pools
        or varies_by_run(state.weights_of(key))
        or not turns.has_more(key)
        or cycle.advance.is_on(start.cluster_id)
        or state.access_of(state.queues[key.queue_id]).conditions
    ):
        turns.done(key)
        return

    def allowed() -> int:
        within = quotas.max_starts(key.queue_id, charge, most, key.user)
        return turns.lead(key.queue_id, charge, within) if within else 0

    job_ids = turns.row(key, allowed)
    if not job_ids:
        turns.end_row(key, 0)
        return
    ends = state.run_seconds(key).ends(cycle.now)
    kept, roles = cycle.reservations.kept.get(start.cluster_id), {role.name: role}
    gangs, fitted = cycle.index.take_many(
        start.cluster_id,
        role,
        size.total,
        len(job_ids),
        lambda fitted: (
            cycle.index.takes_equally(key.shape_id, start.cluster_id, start.placement, fitted.placement)
            and (kept is None or kept.lets(roles, fitted.placement, ends))
        ),
    )
    if fitted is not None:
        if kept is not None:
            kept.take(roles, fitted.placement, ends)
        together = {flavor: amount * len(gangs) for flavor, amount in charge.items()}
        quotas.add(key.queue_id, together, len(gangs), user=key.user)
        by_group: dict[str, MemberPlacement] = {}
        for job_id, gang in zip(job_ids, gangs, strict=False):
            if size.total == 1:
                (group,) = gang
                placement = by_group.get(group)
                if placement is None:
                    placement = by_group[group] = {group: {role.name: 1}}
            else:
                placement = {group: {role.name: many} for group, many in gang.items()}
            plan.starts.append(
                Start(
                    state.jobs[job_id],
                    start.cluster_id,
                    start.sizes,
                    placement,
                    start.why,
                    start.table,
                    predicted_seconds=start.predicted_seconds,
                    members_per_unit=start.members_per_unit,
                )
            )
        load = {
            LoadKey(group, key.shape_id, name): many
            for group, members in fitted.placement.items()
            for name, many in members.items()
        }
        _note_load(cycle, start.cluster_id, load, ends)
    turns.end_row(key, len(gangs))


def take(cycle: CycleContext, job: WaitingJob, option: Option, seconds: RunSeconds) -> None:
    """Count a start; ``seconds``: how long it takes."""
    cycle.quotas.add(job.queue_id, option.charge, user=job.user)
    if option.pools:
        cycle.index.take_grown(job.shape_id, option)
        seconds = RunSeconds(seconds.expected + option.timeout, seconds.latest + option.timeout)
    else:
        cycle.index.take(option)
    note_start(cycle, job, option.cluster.id, option.fitted, seconds)


def note_start(cycle: CycleContext, job: WaitingJob, cluster_id: int, fitted: Fitted, seconds: RunSeconds) -> None:
    """Count a start against reservations and preemption; ``seconds``: how long it takes."""
    state = cycle.index.state
    ends = seconds.ends(cycle.now)
    kept = cycle.reservations.kept.get(cluster_id)
    if kept is not None:
        kept.take(roles_by_name(state, job.shape_id), fitted.placement, ends)
    if cycle.advance:
        entitled, named = cycle.advance.entitled(job.queue_id), roles_by_name(state, job.shape_id)
        cycle.advance.note_start(cluster_id, entitled, named, fitted.placement, ends.latest)
    load = {
        LoadKey(group, job.shape_id, role): count
        for group, roles in fitted.placement.items()
        for role, count in roles.items()
    }
    _note_load(cycle, cluster_id, load, ends)


def _note_load(cycle: CycleContext, cluster_id: int, load: Mapping[LoadKey, int], ends: Ends) -> None:
    cycle.reservations.note_start(cluster_id, load.items(), ends)
    cycle.victims.note_start(cluster_id, load)


def start_burst(cycle: CycleContext, bursts: Bursts, plan: Plan, job: WaitingJob, burst: BurstStart) -> None:
    """Start a job by a burst policy: count it, and enter it in the plan."""
    take(cycle, job, burst.option, RunSeconds(burst.granted.bounds.total, burst.granted.bounds.total))
    plan.starts.append(start_by_policy(job, cycle.index.state.shapes[job.shape_id], burst, cycle.now))
    bursts.note_start(job, burst)
