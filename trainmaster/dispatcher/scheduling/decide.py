"""One cycle: ``decide(view, now) -> plan``. Order, quota, filter, fit, score, explain.

The pieces are modules of their own; this one only leads a class of jobs through them, turn by turn.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import NamedTuple

from trainmaster.dispatcher.scheduling import explain
from trainmaster.dispatcher.scheduling.backfill import Reservations
from trainmaster.dispatcher.scheduling.filters import PASSING, STATIC, Candidate, first_failing
from trainmaster.dispatcher.scheduling.fit import Fitted, Product, Shortfall, Size, fit, size_choices, take
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, product_label, product_of
from trainmaster.dispatcher.scheduling.order import Turns
from trainmaster.dispatcher.scheduling.plan import Eviction, Hold, Plan, Start
from trainmaster.dispatcher.scheduling.preempt import Evictions, Exchange, plain_needs
from trainmaster.dispatcher.scheduling.quota import Ledger, Obstacle
from trainmaster.dispatcher.scheduling.room import Room, empty_room
from trainmaster.dispatcher.scheduling.scores import SCORES, Fit, score
from trainmaster.dispatcher.scheduling.view import ClassKey, Cluster, LoadKey, Queue, View, WaitingJob
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Reason, Tier, Token, Verdict
from trainmaster.protocol.states import ClusterKind, Order

MOST_STARTS = 2000
"""Starts in one plan at most, so that applying it stays a short transaction; the next cycle follows at once."""

SILENT_SECONDS = 900.0
"""How long a cluster that is out of contact still counts as capacity."""

MOST_TOLD = 5
"""Clusters in the table that is kept with a decision, the best ones."""


@dataclass(slots=True)
class _Rooms:
    """The rooms of this cycle, made when first looked at."""

    view: View
    now_free: dict[int, Room] = field(default_factory=dict)
    sizes: dict[int, list[Size]] = field(default_factory=dict)
    full: dict[tuple[int, int, int, Product | None], Shortfall] = field(default_factory=dict)
    """By shape, size, cluster and product. Rooms only shrink during a cycle, so what had no room is not tried again."""
    options: dict[int, dict[tuple[int, int, Product | None], "_Option | Verdict"]] = field(default_factory=dict)
    """By cluster, then by shape, number of sizes and product: holds until something is taken from the cluster's room."""
    changes: list[int] = field(default_factory=list)
    """The clusters whose rooms have changed, in order, so that a standing knows what it has not seen yet."""
    standings: dict["_Alike", "_Standing"] = field(default_factory=dict)
    candidates: dict["_Alike", list[tuple[Cluster, Verdict | None]]] = field(default_factory=dict)
    """The clusters by name for jobs alike, with what rules each out whatever its room is."""

    def sizes_of(self, shape_id: int) -> list[Size]:
        if shape_id not in self.sizes:
            self.sizes[shape_id] = size_choices(self.view.shapes[shape_id])
        return self.sizes[shape_id]

    def free(self, cluster_id: int) -> Room:
        if cluster_id not in self.now_free:
            self.now_free[cluster_id] = Room.of(self.view, cluster_id)
        return self.now_free[cluster_id]

    def empty(self, cluster: Cluster) -> Room:
        return empty_room(self.view, cluster.id)

    def capacity(self, cluster: Cluster) -> Amounts:
        """What the empty cluster has on each line."""
        places: Amounts = {}
        for group in cluster.report.groups if cluster.report is not None else ():
            for name, amount in group.free.items():
                place = Line(name, product_of(group) if "/" in name else "", cluster.kind.value)
                places[place] = places.get(place, 0) + amount * group.count
        return self.view.lines.charge(places)

    def never_fits(self, shape_id: int, cluster: Cluster) -> str | None:
        """Why the smallest size of the gang fits nowhere on the empty cluster; None when it does."""
        outcome = fit(self.view.shapes[shape_id], self.sizes_of(shape_id)[-1].members, self.empty(cluster))
        return outcome.sentence if isinstance(outcome, Shortfall) else None

    def fit_now(self, shape_id: int, size: Size, cluster_id: int, product: Product | None) -> Fitted | Shortfall:
        key = (shape_id, size.total, cluster_id, product)
        if key in self.full:
            return self.full[key]
        outcome = fit(self.view.shapes[shape_id], size.members, self.free(cluster_id), product)
        if isinstance(outcome, Shortfall):
            self.full[key] = outcome
        return outcome

    def take(self, option: "_Option") -> None:
        take(self.free(option.cluster.id), option.fitted)
        self._note_change(option.cluster.id)

    def replace(self, cluster_id: int, room: Room) -> None:
        """The room of a cluster after runs were ended there for a job."""
        self.now_free[cluster_id] = room
        self._note_change(cluster_id)

    def _note_change(self, cluster_id: int) -> None:
        self.options.pop(cluster_id, None)
        self.changes.append(cluster_id)

    def looked_at(self, alike: "_Alike", now: float) -> list[tuple[Cluster, Verdict | None]]:
        if alike not in self.candidates:
            clusters = sorted(self.view.clusters.values(), key=lambda cluster: cluster.name)
            self.candidates[alike] = [(cluster, _ruled_out(self, alike, cluster, now)) for cluster in clusters]
        return self.candidates[alike]


