"""Filters and moments of the client's calls, and lists that they return with more beside the items."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError

Moment = datetime | date | str
"""A moment: a datetime, a date, or a text such as ``2026-11-01`` or ``2026-11-01T08:00:00Z``; without a zone, in UTC."""
Span = float | str | timedelta
"""A length of time: seconds, a text such as ``10m``, or a timedelta."""


if TYPE_CHECKING:
    from trainmaster.protocol.answers import SubmissionWarning

Item = TypeVar("Item")


class WithWarnings(list[Item]):
    """A list, with possible mistakes in what was submitted as ``warnings``."""

    def __init__(self, items: Iterable[Item], warnings: "tuple[SubmissionWarning, ...]" = ()) -> None:
        super().__init__(items)
        self.warnings = warnings


def written_moment(value: Moment, name: str) -> str:
    """Return a moment as the API takes it. Raises ProblemError INVALID_PARAMETER that names the argument."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ProblemError(
            Code.INVALID_PARAMETER, f"{name}: {value!r} is not a moment such as 2026-11-01 or 2026-11-01T08:00:00Z"
        ) from error
    if not isinstance(moment, date):  # also of datetimes
        raise ProblemError(
            Code.INVALID_PARAMETER, f"{name} takes a datetime, a date or a text, not {type(value).__name__}"
        )
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()


def seconds_in(value: Span | None, name: str) -> float | None:
    """Return a length of time in seconds; None is returned as it is. Raises ProblemError INVALID_PARAMETER."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ProblemError(Code.INVALID_PARAMETER, f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs that meet all conditions. ``name`` may have ``*``; ``queue`` includes all queues below it.

    ``states`` may be one state. ``submitted_by`` is the name of an API key; ``since`` and ``until`` are of the submission.
    ``group`` is the name of a group of jobs. ``search`` finds the job of this id, and jobs whose name begins with this text, that a
    key of this name submitted, or with this label, as ``key=value``.
    """

    queue: str | None = None
    states: str | Sequence[str] = ()
    name: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None
    submitted_by: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    group: str | None = None
    search: str | None = None

    def _states(self) -> Sequence[str]:
        return (self.states,) if isinstance(self.states, str) else self.states

    def _moments(self) -> Iterator[tuple[str, str | None]]:
        for name, moment in (("since", self.since), ("until", self.until)):
            yield name, None if moment is None else written_moment(moment, name)

    def to_query(self) -> Iterator[tuple[str, str | None]]:
        yield "queue", self.queue
        yield from (("state", state) for state in self._states())
        yield "name", self.name
        yield "priorityClass", self.priority_class
        yield from (("label", f"{key}={value}") for key, value in self.labels.items())
        yield "group", self.group
        yield "cluster", self.cluster
        yield "submittedBy", self.submitted_by
        yield from self._moments()
        yield "search", self.search

    def to_wire(self) -> dict[str, Any]:
        fields = {
            "queue": self.queue,
            "states": list(self._states()),
            "name": self.name,
            "priorityClass": self.priority_class,
            "labels": self.labels,
            "group": self.group,
            "cluster": self.cluster,
            "submittedBy": self.submitted_by,
            **dict(self._moments()),
            "search": self.search,
        }
        # An empty text is a condition, too: left out, it would select all jobs.
        return {key: value for key, value in fields.items() if value or value == ""}
