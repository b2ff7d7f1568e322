"""``simulate``: what a fleet would do with a workload."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, note, print_data
from trainmaster.protocol.states import ClusterKind

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.fake_cluster.fleet import Fleet
    from trainmaster.protocol.documents import Document
    from trainmaster.protocol.simulations import SimulationSpec
    from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudyOutcome
    from trainmaster_dispatcher.whatif.report import Case
    from trainmaster_dispatcher.whatif.trace import Trace


_HISTORY = Path("history")


def register(app: typer.Typer) -> None:
    app.command()(simulate)


class SimulateFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class LimitsFrom(StrEnum):
    REQUESTED = "asked"
    EXACT = "exact"
    NONE = "none"


def simulate(
    ctx: typer.Context,
    workload: Annotated[
        Path,
        typer.Argument(
            metavar="WORKLOAD",
            help="A log (.swf, .swf.gz), a table (.csv, .csv.gz), or history: the jobs that the installation has really run.",
            show_default=False,
        ),
    ],
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="The fleet, as for agent run --simulated; for history, the installation's own by default.",
            show_default=False,
        ),
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", help="Queues, classes, clusters, price books and burst policies, as for apply."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace @NAME@ in the files of -f.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2",
            help="Simulate once for each value of @NAME@, or of a field of burst policies such as burst.after, and compare.",
            show_default=False,
        ),
    ] = None,
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="NAME=FILE,FILE",
            help="Simulate with these files in addition to those of -f, and compare the cases; NAME= adds none. May be repeated.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of jobs that name none.", show_default=False)] = None,
    since: Annotated[
        str, typer.Option(help="Start of the history: a date, a time, or a duration ago, such as 12h or 7d.")
    ] = "7d",
    until: Annotated[
        str | None,
        typer.Option(help="End of the history, written in the same way; now by default.", show_default=False),
    ] = None,
    limits: Annotated[
        LimitsFrom, typer.Option(help="Time limits: as asked for in the workload, the true run times, or none.")
    ] = LimitsFrom.REQUESTED,
    faster: Annotated[
        float,
        typer.Option(
            min=0.001, max=1000, help="Factor by which the times between submissions are divided.", metavar="FACTOR"
        ),
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the fleet's.", show_default=False)] = None,
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions/--no-predictions",
            help="Whether to plan with predicted run times, or with time limits alone.",
        ),
    ] = True,
    currency: Annotated[str, typer.Option(help="Currency of the prices, for the report.")] = "EUR",
    background: Annotated[
        bool,
        typer.Option(
            "--background", help="Let a worker of the installation simulate, and print the simulation's number."
        ),
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a report with charts to this file.", show_default=False),
    ] = None,
    output: Annotated[
        SimulateFormat, typer.Option("-o", "--output", help="csv writes a line for each job.")
    ] = SimulateFormat.TABLE,
) -> None:
    """Run a workload with the real scheduler on simulated clusters, and show how long jobs wait and what it costs.

    The same workload, fleet and seed give the same result.
    """
    from trainmaster.cli.documents import parse_settings
    from trainmaster.cli.errors import UsageError
    from trainmaster.cli.fleet_file import read_fleet
    from trainmaster_dispatcher.cli.simulations import ask

    is_history = workload == _HISTORY and not workload.exists()
    given = parse_settings(settings or [])
    if background:
        if html is not None or output is not SimulateFormat.TABLE:
            raise UsageError("with --background, figures and report come from: trainmaster simulations show ID")
        if any(name.startswith("burst.") for name in given):
            raise UsageError(
                "in the background, --set replaces places in files; --sweep burst.FIELD=VALUE sets a field of policies"
            )
        request = _SimulationRequest(
            workload, fleet, tenants or (), given, sweep, _cases(cases, sweep, output), queue, limits, seed, predictions
        )
        return ask(ctx, _spec_of(request, title, faster, _span(since, until) if is_history else None))
    from trainmaster_dispatcher.whatif.engine import Simulation
    from trainmaster_dispatcher.whatif.figures import figures_of
    from trainmaster_dispatcher.whatif.report import Case, page
    from trainmaster_dispatcher.whatif.scenario import first_leaf

    past = _past(ctx, since, until, limits) if is_history else None
    if fleet is None and past is None:
        raise UsageError("give the fleet with --fleet; only history has one of its own")
    simulated = past.fleet if fleet is None and past is not None else read_fleet(fleet or Path())
    if seed is not None:
        simulated = simulated.model_copy(update={"seed": seed})
    own = past.documents if past is not None else ()
    variants = _cases(cases, sweep, output) or _variants(sweep, given, bool(tenants or own), output)
    declared = [
        (one.name, _declared(tenants or (), own, one.settings or given, simulated, one.files)) for one in variants
    ]
    if any(one.policies and not _has_public_cluster(simulated, one) for _, one in declared):
        note("warning: the fleet has no public cluster, so that no burst policy can send a job anywhere")
    if past is not None:
        trace = past.trace.faster(faster)
    else:
        trace = _read_trace(workload, queue or first_leaf(declared[0][1]), limits).faster(faster)
    found = []
    for name, one in declared:
        outcome = _run(Simulation(simulated, one, predicts=predictions), trace, name)
        if output is SimulateFormat.CSV:
            _print_jobs(outcome)
        found.append(Case(name, figures_of(outcome)))
    if html is not None:
        _write(html, page(title or f"Simulation of {workload.name}", trace.name, found, currency))
    return _tell(trace, found, output)


class _Variant(NamedTuple):
    """One of the simulations that are compared: its name, its settings if they differ, and additional files."""

    name: str
    settings: dict[str, str] | None = None
    files: Sequence[str] = ()


class _SimulationRequest(NamedTuple):
    """The request of a person on the command line."""

    workload: Path
    fleet: Path | None
    files: Sequence[str]
    settings: dict[str, str]
    sweep: str | None
    cases: "Sequence[_Variant]"
    queue: str | None
    limits: LimitsFrom
    seed: int | None
    predictions: bool


def _spec_of(
    request: _SimulationRequest, title: str, faster: float, span: "tuple[datetime, datetime] | None"
) -> "SimulationSpec":
    """Return the request as an order for the installation. ``span``: of its history. Raises ProblemError, UsageError."""
    from trainmaster.cli.documents import read_documents, validated
    from trainmaster.cli.fleet_file import read_fleet
    from trainmaster.protocol.simulations import SimulationSpec
    from trainmaster_dispatcher.cli.simulations import swept, text_of

    sweep = swept(request.sweep)
    fleet = None if request.fleet is None else read_fleet(request.fleet).to_wire()
    documents = [one.value for one in read_documents(request.files, request.settings)] if request.files else []
    if span is not None:
        workload: dict[str, Any] = {"history": {"since": span[0].isoformat(), "until": span[1].isoformat()}}
    else:
        workload = {_kind_of(request.workload): text_of(request.workload), "name": request.workload.name}
    value = {
        "title": title,
        "workload": workload | ({"queue": request.queue} if request.queue else {}),
        "fleet": fleet,
        "documents": documents,
        # As without --background: files and a given fleet replace the installation completely.
        "alone": span is None and fleet is not None,
        "sweep": None if sweep is None else {"field": sweep[0], "values": sweep[1]},
        "cases": [
            {
                "name": one.name,
                "documents": [found.value for found in read_documents(one.files, {})] if one.files else [],
            }
            for one in request.cases
        ],
        "limits": request.limits.value,
        "faster": faster,
        "seed": request.seed,
        "predictions": request.predictions,
    }
    return validated(SimulationSpec, value)


def _kind_of(path: Path) -> str:
    """Return ``swf`` or ``csv``. Raises UsageError."""
    from trainmaster.cli.errors import UsageError

    kind = Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")
    if kind not in ("swf", "csv"):
        raise UsageError(f"{path}: a workload is a .swf or a .csv file, which may be .gz")
    return kind


def _span(since: str, until: str | None) -> "tuple[datetime, datetime]":
    """Return the time of history to use. Raises UsageError."""
    from trainmaster.cli.output import now
    from trainmaster.cli.time_arguments import moment_of

    reference = now()
    return moment_of(since, reference, "--since"), (
        reference if until is None else moment_of(until, reference, "--until")
    )


class _Past(NamedTuple):
    """An installation's history, its clusters, and its declared objects."""

    trace: "Trace"
    fleet: "Fleet"
    documents: "list[Document]"


