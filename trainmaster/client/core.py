"""The sans-I/O core of the client: requests and responses as values, and the rules of retries.

Knows HTTP and the API's errors; must not open a connection, sleep or read the clock. The transports in
``transport.py`` and ``async_transport.py`` do that and nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import uuid4

import orjson
from pydantic import BaseModel, ValidationError

from trainmaster import __version__
from trainmaster.client.errors import AddressError, StrangerError
from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError, UnreachableError
from trainmaster.protocol.json_limits import path_step
from trainmaster.protocol.validation_errors import worded

USER_AGENT = f"trainmaster/{__version__}"

Model = TypeVar("Model", bound=BaseModel)
Query = Iterable[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``repeatable``: sending it twice has the same effect as sending it once."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Response:
    """A response. ``headers`` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def to_json(value: Any) -> bytes:
    """Encode ``value`` as a body.

    Raises ProblemError INVALID_SPEC for a number that is too large, and MALFORMED_BODY for other values that JSON cannot hold.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        large = next(_too_large(value), None)
        if large is not None:
            mistake = Mistake(path=large, message="is a number with too many digits")
            raise ProblemError(Code.INVALID_SPEC, worded(mistake), mistakes=(mistake,)) from error
        raise ProblemError(Code.MALFORMED_BODY, f"this cannot be written as JSON: {error}") from error


def _too_large(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of whole numbers that JSON, as orjson writes it, cannot hold."""
    if isinstance(value, Mapping):
        inner: Iterable[tuple[str | int, Any]] = ((str(key), one) for key, one in value.items())
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            yield path
        return
    for part, one in inner:
        yield from _too_large(one, path + path_step(part, is_first=not path))


def get(path: str, query: Query = (), *, accept: str = "application/json", headers: Mapping[str, str] = {}) -> Request:
    """Return a GET request; query parameters of value None are left out."""
    given = tuple((name, value) for name, value in query if value is not None)
    return Request("GET", path, given, {"Accept": accept, **headers})


def post(path: str, value: Any, idempotency_key: str | None = None, query: Query = ()) -> Request:
    """Return a POST with an idempotency key, made up unless given: however often this request is sent, it takes effect once.

    Raises ProblemError INVALID_PARAMETER for an empty key, which would protect nothing.
    """
    if idempotency_key is not None and not idempotency_key:
        raise ProblemError(Code.INVALID_PARAMETER, "idempotency_key: must have 1 to 200 characters, not none")
    key = uuid4().hex if idempotency_key is None else idempotency_key
    body = b"" if value is None else to_json(value)
    given = tuple((name, one) for name, one in query if one is not None)
    return Request("POST", path, given, _json_headers() | {"Idempotency-Key": key}, body)


def post_once(path: str, value: Any) -> Request:
    """Return a POST without an idempotency key, which is therefore never repeated."""
    return Request("POST", path, (), _json_headers(), to_json(value), repeatable=False)


def ask(path: str, value: Any, **query: str | None) -> Request:
    """Return a POST that changes nothing."""
    given = tuple((name, one) for name, one in query.items() if one is not None)
    return Request("POST", path, given, _json_headers(), to_json(value))


def post_state(path: str, model: BaseModel) -> Request:
    """Return a POST that states the current state, so that repeating it changes nothing."""
    return Request("POST", path, (), _json_headers(), model.model_dump_json(by_alias=True).encode())


def put(path: str, value: Any) -> Request:
    return Request("PUT", path, (), _json_headers(), to_json(value))


def put_bytes(path: str, data: bytes, query: Query = ()) -> Request:
    """Return a PUT of data that is no JSON."""
    given = tuple((name, value) for name, value in query if value is not None)
    return Request("PUT", path, given, {"Accept": "application/json", "Content-Type": "application/octet-stream"}, data)


def patch(path: str, value: Any) -> Request:
    return Request("PATCH", path, (), _json_headers(), to_json(value))


def delete(path: str, query: Query = ()) -> Request:
    given = tuple((name, value) for name, value in query if value is not None)
    return Request("DELETE", path, given, {"Accept": "application/json"})


def _json_headers() -> dict[str, str]:
    return {"Accept": "application/json", "Content-Type": "application/json"}


def read_value(response: Response) -> Any:
    """Return a response's JSON value. Raises ProblemError, or UnreachableError when the responder is not a dispatcher."""
    check(response)
    if not response.body:
        return None
    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        raise _stranger(response) from error


def read_model(response: Response, model: type[Model]) -> Model:
    """Parse a response as a model. Raises as ``read_value`` does."""
    check(response)
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        raise _stranger(response) from error


