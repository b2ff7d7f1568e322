"""``cancel``, ``suspend``, ``resume``, ``retry`` and ``change``: one job, several, or all that match a filter."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import completion, config, errors
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.errors import UsageError
from trainmaster.cli.filters import GroupOption, LabelOption, NameOption, QueueOption, StateOption
from trainmaster.cli.output import note, styled
from trainmaster.cli.overrides import pairs_of
from trainmaster.cli.time_arguments import seconds_of

if TYPE_CHECKING:
    from trainmaster.client.calls import Action
    from trainmaster.client.http import Client
    from trainmaster.client.values import JobFilter
    from trainmaster.protocol.answers import BulkAnswer

_ALIVE = ["held", "queued", "dispatched", "running", "suspending"]
_STATES = {
    "cancel": _ALIVE,
    "suspend": ["held", "queued", "dispatched", "running"],
    "resume": ["held"],
    "retry": ["failed", "cancelled"],
    "change": ["queued", "held"],
}
"""States in which an action has an effect: the default states of a filter."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)]
AllOption = Annotated[bool, typer.Option("--all", help="All jobs that you may access.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show how many jobs match the filter.")]


def register(app: typer.Typer) -> None:
    app.command("cancel", help="Cancel jobs; running ones are stopped.")(cancel)
    app.command("suspend", help="Hold jobs. Running ones are stopped, and start anew when resumed.")(
        _command("suspend")
    )
    app.command("resume", help="Release held jobs.")(_command("resume"))
    app.command("retry", help="Run failed or cancelled jobs once more.")(_command("retry"))
    app.command("change", help="Change the priority or the priority class of waiting jobs.")(change)