def _past(ctx: typer.Context, since: str, until: str | None, limits: LimitsFrom) -> _Past:
    """Read the history of the installation. Raises ProblemError, UsageError."""
    from trainmaster.cli import config
    from trainmaster.cli.errors import UsageError
    from trainmaster_dispatcher.whatif.installation import KINDS, documents_of, fleet_of
    from trainmaster_dispatcher.whatif.trace import read_history

    begin, end = _span(since, until)
    with config.connect(ctx) as client:
        trace = read_history("history", client.workload(begin, end), limits.value)
        fleet, documents = (
            fleet_of(client.objects("Cluster")),
            documents_of({kind: client.objects(kind) for kind in KINDS}),
        )
    if not trace.jobs:
        raise UsageError(f"no job that was submitted since {begin:%Y-%m-%d %H:%M} UTC has run and ended")
    return _Past(trace, fleet, documents)


def _variants(sweep: str | None, given: dict[str, str], has_files: bool, output: SimulateFormat) -> list[_Variant]:
    """Return the simulations to run. Raises UsageError."""
    from trainmaster.cli.errors import UsageError

    if sweep is None:
        return [_Variant("", given)]
    name, equals, values = sweep.partition("=")
    if not name or not equals or not values:
        raise UsageError(f"--sweep takes NAME=V1,V2,..., not {sweep!r}")
    if not has_files:
        raise UsageError(f"--sweep replaces @{name}@ in the files of -f; give one")
    if output is SimulateFormat.CSV:
        raise UsageError("--sweep compares figures; a line for each job (-o csv) is of one simulation")
    return [_Variant(f"{name}={value.strip()}", {**given, name: value.strip()}) for value in values.split(",")]


