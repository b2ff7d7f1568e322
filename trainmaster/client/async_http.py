"""The client on an event loop: every call of the API, typed, over one connection pool."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import httpx

from trainmaster.client import config
from trainmaster.client.async_transport import AsyncTransport
from trainmaster.client.awaited import AwaitedCalls
from trainmaster.client.core import Retries
from trainmaster.client.function_jobs import AsyncFunctionJob, Value
from trainmaster.client.functions import function_spec
from trainmaster.client.steps import CallTerms
from trainmaster.client.verbs import Verbs
from trainmaster.protocol.errors import TrainmasterError

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

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
