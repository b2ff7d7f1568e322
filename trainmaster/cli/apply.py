"""``apply`` and ``diff``: the changes that files declare, shown before they are made, in one transaction."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import agreed
from trainmaster.cli.effects import show_effect, show_warnings
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import clean, note, styled
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.declarations import ApplyAnswer
    from trainmaster.protocol.documents import Document
    from trainmaster.protocol.errors import ProblemError

_SUFFIXES = (".yaml", ".yml", ".json")
_DOCUMENT = re.compile(r"documents\[(\d+)\]")
_KIND = re.compile(r"documents\[(\d+)\]: kind")

Files = Annotated[
    list[str],
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="YAML or JSON file, or a folder with all such files in and below it; - is stdin. May be repeated.",
    ),
]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace @NAME@ in the files.")]
Owner = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name that owns the fields which the files set; by default that of the API key."),
]
Prune = Annotated[
    bool,
    typer.Option("--prune", help="Remove objects applied before by the same --owner that the files no longer have."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Set fields that a document leaves out back to their defaults.")
]
Force = Annotated[bool, typer.Option("--force", help="Take over fields that others own.")]


def register(app: typer.Typer) -> None:
    app.command()(apply)
    app.command()(diff)


def apply(
    ctx: typer.Context,
    files: Files,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the changes without making them.")] = False,
    prune: Prune = False,
    owner: Owner = None,
    replace: Replace = False,
    force: Force = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Create or change the objects that files declare, all or none, and submit their jobs. Shows the changes and asks first.

    A file sets the fields that it has. Fields that it leaves out stay as they are, unless the same owner had set them before.
    """
    from trainmaster.cli import schedules, submit

    declared = _read(files, settings, _Terms(owner, prune=prune, replace=replace, force=force))
    with config.connect(ctx) as client:
        shown = declared.send(client, dry_run=True)
        changes = declared.show(shown)
        timed = schedules.planned(client, declared.schedules)
        nothing = not changes and not declared.jobs and not timed
        if nothing:
            print("nothing to change: the dispatcher has everything as the files declare it")
        if dry_run:
            _warn(shown)
            return
        if not nothing and not agreed(_question(shown, len(declared.jobs), len(timed)), yes=yes):
            return
        # Also where nothing changes: whose fields they are may change.
        done = declared.send(client, dry_run=False)
        for one in () if done is None else done.objects:
            if one.outcome != "unchanged":
                print(f"{one.kind} {clean(one.name)}  {one.outcome}")
        _warn(done)
        schedules.carry_out(client, timed)
        if declared.jobs:
            submit.show_ids(submit.send(client, declared.jobs))


def diff(
    ctx: typer.Context,
    files: Files,
    settings: Settings = None,
    prune: Prune = False,
    owner: Owner = None,
    replace: Replace = False,
    force: Force = False,
) -> None:
    """Show what apply would change, and change nothing. Exits with 17 if anything would change, and with 0 if nothing would."""
    from trainmaster.cli import schedules

    declared = _read(files, settings, _Terms(owner, prune=prune, replace=replace, force=force))
    with config.connect(ctx) as client:
        shown = declared.send(client, dry_run=True)
        timed = schedules.planned(client, declared.schedules)
    for one in () if shown is None else shown.objects:
        if one.outcome != "unchanged":
            show_effect(one)
    if declared.jobs:
        note(f"not compared, as apply would submit them again: {len(declared.jobs)} jobs")
    _warn(shown)
    if timed or (shown is not None and any(one.outcome != "unchanged" for one in shown.objects)):
        raise typer.Exit(Exit.DIFFERENT)
    if shown is not None:
        count = len(shown.objects)
        note("no difference in 1 object" if count == 1 else f"no difference in {count} objects")


@dataclass(frozen=True, slots=True)
class _Terms:
    owner: str | None
    prune: bool
    replace: bool
    force: bool


@dataclass(frozen=True, slots=True)
class _Declared:
    """The documents and jobs of files, and the terms on which they are applied. ``refusal``: the mistakes of the jobs, which the
    dispatcher does not see before.
    """

    documents: "list[Document]"
    jobs: "list[Document]"
    schedules: "list[Document]"
    terms: _Terms
    refusal: "ProblemError | None"

    def send(self, client: "Client", *, dry_run: bool) -> "ApplyAnswer | None":
        """Apply the documents, if there are any. Raises ProblemError with each mistake of all documents."""
        from trainmaster.protocol.errors import ProblemError

        terms = self.terms
        shown = None
        try:
            if self.documents:
                shown = client.apply(
                    [document.value for document in self.documents],
                    applier=terms.owner,
                    dry_run=dry_run,
                    replace=terms.replace,
                    force=terms.force,
                    prune=terms.owner if terms.prune else None,
                )
        except ProblemError as error:
            raise _with_places(error, self.documents, self.refusal) from error
        if self.refusal is not None:
            raise self.refusal
        return shown

    def show(self, shown: "ApplyAnswer | None") -> bool:
        """Print what would happen; return whether any object would change."""
        objects = () if shown is None else shown.objects
        for one in objects:
            show_effect(one)
        from trainmaster.cli.submit import as_specification

        for job in self.jobs:
            name = as_specification(job).value.get("name")
            print(f"{styled('+', 'green')} Job {clean(str(name))}  submit")
        return any(one.outcome != "unchanged" for one in objects)


