"""Elastic runs grow into capacity that nobody waits for, a step at a time.

A run grows on a cluster if no job waits that only lacks room there, nothing is kept for anybody there, no job of the queues that
share a limit with its own waits for quota, its cool-down is over, and the members fit now, within quota. Growing ends nothing and
makes nobody wait who is there; what it took is the first that is given back.
"""

from trainmaster.protocol.reasons import Tier, Token
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import CycleContext
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex
from trainmaster_dispatcher.scheduling.state.flavors import product_of
from trainmaster_dispatcher.scheduling.state.plan import Fault, Growth, Plan
from trainmaster_dispatcher.scheduling.state.state import LiveRun, load_of

MOST_GROWTHS = 500
"""Runs that grow in one cycle at most; the next one follows at once."""


def grow(cycle: CycleContext, plan: Plan) -> list[Growth]:
    """The runs that grow in this cycle, the one that was resized longest ago first."""
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
            except Exception as error:  # noqa: BLE001 - whoever asked for the plan tells it
                plan.faults.append(Fault("run", run.job_id, f"of job {run.job_id}", error))
                continue
            if growth is not None:
                out.append(growth)
    return out


def _wanted(cycle: CycleContext, plan: Plan) -> set[int]:
    """Clusters that somebody waits for or that are kept for somebody, and those on which this cycle has made room."""
    wanted = {cluster_id for _, full in cycle.blocked.values() for cluster_id in full}
    wanted |= cycle.reservations.kept.keys() | cycle.victims.gone.keys() - {
        cluster_id for cluster_id, gone in cycle.victims.gone.items() if not gone
    }
    wanted |= {one.cluster_id for one in plan.stops}
    wanted |= {one.cluster_id for start in plan.starts for one in start.evicts}
    return wanted | {cluster_id for cluster_id in cycle.index.state.elastic_on if cycle.advance.is_on(cluster_id)}


def _is_open(index: ClusterIndex, cluster_id: int) -> bool:
    """Whether more may be sent to a cluster now, and its runtime can resize runs."""
    cluster = index.state.clusters.get(cluster_id)
    if cluster is None or cluster.report is None or "resize" not in cluster.report.capabilities:
        return False
    return index.is_open(cluster_id)


def _growth(cycle: CycleContext, run: LiveRun) -> Growth | None:
    """The next step of a run, taken from the room of its cluster; None if it cannot take one now."""
    state, quotas = cycle.index.state, cycle.quotas
    shape = state.shapes[run.shape_id]
    elastic = shape.elastic
    # By a policy a run keeps the size whose cost was found to be within the budgets.
    if elastic is None or run.is_stopping or run.leaving or run.burst or run.job_id in cycle.victims.shrunk:
        return None
    queue = state.queues.get(run.queue_id)
    starts = queue is not None and all(above.state.starts_jobs for above in state.ancestry(run.queue_id))
    if not starts or cycle.now - max(run.resized_at, run.began_at) < elastic.cool_down:
        return None
    more = _next_step(run, shape, elastic.step)
    if more is None:
        return None
    role, count = more
    fitted = fit(shape, {role: count}, _room_for(cycle.index, run))
    if not isinstance(fitted, Fitted):
        return None
    members = [(group, name, many) for group, roles in fitted.placement.items() for name, many in roles.items()]
    charge = state.lines.charge(state.places_at(run.cluster_id, run.shape_id, members))
    if quotas.obstacle(run.queue_id, charge, runs=0) is not None:
        return None
    cycle.index.take_fitted(run.cluster_id, fitted)
    quotas.add(run.queue_id, charge, running=0)
    sizes = dict(run.sizes)
    sizes[role] = sizes.get(role, 0) + count
    placement: dict[str, dict[str, int]] = {}
    for group, name, many in [*((key.group, key.role, many) for key, many in load_of(run) if key.group), *members]:
        of_group = placement.setdefault(group, {})
        of_group[name] = of_group.get(name, 0) + many
    return Growth(run.job_id, run.attempt, run.cluster_id, sizes, placement)


def _room_for(index: ClusterIndex, run: LiveRun) -> FreeCapacity:
    """Where its members may come: where quota depends on the product of a device, only on nodes of the products that it has."""
    room = index.free(run.cluster_id)
    if not index.state.lines.any_narrowed:
        return room
    has = {product_of(room.groups[name][0].group) for name, _ in run.placement if room.groups.get(name)}
    return FreeCapacity({name: some for name, some in room.groups.items() if some and product_of(some[0].group) in has})


def _next_step(run: LiveRun, shape: Shape, step: int) -> tuple[str, int] | None:
    """The role that is furthest from its full size, in parts of what it can grow by, and by how many members it grows."""
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
