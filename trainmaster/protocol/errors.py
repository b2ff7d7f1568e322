"""The one error tree, with stable codes.

    TrainmasterError
    ├── ProblemError           the caller's request cannot be done; becomes an RFC 9457 problem
    │   └── (one Code each; see the enum)
    └── UnreachableError       the dispatcher did not answer

Foreign errors are mapped once, at the edge, and chained.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainmaster.protocol.base import Lenient


class Code(StrEnum):
    """Stable codes of problems, each with its HTTP status and title; ``docs/reference/errors.md`` has a section per code."""

    MALFORMED_BODY = "malformed-body"
    INVALID_SPEC = "invalid-spec"
    INVALID_PARAMETER = "invalid-parameter"
    BAD_ID = "bad-id"
    BAD_CURSOR = "bad-cursor"
    UNKNOWN_QUEUE = "unknown-queue"
    NOT_A_LEAF = "queue-not-a-leaf"
    UNKNOWN_PRIORITY_CLASS = "unknown-priority-class"
    PRIORITY_CLASS_NOT_ALLOWED = "priority-class-not-allowed"
    JOB_OF_ANOTHER = "job-of-another"
    GROUP_OF_ANOTHER = "group-of-another"
    GROUP_CLOSED = "group-closed"
    UNKNOWN_GROUP = "unknown-group"
    AMBIGUOUS_GROUP = "ambiguous-group"
    UNKNOWN_PRICE_BOOK = "unknown-price-book"
    UNKNOWN_CLUSTER = "unknown-cluster"
    POD_TEMPLATE_REFUSED = "pod-template-refused"
    DEVICES_NOT_COUNTED = "devices-not-counted"
    WEBHOOKS_OFF = "webhooks-off"
    MAIL_OFF = "mail-off"
    FILES_OFF = "files-off"
    UNKNOWN_FILES = "unknown-files"
    UPLOAD_MISMATCH = "upload-mismatch"
    FILES_FULL = "files-full"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    CSRF = "csrf"
    SIGN_IN_FAILED = "sign-in-failed"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    CONFLICT = "conflict"
    ALREADY_EXISTS = "already-exists"
    PRECONDITION_FAILED = "precondition-failed"
    WRONG_STATE = "wrong-state"
    UNKNOWN_JOB = "unknown-job"
    DEPENDENCY_IMPOSSIBLE = "dependency-impossible"
    IN_USE = "in-use"
    CLUSTER_IN_CONTACT = "cluster-in-contact"
    IDEMPOTENCY_MISMATCH = "idempotency-key-reused"
    BODY_TOO_LARGE = "body-too-large"
    HEADER_TOO_LARGE = "header-too-large"
    REQUEST_TIMEOUT = "request-timeout"
    TOO_MANY_REQUESTS = "too-many-requests"
    QUEUE_FULL = "queue-full"
    QUEUE_CLOSED = "queue-closed"
    TOO_BUSY = "too-busy"
    STORE_AWAY = "store-away"
    ISSUER_AWAY = "issuer-away"
    SESSION_SUPERSEDED = "session-superseded"
    CLUSTER_HELD = "cluster-held"
    PROTOCOL_UNSUPPORTED = "protocol-unsupported"
    STREAM_CLOSED = "stream-closed"
    EXPIRED = "expired"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    INTERNAL = "internal"

    @property
    def status(self) -> int:
        return _STATUS[self][0]

    @property
    def headline(self) -> str:
        return _STATUS[self][1]


_STATUS: dict[Code, tuple[int, str]] = {
    Code.MALFORMED_BODY: (400, "The body or the file cannot be read"),
    Code.INVALID_SPEC: (422, "The specification has mistakes"),
    Code.INVALID_PARAMETER: (422, "A parameter is not valid"),
    Code.BAD_ID: (404, "This is not an id"),
    Code.BAD_CURSOR: (400, "The cursor is not valid"),
    Code.UNKNOWN_QUEUE: (422, "The queue does not exist"),
    Code.NOT_A_LEAF: (422, "Jobs go to queues without children"),
    Code.UNKNOWN_PRIORITY_CLASS: (422, "The priority class does not exist"),
    Code.PRIORITY_CLASS_NOT_ALLOWED: (403, "The queue does not allow the priority class"),
    Code.JOB_OF_ANOTHER: (403, "Another user submitted the job"),
    Code.GROUP_OF_ANOTHER: (403, "Another user began the group"),
    Code.GROUP_CLOSED: (409, "The group takes no more jobs"),
    Code.UNKNOWN_GROUP: (422, "A group that is named does not exist"),
    Code.AMBIGUOUS_GROUP: (422, "Groups of several queues have this name"),
    Code.UNKNOWN_PRICE_BOOK: (422, "The price book does not exist"),
    Code.UNKNOWN_CLUSTER: (422, "The cluster does not exist"),
    Code.POD_TEMPLATE_REFUSED: (422, "The pod template is not allowed"),
    Code.DEVICES_NOT_COUNTED: (422, "Devices of the job cannot be counted"),
    Code.WEBHOOKS_OFF: (422, "This installation sends no webhooks"),
    Code.MAIL_OFF: (422, "This installation sends no e-mail"),
    Code.FILES_OFF: (422, "This installation stores no files of jobs"),
    Code.UNKNOWN_FILES: (422, "Files that the job names are not stored"),
    Code.UPLOAD_MISMATCH: (422, "What was uploaded is not what was announced"),
    Code.FILES_FULL: (409, "The queue has no space for more files"),
    Code.UNAUTHENTICATED: (401, "A valid API key or token is needed"),
    Code.FORBIDDEN: (403, "The caller has no right to do this"),
    Code.CSRF: (403, "The call may have been made by another site"),
    Code.SIGN_IN_FAILED: (400, "The sign-in did not succeed"),
    Code.NOT_FOUND: (404, "The object does not exist"),
    Code.METHOD_NOT_ALLOWED: (405, "This address does not take that method"),
    Code.CONFLICT: (409, "The object exists already or has changed"),
    Code.ALREADY_EXISTS: (409, "An object of this name exists already"),
    Code.PRECONDITION_FAILED: (412, "The object does not meet the request's condition"),
    Code.UNKNOWN_JOB: (422, "A job that is named does not exist"),
    Code.DEPENDENCY_IMPOSSIBLE: (422, "A condition on another job cannot be met"),
    Code.WRONG_STATE: (409, "The object's state does not allow this"),
    Code.IN_USE: (409, "The object is still in use"),
    Code.CLUSTER_IN_CONTACT: (409, "The cluster's agent is in contact"),
    Code.IDEMPOTENCY_MISMATCH: (422, "The idempotency key was used with another body"),
    Code.BODY_TOO_LARGE: (413, "The body is too large"),
    Code.HEADER_TOO_LARGE: (431, "The header is too large"),
    Code.REQUEST_TIMEOUT: (408, "The request took too long to arrive"),
    Code.TOO_MANY_REQUESTS: (429, "The API key or the address sends too many requests"),
    Code.QUEUE_FULL: (429, "The queue is full"),
    Code.QUEUE_CLOSED: (409, "The queue takes no jobs"),
    Code.TOO_BUSY: (503, "The dispatcher is overloaded"),
    Code.STORE_AWAY: (503, "The store is unreachable"),
    Code.ISSUER_AWAY: (503, "An OpenID Connect issuer is unreachable"),
    Code.SESSION_SUPERSEDED: (409, "A newer session of this cluster's agent has taken over"),
    Code.CLUSTER_HELD: (409, "Another agent acts for this cluster"),
    Code.PROTOCOL_UNSUPPORTED: (400, "The agent's protocol version is not supported"),
    Code.STREAM_CLOSED: (410, "Nobody follows this stream any more"),
    Code.EXPIRED: (410, "The resource version is too old"),
    Code.UNSUPPORTED_MEDIA_TYPE: (415, "This address does not take a body of that type"),
    Code.INTERNAL: (500, "The dispatcher had an unexpected error"),
}


LONGEST_DETAIL = 2_000
"""The most characters of a problem's detail. Errors quote the input, which may be as long as a body."""
_LONGEST_INSTANCE, _LONGEST_PATH, _LONGEST_MESSAGE, _MOST_MISTAKES = 500, 300, 1_000, 100


