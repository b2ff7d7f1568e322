"""Reservations for blocked jobs, and whether another job may start before them: EASY backfill over many clusters.

The first job that only lacks room reserves the earliest time at which its gang fits somewhere, if runs end at their time limits;
the next one reserves on another cluster, one reservation for each. A job may start on a reserved cluster if it ends before that
time, or if the reserved gang fits then beside it. Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", 2001. There the
machine is a number of processors; here it is the node groups of a cluster with their topology.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, NamedTuple, TypeVar

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.fit import Fitted, Size, fit, may_repeat, only_role, suits, take
from trainmaster_dispatcher.scheduling.nodes import Nodes, fill
from trainmaster_dispatcher.scheduling.room import (
    Room,
    add_members,
    empty_room,
    laid_out,
    laid_out_group,
    needs_of_load,
)
from trainmaster_dispatcher.scheduling.suiting import allows
from trainmaster_dispatcher.scheduling.view import LiveRun, LoadKey, View, load_of

STAYS = 0.9
"""A reservation moves to another cluster only if the wait there is less than this part of the wait where it is."""

_MOST_LAID = 20
_OVERDUE_SECONDS = 1.0
"""Until when a run is expected to end that should have ended already."""


class Reservation(NamedTuple):
    """A cluster that is kept for a job from a time on, in seconds since the epoch; infinite where it is kept from now on."""

    job_id: int
    name: str
    cluster_id: int
    at: float


_What = TypeVar("_What")


class _Timeline(Generic[_What]):
    """What ends when, in the order of time. Two lists instead of one of pairs: those would keep the garbage collector busy."""

    __slots__ = ("at", "what")

    def __init__(self) -> None:
        self.at: list[float] = []
        self.what: list[_What] = []

    def put(self, at: float, what: _What, many: int) -> None:
        """So many more of it, or with -1 one less."""
        if many < 0:
            place = self.what.index(what, bisect_left(self.at, at))
            del self.at[place], self.what[place]
        else:
            place = bisect_right(self.at, at)
            self.at[place:place] = [at] * many
            self.what[place:place] = [what] * many

    def after(self, at: float) -> list[_What]:
        """What ends later."""
        return self.what[bisect_right(self.at, at) :]


class _Group:
    """When members in one group of nodes end, and how its nodes are laid out then."""

    __slots__ = ("endless", "ends", "extra", "free", "laid")

    def __init__(self) -> None:
        self.ends: _Timeline[tuple[LoadKey, int]] = _Timeline()
        self.endless: dict[LoadKey, int] = {}
        self.extra = 0
        """How many of them are there in thought only."""
        self.laid: dict[int, Sequence[Nodes]] = {}
        """By how many have ended."""
        self.free: Resources | None = None
        """What is free on all nodes now, as far as somebody has asked; what is there in thought only is not taken off."""


class Later:
    """A cluster at later times, when the runs that are there have ended at their limits.

    It is told what comes and goes, and holds whatever the time is. A group of nodes is laid out only for the times at which a
    run in it ends, and when somebody asks.
    """

    def __init__(self, view: View, cluster_id: int) -> None:
        self._view = view
        self._cluster_id = cluster_id
        self._empty = empty_room(view, cluster_id)
        self._ends: _Timeline[tuple[tuple[LoadKey, int], ...]] = _Timeline()
        """When runs end, and what is on the cluster of them."""
        self._groups: dict[str, _Group] = {}
        self._strays = 0
        """How many members it is not known of in which group they are."""
        self._earliest: dict[tuple[int, int], float] = {}
        self._times: list[float] | None = None
        self._in_thought: list[tuple[tuple[tuple[LoadKey, int], ...], float]] = []
        self._collect(view.runs_on.get(cluster_id, {}).values())

    def note(self, run: LiveRun, many: int) -> None:
        """So many runs alike have come, or with -1 one has gone."""
        self._move(load_of(run), self._view.ends_at(run), many)

    def add(self, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """Something more runs there, in thought."""
        members = tuple(load)
        self._in_thought.append((members, ends_at))
        for key, _ in members:
            self._group(key.group).extra += 1
        self._move(members, ends_at, 1)

    def forget_thoughts(self) -> None:
        """Only what the view says is there."""
        for members, ends_at in self._in_thought:
            for key, _ in members:
                self._group(key.group).extra -= 1
            self._move(members, ends_at, -1)
        self._in_thought.clear()

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group

    def _move(self, load: tuple[tuple[LoadKey, int], ...], ends_at: float, many: int) -> None:
        self._earliest.clear()
        self._times = None
        for key, count in load:
            group = self._group(key.group)
            group.laid.clear()
            group.free = None
            if key.group not in self._empty.groups:
                self._strays += many * count
            if ends_at == inf:
                group.endless[key] = group.endless.get(key, 0) + many * count
                if not group.endless[key]:
                    del group.endless[key]
            else:
                group.ends.put(ends_at, (key, count), many)
        if ends_at < inf:
            self._ends.put(ends_at, load, many)

    def _collect(self, runs: Iterable[LiveRun]) -> None:
        """Take in the runs that are there from the beginning: ``_move`` with less work, as they come in the order of their ends."""
        view = self._view
        own: dict[int, float | None] = {}
        of_queue: dict[int, float] = {}
        ending, until = list[LiveRun](), list[float]()
        for run in runs:
            shape_id, queue_id = run.shape_id, run.queue_id
            if shape_id not in own:
                own[shape_id] = view.shapes[shape_id].time_limit_seconds
            limit = own[shape_id]
            if run.burst is not None:
                ending.append(run)
                until.append(run.burst.until)
                continue
            if limit is None:
                if queue_id not in of_queue:
                    of_queue[queue_id] = view.limit_of(None, queue_id)
                limit = of_queue[queue_id]
            if limit < inf:
                ending.append(run)
                until.append(run.began_at + limit)
                continue
            for key, count in load_of(run):
                group = self._group(key.group)
                group.endless[key] = group.endless.get(key, 0) + count
        groups, end_at, ends = self._groups, self._ends.at, self._ends.what
        for index in sorted(range(len(ending)), key=until.__getitem__):
            at, load = until[index], load_of(ending[index])
            end_at.append(at)
            ends.append(load)
            for item in load:
                name = item[0].group
                of = groups.get(name)
                if of is None:
                    of = self._group(name)
                of.ends.at.append(at)
                of.ends.what.append(item)
        for name in groups.keys() - self._empty.groups.keys():
            self._strays += sum(groups[name].endless.values()) + sum(count for _, count in groups[name].ends.what)

    def earliest(self, shape_id: int, size: Size, now: float) -> float:
        """When the gang fits; infinite if it does not even when every run with a limit has ended.

        What fits at one time is taken to fit later too. A run that should have ended already is expected to end in a moment.
        """
        key = (shape_id, size.total)
        at = self._earliest.get(key)
        if at is None:
            shape = self._view.shapes[shape_id]
            alone = only_role(shape, size)
            if self._strays:
                alone = None
            at = self._earliest_of_many(shape, size) if alone is None else self._earliest_of_one(alone)
            if shape_id > 0:  # others are on trial, and the next one is another
                self._earliest[key] = at
        return max(at, now + _OVERDUE_SECONDS)

    def _earliest_of_one(self, role: RoleShape) -> float:
        """A member alone: only where a run ends there is news, and only once so much has been freed that it may be enough."""
        view, needs = self._view, role.needs
        suiting = frozenset(suits(role, self._empty))
        seen: set[tuple[str, float]] = set()
        lacking: dict[str, Resources] = {}
        for at, load in zip(self._ends.at, self._ends.what, strict=True):
            for key, count in load:
                name = key.group
                if name not in suiting:
                    continue
                lacks = lacking.get(name)
                if lacks is None:
                    free = self._free_of(name)
                    lacks = lacking[name] = {one: need - free.get(one, 0) for one, need in needs.items()}
                for one, amount in needs_of_load(view, key).items():
                    if one in lacks:
                        lacks[one] -= amount * count
                if (name, at) in seen or max(lacks.values(), default=0) > 0:
                    continue
                seen.add((name, at))
                if any(nodes.takes(needs) for nodes in self._group_at(name, at)):
                    return at
        return inf

    def _free_of(self, name: str) -> Resources:
        """What is free on the nodes of a group together now, or somewhat more."""
        group = self._group(name)
        if group.free is None:
            group.free = {}
            members = self._view.load.get(self._cluster_id, {}).get(name)
            for one in laid_out_group(self._view, self._cluster_id, name, members):
                for resource, amount in one.free.items():
                    group.free[resource] = group.free.get(resource, 0) + max(amount, 0) * one.count
        return group.free

    def _earliest_of_many(self, shape: Shape, size: Size) -> float:
        """In steps that double, then by bisection."""
        if self._times is None:
            self._times = sorted(set(self._ends.at))
        times = self._times

        role = None if self._strays else may_repeat(shape, size)
        suiting = () if role is None else suits(role, self._empty)

        def fits(index: int) -> bool:
            if role is not None:
                return self._has_room(role, size.total, suiting, times[index])
            return isinstance(fit(shape, size.members, self._room(times[index])), Fitted)

        low, high = -1, 0
        # Invariant: it fits at ``high``, once that is known, and does not at ``low``.
        while high < len(times) and not fits(high):
            if high == len(times) - 1:
                return inf
            low, high = high, min(2 * high + 1, len(times) - 1)
        if not times:
            return inf
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle
        return times[high]

    def _has_room(self, role: RoleShape, members: int, suiting: Iterable[str], at: float) -> bool:
        """Whether so many members alike fit into these groups: it is enough to count."""
        for name in suiting:
            for one in self._group_at(name, at):
                if one.takes(role.needs):
                    members -= one.count * one.holds(role.needs)
                    if members <= 0:
                        return True
        return False

    def room(self, at: float) -> Room:
        """The cluster when every run that ends by ``at`` has ended; a room of the caller's own."""
        return self._room(at)

    def _room(self, at: float) -> Room:
        if self._strays:
            load = {name: dict(group.endless) for name, group in self._groups.items()}
            for entry in self._ends.after(at):
                add_members(load, entry)
            return laid_out(self._view, self._cluster_id, load)
        return Room({name: self._group_at(name, at) for name in self._empty.groups}, self._empty.suiting)

    def _group_at(self, name: str, at: float) -> Sequence[Nodes]:
        """The nodes of a group when every run that ends by ``at`` has ended; for a cluster without strays."""
        group = self._groups.get(name)
        if group is None:
            return self._empty.groups[name]
        passed = bisect_right(group.ends.at, at)
        laid = group.laid.get(passed)
        if laid is None:
            if passed or group.extra:
                members = dict(group.endless)
                for key, count in group.ends.what[passed:]:
                    members[key] = members.get(key, 0) + count
            else:
                members = self._view.load.get(self._cluster_id, {}).get(name, {})
            if len(group.laid) > _MOST_LAID:
                group.laid.clear()
            laid = group.laid[passed] = laid_out_group(self._view, self._cluster_id, name, members)
        return laid


