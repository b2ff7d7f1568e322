"""Policies of batch schedulers by the book, with users' estimates and predictions, sharing no code with the scheduler.

A simulation of events on identical processors, in which the run time that a scheduler plans with is not the real one. Sources:

* D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995, and A. Mu'alem and D. Feitelson, "Utilization, Predictability,
  Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001: EASY.
* D. Tsafrir, Y. Etsion and D. Feitelson, "Backfilling Using System-Generated Predictions Rather Than User Runtime Estimates", IEEE
  TPDS 18(6), 2007: EASY with predictions, and EASY++, which tries the shortest candidates first as well (SJBF).
* D. Jackson, Q. Snell and M. Clement, "Core Algorithms of the Maui Scheduler", JSSPP 2001: EASY with several reservations.
* ``tests.textbook_reservations`` names those of conservative and slack-based backfill.

At one instant, jobs end first, then predictions that were too short are corrected, then jobs arrive, and then the policy decides.
With exact planning, FCFS and EASY start each job when ``tests.textbook_easy`` does.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from bench.swf import LoggedJob
from tests.textbook_easy import Starts
from tests.textbook_machine import Events, Machine, Order, Scheduler, sort_queue
from tests.textbook_planning import PlannedTimes, Planning
from tests.textbook_profile import Profile
from tests.textbook_reservations import ReservingScheduler

SLACK_FACTOR = 1.0


class Policy(StrEnum):
    FCFS = "fcfs"
    EASY = "easy"
    EASY_SJBF = "easy-sjbf"
    """EASY that tries the candidates for backfill by planned run time, the shortest first."""
    CONSERVATIVE = "conservative"
    SLACK = "slack"


class Outcome(NamedTuple):
    """When jobs start, by number and in seconds on the clock of their submissions.

    ``first_reservations`` has, for conservative and slack-based backfill, every job's reservation at its arrival; for EASY, the
    shadow time of each job that had to wait at the head of the queue, when it came there. ``latest`` is that with the job's slack.
    """

    starts: Starts
    first_reservations: dict[int, float]
    latest: dict[int, float]


def simulate(
    jobs: Sequence[LoggedJob],
    processors: int,
    policy: Policy,
    planning: Planning,
    order: Order = Order.ARRIVAL,
    ordering: Planning | None = None,
    depth: int = 1,
) -> Starts:
    """Return when each job starts, by number, in seconds. ``ordering``: run times for the order of the queue; by default as planned.
    ``depth``: for EASY, the number of jobs that have reservations.

    Raises ValueError for a job that is wider than the machine, runs for no time, or runs longer than its estimate.
    """
    return outcome(jobs, processors, policy, planning, order, ordering=ordering, depth=depth).starts


def outcome(
    jobs: Sequence[LoggedJob],
    processors: int,
    policy: Policy,
    planning: Planning,
    order: Order = Order.ARRIVAL,
    slack_factor: float = SLACK_FACTOR,
    ordering: Planning | None = None,
    depth: int = 1,
) -> Outcome:
    """Return when each job starts, and the reservations behind that; ``slack_factor`` is for slack-based backfill.

    ``ordering``: for FCFS and EASY, the run times by which the queue is in order; by default as planned. ``depth``: for EASY, the
    number of jobs that have reservations.

    Raises ValueError as ``simulate`` does.
    """
    for job in jobs:
        _check(job, processors)
    arrivals = deque(sorted(jobs, key=lambda job: (job.submit, job.number)))
    machine, planned = Machine(processors), PlannedTimes(planning)
    ordered = PlannedTimes(ordering) if ordering is not None else planned
    scheduler = _scheduler(policy, machine, planned, ordered, order, slack_factor, depth)
    while arrivals or machine.running or scheduler.queue:
        now = min(arrivals[0].submit if arrivals else inf, machine.next_event(), scheduler.next_start())
        if now == inf:
            raise RuntimeError(f"{len(scheduler.queue)} jobs wait, although nothing runs and no start is planned")
        ended = machine.end_until(now)
        for one in ended:
            planned.ended(one.job)
            if ordered is not planned:
                ordered.ended(one.job)
        was_corrected = machine.correct_until(now)
        arrived = []
        while arrivals and arrivals[0].submit <= now:
            arrived.append(arrivals.popleft())
            planned.submitted(arrived[-1])
            if ordered is not planned:
                ordered.submitted(arrived[-1])
        scheduler.decide(now, Events(ended, was_corrected, arrived))
    return Outcome(machine.starts, scheduler.first_reservations, scheduler.latest)


def _check(job: LoggedJob, processors: int) -> None:
    if not 0 < job.processors <= processors:
        raise ValueError(f"job {job.number} wants {job.processors} processors; the machine has {processors}")
    if not 0 < job.run <= job.estimate:
        raise ValueError(
            f"job {job.number} runs {job.run:g} seconds; allowed: above 0, at most its estimate {job.estimate:g}"
        )


def _scheduler(
    policy: Policy,
    machine: Machine,
    planned: PlannedTimes,
    ordered: PlannedTimes,
    order: Order,
    slack_factor: float,
    depth: int,
) -> Scheduler:
    match policy:
        case Policy.CONSERVATIVE:
            return ReservingScheduler(machine, planned, order, None)
        case Policy.SLACK:
            return ReservingScheduler(machine, planned, order, slack_factor)
        case _:
            return HeadScheduler(machine, planned, ordered, order, policy, depth)


class HeadScheduler:
    """First come first served, or EASY: only the head of the queue has a reservation, or the first ``depth`` jobs that do not fit."""

    def __init__(
        self,
        machine: Machine,
        planned: PlannedTimes,
        ordered: PlannedTimes,
        order: Order,
        policy: Policy,
        depth: int = 1,
    ) -> None:
        self.queue: list[LoggedJob] = []
        self.first_reservations: dict[int, float] = {}
        self.latest = self.first_reservations
        self._machine = machine
        self._planned = planned
        self._ordered = ordered
        self._order = order
        self._policy = policy
        self._depth = depth

    def next_start(self) -> float:
        return inf

    def decide(self, now: float, events: Events) -> None:
        self.queue += events.arrived
        if self._order is not Order.ARRIVAL:
            sort_queue(self.queue, self._order, self._ordered.seconds, now)
        fitting = 0
        while fitting < len(self.queue) and self.queue[fitting].processors <= self._machine.free:
            self._start(self.queue[fitting], now)
            fitting += 1
        del self.queue[:fitting]
        if self.queue and self._policy is not Policy.FCFS:
            if self._depth > 1:
                self._backfill_beside_several(now)
            else:
                self._backfill(now)

    def _backfill_beside_several(self, now: float) -> None:
        """Start jobs that delay none of the first ``depth`` that do not fit, by their planned run times."""
        ends = ((one.planned_end, one.job.processors) for one in self._machine.running.values())
        profile, reserved, passed = Profile.of_running(self._machine.free, now, ends), 0, set()
        for job in self.queue:
            if reserved == self._depth and not self._machine.free:
                break
            if reserved == self._depth and job.processors > self._machine.free:
                continue
            seconds = self._planned.seconds[job.number]
            at = profile.earliest(seconds, job.processors)
            if at <= now:
                self._start(job, now)
                passed.add(job.number)
            elif reserved < self._depth:
                self.first_reservations.setdefault(job.number, at)
                reserved += 1
            else:
                continue
            profile.take(at, at + seconds, job.processors)
        if passed:
            self.queue = [job for job in self.queue if job.number not in passed]

    def _start(self, job: LoggedJob, now: float) -> None:
        self._machine.start(job, now, self._planned.seconds[job.number])
        self._planned.started(job)
        if self._ordered is not self._planned:
            self._ordered.started(job)

    def _backfill(self, now: float) -> None:
        """Start jobs behind the head, which does not fit, as far as they do not delay it by their planned run times."""
        head, *candidates = self.queue
        shadow, extra = self._reservation(head)
        self.first_reservations.setdefault(head.number, shadow)
        if self._policy is Policy.EASY_SJBF:
            sort_queue(candidates, Order.SHORTEST, self._planned.seconds, now)
        passed = set()
        for job in candidates:
            if not self._machine.free:
                break
            ends_in_time = now + self._planned.seconds[job.number] <= shadow
            if job.processors <= self._machine.free and (ends_in_time or job.processors <= extra):
                self._start(job, now)
                passed.add(job.number)
                if not ends_in_time:
                    extra -= job.processors
        if passed:
            self.queue = [job for job in self.queue if job.number not in passed]

    def _reservation(self, head: LoggedJob) -> tuple[float, int]:
        """Return the shadow time, when enough processors are planned to be free for the head, and how many it then leaves."""
        free, shadow = self._machine.free, inf
        for end, processors in sorted((one.planned_end, one.job.processors) for one in self._machine.running.values()):
            if end > shadow:
                break
            free += processors
            if free >= head.processors:
                shadow = end
        return shadow, free - head.processors
