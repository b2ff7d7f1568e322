"""``submit``: submits the jobs of files, and shows the next commands."""

import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config, overrides, schedules, watch, workflows
from trainmaster.cli import files as files_of_jobs
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

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until all jobs have ended; the exit code shows how.")]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Show the job's output until it has ended.")]
OnBehalfOfOption = Annotated[
    str | None,
    typer.Option(
        "--on-behalf-of",
        metavar="USER",
        help="User whose jobs these are; your key has to allow it.",
        show_default=False,
    ),
]
CloseGroupOption = Annotated[
    bool, typer.Option("--close-group", help="Close the groups of the jobs: these are the last jobs in them.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would happen to the jobs; submit none.")]


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
    name: overrides.JobName = None,
    queue: overrides.Queue = None,
    priority: overrides.Priority = None,
    priority_class: overrides.PriorityClass = None,
    label: overrides.LabelPairs = None,
    env: overrides.EnvPairs = None,
    time_limit: overrides.TimeLimit = None,
    start_after: overrides.StartAfter = None,
    deadline: overrides.DeadlineOption = None,
    after: overrides.After = None,
    after_group: overrides.AfterGroup = None,
    group: overrides.Group = None,
    bring: files_of_jobs.FilesOption = None,
    take: files_of_jobs.InputOption = None,
    artifact: files_of_jobs.ArtifactOption = None,
    wait: WaitOption = False,
    follow_logs: FollowOption = False,
    dry_run: DryRunOption = False,
    on_behalf_of: OnBehalfOfOption = None,
    close_group: CloseGroupOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit the jobs of files, all or none, or their workflows, or create their schedules. Options about jobs replace what files say.

    The output of 'job ID -o yaml' is taken as well: its specification is submitted.
    """
    from trainmaster.cli.documents import parse_settings, read_documents

    changes = overrides.overrides(
        name=name,
        queue=queue,
        priority=priority,
        priority_class=priority_class,
        labels=label,
        env=env,
        time_limit=time_limit,
        start_after=start_after,
        deadline=deadline,
        after=after,
        after_group=after_group,
        group=group,
    )
    given = read_documents(files, parse_settings(settings or []))
    timed = [document for document in given if schedules.is_schedule(document)]
    if timed:
        schedules.check_alone(timed, len(given))
        if (
            changes.change_anything
            or parameters is not None
            or wait
            or follow_logs
            or dry_run
            or close_group
            or bring
            or take
            or artifact
        ):
            raise UsageError(
                "options about jobs do not go with schedules; write it into the file, or give --on-behalf-of alone"
            )
        with config.connect(ctx) as client:
            schedules.create_all(client, timed, on_behalf_of, output)
        return
    in_steps = [document for document in given if workflows.is_workflow(document)]
    if in_steps:
        workflows.check_alone(in_steps, len(given))
        if (
            changes.change_anything
            or parameters is not None
            or follow_logs
            or dry_run
            or close_group
            or bring
            or take
            or artifact
        ):
            raise UsageError(
                "options about jobs do not go with workflows; write it into the file, or give --wait and --on-behalf-of alone"
            )
        with config.connect(ctx) as client:
            raise typer.Exit(workflows.submit_all(client, in_steps, on_behalf_of, output, waits=wait))
    documents = [specification_of(document) for document in given]
    check_kinds(documents)
    sets = None
    if parameters is not None:
        from trainmaster.cli.parameters import read_table

        sets = read_table(parameters)
        if len(documents) != 1:
            raise UsageError(f"--parameters needs exactly one job, {' and '.join(files)} have {len(documents)}")
    if changes.change_anything or bring or take or artifact:
        written = [as_specification(document) for document in documents]
        documents = [
            replace(
                document,
                value=files_of_jobs.with_inputs(
                    files_of_jobs.with_artifacts(changes.applied(document.value), artifact), take
                ),
            )
            for document in written
        ]
    stay = AfterSubmit(wait=wait, follow=follow_logs, dry_run=dry_run, user=on_behalf_of, close_group=close_group)
    stay.check(len(documents) if sets is None else len(sets))
    with config.connect(ctx) as client:
        documents = [
            replace(document, value=files_of_jobs.with_files(client, document.value, bring)) for document in documents
        ]
        raise typer.Exit(submit_all(client, documents, sets, stay, output, parameters or ""))


@dataclass(frozen=True, slots=True)
class AfterSubmit:
    """Options on what to do after a submission, on whose behalf it is, and whether its groups get no more jobs."""

    wait: bool = False
    follow: bool = False
    dry_run: bool = False
    user: str | None = None
    close_group: bool = False

    def check(self, many: int) -> None:
        """Raise UsageError for options that contradict each other, or do not fit the number of jobs."""
        if self.dry_run and (self.wait or self.follow):
            raise UsageError("--dry-run cannot be combined with --wait or --follow")
        if self.follow and many > 1:
            raise UsageError(f"--follow needs exactly one job, these are {many}; use --wait")


def submit_all(
    client: "Client",
    documents: "list[Document]",
    sets: "Sequence[Mapping[str, Any]] | None",
    stay: AfterSubmit,
    output: Format,
    table: str = "",
) -> int:
    """Submit, print the ids and stay with the jobs as wanted; return the exit code. ``table``: the file of the ``sets``."""
    if stay.dry_run:
        return _try_out(client, documents, sets, output, table, stay.user)
    ids = send(client, documents, sets, table, stay.user, close_group=stay.close_group)
    if not output.is_data:
        show_ids(ids)
        return _stay(client, ids, stay)
    print_data([{"id": job} for job in ids], output)
    sys.stdout.flush()
    with redirect_stdout(sys.stderr):  # stdout has the data and nothing else
        return _stay(client, ids, stay)


def _stay(client: "Client", ids: list[str], stay: AfterSubmit) -> int:
    if stay.follow:
        return watch.follow_to_end(client, ids[0])
    return watch.wait_all(client, ids, None) if stay.wait else Exit.SUCCEEDED


def specification_of(document: "Document") -> "Document":
    """Return the document of a job's specification, also of one as the API shows it. Raises UsageError for a line of a list."""
    value = document.value
    if "shownState" not in value or "roles" in value:
        return document
    spec = value.get("spec")
    if not isinstance(spec, dict):
        raise UsageError(
            f"{document.place}: a list of jobs has no specifications; use: trainmaster job {value.get('id', 'ID')} --spec"
        )
    return replace(document, value=spec)


