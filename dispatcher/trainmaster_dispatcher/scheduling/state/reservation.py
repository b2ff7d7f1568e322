"""A reservation of a cluster for one waiting job."""

from typing import NamedTuple


class Reservation(NamedTuple):
    """A cluster that is reserved for a job from a time on, in seconds since the epoch; infinite if it is reserved from now on."""

    job_id: int
    name: str
    cluster_id: int
    at: float
    is_sure: bool = True
    """Whether it is planned with time limits alone; else with predicted run times, where these are known."""
