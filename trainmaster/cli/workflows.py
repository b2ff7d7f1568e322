"""``workflows``: jobs in steps; and workflows among the documents of ``submit``."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.errors import UsageError
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
    took,
)
from trainmaster.cli.refresh import WatchOption, repeated
from trainmaster.cli.schedules import in_place
from trainmaster.cli.watch import timeout_of
from trainmaster.cli.workflow_tree import jobs_of, print_tree
from trainmaster.protocol.states import Exit, StepState, WorkflowState

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.documents import Document
    from trainmaster.protocol.workflows import WorkflowView

workflows_app = typer.Typer(help="List workflows; show, wait for, cancel or resume one. 'submit' makes them.")

WorkflowArgument = Annotated[str, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.workflows)]
StateOption = Annotated[
    list[WorkflowState] | None,
    typer.Option("--state", help="Only workflows in this state; may be repeated.", show_default=False),
]
_CODES = {
    WorkflowState.SUCCEEDED: Exit.SUCCEEDED,
    WorkflowState.FAILED: Exit.JOB_FAILED,
    WorkflowState.CANCELLED: Exit.JOB_CANCELLED,
    WorkflowState.RUNNING: Exit.NOT_FINISHED,
}


def register(app: typer.Typer) -> None:
    app.add_typer(workflows_app, name="workflows")


@workflows_app.callback(invoke_without_command=True)
def workflows(ctx: typer.Context) -> None:
    """List workflows; with a sub-command, show or change one."""
    if ctx.invoked_subcommand is None:
        show_all(ctx)


@workflows_app.command("list")
def show_all(
    ctx: typer.Context,
    queue: QueueOption = None,
    state: StateOption = None,
    watch: WatchOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List workflows, the newest first."""
    with config.connect(ctx) as client:
        wanted = [one.value for one in state or ()]
        repeated(lambda: _list(client, queue, wanted, output), watch=watch)


def _list(client: "Client", queue: str | None, states: list[str], output: Format) -> None:
    found = list(client.workflows(queue, states))
    if output.is_data:
        print_data([data_of(one) for one in found], output)
        return
    if not found:
        note("no workflow; 'trainmaster submit FILE' submits one")
        return
    columns = ["ID", "QUEUE", "STATE", "STEPS", "SUBMITTED", "TOOK"]
    columns += ["SUBMITTED BY", "ATTEMPT"] if output is Format.WIDE else []
    moment = now()
    rows: list[list[object]] = []
    for one in found:
        row: list[object] = [
            one.id,
            one.queue,
            _state(one),
            _done(one),
            age(one.submitted_at, moment),
            took(one.submitted_at, one.ended_at or moment),
        ]
        rows.append(row + ([one.submitted_by, one.attempt] if output is Format.WIDE else []))
    print_table(columns, rows)


def _state(one: "WorkflowView") -> str:
    return "cancelling" if one.is_cancelling else one.state.value


def _done(one: "WorkflowView") -> str:
    return f"{sum(step.state.is_terminal for step in one.steps)}/{len(one.steps)}"


