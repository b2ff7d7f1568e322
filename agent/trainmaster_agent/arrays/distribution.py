"""Who runs which element of an array: the state of one run of it. Pure: no I/O, and time is a parameter.

    open ──▶ held by a worker ──▶ ended ──▶ reported
      ▲              │
      └──────────────┘  failed and tried again, or its worker is gone

A worker says in each call what it holds, and the results that this agent has not taken; it keeps them until the dispatcher has them,
for an agent that starts again. What it holds is what it says: an element of a lost answer is open again, and one that an earlier
agent gave it stays with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.protocol.arrays import (
    MOST_REPORTED_FAILURES,
    MOST_REPORTED_RANGES,
    MOST_REPORTED_RESULTS,
    FailedElement,
    Span,
    spans_of,
)

_OPEN, _HELD, _ENDED, _SUSPECT = 0, 1, 2, 3
"""States of elements. A suspect is open, too; a worker has ended while it held it."""
LEASE_SECONDS = 15.0
"""Seconds without a call after which a worker's elements are given to others."""
RECLAIM_SECONDS = 5.0
"""Seconds for which an agent that starts again gives no elements away: workers say what they hold first."""
MOST_LOSSES = 3
"""Number of workers that may end while they hold an element; then it has failed: it is likely to be the cause."""
IDLE_SECONDS = 0.25
"""Seconds after which a worker that got no element asks again."""
HUNGRY_SECONDS = 3.0
"""Seconds for which a worker that got no element counts as one without any."""
MOST_UNREPORTED = 100_000
"""The most results that wait for the dispatcher: with more, no element is given away."""
_SHARES = 4
"""Parts into which the open elements are divided for each worker, so that all of them end at about the same time."""


@dataclass(slots=True)
class WorkerState:
    """A worker: one life of one member. ``seen``: number of its last batch of results that was taken; ``stored``: that the
    dispatcher has.
    """

    life: str
    called_at: float
    held: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    seen: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """Elements that a worker has run to their end. ``results``: what some of the successful ones returned, as JSON."""

    number: int
    succeeded: Sequence[Span]
    failed: Sequence[FailedElement] = ()
    results: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """A worker's call."""

    member: str
    life: str
    number: int
    agent: str
    """The agent that the worker believes to call, which decides which batches it sends."""
    done: Sequence[EndedBatch]
    held: Sequence[Span]
    running: Sequence[Span]
    want: int


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The answer to a worker's call. ``stored``: batches up to this number are in the dispatcher's store."""

    elements: tuple[Span, ...] = ()
    drop: tuple[Span, ...] = ()
    stored: int = 0
    end: bool = False
    wait: float = 0.0
    agent: str = ""
    seen: int = 0
    """Batches up to this number are taken by this agent."""
    recall: tuple[Span, ...] = ()
    """Elements that others could run now: the worker gives back those that it has not begun."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "elements": self.elements,
            "drop": self.drop,
            "stored": self.stored,
            "end": self.end,
            "wait": self.wait,
            "recall": self.recall,
            "agent": self.agent,
            "seen": self.seen,
        }


@dataclass(frozen=True, slots=True)
class ElementsReport:
    """Results for the dispatcher. ``seen``: by member, the life and the number of the last batch that is in it or in earlier ones."""

    succeeded: tuple[Span, ...]
    failed: tuple[FailedElement, ...]
    results: tuple[tuple[int, str], ...]
    running: int
    seen: dict[str, tuple[str, int]]


