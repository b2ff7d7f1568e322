"""Deadlines of jobs: how a job stands towards its own, and the events about it. A deadline never ends a job."""

from datetime import UTC, datetime
from enum import IntEnum
from math import inf

from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.states import DeadlineState, JobState


class DeadlineNote(IntEnum):
    """The last event of a job about its deadline, as it is stored. Each is written at most once, and none after ``MISSED``."""

    NONE = 0
    AT_RISK = 1
    MISSED = 2


def is_at_risk(deadline: float, expected: float, now: float) -> bool:
    """Return whether a job that starts at ``now`` and runs for ``expected`` seconds ends after a deadline that is still ahead.

    Times are in seconds since the epoch. With ``expected`` infinite, nothing is known of its run time, and nothing is at risk.
    """
    return now < deadline < now + expected < inf


def standing(
    deadline: datetime, note: int, state: JobState, ended_at: datetime | None, now: datetime
) -> DeadlineState | None:
    """Return how a job stands towards its deadline; None for one that has failed or was cancelled before it."""
    if deadline < (now if ended_at is None else ended_at):
        return DeadlineState.MISSED
    if ended_at is not None:
        return DeadlineState.MET if state is JobState.SUCCEEDED else None
    return DeadlineState.AT_RISK if note >= DeadlineNote.AT_RISK else DeadlineState.AHEAD


def words_on_risk(deadline: datetime, expected: float | None) -> str:
    """Return a sentence on a job whose deadline cannot be met. ``expected``: the seconds for which it is expected to run."""
    known = "" if expected is None else f", as it is expected to run for {_length(expected)}"
    return f"Its deadline {_moment(deadline)} is at risk{known}."


def words_on_miss(deadline: datetime, now: datetime) -> str:
    """Return a sentence on a job that has not ended by its deadline."""
    return f"Its deadline {_moment(deadline)} was missed {_length((now - deadline).total_seconds())} ago."


def risk_message(deadline: datetime, expected: float, now: float) -> str:
    """Return the message of the event of a job whose deadline cannot be met; times in seconds."""
    left = _length(deadline.timestamp() - now)
    return f"its deadline {_moment(deadline)} is in {left}, and it is expected to run for {_length(expected)}"


def miss_message(deadline: datetime) -> str:
    """Return the message of the event of a job that has not ended by its deadline."""
    return f"it has not ended by its deadline {_moment(deadline)}"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _length(seconds: float) -> str:
    return format_duration(round(seconds) if seconds >= 1 else seconds)
