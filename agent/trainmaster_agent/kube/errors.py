"""Errors of an API server, or of the way to it.

KubeError
├── UnavailableError     no answer, or one that says to try again: whether the change was made is unknown
├── TooManyRequestsError the server was busy for longer than the client waits
└── RefusedError         the server refused the request for good
    ├── NotFoundError      404
    ├── ConflictError      409: the object exists already, or somebody else has changed it
    ├── GoneError          410: the resource version is too old
    ├── ForbiddenError     403: by RBAC, quota or admission
    └── InvalidError       400, 422: the object is not valid for the API
"""

from typing import Any


class KubeError(Exception):
    """Root of all errors that a call to an API server may raise."""


class UnavailableError(KubeError):
    """No answer. Whether a change was made is unknown; the caller should retry."""


class TooManyRequestsError(KubeError):
    """The API server was too busy for longer than a request waits."""


class RefusedError(KubeError):
    """The API server's refusal; ``str`` is the server's own sentence."""

    def __init__(self, status: int, message: str, reason: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details or {}


class NotFoundError(RefusedError):
    """The object, or its namespace or kind, does not exist."""

    @property
    def is_namespace_gone(self) -> bool:
        """Return whether the missing object is the namespace."""
        return self.details.get("kind") == "namespaces"

    @property
    def is_kind_gone(self) -> bool:
        """Return whether the API server serves no such kind, or not in this version."""
        return any(words in str(self) for words in ("page not found", "could not find the requested resource"))


class ConflictError(RefusedError):
    """The object exists already (``reason`` AlreadyExists), or has changed since it was read."""


class GoneError(RefusedError):
    """The requested resource version is no longer available."""


class ForbiddenError(RefusedError):
    """Not allowed: permissions, a quota, or an admission rule; the message says which."""

    @property
    def is_permission(self) -> bool:
        """Return whether a permission is missing. An API server that has just started says so too until it has read the roles."""
        return " cannot " in str(self) and " resource " in str(self)

    @property
    def is_namespace_gone(self) -> bool:
        """Return whether the namespace is being deleted."""
        return any(cause.get("reason") == "NamespaceTerminating" for cause in self.details.get("causes") or ())

    @property
    def is_quota(self) -> bool:
        return "exceeded quota" in str(self) or "failed quota" in str(self)


class InvalidError(RefusedError):
    """The API rejects the object as invalid."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
}


def refused(status: int, body: dict[str, Any]) -> RefusedError:
    """Return the error for an answer with a ``Status`` object."""
    kind = _BY_STATUS.get(status, RefusedError)
    message = str(body.get("message") or body.get("reason") or f"the API server answered {status}")
    return kind(status, message, str(body.get("reason", "")), body.get("details") or {})
