"""``simulate``: what a fleet would do with a workload."""

import csv
import gzip
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trainmaster.cli.output import Format, note, print_data, print_table

if TYPE_CHECKING:
    from trainmaster.cli.documents import Document
    from trainmaster.dispatcher.whatif.engine import Declared, Outcome, Simulation
    from trainmaster.dispatcher.whatif.figures import Figures, Waits
    from trainmaster.dispatcher.whatif.report import Case
    from trainmaster.dispatcher.whatif.trace import Trace
    from trainmaster.simulation.fleet import Fleet


_HISTORY = Path("history")


def register(app: typer.Typer) -> None:
    app.command()(simulate)


class SimulateFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class LimitsFrom(StrEnum):
    ASKED = "asked"
    EXACT = "exact"
    NONE = "none"


def simulate(
    ctx: typer.Context,
    workload: Annotated[
        Path,
        typer.Argument(
            metavar="WORKLOAD",
            help="A log (.swf, .swf.gz), a table (.csv, .csv.gz), or history: what the installation has really done.",
            show_default=False,
        ),
    ],
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="The fleet, as for agent run --simulated; for history, the installation's own unless told otherwise.",
            show_default=False,
        ),
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", help="Queues, classes, clusters, price books and burst policies, as for apply."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replaces @NAME@ in the files of -f.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2",
            help="Simulates once for each value of @NAME@, or of a field of burst policies such as burst.after, and compares.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="For jobs that name none.", show_default=False)] = None,
    since: Annotated[str, typer.Option(help="Of history: a date, a time, or so long ago, such as 12h or 7d.")] = "7d",
    until: Annotated[str | None, typer.Option(help="The same; now unless told otherwise.", show_default=False)] = None,
    limits: Annotated[
        LimitsFrom, typer.Option(help="Time limits: as asked for in the workload, the true run times, or none.")
    ] = LimitsFrom.ASKED,
    faster: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Divides the times between submissions.", metavar="FACTOR")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="In place of the fleet's.", show_default=False)] = None,
    currency: Annotated[str, typer.Option(help="What the prices are in, for the report.")] = "EUR",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes a report with charts, too.", show_default=False)
    ] = None,
    output: Annotated[
        SimulateFormat, typer.Option("-o", "--output", help="csv writes a line for each job.")
    ] = SimulateFormat.TABLE,
) -> None:
    """Let a workload run through the real scheduler on simulated clusters, and say how long jobs wait and what it costs.

    The same workload, fleet and seed give the same result.
    """
    from trainmaster.cli.processes import need

    need("dispatcher", "sortedcontainers")
    from trainmaster.cli.documents import parse_settings
    from trainmaster.cli.errors import UsageError
    from trainmaster.cli.fleet import read_fleet
    from trainmaster.dispatcher.whatif.engine import Simulation
    from trainmaster.dispatcher.whatif.figures import figures_of
    from trainmaster.dispatcher.whatif.report import Case, page

    is_history = workload == _HISTORY and not workload.exists()
    past = _past(ctx, since, until, limits) if is_history else None
    if fleet is None and past is None:
        raise UsageError("give the fleet with --fleet; only history has one of its own")
    simulated = past.fleet if fleet is None and past is not None else read_fleet(fleet or Path())
    if seed is not None:
        simulated = simulated.model_copy(update={"seed": seed})
    given = parse_settings(settings or [])
    own = past.documents if past is not None else ()
    variants = _variants(sweep, given, bool(tenants or own), output)
    declared = [(name, _declared(tenants or (), own, more, simulated)) for name, more in variants]
    if past is not None:
        trace = past.trace.faster(faster)
    else:
        trace = _read_trace(workload, queue or _first_leaf(declared[0][1]), limits).faster(faster)
    cases = []
    for name, one in declared:
        outcome = _run(Simulation(simulated, one), trace, name)
        if output is SimulateFormat.CSV:
            _print_jobs(outcome)
        cases.append(Case(name, figures_of(outcome)))
    if html is not None:
        _write(html, page(f"What {workload.name} would have been", trace.name, cases, currency))
    _tell(trace, cases, output)


class _Past(NamedTuple):
    """What an installation has done, on what, and what is declared there."""

    trace: "Trace"
    fleet: "Fleet"
    documents: "list[Document]"


