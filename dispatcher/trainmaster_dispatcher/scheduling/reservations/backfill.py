"""Reservations for blocked jobs, and whether another job may start before them: EASY backfill over many clusters.

The first job that only lacks capacity reserves the earliest time at which its gang fits somewhere, if runs end at their
time limits; the next one reserves on another cluster, one reservation for each. A job may start on a reserved cluster
if it ends before that time, or if the reserved gang fits then beside it. Lifka, "The ANL/IBM SP scheduling system",
1995; Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM
SP2 with backfilling", 2001. There the machine is a number of processors; here it is the node groups of a cluster with
their topology.

What is kept for a job that has waited for the longest wait of its class, without a known time or past its time, stays
kept in the next cycle until that job has its turn, also from jobs whose turn is earlier: between queues the order changes
with each end, and a gang that needs a whole cluster would lose the last end to whoever is first then, again and again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.run_times import Ends
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.packing.best_fit import fill
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.free_capacity import (
    FreeCapacity,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, fit, take
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey
from trainmaster_dispatcher.scheduling.state.reservation import Reservation
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

STAYS = 0.9
"""A reservation moves to another cluster only if the wait there is less than this part of the wait where it is."""


@dataclass(slots=True)
class ReservedCapacity:
    """A reservation with the capacity that is left beside it at its time."""

    reservation: Reservation
    beside: FreeCapacity
    groups: frozenset[str] = frozenset()
    """If no time is known: the groups in which everything that is freed is kept."""
    gang: tuple[Shape, Size] | None = None
    """The gang that it is reserved for, if a time is known."""
    is_due: bool = False
    """Whether the job has waited long: one that has not gives the cluster up to it."""

    def lets(self, roles: Mapping[str, RoleShape], placement: MemberPlacement, ends: Ends) -> bool:
        """Return whether members may start now in these groups, if they end at ``ends``, without delaying the reserved gang."""
        if self.reservation.at == inf:
            return self.groups.isdisjoint(placement)
        return self._end(ends) <= self.reservation.at or self._holds(roles, placement) is not None

    def take(self, roles: Mapping[str, RoleShape], placement: MemberPlacement, ends: Ends) -> None:
        """Subtract members that ``lets`` allowed and that have started."""
        if self._end(ends) > self.reservation.at:
            left = self._holds(roles, placement)
            if left is not None:
                self.beside = left

    def _end(self, ends: Ends) -> float:
        """Return the end that the reservation is planned with."""
        return ends.latest if self.reservation.is_sure else ends.expected

    def _holds(self, shapes: Mapping[str, RoleShape], placement: MemberPlacement) -> FreeCapacity | None:
        """Return the capacity that is left beside the reserved gang and these members; None if they do not all fit."""
        work = dict(self.beside.groups)
        for group, roles in placement.items():
            for role, count in roles.items():
                eligible, shape = (group,) if group in work else (), shapes[role]
                missing, _ = fill(
                    work,
                    shape.needs,
                    count,
                    eligible,
                    max_per_node=shape.max_per_node,
                    numa=shape.numa,
                    exclusive=shape.exclusive,
                )
                if missing:
                    return None
        return FreeCapacity(work)


class Timelines(Protocol):
    """The release timelines of clusters."""

    def __call__(self, cluster_id: int, *, is_sure: bool) -> ReleaseTimeline:
        """Return the one of a cluster; ``is_sure``: with time limits alone, without predicted run times."""


def has_waited_long(state: SchedulerState, job: WaitingJob, now: float) -> bool:
    """Return whether a job has waited for the longest wait of its class since it was submitted."""
    of = state.classes.get(job.class_id)
    return of is not None and of.longest_wait is not None and now - job.waits_since >= of.longest_wait


def _at_once(_cluster_id: int, at: float) -> float:
    return at


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A blocked job that capacity is to be kept for.

    ``accumulates``: the job has waited so long that only what surely ends before it may start, by a time limit, and if no end is
    known, everything that is freed on one cluster is kept for it.

    ``not_before``: the earliest start on a cluster that has enough free capacity for the job from a given time on.
    """

    job_id: int
    name: str
    shape_id: int
    size: Size
    accumulates: bool
    not_before: Callable[[int, float], float] = _at_once


