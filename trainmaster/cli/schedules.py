"""``schedules``: jobs that are submitted by the clock; and schedules among the documents of ``submit`` and ``apply``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    clean,
    data_of,
    hint,
    note,
    now,
    print_data,
    print_pairs,
    print_table,
    styled,
)

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.documents import Document
    from trainmaster.protocol.schedules import ScheduleView

schedules_app = typer.Typer(
    help="List schedules; show, suspend, resume, run or delete one. 'submit' and 'apply' make them."
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.schedules)]
OwnQueue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        help="Queue of the schedule, where several queues have one of its name.",
        show_default=False,
        autocompletion=completion.leaves,
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(schedules_app, name="schedules")


@schedules_app.callback(invoke_without_command=True)
def schedules(ctx: typer.Context) -> None:
    """List schedules; with a sub-command, show or change one."""
    if ctx.invoked_subcommand is None:
        show_all(ctx, None, Format.TABLE)


@schedules_app.command("list")
def show_all(ctx: typer.Context, queue: QueueOption = None, output: OutputOption = Format.TABLE) -> None:
    """List schedules, the newest first."""
    with config.connect(ctx) as client:
        found = list(client.schedules(queue))
    if output.is_data:
        print_data([{**data_of(one), "id": one.name} for one in found], output)
        return
    if not found:
        note("no schedule; 'trainmaster submit FILE' creates one")
        return
    wide = output is Format.WIDE
    columns = ["NAME", "QUEUE", "SCHEDULE", "ZONE", "NEXT DUE", "LAST DUE", "ACTIVE", "MESSAGE"]
    columns += ["POLICY", "SUBMITTED BY", "KIND"] if wide else []
    moment = now()
    print_table(columns, [_row(one, moment, wide=wide) for one in found])


def _row(one: "ScheduleView", moment: "datetime", *, wide: bool) -> list[object]:
    last = "-" if one.last_due is None else age(one.last_due, moment)
    row: list[object] = [
        one.name,
        one.queue,
        one.schedule,
        one.time_zone,
        _next(one),
        last,
        len(one.active),
        one.message,
    ]
    return row + ([one.concurrency_policy, one.submitted_by, one.object_kind] if wide else [])


def _next(one: "ScheduleView") -> str:
    return "suspended" if one.suspend else (one.next_due_local or "-")


@schedules_app.command()
def show(
    ctx: typer.Context,
    name: Name,
    queue: OwnQueue = None,
    spec: Annotated[bool, typer.Option("--spec", help="Print the document alone, as 'apply' takes it.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a schedule: its next due time, its jobs that have not ended, and why one is missing."""
    with config.connect(ctx) as client:
        one = client.schedule(name, queue)
    if spec:
        print_data(document_of(one), Format.YAML)
        return
    if output.is_data:
        print_data({**data_of(one), "id": one.name}, output)
        return
    moment = now()
    print_pairs(
        [
            ("name", one.name),
            ("queue", one.queue),
            ("schedule", f"{one.schedule} ({one.time_zone})"),
            ("policy", one.concurrency_policy),
            ("next due", _next(one)),
            ("last due", "never" if one.last_due is None else age(one.last_due, moment)),
            ("last success", "never" if one.last_succeeded is None else age(one.last_succeeded, moment)),
            ("active", " ".join(one.active) or "none"),
            ("submitted by", one.submitted_by),
            *([("message", one.message)] if one.message else []),
        ]
    )
    hint(("jobs", f"jobs --label trainmaster.dev/schedule={one.name}"))


