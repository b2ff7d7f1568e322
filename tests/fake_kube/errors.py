"""What an API server answers when it refuses: a ``Status`` with code, reason and message.

Forms after k8s.io/apimachinery/pkg/api/errors/errors.go.
"""

from typing import Any

from tests.fake_kube.objects import Object
from tests.fake_kube.resources import Resource

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """A refusal; ``retry_after`` (seconds) becomes a header too."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Object | None = None,
        retry_after: int | None = None,
        proceed: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.retry_after = retry_after
        self._details = dict(details or {})
        if retry_after is not None:
            self._details["retryAfterSeconds"] = retry_after
        self._metadata = {"continue": proceed} if proceed else {}

    def body(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self._metadata,
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self._details,
            "code": self.code,
        }


def success(resource: Resource, name: str, uid: str) -> Object:
    """Return the answer to a deletion that took place."""
    details = {"name": name, "kind": resource.plural, "uid": uid, **_group(resource)}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, f'{resource.qualified} "{name}" not found', details=_details(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, message, reason="AlreadyExists", details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, message, details=_details(resource, name))


def modified(resource: Resource, name: str) -> ApiError:
    """Return the conflict of optimistic locking."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def forbidden(resource: Resource, name: str, why: str, *, cause: str = "") -> ApiError:
    details = _details(resource, name)
    if cause:
        details["causes"] = [{"reason": cause, "message": why}]
    about = f'{resource.qualified} "{name}"' if name else resource.qualified
    return ApiError(403, f"{about} is forbidden: {why}", details=details)


def invalid(resource: Resource, name: str, field: str, why: str) -> ApiError:
    """Return the 422 for an invalid field. ``why`` begins with the kind of mistake: ``Required value``, ``Forbidden: ...``
    or ``Invalid value: ...``."""
    kinds = {"Required value": "FieldValueRequired", "Forbidden": "FieldValueForbidden"}
    cause = {"reason": kinds.get(why.split(":")[0], "FieldValueInvalid"), "message": why, "field": field}
    details: dict[str, Any] = {"name": name, "kind": resource.kind, "causes": [cause], **_group(resource)}
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(422, f'{qualified} "{name}" is invalid: {field}: {why}', details=details)


def expired(requested: int, oldest: int) -> ApiError:
    return ApiError(410, f"too old resource version: {requested} ({oldest})")


def _details(resource: Resource, name: str) -> Object:
    return {**({"name": name} if name else {}), "kind": resource.plural, **_group(resource)}


def _group(resource: Resource) -> dict[str, str]:
    return {"group": resource.group} if resource.group else {}
