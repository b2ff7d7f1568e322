"""Handles of jobs that run functions, for both clients. What they carry is decided in ``functions.py``."""

from collections.abc import AsyncGenerator, Iterator
from typing import Generic, TypeVar, cast

from trainmaster.client.awaited import AwaitedCalls
from trainmaster.client.blocking import BlockingCalls
from trainmaster.client.functions import value_of
from trainmaster.client.streams import Ended, LogPiece, Notice
from trainmaster.client.values import Span
from trainmaster.protocol.answers import JobAction
from trainmaster.protocol.tenants import JobView

Value = TypeVar("Value")


class FunctionJob(Generic[Value]):
    """A function that runs as a job. ``job``: the id of the job, which may have been submitted by another process."""

    def __init__(self, client: BlockingCalls, job: str) -> None:
        self._client = client
        self.job = job

    def __repr__(self) -> str:
        return f"FunctionJob({self.job!r})"

    def result(self, timeout: Span | None = None, *, unpickle: bool = False) -> Value:
        """Return the value of the function when it has ended, or raise its exception.

        ``unpickle``: also load objects of other classes than Python's own, which executes what the program of the job has chosen.
        Raises RemoteFunctionError for an exception of such a class, JobFailedError, FunctionTransferError and WaitTimeoutError.
        """
        return cast(Value, value_of(self.wait(timeout), unpickle=unpickle))

    def wait(self, timeout: Span | None = None) -> JobView:
        """Return the job when it has ended, or as last seen at the time-out."""
        return self._client.wait(self.job, timeout)

    def logs(self, *, follow: bool = False) -> Iterator[LogPiece | Notice | Ended]:
        """Yield what the function prints; with ``follow`` as it comes."""
        return self._client.logs(self.job, follow=follow)

    def cancel(self, *, grace: str | None = None) -> JobAction:
        """End the job; ``grace``: the most time that its members get, such as ``5s``."""
        return self._client.cancel(self.job, grace=grace)


class AsyncFunctionJob(Generic[Value]):
    """A function that runs as a job, as ``FunctionJob``, for an event loop."""

    def __init__(self, client: AwaitedCalls, job: str) -> None:
        self._client = client
        self.job = job

    def __repr__(self) -> str:
        return f"AsyncFunctionJob({self.job!r})"

    async def result(self, timeout: Span | None = None, *, unpickle: bool = False) -> Value:
        """Return the value of the function when it has ended, or raise its exception, as ``FunctionJob.result``."""
        return cast(Value, value_of(await self.wait(timeout), unpickle=unpickle))

    async def wait(self, timeout: Span | None = None) -> JobView:
        """Return the job when it has ended, or as last seen at the time-out."""
        return await self._client.wait(self.job, timeout)

    def logs(self, *, follow: bool = False) -> AsyncGenerator[LogPiece | Notice | Ended, None]:
        """Yield what the function prints; with ``follow`` as it comes."""
        return self._client.logs(self.job, follow=follow)

    async def cancel(self, *, grace: str | None = None) -> JobAction:
        """End the job; ``grace``: the most time that its members get, such as ``5s``."""
        return await self._client.cancel(self.job, grace=grace)
