"""Advance reservations: nodes that an admin keeps for a queue in a window of time.

For the queue and those below it nothing changes. A job of another queue may start on such a cluster if it ends before
the window begins, or if besides it, from then on, as many whole nodes as are reserved can still be free; nodes on which
the queue's own runs are count as free for that. The nodes are chosen again at each check: those with most left when the
window begins. Runs that are active when a window begins continue; what they free belongs to the queue until it has as
many nodes as reserved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.run_times import Ends
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, FreeCapacity, add_members
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.reservations.backfill import ReservedCapacity
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation
from trainmaster_dispatcher.scheduling.state.live_runs import LoadKey, load_of
from trainmaster_dispatcher.scheduling.state.reservation import Reservation


@dataclass(slots=True)
class _Reserved:
    """One reservation on one cluster, in one cycle."""

    reservation: AdvanceReservation
    at: float
    """The time from which on it keeps nodes: the beginning of its window, or now."""
    kept: ReservedCapacity | None = None
    """The capacity that is left for others then, computed on the first request."""
    started: list[tuple[Mapping[str, RoleShape], MemberPlacement, float]] = field(default_factory=list)
    """Jobs of others that have started there before the first request."""


class AdvanceReservations:
    """The advance reservations of one cycle. Times are seconds since the epoch."""

    def __init__(self, layouts: ClusterLayouts, now: float, among: Iterable[AdvanceReservation] | None = None) -> None:
        """Collect the reservations by cluster; ``among``: these reservations instead of all."""
        self._layouts, self._state = layouts, layouts.state
        self._now = now
        self._on: dict[int, list[_Reserved]] = {}
        self._entitled: dict[int, tuple[int, ...]] = {}
        by_name = {cluster.name: cluster.id for cluster in self._state.clusters.values()}
        every = self._state.advance.values() if among is None else among
        for one in sorted(every, key=lambda one: (one.begins_at, one.id)):
            if one.ends_at > now:
                for name in one.clusters or sorted(by_name):
                    if name in by_name:
                        window = _Reserved(one, max(now, one.begins_at))
                        self._on.setdefault(by_name[name], []).append(window)

    def __bool__(self) -> bool:
        return bool(self._on)

    def work_out(self) -> None:
        """Compute what is kept on every cluster, even if it is not requested."""
        for cluster_id, windows in self._on.items():
            for window in windows:
                self._kept(cluster_id, window)

    def is_on(self, cluster_id: int) -> bool:
        """Return whether anything is reserved on a cluster, now or later."""
        return cluster_id in self._on

    def entitled(self, queue_id: int) -> tuple[int, ...]:
        """Return the reservations for a queue or for one above it."""
        if not self._on:
            return ()
        found = self._entitled.get(queue_id)
        if found is None:
            above = {queue.id for queue in self._state.ancestry(queue_id)}
            windows = {window.reservation for windows in self._on.values() for window in windows}
            found = tuple(sorted(one.id for one in windows if one.queue_id in above))
            self._entitled[queue_id] = found
        return found

    def closes(
        self,
        cluster_id: int,
        entitled: tuple[int, ...],
        roles: Mapping[str, RoleShape],
        placement: MemberPlacement,
        end: float,
    ) -> AdvanceReservation | None:
        """Return the reservation that members may not start beside, if they run until ``end`` in these groups; None if they may."""
        for window in self._of_others(cluster_id, entitled):
            if end > window.at and not self._kept(cluster_id, window).lets(roles, placement, Ends(end, end)):
                return window.reservation
        return None

    def open_groups(self, cluster_id: int, entitled: tuple[int, ...], end: float) -> frozenset[str] | None:
        """Return the node groups in which anything is left for others until ``end``; None if nothing is kept from them."""
        found: frozenset[str] | None = None
        for window in self._of_others(cluster_id, entitled):
            if end > window.at:
                beside = self._kept(cluster_id, window).beside.groups
                left = frozenset(name for name, entries in beside.items() if entries)
                found = left if found is None else found & left
        return found

    def not_before(self, cluster_id: int, entitled: tuple[int, ...], at: float, limit: float) -> float:
        """Return the latest start of a job that could start at ``at`` but does not run while nodes are kept for others."""
        for window in self._of_others(cluster_id, entitled):
            one = window.reservation
            if at < one.ends_at and at + limit > one.begins_at:
                at = one.ends_at
        return at

    def note_start(
        self,
        cluster_id: int,
        entitled: tuple[int, ...],
        roles: Mapping[str, RoleShape],
        placement: MemberPlacement,
        end: float,
    ) -> None:
        """Record a start of this cycle that ``closes`` allowed, or that is entitled."""
        for window in self._of_others(cluster_id, entitled):
            if window.kept is None:
                window.started.append((roles, placement, end))
            else:
                window.kept.take(roles, placement, Ends(end, end))

    def _of_others(self, cluster_id: int, entitled: tuple[int, ...]) -> list[_Reserved]:
        """Return the reservations on a cluster that are not ``entitled``."""
        return [window for window in self._on.get(cluster_id, ()) if window.reservation.id not in entitled]

    def _kept(self, cluster_id: int, window: _Reserved) -> ReservedCapacity:
        if window.kept is None:
            one = window.reservation
            beside = _without(self._others(cluster_id, one, window.at), one)
            window.kept = ReservedCapacity(Reservation(0, one.name, cluster_id, window.at), beside)
            for roles, placement, end in window.started:
                window.kept.take(roles, placement, Ends(end, end))
            window.started.clear()
        return window.kept

    def _others(self, cluster_id: int, one: AdvanceReservation, at: float) -> FreeCapacity:
        """Return the free capacity of the cluster at ``at`` under those runs of other queues that have not ended by then."""
        state = self._state
        load: dict[str, dict[LoadKey, int]] = {}
        is_own: dict[int, bool] = {}
        for run in state.runs_on.get(cluster_id, {}).values():
            if run.queue_id not in is_own:
                is_own[run.queue_id] = any(queue.id == one.queue_id for queue in state.ancestry(run.queue_id))
            # A run that has exceeded its time limit is counted until it has ended.
            if not is_own[run.queue_id] and (at <= self._now or state.ends_at(run) > at):
                add_members(load, load_of(run))
        return self._layouts.under(cluster_id, load)


def _without(free_capacity: FreeCapacity, one: AdvanceReservation) -> FreeCapacity:
    """Return the capacity without the reserved nodes: of the matching nodes, those with the most left, whole ones first."""
    matching = [
        entry
        for entry in free_capacity.nodes
        if all(entry.group.labels.get(key) == value for key, value in one.selector)
    ]
    reserved: dict[int, int] = {}
    missing = one.nodes
    for entry in sorted(matching, key=_most_left):
        if not missing:
            break
        reserved[id(entry)] = min(entry.count, missing)
        missing -= reserved[id(entry)]
    return FreeCapacity(
        {
            name: tuple(
                entry.some(entry.count - reserved.get(id(entry), 0))
                for entry in entries
                if entry.count > reserved.get(id(entry), 0)
            )
            for name, entries in free_capacity.groups.items()
        },
        free_capacity.eligible,
    )


def _most_left(entry: NodeBucket) -> tuple[float, int, int, str]:
    """Return the sort key of a node: unused nodes first, then by the part that is left of the scarcest resource, large
    ones last."""
    left = min((entry.free.get(name, 0) / there for name, there in entry.group.free.items() if there > 0), default=1.0)
    devices = sum(amount for name, amount in entry.group.free.items() if "/" in name)
    return -left, devices, entry.group.free.get("cpu", 0), entry.group.name
