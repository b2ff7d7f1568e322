"""Groups: jobs of a queue that belong together, and end together."""

from typing import Annotated

from pydantic import StringConstraints

from trainmaster.protocol.base import Lenient, Timestamp, example, worded_pattern
from trainmaster.protocol.states import GroupState

GroupName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=63,
        pattern=worded_pattern(
            r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            "letters, digits, '-', '_' and '.' that begin and end with a letter or a digit",
        ),
    ),
]


class GroupView(Lenient):
    """A group in answers."""

    model_config = example(
        name="sweep-7",
        queue="research/vision",
        state="closed",
        submittedBy="alice",
        createdAt="2026-11-24T08:00:00.000Z",
        closedAt="2026-11-24T08:05:00.000Z",
        total=120,
        unfinished=20,
        succeeded=97,
        failed=2,
        cancelled=1,
        jobs={"queued": 12, "running": 8},
    )

    name: str
    """Its name, unique in its queue."""
    queue: str
    """Path of the queue of its jobs."""
    state: GroupState
    """State of the group."""
    submitted_by: str = ""
    """Name of the key that submitted its first job."""
    created_at: Timestamp
    """Time at which its first job was submitted."""
    closed_at: Timestamp | None = None
    """Time since which it takes no more jobs; None: it is open."""
    ended_at: Timestamp | None = None
    """Time at which it was found that it is closed and all its jobs have ended; None while one has not."""
    notified_at: Timestamp | None = None
    """Time at which it ended for the first time, and its webhooks got their message."""
    total: int
    """Number of jobs that were submitted with it, also of those that retention has removed."""
    unfinished: int
    """Number of its jobs that have not ended."""
    succeeded: int
    """Number of its jobs that have succeeded, also of those that were removed."""
    failed: int
    """Number of its jobs that have failed, also of those that were removed."""
    cancelled: int
    """Number of its jobs that were cancelled, also of those that were removed."""
    jobs: dict[str, int] | None = None
    """Number of its unfinished jobs by state, as people see it; in lists it is left out."""


class GroupPage(Lenient):
    """A page of groups."""

    model_config = example(groups=[], next=None)

    groups: tuple[GroupView, ...]
    """Groups, newest first, without their unfinished jobs by state."""
    next: str | None = None
    """Cursor of the next page; None: this is the last one."""


class CancelledGroup(Lenient):
    """Answer to the cancellation of a group."""

    model_config = example(
        group={
            "name": "sweep-7",
            "queue": "research/vision",
            "state": "closed",
            "submittedBy": "alice",
            "createdAt": "2026-11-24T08:00:00.000Z",
            "closedAt": "2026-11-24T08:05:00.000Z",
            "total": 120,
            "unfinished": 8,
            "succeeded": 97,
            "failed": 2,
            "cancelled": 13,
            "jobs": {"cancelling": 8},
        },
        matched=20,
        changed=20,
        refused=0,
    )

    group: GroupView
    """The group after the cancellation."""
    matched: int
    """Number of its jobs that had not ended."""
    changed: int
    """Number of jobs that this call has cancelled."""
    refused: int
    """Number of jobs that the caller may not change."""