def cancel(
    ctx: typer.Context,
    ids: Ids = None,
    queue: QueueOption = None,
    state: StateOption = None,
    name: NameOption = None,
    label: LabelOption = None,
    group: GroupOption = None,
    everything: AllOption = False,
    grace: Annotated[str | None, typer.Option(help="The most time that members get to end, such as 5s.")] = None,
    elements: Annotated[
        str | None, typer.Option(help="Only these elements of an array, such as 0-99,105; the others go on.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    if grace is not None:
        seconds_of(grace, "--grace")
    if elements is not None:
        _cancel_elements(ctx, ids or [], elements)
        return
    wanted = _wanted("cancel", ids, queue, state, name, label, group, everything, dry_run)
    with config.connect(ctx) as client:
        if wanted is None:
            raise typer.Exit(_each(ids or [], lambda job: _act(client, job, "cancel", grace)))
        bulk = lambda dry: client.bulk("cancel", wanted, dry_run=dry, grace=grace)  # noqa: E731
        _bulk("cancel", wanted, bulk, dry_run=dry_run, yes=yes)


def _cancel_elements(ctx: typer.Context, ids: Sequence[str], elements: str) -> None:
    if len(ids) != 1:
        raise UsageError("--elements needs the id of one array")
    with config.connect(ctx) as client:
        done = client.cancel_elements(ids[0], elements)
    print(f"{done.cancelled} elements of {done.job} are cancelled")


def _command(action: "Action") -> Callable[..., None]:
    def command(
        ctx: typer.Context,
        ids: Ids = None,
        queue: QueueOption = None,
        state: StateOption = None,
        name: NameOption = None,
        label: LabelOption = None,
        group: GroupOption = None,
        everything: AllOption = False,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> None:
        wanted = _wanted(action, ids, queue, state, name, label, group, everything, dry_run)
        with config.connect(ctx) as client:
            if wanted is None:
                raise typer.Exit(_each(ids or [], lambda job: _act(client, job, action)))
            _bulk(action, wanted, lambda dry: client.bulk(action, wanted, dry_run=dry), dry_run=dry_run, yes=yes)

    return command


def change(
    ctx: typer.Context,
    ids: Ids = None,
    priority: Annotated[
        int | None, typer.Option(min=-1000, max=1000, help="New priority: the order inside the priority class.")
    ] = None,
    priority_class: Annotated[
        str | None, typer.Option(help="New priority class.", autocompletion=completion.classes)
    ] = None,
    queue: QueueOption = None,
    state: StateOption = None,
    name: NameOption = None,
    label: LabelOption = None,
    group: GroupOption = None,
    everything: AllOption = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    if priority is None and priority_class is None:
        raise UsageError("nothing to change: give --priority or --priority-class")
    fields: dict[str, Any] = {"priority": priority, "priority_class": priority_class}
    wanted = _wanted("change", ids, queue, state, name, label, group, everything, dry_run)

    def change_one(client: "Client", job: str) -> None:
        item = client.change(job, **fields)
        print(f"{item.id}  priority {item.priority} in class {item.priority_class}")

    with config.connect(ctx) as client:
        if wanted is None:
            raise typer.Exit(_each(ids or [], lambda job: change_one(client, job)))
        bulk = lambda dry: client.bulk_change(wanted, **fields, dry_run=dry)  # noqa: E731
        _bulk("change", wanted, bulk, dry_run=dry_run, yes=yes)


def _wanted(
    action: str,
    ids: list[str] | None,
    queue: str | None,
    state: list[str] | None,
    name: str | None,
    label: list[str] | None,
    group: str | None,
    everything: bool,
    dry_run: bool,
) -> "JobFilter | None":
    """Return the given filter, or None when ids were given. Raises UsageError."""
    filtered = bool(queue or state or name or label or group or everything)
    if ids and filtered:
        raise UsageError(
            f"give ids or a filter, not both: {' '.join(ids)} and --queue, --state, --name, --label, --group or --all"
        )
    if ids and dry_run:
        raise UsageError("--dry-run counts the jobs that match a filter; give a filter instead of ids")
    if not ids and not filtered:
        raise UsageError(
            f"which jobs? trainmaster {action} ID..., or a filter: --queue, --state, --name, --label, --group, --all"
        )
    if not filtered:
        return None
    from trainmaster.client.values import JobFilter

    states = tuple(state or _STATES[action])
    return JobFilter(queue, states, name, None, pairs_of(label, "--label"), group=group)


def _each(ids: list[str], do: Callable[[str], None]) -> int:
    """Apply the action to each job; a failure does not stop the others. Returns the worst exit code."""
    from trainmaster.protocol.errors import ProblemError

    worst = 0
    for job in ids:
        try:
            do(job)
        except ProblemError as error:
            worst = max(worst, errors.report(error))
    return worst


def _act(client: "Client", job: str, action: "Action", grace: str | None = None) -> None:
    done = client.act(job, action, grace=grace)
    print(f"{done.id}  {styled(done.state)}{'' if done.changed else ' (unchanged)'}")


def _bulk(action: str, wanted: "JobFilter", do: "Callable[[bool], BulkAnswer]", *, dry_run: bool, yes: bool) -> None:
    tried = do(True)
    count = tried.matched - tried.refused
    _note_refused(tried.refused)
    jobs = "1 job" if count == 1 else f"{count} jobs"
    if dry_run or count == 0:
        print(f"{jobs} to {action} ({_filter_words(wanted)})")
        return
    if not agreed(f"{action} {jobs} ({_filter_words(wanted)})?", yes=yes):
        return
    done = do(False)
    print(f"{action}: {done.changed} of {done.matched} jobs")
    if done.refused != tried.refused:
        _note_refused(done.refused)
    if (rest := done.matched - done.refused - done.changed) > 0:
        note(f"{rest} were no longer in a state that allows it")


def _note_refused(count: int) -> None:
    if count:
        jobs = "1 job was" if count == 1 else f"{count} jobs were"
        note(
            f"{jobs} left out: others submitted them, and their queue lets users change only their own jobs (jobActions: own)"
        )


def _filter_words(wanted: "JobFilter") -> str:
    return ", ".join(
        f"{name} {'|'.join(value) if isinstance(value, list) else _pairs(value)}"
        for name, value in wanted.to_wire().items()
    )


def _pairs(value: object) -> str:
    return ",".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
