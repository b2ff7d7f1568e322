"""An installation's history as a workload for simulations."""

from typing import Any

from trainmaster.protocol.base import Lenient, example

MOST_JOBS = 1_000_000
"""The largest number of jobs of a workload."""


class WorkloadJob(Lenient):
    """A job that has run. Times are seconds since the epoch; ``run``: duration of its last run in seconds."""

    model_config = example(
        job=1200,
        submitted=1795507200.0,
        waited=42.5,
        run=3600.0,
        spec=7,
        queue="research/vision",
        priorityClass="normal",
        priority=0,
        user="alice",
    )

    job: int
    """Number of the job; later jobs have larger ones."""
    submitted: float
    """Time of its submission."""
    waited: float
    """Seconds from its submission to its first start."""
    run: float
    """Duration of its last run in seconds."""
    spec: int
    """Index of its specification in ``specs``."""
    queue: str
    """Path of its queue."""
    priority_class: str
    """Its priority class."""
    priority: int
    """Its priority within the class."""
    user: str = ""
    """Name of the key that submitted it."""


class Workload(Lenient):
    """A page of jobs, the latest first."""

    model_config = example(
        jobs=[
            {
                "job": 1200,
                "submitted": 1795507200.0,
                "waited": 42.5,
                "run": 3600.0,
                "spec": 7,
                "queue": "research/vision",
                "priorityClass": "normal",
                "priority": 0,
            }
        ],
        specs={"7": {"name": "bert", "queue": "research/vision", "roles": [{"name": "worker", "template": {}}]}},
        next=1200,
    )

    jobs: tuple[WorkloadJob, ...] = ()
    """Jobs of the page."""
    specs: dict[int, dict[str, Any]] = {}
    """Specifications of the jobs, by index."""
    next: int | None = None
    """Cursor of the next page; None at the end."""
