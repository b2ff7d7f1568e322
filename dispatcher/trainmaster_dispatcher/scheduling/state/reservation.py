"""A reservation of a cluster for one waiting job."""

from typing import NamedTuple


class Reservation(NamedTuple):
    """A cluster that is kept for a job from a time on, in seconds since the epoch; infinite where it is kept from now on."""

    job_id: int
    name: str
    cluster_id: int
    at: float
