"""The blocking client: every call of the API, typed, over one connection pool."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import httpx

from trainmaster.client import config
from trainmaster.client.blocking import BlockingCalls
from trainmaster.client.core import Retries
from trainmaster.client.function_jobs import FunctionJob, Value
from trainmaster.client.functions import function_spec
from trainmaster.client.steps import CallTerms
from trainmaster.client.transport import Transport
from trainmaster.client.verbs import Verbs
from trainmaster.protocol.errors import TrainmasterError

_RETRIES = Retries()


class Client(BlockingCalls):
    """Calls of the API. All raise ProblemError, UnreachableError when no dispatcher answers in time, ClosedError after ``close``.

    ``url`` and ``key`` default to TRAINMASTER_URL and TRAINMASTER_API_KEY, else to the configuration file; raises
    ConfigurationError. ``timeout``: seconds for one answer. ``on_retry`` is called with each failure that is retried, and the
    seconds until then.

    May be used by several threads at once.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = _RETRIES,
        on_retry: Callable[[TrainmasterError, float], None] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        context = config.load(url, key)
        super().__init__(
            Transport(context.url, context.key, transport=transport, sleep=sleep),
            Verbs(CallTerms(retries, timeout, on_retry, clock)),
        )

    @property
    def url(self) -> str:
        return self._transport.url

    def submit_function(
        self, function: Callable[..., Value], /, *args: Any, job: Mapping[str, Any], **kwargs: Any
    ) -> FunctionJob[Value]:
        """Run ``function(*args, **kwargs)`` as a job, in the Python of its image.

        ``job``: fields of the job and of its members' template in one mapping, such as ``queue``, ``image`` and ``resources``.
        Raises as ``submit`` does, and FunctionTransferError for what cannot be pickled or is too large.
        """
        (made,) = self.submit(function_spec(function, args, kwargs, job))
        return FunctionJob(self, made)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
