"""The order of turns: weighted dominant-resource fairness between sibling queues; urgency, class, age and priority inside a queue.

Between queues (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): of the children with something to start, the
one whose dominant share beyond its guarantees, divided by its weight, is lowest goes next; applied again at each level
of the tree. Past usage of queues counts too if the installation is configured so (``usage_decay.py``). Inside a queue
keys are static: a job's position changes only when it becomes urgent.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, StaticKey
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_URGENT = -(10**9)
"""The rank of urgent jobs: before every class, whose values are at most a million."""

STEP = 1 / 1024
"""The share by which a queue may get ahead of its siblings in one turn. Equivalent jobs that follow one another start
together within it; where a single job exceeds it, turns are taken job by job."""
LONGEST_ROW = 64
"""The largest number of jobs that start in one turn."""


class Head(NamedTuple):
    """A job's position in its queue: minus the value of its class, or the rank of urgent jobs; then its static key."""

    rank: int
    at: float
    job_id: int

    @property
    def is_urgent(self) -> bool:
        return self.rank == _URGENT


def head_of(priority_class: PriorityClass, key: StaticKey, now: float) -> Head:
    """Return the position of a job with this key now. Urgent jobs are ordered by age alone, whatever their class."""
    longest = priority_class.longest_wait
    is_urgent = longest is not None and now - key.at >= longest
    return Head(_URGENT if is_urgent else -priority_class.value, key.at, key.job_id)


class _TurnOrder:
    """The classes of a queue in the order of their turns. Classes that have not had a turn yet stay in the state's own order."""

    def __init__(self, state: SchedulerState, queue_id: int, now: float) -> None:
        self._state = state
        self._now = now
        self._heap: list[tuple[Head, ClassKey, Iterator[StaticKey]]] = []
        """Classes that were pushed here: their positions, and the jobs behind the first."""
        self._rest: Iterator[tuple[float, float, int, ClassKey]] = iter(())
        self._waiting = state.waiting.get(queue_id, {})
        of = {key.class_id for key in self._waiting} if state.any_longest_wait else set()
        if any(state.classes[one].longest_wait is not None for one in of if one in state.classes):
            # It depends on the time which jobs are urgent.
            for key, keys in self._waiting.items():
                self._push(key, iter(keys))
        else:
            self._rest = iter(state.heads.get(queue_id, ()))
        self._next = next(self._rest, None)
        self._row: tuple[ClassKey, list[StaticKey], Iterator[StaticKey]] | None = None
        """A class that starts a row of jobs, the jobs that may be in the row, and the jobs behind them."""

    def _push(self, key: ClassKey, jobs: Iterator[StaticKey]) -> None:
        of, first = self._state.classes.get(key.class_id), next(jobs, None)
        if first is not None and of is not None:
            heappush(self._heap, (head_of(of, first, self._now), key, jobs))

    def __bool__(self) -> bool:
        return bool(self._heap) or self._next is not None

    def first(self) -> tuple[ClassKey, int]:
        """Return the class whose turn it is and its first job that was not handled yet."""
        if self._takes_next():
            _, _, job_id, key = self._next  # type: ignore[misc]
            return key, job_id
        head, key, _ = self._heap[0]
        return key, head.job_id

    def _takes_next(self) -> bool:
        return self._next is not None and (not self._heap or self._next[:3] < self._heap[0][0])

    def pop(self, *, goes_on: bool) -> None:
        """Remove the class that had its turn; with ``goes_on`` its next job may have another turn."""
        if self._takes_next():
            key = self._next[3]  # type: ignore[index]
            self._next = next(self._rest, None)
            if goes_on:
                jobs = iter(self._waiting[key])
                next(jobs)
                self._push(key, jobs)
            return
        _, key, jobs = heappop(self._heap)
        if goes_on:
            self._push(key, jobs)

    def has_more(self, key: ClassKey) -> bool:
        """Return whether other jobs of a class wait besides its first one."""
        return len(self._waiting[key]) > 1

    def row(self, most: Callable[[], int]) -> list[int]:
        """Return the equivalent jobs directly behind the first one of the class that has its turn; ``most`` is called
        only if there are any.

        The class is out of the order until ``end_row`` reports how many of them were scheduled with the first.
        """
        if self._takes_next():
            key = self._next[3]  # type: ignore[index]
            self._next = next(self._rest, None)
            jobs = iter(self._waiting[key])
            next(jobs)
        else:
            _, key, jobs = heappop(self._heap)
        others = [self._heap[0][0]] if self._heap else []
        if self._next is not None:
            rank, at, job_id, _ = self._next
            others.append(Head(int(rank), at, job_id))
        until = min(others, default=None)
        of, candidates = self._state.classes[key.class_id], list[StaticKey]()
        limit, many = 1, 0
        for job in jobs:
            candidates.append(job)
            if until is not None and head_of(of, job, self._now) > until:
                break
            if not many:
                limit = most()
            many += 1
            if many >= limit:
                break
        self._row = key, candidates, jobs
        return [one.job_id for one in candidates[: min(many, limit)]]

    def end_row(self, count: int) -> None:
        """Mark ``count`` jobs of the row as scheduled; the next job of the class may have another turn."""
        if self._row is None:
            raise AssertionError("there is no row")
        key, candidates, jobs = self._row
        self._row = None
        self._push(key, chain(candidates[count:], jobs))

    def pass_by(self, is_blocked: Callable[[ClassKey], bool]) -> bool:
        """Drop classes from the front as long as they are blocked; return whether any were."""
        heap, rest, passed = self._heap, self._rest, False
        while True:
            first = self._next
            if first is not None and (not heap or first[:3] < heap[0][0]):
                if not is_blocked(first[3]):
                    return passed
                self._next = next(rest, None)
            else:
                if not heap or not is_blocked(heap[0][1]):
                    return passed
                heappop(heap)
            passed = True

    def clear(self) -> list[ClassKey]:
        """Empty it and return the classes that were in it."""
        left = [key for _, key, _ in self._heap]
        if self._next is not None:
            left += [self._next[3], *(key for _, _, _, key in self._rest)]
        self._heap, self._next = [], None
        return left


