"""Files of jobs: options of ``submit`` and ``run`` that bring files; ``artifacts``, which shows and fetches what jobs leave."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, age, data_of, note, now, print_data, print_table
from trainmaster.cli.overrides import pairs_of

if TYPE_CHECKING:
    from trainmaster.client.http import Client

FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--files",
        metavar="DIR[:PATH]",
        help="Upload a folder or file; members have it in PATH of the folder where their commands start. May be repeated.",
        show_default=False,
    ),
]
ArtifactOption = Annotated[
    list[str] | None,
    typer.Option(
        "--artifact",
        metavar="NAME=PATH",
        help="File or folder that the first member leaves, to be stored under this name. May be repeated.",
        show_default=False,
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="JOB/NAME[:PATH]",
        help="Artifact of another job; members have it in PATH of the folder where their commands start. The job starts after that one"
        " has succeeded. May be repeated.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(artifacts)


def with_artifacts(spec: Mapping[str, Any], artifact: Sequence[str] | None) -> dict[str, Any]:
    """Return a specification with these outputs beside its own. Raises UsageError."""
    more = [{"name": name, "path": path} for name, path in pairs_of(artifact, "--artifact", "NAME=PATH").items()]
    return {**spec, "outputs": [*(spec.get("outputs") or ()), *more]} if more else dict(spec)


def with_inputs(spec: Mapping[str, Any], given: Sequence[str] | None) -> dict[str, Any]:
    """Return a specification with these artifacts of other jobs beside its own inputs. Raises UsageError."""
    more = []
    for text in given or ():
        source, _, path = text.partition(":")
        job, slash, name = source.partition("/")
        if not slash or not job or not name or (":" in text and not path):
            raise UsageError(f"--input needs JOB/NAME or JOB/NAME:PATH, such as prepare-7k2p9xq/data:in, not {text!r}")
        more.append({"artifact": name, "job": job, **({"path": path} if path else {})})
    return {**spec, "inputs": [*(spec.get("inputs") or ()), *more]} if more else dict(spec)


def with_files(client: "Client", spec: Mapping[str, Any], files: Sequence[str] | None) -> dict[str, Any]:
    """Upload files for the queue of a specification; return it with these inputs beside its own. Raises UsageError, ProblemError."""
    if not files:
        return dict(spec)
    queue = spec.get("queue")
    if not isinstance(queue, str):
        raise UsageError("--files needs the queue of the job: name it in the file, or with --queue")
    more = []
    for one in files:
        source, path = _parsed(one)
        name = client.upload_files(queue, source)
        note(f"{source}: {name[:19]}...")
        more.append({"files": name, **({"path": path} if path else {})})
    return {**spec, "inputs": [*(spec.get("inputs") or ()), *more]}


def _parsed(text: str) -> tuple[str, str]:
    """Return folder and path of ``DIR[:PATH]``; a folder may have a colon in its name."""
    if Path(text).exists() or ":" not in text:
        return text, ""
    source, _, path = text.rpartition(":")
    return source, path


def artifacts(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="ID", show_default=False, autocompletion=completion.jobs)],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Artifacts to fetch; without any, they are listed.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder to which artifacts are extracted.  \\[default: one of the artifact's name, here]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Fetch all artifacts, each to a folder of its name.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Those of this run instead of the last one.", show_default=False),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the artifacts of a job's last run, which are the outputs that it has left, or fetch them."""
    if everything and names:
        raise UsageError("--all fetches each artifact: leave out the names")
    if folder is not None and not names and not everything:
        raise UsageError("--to DIR goes with the name of an artifact, or with --all")
    with config.connect(ctx) as client:
        if names or everything:
            wanted = names or [one.name for one in client.artifacts(job, attempt=attempt).artifacts]
            _fetch(client, job, wanted, folder, attempt)
            return
        found = client.artifacts(job, attempt=attempt)
        if output.is_data:
            print_data(data_of(found), output)
            return
        if not found.artifacts:
            note(f"{job} has left no artifacts" if found.attempt else f"{job} has not started yet")
            return
        moment = now()
        rows = [
            [one.name, str(one.size), str(one.attempt), age(one.created_at, moment), one.sha256[:12]]
            for one in found.artifacts
        ]
        print_table(["NAME", "BYTES", "ATTEMPT", "AGE", "SHA256"], rows)


def _fetch(client: "Client", job: str, names: Sequence[str], folder: Path | None, attempt: int | None) -> None:
    for name in names:
        target = Path(name) if folder is None else folder if len(names) == 1 else folder / name
        found = client.download_artifact(job, name, target, attempt=attempt)
        note(f"{name}: {found.size} bytes of run {found.attempt}, in {target}")
