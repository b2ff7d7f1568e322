"""Conditions of queues on the start of their jobs, in one cycle: hours for the queue, utilisation and price for each cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.reasons import Check, Reason, Verdict
from trainmaster_dispatcher.domain.start_conditions import Quiet, all_open_at, words_on_hours
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.cost_estimate import hourly
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster, Queue


@dataclass(slots=True)
class StartRules:
    """The conditions of all queues at ``now``.

    ``quiet_before``: see ``Plan.quiet``, of the cycle before.
    """

    index: ClusterIndex
    now: float
    quiet_before: frozenset[tuple[int, int]]
    next_opening: float = inf
    """The earliest time at which the hours of a queue begin whose jobs wait for that."""
    _quiet: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By queue and cluster that were looked at: whether jobs start there until the upper limit is reached."""
    _closed: dict[tuple[int, ...], Reason | None] = field(default_factory=dict)

    @property
    def quiet(self) -> frozenset[tuple[int, int]]:
        """Return the queues and clusters where jobs start as the cluster is quiet, for the next cycle."""
        return frozenset(key for key, is_quiet in self._quiet.items() if is_quiet)

    def outside_hours(self, queue: Queue) -> Reason | None:
        """Return why no job of a queue starts at this time of the week; None if jobs may start."""
        every = [one for one in self.index.state.starts_when(queue.id) if one.starts_when and one.starts_when.hours]
        if not every:
            return None
        key = tuple(one.id for one in every)
        if key not in self._closed:
            at = all_open_at([one.starts_when.hours for one in every if one.starts_when], self.now)
            self._closed[key] = None if at <= self.now else self._closed_until(every, at)
            if at > self.now:
                self.next_opening = min(self.next_opening, at)
        return self._closed[key]

    def _closed_until(self, every: list[Queue], at: float) -> Reason:
        hours = "; ".join(
            f"queue {one.path} starts jobs at {words_on_hours(one.starts_when.hours)} only"
            for one in every
            if one.starts_when and all_open_at([one.starts_when.hours], self.now) > self.now
        )
        return explain.outside_hours(hours, at)

    def needs_quiet(self, access: Access) -> bool:
        """Return whether jobs with this access start on quiet clusters only: nothing is ended, moved or kept for them."""
        return any(self._conditions(queue_id)[0] is not None for queue_id in access.conditions)

    def keeps_size(self, queue_id: int) -> bool:
        """Return whether runs of a queue do not grow now: outside its hours, and where it starts jobs on quiet clusters only."""
        state = self.index.state
        if not state.starts_when(queue_id):
            return False
        queue = state.queues[queue_id]
        return self.needs_quiet(state.access_of(queue)) or self.outside_hours(queue) is not None

    def refusal(self, scheduling_key: SchedulingKey, members: Mapping[str, int], cluster: Cluster) -> Verdict | None:
        """Return the verdict on a cluster that does not meet a condition now; ``members``: of each role, of the smallest gang."""
        for queue_id in scheduling_key.access.conditions:
            quiet, price = self._conditions(queue_id)
            sentence = None if quiet is None else self._is_busy(queue_id, quiet, cluster)
            if sentence is None and price is not None:
                costs = hourly(cluster, self.index.state.shapes[scheduling_key.shape_id], members, None, None)
                if costs >= price:
                    sentence = (
                        f"it costs {_money(costs)} an hour there, queue {self._path(queue_id)} starts jobs where one costs"
                        f" less than {_money(price)}"
                    )
            if sentence is not None:
                return Verdict(cluster=cluster.name, check=Check.START_CONDITION, sentence=sentence)
        return None

    def _is_busy(self, queue_id: int, quiet: Quiet, cluster: Cluster) -> str | None:
        used = max((taken / there for taken, there in self.index.usage(cluster).values()), default=0.0)
        key = queue_id, cluster.id
        is_on = self._quiet.get(key)
        if is_on is None:
            is_on = key in self.quiet_before
        most = quiet.until if is_on or used < quiet.below else quiet.below
        self._quiet[key] = used < most
        if used < most:
            return None
        return f"{used:.0%} of it is in use, queue {self._path(queue_id)} starts jobs there below {quiet.below:.0%}"

    def _conditions(self, queue_id: int) -> tuple[Quiet | None, int | None]:
        found = self.index.state.queues[queue_id].starts_when
        return (None, None) if found is None else (found.quiet, found.price)

    def _path(self, queue_id: int) -> str:
        return self.index.state.queues[queue_id].path


def _money(nanos: int) -> str:
    return f"{nanos / NANOS:.2f}"
