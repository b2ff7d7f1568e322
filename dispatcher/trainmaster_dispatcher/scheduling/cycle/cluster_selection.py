"""Selection of a cluster for a class of jobs: where its gang fits now, within quota and beside reservations.

It counts nothing: a choice is only a proposal.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from trainmaster.protocol.device_parts import device_of, is_memory_part
from trainmaster.protocol.reasons import Check, Reason, Verdict
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size, products_on
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.selection.cluster_index import Option, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.scores import counts_queue, is_quick
from trainmaster_dispatcher.scheduling.selection.unfeasible_keys import CachedRefusal
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Product
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

MOST_LISTED = 5
"""The number of clusters in the table that is stored with a decision, the best ones."""
MOST_COMPARED = 2
"""The number of clusters that explain a decision: the chosen one and the next best."""
MOST_LACKING = 2
"""The number of clusters without enough free capacity that explain a decision for the only one with enough."""


@dataclass(slots=True)
class SearchResult:
    """The options of a gang, the first check that each other cluster fails, clusters that only lack capacity, the quota obstacle."""

    options: list[Option] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    over: list[Obstacle] = field(default_factory=list)
    over_on: list[int] = field(default_factory=list)
    """Clusters with enough free capacity, on which only quota is the obstacle."""
    cached: CachedRefusal | None = None
    """The refusal that is cached from one cycle to the next, if it can be."""

    def reason(self) -> Reason:
        """Return why the jobs are blocked by what clusters lack."""
        if self.cached is None:
            return explain.blocked(self.verdicts)
        if self.cached.reason is None:
            self.cached.reason = explain.blocked(self.cached.verdicts)
        return self.cached.reason


@dataclass(frozen=True, slots=True)
class Choice:
    """The best option, the best ones with it among them, and what the remaining clusters lack."""

    best: Option
    top: list[Option]
    verdicts: Collection[Verdict]


def search_best(
    cycle: CycleContext, scheduling_key: SchedulingKey, seconds: RunSeconds, sizes: list[Size]
) -> Choice | SearchResult | None:
    """Return the choice of ``search_each``, found with less work: the clusters with the highest scores are tried until two fit.

    None if it does not apply: if quota, a score or a condition of its queue depends on the place, or the gang has several sizes.
    """
    index, rankings = cycle.index, cycle.rankings
    prefers_level = index.state.shapes[scheduling_key.shape_id].preferred_level is not None
    if (
        index.state.flavors.any_narrowed
        or len(sizes) > 1
        or scheduling_key.access.conditions
        or not is_quick(scheduling_key.weights, prefers_level=prefers_level)
    ):
        return None
    cached = rankings.refusals.blocks(scheduling_key, sizes[0])
    if cached is not None:
        return SearchResult(verdicts=cached.verdicts, full=cached.full, cached=cached)
    top: list[Option] = []
    closed: dict[int, Verdict] = {}
    lacking: list[int] = []
    for cluster in rankings.ranked(scheduling_key, sizes[0], lacking):
        outcome = index.option(
            scheduling_key.shape_id, sizes, cluster, None, scheduling_key.weights, scheduling_key.predecessors
        )
        if not isinstance(outcome, Option):
            lacking.append(cluster.id)
            continue
        taken = admitted(cycle, scheduling_key, seconds, outcome)
        if isinstance(taken, Option):
            top.append(taken)
            if len(top) == MOST_COMPARED:
                break
        else:
            closed[cluster.id] = taken
    if len(top) == MOST_COMPARED:
        rankings.note_lacking(scheduling_key, lacking)
        return Choice(top[0], top, ())
    rankings.update(scheduling_key, sizes[0], lacking)
    if top:
        return Choice(top[0], top, rankings.first_lacking(scheduling_key, sizes[0], MOST_LACKING))
    cached = rankings.blocked(scheduling_key, sizes[0], closed)
    return SearchResult(verdicts=cached.verdicts, full=cached.full, cached=cached)


def search_growth(
    cycle: CycleContext, scheduling_key: SchedulingKey, queue: Queue, sizes: Sequence[Size]
) -> Option | Obstacle | None:
    """Return the best cluster on which a gang fits once pools have grown; else the quota obstacle, if there is one.

    Where quota depends on the product of a device, the gang is bound to one.
    """
    _, device = narrowing(cycle, queue, scheduling_key.shape_id)
    found: list[Option | Verdict | Obstacle] = []
    for cluster in cycle.index.clusters:
        if cluster.report is None or not cluster.report.pools:
            continue
        if (
            cycle.index.not_allowed(scheduling_key, cluster) or cycle.index.passing(scheduling_key, cluster)
        ) is not None:
            continue
        products = products_on(cluster.report, device, grown=True)
        found += [option_grown(cycle, scheduling_key, queue, sizes, cluster, product) for product in products]
    best = max((one for one in found if isinstance(one, Option)), key=lambda one: one.total, default=None)
    return best or next((one for one in found if isinstance(one, Obstacle)), None)


def option_grown(
    cycle: CycleContext,
    scheduling_key: SchedulingKey,
    queue: Queue,
    sizes: Sequence[Size],
    cluster: Cluster,
    product: Product | None,
    groups: frozenset[str] | None = None,
) -> Option | Verdict | Obstacle:
    """Return how a gang fits on a cluster once pools have grown, within quota and beside what is reserved for others."""
    refusal = cycle.start_rules.refusal(scheduling_key, sizes[-1].members, cluster)
    if refusal is not None:
        return refusal
    alone = cluster.id in cycle.reservations.kept or cycle.advance.is_on(cluster.id)
    outcome = cycle.index.option_grown(
        scheduling_key.shape_id,
        sizes,
        cluster,
        product,
        scheduling_key.weights,
        alone=alone,
        groups=groups,
        predecessors=scheduling_key.predecessors,
    )
    if not isinstance(outcome, Option):
        return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=outcome.sentence)
    return cycle.quotas.obstacle(queue.id, outcome.charge) or outcome


def admitted(
    cycle: CycleContext,
    scheduling_key: SchedulingKey,
    seconds: RunSeconds,
    option: Option,
    among: frozenset[str] | None = None,
) -> Option | Verdict:
    """Return the option, or one in other node groups of its cluster, beside all reservations. ``among``: only these groups.

    ``seconds``: how long the job takes.
    """
    verdict, advance, cluster = _kept_from(cycle, scheduling_key, seconds, option), cycle.advance, option.cluster
    if verdict is not None:
        return verdict
    if not advance.is_on(cluster.id):
        return option
    roles, end = roles_by_name(cycle.index.state, scheduling_key.shape_id), cycle.now + seconds.latest
    closing = advance.closes(cluster.id, scheduling_key.entitled, roles, option.fitted.placement, end)
    if closing is None:
        return option
    groups = advance.open_groups(cluster.id, scheduling_key.entitled, end)
    if groups and among is not None:
        groups &= among
    if groups:
        other = cycle.index.option_among(
            scheduling_key.shape_id,
            [option.size],
            cluster,
            option.product,
            groups,
            scheduling_key.weights,
            scheduling_key.predecessors,
        )
        if (
            isinstance(other, Option)
            and _kept_from(cycle, scheduling_key, seconds, other) is None
            and advance.closes(cluster.id, scheduling_key.entitled, roles, other.fitted.placement, end) is None
        ):
            return other
    return explain.reserved(cluster, closing, cycle.index.state.queues.get(closing.queue_id), seconds.latest)


def _kept_from(
    cycle: CycleContext, scheduling_key: SchedulingKey, seconds: RunSeconds, option: Option
) -> Verdict | None:
    """Return the verdict if the job would delay the one that its cluster is reserved for; None if it would not."""
    kept = cycle.reservations.kept.get(option.cluster.id)
    if kept is None:
        return None
    roles = roles_by_name(cycle.index.state, scheduling_key.shape_id)
    if kept.lets(roles, option.fitted.placement, seconds.ends(cycle.now)):
        return None
    return explain.kept(cycle.index.state, option.cluster, kept.reservation, seconds)


def search_each(
    cycle: CycleContext,
    scheduling_key: SchedulingKey,
    seconds: RunSeconds,
    job: WaitingJob,
    queue: Queue,
    sizes: list[Size],
) -> SearchResult:
    """Try each cluster with these sizes. Quota is checked again where it depends on the place."""
    result = SearchResult()
    narrowed, device = narrowing(cycle, queue, scheduling_key.shape_id)
    for cluster, ruled_out in cycle.index.looked_at(scheduling_key):
        verdict = ruled_out or cycle.start_rules.refusal(scheduling_key, sizes[-1].members, cluster)
        if verdict is not None:
            result.verdicts.append(verdict)
            continue
        found = False
        for product in products_on(cluster.report, device):
            outcome = _option_within(
                cycle, scheduling_key, seconds, job, queue, sizes, cluster, product, narrowed=narrowed
            )
            if isinstance(outcome, Option):
                result.options.append(_spread(cycle, queue, outcome))
                found = True
            elif isinstance(outcome, Obstacle):
                result.over.append(outcome)
                verdict = Verdict(cluster=cluster.name, check=Check.QUOTA, sentence=outcome.sentence)
            else:
                verdict = verdict or outcome
        if not found and verdict is not None:
            result.verdicts.append(verdict)
            if verdict.check is Check.NO_ROOM:
                result.full.append(cluster.id)
            elif verdict.check is Check.QUOTA:
                result.over_on.append(cluster.id)
    if scheduling_key.access.conditions and cycle.start_rules.needs_quiet(scheduling_key.access):
        result.full.clear()  # nothing is ended, moved or kept for jobs that start where little runs
    return result


def _spread(cycle: CycleContext, queue: Queue, option: Option) -> Option:
    """Return the option, also scored by the clusters of the runs of its queue."""
    state = cycle.index.state
    total = state.running.get(queue.id, 0)
    if not total or not counts_queue(option.weights):
        return option
    return option.rescored(elsewhere=1.0 - state.running_on.get((queue.id, option.cluster.id), 0) / total)


def _option_within(
    cycle: CycleContext,
    scheduling_key: SchedulingKey,
    seconds: RunSeconds,
    job: WaitingJob,
    queue: Queue,
    sizes: list[Size],
    cluster: Cluster,
    product: Product | None,
    *,
    narrowed: bool,
) -> Option | Verdict | Obstacle:
    """Return the largest size that fits on a cluster within quota and beside the reservations of other jobs."""
    stops: Verdict | Obstacle | None = None
    for larger in range(len(sizes)):
        outcome = cycle.index.option(
            scheduling_key.shape_id,
            sizes[larger:],
            cluster,
            product,
            scheduling_key.weights,
            scheduling_key.predecessors,
        )
        if not isinstance(outcome, Option):
            return stops or Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=outcome.sentence)
        obstacle = cycle.quotas.obstacle(queue.id, outcome.charge) if narrowed else None
        if obstacle is None:
            taken = admitted(cycle, scheduling_key, seconds, outcome)
            if isinstance(taken, Option):
                return taken
            stops = taken
        else:
            stops = obstacle
    if stops is None:
        raise AssertionError("a class without any size to start in is blocked by quota")
    return stops


def roles_by_name(state: SchedulerState, shape_id: int) -> dict[str, RoleShape]:
    return {role.name: role for role in state.shapes[shape_id].roles}


def narrowing(cycle: CycleContext, queue: Queue, shape_id: int) -> tuple[bool, str]:
    """Return whether quota depends on the place, and the device of the gang whose product decides that, if any."""
    state = cycle.index.state
    flavors = [flavor for above in state.ancestry(queue.id) for flavor in above.quotas if flavor.product or flavor.kind]
    flavors += cycle.quotas.tree.narrowed_kept
    names = {name for role in state.shapes[shape_id].roles for name in role.needs}
    if not flavors:
        return any(map(is_memory_part, names)), ""
    needed = set(map(device_of, names))
    return True, next((flavor.resource for flavor in flavors if flavor.product and flavor.resource in needed), "")
