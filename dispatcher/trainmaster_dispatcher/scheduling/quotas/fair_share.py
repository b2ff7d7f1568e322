"""The order of turns: weighted dominant-resource fairness between sibling queues; inside a queue urgency and class, then the users'
shares, then age and priority, or slowdown.

Between queues (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): of the children with something to start, the
one whose dominant share beyond its guarantees, divided by its weight, is lowest goes next, and of equal ones the one with the
older job; applied again at each level of the tree. Without guarantees, queues whose next jobs need most of the same resource are
compared, and those that have others below them by their shares of that resource: otherwise a queue whose child has all cores would
get no GPU for its other child, as long as somebody else wants GPUs (Bhattacharya et al., "Hierarchical Scheduling for Diverse
Datacenter Workloads", SoCC 2013, where shares are scaled to that end). Among the users whose first jobs are of one class it is the
same: without it, whoever submits first and most goes first. Past usage counts too (``usage_decay.py``), between queues if the
installation is configured so.

Among the jobs of a user keys are static until a job becomes urgent. Urgent jobs go first, by the time that they have waited as a
multiple of the longest wait of their class (Kleinrock, "A delay dependent queue discipline", 1964): where all of them wait for
long, their waits are in the proportion of their longest waits, so that classes keep their meaning and none of them starves. Where a
queue orders its jobs by slowdown, those of a class go by wait plus run time in run times (the response ratio: Brinch Hansen, "An
analysis of response ratio scheduling", IFIP 1971), the run time as the last equivalent jobs suggest, at most the time limit. In a
queue ordered by deadlines, the earliest deadline goes first (Liu and Layland, "Scheduling algorithms for multiprogramming in a
hard-real-time environment", 1973), jobs without one go last, and none becomes urgent.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain
from math import inf
from typing import NamedTuple

from sortedcontainers import SortedList

from trainmaster.protocol.states import OrderBy
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, charge_anywhere
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, StaticKey, is_by_deadline
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_URGENT = -(10**9)
"""The rank of urgent jobs: before every class, whose values are at most a million."""
_SHORTEST_WAIT = 1.0
"""The least longest wait that waits are divided by, in seconds: one of none makes all jobs of a class urgent at once."""

_SHORTEST_RUN = 10.0
_LONGEST_RUN = 3e8

_A_MOMENT = 1e-3
"""Seconds by which times may be rounded."""

_SAME_SHARE = 1e-9

STEP = 1 / 1024
"""The share by which a queue may get ahead of its siblings in one turn. Equivalent jobs that follow one another start
together within it; where a single job exceeds it, turns are taken job by job."""
LONGEST_ROW = 64
"""The largest number of jobs that start in one turn."""


class Head(NamedTuple):
    """A job's position in its queue: minus the value of its class, or the rank of urgent jobs; then ``at``; then its id.

    ``at``: that of its static key; in a queue ordered by slowdown, minus its wait in run times. Of an
    urgent job: minus the time that it has waited, in longest waits of its class.
    """

    rank: int
    at: float
    job_id: int

    @property
    def is_urgent(self) -> bool:
        return self.rank == _URGENT


def head_of(
    priority_class: PriorityClass,
    key: StaticKey,
    now: float,
    knows_urgency: bool = True,
    run_seconds: float | None = None,
) -> Head:
    """Return the position of a job with this key now. Of one class, older jobs stay before younger ones.

    ``run_seconds``: how long it is expected to run, if its queue orders jobs by slowdown; else None.
    """
    longest, waited = priority_class.longest_wait, now - key.at
    if longest is not None and waited >= longest and knows_urgency and not is_by_deadline(key.at):
        return Head(_URGENT, -waited / max(longest, _SHORTEST_WAIT), key.job_id)
    if run_seconds is not None:
        return Head(-priority_class.value, -_wait_in_runs(waited, run_seconds), key.job_id)
    return Head(-priority_class.value, key.at, key.job_id)


def slowdown(waited: float, run_seconds: float) -> float:
    """Return wait plus run time in run times. Runs shorter than ten seconds count as that long, so that they do not decide alone; one
    of unknown time counts as very long, so that it goes after others and keeps its order among its like.
    """
    return 1.0 + _wait_in_runs(waited, run_seconds)


def _wait_in_runs(waited: float, run_seconds: float) -> float:
    return waited / min(max(run_seconds, _SHORTEST_RUN), _LONGEST_RUN)


def ordering_seconds(state: SchedulerState, key: ClassKey) -> float | None:
    """Return how long a job of a class is expected to run, if its queue orders jobs by slowdown; else None."""
    is_by_slowdown = state.grouping_of(key.queue_id).order is OrderBy.SLOWDOWN
    return state.run_seconds(key).expected if is_by_slowdown else None


Entry = tuple[float, float, int, ClassKey]
"""A class of jobs with the position of its first job, as in ``SchedulerState.heads``."""


def in_order(
    state: SchedulerState, queue_id: int, user: str, now: float, *, knows_urgency: bool = True
) -> Iterator[Entry]:
    """Return the classes of a user in a queue, by the positions of their first jobs, computed as they are asked for.

    ``user``: empty for a queue that does not share its turns between users. ``knows_urgency``: whether urgent jobs go first.
    """
    heads = state.heads.get(queue_id, {}).get(user)
    if heads is None:
        return iter(())
    order = state.grouping_of(queue_id).order
    if order is OrderBy.SLOWDOWN:
        return iter(sorted(_by_slowdown(state, heads, now, knows_urgency=knows_urgency)))
    bounded = [one for one in state.classes.values() if one.longest_wait is not None]
    if not bounded or not knows_urgency or order is OrderBy.DEADLINE:
        return iter(heads)
    urgent = merge(*(_urgent(heads, one, now) for one in bounded))
    return chain(urgent, _others(state, heads, now))


def _by_slowdown(state: SchedulerState, heads: SortedList, now: float, *, knows_urgency: bool) -> Iterator[Entry]:
    """Return all entries with their positions now, which change from cycle to cycle."""
    for _, at, job_id, key in heads:
        of = state.classes.get(key.class_id)
        if of is not None:
            seconds = ordering_seconds(state, key)
            yield (*head_of(of, StaticKey(at, job_id), now, knows_urgency=knows_urgency, run_seconds=seconds), key)


def _urgent(heads: SortedList, priority_class: PriorityClass, now: float) -> Iterator[Entry]:
    """Return the entries of a priority class whose first jobs are urgent."""
    latest = now - (priority_class.longest_wait or 0.0)
    for _, at, job_id, key in heads.irange((-priority_class.value, -inf), (-priority_class.value, latest, inf)):
        if key.class_id == priority_class.id:
            head = head_of(priority_class, StaticKey(at, job_id), now)
            if head.is_urgent:
                yield (*head, key)


def _others(state: SchedulerState, heads: SortedList, now: float) -> Iterator[Entry]:
    """Return the entries whose first jobs are not urgent. Those of a value that surely are urgent are skipped at once, and those that
    surely are not are not looked at."""
    longest: dict[int, list[float | None]] = {}
    for one in state.classes.values():
        longest.setdefault(-one.value, []).append(one.longest_wait)
    for rank in sorted(longest):
        known = [one for one in longest[rank] if one is not None]
        first = now - max(known) - _A_MOMENT if len(known) == len(longest[rank]) else -inf
        sure = now - min(known) + _A_MOMENT if known else -inf
        for entry in heads.irange((rank, first), (rank, inf)):
            if entry[1] > sure:
                yield entry
                continue
            of = state.classes[entry[3].class_id]
            if of.longest_wait is None or not head_of(of, StaticKey(entry[1], entry[2]), now).is_urgent:
                yield entry


class _TurnOrder:
    """The classes of a user in a queue in the order of their turns. Only those that have had a turn are in a heap."""

    def __init__(
        self, state: SchedulerState, queue_id: int, user: str, now: float, *, knows_urgency: bool = True
    ) -> None:
        self._state = state
        self._knows_urgency = knows_urgency
        order = state.grouping_of(queue_id).order
        self._is_by_slowdown = order is OrderBy.SLOWDOWN
        self._backfills_shortest = order is OrderBy.SHORTEST_BACKFILL
        self._is_behind_kept = False
        """Whether the shortest go first, as capacity is kept for a job that was before them."""
        self._now = now
        self._heap: list[tuple[Head, ClassKey, Iterator[StaticKey]]] = []
        """Classes that were pushed here: their positions, and the jobs behind the first."""
        self._waiting = state.waiting.get(queue_id, {})
        self._rest = in_order(state, queue_id, user, now, knows_urgency=knows_urgency)
        self._next = next(self._rest, None)
        self._oldest: float | None = None
        self._heads: SortedList = state.heads[queue_id][user]
        self._row: tuple[ClassKey, list[StaticKey], Iterator[StaticKey]] | None = None
        """A class that starts a row of jobs, the jobs that may be in the row, and the jobs behind them."""

    def _head_of(self, of: PriorityClass, key: ClassKey, job: StaticKey) -> Head:
        seconds = ordering_seconds(self._state, key) if self._is_by_slowdown else None
        head = head_of(of, job, self._now, self._knows_urgency, seconds)
        return self._shortest(head, key) if self._is_behind_kept else head

    def _shortest(self, head: Head, key: ClassKey) -> Head:
        """Return the position of a job behind one for which capacity is kept: by its expected run time, unless it is urgent."""
        return head if head.is_urgent else Head(head.rank, self._state.run_seconds(key).expected, head.job_id)

    def go_behind(self) -> None:
        """Let the shortest go first from now on, if the queue wants that: capacity is kept for the job that has had its turn."""
        if not self._backfills_shortest or self._is_behind_kept:
            return
        self._is_behind_kept = True
        heap = [(self._shortest(head, key), key, jobs) for head, key, jobs in self._heap]
        for rank, at, job_id, key in chain([self._next] if self._next is not None else [], self._rest):
            jobs = iter(self._waiting[key])
            next(jobs)
            heap.append((self._shortest(Head(int(rank), at, job_id), key), key, jobs))
        heapify(heap)
        self._heap, self._next, self._rest = heap, None, iter(())

    def _push(self, key: ClassKey, jobs: Iterator[StaticKey]) -> None:
        of, first = self._state.classes.get(key.class_id), next(jobs, None)
        if first is not None and of is not None:
            heappush(self._heap, (self._head_of(of, key, first), key, jobs))

    @property
    def oldest(self) -> float:
        """The time of the oldest job of any class; looked for only where there are several users."""
        if self._oldest is None:
            oldest = min((entry[1] for entry in self._heads), default=0.0)
            if is_by_deadline(oldest):
                oldest = min(self._state.jobs[entry[2]].key.at for entry in self._heads)
            self._oldest = oldest
        return self._oldest

    def __bool__(self) -> bool:
        return not self.is_over()

    def is_over(self) -> bool:
        """Return whether all jobs were handled."""
        return self._next is None and not self._heap

    def head(self) -> Head:
        """Return the position of the first job that was not handled yet."""
        if self._takes_next():
            rank, at, job_id, _ = self._next  # type: ignore[misc]
            return Head(int(rank), at, job_id)
        return self._heap[0][0]

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
        until = self._heap[0][0] if self._heap else None
        if self._next is not None and (until is None or self._next[:3] < until):
            rank, at, job_id, _ = self._next
            until = Head(int(rank), at, job_id)
        of, candidates = self._state.classes[key.class_id], list[StaticKey]()
        now, knows_urgency = self._now, self._knows_urgency
        seconds = ordering_seconds(self._state, key) if self._is_by_slowdown else None
        limit, many = 1, 0
        for job in jobs:
            candidates.append(job)
            if until is not None:
                head = head_of(of, job, now, knows_urgency, seconds)
                if (self._shortest(head, key) if self._is_behind_kept else head) > until:
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

    def pass_by(self, is_blocked: Callable[[ClassKey], bool], most: float = inf) -> bool:
        """Drop classes from the front as long as they are blocked and their rank is at most ``most``; return whether any were."""
        heap, rest, passed = self._heap, self._rest, False
        while True:
            first = self._next
            if first is not None and (not heap or first[:3] < heap[0][0]):
                if first[0] > most or not is_blocked(first[3]):
                    return passed
                self._next = next(rest, None)
            else:
                if not heap or heap[0][0].rank > most or not is_blocked(heap[0][1]):
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


def lifted_users(state: SchedulerState, quotas: QuotaTree, queue: Queue, users: Iterable[str]) -> frozenset[str]:
    """Return which of the users with waiting jobs in a queue have no more than their mean share: their urgent jobs go before classes.

    Those of others wait for long because they are many. If they went first, whoever submits a thousand jobs at once would be before
    everybody as soon as these have waited.
    """
    shares = {user: quotas.standing_of_user(queue, user) for user in users}
    mean = sum(shares.values()) / max(1, len(shares))
    return frozenset(user for user, share in shares.items() if share <= mean + _SAME_SHARE)


class _Users:
    """The turns of the users of a queue that have something to start: by the class of their first job, or its urgency, then by share.
    The top of the heap has the turn.

    A queue that does not share its turns between users has one, without a name.
    """

    def __init__(self, state: SchedulerState, quotas: QuotaTree, queue: Queue, now: float) -> None:
        self._state, self._quotas, self._queue = state, quotas, queue
        heads = state.heads.get(queue.id, {})
        self._is_alone = len(heads) < 2
        lifted = frozenset(heads) if self._is_alone else lifted_users(state, quotas, queue, heads)
        self._orders = {user: _TurnOrder(state, queue.id, user, now, knows_urgency=user in lifted) for user in heads}
        self.places = [self._place(user) for user, order in self._orders.items() if order]
        """A heap of the users that have something to start, by their positions."""
        heapify(self.places)
        self.only = next(iter(self._orders.values())) if self._is_alone and self._orders else None
        """The order of the only user, if there is one alone."""

    def _place(self, user: str) -> tuple[int, float, float, str]:
        if self._is_alone:
            return 0, 0.0, 0.0, user
        first = self._orders[user].head()
        return first.rank, self._quotas.standing_of_user(self._queue, user), self._orders[user].oldest, user

    def __bool__(self) -> bool:
        return bool(self.places)

    def turns(self) -> _TurnOrder | None:
        """Return the order of the user whose turn it is; None if nothing is left."""
        return self._orders[self.places[0][3]] if self.places else None

    def pass_by(self, is_blocked: Callable[[ClassKey], bool]) -> bool:
        """Drop blocked classes from the front of the user that has the turn until another user is due; return whether any were."""
        user, passed = self.places[0][3], False
        while self.places and self.places[0][3] == user:
            order = self._orders[user]
            most = inf if len(self.places) < 2 else order.head().rank
            if not order.pass_by(is_blocked, most):
                return passed
            passed = True
            self.settle()
        return passed

    def of(self, key: ClassKey) -> _TurnOrder:
        """Return the order that a class is in, whose turn it is."""
        return self._orders[key.user if key.user in self._orders else ""]

    def settle(self) -> None:
        """Move the user that had the turn to the new position in the heap."""
        places = self.places
        if places:
            user = places[0][3]
            if self._orders[user].is_over():
                heappop(places)
            elif len(places) > 1:
                heapreplace(places, self._place(user))

    def lead(self, charge: Mapping[Flavor, int], most: int) -> int:
        """Return how many jobs with this charge, up to ``most``, may start behind the one that has the turn before another user
        is due. Found by halving.
        """
        if len(self.places) < 2:
            return most
        runner_up, (rank, _, _, user) = min(self.places[1:3]), self.places[0]
        if runner_up[0] > rank:
            return most
        while most and self._quotas.standing_of_user(self._queue, user, charge, most) > runner_up[1] + STEP:
            most //= 2
        return most

    def clear(self) -> list[ClassKey]:
        """Empty it and return the classes that were in it."""
        left = [key for _, _, _, user in self.places for key in self._orders[user].clear()]
        self.places = []
        return left


class QueueTurnKey(NamedTuple):
    """The key by which queues with the same parent have their turns.

    ``beyond``, ``whole``: the shares beyond and with guarantees, by weight. Between equal ones, as of queues that use nothing, the
    queue whose first jobs are older: otherwise one queue would never have a turn where a single job at a time has room.
    """

    beyond: float
    whole: float
    oldest: float
    queue_id: int


_EVERY = ""
"""The one tree of all queues, where any queue has a guarantee."""
_NOTHING = "-"
"""The tree of queues whose next jobs need nothing that there is."""


def charge_of(shape: Shape) -> Mapping[Flavor, int]:
    """Return what a gang needs of each resource."""
    return charge_anywhere(shape.total)


class FairShareQueue:
    """Gives out classes of jobs one turn at a time; a blocked class does not get another turn in this cycle.

    There is a heap at each level of a tree of queues: a turn changes the shares on the way from the root to one queue, and these
    queues are the tops of their heaps. Without guarantees, there is a tree for each resource, of the queues whose next jobs need most
    of it; shares that have grown by starts in other trees are looked up again when they are due. With guarantees, there is one tree:
    what is guaranteed has to be given out before anybody borrows, whatever resource the next jobs need, or it would be taken back
    from runs. The users of a queue are ordered only when it has a turn.
    """

    def __init__(self, state: SchedulerState, quotas: QuotaTree, now: float) -> None:
        self._state = state
        self._quotas = quotas
        self._now = now
        self._users: dict[int, _Users] = {}
        """By queue."""
        self._waiting = {queue_id for queue_id in state.waiting if queue_id in state.queues}
        """Queues whose users are not ordered yet."""
        self._charges: dict[int, Mapping[Flavor, int]] = {}
        """By queue that jobs wait in: what its first job needs, where there are several trees."""
        self._trees: dict[int, str] = {}
        """By queue that jobs wait in: the tree in which it is."""
        self._oldest: dict[int, float] = {}
        """By queue: the time of the oldest of the first jobs of all users, in it and below it."""
        self._look_at_first_jobs()
        self._children: dict[tuple[str, int | None], list[QueueTurnKey]] = {}
        """By tree and queue, or None above the roots: the queues below it that have something to start, by share."""
        known: set[tuple[str, int]] = set()
        for queue_id in sorted(self._waiting):
            tree = self._trees[queue_id]
            for queue in state.ancestry(queue_id):
                if (tree, queue.id) in known:
                    break
                known.add((tree, queue.id))
                heappush(self._children.setdefault((tree, queue.parent_id), []), self._place(queue, tree))
        self._names = sorted(set(self._trees.values()))

    def _look_at_first_jobs(self) -> None:
        """Note of each queue that jobs wait in what its first job needs, its tree, and the time of the oldest of its first jobs."""
        state, known = self._state, dict[int, tuple[Mapping[Flavor, int], str]]()
        nothing: tuple[Mapping[Flavor, int], str] = {}, self.tree_of({})
        is_one_tree = self._quotas.tree.guaranteed
        for queue_id in self._waiting:
            first, oldest = None, inf
            for heads in state.heads.get(queue_id, {}).values():
                for head in heads:  # which is quicker than heads[0], as there are many users
                    if head[1] < oldest:
                        oldest = head[1]
                    if first is None or head < first:
                        first = head
                    break
            if is_by_deadline(oldest):
                oldest = min(state.jobs[heads[0][2]].key.at for heads in state.heads[queue_id].values())
            needs = nothing
            if first is not None and not is_one_tree:
                shape_id = first[3].shape_id
                found = known.get(shape_id)
                if found is None and shape_id in state.shapes:
                    charge = charge_of(state.shapes[shape_id])
                    found = known[shape_id] = charge, self.tree_of(charge)
                needs = found or nothing
            self._charges[queue_id], self._trees[queue_id] = needs
            for queue in state.ancestry(queue_id):
                if self._oldest.get(queue.id, inf) <= oldest:
                    break
                self._oldest[queue.id] = oldest

    def tree_of(self, charge: Mapping[Flavor, int]) -> str:
        """Return the tree of queues whose next jobs have this charge: the resource of which they need the largest part of what there
        is.
        """
        if self._quotas.tree.guaranteed:
            return _EVERY
        capacity = self._quotas.capacity
        parts = [
            (amount / there, flavor.resource) for flavor, amount in charge.items() if (there := capacity.get(flavor, 0))
        ]
        return max(parts)[1] if parts else _NOTHING

    def _place(self, queue: Queue, tree: str) -> QueueTurnKey:
        queue_id = queue.id
        resource = (
            None if queue_id in self._charges or tree in (_EVERY, _NOTHING) else tree
        )  # as ``compared_by``, with fewer calls
        beyond, whole = self._quotas.standing(queue, resource=resource)
        return QueueTurnKey(beyond, whole, self._oldest.get(queue_id, inf), queue_id)

    def standing(self, queue: Queue, resource: str | None) -> QueueTurnKey:
        """Return the key of a queue's turn among those with the same parent. ``resource``: compare by the share of it."""
        oldest = self._oldest.get(queue.id, inf)
        return QueueTurnKey(*self._quotas.standing(queue, resource=resource), oldest, queue.id)

    def compared_by(self, queue_id: int, tree: str) -> str | None:
        """Return the resource by whose share a queue is compared in a tree; None: by its dominant share."""
        return None if queue_id in self._charges or tree in (_EVERY, _NOTHING) else tree

    def charge_of_next(self, queue_id: int) -> Mapping[Flavor, int] | None:
        """Return what the next job of a queue needs, where there are several trees; None if no job waits in it."""
        return self._charges.get(queue_id)

    def rivals(self, queue: Queue, tree: str) -> Collection[QueueTurnKey]:
        """Return the keys of the turns of the queues that may have the turn in place of this one: those with the same parent
        that are in the same tree; of the roots all, as the trees of all resources take turns with each other.
        """
        found: dict[int, QueueTurnKey] = {}
        for name in self._names if queue.parent_id is None else (tree,):
            for one in self._children.get((name, queue.parent_id), ()):
                if one.queue_id != queue.id:
                    found[one.queue_id] = min(found.get(one.queue_id, one), one)
        return found.values()

    def _users_of(self, queue_id: int) -> _Users:
        if queue_id in self._waiting:
            self._waiting.discard(queue_id)
            queue = self._state.queues[queue_id]
            self._users[queue_id] = _Users(self._state, self._quotas, queue, self._now)
        return self._users[queue_id]

    def _order_of(self, key: ClassKey) -> _TurnOrder:
        """Return the order that a class is in, whose turn it is."""
        users = self._users[key.queue_id]
        return users.of(key) if users.only is None else users.only

    def next(self) -> tuple[ClassKey, int] | None:
        """Return the class whose turn it is and the id of its first job; None when nothing is left."""
        while True:
            tree, level = self._next_tree(), None
            while children := self._children.get((tree, level)):
                self._refresh(children, tree)
                level = children[0].queue_id
            if level is None:
                return None
            turns = self._users_of(level).turns()
            if turns is not None:
                return turns.first()
            self._settle(level)

    def _next_tree(self) -> str:
        """Return the tree in which the root with the lowest share is."""
        if len(self._names) == 1:
            return self._names[0]
        tops = []
        for name in self._names:
            if roots := self._children.get((name, None)):
                self._refresh(roots, name)
                tops.append((roots[0], name))
        return min(tops)[1] if tops else _NOTHING

    def _refresh(self, places: list[QueueTurnKey], tree: str) -> None:
        """Move queues whose shares have grown by starts in other trees to their new positions, until the position of the first is
        right.
        """
        while len(self._names) > 1 and (queue_id := places[0].queue_id) not in self._charges:
            place = self._place(self._state.queues[queue_id], tree)
            if place == places[0]:
                return
            heapreplace(places, place)

    def done(self, key: ClassKey) -> None:
        """Mark the first job of the class, which had the turn, as handled; its next job may have a turn."""
        self._order_of(key).pop(goes_on=True)
        self._settle(key.queue_id)

    def lead(self, queue_id: int, charge: Mapping[Flavor, int], most: int) -> int:
        """Return how many jobs with this charge, up to ``most``, may start directly behind the one that has the turn
        before another user or a sibling queue is due.

        Found by halving: it may be less than possible, never more.
        """
        most = self._users[queue_id].lead(charge, most)
        if not most:
            return 0
        tree = self._trees[queue_id]
        for queue in self._state.ancestry(queue_id):
            siblings = self._children[tree, queue.parent_id]
            others = [min(siblings[1:3])] if len(siblings) > 1 else []
            if queue.parent_id is None:
                others += [top[0] for one in self._names if one != tree and (top := self._children.get((one, None)))]
            if others:
                runner_up = min(others)
                if not self._keeps_step(queue, tree, charge, 1, runner_up):
                    return 0
                while not self._keeps_step(queue, tree, charge, most, runner_up):
                    most //= 2
        return most

    def _keeps_step(
        self,
        queue: Queue,
        tree: str,
        charge: Mapping[Flavor, int],
        started: int,
        runner_up: QueueTurnKey,
    ) -> bool:
        """Return whether a queue is ahead of the next one by at most a step after ``started`` starts."""
        beyond, whole = self._quotas.standing(queue, charge, started, self.compared_by(queue.id, tree))
        if beyond > 0.0 >= runner_up.beyond and self._quotas.tree.guaranteed:
            return False  # the next queue lacks what is guaranteed to it
        if beyond == runner_up.beyond:
            if whole == runner_up.whole:
                return (self._oldest.get(queue.id, inf), queue.id) < (runner_up.oldest, runner_up.queue_id)
            return whole <= runner_up.whole + STEP
        return beyond <= runner_up.beyond + STEP

    def has_more(self, key: ClassKey) -> bool:
        """Return whether other jobs are equivalent to the one that has the turn."""
        return self._order_of(key).has_more(key)

    def row(self, key: ClassKey, most: Callable[[], int]) -> list[int]:
        """Return the equivalent jobs directly behind the one that has the turn, which was handled; ``end_row`` must follow.

        ``most`` returns how many of them are allowed; it is called only if there are any.
        """
        return self._order_of(key).row(most)

    def end_row(self, key: ClassKey, count: int) -> None:
        """Mark ``count`` jobs of the row as handled too; the next job of the class may have a turn."""
        self._order_of(key).end_row(count)
        self._settle(key.queue_id)

    def block(self, key: ClassKey, *, is_kept_for: bool = False) -> None:
        """Exclude this class, which had the turn: none of its jobs can start in this cycle.

        ``is_kept_for``: it lacks capacity, which may be kept for its first job.
        """
        turns = self._order_of(key)
        turns.pop(goes_on=False)
        if is_kept_for:
            turns.go_behind()
        # No share has changed: only the user may go behind others, where its next job is of a lower class.
        users = self._users[key.queue_id]
        users.settle()
        if not users:
            self._settle(key.queue_id)

    def pass_by(self, queue_id: int, is_blocked: Callable[[ClassKey], bool]) -> bool:
        """Drop blocked classes from the front of the user and queue that have the turn; return whether there were any."""
        users = self._users[queue_id]
        passed = users.pass_by(is_blocked)
        if not users:
            self._settle(queue_id)
        return passed

    def close(self, key: ClassKey) -> list[ClassKey]:
        """Close this queue for the rest of the cycle after the class that had the turn; return its other classes."""
        left = [other for other in self._users[key.queue_id].clear() if other != key]
        self._settle(key.queue_id)
        return left

    def _settle(self, queue_id: int) -> None:
        """Move the queue that had the turn, and those above it, to their new positions in the heaps."""
        users = self._users.get(queue_id)
        if users is not None:
            users.settle()
        tree = self._trees[queue_id]
        for queue in self._state.ancestry(queue_id):
            siblings, own = self._children[tree, queue.parent_id], self._users.get(queue.id)
            is_waiting = queue.id in self._waiting or (own is not None and own.places)
            # Jobs of its own, where it has some beside queues below it, are in one tree only.
            if (is_waiting and self._trees[queue.id] == tree) or self._children.get((tree, queue.id)):
                if len(siblings) > 1 or (queue.parent_id is None and len(self._names) > 1):
                    heapreplace(siblings, self._place(queue, tree))
            else:
                heappop(siblings)
