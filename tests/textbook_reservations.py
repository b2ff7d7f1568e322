"""Conservative and slack-based backfill by the book: every job of the queue has a reservation.

* A. Mu'alem and D. Feitelson, IEEE TPDS 12(6), 2001: the conservative form. A job that arrives gets the earliest reservation that
  moves no other. When a job ends early, the schedule is compressed: each job in the queue's order, once, goes to the earliest time
  that is free for it, which is never later than its reservation.
* D. Talby and D. Feitelson, "Supporting Priorities and Improving Utilization of the IBM SP Scheduler Using Slack-Based Backfilling",
  IPPS 1999: reservations may be moved later, each by a slack in total. The form here is simple; all jobs have one priority:

  - A job that arrives gets a reservation as in the conservative form. It may start later than that by at most the slack factor
    times the mean wait of all jobs that have started until then.
  - After each end, and after an arrival for the job that arrived, jobs of the queue that fit into the free processors are tried in
    the queue's order: the job starts now, and all others get the earliest reservation in the order of their reservations. If none
    is then later than it may be, or than it was before, the trial becomes the schedule.

With predictions, a schedule is made anew in the queue's order whenever a job ends or outruns its prediction, since planned times
have changed then; a reservation is then no guarantee.
"""

from math import inf

from bench.swf import LoggedJob
from tests.textbook_machine import Events, Machine, Order, sort_queue
from tests.textbook_planning import PlannedTimes
from tests.textbook_profile import Profile


class ReservingScheduler:
    """A queue with reservations; conservative if ``slack_factor`` is None."""

    def __init__(self, machine: Machine, planned: PlannedTimes, order: Order, slack_factor: float | None) -> None:
        self.queue: list[LoggedJob] = []
        self.first_reservations: dict[int, float] = {}
        self.latest: dict[int, float] = {}
        self._machine = machine
        self._planned = planned
        self._order = order
        self._slack_factor = slack_factor
        self._reservations: dict[int, float] = {}
        self._profile = Profile(machine.processors)
        self._waits = 0.0

    def next_start(self) -> float:
        return min(self._reservations.values(), default=inf)

    def decide(self, now: float, events: Events) -> None:
        self._profile.forget_before(now)
        if self._planned.planning.learns and (events.ended or events.corrected):
            self._make_anew(now)
        else:
            self._compress(now, events)
        for job in events.arrived:
            self._arrive(job)
        self._start_due(now)
        if self._slack_factor is not None:
            self._backfill(now, self.queue if events.ended else events.arrived)

    def _arrive(self, job: LoggedJob) -> None:
        self._reserve(self._profile, job, self._reservations)
        at = self._reservations[job.number]
        self.queue.append(job)
        started = len(self._machine.starts)
        slack = (self._slack_factor or 0.0) * self._waits / started if started else 0.0
        self.first_reservations[job.number] = at
        self.latest[job.number] = at + slack

    def _reserve(self, profile: Profile, job: LoggedJob, reservations: dict[int, float]) -> None:
        seconds = self._planned.seconds[job.number]
        at = reservations[job.number] = profile.earliest(seconds, job.processors)
        profile.take(at, at + seconds, job.processors)

    def _compress(self, now: float, events: Events) -> None:
        early = [one for one in events.ended if one.planned_end > now]
        for one in early:
            self._profile.take(now, one.planned_end, -one.job.processors)
        if early:
            sort_queue(self.queue, self._order, self._planned.seconds, now)
            for job in self.queue:
                at, seconds = self._reservations[job.number], self._planned.seconds[job.number]
                self._profile.take(at, at + seconds, -job.processors)
                at = self._profile.earliest(seconds, job.processors, before=at)
                self._profile.take(at, at + seconds, job.processors)
                self._reservations[job.number] = at

    def _make_anew(self, now: float) -> None:
        sort_queue(self.queue, self._order, self._planned.seconds, now)
        self._profile = self._running(now)
        for job in self.queue:
            self._reserve(self._profile, job, self._reservations)

    def _running(self, now: float) -> Profile:
        """Return the profile without the queue."""
        ends = ((one.planned_end, one.job.processors) for one in self._machine.running.values())
        return Profile.of_running(self._machine.free, now, ends)

    def _start_due(self, now: float) -> None:
        due = [job for job in self.queue if self._reservations[job.number] <= now]
        for job in due:
            del self._reservations[job.number]
            self._machine.start(job, now, self._planned.seconds[job.number])
            self._planned.started(job)
            self._waits += now - job.submit
        if due:
            self.queue = [job for job in self.queue if job.number in self._reservations]

    def _backfill(self, now: float, candidates: list[LoggedJob]) -> None:
        candidates = [job for job in candidates if job.number in self._reservations]
        sort_queue(candidates, self._order, self._planned.seconds, now)
        for job in candidates:
            # An earlier trial may have started it.
            if job.number in self._reservations and job.processors <= self._machine.free:
                self._try(job, now)

    def _try(self, candidate: LoggedJob, now: float) -> None:
        """Start the candidate if the others can then still start in time."""
        profile = self._running(now)
        reservations = {candidate.number: now}
        profile.take(now, now + self._planned.seconds[candidate.number], candidate.processors)
        for job in sorted(self.queue, key=lambda job: (self._reservations[job.number], job.submit, job.number)):
            if job is not candidate:
                self._reserve(profile, job, reservations)
                if reservations[job.number] > max(self.latest[job.number], self._reservations[job.number]):
                    return
        self._profile, self._reservations = profile, reservations
        self._start_due(now)
