"""Attainment of the waits that priority classes promise: answers."""

from trainmaster.protocol.base import Lenient, Timestamp, example
from trainmaster.protocol.durations import Duration


class AttainmentRow(Lenient):
    """Jobs of one class in one queue, by the month of their start, and of the current month also those that wait."""

    model_config = example(
        since="2026-11-01T00:00:00.000Z",
        queue="research/vision",
        priorityClass="normal",
        promise="30m",
        met=970,
        missed=30,
        held=2,
        attained=0.97,
        meanSecondsLate=310.5,
        mostSecondsLate=1804.0,
        waiting=12,
        overdue=1,
    )

    since: Timestamp
    """Begin of the month, in UTC."""
    queue: str
    """Path of the queue; empty if it no longer exists."""
    priority_class: str
    """Name of the priority class; empty if it no longer exists."""
    promise: Duration | None = None
    """Wait that the class promises to bound, its ``longestWait``, as it is now; None if it has none."""
    met: int = 0
    """Number of jobs that had nodes within the promise after their submission."""
    missed: int = 0
    """Number of jobs that had nodes later."""
    held: int = 0
    """Number of jobs that had nodes later and had been held, suspended or given a start time before; neither met nor missed."""
    attained: float | None = None
    """Part of the jobs that met the promise among those that met or missed it; None without any."""
    mean_seconds_late: float | None = None
    """Mean time beyond the promise of those that missed it, in seconds; None without any."""
    most_seconds_late: float | None = None
    """Longest time beyond the promise of those that missed it, in seconds; None without any."""
    waiting: int = 0
    """Number of jobs that wait for their first start now, within the promise."""
    overdue: int = 0
    """Number of jobs that wait for their first start now, for longer than promised."""


class AttainmentAnswer(Lenient):
    """Attainment of the waits that priority classes promise, by month, queue and class."""

    begin: Timestamp
    """Begin of the first month."""
    end: Timestamp
    """End of the last month."""
    rows: tuple[AttainmentRow, ...]
    """Rows, by month, queue and class."""
