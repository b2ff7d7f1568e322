"""``groups``: jobs that belong together; they are listed, shown, waited for, closed and cancelled."""

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.filters import QueueOption
from trainmaster.cli.output import (
    Format,
    OutputOption,
    age,
    data_of,
    hint,
    note,
    now,
    print_data,
    print_pairs,
    print_table,
    styled,
    took,
)
from trainmaster.cli.time_arguments import seconds_of
from trainmaster.protocol.states import Exit, GroupState

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.groups import GroupView

groups_app = typer.Typer(
    help="List groups of jobs; show, wait for, close or cancel one. Jobs with '--group' begin them."
)

GroupArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.groups)]
OwnQueue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        help="Queue of the group; needed where several have a group of this name.",
        show_default=False,
        autocompletion=completion.leaves,
    ),
]
StateOption = Annotated[
    list[GroupState] | None,
    typer.Option("--state", help="Only groups in this state; may be repeated.", show_default=False),
]
TimeoutOption = Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this, such as 10m.")]
_CODES = {
    GroupState.SUCCEEDED: Exit.SUCCEEDED,
    GroupState.FAILED: Exit.JOB_FAILED,
    GroupState.CANCELLED: Exit.JOB_CANCELLED,
}


def register(app: typer.Typer) -> None:
    app.add_typer(groups_app, name="groups")


@groups_app.callback(invoke_without_command=True)
def groups(ctx: typer.Context) -> None:
    """List groups of jobs; with a sub-command, show or change one."""
    if ctx.invoked_subcommand is None:
        show_all(ctx)


@groups_app.command("list")
def show_all(
    ctx: typer.Context, queue: QueueOption = None, state: StateOption = None, output: OutputOption = Format.TABLE
) -> None:
    """List groups of jobs, the newest first, with the numbers of their jobs."""
    with config.connect(ctx) as client:
        found = list(client.groups(queue, [one.value for one in state or ()]))
    if output.is_data:
        print_data([data_of(one) for one in found], output)
        return
    if not found:
        note("no group; 'trainmaster submit --group NAME FILE' begins one")
        return
    columns = ["GROUP", "QUEUE", "STATE", "JOBS", "UNFINISHED", "SUCCEEDED", "FAILED", "CANCELLED", "BEGAN"]
    columns += ["TOOK", "BY"] if output is Format.WIDE else []
    moment = now()
    rows: list[list[object]] = []
    for one in found:
        numbers = [one.total, one.unfinished, one.succeeded, one.failed, one.cancelled]
        row: list[object] = [one.name, one.queue, styled(one.state), *numbers, age(one.created_at, moment)]
        more = [took(one.created_at, one.ended_at or moment), one.submitted_by]
        rows.append(row + (more if output is Format.WIDE else []))
    print_table(columns, rows)


@groups_app.command()
def show(ctx: typer.Context, group: GroupArgument, queue: OwnQueue = None, output: OutputOption = Format.TABLE) -> None:
    """Show a group of jobs: its state, and how many of its jobs are in which state."""
    with config.connect(ctx) as client:
        one = client.group(group, queue)
    if output.is_data:
        print_data(data_of(one), output)
        return
    _print_group(one)


def _print_group(one: "GroupView") -> None:
    moment = now()
    print(f"{styled(one.name, 'bold')}  {styled(one.state)}")
    print_pairs(
        [
            ("queue", one.queue),
            ("began", f"{age(one.created_at, moment)} by {one.submitted_by}"),
            ("closed", age(one.closed_at, moment) if one.closed_at else "no: it may get more jobs"),
            ("ended", age(one.ended_at, moment) if one.ended_at else None),
            ("took", took(one.created_at, one.ended_at or moment)),
            ("jobs", jobs_words(one)),
        ]
    )
    if one.state.is_terminal:
        if one.failed:
            hint(("jobs", f"jobs --group {one.name} --state failed"), ("again", f"retry --group {one.name}"))
        return
    close = () if one.closed_at else (("close", f"groups close {one.name}"),)
    hint(("jobs", f"jobs --group {one.name}"), ("wait", f"wait --group {one.name}"), *close)


