"""Waiting jobs, and the classes of equivalent ones. They know nothing of where a job may run."""

from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason


class ClassKey(NamedTuple):
    """Jobs that are equivalent in all that the plan reads: what is true for one of them on a cluster is true for all."""

    queue_id: int
    class_id: int
    shape_id: int
    avoided: tuple[int, ...] = ()
    user: str = ""
    """The user who submitted them, in a queue where the plan depends on that; empty elsewhere."""


class HeldBack(NamedTuple):
    """A class that is held back because its attempt has ended in unexpected errors; it is tried again after ``until``."""

    failures: int
    until: float
    reason: Reason


PRIORITY_SECONDS = 60.0
"""The seconds by which one point of job priority makes a job count as older than it is."""


class StaticKey(NamedTuple):
    """A job's position in its class: by the time since when it waits, shifted by its priority; then by key."""

    at: float
    job_id: int


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

    @property
    def key(self) -> StaticKey:
        return StaticKey(self.waits_since - PRIORITY_SECONDS * self.priority, self.id)