def _past(ctx: typer.Context, since: str, until: str | None, limits: LimitsFrom) -> _Past:
    """Raises ProblemError, UsageError."""
    from trainmaster.cli import config
    from trainmaster.cli.errors import UsageError
    from trainmaster.cli.live_fleet import declared_of, fleet_of
    from trainmaster.cli.moments import moment_of
    from trainmaster.cli.output import now
    from trainmaster.dispatcher.whatif.trace import read_history

    reference = now()
    begin = moment_of(since, reference, "--since")
    end = reference if until is None else moment_of(until, reference, "--until")
    with config.connect(ctx) as client:
        trace = read_history("history", client.workload(begin, end), limits.value)
        fleet, documents = fleet_of(client.objects("Cluster")), declared_of(client)
    if not trace.jobs:
        raise UsageError(f"no job that was submitted since {begin:%Y-%m-%d %H:%M} UTC has run and ended")
    return _Past(trace, fleet, documents)


def _variants(
    sweep: str | None, given: dict[str, str], has_files: bool, output: SimulateFormat
) -> list[tuple[str, dict[str, str]]]:
    """What is simulated: a name and the settings of each. Raises UsageError."""
    from trainmaster.cli.errors import UsageError

    if sweep is None:
        return [("", given)]
    name, equals, values = sweep.partition("=")
    if not name or not equals or not values:
        raise UsageError(f"--sweep takes NAME=V1,V2,..., not {sweep!r}")
    if not has_files:
        raise UsageError(f"--sweep replaces @{name}@ in the files of -f; give one")
    if output is SimulateFormat.CSV:
        raise UsageError("--sweep compares figures; a line for each job (-o csv) is of one simulation")
    return [(f"{name}={value.strip()}", {**given, name: value.strip()}) for value in values.split(",")]


def _write(path: Path, text: str) -> None:
    from trainmaster.cli.errors import UsageError

    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: {error}") from error
    note(f"the report is in {path}")


def _tell(trace: "Trace", cases: "Sequence[Case]", output: SimulateFormat) -> None:
    from trainmaster.dispatcher.whatif.figures import to_data

    if output is SimulateFormat.CSV:
        return
    if output is SimulateFormat.TABLE:
        if len(cases) == 1:
            _print_figures(trace, cases[0].figures)
        else:
            _print_cases(trace, cases)
        return
    head = {"workload": trace.name, "leftOut": trace.left_out}
    if len(cases) == 1:
        print_data({**head, **to_data(cases[0].figures)}, Format(output.value))
    else:
        told = [{"name": case.name, **to_data(case.figures)} for case in cases]
        print_data({**head, "cases": told}, Format(output.value))


def _print_cases(trace: "Trace", cases: "Sequence[Case]") -> None:
    """One line for each of the simulations that are compared."""
    from trainmaster.protocol.durations import format_duration

    print(f"{cases[0].figures.jobs:,} jobs of {trace.name}\n")
    clusters = [cluster.name for cluster in cases[0].figures.clusters]
    heads = [
        "",
        "WAIT MEAN",
        "P95",
        "SLOWDOWN",
        "NEVER",
        "PREEMPTED",
        *(f"JOBS ON {name.upper()}" for name in clusters),
        "COST",
    ]
    rows = []
    for case in cases:
        figures = case.figures
        waits = [format_duration(round(value)) for value in (figures.waits.mean, figures.waits.p95)]
        never = figures.jobs - figures.waits.started
        jobs = [f"{cluster.jobs:,}" for cluster in figures.clusters]
        rows.append(
            [
                case.name,
                *waits,
                f"{figures.waits.slowdown:,.2f}",
                never,
                figures.preemptions,
                *jobs,
                f"{figures.cost:,.2f}",
            ]
        )
    print_table(heads, rows)


def _run(simulation: "Simulation", trace: "Trace", name: str) -> "Outcome":
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


def _declared(files: Sequence[str], own: "Sequence[Document]", settings: dict[str, str], fleet: "Fleet") -> "Declared":
    """What the files say, each in place of what the installation has of that name; without both a queue that may use all of the fleet.

    Raises ProblemError, UsageError.
    """
    from trainmaster.cli.apply import declared_in
    from trainmaster.cli.documents import read_documents
    from trainmaster.cli.sweeping import is_burst, with_burst
    from trainmaster.dispatcher.whatif.engine import Declared
    from trainmaster.protocol.bursting import BurstPolicySpec
    from trainmaster.protocol.prices import PriceBookSpec
    from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec
    from trainmaster.simulation.generate import tenants_of

    if files or own:
        documents = []
        if files:
            documents = read_documents(files, {name: text for name, text in settings.items() if not is_burst(name)})
        said = {(one.kind, one.value.get("path", one.value.get("name"))) for one in documents}
        documents += [one for one in own if (one.kind, one.value.get("path", one.value.get("name"))) not in said]
        for name, value in settings.items():
            if is_burst(name):
                documents = with_burst(documents, name, value)
        specs = [spec for _, _, spec in declared_in(documents)]
    else:
        specs = [QueueSpec.model_validate(one) for one in tenants_of(fleet) if one["kind"] == "Queue"]
    return Declared(
        queues=[spec for spec in specs if isinstance(spec, QueueSpec)],
        classes=[spec for spec in specs if isinstance(spec, PriorityClassSpec)],
        clusters=[spec for spec in specs if isinstance(spec, ClusterSpec)],
        books=[spec for spec in specs if isinstance(spec, PriceBookSpec)],
        policies=[spec for spec in specs if isinstance(spec, BurstPolicySpec)],
        datasets=[spec for spec in specs if isinstance(spec, DatasetSpec)],
    )


