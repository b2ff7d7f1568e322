"""The client on an event loop: every call of the API, typed, over one connection pool."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import httpx

from trainmaster.client import config, transfers
from trainmaster.client.async_transport import AsyncTransport
from trainmaster.client.awaited import AwaitedCalls
from trainmaster.client.core import Retries
from trainmaster.client.function_jobs import AsyncFunctionJob, Value
from trainmaster.client.functions import function_spec
from trainmaster.client.steps import CallTerms
from trainmaster.client.verbs import Verbs
from trainmaster.protocol.errors import ProblemError, TrainmasterError
from trainmaster.protocol.files import PART_BYTES, ArtifactAnswer

_RETRIES = Retries()


class AsyncClient(AwaitedCalls):
    """Calls of the API. All raise ProblemError, UnreachableError when no dispatcher answers in time, ClosedError after ``aclose``.

    ``url`` and ``key`` default to TRAINMASTER_URL and TRAINMASTER_API_KEY, else to the configuration file; raises
    ConfigurationError. ``timeout``: seconds for one answer. ``on_retry`` is called with each failure that is retried, and the
    seconds until then.

    For one event loop. Leave an ``async for`` over ``watch`` or ``logs`` early within ``contextlib.aclosing``, so that its
    connection is closed at once.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = _RETRIES,
        on_retry: Callable[[TrainmasterError, float], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        context = config.load(url, key)
        super().__init__(
            AsyncTransport(context.url, context.key, transport=transport, sleep=sleep),
            Verbs(CallTerms(retries, timeout, on_retry, clock)),
        )

    @property
    def url(self) -> str:
        return self._transport.url

    async def submit_function(
        self, function: Callable[..., Value], /, *args: Any, job: Mapping[str, Any], **kwargs: Any
    ) -> AsyncFunctionJob[Value]:
        """Run ``function(*args, **kwargs)`` as a job, in the Python of its image.

        ``job``: fields of the job and of its members' template in one mapping, such as ``queue``, ``image`` and ``resources``.
        Raises as ``submit`` does, and FunctionTransferError for what cannot be pickled or is too large.
        """
        (made,) = await self.submit(function_spec(function, args, kwargs, job))
        return AsyncFunctionJob(self, made)

    async def upload_files(self, queue: str, source: str | os.PathLike[str]) -> str:
        """Upload a folder, or a file, for the jobs of a queue; return the name by which ``inputs`` refer to it.

        What ``.trainmasterignore`` of the folder names is left out. What the queue has already is not sent again. Raises ProblemError.
        """
        file, archive = await asyncio.to_thread(transfers.packed, source)
        with file:
            found = await self.begin_upload(queue, archive.sha256, archive.size)
            if found.stored or found.upload is None:
                return found.files
            if found.url is not None:
                await asyncio.to_thread(transfers.put_file, found.url, file, archive.size)
            else:
                for offset, data in transfers.parts_of(file, found.part_bytes or PART_BYTES):
                    await self.write_upload(found.upload, offset, data)
        try:
            return (await self.finish_upload(found.upload)).files
        except ProblemError as error:
            if transfers.may_be_done(error) and (await self.begin_upload(queue, archive.sha256, archive.size)).stored:
                return found.files
            raise

    async def download_artifact(
        self, job: str, name: str, folder: str | os.PathLike[str], *, attempt: int | None = None
    ) -> ArtifactAnswer:
        """Extract an artifact to a folder, which is created; return what it is. Nothing is written outside of the folder.

        Raises ProblemError, also for an archive that is not what was stored or that would write elsewhere.
        """
        with tempfile.TemporaryFile() as file:
            found = await self.artifact(job, name, attempt=attempt)
            if found.url is not None:
                await asyncio.to_thread(transfers.get_file, found.url, file)
            else:
                while file.tell() < found.size:
                    data = await self.read_artifact(job, name, offset=file.tell(), attempt=found.attempt)
                    if not data:
                        break
                    file.write(data)
            await asyncio.to_thread(transfers.extract, file, found, folder)
        return found

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
