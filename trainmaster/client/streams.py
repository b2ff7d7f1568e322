"""Streams that survive a lost connection: the next request continues after the last received item. Sans-I/O.

A transport sends ``request()``, feeds the received bytes, and, when the connection ends before ``over``, calls ``lost()``
and sends ``request()`` again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson

from trainmaster.client import core
from trainmaster.client.calls import job_path
from trainmaster.client.core import Request
from trainmaster.client.values import Moment, written_moment
from trainmaster.protocol.errors import UnreachableError
from trainmaster.protocol.tenants import EventView, JobEventView

TAIL_BYTES = 65_536
WHOLE = 1 << 30
"""Bytes of a tail that mean the whole output."""
_RECEIVED, _LONGEST_RECEIVED = "Trainmaster-Received", 8192
Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True, slots=True)
class Notice:
    """A note beside the requested items."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The job has ended in this state and everything was delivered; ``gone`` when it was deleted meanwhile."""

    state: str


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of one member's output. ``missed``: number of bytes before it that are not available.

    ``at``: when it was first seen, RFC 3339; None without ``timestamps``, and where that is unknown.
    """

    role: str
    index: int
    data: str
    missed: int = 0
    at: str | None = None


class Stream(Protocol[Item]):
    """A stream to follow. ``over``: everything was delivered. ``may_end``: an end by the server means the same."""

    over: bool
    may_end: bool

    def request(self) -> Request: ...

    def feed(self, data: bytes) -> Iterator[Item]: ...

    def lost(self) -> None: ...


class Lines:
    """Splits bytes into whole lines; the rest waits for more."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.removesuffix(b"\r") for line in lines]

    def clear(self) -> None:
        self._rest = b""


@dataclass(slots=True)
class ServerSentEvent:
    event: str = "message"
    data: str = ""
    id: str | None = None


