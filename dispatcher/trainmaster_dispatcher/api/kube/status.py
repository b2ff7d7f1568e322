"""Errors as Kubernetes has them: objects of the kind Status. Pure."""

from typing import Any

from trainmaster.protocol.errors import Code, ProblemError

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def status_of(error: ProblemError) -> dict[str, Any]:
    """Return an error as a Status; its code of ours is the reason of each cause."""
    code = error.code.status
    other = "InternalError" if code >= 500 else "BadRequest"
    causes = [{"reason": error.code.value, "field": one.path, "message": one.message} for one in error.mistakes]
    details: dict[str, Any] = {"causes": causes or [{"reason": error.code.value, "message": error.detail}]}
    if error.retry_after is not None:
        details["retryAfterSeconds"] = error.pause_seconds
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.detail,
        "reason": "AlreadyExists" if error.code is Code.ALREADY_EXISTS else _REASONS.get(code, other),
        "details": details,
        "code": code,
    }


def not_found(resource: str, name: str) -> ProblemError:
    """Return the error for an object that does not exist, in the words that kubectl's users know."""
    return ProblemError(Code.NOT_FOUND, f'{resource} "{name}" not found')
