"""Reservations for blocked jobs, and whether another job may start before them: EASY backfill over many clusters.

The first job that only lacks room reserves the earliest time at which its gang fits somewhere, if runs end at their time limits;
the next one reserves on another cluster, one reservation for each. A job may start on a reserved cluster if it ends before that
time, or if the reserved gang fits then beside it. Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", 2001. There the
machine is a number of processors; here it is the node groups of a cluster with their topology.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from trainmaster.dispatcher.domain.shapes import Shape
from trainmaster.dispatcher.scheduling.fit import Fitted, Product, Size, allows, fit, take
from trainmaster.dispatcher.scheduling.room import Room, add_members, fill, laid_out
from trainmaster.dispatcher.scheduling.view import LoadKey, View, load_of
from trainmaster.protocol.quantities import Resources

STAYS = 0.9
"""A reservation moves to another cluster only if the wait there is less than this part of the wait where it is."""

_OVERDUE_SECONDS = 1.0
"""Until when a run is expected to end that should have ended already."""


class Reservation(NamedTuple):
    """A cluster that is kept for a job from a time on, in seconds since the epoch; infinite where it is kept from now on."""

    job_id: int
    name: str
    cluster_id: int
    at: float


class Later:
    """A cluster at later times, when the runs that are there have ended at their limits."""

    def __init__(self, view: View, cluster_id: int, now: float) -> None:
        self._view = view
        self._cluster_id = cluster_id
        self._endless: dict[str, dict[LoadKey, int]] = {}
        self._ends: list[tuple[float, tuple[tuple[LoadKey, int], ...]]] = []
        self._now = now
        self._rooms: dict[int, Room] = {}
        for run in view.runs_on.get(cluster_id, {}).values():
            self.add(tuple(load_of(run)), view.ends_at(run))

    def add(self, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """Something more runs there."""
        self._rooms.clear()
        if ends_at == inf:
            add_members(self._endless, load)
        else:
            self._ends.append((max(ends_at, self._now + _OVERDUE_SECONDS), tuple(load)))

    def earliest(self, shape: Shape, size: Size, product: Product | None) -> float:
        """When the gang fits; infinite if it does not even when every run with a limit has ended.

        What fits at one time is taken to fit later too, so the time is found by bisection.
        """
        times = self._times()
        if not times or not isinstance(fit(shape, size.members, self._room(len(times), times), product), Fitted):
            return inf
        low, high = 0, len(times)
        # Invariant: it fits when the first ``high`` times have passed, and does not when the first ``low`` have.
        while high - low > 1:
            middle = (low + high) // 2
            if isinstance(fit(shape, size.members, self._room(middle, times), product), Fitted):
                high = middle
            else:
                low = middle
        return times[high - 1]

    def room(self, at: float) -> Room:
        """The cluster when every run that ends by ``at`` has ended; a room of the caller's own."""
        times = self._times()
        return self._room(bisect_right(times, at), times).copy()

    def _times(self) -> list[float]:
        self._ends.sort(key=lambda entry: entry[0])
        return sorted({at for at, _ in self._ends})

    def _room(self, passed: int, times: list[float]) -> Room:
        """The cluster once so many of the times have passed."""
        room = self._rooms.get(passed)
        if room is None:
            load = dict(self._endless)
            for _, entry in self._ends[self._index_after(times[passed - 1]) if passed else 0 :]:
                add_members(load, entry)
            room = self._rooms[passed] = laid_out(self._view, self._cluster_id, load)
        return room

    def _index_after(self, at: float) -> int:
        return bisect_right(self._ends, at, key=lambda entry: entry[0])


@dataclass(slots=True)
class Kept:
    """A reservation with the room that is left beside it at its time."""

    reservation: Reservation
    beside: Room
    groups: frozenset[str] = frozenset()
    """Where no time is known: the groups in which everything that is freed is kept."""

    def lets(self, needs: Mapping[str, Resources], placement: Mapping[str, Mapping[str, int]], ends_at: float) -> bool:
        """Whether members may start now in these groups, if they end then, without delaying the reserved gang."""
        if self.reservation.at == inf:
            return self.groups.isdisjoint(placement)
        return ends_at <= self.reservation.at or self._holds(needs, placement) is not None

    def take(self, needs: Mapping[str, Resources], placement: Mapping[str, Mapping[str, int]], ends_at: float) -> None:
        """Members have started there that ``lets`` has let."""
        if ends_at > self.reservation.at:
            left = self._holds(needs, placement)
            if left is not None:
                self.beside = left

    def _holds(self, needs: Mapping[str, Resources], placement: Mapping[str, Mapping[str, int]]) -> Room | None:
        """What is left beside the reserved gang and these members; None if they do not all fit."""
        work = dict(self.beside.groups)
        for group, roles in placement.items():
            for role, count in roles.items():
                missing, _ = fill(work, needs[role], count, (group,) if group in work else ())
                if missing:
                    return None
        return Room(work)


@dataclass(slots=True)
class Reservations:
    """The reservations of one cycle. ``before``: those of the cycle before, by job."""

    view: View
    now: float
    before: Mapping[int, Reservation]
    kept: dict[int, Kept] = field(default_factory=dict)
    """By cluster."""
    _later: dict[int, Later] = field(default_factory=dict)
    _started: dict[int, list[tuple[tuple[tuple[LoadKey, int], ...], float]]] = field(default_factory=dict)
    """By cluster: what this cycle has started there, and when it ends."""

    def later(self, cluster_id: int) -> Later:
        """The cluster at later times, worked out when it is first asked for: where nobody is blocked, nobody asks."""
        later = self._later.get(cluster_id)
        if later is None:
            later = self._later[cluster_id] = Later(self.view, cluster_id, self.now)
            for load, ends_at in self._started.get(cluster_id, ()):
                later.add(load, ends_at)
        return later

    def note_start(self, cluster_id: int, load: Iterable[tuple[LoadKey, int]], ends_at: float) -> None:
        """A job starts in this cycle."""
        members = tuple(load)
        self._started.setdefault(cluster_id, []).append((members, ends_at))
        if cluster_id in self._later:
            self._later[cluster_id].add(members, ends_at)

    def reserve(
        self, job_id: int, name: str, shape: Shape, size: Size, clusters: Iterable[int], *, accumulates: bool
    ) -> Reservation | None:
        """Reserve for a job on one of these clusters, on which it only lacks room; None if there is nothing to be had.

        ``accumulates``: it has waited so long that, where no end is known, whatever is freed on one cluster is kept for it.
        """
        open_ones = [cluster_id for cluster_id in clusters if cluster_id not in self.kept]
        if not open_ones:
            return None
        times = {cluster_id: self.later(cluster_id).earliest(shape, size, None) for cluster_id in open_ones}
        best = min(open_ones, key=lambda cluster_id: (times[cluster_id], cluster_id))
        old = self.before.get(job_id)
        if old is not None and old.cluster_id in times and times[old.cluster_id] < inf:
            here, there = times[old.cluster_id] - self.now, times[best] - self.now
            best = old.cluster_id if there >= STAYS * here else best
        at = times[best]
        if at < inf:
            beside = self.later(best).room(at)
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