def jobs_words(one: "GroupView") -> str:
    """Return the numbers of a group's jobs, such as ``120: 12 queued, 8 running, 97 succeeded, 3 failed``."""
    ended = {"succeeded": one.succeeded, "failed": one.failed, "cancelled": one.cancelled}
    unfinished = one.jobs if one.jobs is not None else {"unfinished": one.unfinished}
    parts = [f"{many} {state}" for state, many in (unfinished | ended).items() if many]
    return f"{one.total}: {', '.join(parts)}" if parts else str(one.total)


@groups_app.command()
def wait(
    ctx: typer.Context,
    group: GroupArgument,
    queue: OwnQueue = None,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Wait until a group has ended: until it is closed and all its jobs have ended. The exit code shows how.

    To wait for the jobs that an open group has now, use: trainmaster wait --group NAME.
    """
    with config.connect(ctx) as client:
        raise typer.Exit(wait_for(client, group, queue, timeout, output, until_closed=True))


def wait_for(
    client: "Client", group: str, queue: str | None, timeout: str | None, output: Format, *, until_closed: bool
) -> Exit:
    """Wait for the end of a group, or, without ``until_closed``, until an open one has no unfinished jobs; print it, and return the
    exit code. A number without a unit in ``timeout`` means seconds. Raises UsageError.
    """
    text = timeout if timeout is None or not timeout.isdecimal() else f"{timeout}s"
    seconds = None if text is None else seconds_of(text, "--timeout")
    last = None
    is_told = False
    try:
        for one in client.watch_group(group, queue, seconds, until_closed=until_closed):
            last = one
            if until_closed and one.state is GroupState.OPEN and not one.unfinished and not is_told:
                is_told = True
                note(
                    f"all jobs of {one.name} have ended, and it is open: it ends once somebody closes it, with:"
                    f" trainmaster groups close {one.name}"
                )
    except KeyboardInterrupt as error:
        note(f"the jobs go on; to come back: trainmaster groups wait {group}")
        raise typer.Exit(Exit.NOT_FINISHED) from error
    if last is None:
        return Exit.NOT_FINISHED
    if output.is_data:
        print_data(data_of(last), output)
    else:
        print(f"{last.name}  {styled(last.state)}  {jobs_words(last)}", flush=True)
    return _code_of(last, until_closed=until_closed)


def _code_of(one: "GroupView", *, until_closed: bool) -> Exit:
    """Return the exit code for a group that was waited for."""
    if one.state in _CODES:
        return _CODES[one.state]
    if until_closed or one.unfinished:
        return Exit.NOT_FINISHED
    if one.failed:
        return Exit.JOB_FAILED
    return Exit.JOB_CANCELLED if one.cancelled else Exit.SUCCEEDED


@groups_app.command()
def close(ctx: typer.Context, group: GroupArgument, queue: OwnQueue = None) -> None:
    """Close a group: it takes no more jobs, and has ended once all its jobs have."""
    with config.connect(ctx) as client:
        one = client.close_group(group, queue)
    print(f"{one.name}  {styled(one.state)}  {jobs_words(one)}")


@groups_app.command()
def cancel(
    ctx: typer.Context,
    group: GroupArgument,
    queue: OwnQueue = None,
    grace: Annotated[str | None, typer.Option(help="The most time that members get to end, such as 5s.")] = None,
    yes: Yes = False,
) -> None:
    """Cancel a group: it is closed, so that no job comes later, and all its jobs are cancelled.

    To cancel the jobs that it has now and leave it open, use: trainmaster cancel --group NAME.
    """
    if grace is not None:
        seconds_of(grace, "--grace")
    with config.connect(ctx) as client:
        one = client.group(group, queue)
        jobs = "1 job" if one.unfinished == 1 else f"{one.unfinished} jobs"
        if not agreed(f"close group {one.name} of {one.queue} and cancel {jobs}?", yes=yes):
            return
        done = client.cancel_group(one.name, one.queue, grace=grace)
    print(f"{done.group.name}  {styled(done.group.state)}  {done.changed} of {done.matched} jobs cancelled")
    if done.refused:
        note(f"{done.refused} are jobs of others, which you may not change; ask their submitters or an admin")
