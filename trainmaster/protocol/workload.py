"""What an installation has really done, as a workload for simulations."""

from typing import Any

from trainmaster.protocol.base import Lenient


class WorkloadJob(Lenient):
    """A job that has run. Times are seconds since the epoch; ``run``: how long its last run was at work, in seconds."""

    job: int
    """Its number; larger ones came later."""
    submitted: float
    waited: float
    """Seconds from its submission to its first start."""
    run: float
    spec: int
    """The number of its specification, in ``specs``."""
    queue: str
    priority_class: str
    priority: int


class Workload(Lenient):
    """A page, the latest jobs first."""

    jobs: tuple[WorkloadJob, ...] = ()
    specs: dict[int, dict[str, Any]] = {}
    next: int | None = None
    """From where to go on; None at the end."""
