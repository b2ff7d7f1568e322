"""Errors that only the client raises: leaves of the one error tree.

TrainmasterError
├── ProblemError            the dispatcher refused the request; see trainmaster.protocol.errors
├── UnreachableError        no dispatcher answered within the deadline
│   ├── StrangerError       the responder is not a dispatcher, for example a proxy
│   ├── CutError            the connection was cut before the answer
│   ├── StreamLostError    a stream to a member was cut, and what it had opened cannot be connected to again
│   ├── SilentError         the dispatcher was connected and sent nothing within the time-out
│   └── AddressError        the address cannot be a dispatcher's; never retried
│       └── UnknownHostError   its host has no address; retried once the dispatcher has answered before
├── ConfigurationError      no dispatcher or no key is configured
├── ClosedError             the client was used after it was closed
├── JobFailedError          a job did not succeed although it should
├── RemoteFunctionError     a function that ran as a job has raised an exception, which cannot be raised here
├── FunctionTransferError   a function, its arguments or its result cannot be carried between this process and the job
└── WaitTimeoutError        a job that should succeed has not ended in time; also a TimeoutError
"""

from collections.abc import Sequence

from trainmaster.protocol.errors import TrainmasterError, UnreachableError
from trainmaster.protocol.tenants import JobView


class StrangerError(UnreachableError):
    """The responder is not a dispatcher. ``retry_after``: its Retry-After in seconds, if it gave one."""

    def __init__(self, text: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


class SilentError(UnreachableError):
    """The dispatcher is connected and sent nothing within the time-out."""


class CutError(UnreachableError):
    """The connection was cut before the answer."""


class StreamLostError(UnreachableError):
    """A stream to a member was cut, and what it had opened cannot be connected to again."""


class AddressError(UnreachableError):
    """The address cannot be a dispatcher's."""


class UnknownHostError(AddressError):
    """The host of the address does not exist, or its name cannot be resolved at this moment."""


class ConfigurationError(TrainmasterError):
    """No dispatcher or no API key is configured, or the configuration file cannot be read."""


class ClosedError(TrainmasterError):
    """The client was closed before the call; make another one."""


class JobFailedError(TrainmasterError):
    """Jobs did not succeed: ``jobs`` has those that failed or were cancelled."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        super().__init__("; ".join(f"{job.id} {job.state}{f': {job.message}' if job.message else ''}" for job in jobs))
        self.jobs = tuple(jobs)


class RemoteTraceback(Exception):  # noqa: N818 - the cause of an error, not one of its own
    """The traceback of an exception in a job; the cause of the exception that is raised here."""

    def __init__(self, job: str, text: str) -> None:
        super().__init__(f"in job {job}:\n{text}")


class RemoteFunctionError(TrainmasterError):
    """A function that ran as ``job`` has raised an exception of another class than Python's own.

    ``type``: its class, with the module; ``traceback``: its traceback as text.
    """

    def __init__(self, job: str, kind: str, text: str, traceback: str) -> None:
        super().__init__(text)
        self.job = job
        self.type = kind
        self.traceback = traceback


class FunctionTransferError(TrainmasterError):
    """A function, its arguments or its result cannot be carried between this process and the job."""


class WaitTimeoutError(TrainmasterError, TimeoutError):
    """Jobs have not ended in the given time: ``jobs`` has them as last seen."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        super().__init__("not ended in time: " + ", ".join(f"{job.id} is {job.shown_state}" for job in jobs))
        self.jobs = tuple(jobs)
