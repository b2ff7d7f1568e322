"""Looking for a place for a class of jobs: where its gang fits now, within quota and beside what is kept for others."""

from collections.abc import Collection
from dataclasses import dataclass, field

from trainmaster.dispatcher.scheduling import explain
from trainmaster.dispatcher.scheduling.backfill import Reservations
from trainmaster.dispatcher.scheduling.candidates import Alike, Option, Rooms, Standing
from trainmaster.dispatcher.scheduling.fit import Fitted, Product, Size
from trainmaster.dispatcher.scheduling.lines import Amounts, product_label, product_of
from trainmaster.dispatcher.scheduling.preempt import Evictions
from trainmaster.dispatcher.scheduling.quota import Ledger, Obstacle
from trainmaster.dispatcher.scheduling.scores import Fit, score
from trainmaster.dispatcher.scheduling.view import ClassKey, Cluster, Queue, View, WaitingJob
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Reason, Verdict

MOST_TOLD = 5
"""Clusters in the table that is kept with a decision, the best ones."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """What an attempt reads and marks."""

    rooms: Rooms
    ledger: Ledger
    reservations: Reservations
    evictions: Evictions
    blocked: dict[Alike, tuple[Reason, list[int]]]
    """By what is alike: why it is blocked, and the clusters that lack room for it."""
    now: float
    prepared: dict[ClassKey, "Prepared"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What holds for a class during a whole cycle. ``stops``: why it cannot start whatever happens in it."""

    sizes: list[Size]
    charges: list[Amounts]
    limit: float
    stops: Reason | None