def shortened(text: str, most: int) -> str:
    """Return the text, or its begin and end in at most ``most`` characters if it is longer."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


class Mistake(Lenient):
    """One mistake in a request: its place and what is allowed there."""

    path: str
    message: str


class TrainmasterError(Exception):
    """Root of all errors that Trainmaster raises on purpose."""


class ProblemError(TrainmasterError):
    """A request that cannot be carried out, with its stable code; nothing was changed."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        mistakes: tuple[Mistake, ...] = (),
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.mistakes = mistakes
        self.retry_after = retry_after
        self.extra = dict(extra or {})

    @property
    def status(self) -> int:
        return self.code.status

    @property
    def pause_seconds(self) -> int:
        """Whole seconds for ``Retry-After``, at least 1."""
        return max(1, round(self.retry_after or 0.0))

    def to_problem(self, instance: str = "") -> dict[str, Any]:
        """Return the RFC 9457 object."""
        problem: dict[str, Any] = {
            "type": f"https://trainmaster.dev/docs/reference/errors#{self.code}",
            "title": self.code.headline,
            "status": self.code.status,
            "code": str(self.code),
            "detail": shortened(self.detail, LONGEST_DETAIL),
        }
        if instance:
            problem["instance"] = shortened(instance, _LONGEST_INSTANCE)
        if self.mistakes:
            problem["mistakes"] = [
                {
                    "path": shortened(mistake.path, _LONGEST_PATH),
                    "message": shortened(mistake.message, _LONGEST_MESSAGE),
                }
                for mistake in self.mistakes[:_MOST_MISTAKES]
            ]
        return problem | self.extra


class UnreachableError(TrainmasterError):
    """The dispatcher could not be reached."""
