"""An installation's history as a workload for simulations."""

from typing import Any

from trainmaster.protocol.base import Lenient

MOST_JOBS = 1_000_000
"""The largest number of jobs of a workload."""


class WorkloadJob(Lenient):
    """A job that has run. Times are seconds since the epoch; ``run``: duration of its last run in seconds."""

    job: int
    """Number of the job; later jobs have larger ones."""
    submitted: float
    waited: float
    """Seconds from its submission to its first start."""
    run: float
    spec: int
    """Index of its specification in ``specs``."""
    queue: str
    priority_class: str
    priority: int


class Workload(Lenient):
    """A page of jobs, the latest first."""

    jobs: tuple[WorkloadJob, ...] = ()
    specs: dict[int, dict[str, Any]] = {}
    next: int | None = None
    """Cursor of the next page; None at the end."""