class ServerSentEvents:
    """Parses server-sent events, see https://html.spec.whatwg.org/multipage/server-sent-events.html."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._fields: list[tuple[str, str]] = []
        self.last_id = ""
        """The id of the last event, or of a later comment with one."""

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        for line in self._lines.feed(data):
            if line:
                name, _, value = line.decode(errors="replace").partition(":")
                self._fields.append((name, value.removeprefix(" ")))
            elif self._fields:
                yield from self._event()

    def _event(self) -> Iterator[ServerSentEvent]:
        fields, self._fields = self._fields, []
        data = [value for name, value in fields if name == "data"]
        last = dict(fields)
        self.last_id = last.get("id", self.last_id)
        if data:
            yield ServerSentEvent(last.get("event", "message"), "\n".join(data), last.get("id"))


class EventWatch:
    """The transitions of a job after number ``after``, until the job has ended."""

    may_end = False

    def __init__(self, job: str, after: int = 0) -> None:
        self.over = False
        self._path = job_path(job, "/events")
        self._after = after
        self._events = ServerSentEvents()

    def request(self) -> Request:
        return core.get(self._path, accept="text/event-stream", headers={"Last-Event-ID": str(self._after)})

    def lost(self) -> None:
        self._events = ServerSentEvents()

    def feed(self, data: bytes) -> Iterator[EventView | Notice | Ended]:
        for event in self._events.feed(data):
            if event.event == "end":
                self.over = True
                yield Ended(event.data)
                return
            if event.event == "away":
                yield Notice(event.data)
            elif event.id is not None and event.id.isdecimal() and int(event.id) > self._after:
                self._after = int(event.id)
                yield EventView.model_validate_json(event.data)


class JobsWatch:
    """The transitions of all jobs that match a filter, from a position on, without an end."""

    may_end = False

    def __init__(self, query: Sequence[tuple[str, str | None]], after: str | None = None) -> None:
        self.over = False
        self.position = after
        """The position behind the last transition."""
        self._query = query
        self._events = ServerSentEvents()

    def request(self) -> Request:
        headers = {} if self.position is None else {"Last-Event-ID": self.position}
        return core.get("/v1/events", self._query, accept="text/event-stream", headers=headers)

    def lost(self) -> None:
        self._events = ServerSentEvents()

    def feed(self, data: bytes) -> Iterator[JobEventView | Notice]:
        for event in self._events.feed(data):
            if event.event == "missed":
                yield Notice(f"transitions may be missing: {event.data}")
            elif event.event == "away":
                yield Notice(event.data)
            elif event.id:
                self.position = event.id
                yield JobEventView.model_validate_json(event.data)
        self.position = self._events.last_id or self.position


@dataclass(slots=True)
class LogTail:
    """Output of a job's members, followed across lost connections.

    A piece's ``next`` is the offset, in bytes, after it, so that repetitions by a new connection are dropped.
    """

    job: str
    follow: bool = False
    role: str | None = None
    index: int | None = None
    attempt: int | None = None
    tail_bytes: int = TAIL_BYTES
    tail_lines: int | None = None
    since: Moment | None = None
    previous: bool = False
    timestamps: bool = False
    over: bool = False
    may_end: bool = field(init=False)
    _lines: Lines = field(default_factory=Lines)
    _run: str = ""
    _delivered: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Who follows all runs is told the end of the job. An api that stops ends its streams without a word.
        self.may_end = not self.follow or self.attempt is not None

    def request(self) -> Request:
        query = (
            ("follow", "true" if self.follow else None),
            ("role", self.role),
            ("index", _text(self.index)),
            ("attempt", _text(self.attempt)),
            ("fromAttempt", _attempt_of(self._run) if self.follow else None),
            ("tailBytes", str(max(self.tail_bytes, TAIL_BYTES) if self._delivered else self.tail_bytes)),
            ("tailLines", None if self._delivered else _text(self.tail_lines)),
            ("since", None if self.since is None else written_moment(self.since, "since")),
            ("previous", "true" if self.previous else None),
            ("timestamps", "true" if self.timestamps else None),
        )
        return core.get(job_path(self.job, "/logs"), query, accept="application/x-ndjson", headers=self._received())

    def _received(self) -> dict[str, str]:
        """Return the header that says where to go on; without it, for very many members, the tail is requested again."""
        parts = [f"{role}-{index}:{end}" for (run, role, index), end in self._delivered.items() if run == self._run]
        text = ",".join(parts)
        return {_RECEIVED: text} if self.follow and text and len(text) <= _LONGEST_RECEIVED else {}

    def lost(self) -> None:
        self._lines.clear()

    def feed(self, data: bytes) -> Iterator[LogPiece | Notice | Ended]:
        """Parse received bytes. Raises ProblemError when the dispatcher ends the stream with one."""
        for line in self._lines.feed(data):
            try:
                value = orjson.loads(line or b"{}")
            except orjson.JSONDecodeError as error:
                raise UnreachableError("the stream of logs is malformed: its sender is not a dispatcher") from error
            yield from self._read(value)

    def _read(self, value: dict[str, Any]) -> Iterator[LogPiece | Notice | Ended]:
        if "problem" in value:
            raise core.read_problem(value["problem"])
        if "end" in value:
            self.over = True
            yield Ended(value["end"])
        elif "note" in value:
            run = value.get("run", self._run)
            if run != self._run or "run" not in value:
                yield Notice(value["note"])
            self._run = run
        elif "data" in value:
            piece = self._news(value)
            if piece is not None:
                yield piece

    def _news(self, value: dict[str, Any]) -> LogPiece | None:
        data, missed = value["data"], value.get("missed", 0)
        place = (self._run, value["role"], value["index"])
        delivered, end = self._delivered.get(place), value.get("next")
        if end is not None:
            if delivered is not None and end <= delivered:
                return None
            # If the text is longer than the bytes it replaces, only the dispatcher knows where it begins.
            start = value.get("offset", end - len(data.encode()))
            if delivered is not None and start < delivered:
                data = data.encode()[delivered - start :].decode(errors="replace")
            elif delivered is not None:
                missed = start - delivered
            self._delivered[place] = end
        return LogPiece(value["role"], value["index"], data, missed, value.get("at"))


def _attempt_of(run: str) -> str | None:
    """Return the attempt in a run's id; None without a run."""
    _, dash, attempt = run.rpartition("-r")
    return attempt if dash else None


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
