"""What an API server, or the way to it, may say no with.

KubeError
├── UnavailableError     no answer, or one that says to try again: nothing is known of what was asked
├── TooManyRequestsError the server asked for patience longer than the client has
└── RefusedError         the server's own word, final for this request
    ├── NotFoundError      404
    ├── ConflictError      409: it exists already, or somebody else has changed it
    ├── GoneError          410: the resource version is too old
    ├── ForbiddenError     403: by RBAC, quota or admission
    └── InvalidError       400, 422: the object is not what the API takes
"""

from typing import Any


class KubeError(Exception):
    """The root of all that a call to an API server may raise."""


class UnavailableError(KubeError):
    """No answer. Whether a change was made is not known; asking again is right."""


class TooManyRequestsError(KubeError):
    """The API server was too busy for longer than a request waits."""


class RefusedError(KubeError):
    """The API server's refusal; ``str`` is its own sentence."""

    def __init__(self, status: int, message: str, reason: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details or {}


class NotFoundError(RefusedError):
    """Neither the object nor, perhaps, its namespace or kind is there."""

    @property
    def is_namespace_gone(self) -> bool:
        """Whether it is the namespace that does not exist."""
        return self.details.get("kind") == "namespaces"


class ConflictError(RefusedError):
    """It exists already (``reason`` AlreadyExists), or it has changed since it was read."""


class GoneError(RefusedError):
    """The resource version asked for is no longer kept."""


class ForbiddenError(RefusedError):
    """Not allowed: permissions, a quota, or an admission rule; the message says which."""

    @property
    def is_permission(self) -> bool:
        """Whether a role lacks it. An API server that has just started says so, too, until it has read the roles."""
        return " cannot " in str(self) and " resource " in str(self)

    @property
    def is_namespace_gone(self) -> bool:
        """Whether the namespace is being deleted."""
        return any(cause.get("reason") == "NamespaceTerminating" for cause in self.details.get("causes") or ())

    @property
    def is_quota(self) -> bool:
        return "exceeded quota" in str(self) or "failed quota" in str(self)


class InvalidError(RefusedError):
    """The API does not take such an object."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
}


def refused(status: int, body: dict[str, Any]) -> RefusedError:
    """The error for an answer with a ``Status`` object."""
    kind = _BY_STATUS.get(status, RefusedError)
    message = str(body.get("message") or body.get("reason") or f"the API server answered {status}")
    return kind(status, message, str(body.get("reason", "")), body.get("details") or {})