@dataclass(slots=True)
class Reservations:
    """The reservations of one cycle. ``before``: those of the cycle before, by job."""

    state: SchedulerState
    now: float
    before: Mapping[int, Reservation]
    later: Timelines
    """The release timelines of the clusters, as they were when the cycle began."""
    sizes_of: Callable[[int], Sequence[Size]]
    """Returns the sizes with which gangs of a shape may start, the least one last."""
    kept: dict[int, ReservedCapacity] = field(default_factory=dict)
    """By cluster."""
    _started: dict[int, list[tuple[tuple[tuple[LoadKey, int], ...], Ends]]] = field(default_factory=dict)
    """By cluster: the load that this cycle has started there, and when it ends."""
    _counts_in_timeline: dict[tuple[int, bool], int] = field(default_factory=dict)
    """By cluster, and whether it is sure: the number of these starts that its release timeline contains."""
    due: dict[ClassKey, int] = field(default_factory=dict)
    """By class of jobs: the cluster that is kept from the cycle before until the class has its turn."""
    _behind: dict[int, ReservationRequest] = field(default_factory=dict)
    """By cluster that is kept from the cycle before: the first job, in the order of turns, that it was refused to for that."""
    _released: int | None = None
    """The cluster that is no longer kept for the job that has its turn."""

    def __post_init__(self) -> None:
        for job_id, one in self.before.items():
            job = self.state.jobs.get(job_id)
            if job is None or not has_waited_long(self.state, job, self.now):
                continue
            key, shape = self.state.class_of(job_id), self.state.shapes.get(job.shape_id)
            if shape is not None and one.cluster_id in self.state.clusters and one.cluster_id not in self.kept:
                self.kept[one.cluster_id] = self._until_its_turn(one, job.shape_id, shape)
                self.due[key] = one.cluster_id

    def _until_its_turn(self, one: Reservation, shape_id: int, shape: Shape) -> ReservedCapacity:
        """Return what is kept for a job that has waited long until its turn, which may come after those of jobs that have not.

        With a time at which it surely fits, others may start before it as beside any reservation; else everything is kept.
        """
        if one.at > self.now:
            size = self.sizes_of(shape_id)[-1]
            later = self._later(one.cluster_id, is_sure=True)
            at = later.earliest(shape_id, size, self.now)
            if at < inf:
                beside = later.free_capacity_at(at)
                fitted = fit(shape, size.members, beside)
                if isinstance(fitted, Fitted):
                    take(beside, fitted)
                    return ReservedCapacity(one._replace(at=at, is_sure=True), beside, gang=(shape, size), is_due=True)
        groups = self._groups_for(shape, one.cluster_id)
        return ReservedCapacity(one._replace(at=inf), FreeCapacity({}), groups, is_due=True)

    def release(self, key: ClassKey) -> bool:
        """Release what is kept from the cycle before for a class that has its turn; return whether anything was."""
        cluster_id = self.due.pop(key, None)
        if cluster_id is None:
            return False
        del self.kept[cluster_id]
        self._released = cluster_id
        return True

    def pass_on(self) -> None:
        """Keep a cluster that was released for the first job that was refused it, unless it is kept for the same job again.

        Otherwise the next job of the user that had it would reserve it, as those whose turn was earlier have had theirs: one user
        would have the cluster until nothing of that user waits.
        """
        cluster_id, self._released = self._released, None
        if cluster_id is not None and cluster_id not in self.kept and (request := self._behind.pop(cluster_id, None)):
            self.reserve(request, (cluster_id,))

    def carried(self, *, is_cut: bool) -> dict[int, Reservation]:
        """Return the reservations of this cycle by job; after one that was cut off, also those of classes without a turn."""
        over = set() if is_cut else set(self.due.values())
        return {one.reservation.job_id: one.reservation for id_, one in self.kept.items() if id_ not in over}

    def _later(self, cluster_id: int, *, is_sure: bool) -> ReleaseTimeline:
        """Return a release timeline of a cluster with the starts of this cycle, computed on request."""
        later, started = self.later(cluster_id, is_sure=is_sure), self._started.get(cluster_id, ())
        for load, ends in started[self._counts_in_timeline.get((cluster_id, is_sure), 0) :]:
            later.add(load, ends.latest if is_sure else ends.expected)
        self._counts_in_timeline[cluster_id, is_sure] = len(started)
        return later

    def earliest(self, cluster_id: int, shape_id: int, size: Size) -> float:
        """Return when a gang is expected to fit on a cluster, not before the job that the cluster is kept for; seconds since the
        epoch.
        """
        at = self._later(cluster_id, is_sure=False).earliest(shape_id, size, self.now)
        kept = self.kept.get(cluster_id)
        return at if kept is None else max(at, kept.reservation.at)

    def let_once_gone(
        self,
        cluster_id: int,
        roles: Mapping[str, RoleShape],
        placement: MemberPlacement,
        ends: Ends,
        gone: Sequence[LiveRun],
    ) -> bool:
        """Return whether members may start on a cluster by the rule of ``lets``, once the runs ``gone`` of the cluster
        have ended."""
        kept = self.kept.get(cluster_id)
        if kept is None or kept.lets(roles, placement, ends):
            return True
        if kept.gang is None:
            return False
        later, (shape, size) = self._later(cluster_id, is_sure=kept.reservation.is_sure), kept.gang
        for run in gone:
            later.note(run, -1, self.state.ends_at(run))
        try:
            beside = later.free_capacity_at(kept.reservation.at)
        finally:
            for run in gone:
                later.note(run, 1, self.state.ends_at(run))
        fitted = fit(shape, size.members, beside)
        if not isinstance(fitted, Fitted):
            return False
        take(beside, fitted)
        return ReservedCapacity(kept.reservation, beside).lets(roles, placement, ends)

    def note_start(self, cluster_id: int, load: Iterable[tuple[LoadKey, int]], ends: Ends) -> None:
        """Record a start of this cycle."""
        self._started.setdefault(cluster_id, []).append((tuple(load), ends))

    def note_refused(self, request: ReservationRequest, clusters: Iterable[int]) -> None:
        """Record that a job is refused these clusters, some of which may be kept from the cycle before for jobs with later turns."""
        kept = set(self.due.values()) - self._behind.keys()
        for cluster_id in kept.intersection(clusters):
            self._behind[cluster_id] = request

    def reserve(self, request: ReservationRequest, clusters: Iterable[int]) -> Reservation | None:
        """Reserve for a job on one of these clusters, on which it only lacks capacity; return None if that is not possible."""
        open_ones = [
            one for one in clusters if one not in self.kept or (request.accumulates and not self.kept[one].is_due)
        ]
        if not open_ones:
            return None
        job_id, shape_id, size = request.job_id, request.shape_id, request.size
        shape = self.state.shapes[shape_id]
        is_sure = request.accumulates or not self.state.run_times
        old = self.before.get(job_id)
        times: dict[int, float] = {}
        until = inf  # Another cluster on which it fits later than on the best one until now is of no use.
        for one in sorted(open_ones, key=lambda one: old is None or one != old.cluster_id):
            at = self._later(one, is_sure=is_sure).earliest(shape_id, size, self.now, until)
            times[one] = request.not_before(one, at)
            until = min(until, times[one])
        best = min(open_ones, key=lambda cluster_id: (times[cluster_id], cluster_id))
        if old is not None and old.cluster_id in times and times[old.cluster_id] < inf:
            here, there = times[old.cluster_id] - self.now, times[best] - self.now
            best = old.cluster_id if there >= STAYS * here else best
        at = times[best]
        if at < inf:
            beside = self._later(best, is_sure=is_sure).free_capacity_at(at)
            fitted = fit(shape, size.members, beside)
            if not isinstance(fitted, Fitted):
                return None
            take(beside, fitted)
            reservation = Reservation(job_id, request.name, best, at, is_sure)
            kept = ReservedCapacity(reservation, beside, gang=(shape, size), is_due=request.accumulates)
        elif request.accumulates:
            chosen = old.cluster_id if old is not None and old.cluster_id in times else best
            kept = ReservedCapacity(
                Reservation(job_id, request.name, chosen, inf),
                FreeCapacity({}),
                self._groups_for(shape, chosen),
                is_due=True,
            )
        else:
            return None
        self.kept[kept.reservation.cluster_id] = kept
        return kept.reservation

    def _groups_for(self, shape: Shape, cluster_id: int) -> frozenset[str]:
        """Return the groups that any member of the gang may use."""
        report = self.state.clusters[cluster_id].report
        return frozenset(
            group.name
            for group in (report.groups if report is not None else ())
            if any(allows(role, group) and NodeBucket.of(group, 1).takes(role.needs) for role in shape.roles)
        )
