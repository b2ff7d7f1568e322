"""``watch``, ``wait`` and ``logs``: following jobs. Ctrl-C ends the command, never the job."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config, errors, filters, groups
from trainmaster.cli.event_lines import LinePrinter, transition
from trainmaster.cli.output import Format, OutputOption, clean, data_of, hint, lasted, note, print_data, styled
from trainmaster.cli.time_arguments import moment_of, seconds_of
from trainmaster.protocol.states import Exit, JobState

_TOLD_AFTER = 5.0
"""Seconds of waiting after which a job that can never start is told."""
_STORED_WITHIN = 600.0
"""Seconds after a job's end in which its agent may still send output: little of it comes within two, a gigabyte takes minutes."""

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.client.values import JobFilter
    from trainmaster.protocol.tenants import JobView


Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)]


def register(app: typer.Typer) -> None:
    for command in (logs, watch, wait):
        app.command()(command)


def watch(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)] = None,
    all_jobs: Annotated[bool, typer.Option("-A", "--all", help="Of all jobs that you may see.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only transitions of this kind, such as run.failed; may be repeated."),
    ] = None,
    queue: filters.QueueOption = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            help="Only transitions into this state; may be repeated.",
            show_default=False,
            autocompletion=completion.states,
        ),
    ] = None,
    name: filters.NameOption = None,
    label: filters.LabelOption = None,
    group: filters.GroupOption = None,
    cluster: filters.ClusterOption = None,
    mine: filters.MineOption = False,
    by: filters.ByOption = None,
) -> None:
    """Show transitions live: of a job until it has ended, or of all jobs that match a filter until Ctrl-C.

    Of one job, the command exits with the job's own code. Ctrl-C ends only this command.
    """
    given = filters.Given(queue, state, name, label, cluster, mine, by, group=group)
    has_filter = given.is_given or all_jobs or bool(kind)
    if (job is not None) == has_filter:
        raise errors.UsageError(
            "which jobs? trainmaster watch ID, or a filter: --queue, --state, --kind, --name, --label, --group, --cluster, --mine,"
            " --by, --all"
        )
    with config.connect(ctx) as client:
        if job is not None:
            with detaching(f"watch {job}"):
                raise typer.Exit(watch_to_end(client, job))
        wanted = given.to_filter(client)
        with suppress(KeyboardInterrupt):
            watch_all(client, wanted, kind or ())