def read_bytes(response: Response) -> bytes:
    """Return a response's data. Raises as ``read_value`` does."""
    check(response)
    if "octet-stream" not in response.headers.get("content-type", ""):
        raise _stranger(response)
    return response.body


def check(response: Response) -> None:
    """Raise the error of a response that is not a success."""
    if not 200 <= response.status < 300:
        raise read_error(response)


def read_error(response: Response) -> TrainmasterError:
    """Return a response's error: a problem, or that the responder is not a dispatcher."""
    if "problem+json" in response.headers.get("content-type", ""):
        try:
            value = orjson.loads(response.body)
        except orjson.JSONDecodeError:
            return _stranger(response)
        if isinstance(value, dict):
            return read_problem(value, response.status, response.headers.get("retry-after"))
    if location := response.headers.get("location"):
        return AddressError(f"the address redirects to {location}; use that one as the dispatcher's address")
    if response.status == 400 and b"HTTPS" in response.body:  # as nginx and servers in Go say it
        return AddressError("the port of the address speaks TLS; write the dispatcher's address with https://")
    return _stranger(response)


_BY_STATUS = {
    400: Code.INVALID_PARAMETER,
    401: Code.UNAUTHENTICATED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    409: Code.CONFLICT,
    412: Code.PRECONDITION_FAILED,
    413: Code.BODY_TOO_LARGE,
    422: Code.INVALID_PARAMETER,
    429: Code.QUEUE_FULL,
    503: Code.TOO_BUSY,
}
"""Replacement for a code of a newer dispatcher that this client does not know."""

_KNOWN_FIELDS = frozenset(("type", "title", "status", "code", "detail", "instance", "mistakes"))


def read_problem(value: Mapping[str, Any], status: int | None = None, retry_after: str | None = None) -> ProblemError:
    """Parse an RFC 9457 object into the error it was made from."""
    status = status or int(value.get("status") or 500)
    try:
        code = Code(str(value.get("code")))
    except ValueError:
        code = _BY_STATUS.get(status, Code.INTERNAL if status >= 500 else Code.INVALID_PARAMETER)
    mistakes = value.get("mistakes") or ()
    return ProblemError(
        code,
        str(value.get("detail") or value.get("title") or code.headline),
        mistakes=tuple(Mistake.model_validate(item) for item in mistakes),
        retry_after=_seconds(retry_after),
        extra={key: item for key, item in value.items() if key not in _KNOWN_FIELDS},
    )


def _seconds(retry_after: str | None) -> float | None:
    """Return ``Retry-After`` in seconds; the API does not use the form with a date."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def _stranger(response: Response) -> StrangerError:
    try:
        phrase = f" {HTTPStatus(response.status).phrase}"
    except ValueError:
        phrase = ""
    kind = response.headers.get("content-type", "no content type")
    return StrangerError(
        f"the answer is not from a Trainmaster dispatcher, or is cut off: {response.status}{phrase}, {kind}",
        response.status,
        _seconds(response.headers.get("retry-after")),
    )


_PASSING = frozenset((429, 502, 503, 504))


def is_passing(error: TrainmasterError) -> bool:
    """Return whether the same request may succeed a little later."""
    if isinstance(error, ProblemError):
        return error.status in _PASSING
    if isinstance(error, StrangerError):
        return error.status in _PASSING
    return isinstance(error, UnreachableError) and not isinstance(error, AddressError)


@dataclass(frozen=True, slots=True)
class Retries:
    """Rules of retries: which failures, with what pauses, and for how long in total.

    Pauses are drawn evenly from nothing to a bound that doubles up to a cap ("full jitter", AWS Architecture Blog,
    "Exponential Backoff And Jitter"), and are never shorter than a ``Retry-After``.
    """

    deadline_seconds: float = 60.0
    first_seconds: float = 0.2
    most_seconds: float = 5.0

    def pause(self, request: Request, tries: int, error: TrainmasterError, left: float, chance: float) -> float | None:
        """Return the seconds until the request is sent again after ``tries`` tries; None when ``error`` is final.

        ``left``: seconds until the deadline; ``chance``: random, from 0 to 1.
        """
        if not request.repeatable or not is_passing(error) or left <= 0:
            return None
        hint = error.retry_after if isinstance(error, ProblemError | StrangerError) else None
        if hint is not None and hint > left:
            return None
        return min(max(self.back_off(tries, chance), hint or 0.0), left)

    def back_off(self, tries: int, chance: float) -> float:
        """Return the seconds to wait after ``tries`` failures in a row."""
        return min(self.most_seconds, self.first_seconds * 2.0 ** min(tries - 1, 30)) * chance
