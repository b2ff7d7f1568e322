"""One cycle: ``decide(view, now) -> plan``. Order, quota, filter, fit, score, explain.

The pieces are modules of their own; this one only leads a class of jobs through them, turn by turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from trainmaster.dispatcher.scheduling import explain, quota
from trainmaster.dispatcher.scheduling.filters import PASSING, STATIC, Candidate, first_failing
from trainmaster.dispatcher.scheduling.fit import Fitted, Shortfall, Size, fit, size_choices, take
from trainmaster.dispatcher.scheduling.order import Turns, Usage
from trainmaster.dispatcher.scheduling.plan import Hold, Plan, Start
from trainmaster.dispatcher.scheduling.room import Room
from trainmaster.dispatcher.scheduling.scores import SCORES, Fit, score
from trainmaster.dispatcher.scheduling.view import Cluster, Queue, View, WaitingJob
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Reason, Token, Verdict
from trainmaster.protocol.states import ClusterKind

MOST_STARTS = 2000
"""Starts in one plan at most, so that applying it stays a short transaction; the next cycle follows at once."""

MOST_TOLD = 5
"""Clusters in the table that is kept with a decision, the best ones."""


@dataclass(slots=True)
class _Rooms:
    """The rooms of this cycle, made when first looked at."""

    view: View
    now_free: dict[int, Room] = field(default_factory=dict)
    sizes: dict[int, list[Size]] = field(default_factory=dict)
    full: dict[tuple[int, int, int], Shortfall] = field(default_factory=dict)
    """By shape, size and cluster. Rooms only shrink during a cycle, so what had no room is not tried again."""
    options: dict[int, dict[tuple[int, int], "_Option | Verdict"]] = field(default_factory=dict)
    """By cluster, then by shape and number of sizes: holds until something is taken from the cluster's room."""
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
        room: Room | None = self.view.empty_rooms.get(cluster.id)
        if room is None:
            room = Room.empty(cluster.report) if cluster.report else Room([])
            self.view.empty_rooms[cluster.id] = room
        return room

    def never_fits(self, shape_id: int, cluster: Cluster) -> str | None:
        """Why the smallest size of the gang fits nowhere on the empty cluster; None when it does."""
        outcome = fit(self.view.shapes[shape_id], self.sizes_of(shape_id)[-1].members, self.empty(cluster))
        return outcome.sentence if isinstance(outcome, Shortfall) else None

    def fit_now(self, shape_id: int, size: Size, cluster_id: int) -> Fitted | Shortfall:
        key = (shape_id, size.total, cluster_id)
        if key in self.full:
            return self.full[key]
        outcome = fit(self.view.shapes[shape_id], size.members, self.free(cluster_id))
        if isinstance(outcome, Shortfall):
            self.full[key] = outcome
        return outcome

    def take(self, option: "_Option") -> None:
        take(self.free(option.cluster.id), option.fitted)
        self.options.pop(option.cluster.id, None)

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


class _Alike(NamedTuple):
    """What of a class decides where it may go and whether it fits: all classes alike in it are blocked once one of them is."""

    shape_id: int
    sizes: int
    allowed_kinds: frozenset[ClusterKind]
    avoided: tuple[int, ...]