def _read(files: Sequence[str], settings: Sequence[str] | None, terms: _Terms) -> _Declared:
    from trainmaster.cli.documents import parse_settings, read_documents
    from trainmaster.cli.schedules import is_schedule
    from trainmaster.cli.submit import as_specification
    from trainmaster.protocol.documents import read_declared
    from trainmaster.protocol.errors import ProblemError

    if terms.prune and terms.owner is None:
        raise UsageError("--prune needs --owner NAME: it removes the objects that were applied under that name before")
    documents = read_documents(list(_files_of(files)), parse_settings(settings or []))
    timed = [document for document in documents if is_schedule(document)]
    jobs = [document for document in documents if document not in timed and _is_job(document)]
    declared = [document for document in documents if document not in timed and not _is_job(document)]
    if terms.prune and not declared:
        raise UsageError(
            "--prune needs files that declare at least one object; to remove one: trainmaster delete KIND NAME"
        )
    refusal = None
    try:
        read_declared(map(as_specification, jobs))
    except ProblemError as error:
        refusal = error
    return _Declared(declared, jobs, timed, terms, refusal)


def _is_job(document: "Document") -> bool:
    from trainmaster.workload_kinds.specification import is_manifest

    return document.kind in ("Job", "Session") or is_manifest(document.value)


def _files_of(paths: Sequence[str]) -> Iterator[str]:
    """Yield files, and for a folder those in and below it in the order of their names; hidden ones are left out. Raises UsageError."""
    for text in paths:
        path = Path(text)
        if text == "-" or not path.is_dir():
            yield text
            continue
        found = sorted(
            file
            for file in path.rglob("*")
            if file.suffix in _SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not found:
            raise UsageError(f"the folder {text} has no file that ends in {', '.join(_SUFFIXES)}")
        yield from map(str, found)


def _with_places(error: "ProblemError", documents: "Sequence[Document]", more: "ProblemError | None") -> "ProblemError":
    """Return a refusal with each mistake at its file and document instead of a number, and with the mistakes of jobs."""
    from trainmaster.protocol.documents import no_kind
    from trainmaster.protocol.errors import Mistake, ProblemError
    from trainmaster.protocol.resource_kinds import KINDS

    def message(one: Mistake) -> str:
        match = _KIND.fullmatch(one.path)
        number = len(documents) if match is None else int(match[1])
        if number < len(documents) and documents[number].kind not in KINDS:
            return no_kind(documents[number])  # the dispatcher does not name Job, which this command takes, too
        return _DOCUMENT.sub(place, one.message)

    def place(match: re.Match[str]) -> str:
        number = int(match[1])
        return documents[number].place if number < len(documents) else match[0]

    mistakes = [Mistake(path=_DOCUMENT.sub(place, one.path), message=message(one)) for one in error.mistakes]
    # Without it the detail would name the kinds once more, as the dispatcher does.
    names_kinds = any(_KIND.fullmatch(one.path) for one in error.mistakes)
    is_first = bool(mistakes) and (names_kinds or error.detail == error.mistakes[0].message)
    mistakes += more.mistakes if more is not None else ()
    return ProblemError(
        error.code,
        mistakes[0].message if is_first else _DOCUMENT.sub(place, error.detail),
        mistakes=tuple(mistakes),
        retry_after=error.retry_after,
        extra=error.extra,
    )


def _question(shown: "ApplyAnswer | None", jobs: int, schedules: int) -> str:
    outcomes = [] if shown is None else [one.outcome for one in shown.objects]
    changes = schedules + sum(outcome in ("created", "changed") for outcome in outcomes)
    removals = outcomes.count("removed")  # type: ignore[arg-type] # an enum of texts
    parts = [f"make {changes} change{'s' if changes > 1 else ''}"] if changes else []
    parts += [f"remove {removals} object{'s' if removals > 1 else ''}"] if removals else []
    parts += [f"submit {jobs} job{'s' if jobs > 1 else ''}"] if jobs else []
    return f"{', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}?"


def _warn(shown: "ApplyAnswer | None") -> None:
    if shown is not None:
        show_warnings((one.kind, one.name, one.message) for one in shown.warnings)