class FairShareQueue:
    """Gives out classes of jobs one turn at a time; a blocked class does not get another turn in this cycle.

    There is a heap at each level of the tree: a turn changes the shares only on the way from the root to one queue, and
    these queues are the tops of their heaps. A queue's own order is built only when the queue has a turn.
    """

    def __init__(self, state: SchedulerState, quotas: QuotaTree, now: float) -> None:
        self._state = state
        self._quotas = quotas
        self._now = now
        self._turn_orders: dict[int, _TurnOrder] = {}
        self._waiting = {queue_id for queue_id in state.waiting if queue_id in state.queues}
        """Queues whose turn orders are not built yet."""
        self._children: dict[int | None, list[tuple[float, float, int]]] = {}
        """By queue, or None above the roots: the queues below it that have something to start, by share."""
        active = {queue.id: queue for queue_id in self._waiting for queue in state.ancestry(queue_id)}
        for queue_id in sorted(active):
            queue = active[queue_id]
            heappush(self._children.setdefault(queue.parent_id, []), self._place(queue))

    def _place(self, queue: Queue) -> tuple[float, float, int]:
        beyond, whole = self._quotas.standing(queue)
        return beyond, whole, queue.id

    def _turn_order(self, queue_id: int) -> _TurnOrder:
        if queue_id in self._waiting:
            self._waiting.discard(queue_id)
            self._turn_orders[queue_id] = _TurnOrder(self._state, queue_id, self._now)
        return self._turn_orders[queue_id]

    def next(self) -> tuple[ClassKey, int] | None:
        """Return the class whose turn it is and the id of its first job; None when nothing is left."""
        while True:
            level: int | None = None
            while children := self._children.get(level):
                level = children[0][2]
            if level is None:
                return None
            turns = self._turn_order(level)
            if turns:
                return turns.first()
            self._settle(level)  # none of its jobs has a known priority class

    def done(self, key: ClassKey) -> None:
        """Mark the first job of the class, which had the turn, as handled; its next job may have a turn."""
        self._turn_orders[key.queue_id].pop(goes_on=True)
        self._settle(key.queue_id)

    def lead(self, queue_id: int, charge: Mapping[Flavor, int], most: int) -> int:
        """Return how many jobs with this charge, up to ``most``, may start directly behind the one that has the turn
        before a sibling is due.

        Found by halving: it may be less than possible, never more.
        """
        for queue in self._state.ancestry(queue_id):
            siblings = self._children[queue.parent_id]
            if len(siblings) > 1:
                runner_up = min(siblings[1:3])
                if not self._keeps_step(queue, charge, 1, runner_up):
                    return 0
                while not self._keeps_step(queue, charge, most, runner_up):
                    most //= 2
        return most

    def _keeps_step(
        self, queue: Queue, charge: Mapping[Flavor, int], started: int, runner_up: tuple[float, float, int]
    ) -> bool:
        """Return whether a queue is ahead of the next one by at most a step after ``started`` starts."""
        beyond, whole = self._quotas.standing(queue, charge, started)
        if beyond > 0.0 >= runner_up[0] and self._quotas.tree.guaranteed:
            return False  # the next queue lacks what is guaranteed to it
        if beyond == runner_up[0]:
            if whole == runner_up[1]:
                return queue.id < runner_up[2]
            return whole <= runner_up[1] + STEP
        return beyond <= runner_up[0] + STEP

    def has_more(self, key: ClassKey) -> bool:
        """Return whether other jobs are equivalent to the one that has the turn."""
        return self._turn_orders[key.queue_id].has_more(key)

    def row(self, key: ClassKey, most: Callable[[], int]) -> list[int]:
        """Return the equivalent jobs directly behind the one that has the turn, which was handled; ``end_row`` must follow.

        ``most`` returns how many of them are allowed; it is called only if there are any.
        """
        return self._turn_orders[key.queue_id].row(most)

    def end_row(self, key: ClassKey, count: int) -> None:
        """Mark ``count`` jobs of the row as handled too; the next job of the class may have a turn."""
        self._turn_orders[key.queue_id].end_row(count)
        self._settle(key.queue_id)

    def block(self, key: ClassKey) -> None:
        """Exclude this class, which had the turn: none of its jobs can start in this cycle."""
        turns = self._turn_orders[key.queue_id]
        turns.pop(goes_on=False)
        if not turns:
            self._settle(key.queue_id)

    def pass_by(self, queue_id: int, is_blocked: Callable[[ClassKey], bool]) -> bool:
        """Drop blocked classes from the front of the queue that has the turn; return whether there were any."""
        turns = self._turn_orders[queue_id]
        passed = turns.pass_by(is_blocked)
        if passed and not turns:
            self._settle(queue_id)
        return passed

    def close(self, key: ClassKey) -> list[ClassKey]:
        """Close this queue for the rest of the cycle after the class that had the turn; return its other classes."""
        left = [other for other in self._turn_orders[key.queue_id].clear() if other != key]
        self._settle(key.queue_id)
        return left

    def _settle(self, queue_id: int) -> None:
        """Move the queue that had the turn, and those above it, to their new positions in the heaps."""
        for queue in self._state.ancestry(queue_id):
            siblings = self._children[queue.parent_id]
            if queue.id in self._waiting or self._turn_orders.get(queue.id) or self._children.get(queue.id):
                if len(siblings) > 1:
                    heapreplace(siblings, self._place(queue))
            else:
                heappop(siblings)
