"""Whose turn it is: weighted dominant-resource fairness between sibling queues, class, priority and age inside a queue.

Ghodsi et al., "Dominant Resource Fairness", NSDI 2011: of the children with something to start, the one whose dominant share,
divided by its weight, is lowest goes next; applied again at each level of the tree.
"""

from collections.abc import Iterator

from trainmaster.dispatcher.scheduling.room import dominant
from trainmaster.dispatcher.scheduling.view import ClassKey, View
from trainmaster.protocol.quantities import Resources


class Usage:
    """What each queue uses, itself and all below it."""

    def __init__(self, view: View, total: Resources) -> None:
        self.view = view
        self.total = total
        self.by_queue: dict[int, Resources] = {}
        self.jobs: dict[int, int] = {}
        for run in view.runs.values():
            shape = view.shapes[run.shape_id]
            sizes = dict(run.sizes)
            needs: Resources = {}
            for role in shape.roles:
                for name, amount in role.needs.items():
                    needs[name] = needs.get(name, 0) + amount * sizes.get(role.name, 0)
            self.add(run.queue_id, needs)

    def add(self, queue_id: int, needs: Resources) -> None:
        """Charge a start to the queue and all above it."""
        for queue in self.view.ancestry(queue_id):
            own = self.by_queue.setdefault(queue.id, {})
            for name, amount in needs.items():
                own[name] = own.get(name, 0) + amount
            self.jobs[queue.id] = self.jobs.get(queue.id, 0) + 1

    def share(self, queue_id: int) -> float:
        return dominant(self.by_queue.get(queue_id, {}), self.total) / self.view.queues[queue_id].weight


class Turns:
    """Gives out classes of jobs one turn at a time; a class that is blocked is not given again in this cycle."""

    def __init__(self, view: View, usage: Usage) -> None:
        self._view = view
        self._usage = usage
        self._left: dict[int, dict[ClassKey, Iterator[object]]] = {}
        self._heads: dict[int, dict[ClassKey, tuple[int, int, float, int]]] = {}
        self._active: dict[int, int] = {}
        for queue_id, classes in view.waiting.items():
            if queue_id not in view.queues:
                continue
            self._heads[queue_id] = {}
            for key, keys in classes.items():
                self._advance(queue_id, key, iter(keys))
            self._mark(queue_id, 1)

    def _advance(self, queue_id: int, key: ClassKey, rest: Iterator[object]) -> None:
        head = next(rest, None)
        if head is None:
            self._heads[queue_id].pop(key, None)
            return
        self._left.setdefault(queue_id, {})[key] = rest
        value = self._view.classes[key.class_id].value
        self._heads[queue_id][key] = (-value, *head)  # type: ignore[misc]

    def _mark(self, queue_id: int, change: int) -> None:
        for queue in self._view.ancestry(queue_id):
            self._active[queue.id] = self._active.get(queue.id, 0) + change

    def next(self) -> tuple[ClassKey, int] | None:
        """The class whose turn it is and the key of its first job; None when nothing is left."""
        level: int | None = None
        while True:
            children = [child for child in self._view.children.get(level, ()) if self._active.get(child, 0) > 0]
            if not children:
                break
            level = min(children, key=lambda child: (self._usage.share(child), child))
        if level is None:
            return None
        heads = self._heads[level]
        key = min(heads, key=lambda key: (heads[key], key))
        return key, heads[key][-1]

    def done(self, key: ClassKey) -> None:
        """The first job of the class was dealt with; its next one may have a turn."""
        self._advance(key.queue_id, key, self._left[key.queue_id][key])
        self._close_if_empty(key.queue_id)

    def block(self, key: ClassKey) -> None:
        """No job of this class can start in this cycle."""
        del self._heads[key.queue_id][key]
        self._close_if_empty(key.queue_id)

    def _close_if_empty(self, queue_id: int) -> None:
        if not self._heads[queue_id]:
            self._mark(queue_id, -1)
