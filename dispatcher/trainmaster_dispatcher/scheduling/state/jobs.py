"""Waiting jobs, and the classes of equivalent ones. They know nothing of where a job may run."""

from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason

ClusterParts = tuple[tuple[int, float], ...]
"""By cluster: the part of the predecessors of a job that ran there last; in the order of clusters."""


class ClassKey(NamedTuple):
    """Jobs that are equivalent in all that the plan reads: what is true for one of them on a cluster is true for all."""

    queue_id: int
    class_id: int
    shape_id: int
    avoided: tuple[int, ...] = ()
    user: str = ""
    """The user who submitted them, in a queue where the plan depends on that; empty elsewhere."""
    predecessors: ClusterParts = ()
    """Where the jobs ran that they start after; empty for jobs that start after none."""

    @property
    def of_reason(self) -> "ClassKey":
        """The key by which reasons to wait are stored: where predecessors ran is only a preference, so jobs wait for the same."""
        return self._replace(predecessors=()) if self.predecessors else self


class HeldBack(NamedTuple):
    """A class that is held back because its attempt has ended in unexpected errors; it is tried again after ``until``."""

    failures: int
    until: float
    reason: Reason


PRIORITY_SECONDS = 60.0
"""The seconds by which one point of job priority makes a job count as older than it is."""


DATED, UNDATED = -2e11, -1e11
"""What is added to the times in keys by deadlines, of jobs with and without one. So those without come last, and both are below all
other times, of which the years up to 3000 have 3e10 seconds."""
_LOWEST_TIME = -5e10


class StaticKey(NamedTuple):
    """A job's position in its class, ``at``, shifted by its priority; then by key.

    ``at``: the time since when it waits; in a queue ordered by deadlines ``DATED`` plus its deadline, or ``UNDATED`` plus that time.
    """

    at: float
    job_id: int


def is_by_deadline(at: float) -> bool:
    """Return whether the time of a key is one of a queue ordered by deadlines, where it is no measure of a wait."""
    return at < _LOWEST_TIME


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A queued job. ``version``: the one for which a decision about the job is valid. ``waits_since``: its submission or, later, the
    moment from which it was eligible, in seconds since the epoch.
    """

    id: int
    version: int
    name: str
    queue_id: int
    class_id: int
    shape_id: int
    priority: int
    waits_since: float
    attempt: int
    user: str = ""
    """The name of the key that submitted it."""
    deadline: float | None = None
    """The time by which it should have ended, in seconds since the epoch."""
    is_risk_noted: bool = False
    """Whether it has an event that its deadline is at risk, or missed."""
    predecessors: ClusterParts = ()
    """Where the jobs ran that it starts after."""

    @property
    def key(self) -> StaticKey:
        """Its key in all queues that are not ordered by deadlines."""
        return StaticKey(self.waits_since - PRIORITY_SECONDS * self.priority, self.id)

    @property
    def key_by_deadline(self) -> StaticKey:
        """Its key in a queue ordered by deadlines."""
        at = UNDATED + self.waits_since if self.deadline is None else DATED + self.deadline
        return StaticKey(at - PRIORITY_SECONDS * self.priority, self.id)