def _first_leaf(declared: "Declared") -> str:
    """The queue for jobs that name none: the first by its path of those that take jobs."""
    parents = {spec.parent for spec in declared.queues}
    leaves = sorted(spec.path for spec in declared.queues if spec.path not in parents)
    return leaves[0] if leaves else "default"


def _read_trace(path: Path, queue: str, limits: LimitsFrom) -> "Trace":
    from trainmaster.cli.errors import UsageError
    from trainmaster.dispatcher.whatif.trace import read_swf, read_table

    name = path.name.removesuffix(".gz")
    read = {".swf": read_swf, ".csv": read_table}.get(Path(name).suffix)
    if read is None:
        raise UsageError(f"{path}: a workload is a .swf or a .csv file, which may be .gz")
    try:
        with gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else path.open() as lines:
            trace = read(path.name, lines, queue, limits.value)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not trace.jobs:
        raise UsageError(f"{path} holds no job that ran")
    return trace


def _really(trace: "Trace") -> "Waits | None":
    """How long the jobs really waited, where that is known of all."""
    from trainmaster.dispatcher.whatif.figures import summary_of

    found = [(job.waited, job.run) for job in trace.jobs if job.waited is not None]
    return summary_of(found) if found and len(found) == len(trace.jobs) else None


def _print_figures(trace: "Trace", figures: "Figures") -> None:
    from trainmaster.protocol.durations import format_duration

    ends = ", ".join(f"{count:,} {state}" for state, count in figures.ends.items())
    print(f"{figures.jobs:,} jobs of {trace.name}: {ends}; over after {format_duration(round(figures.seconds))}")
    print(
        f"{figures.preemptions:,} preempted; fairness between queues {figures.fairness:.3f}; cost {figures.cost:,.2f}\n"
    )
    groups = [("all", figures.waits)]
    really = _really(trace)
    if really is not None:
        groups.insert(0, ("what was", really))
    groups += [(name, one) for name, one in figures.by_queue.items() if len(figures.by_queue) > 1]
    groups += [(f"class {name}", one) for name, one in figures.by_class.items() if len(figures.by_class) > 1]
    columns = ["WAIT OF", "JOBS", "MEAN", "P50", "P95", "LONGEST", "SLOWDOWN"]
    print_table(columns, [_waits_row(name, one) for name, one in groups])
    print()
    resources = sorted({name for cluster in figures.clusters for name in cluster.used})
    rows = [
        [
            *(one.name, one.kind, f"{one.jobs:,}"),
            *(f"{one.used[name]:.1%}" if name in one.used else "-" for name in resources),
            f"{one.cost:,.2f}",
        ]
        for one in figures.clusters
    ]
    print_table(
        ["CLUSTER", "KIND", "JOBS", *(f"{name.rpartition('/')[2].upper()} USED" for name in resources), "COST"], rows
    )
    never = figures.ends.get("waiting", 0) + figures.ends.get("held", 0)
    if never:
        note(f"{never:,} jobs never started; -o csv tells which")
    if trace.left_out:
        note(f"{trace.left_out:,} entries of the workload never ran and are left out")


def _waits_row(name: str, waits: "Waits") -> list[object]:
    from trainmaster.protocol.durations import format_duration

    times = [format_duration(round(value)) for value in (waits.mean, waits.p50, waits.p95, waits.most)]
    return [name, f"{waits.started:,}", *times, f"{waits.slowdown:,.2f}"]


def _print_jobs(outcome: "Outcome") -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["job", "name", "queue", "submit", "start", "end", "wait", "state", "cluster", "runs", "message"])
    for record in outcome.records:
        moments = [record.job.submit, record.first_start, record.ended_at, record.wait]
        texts = ["" if moment == float("inf") else f"{moment:g}" for moment in moments]
        spec, machine = record.job.spec, record.machine
        state = machine.state.value
        writer.writerow(
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