def decide(view: View, now: float, most_starts: int = MOST_STARTS) -> Plan:
    """The plan for this moment. ``now`` is on the clock of ``view.lease_until``."""
    plan = Plan()
    rooms = _Rooms(view)
    usage = Usage(view, _capacity(view, rooms))
    turns = Turns(view, usage)
    blocked: dict[_Alike, Reason] = {}
    while (turn := turns.next()) is not None:
        key, job_id = turn
        job = view.jobs[job_id]
        if len(plan.starts) >= most_starts:
            plan.reasons[key] = explain.reason(Token.CYCLE_LIMIT, "Other jobs were started first in this cycle.")
            turns.block(key)
            continue
        queue, sizes = view.queues[key.queue_id], rooms.sizes_of(key.shape_id)
        held_back = _quota_reason(view, usage, queue, sizes[-1].needs)
        if held_back is not None:
            plan.reasons[key] = held_back
            turns.block(key)
            continue
        allowed = [size for size in sizes if not quota.over_limit(view, usage, queue.id, size.needs)]
        alike = _Alike(key.shape_id, len(allowed), queue.allowed_kinds, key.avoided)
        if alike in blocked:
            plan.reasons[key] = blocked[alike]
            turns.block(key)
            continue
        options, verdicts = _look(rooms, alike, allowed, now)
        if options:
            best = min(options, key=lambda option: (-option.total, option.cluster.name))
            rooms.take(best)
            usage.add(queue.id, best.size.needs)
            plan.starts.append(_start(job, best, options, verdicts))
            turns.done(key)
            continue
        if alike.avoided and _returned_everywhere(verdicts):
            plan.holds.append(Hold(job, _all_returned(verdicts)))
            turns.done(key)
            continue
        plan.reasons[key] = blocked[alike] = explain.blocked(verdicts)
        turns.block(key)
    return plan


def _capacity(view: View, rooms: _Rooms) -> Resources:
    """What all clusters have together, the measure of dominant shares."""
    total: Resources = {}
    for cluster in view.clusters.values():
        for name, amount in rooms.empty(cluster).total().items():
            total[name] = total.get(name, 0) + amount
    return total


def _quota_reason(view: View, usage: Usage, queue: Queue, needs: Resources) -> Reason | None:
    for above in view.ancestry(queue.id):
        if above.held:
            return explain.reason(Token.QUEUE_HELD, f"Queue {above.path} is held.")
    for_ever = quota.never_within_limits(view, queue.id, needs)
    if for_ever is not None:
        return explain.over_quota(queue, for_ever, for_ever=True)
    sentence = quota.over_limit(view, usage, queue.id, needs)
    return None if sentence is None else explain.over_quota(queue, sentence, for_ever=False)


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


def _look(rooms: _Rooms, alike: _Alike, sizes: list[Size], now: float) -> tuple[list[_Option], list[Verdict]]:
    """The clusters where the gang fits in one of these sizes, and the first check that fails on each of the others."""
    options: list[_Option] = []
    verdicts: list[Verdict] = []
    key = (alike.shape_id, len(sizes))
    for cluster, ruled_out in rooms.looked_at(alike, now):
        if ruled_out is not None:
            verdicts.append(ruled_out)
            continue
        known = rooms.options.setdefault(cluster.id, {})
        outcome = known.get(key)
        if outcome is None:
            outcome = known[key] = _option(rooms, alike.shape_id, sizes, cluster)
        if isinstance(outcome, _Option):
            options.append(outcome)
        else:
            verdicts.append(outcome)
    return options, verdicts


def _option(rooms: _Rooms, shape_id: int, sizes: list[Size], cluster: Cluster) -> _Option | Verdict:
    sentence = ""
    for size in sizes:
        outcome = rooms.fit_now(shape_id, size, cluster.id)
        if isinstance(outcome, Fitted):
            free, capacity = rooms.free(cluster.id).total(), rooms.empty(cluster).total()
            total, parts = score(Fit(cluster, free, capacity, size.needs))
            return _Option(cluster, size, outcome, total, parts)
        sentence = outcome.sentence
    return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=sentence)


def _start(job: WaitingJob, best: _Option, options: list[_Option], verdicts: Sequence[Verdict]) -> Start:
    table = tuple(
        {"cluster": option.cluster.name, "score": option.total, **option.parts}
        for option in nlargest(MOST_TOLD, options, key=lambda option: option.total)
    )
    return Start(job, best.cluster.id, best.size.members, best.fitted.placement, _why(best, options, verdicts), table)


def _why(best: _Option, options: list[_Option], verdicts: Sequence[Verdict]) -> str:
    if len(options) == 1:
        full = [verdict for verdict in verdicts if verdict.check is Check.NO_ROOM]
        others = "".join(f"; {verdict.cluster}: {verdict.sentence}" for verdict in full[:2])
        return f"{best.cluster.name} is the only cluster where it fits now{others}"
    second = max((option for option in options if option is not best), key=lambda option: option.total)
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