@workflows_app.command()
def show(
    ctx: typer.Context,
    workflow: WorkflowArgument,
    spec: Annotated[bool, typer.Option("--spec", help="Print the document alone, as 'submit' takes it.")] = False,
    watch: WatchOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a workflow: its steps as a tree, where their jobs are or what they wait for, and the last output of one that has failed."""
    with config.connect(ctx) as client:
        if spec:
            print_data({"kind": "Workflow", **(client.workflow(workflow).spec or {})}, Format.YAML)
            return
        repeated(lambda: _show(client, workflow, output), watch=watch)


def _show(client: "Client", workflow: str, output: Format) -> None:
    one = client.workflow(workflow)
    if output.is_data:
        print_data(data_of(one), output)
        return
    moment = now()
    attempt = [("attempt", str(one.attempt))] if one.attempt > 1 else []
    print_pairs(
        [
            ("id", one.id),
            ("queue", one.queue),
            ("state", _state(one)),
            ("submitted", f"{age(one.submitted_at, moment)} by {one.submitted_by}"),
            ("took", took(one.submitted_at, one.ended_at or moment)),
            *attempt,
        ]
    )
    print()
    print_tree(client, one)
    failed = next((job for step in one.steps if step.state is StepState.FAILED for job in step.ids), None)
    if failed is not None:
        following = "resume" if one.state.is_terminal else "cancel"
        hint(("why", f"why {failed}"), ("logs", f"logs {failed}"), (following, f"workflows {following} {one.id}"))
    elif not one.state.is_terminal:
        hint(("wait", f"workflows wait {one.id}"), ("cancel", f"workflows cancel {one.id}"))


@workflows_app.command()
def wait(
    ctx: typer.Context,
    workflow: WorkflowArgument,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Wait no longer than this, such as 10m.")] = None,
) -> None:
    """Wait until a workflow has ended, and print its steps as they change; the exit code shows how it ended."""
    with config.connect(ctx) as client:
        raise typer.Exit(wait_for(client, workflow, None if timeout is None else timeout_of(timeout)))


def wait_for(client: "Client", workflow: str, seconds: float | None = None) -> Exit:
    """Print each change of a workflow's steps until it has ended; return the exit code."""
    before: dict[str, str] = {}
    last = None
    for one in client.watch_workflow(workflow, seconds):
        last = one
        for step in one.steps:
            words = step.state.value if step.total in (None, 1) else f"{step.state.value} {jobs_of(step)}"
            if before.get(step.name, StepState.WAITING.value) != words:
                before[step.name] = words
                reason = f"  {step.message}" if step.message and step.state.is_terminal else ""
                print(f"{step.name}  {words}{reason}", flush=True)
    if last is None:
        return Exit.NOT_FINISHED
    if last.state.is_terminal:
        print(f"{last.id}  {last.state.value} after {took(last.submitted_at, last.ended_at)}", flush=True)
    else:
        note(f"{last.id} has not ended: {_done(last)} steps have")
    return _CODES[last.state]


@workflows_app.command()
def cancel(
    ctx: typer.Context,
    workflow: WorkflowArgument,
    no_cleanup: Annotated[bool, typer.Option("--no-cleanup", help="Run no cleanup steps either.")] = False,
    yes: Yes = False,
) -> None:
    """Cancel a workflow: its jobs are cancelled, steps that wait are skipped, and then its cleanup steps run."""
    with config.connect(ctx) as client:
        one = client.workflow(workflow)
        many = sum(
            count
            for step in one.steps
            for state, count in step.jobs.items()
            if state not in ("succeeded", "failed", "cancelled")
        )
        what = "" if not many else f", and with it {'1 job' if many == 1 else f'{many} jobs'}"
        if not agreed(f"cancel workflow {one.id}{what}?", yes=yes):
            return
        one = client.cancel_workflow(workflow, cleanup=not no_cleanup)
    print(f"{one.id}  {_state(one)}")


@workflows_app.command()
def resume(ctx: typer.Context, workflow: WorkflowArgument) -> None:
    """Let a workflow that failed or was cancelled go on: jobs that have not succeeded are tried again, and the steps after them."""
    with config.connect(ctx) as client:
        one = client.resume_workflow(workflow)
    print(f"{one.id}  {_state(one)}")
    hint(("wait", f"workflows wait {one.id}"), ("show", f"workflows show {one.id}"))


# -- documents


def is_workflow(document: "Document") -> bool:
    """Return whether a document is a workflow of this system."""
    return document.kind == "Workflow" and not isinstance(document.value.get("apiVersion"), str)


def check_alone(found: "Sequence[Document]", many: int) -> None:
    """Raise UsageError for workflows beside other documents, which are submitted all or none."""
    if len(found) != many:
        raise UsageError(f"{found[0].place} is a workflow, and other documents are not: submit them apart")


def submit_all(
    client: "Client", documents: "Sequence[Document]", user: str | None, output: Format, *, waits: bool
) -> Exit:
    """Submit workflows, one after the other, print their ids, and wait for them as wanted; return the exit code."""
    made = []
    for document in documents:
        with in_place(document):
            one = client.submit_workflow(document.value, on_behalf_of=user)
        made.append(one)
        for warning in one.warnings:
            note(f"warning: {document.place}: {warning.get('path')}: {warning.get('message')}")
        if not output.is_data:
            print(one.id, flush=True)
            hint(("show", f"workflows show {one.id}"), ("wait", f"workflows wait {one.id}"))
    if output.is_data:
        print_data([{"id": one.id} for one in made], output)
        sys.stdout.flush()
    if not waits:
        return Exit.SUCCEEDED
    with redirect_stdout(sys.stderr if output.is_data else sys.stdout):
        return max((wait_for(client, one.id) for one in made), default=Exit.SUCCEEDED)
