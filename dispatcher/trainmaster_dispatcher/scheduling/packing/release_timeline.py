"""When running jobs release what they hold: a cluster at later times, its groups of nodes laid out only when somebody asks."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import inf
from typing import Generic, TypeVar

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.free_capacity import (
    ClusterLayouts,
    FreeCapacity,
    add_members,
    needs_of_load,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, fit, may_repeat, only_role, suits
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.state.state import LiveRun, LoadKey, load_of

_MOST_LAID = 20
_OVERDUE_SECONDS = 1.0
"""Until when a run is expected to end that should have ended already."""


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
        self.laid: dict[int, Sequence[NodeBucket]] = {}
        """By how many have ended."""
        self.free: Resources | None = None
        """What is free on all nodes now, as far as somebody has asked; what is there in thought only is not taken off."""


class ReleaseTimeline:
    """A cluster at later times, when the runs that are there have ended at their limits.

    It is told what comes and goes, and holds whatever the time is. A group of nodes is laid out only for the times at which a
    run in it ends, and when somebody asks.
    """

    def __init__(self, layouts: ClusterLayouts, cluster_id: int) -> None:
        state = layouts.state
        self._layouts = layouts
        self._state = state
        self._cluster_id = cluster_id
        self._empty = layouts.empty(cluster_id)
        self._ends: _Timeline[tuple[tuple[LoadKey, int], ...]] = _Timeline()
        """When runs end, and what is on the cluster of them."""
        self._groups: dict[str, _Group] = {}
        self._strays = 0
        """How many members it is not known of in which group they are."""
        self._earliest: dict[tuple[int, int], float] = {}
        self._times: list[float] | None = None
        self._in_thought: list[tuple[tuple[tuple[LoadKey, int], ...], float]] = []
        self._collect(state.runs_on.get(cluster_id, {}).values())

    def note(self, run: LiveRun, many: int, ends_at: float) -> None:
        """Count ``many`` equivalent runs that came and end at ``ends_at``, or with -1 take one off."""
        self._move(load_of(run), ends_at, many)

    def add(self, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """Something more runs there, in thought."""
        members = tuple(load)
        self._in_thought.append((members, ends_at))
        for key, _ in members:
            self._group(key.group).extra += 1
        self._move(members, ends_at, 1)

    def forget_thoughts(self) -> None:
        """Only what the state says is there."""
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
        state = self._state
        own: dict[int, float | None] = {}
        of_queue: dict[int, float] = {}
        ending, until = list[LiveRun](), list[float]()
        for run in runs:
            shape_id, queue_id = run.shape_id, run.queue_id
            if shape_id not in own:
                own[shape_id] = state.shapes[shape_id].time_limit_seconds
            limit = own[shape_id]
            if run.burst is not None:
                ending.append(run)
                until.append(run.burst.until)
                continue
            if limit is None:
                if queue_id not in of_queue:
                    of_queue[queue_id] = state.limit_of(None, queue_id)
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
            shape = self._state.shapes[shape_id]
            alone = only_role(shape, size)
            if self._strays:
                alone = None
            at = self._earliest_of_many(shape, size) if alone is None else self._earliest_of_one(alone)
            self._earliest[key] = at
        return max(at, now + _OVERDUE_SECONDS)

    def _earliest_of_one(self, role: RoleShape) -> float:
        """A member alone: only where a run ends there is news, and only once so much has been freed that it may be enough."""
        state, needs = self._state, role.needs
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
                for one, amount in needs_of_load(state, key).items():
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
            members = self._state.load.get(self._cluster_id, {}).get(name)
            for one in self._layouts.group(self._cluster_id, name, members):
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
        """Whether so many equivalent members fit into these groups: it is enough to count."""
        for name in suiting:
            for one in self._group_at(name, at):
                if one.takes(role.needs):
                    members -= one.count * one.holds(role.needs)
                    if members <= 0:
                        return True
        return False

    def room(self, at: float) -> FreeCapacity:
        """The cluster when every run that ends by ``at`` has ended; a room of the caller's own."""
        return self._room(at)

    def _room(self, at: float) -> FreeCapacity:
        if self._strays:
            load = {name: dict(group.endless) for name, group in self._groups.items()}
            for entry in self._ends.after(at):
                add_members(load, entry)
            return self._layouts.under(self._cluster_id, load)
        return FreeCapacity({name: self._group_at(name, at) for name in self._empty.groups}, self._empty.suiting)

    def _group_at(self, name: str, at: float) -> Sequence[NodeBucket]:
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
                members = self._state.load.get(self._cluster_id, {}).get(name, {})
            if len(group.laid) > _MOST_LAID:
                group.laid.clear()
            laid = group.laid[passed] = self._layouts.group(self._cluster_id, name, members)
        return laid