def wait(
    ctx: typer.Context,
    jobs: Ids = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this, such as 10m.")] = None,
    queue: filters.QueueOption = None,
    state: filters.StateOption = None,
    name: filters.NameOption = None,
    label: filters.LabelOption = None,
    group: filters.GroupOption = None,
    mine: filters.MineOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Wait until jobs have ended: those with these ids, or all that match a filter now. The exit code is that of the worst job.

    With --group, also for jobs that the group gets meanwhile, until it has no unfinished ones.
    """
    seconds = None if timeout is None else timeout_of(timeout)
    with config.connect(ctx) as client:
        if group is not None and not (jobs or state or name or label or mine):
            raise typer.Exit(groups.wait_for(client, group, queue, timeout, output, until_closed=False))
        given = filters.Given(queue, state, name, label, mine=mine, group=group)
        chosen = _chosen("wait", client, jobs, given)
        if not output.is_data:
            raise typer.Exit(wait_all(client, chosen, seconds))
        ended: list[JobView] = []
        code = wait_all(client, chosen, seconds, ended.append)
        print_data([data_of(job) for job in ended], output)
        raise typer.Exit(code)


def _chosen(command: str, client: "Client", ids: list[str] | None, given: "filters.Given") -> list[str]:
    """Return the ids, or those of the jobs that match now, oldest first. Raises UsageError for both, or neither.

    Ends the command where no job matches. With states that is an answer: none is left in them. Without, the filter may be mistyped.
    """
    if bool(ids) == given.is_given:
        raise errors.UsageError(
            f"which jobs? trainmaster {command} ID..., or a filter: --queue, --state, --name, --label, --group, --mine"
        )
    if ids:
        return ids
    found = [job.id for job in client.jobs(given.to_filter(client), page_size=1000)]
    if not found and not given.states:
        errors.tell("no job matches")
        raise typer.Exit(Exit.NOT_FOUND)
    if not found:
        note("no job matches")
    return found[::-1]


def logs(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Show new output until the job has ended.")] = False,
    element: Annotated[
        int | None, typer.Option(min=0, help="Of the job of this element: of arrays with `mode: jobs`.")
    ] = None,
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
    queue: filters.QueueOption = None,
    state: filters.StateOption = None,
    name: filters.NameOption = None,
    label: filters.LabelOption = None,
    group: filters.GroupOption = None,
    mine: filters.MineOption = False,
) -> None:
    """Show the output of a job, live or stored, or of all that match a filter. Prefixes name the jobs and members."""
    begin = moment_of(since, datetime.now(UTC), "--since") if since else None
    options = LogChoice(
        follow, role, index, attempt, tail, begin, timestamps=timestamps, previous=previous, pattern=pattern_of(grep)
    )
    with config.connect(ctx) as client:
        given = filters.Given(queue, state, name, label, mine=mine, group=group)
        chosen = _chosen("logs", client, [job] if job else None, given)
        if element is not None:
            chosen = [_job_of(client, chosen, element)]
        if follow and len(chosen) > 1:
            raise errors.UsageError(f"-f follows one job, {len(chosen)} match")
        with detaching(f"logs -f {' '.join(chosen)}"):
            for one in chosen:
                show_logs(client, one, options, titled=len(chosen) > 1)


def _job_of(client: "Client", chosen: Sequence[str], element: int) -> str:
    """Return the job of an element of the only chosen job. Raises UsageError."""
    if len(chosen) != 1:
        raise errors.UsageError(f"--element is of one array, {len(chosen)} jobs match")
    found = next(iter(client.jobs_of_elements(chosen[0], str(element))), None)
    if found is None:
        raise errors.UsageError(f"element {element} of {chosen[0]} has no job yet: it waits")
    return found.id


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    """Parse ``--grep``. Raises UsageError."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise errors.UsageError(f"--grep: {text!r} is not a regular expression: {error}") from error


def timeout_of(text: str) -> float:
    """Parse ``--timeout``, where a number without a unit means seconds. Raises UsageError."""
    return seconds_of(f"{text}s" if text.isdecimal() else text, "--timeout")


@contextmanager
def detaching(again: str) -> Iterator[None]:
    """Print on Ctrl-C how to come back, and exit with the code for a job that has not ended."""
    try:
        yield
    except KeyboardInterrupt as error:
        note(f"detached; the jobs go on; to come back: trainmaster {again}")
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


def watch_all(client: "Client", wanted: "JobFilter", kinds: Sequence[str]) -> None:
    """Print transitions of all jobs that match, each with its job."""
    from trainmaster.client.streams import Notice

    for item in client.watch_jobs(wanted, kinds=kinds):
        if isinstance(item, Notice):
            note(item.text)
        else:
            print(transition(item, datetime.now(UTC), item.job), flush=True)


def _outcome(client: "Client", job: str) -> Exit:
    code = exit_for(client.job(job))
    if code is Exit.JOB_FAILED:
        hint(("logs", f"logs {job}"), ("runs", f"job {job}"), ("again", f"retry {job}"))
    return code


def wait_all(
    client: "Client", jobs: Sequence[str], seconds: float | None, tell: "Callable[[JobView], None] | None" = None
) -> int:
    """Wait for each job and print how it ended, or call ``tell``; return the worst exit code."""
    from trainmaster.protocol.errors import ProblemError

    ends = None if seconds is None else time.monotonic() + seconds
    worst = 0
    with detaching(f"wait {' '.join(jobs)}"):
        for job in jobs:
            try:
                done = _waited(client, job, ends)
            except ProblemError as error:
                worst = max(worst, errors.report(error))
                continue
            (tell or print_ended)(done)
            worst = max(worst, exit_for(done))
    return worst


def _waited(client: "Client", job: str, ends: float | None) -> "JobView":
    """Wait for the end of a job until ``ends``; a job that can never start as it is, is told once."""

    def left() -> float | None:
        return None if ends is None else max(ends - time.monotonic(), 0)

    seconds = left()
    if seconds is None or seconds > _TOLD_AFTER:
        first = client.wait(job, _TOLD_AFTER)
        if first.state.is_terminal:
            return first
        reason = client.why(job) if first.state is JobState.QUEUED else None
        if reason is not None and reason.has_no_turn:
            note(f"{job} cannot start: {clean(reason.sentence)}")
    return client.wait(job, left())


def print_ended(job: "JobView") -> None:
    """Print how a job has ended, or its state where it has not."""
    duration = f" after {lasted(job.ran_seconds)}" if job.ended_at and job.ran_seconds is not None else ""
    message = f": {clean(job.message)}" if job.message else ""
    unfinished = "" if job.state.is_terminal else " (not finished)"
    print(f"{job.id}  {styled(job.shown_state)}{unfinished}{duration}{message}", flush=True)


def follow_to_end(client: "Client", job: str) -> Exit:
    """Show a job's output until it has ended; return its exit code."""
    with detaching(f"logs -f {job}"):
        show_logs(client, job, LogChoice(follow=True))
        code = wait_all(client, [job], None)
    return Exit(code)


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The wanted output of a job, and how it is shown. ``attempt`` None: the newest run. ``tail``: lines; None: all."""

    follow: bool = False
    role: str | None = None
    index: int | None = None
    attempt: int | None = None
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    previous: bool = False
    pattern: re.Pattern[str] | None = None


def show_logs(client: "Client", job: str, choice: LogChoice, *, titled: bool = False) -> None:
    """Print the output of a job's members, with ``titled`` also the job's id in front of each line."""
    from trainmaster.client.streams import WHOLE, LogPiece, Notice

    role, index, attempt = choice.role, choice.index, choice.attempt
    shown = client.job(job)
    prefix = f"{job} " if titled else ""
    yet = " yet: its cluster may still be sending them" if _has_just_ended(shown) else ""
    prefixed = titled or _members(shown, role, index) > 1
    printer = LinePrinter(prefixed=prefixed, timed=choice.timestamps, pattern=choice.pattern)
    pieces = client.logs(
        job,
        follow=choice.follow,
        role=role,
        index=index,
        attempt=attempt,
        tail_bytes=WHOLE,
        tail_lines=choice.tail,
        since=choice.since,
        previous=choice.previous,
        timestamps=choice.timestamps,
    )
    is_empty = True
    try:
        for piece in pieces:
            if isinstance(piece, LogPiece):
                is_empty = is_empty and not piece.data and not piece.missed
                if piece.missed:
                    printer.finish()
                    note(f"{piece.missed:,} bytes of output of {piece.role}-{piece.index} are not available here{yet}")
                printer.write(f"{prefix}{piece.role}-{piece.index}", piece.data, piece.at)
            else:
                printer.finish()
                note(piece.text if isinstance(piece, Notice) else f"{job} {piece.state}")
    finally:
        printer.finish()
    if choice.previous and is_empty:
        note(f"no output of {job} from before a restart of a member")


def _has_just_ended(job: "JobView") -> bool:
    """Return whether output of a job may still be on its way from its cluster."""
    return job.ended_at is not None and (datetime.now(UTC) - job.ended_at).total_seconds() < _STORED_WITHIN


def _members(job: "JobView", role: str | None, index: int | None) -> int:
    """Return the number of members whose output is shown."""
    roles = [item for item in (job.spec or {}).get("roles", []) if role in (None, item["name"])]
    return sum(1 if index is not None else int(item.get("replicas", 1)) for item in roles)
