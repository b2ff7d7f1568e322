"""The problems that each operation of the OpenAPI document can answer with, by what it takes and what its route declares.

It only describes: handlers and the layers around them raise the problems.
"""

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from trainmaster.protocol.errors import Code

EXTENSION = "x-problem-codes"
"""The entry of an operation that holds the codes its route declares, until its answers are described."""
COMMON = (
    Code.MALFORMED_BODY,  # also where none is taken
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.CSRF,  # of a browser's session alone
    Code.REQUEST_TIMEOUT,
    Code.BODY_TOO_LARGE,
    Code.INVALID_SPEC,
    Code.INVALID_PARAMETER,  # also of a query parameter that the operation does not have
    Code.TOO_MANY_REQUESTS,
    Code.HEADER_TOO_LARGE,
    Code.INTERNAL,
    Code.TOO_BUSY,
    Code.STORE_AWAY,
    Code.ISSUER_AWAY,
)
"""Codes of refusals that do not depend on the operation."""


def header(text: str, kind: str = "string") -> dict[str, Any]:
    """Return the description of a header of an answer."""
    return {"description": text, "schema": {"type": kind}}


_RETRY_AFTER = {"Retry-After": header("Seconds after which to try again.", "integer")}
_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": header("The scheme, which is Bearer.")},
    405: {"Allow": header("The methods that the address takes.")},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def describe(operation: dict[str, Any]) -> None:
    """Replace an operation's problems by those that it can answer with."""
    answers = operation["responses"]
    codes = {*COMMON, *_by_what_it_takes(operation), *map(Code, operation.pop(EXTENSION, ()))}
    for status in [status for status in answers if status[0] in "45"]:
        del answers[status]
    for status in sorted({code.status for code in codes}):
        answers[str(status)] = _answer(status, [code for code in Code if code in codes and code.status == status])


def _by_what_it_takes(operation: Mapping[str, Any]) -> Iterator[Code]:
    for parameter in operation.get("parameters", ()):
        yield from _of_parameter(parameter["in"], parameter["name"], parameter["schema"])


def _of_parameter(where: str, name: str, schema: Mapping[str, Any]) -> Iterable[Code]:
    match where, name:
        case "path", "job_id":
            return (Code.BAD_ID, Code.NOT_FOUND)
        case "path", _:
            return (Code.NOT_FOUND,)
        case "header", "Idempotency-Key":
            return (Code.IDEMPOTENCY_MISMATCH,)
        case "header", "If-Match" | "if-match":
            return (Code.PRECONDITION_FAILED,)
        case "query", "cursor":
            return (Code.BAD_CURSOR,) if schema.get("type") == "string" else ()
    return ()


def _answer(status: int, codes: Iterable[Code]) -> dict[str, Any]:
    names = ", ".join(f"`{code}`" for code in codes)
    answer: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {names}",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    return answer | ({"headers": _HEADERS[status]} if status in _HEADERS else {})


PROBLEM = {
    "description": "An RFC 9457 problem; docs/reference/errors.md has a section for each code.",
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    # Some codes have members of their own, such as liveRuns.
    "additionalProperties": True,
    "properties": {
        "type": {"type": "string", "description": "Address of the code's section in the reference."},
        "title": {"type": "string", "description": "Title of the code."},
        "status": {"type": "integer", "description": "Status of the answer."},
        "code": {
            "type": "string",
            "enum": [code.value for code in Code],
            "description": "Stable code, for programs.",
        },
        "detail": {
            "type": "string",
            "description": "Sentence on this request: the fault, and where it can be said, the remedy.",
        },
        "instance": {"type": "string", "description": "Path of the request."},
        "requestId": {
            "type": "string",
            "description": "Id of the request, as in the header `X-Request-Id` and in the dispatcher's log.",
        },
        "mistakes": {
            "type": "array",
            "description": "Every mistake that was found in the request, at most 100.",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {
                    "path": {"type": "string", "description": "Path of the field, such as `roles[0].replicas`."},
                    "message": {"type": "string", "description": "Statement of what is allowed there."},
                },
            },
        },
    },
    "examples": [
        {
            "type": "https://trainmaster.dev/docs/reference/errors#not-found",
            "title": Code.NOT_FOUND.headline,
            "status": 404,
            "code": "not-found",
            "detail": "there is no job 'bert-7k2p9xq'",
            "instance": "/v1/jobs/bert-7k2p9xq",
            "requestId": "5d0c3f6a91b2e847",
        }
    ],
}
"""The schema of a problem."""
