"""Identical processors with the jobs that run on them, and the orders of a queue, for schedulers by the book."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

from bench.swf import LoggedJob
from tests.textbook_easy import Starts
from tests.textbook_planning import corrected


class Order(StrEnum):
    """The order of a queue; jobs that are equal in it are in order of submission."""

    ARRIVAL = "arrival"
    SHORTEST = "shortest"
    """By planned run time."""
    EXPANSION = "expansion"
    """By expansion factor, the largest first: wait and planned run time, divided by the planned run time."""


def sort_queue(queue: list[LoggedJob], order: Order, planned: Mapping[int, float], now: float) -> None:
    """Sort a queue that is in any order; ``planned`` are run times in seconds by number."""
    match order:
        case Order.ARRIVAL:
            queue.sort(key=lambda job: (job.submit, job.number))
        case Order.SHORTEST:
            queue.sort(key=lambda job: (planned[job.number], job.submit, job.number))
        case Order.EXPANSION:
            # Without the 1 that all factors contain.
            queue.sort(key=lambda job: ((job.submit - now) / planned[job.number], job.submit, job.number))


@dataclass(slots=True)
class Running:
    """A job that runs. ``planned_end`` is when it is taken to end, after ``corrections`` of predictions that were too short."""

    job: LoggedJob
    start: float
    planned_end: float
    corrections: int = 0


class Machine:
    """The processors, who runs on them, and when each job started."""

    def __init__(self, processors: int) -> None:
        self.processors = self.free = processors
        self.running: dict[int, Running] = {}
        self.starts: Starts = {}
        self._ends: list[tuple[float, int]] = []
        self._expiries: list[tuple[float, int]] = []
        """Planned ends that come before the real ones."""

    def next_event(self) -> float:
        """Return when a job ends or outruns its prediction next; infinity if none runs."""
        return min(heap[0][0] if heap else inf for heap in (self._ends, self._expiries))

    def start(self, job: LoggedJob, now: float, planned: float) -> None:
        self.free -= job.processors
        one = self.running[job.number] = Running(job, now, now + planned)
        self.starts[job.number] = now
        heappush(self._ends, (now + job.run, job.number))
        self._expect(one)

    def end_until(self, now: float) -> list[Running]:
        """End what is over, and return it."""
        ended = []
        while self._ends and self._ends[0][0] <= now:
            one = self.running.pop(heappop(self._ends)[1])
            self.free += one.job.processors
            ended.append(one)
        return ended

    def correct_until(self, now: float) -> bool:
        """Give what outran its prediction a longer one; return whether there was any."""
        expired = False
        while self._expiries and self._expiries[0][0] <= now:
            one = self.running[heappop(self._expiries)[1]]
            one.planned_end = one.start + corrected(one.job, one.planned_end - one.start, one.corrections)
            one.corrections += 1
            self._expect(one)
            expired = True
        return expired

    def _expect(self, one: Running) -> None:
        if one.planned_end < one.start + one.job.run:
            heappush(self._expiries, (one.planned_end, one.job.number))


class Events(NamedTuple):
    """Everything of one instant: jobs that ended, whether predictions of running jobs were corrected, and jobs that arrived."""

    ended: list[Running]
    corrected: bool
    arrived: list[LoggedJob]


class Scheduler(Protocol):
    """A policy with its queue. Each job's first reservation, and how late it may start at most, are in seconds by its number."""

    queue: list[LoggedJob]
    first_reservations: dict[int, float]
    latest: dict[int, float]

    def decide(self, now: float, events: Events) -> None:
        """Start on the machine what starts now."""

    def next_start(self) -> float:
        """Return when a job has to start if nothing happens before."""
