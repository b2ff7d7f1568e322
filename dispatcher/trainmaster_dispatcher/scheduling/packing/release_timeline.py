"""The times at which running jobs release their resources: a cluster at later times. Node groups are packed only on request."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.run_times import expected_end
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.free_capacity import (
    ClusterLayouts,
    FreeCapacity,
    add_members,
    taken_by_load,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import (
    Fitted,
    Size,
    eligible_groups,
    fit,
    may_repeat,
    only_role,
)
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey, load_of

_MOST_LAID = 20
_OVERDUE_SECONDS = 1.0
"""The time after which a run is expected to end that has exceeded its time limit."""


_What = TypeVar("_What")


class _Timeline(Generic[_What]):
    """Ends in the order of time. Two lists, not one of pairs, which would keep the garbage collector busy."""

    __slots__ = ("at", "what")

    def __init__(self) -> None:
        self.at: list[float] = []
        self.what: list[_What] = []

    def put(self, at: float, what: _What, many: int) -> None:
        """Add ``many`` ends of ``what``, or with -1 remove one."""
        if many < 0:
            place = self.what.index(what, bisect_left(self.at, at))
            del self.at[place], self.what[place]
        else:
            place = bisect_right(self.at, at)
            self.at[place:place] = [at] * many
            self.what[place:place] = [what] * many

    def after(self, at: float) -> list[_What]:
        """Return what ends after ``at``."""
        return self.what[bisect_right(self.at, at) :]


class _PredictedRun(NamedTuple):
    """Equivalent runs with a prediction that is shorter than their time limit."""

    load: tuple[tuple[LoadKey, int], ...]
    began_at: float
    predicted_seconds: float
    latest: float


class _Group:
    """The ends of the members in one group of nodes, and its packed nodes at these times."""

    __slots__ = ("assumed", "endless", "ends", "free", "laid")

    def __init__(self) -> None:
        self.ends: _Timeline[tuple[LoadKey, int]] = _Timeline()
        self.endless: dict[LoadKey, int] = {}
        self.assumed = 0
        """The number of members that are assumed only."""
        self.laid: dict[int, Sequence[NodeBucket]] = {}
        """By the number of members that have ended."""
        self.free: Resources | None = None
        """The free amounts of all nodes now, computed on request; members that are assumed only are not subtracted."""


class ReleaseTimeline:
    """A cluster at later times, when its runs have ended: at their time limits or, if it is not ``is_sure``, as predicted.

    It is updated on each start and end, and is valid for any time from the last call of ``advance`` on. A group of nodes is packed
    only on request, and only for the times at which a run in it ends.
    """

    def __init__(self, layouts: ClusterLayouts, cluster_id: int, now: float = 0.0, *, is_sure: bool = True) -> None:
        state = layouts.state
        self._is_sure = is_sure
        self._now = now
        self._predicted: _Timeline[_PredictedRun] = _Timeline()
        """The runs that are expected to end before their time limits, by their expected ends."""
        self._layouts = layouts
        self._state = state
        self._cluster_id = cluster_id
        self._empty = layouts.empty(cluster_id)
        self._ends: _Timeline[tuple[tuple[LoadKey, int], ...]] = _Timeline()
        """The end of each run, and its members on the cluster."""
        self._groups: dict[str, _Group] = {}
        self._strays = 0
        """The number of members whose group is unknown."""
        self._earliest: dict[tuple[int, int], float] = {}
        """By shape and number of members: when they fit."""
        self._not_by: dict[tuple[int, int], float] = {}
        """By shape and number of members: a time by which they do not fit."""
        self._times: list[float] | None = None
        self._assumed: list[tuple[tuple[tuple[LoadKey, int], ...], float]] = []
        self._collect(state.runs_on.get(cluster_id, {}).values())

    def note(self, run: LiveRun, many: int, ends_at: float) -> None:
        """Add ``many`` equivalent runs that end at ``ends_at`` at the latest, or with -1 remove one."""
        if self._is_sure or run.predicted_seconds is None:
            self._move(load_of(run), ends_at, many)
        else:
            self._put(_PredictedRun(load_of(run), run.began_at, run.predicted_seconds, ends_at), many)

    def advance(self, now: float) -> None:
        """Expect runs to end later that have outlasted their predictions by ``now``."""
        if now <= self._now:
            return
        self._now = now
        due = bisect_right(self._predicted.at, now)
        outlasted = list(zip(self._predicted.at[:due], self._predicted.what[:due], strict=True))
        del self._predicted.at[:due], self._predicted.what[:due]
        for at, one in outlasted:
            self._move(one.load, at, -1)
            self._put(one, 1)

    def _put(self, one: _PredictedRun, many: int) -> None:
        at = expected_end(one.began_at, one.predicted_seconds, one.latest, self._now)
        self._move(one.load, at, many)
        if at < one.latest:
            self._predicted.put(at, one, many)

    def add(self, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """Assume one more run with this load."""
        members = tuple(load)
        self._assumed.append((members, ends_at))
        for key, _ in members:
            self._group(key.group).assumed += 1
        self._move(members, ends_at, 1)

    def remove_assumed(self) -> None:
        """Remove all assumed runs, so that only the runs of the state are left."""
        for members, ends_at in self._assumed:
            for key, _ in members:
                self._group(key.group).assumed -= 1
            self._move(members, ends_at, -1)
        self._assumed.clear()

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group

    def _move(self, load: tuple[tuple[LoadKey, int], ...], ends_at: float, many: int) -> None:
        self._earliest.clear()
        self._not_by.clear()
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
        """Add the runs that exist at the beginning: the same as ``_move`` with less work, as they come in the order of
        their ends."""
        latest_of = self._latest_ends()
        ending, until = list[LiveRun](), list[float]()
        predicted = list[tuple[float, _PredictedRun]]()
        for run in runs:
            at = latest = latest_of(run)
            if run.predicted_seconds is not None and not self._is_sure:
                at = expected_end(run.began_at, run.predicted_seconds, latest, self._now)
                if at < latest:
                    one = _PredictedRun(load_of(run), run.began_at, run.predicted_seconds, latest)
                    predicted.append((at, one))
            if at < inf:
                ending.append(run)
                until.append(at)
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
        for at, one in sorted(predicted, key=itemgetter(0)):
            self._predicted.at.append(at)
            self._predicted.what.append(one)
        for name in groups.keys() - self._empty.groups.keys():
            self._strays += sum(groups[name].endless.values()) + sum(count for _, count in groups[name].ends.what)

    def _latest_ends(self) -> Callable[[LiveRun], float]:
        """Return a function that gives what ``SchedulerState.ends_at`` gives, with less work for many runs."""
        state = self._state
        own: dict[int, float | None] = {}
        of_queue: dict[int, float] = {}

        def latest_of(run: LiveRun) -> float:
            if run.burst is not None:
                return run.burst.until
            shape_id, queue_id = run.shape_id, run.queue_id
            if shape_id not in own:
                own[shape_id] = state.shapes[shape_id].time_limit_seconds
            limit = own[shape_id]
            if limit is None:
                if queue_id not in of_queue:
                    of_queue[queue_id] = state.limit_of(None, queue_id)
                limit = of_queue[queue_id]
            return run.began_at + limit

        return latest_of

    def earliest(self, shape_id: int, size: Size, now: float, until: float = inf) -> float:
        """Return when the gang fits; infinite if it does not even when every run has ended whose end is known, or not by ``until``.

        A gang that fits at one time is assumed to fit later too. A run that has exceeded its time limit is expected to
        end in a moment.
        """
        key = (shape_id, size.total)
        at = self._earliest.get(key)
        if at is None:
            if self._not_by.get(key, -inf) >= until:
                return inf
            shape = self._state.shapes[shape_id]
            alone = only_role(shape, size)
            if alone is not None and not self._strays:
                at = self._earliest_of_one(alone, until)
                if at == inf and until < inf:
                    self._not_by[key] = until
                    return inf
            else:
                at = self._earliest_of_many(shape, size)
            self._earliest[key] = at
        return max(at, now + _OVERDUE_SECONDS)

    def _earliest_of_one(self, role: RoleShape, until: float) -> float:
        """Return when a single member fits, infinite if not by ``until``: only groups in which a run ends are checked, once enough may
        have been freed.
        """
        state, needs = self._state, role.needs
        eligible = frozenset(eligible_groups(role, self._empty))
        seen: set[tuple[str, float]] = set()
        lacking: dict[str, Resources] = {}
        for at, load in zip(self._ends.at, self._ends.what, strict=True):
            if at > until:
                break
            for key, count in load:
                name = key.group
                if name not in eligible:
                    continue
                lacks = lacking.get(name)
                if lacks is None:
                    free = self._free_of(name)
                    lacks = lacking[name] = {
                        one: need - free.get(one, 0) for one, need in needs.items() if one not in self._empty.shared
                    }
                for one, amount in taken_by_load(state, key, self._empty.groups).items():
                    if one in lacks:
                        lacks[one] -= amount * count
                if (name, at) in seen or max(lacks.values(), default=0) > 0:
                    continue
                seen.add((name, at))
                if any(nodes.takes_one(role) for nodes in self._group_at(name, at)):
                    return at
        return inf

    def _free_of(self, name: str) -> Resources:
        """Return the sum of the free amounts on the nodes of a group now, or somewhat more."""
        group = self._group(name)
        if group.free is None:
            group.free = {}
            members = self._state.load.get(self._cluster_id, {}).get(name)
            for one in self._layouts.group(self._cluster_id, name, members):
                for resource, amount in one.free.items():
                    group.free[resource] = group.free.get(resource, 0) + max(amount, 0) * one.count
        return group.free

    def _earliest_of_many(self, shape: Shape, size: Size) -> float:
        """Return when a gang fits, by steps that double and then by bisection."""
        if self._times is None:
            self._times = sorted(set(self._ends.at))
        times = self._times

        role = None if self._strays else may_repeat(shape, size)
        eligible = () if role is None else eligible_groups(role, self._empty)

        def fits(index: int) -> bool:
            if role is not None:
                return self._fits_count(role, size.total, eligible, times[index])
            return isinstance(fit(shape, size.members, self.free_capacity_at(times[index])), Fitted)

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

    def _fits_count(self, role: RoleShape, members: int, eligible: Iterable[str], at: float) -> bool:
        """Return whether ``members`` equivalent members fit into these groups: counting is enough."""
        for name in eligible:
            for one in self._group_at(name, at):
                if one.takes(role.needs):
                    members -= one.count * one.holds_of(role)
                    if members <= 0:
                        return True
        return False

    def free_capacity_at(self, at: float) -> FreeCapacity:
        """Return the free capacity when every run that ends by ``at`` has ended; the caller may change it."""
        if self._strays:
            load = {name: dict(group.endless) for name, group in self._groups.items()}
            for entry in self._ends.after(at):
                add_members(load, entry)
            return self._layouts.under(self._cluster_id, load)
        return FreeCapacity({name: self._group_at(name, at) for name in self._empty.groups}, self._empty.eligible)

    def _group_at(self, name: str, at: float) -> Sequence[NodeBucket]:
        """Return the nodes of a group when every run that ends by ``at`` has ended; for a cluster without strays."""
        group = self._groups.get(name)
        if group is None:
            return self._empty.groups[name]
        passed = bisect_right(group.ends.at, at)
        laid = group.laid.get(passed)
        if laid is None:
            if passed or group.assumed:
                members = dict(group.endless)
                for key, count in group.ends.what[passed:]:
                    members[key] = members.get(key, 0) + count
            else:
                members = self._state.load.get(self._cluster_id, {}).get(name, {})
            if len(group.laid) > _MOST_LAID:
                group.laid.clear()
            laid = group.laid[passed] = self._layouts.group(self._cluster_id, name, members)
        return laid
