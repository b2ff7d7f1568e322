"""Several machines by the book, each with EASY: a job is sent to one of them when it arrives, and stays there.

* V. Hamscher, U. Schwiegelshohn, A. Streit and R. Yahyapour, "Evaluation of Job-Scheduling Strategies for Grid Computing", GRID 2000:
  a central scheduler that sends jobs to machines with queues of their own.
* V. Subramani, R. Kettimuthu, S. Srinivasan and P. Sadayappan, "Distributed Job Scheduling on Computational Grids Using Multiple
  Simultaneous Requests", HPDC 2002: sending a job where it is expected to start first.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import cycle
from math import inf
from random import Random

from bench.swf import LoggedJob
from tests.textbook_backfill import HeadScheduler, Policy
from tests.textbook_easy import Starts
from tests.textbook_machine import Events, Machine, Order
from tests.textbook_planning import PlannedTimes, Planning
from tests.textbook_profile import Profile


class Choice(StrEnum):
    """Rule by which a job that arrives is sent to one of the machines that are wide enough for it."""

    RANDOM = "random"
    """In proportion to their processors."""
    ROUND_ROBIN = "round-robin"
    EARLIEST = "earliest"
    """Where it would start first if all before it start in the order of the queue, as early as they can, and run as planned."""


class _Site:
    """A machine with its queue. Run times are learned from the jobs of all machines."""

    def __init__(self, processors: int, planned: PlannedTimes) -> None:
        self.machine = Machine(processors)
        self.scheduler = HeadScheduler(self.machine, planned, planned, Order.ARRIVAL, Policy.EASY)
        self._planned = planned

    def expected_start(self, job: LoggedJob, now: float) -> float:
        running = self.machine.running.values()
        profile = Profile.of_running(self.machine.free, now, ((one.planned_end, one.job.processors) for one in running))
        for waiting in self.scheduler.queue:
            seconds = self._planned.seconds[waiting.number]
            at = profile.earliest(seconds, waiting.processors)
            profile.take(at, at + seconds, waiting.processors)
        return profile.earliest(self._planned.seconds[job.number], job.processors)


def simulate_clusters(
    jobs: Sequence[LoggedJob], processors: Sequence[int], planning: Planning, choice: Choice, seed: int = 1
) -> Starts:
    """Return when each job starts, by number, in seconds, on machines of these processors. ``seed``: of random choices.

    Raises ValueError for a job that is wider than every machine.
    """
    planned, draw = PlannedTimes(planning), Random(seed)
    sites = [_Site(many, planned) for many in processors]
    turns = cycle(range(len(sites)))
    widest = max(processors)
    for job in jobs:
        if job.processors > widest:
            raise ValueError(f"job {job.number} wants {job.processors} processors; the widest machine has {widest}")

    def site_for(job: LoggedJob, now: float) -> _Site:
        open_sites = [one for one in sites if one.machine.processors >= job.processors]
        match choice:
            case Choice.RANDOM:
                return draw.choices(open_sites, [one.machine.processors for one in open_sites])[0]
            case Choice.ROUND_ROBIN:
                return next(sites[turn] for turn in turns if sites[turn] in open_sites)
            case Choice.EARLIEST:
                return min(open_sites, key=lambda one: one.expected_start(job, now))

    arrivals = deque(sorted(jobs, key=lambda job: (job.submit, job.number)))
    while arrivals or any(one.machine.running for one in sites):
        now = min(arrivals[0].submit if arrivals else inf, *(one.machine.next_event() for one in sites))
        events = []
        for site in sites:
            ended = site.machine.end_until(now)
            for run in ended:
                planned.ended(run.job)
            events.append(Events(ended, site.machine.correct_until(now), []))
        while arrivals and arrivals[0].submit <= now:
            job = arrivals.popleft()
            planned.submitted(job)
            site_for(job, now).scheduler.queue.append(job)
        for site, happened in zip(sites, events, strict=True):
            site.scheduler.decide(now, happened)
    return {number: at for site in sites for number, at in site.machine.starts.items()}