def _cases(cases: list[str] | None, sweep: str | None, output: SimulateFormat) -> list[_Variant]:
    """Return the cases that a person names; an empty list if there are none. Raises UsageError."""
    from trainmaster.cli.errors import UsageError

    out = []
    for case in cases or ():
        name, equals, files = case.partition("=")
        if not name or not equals:
            raise UsageError(f"--case takes NAME=FILE,FILE,..., not {case!r}")
        out.append(_Variant(name, None, tuple(file for file in files.split(",") if file)))
    if out and sweep is not None:
        raise UsageError("give --case or --sweep, not both")
    if len({one.name for one in out}) < len(out):
        raise UsageError("two cases have the same name")
    if out and output is SimulateFormat.CSV:
        raise UsageError("--case compares figures; a line for each job (-o csv) is of one simulation")
    return out


def _write(path: Path, text: str) -> None:
    from trainmaster.cli.errors import UsageError

    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: {error}") from error
    note(f"the report is in {path}")


def _tell(trace: "Trace", cases: "Sequence[Case]", output: SimulateFormat) -> None:
    from trainmaster_dispatcher.cli.simulation_tables import SimulatedWorkload, print_simulated
    from trainmaster_dispatcher.whatif.scenario import head_of, really
    from trainmaster_dispatcher.whatif.values import to_data

    if output is SimulateFormat.CSV:
        return
    if output is SimulateFormat.TABLE:
        print_simulated(SimulatedWorkload(trace.name, trace.left_out, really(trace), cases))
        if any(case.figures.waits.started < case.figures.jobs for case in cases) and len(cases) == 1:
            note("-o csv tells which jobs never started")
        return
    head = head_of(trace)
    if len(cases) == 1:
        print_data({**head, **to_data(cases[0].figures)}, Format(output.value))
    else:
        case_data = [{"name": case.name, **to_data(case.figures)} for case in cases]
        print_data({**head, "cases": case_data}, Format(output.value))


def _run(simulation: "Simulation", trace: "Trace", name: str) -> "StudyOutcome":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description} {task.completed:,} of {task.total:,} jobs"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=len(trace.jobs))
        return simulation.run(trace, lambda done, _: progress.update(task, completed=done))


def _declared(
    files: Sequence[str],
    own: "Sequence[Document]",
    settings: dict[str, str],
    fleet: "Fleet",
    on_top: Sequence[str] = (),
) -> "Declared":
    """Return what the files declare, each in place of the installation's object of that name.

    Without both, a queue that may use all of the fleet. Raises ProblemError, UsageError.
    """
    from trainmaster.cli.documents import read_documents
    from trainmaster.protocol.documents import in_place_of
    from trainmaster_dispatcher.whatif.scenario import declared
    from trainmaster_dispatcher.whatif.sweeping import is_burst, with_burst

    texts = {name: text for name, text in settings.items() if not is_burst(name)}
    documents = in_place_of(own, read_documents(files, texts) if files else ())
    documents = in_place_of(documents, read_documents(on_top, {}) if on_top else ())
    for name, value in settings.items():
        if is_burst(name):
            documents = with_burst(documents, name, value)
    return declared(documents, fleet)


def _has_public_cluster(fleet: "Fleet", declared: "Declared") -> bool:
    """Return whether a cluster of the fleet is public, as the declared objects say it, else the fleet."""
    kinds = {one.name: one.kind for one in fleet.clusters}
    kinds |= {one.name: one.cluster_kind for one in declared.clusters if one.name in kinds}
    return ClusterKind.PUBLIC in kinds.values()


def _read_trace(path: Path, queue: str, limits: LimitsFrom) -> "Trace":
    from trainmaster_dispatcher.cli.simulations import text_of
    from trainmaster_dispatcher.whatif.scenario import read_text

    return read_text(_kind_of(path), path.name, text_of(path), queue, limits.value)


def _print_jobs(outcome: "StudyOutcome") -> None:
    columns = ["job", "name", "queue", "submit", "start", "end", "wait", "state", "cluster", "runs", "message"]
    rows: list[list[object]] = []
    for record in outcome.records:
        moments = [record.job.submit, record.first_start, record.ended_at, record.wait]
        texts = ["" if moment == float("inf") else f"{moment:g}" for moment in moments]
        spec, machine = record.job.spec, record.machine
        state = machine.state.value
        rows.append(
            [
                record.job.number,
                spec.name,
                spec.queue,
                *texts,
                state,
                record.cluster,
                len(record.stays),
                json.dumps(machine.message),
            ]
        )
    print_csv(columns, rows)