def document_of(one: "ScheduleView") -> dict[str, object]:
    """Return the document of a schedule."""
    spec = one.spec or {}
    if one.object_kind == "Schedule":
        labels = {"labels": one.labels} if one.labels else {}
        return {"kind": "Schedule", "name": one.name, "queue": one.queue, **labels, **spec}
    api_version, _, kind = one.object_kind.rpartition(" ")
    labels = {"labels": one.labels} if one.labels else {}
    metadata = {"name": one.name, **labels, "annotations": {"trainmaster.dev/queue": one.queue}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


@schedules_app.command()
def suspend(ctx: typer.Context, name: Name, queue: OwnQueue = None) -> None:
    """Let a schedule submit no jobs until it is resumed. Jobs that it has submitted go on."""
    _set_suspended(ctx, name, queue, is_suspended=True)


@schedules_app.command()
def resume(ctx: typer.Context, name: Name, queue: OwnQueue = None) -> None:
    """Resume a schedule. Of the due times that have passed, the latest is made up for, within its starting deadline."""
    _set_suspended(ctx, name, queue, is_suspended=False)


def _set_suspended(ctx: typer.Context, name: str, queue: str | None, *, is_suspended: bool) -> None:
    with config.connect(ctx) as client:
        one = client.change_schedule(name, {"suspend": is_suspended}, queue)
    print(f"{one.name}  {_next(one)}")


@schedules_app.command("run-now")
def run_now(ctx: typer.Context, name: Name, queue: OwnQueue = None) -> None:
    """Submit a job of a schedule now, as your own, beside its due times; print the job's id."""
    from trainmaster.cli.submit import show_ids

    with config.connect(ctx) as client:
        show_ids([client.run_schedule(name, queue)])


@schedules_app.command()
def delete(
    ctx: typer.Context,
    name: Name,
    queue: OwnQueue = None,
    keep_jobs: Annotated[bool, typer.Option("--keep-jobs", help="Leave its jobs alone.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a schedule, and its jobs with it: those that have not ended are cancelled."""
    with config.connect(ctx) as client:
        one = client.schedule(name, queue)
        many = len(one.active)
        cancels = f", and cancel {'1 job' if many == 1 else f'{many} jobs'}" if many and not keep_jobs else ""
        if not agreed(f"delete schedule {name} of queue {one.queue}{cancels}?", yes=yes):
            return
        client.delete_schedule(name, one.queue, keep_jobs=keep_jobs)
    print(f"{name}  deleted")


# -- documents


def is_schedule(document: "Document") -> bool:
    """Return whether a document is a schedule: one of this system, or a CronJob of Kubernetes."""
    value = document.value
    return document.kind == ("CronJob" if isinstance(value.get("apiVersion"), str) else "Schedule")


def check_alone(schedules: "Sequence[Document]", many: int) -> None:
    """Raise UsageError for schedules beside jobs, which are submitted all or none."""
    if len(schedules) != many:
        raise UsageError(
            f"{schedules[0].place} is a schedule, and other documents are not: submit them apart, or use: trainmaster apply -f FILE"
        )


def create_all(client: "Client", documents: "Sequence[Document]", user: str | None, output: Format) -> None:
    """Create schedules, one after the other, and print them. Raises ProblemError with the place of each mistake."""
    made = []
    for document in documents:
        with in_place(document):
            one = client.create_schedule(document.value, on_behalf_of=user)
        made.append(one)
        if not output.is_data:
            print(f"{one.name}  next due {_next(one)}", flush=True)
            hint(("show", f"schedules show {one.name}"), ("delete", f"schedules delete {one.name}"))
    if output.is_data:
        print_data([{**data_of(one), "id": one.name} for one in made], output)


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """A schedule that ``apply`` creates or changes. ``before``: None for a new one."""

    document: "Document"
    name: str
    queue: str
    before: "ScheduleView | None"


def planned(client: "Client", documents: "Sequence[Document]") -> list[PlannedSchedule]:
    """Return the schedules that differ from the documents, and print what would become of them."""
    from trainmaster.protocol.errors import Code, ProblemError

    found = []
    for document in documents:
        name, queue = _place_of(document)
        before = None
        try:
            before = client.schedule(name, queue or None)
        except ProblemError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        if before is not None and _is_same(before, document):
            continue
        sign, word = (styled("+", "green"), "create") if before is None else (styled("~", "yellow"), "change")
        print(f"{sign} Schedule {clean(name)}  {word}")
        found.append(PlannedSchedule(document, name, queue, before))
    return found


def carry_out(client: "Client", planned: "Sequence[PlannedSchedule]") -> None:
    """Create or change schedules, one after the other. Raises ProblemError with the place of each mistake."""
    for one in planned:
        with in_place(one.document):
            if one.before is None:
                client.create_schedule(one.document.value)
            else:
                client.replace_schedule(one.name, one.document.value, one.before.queue)
        print(f"Schedule {clean(one.name)}  {'created' if one.before is None else 'changed'}")


def _place_of(document: "Document") -> tuple[str, str]:
    """Return the name and the queue that a document names; empty where it names none, which the dispatcher refuses."""
    from trainmaster.workload_kinds.specification import is_manifest, queue_of

    value = document.value
    if not is_manifest(value):
        return str(value.get("name") or ""), str(value.get("queue") or "")
    metadata = value.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    parts = (given.get(field) for field in ("labels", "annotations"))
    labels, annotations = (part if isinstance(part, dict) else {} for part in parts)
    named = queue_of(labels, annotations)
    queue = str(given.get("namespace") or "") if named is None else named.value
    return str(given.get("name") or ""), queue


def _is_same(before: "ScheduleView", document: "Document") -> bool:
    """Return whether a schedule is as a document has it."""
    value = document.value
    if before.object_kind == "Schedule":
        spec = {key: one for key, one in value.items() if key not in ("kind", "name", "queue", "labels")}
        return before.spec == spec and before.labels == (value.get("labels") or {}) and document.kind == "Schedule"
    metadata = value.get("metadata") or {}
    return before.spec == value.get("spec") and before.labels == (metadata.get("labels") or {})


@contextmanager
def in_place(document: "Document") -> "Iterator[None]":
    """Make a refusal name the file and document of each mistake."""
    from trainmaster.protocol.documents import placed
    from trainmaster.protocol.errors import ProblemError

    try:
        yield
    except ProblemError as error:
        mistakes = tuple(placed(one, document.place) for one in error.mistakes)
        raise ProblemError(
            error.code, error.detail, mistakes=mistakes, retry_after=error.retry_after, extra=error.extra
        ) from error
