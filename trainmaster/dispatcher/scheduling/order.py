"""Whose turn it is: weighted dominant-resource fairness between sibling queues, class, priority and age inside a queue.

Ghodsi et al., "Dominant Resource Fairness", NSDI 2011: of the children with something to start, the one whose dominant share,
divided by its weight, is lowest goes next; applied again at each level of the tree.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from trainmaster.dispatcher.scheduling.fit import needs_of
from trainmaster.dispatcher.scheduling.room import dominant
from trainmaster.dispatcher.scheduling.view import ClassKey, StaticKey, View
from trainmaster.protocol.quantities import Resources

Head = tuple[int, int, float, int]
"""A job's place in its queue: minus the value of its class, then its static key."""
Heads = list[tuple[Head, ClassKey, Iterator[StaticKey]]]
"""A heap of classes with the place of their first job and those behind it."""


class Usage:
    """What each queue uses, itself and all below it."""

    def __init__(self, view: View, total: Resources) -> None:
        self.view = view
        self.total = total
        self.by_queue: dict[int, Resources] = {}
        self.jobs: dict[int, int] = {}
        for queue_id, held in view.held_by.items():
            for (shape_id, sizes), many in held.items():
                self.add(queue_id, needs_of(view.shapes[shape_id], dict(sizes)), many)

    def add(self, queue_id: int, needs: Resources, many: int = 1) -> None:
        """Charge starts to the queue and all above it."""
        for queue in self.view.ancestry(queue_id):
            own = self.by_queue.setdefault(queue.id, {})
            for name, amount in needs.items():
                own[name] = own.get(name, 0) + amount * many
            self.jobs[queue.id] = self.jobs.get(queue.id, 0) + many

    def share(self, queue_id: int) -> float:
        return dominant(self.by_queue.get(queue_id, {}), self.total) / self.view.queues[queue_id].weight


class Turns:
    """Gives out classes of jobs one turn at a time; a class that is blocked is not given again in this cycle.

    Heaps at each level of the tree: a turn changes the shares on the way from the root to one queue only, and these queues are
    the tops of their heaps.
    """

    def __init__(self, view: View, usage: Usage) -> None:
        self._view = view
        self._usage = usage
        self._classes: dict[int, Heads] = {}
        """By queue: its classes by the place of their first job."""
        self._children: dict[int | None, list[tuple[float, int]]] = {}
        """By queue, or None above the roots: the queues below that have something to start, by share."""
        for queue_id, classes in view.waiting.items():
            if queue_id in view.queues:
                heads = self._classes.setdefault(queue_id, [])
                for key, keys in classes.items():
                    # A job may be known before its priority class is, by a moment.
                    if key.class_id in view.classes:
                        self._push(heads, key, iter(keys))
        active = {queue.id for queue_id in self._classes for queue in view.ancestry(queue_id)}
        for queue_id in sorted(active):
            parent = view.queues[queue_id].parent_id
            heappush(self._children.setdefault(parent, []), (usage.share(queue_id), queue_id))

    def _push(self, heads: Heads, key: ClassKey, rest: Iterator[StaticKey]) -> None:
        head = next(rest, None)
        if head is not None:
            value = self._view.classes[key.class_id].value
            heappush(heads, ((-value, *head), key, rest))

    def next(self) -> tuple[ClassKey, int] | None:
        """The class whose turn it is and the key of its first job; None when nothing is left."""
        level: int | None = None
        while children := self._children.get(level):
            level = children[0][1]
        if level is None:
            return None
        head, key, _ = self._classes[level][0]
        return key, head[-1]

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

    def _settle(self, queue_id: int) -> None:
        """Put the queue that had the turn, and those above it, where they belong now."""
        for queue in self._view.ancestry(queue_id):
            siblings = self._children[queue.parent_id]
            if self._classes.get(queue.id) or self._children.get(queue.id):
                heapreplace(siblings, (self._usage.share(queue.id), queue.id))
            else:
                heappop(siblings)
