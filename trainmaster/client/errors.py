"""What the client alone raises: leaves of the one error tree.

TrainmasterError
├── ProblemError            the dispatcher refused the request; see trainmaster.protocol.errors
├── UnreachableError        no dispatcher answered within the deadline
│   ├── StrangerError       something else than a dispatcher answered, such as a proxy
│   ├── SilentError         the dispatcher was connected and said nothing for as long as was to be waited
│   └── AddressError        the address cannot be one of a dispatcher; never tried again
├── ConfigurationError      no dispatcher or no key is named
├── ClosedError             the client was used after it was closed
├── JobFailedError          a job that was to succeed did not
└── WaitTimeoutError        a job that was to succeed has not ended in time; also a TimeoutError
"""

from collections.abc import Sequence

from trainmaster.protocol.errors import TrainmasterError, UnreachableError
from trainmaster.protocol.tenants import JobView


class StrangerError(UnreachableError):
    """Something else than a dispatcher answered. ``retry_after``: after how many seconds to ask again, where it said so."""

    def __init__(self, text: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


class SilentError(UnreachableError):
    """The dispatcher is connected and said nothing for as long as was to be waited."""


class AddressError(UnreachableError):
    """No dispatcher can have this address."""


class ConfigurationError(TrainmasterError):
    """No dispatcher or no API key is named, or the file that names them cannot be read."""


class ClosedError(TrainmasterError):
    """The client was closed before; make another one."""


class JobFailedError(TrainmasterError):
    """Jobs ended otherwise than they should: ``jobs`` has those that failed or were cancelled."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        super().__init__("; ".join(f"{job.id} {job.state}{f': {job.message}' if job.message else ''}" for job in jobs))
        self.jobs = tuple(jobs)


class WaitTimeoutError(TrainmasterError, TimeoutError):
    """Jobs have not ended in the time that was given: ``jobs`` has them as they were last seen."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        super().__init__("not ended in time: " + ", ".join(f"{job.id} is {job.shown_state}" for job in jobs))
        self.jobs = tuple(jobs)
