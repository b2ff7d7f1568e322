"""First come first served and EASY backfill by the book: what the scheduler is measured against, sharing no code with it.

A simulation of events on identical processors; every job's limit is the time it really runs. Sources:

* D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
* A. Mu'alem and D. Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2
  with Backfilling", IEEE TPDS 12(6), 2001: the algorithm in its aggressive form, with shadow time and extra processors.
* D. Feitelson, L. Rudolph, U. Schwiegelshohn, K. Sevcik and P. Wong, "Theory and Practice in Parallel Job Scheduling",
  JSSPP 1997: bounded slowdown.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from statistics import fmean
from typing import NamedTuple

SHORTEST = 10.0
"""Seconds that a job counts with at least in bounded slowdown, so that very short ones do not decide the mean."""


class Policy(StrEnum):
    FCFS = "fcfs"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class Job:
    """A rigid job: a fixed number of processors. ``submit`` is a point in time, ``run`` how long it runs, both in seconds."""

    number: int
    submit: float
    run: float
    processors: int


Starts = dict[int, float]
"""When each job starts, by its number, in seconds on the clock of ``Job.submit``."""


@dataclass(frozen=True, slots=True)
class Result:
    """Means over all jobs; waits are in seconds."""

    mean_wait: float
    mean_bounded_slowdown: float

    @classmethod
    def of(cls, jobs: Sequence[Job], starts: Mapping[int, float]) -> "Result":
        """Return the figures of a schedule, whoever made it; every job must have started."""
        waits = [starts[job.number] - job.submit for job in jobs]
        slowdowns = [bounded_slowdown(wait, job.run) for job, wait in zip(jobs, waits, strict=True)]
        return cls(fmean(waits), fmean(slowdowns))


def bounded_slowdown(wait: float, run: float) -> float:
    """Return how many times longer a job took, from submission to end, than it ran; short runs count as ``SHORTEST`` seconds."""
    return max(1.0, (wait + run) / max(run, SHORTEST))


def simulate(jobs: Sequence[Job], processors: int, policy: Policy) -> Starts:
    """Return when each job starts. The queue is in order of submission, jobs of one instant in order of their numbers.

    Raises ValueError for a job that is wider than the machine.
    """
    too_wide = next((job for job in jobs if not 0 < job.processors <= processors), None)
    if too_wide is not None:
        raise ValueError(f"job {too_wide.number} wants {too_wide.processors} processors; the machine has {processors}")
    arrivals = deque(sorted(jobs, key=lambda job: (job.submit, job.number)))
    machine = _Machine(processors)
    queue: deque[Job] = deque()
    # A queue that is not empty waits for the end of something, as its head fits the empty machine.
    while arrivals or machine.ends:
        now = min(arrivals[0].submit if arrivals else inf, machine.ends[0].at if machine.ends else inf)
        machine.end_until(now)
        while arrivals and arrivals[0].submit <= now:
            queue.append(arrivals.popleft())
        while queue and queue[0].processors <= machine.free:
            machine.start(queue.popleft(), now)
        if policy is Policy.EASY and machine.free and len(queue) > 1:
            queue = _backfill(machine, queue, now)
    return machine.starts


class _End(NamedTuple):
    at: float
    processors: int


class _Machine:
    """The processors, and a heap of when how many of them become free."""

    def __init__(self, processors: int) -> None:
        self.free = processors
        self.ends: list[_End] = []
        self.starts: Starts = {}

    def end_until(self, now: float) -> None:
        while self.ends and self.ends[0].at <= now:
            self.free += heappop(self.ends).processors

    def start(self, job: Job, now: float) -> None:
        self.free -= job.processors
        heappush(self.ends, _End(now + job.run, job.processors))
        self.starts[job.number] = now


def _backfill(machine: _Machine, queue: deque[Job], now: float) -> deque[Job]:
    """Start jobs behind the head, which does not fit, as far as they do not delay it; return the queue that is left."""
    head, *behind = queue
    shadow, extra = _reservation(machine, head)
    left = deque([head])
    for job in behind:
        ends_in_time = now + job.run <= shadow
        if job.processors <= machine.free and (ends_in_time or job.processors <= extra):
            machine.start(job, now)
            if not ends_in_time:
                extra -= job.processors
        else:
            left.append(job)
    return left


def _reservation(machine: _Machine, head: Job) -> tuple[float, int]:
    """Return the shadow time, at which enough processors are free for the head, and the extra ones that it then leaves."""
    shadow, free = 0.0, machine.free
    for end in sorted(machine.ends):
        # What ends at the shadow time itself is free then, too.
        if free >= head.processors and end.at > shadow:
            break
        shadow, free = end.at, free + end.processors
    return shadow, free - head.processors
