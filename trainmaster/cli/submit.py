"""``submit``: submits the jobs of files, and shows the next commands."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config, watch
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, data_of, hint, note, print_data
from trainmaster.cli.queue_position import print_tried
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import SubmissionWarning
    from trainmaster.protocol.documents import Document

_HINTED = 3


def register(app: typer.Typer) -> None:
    app.command()(submit)


def submit(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="YAML or JSON file with jobs; - is stdin.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace @NAME@ in the files.")
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Table of parameters (.csv, YAML or JSON): submit the file's job once for each row."
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of all jobs, instead of the files' own.")] = None,
    priority_class: Annotated[
        str | None, typer.Option(help="Priority class of all jobs, instead of the files' own.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all jobs have ended; the exit code shows how.")
    ] = False,
    follow_logs: Annotated[bool, typer.Option("--follow", help="Show the job's output until it has ended.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen to the jobs; submit none.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit the jobs of files, all or none."""
    from trainmaster.cli.documents import parse_settings, read_documents

    documents = read_documents(files, parse_settings(settings or []))
    check_kinds(documents)
    sets = None
    if parameters is not None:
        from trainmaster.cli.parameters import read_table

        sets = read_table(parameters)
        if len(documents) != 1:
            raise UsageError(f"--parameters needs exactly one job, {' and '.join(files)} have {len(documents)}")
    many = len(documents) if sets is None else len(sets)
    if dry_run and (wait or follow_logs or sets is not None):
        raise UsageError("--dry-run cannot be combined with --wait, --follow or --parameters")
    if follow_logs and many > 1:
        raise UsageError(f"--follow needs exactly one job, these are {many}; use --wait")
    with config.connect(ctx) as client:
        if dry_run:
            raise typer.Exit(_try_out(client, documents, _overrides(queue, priority_class), output))
        ids = send(client, documents, _overrides(queue, priority_class), sets)
        if output.is_data:
            print_data([{"id": job} for job in ids], output)
        else:
            show_ids(ids)
        if follow_logs:
            raise typer.Exit(watch.follow_to_end(client, ids[0]))
        if wait:
            raise typer.Exit(watch.wait_all(client, ids, None))


def check_kinds(documents: "list[Document]") -> None:
    """Raise ProblemError when a document is not a job."""
    from trainmaster.protocol.errors import Code, Mistake, ProblemError

    mistakes = tuple(
        Mistake(
            path=f"{document.place}: kind",
            message=f"{document.value['kind']!r} is not a Job; for other kinds use: trainmaster apply -f FILE",
        )
        for document in documents
        if document.value.get("kind", "Job") != "Job"
    )
    if mistakes:
        raise ProblemError(Code.INVALID_SPEC, mistakes[0].message, mistakes=mistakes)


def _overrides(queue: str | None, priority_class: str | None) -> dict[str, Any]:
    fields = {"queue": queue, "priorityClass": priority_class}
    return {name: value for name, value in fields.items() if value is not None}


def send(
    client: "Client",
    documents: "list[Document]",
    overrides: dict[str, Any],
    sets: "Sequence[Mapping[str, Any]] | None" = None,
) -> list[str]:
    """Submit the jobs, and print warnings; return their ids. Raises ProblemError with the place of each mistake."""
    with _told_by_place(documents):
        if sets is not None:
            ids = client.submit_parameters(documents[0].value | overrides, sets)
        else:
            ids = client.submit([document.value | overrides for document in documents])
    _print_warnings(ids.warnings, documents)
    return list(ids)


def _print_warnings(warnings: "Sequence[SubmissionWarning]", documents: "list[Document]") -> None:
    from trainmaster.cli.documents import in_place
    from trainmaster.protocol.errors import Mistake

    for one in warnings:
        found = in_place(Mistake(path=one.path, message=one.message), documents)
        note(f"warning: {found.path}: {found.message}")


@contextmanager
def _told_by_place(documents: "list[Document]") -> "Iterator[None]":
    """Make a refusal name mistakes by file and document."""
    from trainmaster.cli.documents import with_places
    from trainmaster.protocol.errors import ProblemError

    try:
        yield
    except ProblemError as error:
        raise with_places(error, documents) from error


def _try_out(client: "Client", documents: "list[Document]", overrides: dict[str, Any], output: Format) -> Exit:
    """Print what would happen to each job; return the exit code, which shows whether all could run."""
    with _told_by_place(documents):
        tried = client.dry_run([document.value | overrides for document in documents])
    _print_warnings(tried.warnings, documents)
    if output.is_data:
        print_data([data_of(one) for one in tried], output)
    else:
        for one in tried:
            print_tried(one, wide=output is Format.WIDE)
        note("nothing was submitted")
    hopeless = any(one.trial is not None and not one.trial.could_run for one in tried)
    return Exit.BAD_REQUEST if hopeless else Exit.SUCCEEDED


def show_ids(ids: list[str]) -> None:
    """Print the ids on stdout, one a line; on stderr, the next commands."""
    if len(ids) > _HINTED:
        for job in ids:
            print(job)
        note(f"{len(ids)} jobs; these commands work for each of them:")
        next_commands(ids[0])
        return
    for job in ids:
        print(job, flush=True)
        next_commands(job)


def next_commands(job: str) -> None:
    hint(
        ("why", f"why {job}"),
        ("watch", f"watch {job}"),
        ("logs", f"logs -f {job}"),
        ("cancel", f"cancel {job}"),
    )