@dataclass(frozen=True, slots=True)
class _Option:
    """A cluster on which the gang fits now."""

    cluster: Cluster
    size: Size
    fitted: Fitted
    total: float
    parts: dict[str, float]
    charge: Amounts
    product: Product | None


@dataclass(slots=True)
class _Standing:
    """How the clusters stand for jobs alike, kept up to date as rooms change: where they fit, the best first, and where not."""

    ranked: list[tuple[float, str, "_Option"]] = field(default_factory=list)
    rank_of: dict[int, tuple[float, str, "_Option"]] = field(default_factory=dict)
    lacks: dict[int, Verdict] = field(default_factory=dict)
    seen: int = 0

    def put(self, cluster: Cluster, outcome: "_Option | Verdict") -> None:
        old = self.rank_of.pop(cluster.id, None)
        if old is not None:
            del self.ranked[bisect_left(self.ranked, old[:2], key=lambda entry: entry[:2])]
        if isinstance(outcome, Verdict):
            self.lacks[cluster.id] = outcome
            return
        self.lacks.pop(cluster.id, None)
        entry = self.rank_of[cluster.id] = (-outcome.total, cluster.name, outcome)
        insort(self.ranked, entry, key=lambda one: one[:2])


class _Alike(NamedTuple):
    """What of a class decides where it may go and whether it fits: all classes alike in it are blocked once one of them is."""

    shape_id: int
    sizes: int
    allowed_kinds: frozenset[ClusterKind]
    avoided: tuple[int, ...]
    limit: float
    """Seconds that it is counted on."""