def as_specification(document: "Document") -> "Document":
    """Return the document of a job's specification; that of a manifest of another API is translated. Raises ProblemError."""
    from trainmaster.protocol.errors import Code, Mistake, ProblemError
    from trainmaster.workload_kinds.specification import ManifestError, is_manifest, translated

    if not is_manifest(document.value):
        return document
    try:
        return replace(document, value=translated(document.value).spec)
    except ManifestError as error:
        mistakes = tuple(Mistake(path=f"{document.place}: {one.path}", message=one.message) for one in error.mistakes)
        raise ProblemError(Code.INVALID_SPEC, mistakes[0].message, mistakes=mistakes) from error


def _not_a_job(kind: object) -> str:
    from trainmaster.protocol.resource_kinds import KINDS
    from trainmaster.protocol.suggestions import did_you_mean

    hint = did_you_mean(str(kind), ["Job", *KINDS]) if str(kind) not in KINDS else ""
    return f"{kind!r} is not a Job" + (hint or "; for other kinds use: trainmaster apply -f FILE")


def check_kinds(documents: "list[Document]") -> None:
    """Raise ProblemError when a document is not a job."""
    from trainmaster.protocol.errors import Code, Mistake, ProblemError

    mistakes = tuple(
        Mistake(
            path=f"{document.place}: kind",
            message=_not_a_job(document.value["kind"]),
        )
        for document in documents
        if document.value.get("kind", "Job") not in ("Job", "Session")
        and not isinstance(document.value.get("apiVersion"), str)
    )
    if mistakes:
        raise ProblemError(Code.INVALID_SPEC, mistakes[0].message, mistakes=mistakes)


def send(
    client: "Client",
    documents: "list[Document]",
    sets: "Sequence[Mapping[str, Any]] | None" = None,
    table: str = "",
    user: str | None = None,
    *,
    close_group: bool = False,
) -> list[str]:
    """Submit the jobs, and print warnings; return their ids. Raises ProblemError with the place of each mistake."""
    with _told_by_place(documents, table):
        if sets is not None:
            ids = client.submit_parameters(documents[0].value, sets, on_behalf_of=user, close_group=close_group)
        else:
            ids = client.submit([document.value for document in documents], on_behalf_of=user, close_group=close_group)
    _print_warnings(ids.warnings, documents)
    return list(ids)


def _print_warnings(warnings: "Sequence[SubmissionWarning]", documents: "list[Document]") -> None:
    from trainmaster.cli.documents import in_place
    from trainmaster.protocol.errors import Mistake

    for one in warnings:
        found = in_place(Mistake(path=one.path, message=one.message), documents)
        note(f"warning: {found.path}: {found.message}")


@contextmanager
def _told_by_place(documents: "list[Document]", table: str) -> "Iterator[None]":
    """Make a refusal name mistakes by file and document, and those of parameters by the row of their table."""
    from trainmaster.cli.documents import with_places
    from trainmaster.protocol.errors import ProblemError

    try:
        yield
    except ProblemError as error:
        raise with_places(error, documents, table) from error


def _try_out(
    client: "Client",
    documents: "list[Document]",
    sets: "Sequence[Mapping[str, Any]] | None",
    output: Format,
    table: str,
    user: str | None,
) -> Exit:
    """Print what would happen to each job; return the exit code, which shows whether all could run."""
    with _told_by_place(documents, table):
        if sets is not None:
            tried = client.dry_run_parameters(documents[0].value, sets, on_behalf_of=user)
        else:
            tried = client.dry_run([document.value for document in documents], on_behalf_of=user)
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
