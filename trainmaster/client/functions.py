"""Functions as jobs: the specification of a job that runs a function, and what its results mean. Sans-I/O.

A function travels with its arguments in the arguments of the member's command, since every runtime passes these on; its value
comes back in the results of the job. ``function_runner.py`` is the program of the member.
"""

import base64
import builtins
import inspect
import io
import json
import pickle
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from trainmaster.client import function_runner
from trainmaster.client.errors import (
    FunctionTransferError,
    JobFailedError,
    RemoteFunctionError,
    RemoteTraceback,
    WaitTimeoutError,
)
from trainmaster.client.function_runner import ERROR, LOST, PACKED, REFUSED, VALUE
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.jobs import MemberTemplate
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import JobView

MOST_FUNCTION_BYTES = 262_144
"""The most bytes of a function with its arguments, pickled and compressed. Programs get at most 2 MiB of arguments."""
_MOST_UNPACKED = 256 * 1024 * 1024
_PART = 32_768
"""The most characters of an argument in a job."""
_TEMPLATE = frozenset(field.alias or name for name, field in MemberTemplate.model_fields.items())
_ROLE = frozenset({"replicas", "minReplicas", "maxPerNode"})
_REFUSED = ("args", "array", "kind", "podTemplate", "roles", "session", "template", "workload")
"""Fields that say otherwise what the members run."""
_LONGEST_NAME = 24
_LARGE = "put what is large into a volume or a dataset, and pass its path"


