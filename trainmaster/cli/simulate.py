"""``simulate``: what a fleet would do with a workload."""

import csv
import gzip
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.output import Format, note, print_data, print_table

if TYPE_CHECKING:
    from trainmaster.dispatcher.whatif.engine import Declared, Outcome
    from trainmaster.dispatcher.whatif.figures import Figures, Waits
    from trainmaster.dispatcher.whatif.trace import Trace
    from trainmaster.simulation.fleet import Fleet


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
    workload: Annotated[
        Path,
        typer.Argument(
            metavar="WORKLOAD", help="A log (.swf, .swf.gz) or a table (.csv, .csv.gz).", show_default=False
        ),
    ],
    fleet: Annotated[Path, typer.Option(help="The fleet, as for agent run --simulated.", show_default=False)],
    tenants: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", help="Queues, classes, clusters and price books, as for apply. Repeatable."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="For jobs that name none.", show_default=False)] = None,
    limits: Annotated[
        LimitsFrom, typer.Option(help="Time limits: as asked for in the workload, the true run times, or none.")
    ] = LimitsFrom.ASKED,
    faster: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Divides the times between submissions.", metavar="FACTOR")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="In place of the fleet's.", show_default=False)] = None,
    output: Annotated[
        SimulateFormat, typer.Option("-o", "--output", help="csv writes a line for each job.")
    ] = SimulateFormat.TABLE,
) -> None:
    """Let a workload run through the real scheduler on simulated clusters, and say how long jobs wait and what it costs.

    The same workload, fleet and seed give the same result.
    """
    from trainmaster.cli.processes import need

    need("dispatcher", "sortedcontainers")
    from trainmaster.cli.fleet import read_fleet
    from trainmaster.dispatcher.whatif.engine import Simulation
    from trainmaster.dispatcher.whatif.figures import figures_of, to_data

    simulated = read_fleet(fleet)
    if seed is not None:
        simulated = simulated.model_copy(update={"seed": seed})
    declared = _declared(tenants or (), simulated)
    default = queue or _only_leaf(declared)
    trace = _read_trace(workload, default, limits).faster(faster)
    outcome = _run(Simulation(simulated, declared), trace)
    if output is SimulateFormat.CSV:
        _print_jobs(outcome)
        return
    figures = figures_of(outcome)
    if output is SimulateFormat.TABLE:
        _print_figures(trace, figures)
    else:
        print_data({"workload": trace.name, "leftOut": trace.left_out, **to_data(figures)}, Format(output.value))


def _run(simulation: "object", trace: "Trace") -> "Outcome":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from trainmaster.dispatcher.whatif.engine import Simulation

    assert isinstance(simulation, Simulation)  # noqa: S101 - for the type alone; the import is late
    console = Console(stderr=True)
    columns = (TextColumn("{task.completed:,} of {task.total:,} jobs"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("jobs", total=len(trace.jobs))
        return simulation.run(trace, lambda done, _: progress.update(task, completed=done))


def _declared(files: Sequence[str], fleet: "Fleet") -> "Declared":
    """What the files say; without files a queue that may use all of the fleet. Raises ProblemError, UsageError."""
    from trainmaster.cli.apply import declared_in
    from trainmaster.cli.documents import read_documents
    from trainmaster.dispatcher.whatif.engine import Declared
    from trainmaster.protocol.prices import PriceBookSpec
    from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
    from trainmaster.simulation.generate import tenants_of

    if files:
        specs = [spec for _, _, spec in declared_in(read_documents(files, {}))]
    else:
        specs = [QueueSpec.model_validate(one) for one in tenants_of(fleet) if one["kind"] == "Queue"]
    return Declared(
        queues=[spec for spec in specs if isinstance(spec, QueueSpec)],
        classes=[spec for spec in specs if isinstance(spec, PriorityClassSpec)],
        clusters=[spec for spec in specs if isinstance(spec, ClusterSpec)],
        books=[spec for spec in specs if isinstance(spec, PriceBookSpec)],
    )


def _only_leaf(declared: "Declared") -> str:
    """The queue for jobs that name none: the only one that takes jobs, or the first of them by its path."""
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


def _print_figures(trace: "Trace", figures: "Figures") -> None:
    from trainmaster.protocol.durations import format_duration

    ends = ", ".join(f"{count:,} {state}" for state, count in figures.ends.items())
    print(f"{figures.jobs:,} jobs of {trace.name}: {ends}; over after {format_duration(round(figures.seconds))}")
    print(
        f"{figures.preemptions:,} preempted; fairness between queues {figures.fairness:.3f}; cost {figures.cost:,.2f}\n"
    )
    groups = [("all", figures.waits)]
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
