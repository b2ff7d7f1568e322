"""Output line by line: a job's transitions, and the output of its members."""

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainmaster.cli.output import clean, styled

if TYPE_CHECKING:
    from trainmaster.protocol.tenants import EventView

_LONGEST_LINE = 65_536
_JOB_WIDTH = 20
_DEADLINES = {"deadline.atRisk": "deadline at risk", "deadline.missed": "deadline missed"}
"""The events about deadlines, with their headlines."""
_UNKNOWN_TIME = "-".ljust(24)


def transition(event: "EventView", now: datetime, job: str = "") -> str:
    """Return one transition as a line: local time, the job if given, the new state of job or run, and the circumstances."""
    moment = event.at.astimezone()
    pattern = "%H:%M:%S" if moment.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S"
    of = f"{job:<{_JOB_WIDTH}}  " if job else ""
    return f"{styled(moment.strftime(pattern), 'dim')}  {of}{styled(f'{_headline(event):<14}')}  {clean(_rest(event))}".rstrip()


def _headline(event: "EventView") -> str:
    if "job" in event.details:
        return str(event.details["job"])
    if event.kind.startswith("run."):
        return f"run {event.kind.removeprefix('run.')}"
    if event.kind in _DEADLINES:
        return _DEADLINES[event.kind]
    return event.states[-1] if event.states and event.kind != "changed" else event.kind


def _rest(event: "EventView") -> str:
    details = event.details
    parts = [f"on {event.cluster}" if event.cluster else "", f"run {event.attempt}" if event.attempt else ""]
    if event.kind.startswith("run.") and len(event.states) > 1:
        parts.append(" > ".join(event.states))
    elif (
        event.states and event.kind not in ("changed", *event.states, *_DEADLINES) and not event.kind.startswith("run.")
    ):
        parts.append(event.kind)
    for name, value in details.items():
        if name == "holdUntil":
            parts.append(f"until {datetime.fromtimestamp(float(value), UTC).astimezone():%H:%M:%S}")
        elif name == "priority" and isinstance(value, list):
            parts.append(f"priority {' -> '.join(str(item) for item in value)}")
        elif name in ("category", "exitCode", "priorityClass"):
            word = {"exitCode": "exit code", "priorityClass": "priority class"}.get(name, "")
            parts.append(f"{word} {value}".strip())
    parts.append(event.message)
    parts.append(f"by {event.actor}" if event.actor else "")
    return ", ".join(part for part in parts if part)


class LinePrinter:
    """Prints output of several members as it comes, mixed by whole lines; that of one member unchanged.

    ``timed``: each line begins with the time of its piece. ``pattern``: other lines are left out.
    """

    def __init__(self, *, prefixed: bool, timed: bool = False, pattern: re.Pattern[str] | None = None) -> None:
        self._prefixed = prefixed
        self._timed = timed
        self._pattern = pattern
        self._rests: dict[str, tuple[str, str | None]] = {}
        """By member: the begin of a line, and its time."""
        self._open = False

    def write(self, member: str, data: str, at: str | None = None) -> None:
        """Print a piece of a member's output. ``at``: when it was first seen."""
        if not self._prefixed and not self._timed and self._pattern is None:
            sys.stdout.write(data)
            sys.stdout.flush()
            self._open = not data.endswith("\n") if data else self._open
            return
        begun, began_at = self._rests.pop(member, ("", at))
        *lines, rest = (begun + data).split("\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], ""
        for number, line in enumerate(lines):
            self._print(member, line, began_at if number == 0 else at)
        if rest:
            self._rests[member] = rest, at if lines else began_at
        sys.stdout.flush()

    def finish(self) -> None:
        """Print the last line without an end."""
        rests, self._rests = self._rests, {}
        for member, (rest, at) in rests.items():
            self._print(member, rest, at)
        if self._open:
            sys.stdout.write("\n")
            self._open = False
        sys.stdout.flush()

    def _print(self, member: str, line: str, at: str | None) -> None:
        if self._pattern is not None and not self._pattern.search(line):
            return
        time = f"{at or _UNKNOWN_TIME} " if self._timed else ""
        prefix = f"{member} | " if self._prefixed else ""
        sys.stdout.write(f"{styled(time + prefix, 'dim') if time or prefix else ''}{line}\n")
