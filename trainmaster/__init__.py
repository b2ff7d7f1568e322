"""Trainmaster: the multi-cluster dispatcher for AI and batch jobs on Kubernetes.

Names of the SDK are imported on first use, so that ``import trainmaster`` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.client.async_http import AsyncClient
    from trainmaster.client.core import Retries
    from trainmaster.client.errors import (
        ClosedError,
        ConfigurationError,
        FunctionTransferError,
        JobFailedError,
        RemoteFunctionError,
        WaitTimeoutError,
    )
    from trainmaster.client.function_jobs import AsyncFunctionJob, FunctionJob
    from trainmaster.client.http import Client
    from trainmaster.client.notebook import load_ipython_extension as load_ipython_extension
    from trainmaster.client.streams import Ended, LogPiece, Notice
    from trainmaster.client.values import JobFilter
    from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError, UnreachableError
    from trainmaster.protocol.jobs import JobSpec
    from trainmaster.protocol.states import JobState
    from trainmaster.protocol.tenants import EventView, JobEventView, JobView, KeySpec

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Retries",
    "FunctionJob",
    "AsyncFunctionJob",
    "JobFilter",
    "JobSpec",
    "JobState",
    "JobView",
    "EventView",
    "JobEventView",
    "KeySpec",
    "LogPiece",
    "Notice",
    "Ended",
    "TrainmasterError",
    "ProblemError",
    "Code",
    "Mistake",
    "UnreachableError",
    "ConfigurationError",
    "ClosedError",
    "JobFailedError",
    "RemoteFunctionError",
    "FunctionTransferError",
    "WaitTimeoutError",
    "__version__",
]

_PLACES = {
    "client.async_http": ("AsyncClient",),
    "client.core": ("Retries",),
    "client.errors": (
        "ClosedError",
        "ConfigurationError",
        "FunctionTransferError",
        "JobFailedError",
        "RemoteFunctionError",
        "WaitTimeoutError",
    ),
    "client.function_jobs": ("AsyncFunctionJob", "FunctionJob"),
    "client.http": ("Client",),
    "client.notebook": ("load_ipython_extension",),  # %load_ext trainmaster
    "client.streams": ("Ended", "LogPiece", "Notice"),
    "client.values": ("JobFilter",),
    "protocol.errors": ("Code", "Mistake", "ProblemError", "TrainmasterError", "UnreachableError"),
    "protocol.jobs": ("JobSpec",),
    "protocol.states": ("JobState",),
    "protocol.tenants": ("EventView", "JobEventView", "JobView", "KeySpec"),
}
_PLACE_OF = {name: f"trainmaster.{place}" for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