def decide(view: View, now: float, most_starts: int = MOST_STARTS) -> Plan:
    """The plan for this moment. ``now`` is in seconds since the epoch, as all times of the view."""
    plan = Plan()
    rooms = _Rooms(view)
    ledger = Ledger(view, capacity(view, rooms, now))
    turns = Turns(view, ledger, now)
    blocked: dict[_Alike, tuple[Reason, list[int]]] = {}
    reservations = Reservations(view, now, view.reservations)
    evictions = Evictions(view, ledger, now)
    cycle = _Cycle(rooms, ledger, reservations, evictions, blocked, now)
    while (turn := turns.next()) is not None:
        if len(plan.starts) >= most_starts:
            plan.is_cut = True
            break
        key, job_id = turn
        job = view.jobs[job_id]
        queue = view.queues[key.queue_id]
        outcome = _attempt(cycle, job, key, queue)
        if isinstance(outcome, _Choice):
            best = outcome.best
            rooms.take(best)
            ledger.add(queue.id, best.charge)
            _note_start(cycle, job, best.cluster.id, best.fitted)
            plan.starts.append(_start(job, best, outcome.top, outcome.verdicts))
            turns.done(key)
        elif isinstance(outcome, Exchange) and not outcome.at_once:
            evictions.take(outcome)
            # What they give back is this job's: nobody behind it may use the quota up before it starts.
            ledger.add(queue.id, outcome.charge)
            plan.stops += _evictions(view, job, queue, outcome)
            plan.reasons[key] = explain.makes_room()
            turns.block(key)
        elif isinstance(outcome, Exchange):
            evictions.take(outcome)
            ledger.add(queue.id, outcome.charge)
            _note_start(cycle, job, outcome.cluster_id, outcome.fitted)
            rooms.replace(outcome.cluster_id, evictions.room(outcome.cluster_id))
            plan.starts.append(_start_after(view, job, queue, outcome))
            turns.done(key)
        elif isinstance(outcome, str):
            plan.holds.append(Hold(job, outcome))
            turns.done(key)
        else:
            plan.reasons[key] = outcome
            if queue.order is Order.STRICT and outcome.tier in (Tier.QUOTA, Tier.CAPACITY) and not outcome.for_ever:
                behind = explain.behind(queue, job)
                plan.reasons |= dict.fromkeys(turns.close(key), behind)
            else:
                turns.block(key)
    plan.reservations = {kept.reservation.job_id: kept.reservation for kept in reservations.kept.values()}
    return plan


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best option, the best ones with it among them, and what the remaining clusters lack."""

    best: _Option
    top: list[_Option]
    verdicts: Collection[Verdict]


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What an attempt reads and marks."""

    rooms: _Rooms
    ledger: Ledger
    reservations: Reservations
    evictions: Evictions
    blocked: dict[_Alike, tuple[Reason, list[int]]]
    """By what is alike: why it is blocked, and the clusters that lack room for it."""
    now: float
    prepared: dict[ClassKey, "_Prepared"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What holds for a class during a whole cycle. ``stops``: why it cannot start whatever happens in it."""

    sizes: list[Size]
    charges: list[Amounts]
    limit: float
    stops: Reason | None


def _prepare(cycle: _Cycle, key: ClassKey, queue: Queue) -> _Prepared:
    known = cycle.prepared.get(key)
    if known is None:
        view, sizes = cycle.rooms.view, cycle.rooms.sizes_of(key.shape_id)
        charges = [plain_needs(size) for size in sizes]
        closed = next((above for above in view.ancestry(queue.id) if not above.state.starts_jobs), None)
        for_ever = cycle.ledger.never(queue.id, charges[-1])
        stops = None
        if closed is not None:
            stops = explain.queue_closed(closed)
        elif for_ever is not None:
            stops = explain.over_quota(for_ever, for_ever=True)
        limit = view.limit_of(key.shape_id, queue.id)
        known = cycle.prepared[key] = _Prepared(sizes, charges, limit, stops)
    return known


def _attempt(cycle: _Cycle, job: WaitingJob, key: ClassKey, queue: Queue) -> _Choice | Exchange | Reason | str:
    """Where the first job of a class starts, or why it does not; as a text, why it has to be held."""
    view, ledger = cycle.rooms.view, cycle.ledger
    prepared = _prepare(cycle, key, queue)
    if prepared.stops is not None:
        return prepared.stops
    allowed = prepared.sizes
    obstacle = ledger.obstacle(queue.id, prepared.charges[-1])
    if obstacle is not None:
        is_limit = obstacle.token is not Token.KEPT_FOR_OTHERS
        return _exchange(cycle, key, queue, allowed, None, for_quota=is_limit) or explain.over_quota(obstacle)
    if len(allowed) > 1:
        both = zip(prepared.sizes, prepared.charges, strict=True)
        allowed = [size for size, charge in both if ledger.obstacle(queue.id, charge) is None]
    alike = _Alike(key.shape_id, len(allowed), queue.allowed_kinds, key.avoided, prepared.limit)
    if alike in cycle.blocked:
        # Whether runs may be ended for it depends on its queue and class.
        reason, full = cycle.blocked[alike]
        return _exchange(cycle, key, queue, allowed, full) or reason
    look = _quick_look(cycle, alike, queue, allowed)
    if isinstance(look, _Choice):
        return look
    if look is None:
        look = _look(cycle, alike, job, queue, allowed)
    if look.options:
        top = nsmallest(
            MOST_TOLD + 1, look.options, key=lambda one: (-one.total, one.cluster.name, one.product or ("", ""))
        )
        return _Choice(top[0], top, look.verdicts)
    if alike.avoided and not look.over and _returned_everywhere(look.verdicts):
        return _all_returned(look.verdicts)
    exchange = _exchange(cycle, key, queue, allowed, look.full)
    if exchange is not None:
        return exchange
    longest = view.classes[key.class_id].longest_wait
    reservation = cycle.reservations.reserve(
        job.id,
        job.name,
        view.shapes[key.shape_id],
        allowed[-1],
        look.full,
        accumulates=longest is not None and cycle.now - job.submitted_at >= longest,
    )
    if look.over:
        reason = explain.over_quota(look.over[0], look.verdicts)
    else:
        reason = explain.blocked(look.verdicts)
        cycle.blocked[alike] = reason, look.full
    return reason if reservation is None else explain.expected(reason, reservation, view)


def _exchange(
    cycle: _Cycle,
    key: ClassKey,
    queue: Queue,
    sizes: list[Size],
    clusters: list[int] | None,
    *,
    for_quota: bool = False,
) -> Exchange | None:
    """Runs that may be ended for a class that lacks room on these clusters or, where none are named, quota."""
    if not cycle.evictions.may_help(key, queue, sizes[-1]):
        return None
    if clusters is None:
        alike = _Alike(key.shape_id, len(sizes), queue.allowed_kinds, key.avoided, 0.0)
        looked_at = cycle.rooms.looked_at(alike, cycle.now)
        clusters = [cluster.id for cluster, ruled_out in looked_at if ruled_out is None]
    return cycle.evictions.find(key, queue, sizes, clusters, for_quota=for_quota)


def _evictions(view: View, job: WaitingJob, queue: Queue, exchange: Exchange) -> list[Eviction]:
    return [
        Eviction(
            victim.run.job_id,
            victim.run.attempt,
            exchange.cluster_id,
            explain.evicted(view, victim.run, job, queue, by_class=victim.by_class),
        )
        for victim in exchange.victims
    ]


def _start_after(view: View, job: WaitingJob, queue: Queue, exchange: Exchange) -> Start:
    """The start of a job for which runs end."""
    cluster = view.clusters[exchange.cluster_id]
    evicts = tuple(_evictions(view, job, queue, exchange))
    many = "one run ends" if len(evicts) == 1 else f"{len(evicts)} runs end"
    why = f"{cluster.name}, where {many} for it: {evicts[0].why}"
    return Start(job, cluster.id, exchange.size.members, exchange.fitted.placement, why, (), None, evicts)


def _note_start(cycle: _Cycle, job: WaitingJob, cluster_id: int, fitted: Fitted) -> None:
    view = cycle.rooms.view
    ends_at = cycle.now + view.limit_of(job.shape_id, job.queue_id)
    kept = cycle.reservations.kept.get(cluster_id)
    if kept is not None:
        kept.take(_needs_by_role(view, job.shape_id), fitted.placement, ends_at)
    load = {
        LoadKey(group, job.shape_id, role): count
        for group, roles in fitted.placement.items()
        for role, count in roles.items()
    }
    cycle.reservations.note_start(cluster_id, load.items(), ends_at)
    cycle.evictions.note_start(cluster_id, load)


def _needs_by_role(view: View, shape_id: int) -> dict[str, Resources]:
    return {role.name: role.needs for role in view.shapes[shape_id].roles}


def capacity(view: View, rooms: _Rooms, now: float) -> Amounts:
    """What all clusters have together on each line, the measure of shares. One out of contact counts for a while."""
    total: Amounts = {}
    for cluster in view.clusters.values():
        if cluster.report is None or view.lease_until.get(cluster.id, 0.0) + SILENT_SECONDS < now:
            continue
        for line, amount in rooms.capacity(cluster).items():
            total[line] = total.get(line, 0) + amount
    return total


def _ruled_out(rooms: _Rooms, alike: _Alike, cluster: Cluster, now: float) -> Verdict | None:
    """Why a cluster is out of the question for jobs alike, whatever is free there now."""
    view, shape = rooms.view, rooms.view.shapes[alike.shape_id]
    known = view.ruled_out.setdefault((alike.shape_id, alike.allowed_kinds), {})
    for_ever = known.get(cluster.id)
    if for_ever is not None:
        return for_ever
    lease_left = view.lease_until.get(cluster.id, now) - now
    candidate = Candidate(alike.allowed_kinds, shape, cluster, lease_left, alike.avoided)
    if cluster.id not in known:
        failing = first_failing(STATIC, candidate)
        if failing is None:
            never = rooms.never_fits(alike.shape_id, cluster)
            failing = None if never is None else (Check.NEVER_FITS, never)
        known[cluster.id] = _verdict(cluster, failing)
    for_ever = known[cluster.id]
    return for_ever if for_ever is not None else _verdict(cluster, first_failing(PASSING, candidate))


def _verdict(cluster: Cluster, failing: tuple[Check, str] | None) -> Verdict | None:
    return None if failing is None else Verdict(cluster=cluster.name, check=failing[0], sentence=failing[1])


@dataclass(slots=True)
class _Look:
    """Where a gang fits, the first check that fails elsewhere, where only room is lacking, and quota that is in the way."""

    options: list[_Option] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    over: list[Obstacle] = field(default_factory=list)


def _quick_look(cycle: _Cycle, alike: _Alike, queue: Queue, sizes: list[Size]) -> "_Choice | _Look | None":
    """The same as a look where neither quota depends on the place nor anything is kept for others; None where it does.

    Only clusters that have changed since the last look are looked at again.
    """
    rooms = cycle.rooms
    if cycle.reservations.kept or rooms.view.lines.any_narrowed:
        return None
    standing = rooms.standings.get(alike)
    if standing is None:
        standing = rooms.standings[alike] = _Standing()
        changed = [cluster for cluster, ruled_out in rooms.looked_at(alike, cycle.now) if ruled_out is None]
    elif standing.seen < len(rooms.changes):
        fit_for = standing.rank_of.keys() | standing.lacks.keys()
        changed = [rooms.view.clusters[one] for one in set(rooms.changes[standing.seen :]) if one in fit_for]
    else:
        changed = []
    for cluster in changed:
        standing.put(cluster, _known_option(rooms, alike, sizes, cluster, None))
    standing.seen = len(rooms.changes)
    if standing.ranked:
        top = [option for _, _, option in standing.ranked[: MOST_TOLD + 1]]
        return _Choice(top[0], top, standing.lacks.values())
    verdicts = [
        standing.lacks[cluster.id] if ruled_out is None else ruled_out
        for cluster, ruled_out in rooms.looked_at(alike, cycle.now)
    ]
    return _Look(verdicts=verdicts, full=list(standing.lacks))


def _look(cycle: _Cycle, alike: _Alike, job: WaitingJob, queue: Queue, sizes: list[Size]) -> _Look:
    """Look at each cluster with these sizes. Quota is looked at again where it depends on the place."""
    look = _Look()
    narrowed, device = _narrowing(cycle, queue, alike.shape_id)
    for cluster, ruled_out in cycle.rooms.looked_at(alike, cycle.now):
        if ruled_out is not None:
            look.verdicts.append(ruled_out)
            continue
        verdict, found = None, False
        for product in _products(cluster, device):
            outcome = _option_within(cycle, alike, job, queue, sizes, cluster, product, narrowed=narrowed)
            if isinstance(outcome, _Option):
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
    cycle: _Cycle,
    alike: _Alike,
    job: WaitingJob,
    queue: Queue,
    sizes: list[Size],
    cluster: Cluster,
    product: Product | None,
    *,
    narrowed: bool,
) -> _Option | Verdict | Obstacle:
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
            _needs_by_role(cycle.rooms.view, alike.shape_id), outcome.fitted.placement, cycle.now + alike.limit
        ):
            stops = explain.kept(cluster, kept.reservation, alike.limit)
        else:
            return outcome
    if stops is None:
        raise AssertionError("a class without any size to start in is blocked by quota")
    return stops


def _narrowing(cycle: _Cycle, queue: Queue, shape_id: int) -> tuple[bool, str]:
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
    rooms: _Rooms, alike: _Alike, sizes: list[Size], cluster: Cluster, product: Product | None
) -> "_Option | Verdict":
    known = rooms.options.setdefault(cluster.id, {})
    key = (alike.shape_id, len(sizes), product)
    outcome = known.get(key)
    if outcome is None:
        outcome = known[key] = _option(rooms, alike.shape_id, sizes, cluster, product)
    return outcome


def _option(
    rooms: _Rooms, shape_id: int, sizes: list[Size], cluster: Cluster, product: Product | None
) -> _Option | Verdict:
    sentence = ""
    for size in sizes:
        outcome = rooms.fit_now(shape_id, size, cluster.id, product)
        if isinstance(outcome, Fitted):
            free, whole = rooms.free(cluster.id).total(), rooms.empty(cluster).total()
            total, parts = score(Fit(cluster, free, whole, size.needs))
            members = (
                (group, role, count) for group, roles in outcome.placement.items() for role, count in roles.items()
            )
            charge = rooms.view.lines.charge(rooms.view.places_at(cluster.id, shape_id, members))
            return _Option(cluster, size, outcome, total, parts, charge, product)
        sentence = outcome.sentence
    return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)


def _start(job: WaitingJob, best: _Option, top: list[_Option], verdicts: Collection[Verdict]) -> Start:
    """``top``: the best options, the best one first."""
    table = tuple({"cluster": option.cluster.name, "score": option.total, **option.parts} for option in top[:MOST_TOLD])
    why = _why(best, top, verdicts)
    return Start(job, best.cluster.id, best.size.members, best.fitted.placement, why, table, best.product)


def _why(best: _Option, top: list[_Option], verdicts: Collection[Verdict]) -> str:
    second = next((option for option in top if option.cluster is not best.cluster), None)
    if second is None:
        full = [verdict for verdict in verdicts if verdict.check is Check.NO_ROOM]
        others = "".join(
            f"; {one.cluster}: {one.sentence}" for one in nsmallest(2, full, key=lambda verdict: verdict.cluster)
        )
        return f"{best.cluster.name} is the only cluster where it fits now{others}"
    if best.total == second.total:
        return f"{best.cluster.name} before {second.cluster.name}: both are as good, and their names decide"
    gains = {name: SCORES[name][0] * (best.parts[name] - second.parts[name]) for name in best.parts}
    deciding = max(gains, key=lambda name: gains[name])
    words = {
        "kind": f"{best.cluster.kind} clusters are preferred to {second.cluster.kind} ones",
        "packing": "it packs tighter there",
    }
    return f"{best.cluster.name} before {second.cluster.name}: {words[deciding]}"


def _returned_everywhere(verdicts: list[Verdict]) -> bool:
    """Whether every cluster that the job could go to has returned it."""
    ruled_out = {check for check, _ in STATIC} | {Check.NEVER_FITS}
    eligible = [verdict for verdict in verdicts if verdict.check not in ruled_out]
    return bool(eligible) and all(verdict.check is Check.COOLING_DOWN for verdict in eligible)


def _all_returned(verdicts: list[Verdict]) -> str:
    names = [verdict.cluster for verdict in verdicts if verdict.check is Check.COOLING_DOWN]
    return f"every cluster it could go to returned it: {', '.join(names)}"