def function_spec(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], job: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the specification of a job that calls ``function``.

    ``job``: fields of the job, of its role (``replicas``) and of the role's template, all in one mapping. Raises
    FunctionTransferError, and ProblemError INVALID_PARAMETER for fields that it cannot have.
    """
    if not callable(function):
        raise ProblemError(Code.INVALID_PARAMETER, f"a function or another callable is needed, not {shown(function)}")
    if not isinstance(job, Mapping):
        raise ProblemError(Code.INVALID_PARAMETER, f"job: must be a mapping of fields, not {shown(job)}")
    if wrong := [name for name in _REFUSED if name in job]:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"job: {wrong[0]} is not for functions, whose job has one role and its own arguments",
        )
    parts: dict[str, dict[str, Any]] = {"job": {}, "role": {}, "template": {}}
    for name, value in job.items():
        parts["template" if name in _TEMPLATE else "role" if name in _ROLE else "job"][name] = value
    template = {
        **parts["template"],
        "command": list(job.get("command", ("python3",))),
        "args": _arguments(function, args, kwargs),
    }
    role = {"name": "main", **parts["role"], "template": template}
    return {"name": _name_of(function), **parts["job"], "roles": [role]}


def _name_of(function: Callable[..., Any]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", str(getattr(function, "__name__", "")).lower())
    return name[:_LONGEST_NAME].strip("-") or "function"


def _arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    cloudpickle = cloudpickle_module()
    try:
        data: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:  # pickling calls methods of any class
        raise FunctionTransferError(f"the function or an argument cannot be pickled: {error}") from error
    packed = function_runner.pack(data)
    size = len(packed) * 3 // 4
    if size > MOST_FUNCTION_BYTES:
        raise FunctionTransferError(
            f"the function and its arguments have {size} bytes when they are pickled and compressed, at most"
            f" {MOST_FUNCTION_BYTES} are allowed: {_LARGE}"
        )
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    library = _library() if b"cloudpickle" in data else ""
    parts = [packed[start : start + _PART] for start in range(0, len(packed), _PART)]
    return ["-c", _program(), version, library, *parts]


def cloudpickle_module() -> ModuleType:
    """Return the package cloudpickle. Raises FunctionTransferError where it is not installed."""
    try:
        import cloudpickle
    except ImportError as error:
        raise FunctionTransferError(
            "functions need cloudpickle: install trainmaster[functions], or cloudpickle alone"
        ) from error
    found: ModuleType = cloudpickle
    return found


@cache
def _program() -> str:
    return inspect.getsource(function_runner)


@cache
def _library() -> str:
    """Return the modules of cloudpickle, packed: images need not have it, and its release is that which has pickled."""
    package = cloudpickle_module()
    modules = {"cloudpickle.cloudpickle": package.cloudpickle, "cloudpickle": package}
    texts = {name: inspect.getsource(module) for name, module in modules.items()}
    return function_runner.pack(json.dumps(texts).encode())


def value_of(job: JobView, *, unpickle: bool) -> Any:
    """Return the value of the function that ran as ``job``, or raise its exception.

    ``unpickle``: load objects of any class, which executes what the program of the job has chosen. Raises JobFailedError,
    RemoteFunctionError, FunctionTransferError, and WaitTimeoutError for a job that has not ended.
    """
    if not job.state.is_terminal:
        raise WaitTimeoutError([job])
    found = job.results or {}
    if job.state is not JobState.CANCELLED and isinstance(found.get(ERROR), dict):
        raise _exception(job.id, found[ERROR], unpickle=unpickle)
    if job.state is not JobState.CANCELLED and REFUSED in found:
        raise FunctionTransferError(f"{job.id}: {found[REFUSED]}")
    if job.state is not JobState.SUCCEEDED:
        raise JobFailedError([job])
    if VALUE in found:
        return found[VALUE]
    if PACKED in found:
        return _loaded(job.id, found[PACKED], unpickle=unpickle)
    if LOST in found:
        raise FunctionTransferError(f"{job.id} has succeeded, but {found[LOST]}: {_LARGE} as the value")
    why = f": {job.results_error}" if job.results_error else ""
    raise FunctionTransferError(f"{job.id} has succeeded, but has left no value of a function{why}")


def _exception(job: str, found: Mapping[str, Any], *, unpickle: bool) -> BaseException:
    """Return an exception of Python's own class as it was, any other one only if it may be unpickled."""
    cause = RemoteTraceback(job, str(found.get("traceback", "")))
    error: BaseException | None = None
    if unpickle and PACKED in found:
        loaded = _loaded(job, found[PACKED], unpickle=True)
        error = loaded if isinstance(loaded, Exception) else None
    elif found.get("module") == "builtins" and isinstance(found.get("args"), list):
        error = _builtin(str(found.get("type")), found["args"])
    if error is None:
        kind = f"{found.get('module')}.{found.get('type')}".removeprefix("builtins.")
        error = RemoteFunctionError(job, kind, str(found.get("message", kind)), str(found.get("traceback", "")))
    error.__cause__ = cause
    return error


def _builtin(name: str, args: Sequence[Any]) -> Exception | None:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(*args)
    except TypeError:  # its arguments are not those that it was made of
        return None


class _PlainUnpickler(pickle.Unpickler):
    """Loads values of Python's own types alone: it finds no class and no function, so that none can be called."""

    def __init__(self, data: bytes, job: str) -> None:
        super().__init__(io.BytesIO(data))
        self._job = job

    def find_class(self, module: str, name: str, /) -> Any:
        raise FunctionTransferError(
            f"the result of {self._job} has an object of {module}.{name}: result(unpickle=True) loads it, which executes code"
            " that the program of the job has chosen; or return numbers, texts, lists, tuples, sets and dictionaries"
        )


def _loaded(job: str, packed: Any, *, unpickle: bool) -> Any:
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(packed), _MOST_UNPACKED)
        if not unpacker.eof:
            raise FunctionTransferError(f"the result of {job} has more than {_MOST_UNPACKED} bytes")
        return pickle.loads(data) if unpickle else _PlainUnpickler(data, job).load()  # noqa: S301 - where the caller says so
    except FunctionTransferError:
        raise
    except Exception as error:  # unpickling imports modules and calls what they have
        raise FunctionTransferError(f"the result of {job} cannot be loaded: {type(error).__name__}: {error}") from error
