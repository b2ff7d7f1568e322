"""``watch``, ``wait`` and ``logs``: following jobs. Ctrl-C ends the command, never the job."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config, errors
from trainmaster.cli.event_lines import LinePrinter, transition
from trainmaster.cli.output import clean, hint, note, styled, took
from trainmaster.cli.time_arguments import moment_of
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.tenants import JobView


def register(app: typer.Typer) -> None:
    for command in (logs, watch, wait):
        app.command()(command)


def watch(ctx: typer.Context, job: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show a job's transitions live. Exits with the job's own code; Ctrl-C ends only this command."""
    with config.connect(ctx) as client, detaching(f"watch {job}"):
        raise typer.Exit(watch_to_end(client, job))


def wait(
    ctx: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="ID")],
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this, such as 10m.")] = None,
) -> None:
    """Wait until jobs have ended. The exit code is that of the worst job."""
    seconds = None if timeout is None else seconds_of(timeout)
    with config.connect(ctx) as client:
        raise typer.Exit(wait_all(client, jobs, seconds))


def logs(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="ID")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Show new output until the job has ended.")] = False,
    role: Annotated[str | None, typer.Option(help="Only members of this role.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Only the member with this index.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only of the run with this number; the newest by default.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="LINES", help="Only the last lines of each member; all without it.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only output since a time, such as 10m, 2026-11-01 or 2026-11-01T08:00:00Z."),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Begin each line with its time.")] = False,
    grep: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only lines in which this regular expression is found.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("-p", "--previous", help="Only output before each member's last restart.")
    ] = False,
) -> None:
    """Show the output of a job, live or stored. Prefixes name the members, wherever they run."""
    view = LogView(tail, moment_of(since, datetime.now(UTC), "--since") if since else None, timestamps, previous, grep)
    with config.connect(ctx) as client, detaching(f"logs -f {job}"):
        show_logs(client, job, follow=follow, role=role, index=index, attempt=attempt, view=view)


@dataclass(frozen=True, slots=True)
class LogView:
    """The part of the output that is shown, and how."""

    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    previous: bool = False
    grep: str | None = None


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    """Parse ``--grep``. Raises UsageError."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise errors.UsageError(f"--grep: {text!r} is not a regular expression: {error}") from error


def seconds_of(text: str) -> float:
    """Parse ``--timeout``. Raises UsageError."""
    from trainmaster.protocol.durations import parse_duration

    try:
        return parse_duration(f"{text}s" if text.isdecimal() else text)
    except ValueError as error:
        raise errors.UsageError(f"--timeout: {error}") from error


@contextmanager
def detaching(again: str) -> Iterator[None]:
    """Print on Ctrl-C how to come back, and exit with the code for a job that has not ended."""
    try:
        yield
    except KeyboardInterrupt as error:
        note("detached; the jobs go on. To come back:")
        hint(("", again))
        raise typer.Exit(Exit.NOT_FINISHED) from error


def exit_for(job: "JobView") -> Exit:
    """Return the exit code for a job's state."""
    from trainmaster.protocol.states import JobState

    codes = {
        JobState.SUCCEEDED: Exit.SUCCEEDED,
        JobState.FAILED: Exit.JOB_FAILED,
        JobState.CANCELLED: Exit.JOB_CANCELLED,
    }
    return codes.get(job.state, Exit.NOT_FINISHED)


def watch_to_end(client: "Client", job: str) -> Exit:
    from trainmaster.client.streams import Ended, Notice

    for item in client.watch(job):
        if isinstance(item, Notice):
            note(item.text)
        elif not isinstance(item, Ended):
            print(transition(item, datetime.now(UTC)), flush=True)
    return _outcome(client, job)


def _outcome(client: "Client", job: str) -> Exit:
    code = exit_for(client.job(job))
    if code is Exit.JOB_FAILED:
        hint(("logs", f"logs {job}"), ("runs", f"job {job}"), ("again", f"retry {job}"))
    return code


def wait_all(client: "Client", jobs: Sequence[str], seconds: float | None) -> int:
    """Wait for each job and print how it ended; return the worst exit code."""
    from trainmaster.protocol.errors import ProblemError

    ends = None if seconds is None else time.monotonic() + seconds
    worst = 0
    with detaching(f"wait {' '.join(jobs)}"):
        for job in jobs:
            try:
                done = client.wait(job, None if ends is None else max(ends - time.monotonic(), 0))
            except ProblemError as error:
                worst = max(worst, errors.report(error))
                continue
            _tell_state(done)
            worst = max(worst, exit_for(done))
    return worst


def _tell_state(job: "JobView") -> None:
    duration = f" after {took(job.started_at, job.ended_at)}" if job.started_at and job.ended_at else ""
    message = f": {clean(job.message)}" if job.message else ""
    unfinished = "" if job.state.is_terminal else " (not finished)"
    print(f"{job.id}  {styled(job.shown_state)}{unfinished}{duration}{message}", flush=True)


def follow_to_end(client: "Client", job: str) -> Exit:
    """Show a job's output until it has ended; return its exit code."""
    with detaching(f"logs -f {job}"):
        show_logs(client, job, follow=True)
        code = wait_all(client, [job], None)
    return Exit(code)


def show_logs(
    client: "Client",
    job: str,
    *,
    follow: bool = False,
    role: str | None = None,
    index: int | None = None,
    attempt: int | None = None,
    view: LogView | None = None,
) -> None:
    from trainmaster.client.streams import WHOLE, LogPiece, Notice

    view = view or LogView()

    shown = client.job(job)
    _check_member(shown, role, index)
    printer = LinePrinter(
        prefixed=_members(shown, role, index) > 1, timed=view.timestamps, pattern=pattern_of(view.grep)
    )
    pieces = client.logs(
        job,
        follow=follow,
        role=role,
        index=index,
        attempt=attempt,
        tail_bytes=WHOLE,
        tail_lines=view.tail,
        since=view.since,
        previous=view.previous,
        timestamps=view.timestamps,
    )
    try:
        for piece in pieces:
            if isinstance(piece, LogPiece):
                if piece.missed:
                    printer.finish()
                    note(f"{piece.missed:,} bytes of output of {piece.role}-{piece.index} are not available here")
                printer.write(f"{piece.role}-{piece.index}", piece.data, piece.at)
            else:
                printer.finish()
                note(piece.text if isinstance(piece, Notice) else f"{job} {piece.state}")
    finally:
        printer.finish()


def _members(job: "JobView", role: str | None, index: int | None) -> int:
    """Return the number of members whose output is shown."""
    roles = [item for item in (job.spec or {}).get("roles", []) if role in (None, item["name"])]
    return sum(1 if index is not None else int(item.get("replicas", 1)) for item in roles)


def _check_member(job: "JobView", role: str | None, index: int | None) -> None:
    """Raise ProblemError when the job has no such member: its log would stay empty for ever."""
    from trainmaster.protocol.errors import Code, ProblemError

    sizes = {item["name"]: int(item.get("replicas", 1)) for item in (job.spec or {}).get("roles", [])}
    if role is not None and sizes and role not in sizes:
        raise ProblemError(Code.NOT_FOUND, f"{job.id} has no role {role!r}; it has: {', '.join(sizes)}")
    most = max((size for name, size in sizes.items() if role in (None, name)), default=None)
    if index is not None and most is not None and index >= most:
        raise ProblemError(Code.NOT_FOUND, f"{job.id} has no member {index}; the indexes go from 0 to {most - 1}")