class Distribution:
    """The elements of one run. ``ended``: those that have ended before; ``retries``: of an element that fails.

    ``agent``: distinguishes this agent process from others. ``max_running``: the most elements that run at a time.
    """

    def __init__(
        self,
        count: int,
        ended: Iterable[Span],
        retries: int,
        now: float,
        agent: str = "",
        max_running: int | None = None,
    ) -> None:
        self._agent = agent
        self._states = bytearray(count)
        for first, last in ended:
            self._states[first : last + 1] = bytes([_ENDED]) * (last + 1 - first)
        self._cursor = 0
        """No element before it is open."""
        self._open = self._states.count(_OPEN)
        self._retries = retries
        self._max_running = max_running
        self._tries: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        """Number of workers that have ended while they held an element. Such a one is given away alone and after all others, to find
        the one that ends workers."""
        self._suspects: set[int] = set()
        self._workers: dict[str, WorkerState] = {}
        self._succeeded: set[int] = set()
        self._failed: dict[int, FailedElement] = {}
        """Ends that the dispatcher does not know yet."""
        self._results: dict[int, str] = {}
        """What some of these successes returned, as JSON."""
        self._reclaims_until = now
        self._hungry: tuple[str, float] = ("", now - HUNGRY_SECONDS)
        """The worker that last got no element that it asked for, and when."""
        self._is_over = False
        self._running_told = 0
        self.called_at = now

    @property
    def is_over(self) -> bool:
        """Return whether no element has to be run any more, and the dispatcher has all results."""
        return self._is_over and not self._succeeded and not self._failed

    @property
    def running(self) -> int:
        return sum(len(worker.running) for worker in self._workers.values())

    def set_over(self) -> None:
        """Note that no further element has to be run: the array has ended, or was stopped early."""
        self._is_over = True

    def cancel(self, spans: Iterable[Span]) -> None:
        """Note elements that users have cancelled; workers that hold them learn of it with their next call."""
        for first, last in spans:
            part = self._states[first : last + 1]
            if part.count(_ENDED) == len(part):
                continue
            self._open -= part.count(_OPEN)
            self._suspects.difference_update(range(first, last + 1))
            self._states[first : last + 1] = bytes([_ENDED]) * len(part)

    def call(self, call: WorkerCall, now: float) -> WorkerAnswer:
        """Take a worker's results and give it elements."""
        self.called_at = now
        worker = self._worker_of(call, now)
        if call.agent == self._agent:
            self._take_results(worker, call)
        before = worker.running
        drop = self._agree(worker, call)
        self._expire(now)
        if self._is_over:
            worker.held.clear()
            worker.running.clear()
            is_heard = call.agent == self._agent or not call.done
            return WorkerAnswer(
                (),
                tuple(call.held),
                worker.stored,
                end=self.is_over and is_heard,
                wait=IDLE_SECONDS,
                agent=self._agent,
                seen=worker.seen,
            )
        given = self._give(worker, call.want) if now >= self._reclaims_until else ()
        wait = 0.0 if given or worker.held else IDLE_SECONDS
        if call.want and not given:
            self._hungry = (call.member, now)
        recall = self._recall(call.member, worker, before, now)
        return WorkerAnswer(
            given,
            tuple(spans_of(sorted(drop))),
            worker.stored,
            wait=wait,
            recall=recall,
            agent=self._agent,
            seen=worker.seen,
        )

    def _recall(self, member: str, worker: WorkerState, before: set[int], now: float) -> tuple[Span, ...]:
        """Return what a worker has to give back: the elements behind one that takes long, while another worker has none.

        They are the worker's until it says that it does not hold them: it may have begun them meanwhile. ``before``: what it ran at
        its call before.
        """
        hungry, since = self._hungry
        if hungry == member or now - since > HUNGRY_SECONDS or not before & worker.running:
            return ()
        return tuple(spans_of(sorted(worker.held - worker.running)))

    def _worker_of(self, call: WorkerCall, now: float) -> WorkerState:
        worker = self._workers.get(call.member)
        if worker is None or worker.life != call.life:
            if worker is not None:
                self._lose(worker)
            elif call.number > 0 and not self._workers:
                # The worker has been called before, by an agent that has ended: others may hold elements, too.
                self._reclaims_until = now + RECLAIM_SECONDS
            worker = self._workers[call.member] = WorkerState(call.life, now)
        worker.called_at = now
        return worker

    def _take_results(self, worker: WorkerState, call: WorkerCall) -> None:
        for batch in call.done:
            if batch.number <= worker.seen:
                continue
            worker.seen = batch.number
            for first, last in batch.succeeded:
                for element in range(first, min(last + 1, len(self._states))):
                    if element in batch.results and element not in self._succeeded:
                        self._results[element] = batch.results[element]
                    self._end(worker, element)
                    self._failed.pop(element, None)
            for failure in batch.failed:
                if failure.element < len(self._states):
                    self._fail(worker, failure)

    def _end(self, worker: WorkerState, element: int) -> None:
        """Note a success. One that has ended before is reported all the same: the dispatcher knows which came first."""
        worker.held.discard(element)
        self._take_up(element, _ENDED)
        self._succeeded.add(element)
        self._losses.pop(element, None)

    def _fail(self, worker: WorkerState, failure: FailedElement) -> None:
        element = failure.element
        is_held = element in worker.held
        worker.held.discard(element)
        if self._states[element] == _ENDED or (self._states[element] == _HELD and not is_held):
            return  # another worker has it, or it has ended
        tries = self._tries[element] = self._tries.get(element, 0) + 1
        if tries <= self._retries:
            if self._states[element] == _HELD:
                self._reopen(element)
            return
        self._give_up(element, failure)

    def _give_up(self, element: int, failure: FailedElement) -> None:
        self._take_up(element, _ENDED)
        self._failed[element] = failure

    def _take_up(self, element: int, state: int) -> None:
        """Note that an element is held or has ended."""
        if self._states[element] == _OPEN:
            self._open -= 1
        self._suspects.discard(element)
        self._states[element] = state

    def _reopen(self, element: int) -> None:
        if element in self._losses:
            self._states[element] = _SUSPECT
            self._suspects.add(element)
            return
        self._states[element] = _OPEN
        self._open += 1
        self._cursor = min(self._cursor, element)

    def _agree(self, worker: WorkerState, call: WorkerCall) -> set[int]:
        """Let the worker hold what it says that it holds; return what of it is not to be run."""
        says = {element for first, last in call.held for element in range(first, min(last + 1, len(self._states)))}
        for element in worker.held - says:
            if self._states[element] == _HELD:
                self._reopen(element)
        drop = set()
        for element in says - worker.held:
            if self._states[element] in (_OPEN, _SUSPECT):
                self._take_up(element, _HELD)
            else:
                drop.add(element)
        drop |= {element for element in says & worker.held if self._states[element] == _ENDED}
        worker.held = says - drop
        worker.running = {element for first, last in call.running for element in range(first, last + 1)} & worker.held
        return drop

    def _expire(self, now: float) -> None:
        for member, worker in list(self._workers.items()):
            if now - worker.called_at > LEASE_SECONDS:
                self._lose(worker)
                del self._workers[member]

    def _lose(self, worker: WorkerState) -> None:
        """Let others run the elements of a worker that is gone."""
        for element in worker.held:
            if self._states[element] != _HELD:
                continue
            losses = self._losses[element] = self._losses.get(element, 0) + 1
            if losses >= MOST_LOSSES:
                message = f"{losses} members ended while they ran it"
                self._give_up(element, FailedElement(element=element, message=message))
            else:
                self._reopen(element)
        worker.held, worker.running = set(), set()

    def _give(self, worker: WorkerState, want: int) -> tuple[Span, ...]:
        if len(self._succeeded) + len(self._failed) > MOST_UNREPORTED:
            return ()
        want = min(want, self._allowed(worker))
        share = max(1, self._open // (_SHARES * max(1, len(self._workers))))
        given: list[int] = []
        position = self._cursor
        for _ in range(min(want, share, self._open)):
            position = self._states.find(_OPEN, position)
            self._states[position] = _HELD
            given.append(position)
            position += 1
        self._cursor = position
        self._open -= len(given)
        if want and not given and not worker.held and self._suspects:
            given = [min(self._suspects)]
            self._take_up(given[0], _HELD)
        worker.held.update(given)
        return tuple(spans_of(given))

    def _allowed(self, worker: WorkerState) -> int:
        """Return how many more elements a worker may hold. Where few may run, none holds what another one could run."""
        if self._max_running is None:
            return len(self._states)
        held = sum(len(one.held) for one in self._workers.values())
        share = -(-self._max_running // max(1, len(self._workers)))
        return max(0, min(self._max_running - held, share - len(worker.held)))

    # Reports

    def has_report(self) -> bool:
        """Return whether the dispatcher has to hear of something."""
        return bool(self._succeeded or self._failed) or self.running != self._running_told

    def report(self) -> ElementsReport:
        """Return the results that the dispatcher does not have yet, or the first of them."""
        failed = tuple(list(self._failed.values())[:MOST_REPORTED_FAILURES])
        elements = sorted(self._succeeded)
        if len(self._results) > MOST_REPORTED_RESULTS:
            elements = elements[:MOST_REPORTED_RESULTS]
        spans = tuple(spans_of(elements))
        succeeded = spans[:MOST_REPORTED_RANGES]
        is_whole = len(failed) == len(self._failed) and sum(map(_length, succeeded)) == len(self._succeeded)
        reported = {element for first, last in succeeded for element in range(first, last + 1)} if self._results else ()
        results = tuple((element, value) for element, value in self._results.items() if element in reported)
        # With results left out, no batch counts as stored.
        seen = {member: (worker.life, worker.seen) for member, worker in self._workers.items()} if is_whole else {}
        return ElementsReport(succeeded, failed, results, self.running, seen)

    def reported(self, report: ElementsReport) -> None:
        """Note that the dispatcher has stored a report."""
        for first, last in report.succeeded:
            self._succeeded.difference_update(range(first, last + 1))
        for element, _ in report.results:
            self._results.pop(element, None)
        for one in report.failed:
            self._failed.pop(one.element, None)
        self._running_told = report.running
        for member, (life, seen) in report.seen.items():
            worker = self._workers.get(member)
            if worker is not None and worker.life == life:
                worker.stored = max(worker.stored, seen)


def _length(span: Span) -> int:
    return span[1] + 1 - span[0]
