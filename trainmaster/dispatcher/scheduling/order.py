"""Whose turn it is: weighted dominant-resource fairness between sibling queues; urgency, class, age and priority inside a queue.

Between queues (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): of the children with something to start, the one whose
dominant share beyond its guarantees, divided by its weight, is lowest goes next; applied again at each level of the tree.
Inside a queue keys are static: a job's place changes only when it becomes urgent.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from trainmaster.dispatcher.scheduling.quota import Ledger
from trainmaster.dispatcher.scheduling.view import ClassKey, PriorityClass, Queue, StaticKey, View

_URGENT = -(10**9)
"""The rank of urgent jobs: before every class, whose values are a million at most."""


class Head(NamedTuple):
    """A job's place in its queue: minus the value of its class, or that of urgent jobs; then its static key."""

    rank: int
    at: float
    job_id: int

    @property
    def is_urgent(self) -> bool:
        return self.rank == _URGENT


def head_of(priority_class: PriorityClass, key: StaticKey, now: float) -> Head:
    """The place of a job with this key now. Urgent ones are told apart by age alone, whatever their class."""
    longest = priority_class.longest_wait
    is_urgent = longest is not None and now - key.at >= longest
    return Head(_URGENT if is_urgent else -priority_class.value, key.at, key.job_id)


Heads = list[tuple[Head, ClassKey, Iterator[StaticKey]]]
"""A heap of classes with the place of their first job and those behind it."""


class Turns:
    """Gives out classes of jobs one turn at a time; a class that is blocked is not given again in this cycle.

    Heaps at each level of the tree: a turn changes the shares on the way from the root to one queue only, and these queues are
    the tops of their heaps.
    """

    def __init__(self, view: View, ledger: Ledger, now: float) -> None:
        self._view = view
        self._ledger = ledger
        self._now = now
        self._classes: dict[int, Heads] = {}
        """By queue: its classes by the place of their first job."""
        self._children: dict[int | None, list[tuple[float, float, int]]] = {}
        """By queue, or None above the roots: the queues below that have something to start, by share."""
        for queue_id, classes in view.waiting.items():
            if queue_id in view.queues:
                heads = self._classes.setdefault(queue_id, [])
                for key, keys in classes.items():
                    # A job may be known before its priority class is, by a moment.
                    if key.class_id in view.classes:
                        self._push(heads, key, iter(keys))
        active = {queue.id: queue for queue_id in self._classes for queue in view.ancestry(queue_id)}
        for queue_id in sorted(active):
            queue = active[queue_id]
            heappush(self._children.setdefault(queue.parent_id, []), self._place(queue))

    def _place(self, queue: Queue) -> tuple[float, float, int]:
        beyond, whole = self._ledger.share(queue)
        return beyond, whole, queue.id

    def _push(self, heads: Heads, key: ClassKey, rest: Iterator[StaticKey]) -> None:
        first = next(rest, None)
        if first is not None:
            heappush(heads, (head_of(self._view.classes[key.class_id], first, self._now), key, rest))

    def next(self) -> tuple[ClassKey, int] | None:
        """The class whose turn it is and the key of its first job; None when nothing is left."""
        level: int | None = None
        while children := self._children.get(level):
            level = children[0][2]
        if level is None:
            return None
        head, key, _ = self._classes[level][0]
        return key, head.job_id

    def done(self, key: ClassKey) -> None:
        """The first job of the class, which had the turn, was dealt with; its next one may have a turn."""
        heads = self._classes[key.queue_id]
        _, _, rest = heappop(heads)
        self._push(heads, key, rest)
        self._settle(key.queue_id)

    def block(self, key: ClassKey) -> None:
        """No job of this class, which had the turn, can start in this cycle."""
        heads = self._classes[key.queue_id]
        heappop(heads)
        if not heads:
            self._settle(key.queue_id)

    def close(self, key: ClassKey) -> list[ClassKey]:
        """No further job of this queue starts in this cycle after the class that had the turn; the other classes in it."""
        heads = self._classes[key.queue_id]
        left = [other for _, other, _ in heads if other != key]
        heads.clear()
        self._settle(key.queue_id)
        return left

    def _settle(self, queue_id: int) -> None:
        """Put the queue that had the turn, and those above it, where they belong now."""
        for queue in self._view.ancestry(queue_id):
            siblings = self._children[queue.parent_id]
            if self._classes.get(queue.id) or self._children.get(queue.id):
                heapreplace(siblings, self._place(queue))
            else:
                heappop(siblings)