@dataclass(slots=True)
class Kept:
    """A reservation with the room that is left beside it at its time."""

    reservation: Reservation
    beside: Room
    groups: frozenset[str] = frozenset()
    """Where no time is known: the groups in which everything that is freed is kept."""

    def lets(self, roles: Mapping[str, RoleShape], placement: Mapping[str, Mapping[str, int]], ends_at: float) -> bool:
        """Whether members may start now in these groups, if they end then, without delaying the reserved gang."""
        if self.reservation.at == inf:
            return self.groups.isdisjoint(placement)
        return ends_at <= self.reservation.at or self._holds(roles, placement) is not None

    def take(self, roles: Mapping[str, RoleShape], placement: Mapping[str, Mapping[str, int]], ends_at: float) -> None:
        """Members have started there that ``lets`` has let."""
        if ends_at > self.reservation.at:
            left = self._holds(roles, placement)
            if left is not None:
                self.beside = left

    def _holds(self, shapes: Mapping[str, RoleShape], placement: Mapping[str, Mapping[str, int]]) -> Room | None:
        """What is left beside the reserved gang and these members; None if they do not all fit."""
        work = dict(self.beside.groups)
        for group, roles in placement.items():
            for role, count in roles.items():
                suiting, shape = (group,) if group in work else (), shapes[role]
                missing, _ = fill(work, shape.needs, count, suiting, max_per_node=shape.max_per_node, numa=shape.numa)
                if missing:
                    return None
        return Room(work)


