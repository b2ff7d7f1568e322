"""Growth of elastic runs, a step at a time, into capacity that no job waits for.

A run grows on a cluster if no waiting job lacks only capacity there, the cluster is not reserved for a job or a queue, no job of
the queues that share a limit with the run's queue waits for quota, the run's cool-down is over, and the members fit now, within
quota. Growth ends no run and delays no job that waits already; the added members are the first that are given back.
"""

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.reasons import Tier, Token
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex
from trainmaster_dispatcher.scheduling.state.flavors import product_of
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, load_of
from trainmaster_dispatcher.scheduling.state.plan import Fault, Growth, Plan

MOST_GROWTHS = 500
"""The largest number of runs that grow in one cycle; the next cycle follows at once."""


def grow(cycle: CycleContext, plan: Plan) -> list[Growth]:
    """Return the growths of this cycle, of the run that was resized longest ago first."""
    state = cycle.index.state
    if not state.elastic_on:
        return []
    wanted = _wanted(cycle, plan)
    crowded = {
        queue.id
        for key, reason in plan.reasons.items()
        if (reason.tier is Tier.QUOTA or reason.token is Token.PREEMPTING) and not reason.for_ever
        for queue in state.ancestry(key.queue_id)
    }
    runs = [
        state.runs[job_id]
        for cluster_id, job_ids in state.elastic_on.items()
        if cluster_id not in wanted and _is_open(cycle.index, cluster_id)
        for job_id in job_ids
    ]
    out: list[Growth] = []
    for run in sorted(runs, key=lambda run: (max(run.resized_at, run.began_at), run.job_id)):
        if len(out) == MOST_GROWTHS:
            break
        if not any(queue.id in crowded for queue in state.ancestry(run.queue_id)) and run.job_id not in state.spared:
            try:
                growth = _growth(cycle, run)
            except Exception as error:  # noqa: BLE001 - the caller reports it
                plan.faults.append(Fault("run", run.job_id, f"of job {run.job_id}", error))
                continue
            if growth is not None:
                out.append(growth)
    return out


def _wanted(cycle: CycleContext, plan: Plan) -> set[int]:
    """Return the clusters that jobs wait for, that are reserved, or on which runs are ended or shrunk for others."""
    wanted = {cluster_id for _, full in cycle.blocked.values() for cluster_id in full}
    wanted |= cycle.reservations.kept.keys() | cycle.victims.ending.keys() - {
        cluster_id for cluster_id, ending in cycle.victims.ending.items() if not ending
    }
    wanted |= {one.cluster_id for one in plan.stops}
    wanted |= {one.cluster_id for start in plan.starts for one in start.evicts}
    return wanted | {cluster_id for cluster_id in cycle.index.state.elastic_on if cycle.advance.is_on(cluster_id)}


def _is_open(index: ClusterIndex, cluster_id: int) -> bool:
    """Return whether a cluster takes more members now, and its runtime can resize runs."""
    cluster = index.state.clusters.get(cluster_id)
    if cluster is None or cluster.report is None or Capability.RESIZE not in cluster.report.capabilities:
        return False
    return index.is_open(cluster_id)


def _growth(cycle: CycleContext, run: LiveRun) -> Growth | None:
    """Return the next step of a run and take it from the free capacity of its cluster; None if the run cannot grow now."""
    state, quotas = cycle.index.state, cycle.quotas
    shape = state.shapes[run.shape_id]
    elastic = shape.elastic
    # A run by a burst policy keeps its size, whose cost was found to be within the budgets.
    if elastic is None or run.is_stopping or run.leaving or run.burst or run.job_id in cycle.victims.shrunk:
        return None
    queue = state.queues.get(run.queue_id)
    starts = queue is not None and all(above.state.starts_jobs for above in state.ancestry(run.queue_id))
    if not starts or cycle.now - max(run.resized_at, run.began_at) < elastic.cool_down:
        return None
    more = _next_step(run, shape, elastic.step)
    if more is None or cycle.start_rules.keeps_size(run.queue_id):
        return None
    role, count = more
    fitted = fit(shape, {role: count}, _room_for(cycle.index, run))
    if not isinstance(fitted, Fitted):
        return None
    members = [(group, name, many) for group, roles in fitted.placement.items() for name, many in roles.items()]
    charge = state.flavors.charge(state.places_at(run.cluster_id, run.shape_id, members))
    if quotas.obstacle(run.queue_id, charge, runs=0, user=run.user) is not None:
        return None
    cycle.index.take_fitted(run.cluster_id, fitted)
    quotas.add(run.queue_id, charge, running=0, user=run.user)
    sizes = dict(run.sizes)
    sizes[role] = sizes.get(role, 0) + count
    placement: MemberPlacement = {}
    for group, name, many in [*((key.group, key.role, many) for key, many in load_of(run) if key.group), *members]:
        of_group = placement.setdefault(group, {})
        of_group[name] = of_group.get(name, 0) + many
    return Growth(run.job_id, run.attempt, run.cluster_id, sizes, placement)


def _room_for(index: ClusterIndex, run: LiveRun) -> FreeCapacity:
    """Return the capacity for new members: where quota depends on the product, only nodes of the products that the run has."""
    free = index.free(run.cluster_id)
    if not index.state.flavors.any_narrowed:
        return free
    has = {product_of(free.groups[name][0].group) for name, _ in run.placement if free.groups.get(name)}
    return FreeCapacity({name: some for name, some in free.groups.items() if some and product_of(some[0].group) in has})


def _next_step(run: LiveRun, shape: Shape, step: int) -> tuple[str, int] | None:
    """Return the role that is furthest from its full size, relative to its range, and the number of members that it grows by."""
    sizes = dict(run.sizes)
    behind = [
        ((sizes.get(role.name, 0) - role.least) / (role.replicas - role.least), place, role)
        for place, role in enumerate(shape.roles)
        if role.least < role.replicas and sizes.get(role.name, 0) < role.replicas
    ]
    if not behind:
        return None
    _, _, role = min(behind, key=lambda one: one[:2])
    return role.name, min(step, role.replicas - sizes.get(role.name, 0))
