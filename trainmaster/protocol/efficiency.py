"""Use of runs beside what they requested, over a time, and requests that would suit recurring jobs: answers."""

from decimal import Decimal
from typing import Literal

from trainmaster.protocol.base import Lenient, Timestamp, example

EfficiencyGroup = Literal["queue", "user", "cluster", "job"]
LEAST_RUNS = 3
"""The fewest runs of a recurring job from which a request is suggested."""


class EfficiencyRow(Lenient):
    """Runs of a queue, user, cluster or job: what they requested and used, for the time in which their use was measured."""

    of: str
    """Queue, user, cluster, or id of the job."""
    runs: int
    """Number of runs of which something is known."""
    core_hours_requested: float = 0.0
    """Core-hours that were requested."""
    core_hours_used: float = 0.0
    """Core-hours that were used."""
    cpu_percent: float | None = None
    """Percent of the requested core-hours that were used; missing where none were requested."""
    gpu_hours_held: float = 0.0
    """GPU-hours that were held, of GPUs whose use is known."""
    gpu_hours_busy: float = 0.0
    """GPU-hours in which the GPUs were at work."""
    gpu_percent: float | None = None
    """Percent of the held GPU-hours in which the GPUs were at work; missing where nothing is known of GPUs."""
    memory_p95_percent: float | None = None
    """Percent of its requested memory that a member used at its peak, in all but 5 % of the runs; missing where it is unknown."""
    memory_peak_percent: float | None = None
    """The same of the run with the most."""
    oom_kills: int = 0
    """Number of ends of containers for lack of memory, as far as they are known."""


class RequestSuggestion(Lenient):
    """A request that would suit a recurring job: runs of one user in one queue with the same requests, whose names differ in a number
    at their end alone.
    """

    job: str
    """Name of the jobs, without the number at its end."""
    queue: str
    """Path of the queue."""
    user: str = ""
    """User whose jobs they are."""
    runs: int
    """Number of runs that it follows from."""
    role: str
    """Role of the members."""
    resource: Literal["cpu", "memory"]
    """Resource."""
    requested: str
    """Quantity that each member requests now."""
    suggested: str
    """Quantity that each member should request."""
    observed: str
    """For memory the peak of all members of all runs; for cpu the highest average of a run's members."""
    margin_percent: float
    """Percent by which the suggestion is above what was observed."""
    hours_saved: float = 0.0
    """Core-hours or GiB-hours that would not have been requested; negative where more should be requested."""
    saved: Decimal | None = None
    """Money that these would have saved at the present prices of the clusters; missing without prices."""
    sentence: str
    """Suggestion in words."""


class EfficiencyAnswer(Lenient):
    """Use of runs beside what they requested, and suggestions for recurring jobs."""

    model_config = example(
        begin="2026-11-01T00:00:00.000Z",
        end="2026-12-01T00:00:00.000Z",
        currency="EUR",
        rows=[
            {"of": "research/vision", "runs": 12, "coreHoursRequested": 96.0, "coreHoursUsed": 24.0, "cpuPercent": 25.0}
        ],
        suggestions=[],
        too_few_runs=2,
    )

    begin: Timestamp
    """Begin of the time: runs are counted whole by the time of their last sample."""
    end: Timestamp
    """End of the time."""
    currency: str
    """Currency of money."""
    rows: tuple[EfficiencyRow, ...]
    """Rows, those with the most unused core-hours first."""
    suggestions: tuple[RequestSuggestion, ...]
    """Suggestions, those that save the most first."""
    too_few_runs: int = 0
    """Number of recurring jobs without a suggestion, as fewer than 3 of their runs are known."""