def _at_once(_cluster_id: int, at: float) -> float:
    return at


@dataclass(slots=True)
class Reservations:
    """The reservations of one cycle. ``before``: those of the cycle before, by job."""

    view: View
    now: float
    before: Mapping[int, Reservation]
    later: Callable[[int], Later]
    """The clusters at later times, as they were when the cycle began."""
    kept: dict[int, Kept] = field(default_factory=dict)
    """By cluster."""
    _started: dict[int, list[tuple[tuple[tuple[LoadKey, int], ...], float]]] = field(default_factory=dict)
    """By cluster: what this cycle has started there, and when it ends."""
    _told: dict[int, int] = field(default_factory=dict)
    """By cluster: of how much of that its later times know."""

    def _later(self, cluster_id: int) -> Later:
        """The cluster at later times, worked out when it is first asked for: where nobody is blocked, nobody asks."""
        later, started = self.later(cluster_id), self._started.get(cluster_id, ())
        for load, ends_at in started[self._told.get(cluster_id, 0) :]:
            later.add(load, ends_at)
        self._told[cluster_id] = len(started)
        return later

    def earliest(self, cluster_id: int, shape_id: int, size: Size) -> float:
        """When a gang fits on a cluster, and not before the job that it is kept for; seconds since the epoch."""
        at, kept = self._later(cluster_id).earliest(shape_id, size, self.now), self.kept.get(cluster_id)
        return at if kept is None else max(at, kept.reservation.at)

    def note_start(self, cluster_id: int, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """A job starts in this cycle."""
        self._started.setdefault(cluster_id, []).append((tuple(load), ends_at))

    def reserve(
        self,
        job_id: int,
        name: str,
        shape_id: int,
        size: Size,
        clusters: Iterable[int],
        *,
        accumulates: bool,
        not_before: Callable[[int, float], float] = _at_once,
    ) -> Reservation | None:
        """Reserve for a job on one of these clusters, on which it only lacks room; None if there is nothing to be had.

        ``not_before``: when it starts on a cluster at the earliest that has room for it from a time on.

        ``accumulates``: it has waited so long that, where no end is known, whatever is freed on one cluster is kept for it.
        """
        open_ones = [cluster_id for cluster_id in clusters if cluster_id not in self.kept]
        if not open_ones:
            return None
        shape = self.view.shapes[shape_id]
        times = {one: not_before(one, self._later(one).earliest(shape_id, size, self.now)) for one in open_ones}
        best = min(open_ones, key=lambda cluster_id: (times[cluster_id], cluster_id))
        old = self.before.get(job_id)
        if old is not None and old.cluster_id in times and times[old.cluster_id] < inf:
            here, there = times[old.cluster_id] - self.now, times[best] - self.now
            best = old.cluster_id if there >= STAYS * here else best
        at = times[best]
        if at < inf:
            beside = self._later(best).room(at)
            fitted = fit(shape, size.members, beside)
            if not isinstance(fitted, Fitted):
                return None
            take(beside, fitted)
            kept = Kept(Reservation(job_id, name, best, at), beside)
        elif accumulates:
            chosen = old.cluster_id if old is not None and old.cluster_id in times else best
            kept = Kept(Reservation(job_id, name, chosen, inf), Room({}), self._groups_for(shape, chosen))
        else:
            return None
        self.kept[kept.reservation.cluster_id] = kept
        return kept.reservation

    def _groups_for(self, shape: Shape, cluster_id: int) -> frozenset[str]:
        """The groups that any member of the gang may use."""
        report = self.view.clusters[cluster_id].report
        return frozenset(
            group.name
            for group in (report.groups if report is not None else ())
            if any(
                allows(role, group) and all(group.free.get(name, 0) >= need for name, need in role.needs.items())
                for role in shape.roles
            )
        )
