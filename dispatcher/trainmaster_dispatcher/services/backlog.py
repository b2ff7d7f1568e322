"""Bounds on waiting jobs in a queue, for all queues and users of an installation: jobs, bytes of specifications, different shapes.

They protect the store and the scheduler from one user's flood, and use counts that are some seconds old; a queue's own ``maxQueued``
is exact. Submissions of admins are not bounded.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission
from trainmaster_dispatcher.store import jobs as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

_KEPT_SECONDS = 30.0
_FRESH_SECONDS = 2.0
"""Maximum age of a count by which a submission is refused."""
_MOST_QUEUES = 10_000


@dataclass(slots=True)
class _Waiting:
    """Waiting jobs of one key, or of all keys in a queue."""

    jobs: int = 0
    spec_bytes: int = 0
    shapes: set[bytes] = field(default_factory=set)
    """Fingerprints of the shapes."""

    def plus(self, other: "_Waiting") -> "_Waiting":
        return _Waiting(self.jobs + other.jobs, self.spec_bytes + other.spec_bytes, self.shapes | other.shapes)


@dataclass(slots=True)
class _Queue:
    counted_at: float
    by_key: dict[int, _Waiting]

    def all(self) -> _Waiting:
        total = _Waiting()
        for one in self.by_key.values():
            total.jobs += one.jobs
            total.spec_bytes += one.spec_bytes
            total.shapes |= one.shapes
        return total


class Backlog:
    """Waiting jobs in the queues that users submit to at this api: counted in the store periodically, plus jobs accepted since."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[int, _Queue] = {}
        self._most_in_queue = _Most(
            settings.most_queued_jobs, settings.most_queued_bytes, settings.most_queued_shapes, "all users"
        )
        self._most_of_user = _Most(
            settings.most_queued_jobs_per_user,
            settings.most_queued_bytes_per_user,
            settings.most_queued_shapes_per_user,
            "one user",
        )

    async def take_room(
        self, tx: Transaction, caller: Caller, prepared: PreparedSubmission, queues: dict[str, int]
    ) -> None:
        """Count a submission's jobs as waiting. ``queues``: the keys of the queues that the submission names.

        Raises ProblemError QUEUE_FULL, and counts none, when there would be too many.
        """
        if caller.is_admin:
            return
        more = _by_queue(prepared)
        for path, added in more.items():
            queue_id = queues[path]
            problem = self._problem(path, await self._counted(tx, queue_id, _KEPT_SECONDS), caller, added)
            if problem is not None:
                problem = self._problem(path, await self._counted(tx, queue_id, _FRESH_SECONDS), caller, added)
            if problem is not None:
                raise problem
        for path, added in more.items():
            by_key = self._queues[queues[path]].by_key
            by_key[caller.key_id] = by_key.get(caller.key_id, _Waiting()).plus(added)

    async def _counted(self, tx: Transaction, queue_id: int, seconds: float) -> _Queue:
        """Return what waits in a queue, by a count that is at most ``seconds`` old."""
        now = self._clock()
        queue = self._queues.get(queue_id)
        if queue is not None and now - queue.counted_at <= seconds:
            return queue
        by_key = {
            row.api_key_id: _Waiting(row.jobs, row.spec_bytes, {bytes(one) for one in row.shapes})
            for row in await store.waiting_by_key(tx, queue_id)
        }
        while len(self._queues) >= _MOST_QUEUES:
            del self._queues[next(iter(self._queues))]
        queue = self._queues[queue_id] = _Queue(now, by_key)
        return queue

    def _problem(self, path: str, queue: _Queue, caller: Caller, added: _Waiting) -> ProblemError | None:
        own = queue.by_key.get(caller.key_id, _Waiting())
        for most, waiting in ((self._most_of_user, own), (self._most_in_queue, queue.all())):
            for limit, there, total, what in most.checks(waiting, waiting.plus(added)):
                if 0 < limit < total > there:
                    whose = f"of {caller.name!r} " if most is self._most_of_user else ""
                    return ProblemError(
                        Code.QUEUE_FULL,
                        f"queue {path!r} holds {there} {what} {whose}that wait; with this submission they would be {total},"
                        f" and this installation allows {limit} for {most.whom}",
                        retry_after=5.0,
                    )
        return None


@dataclass(frozen=True, slots=True)
class _Most:
    """Bounds for one queue; 0: no bound."""

    jobs: int
    spec_bytes: int
    shapes: int
    whom: str

    def checks(self, before: _Waiting, after: _Waiting) -> Iterator[tuple[int, int, int, str]]:
        """Yield for each bound: the limit, the amount before, the amount after, and what is counted."""
        yield self.jobs, before.jobs, after.jobs, "jobs"
        yield self.spec_bytes, before.spec_bytes, after.spec_bytes, "bytes of specifications"
        yield self.shapes, len(before.shapes), len(after.shapes), "different shapes of jobs (resources and placement)"


def _by_queue(prepared: PreparedSubmission) -> dict[str, _Waiting]:
    out: dict[str, _Waiting] = {}
    for spec in prepared.specs:
        one = out.setdefault(spec.queue, _Waiting())
        one.jobs += prepared.repeats
        one.spec_bytes += len(spec.spec)
        one.shapes.add(spec.shape_hash)
    if prepared.parameters is not None:
        out[prepared.specs[0].queue].spec_bytes += sum(map(len, prepared.parameters))
    return out