@dataclass(slots=True)
class Look:
    """Where a gang fits, the first check that fails elsewhere, where only room is lacking, and quota that is in the way."""

    options: list[Option] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    over: list[Obstacle] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best option, the best ones with it among them, and what the remaining clusters lack."""

    best: Option
    top: list[Option]
    verdicts: Collection[Verdict]


def look_at_best(cycle: Cycle, alike: Alike, sizes: list[Size]) -> Choice | Look | None:
    """The choice of ``look_at_each``, found with less work: the clusters of the highest scores are tried until two fit.

    None where it does not apply: where quota depends on the place, something is kept for others, or the gang has several sizes.
    """
    rooms = cycle.rooms
    if cycle.reservations.kept or rooms.view.lines.any_narrowed or len(sizes) > 1:
        return None
    standing = rooms.standings.get(alike)
    if standing is None:
        standing = rooms.standings[alike] = Standing()
        changed = [cluster for cluster, ruled_out in rooms.looked_at(alike, cycle.now) if ruled_out is None]
    elif standing.seen < len(rooms.changes):
        known = standing.rank_of.keys() | standing.lacks.keys()
        changed = [rooms.view.clusters[one] for one in set(rooms.changes[standing.seen :]) if one in known]
    else:
        changed = []
    needs = sizes[0].needs
    for cluster in changed:
        standing.put(cluster, score(_fit_on(rooms, cluster, needs))[0])
    standing.seen = len(rooms.changes)
    top: list[Option] = []
    while len(top) < 2 and len(top) < len(standing.ranked):
        cluster = rooms.view.clusters[standing.ranked[len(top)][2]]
        outcome = _known_option(rooms, alike, sizes, cluster, None)
        if isinstance(outcome, Verdict):
            standing.note_lack(cluster.id, outcome)
        else:
            top.append(outcome)
    if top:
        return Choice(top[0], top, standing.lacks.values())
    verdicts = [
        standing.lacks[cluster.id] if ruled_out is None else ruled_out
        for cluster, ruled_out in rooms.looked_at(alike, cycle.now)
    ]
    return Look(verdicts=verdicts, full=list(standing.lacks))


def _fit_on(rooms: Rooms, cluster: Cluster, needs: Resources) -> Fit:
    return Fit(cluster, rooms.free(cluster.id).total(), rooms.empty(cluster).total(), needs)


def look_at_each(cycle: Cycle, alike: Alike, job: WaitingJob, queue: Queue, sizes: list[Size]) -> Look:
    """Look at each cluster with these sizes. Quota is looked at again where it depends on the place."""
    look = Look()
    narrowed, device = _narrowing(cycle, queue, alike.shape_id)
    for cluster, ruled_out in cycle.rooms.looked_at(alike, cycle.now):
        if ruled_out is not None:
            look.verdicts.append(ruled_out)
            continue
        verdict, found = None, False
        for product in _products(cluster, device):
            outcome = _option_within(cycle, alike, job, queue, sizes, cluster, product, narrowed=narrowed)
            if isinstance(outcome, Option):
                look.options.append(outcome)
                found = True
            elif isinstance(outcome, Obstacle):
                look.over.append(outcome)
                verdict = Verdict(cluster=cluster.name, check=Check.QUOTA, sentence=outcome.sentence)
            else:
                verdict = verdict or outcome
        if not found and verdict is not None:
            look.verdicts.append(verdict)
            if verdict.check is Check.NO_ROOM:
                look.full.append(cluster.id)
    return look


def _option_within(
    cycle: Cycle,
    alike: Alike,
    job: WaitingJob,
    queue: Queue,
    sizes: list[Size],
    cluster: Cluster,
    product: Product | None,
    *,
    narrowed: bool,
) -> Option | Verdict | Obstacle:
    """The largest size that fits on a cluster within quota and beside what is kept there for another job."""
    stops: Verdict | Obstacle | None = None
    kept = cycle.reservations.kept.get(cluster.id)
    for larger in range(len(sizes)):
        outcome = _known_option(cycle.rooms, alike, sizes[larger:], cluster, product)
        if isinstance(outcome, Verdict):
            return stops or outcome
        obstacle = cycle.ledger.obstacle(queue.id, outcome.charge) if narrowed else None
        if obstacle is not None:
            stops = obstacle
        elif kept is not None and not kept.lets(
            needs_by_role(cycle.rooms.view, alike.shape_id), outcome.fitted.placement, cycle.now + alike.limit
        ):
            stops = explain.kept(cluster, kept.reservation, alike.limit)
        else:
            return outcome
    if stops is None:
        raise AssertionError("a class without any size to start in is blocked by quota")
    return stops


def needs_by_role(view: View, shape_id: int) -> dict[str, Resources]:
    return {role.name: role.needs for role in view.shapes[shape_id].roles}


def _narrowing(cycle: Cycle, queue: Queue, shape_id: int) -> tuple[bool, str]:
    """Whether quota depends on the place, and the device of the gang whose product decides on it, if any."""
    view = cycle.rooms.view
    lines = [line for above in view.ancestry(queue.id) for line in above.quotas if line.product or line.kind]
    lines += cycle.ledger.narrowed_kept
    if not lines:
        return False, ""
    needed = {name for role in view.shapes[shape_id].roles for name in role.needs}
    return True, next((line.resource for line in lines if line.product and line.resource in needed), "")


def _products(cluster: Cluster, resource: str) -> list[Product | None]:
    """The products of a device that the gang may be given on a cluster, one at a time; one None where it does not matter."""
    if not resource or cluster.report is None:
        return [None]
    names = {product_of(group): product_label(group) for group in cluster.report.groups if group.free.get(resource)}
    return [Product(resource, name, names[name]) for name in sorted(names)] or [None]


def _known_option(
    rooms: Rooms, alike: Alike, sizes: list[Size], cluster: Cluster, product: Product | None
) -> "Option | Verdict":
    known = rooms.options.setdefault(cluster.id, {})
    key = (alike.shape_id, len(sizes), product)
    outcome = known.get(key)
    if outcome is None:
        outcome = known[key] = _option(rooms, alike.shape_id, sizes, cluster, product)
    return outcome


def _option(
    rooms: Rooms, shape_id: int, sizes: list[Size], cluster: Cluster, product: Product | None
) -> Option | Verdict:
    sentence = ""
    for size in sizes:
        outcome = rooms.fit_now(shape_id, size, cluster.id, product)
        if isinstance(outcome, Fitted):
            total, parts = score(_fit_on(rooms, cluster, size.needs))
            members = (
                (group, role, count) for group, roles in outcome.placement.items() for role, count in roles.items()
            )
            charge = rooms.view.lines.charge(rooms.view.places_at(cluster.id, shape_id, members))
            return Option(cluster, size, outcome, total, parts, charge, product)
        sentence = outcome.sentence
    return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)
