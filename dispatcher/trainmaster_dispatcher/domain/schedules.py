"""When schedules are due, and what becomes of a due time. Pure: time is a parameter.

A due time is a moment that the cron expression names. It is dealt with once: by a job, or by being passed over. ``counts_from`` is the
latest one that was, or where there is none the time from which the schedule counts. So several that have come since are one missed
window, of which only the newest can become a job.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from hashlib import sha256
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from trainmaster.protocol.schedules import ConcurrencyPolicy
from trainmaster_dispatcher.domain.cron import Cron, count_until, latest_until, next_after

MOST_MISSED: Final = 100
"""Due times in a missed window above which people are told, as by Kubernetes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The part of a schedule that says when it is due. ``deadline`` and ``jitter`` in seconds; ``key`` makes jitters differ."""

    cron: Cron
    zone: ZoneInfo
    policy: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW
    deadline: float | None = None
    jitter: float = 0.0
    key: str = ""

    def delay(self, due: datetime) -> timedelta:
        """Return the time by which the job of a due time is submitted later: the same whenever and wherever it is computed, and never
        so long that the next due time has come.
        """
        if not self.jitter:
            return timedelta()
        following = next_after(self.cron, self.zone, due)
        most = self.jitter
        if following is not None:
            most = min(most, (following - due).total_seconds() - 1)
        digest = sha256(f"{self.key} {int(due.timestamp())}".encode()).digest()
        return timedelta(seconds=int.from_bytes(digest[:8]) % (int(most) + 1))

    def next_due(self, after: datetime) -> datetime | None:
        """Return the first due time later than ``after``."""
        return next_after(self.cron, self.zone, after)

    def next_look(self, after: datetime) -> datetime | None:
        """Return when the first due time later than ``after`` becomes a job."""
        due = self.next_due(after)
        return None if due is None else due + self.delay(due)


class DueWindow(NamedTuple):
    """Due times that have come and were not dealt with: the newest, and their number, counted up to one above ``MOST_MISSED``."""

    due: datetime
    many: int


def window(timing: Timing, counts_from: datetime, now: datetime) -> DueWindow | None:
    """Return the due times later than ``counts_from`` whose jobs should have been submitted until ``now``; None if there are none."""
    due = latest_until(timing.cron, timing.zone, counts_from, now)
    if due is not None and due + timing.delay(due) > now:
        due = latest_until(timing.cron, timing.zone, counts_from, due - timedelta(seconds=1))
    if due is None:
        return None
    return DueWindow(due, count_until(timing.cron, timing.zone, counts_from, due, MOST_MISSED + 1))


class Outcome(Enum):
    """Outcome of a due time."""

    SUBMIT = auto()
    """A job is submitted."""
    REPLACE = auto()
    """Jobs that have not ended are cancelled, and a job is submitted."""
    LATE = auto()
    """It is passed over: its deadline has passed."""
    BLOCKED = auto()
    """It waits until the earlier jobs have ended, its deadline has passed or the next due time has come."""


def outcome(timing: Timing, due: datetime, now: datetime, active: int) -> Outcome:
    """Return what becomes of a due time that has come. ``active``: the number of the schedule's jobs that have not ended."""
    if timing.deadline is not None and now - due - timing.delay(due) > timedelta(seconds=timing.deadline):
        return Outcome.LATE
    if not active or timing.policy is ConcurrencyPolicy.ALLOW:
        return Outcome.SUBMIT
    return Outcome.BLOCKED if timing.policy is ConcurrencyPolicy.FORBID else Outcome.REPLACE


def job_suffix(due: datetime) -> str:
    """Return what the name of a due time's job has behind the schedule's: minutes since the epoch, as in Kubernetes."""
    return f"-{int(due.timestamp()) // 60}"
