"""The results of simulations as tables."""

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster.cli.output import note, print_table
from trainmaster.protocol.durations import format_duration
from trainmaster_dispatcher.whatif.report import Case
from trainmaster_dispatcher.whatif.values import Figures, Waits, forecast_rows


class SimulatedWorkload(NamedTuple):
    """A workload, its entries that never ran, how long its jobs really waited if known, and what was simulated."""

    workload: str
    left_out: int
    really: Waits | None
    cases: Sequence[Case]


def print_simulated(simulated: SimulatedWorkload) -> None:
    """Print one simulation in full, several in one line each."""
    if len(simulated.cases) == 1:
        _print_figures(simulated, simulated.cases[0].figures)
    else:
        _print_cases(simulated.workload, simulated.cases)


def _print_cases(workload: str, cases: Sequence[Case]) -> None:
    """Print one line for each of the simulations that are compared."""
    print(f"{cases[0].figures.jobs:,} jobs of {workload}\n")
    clusters = [cluster.name for cluster in cases[0].figures.clusters]
    has_bursts = any(case.figures.bursts for case in cases)
    heads = [
        "",
        "WAIT MEAN",
        "P95",
        "SLOWDOWN",
        "NEVER",
        "PREEMPTED",
        *(["BURST"] if has_bursts else []),
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
                *([f"{sum(figures.bursts.values()):,}"] if has_bursts else []),
                *jobs,
                f"{figures.cost:,.2f}",
            ]
        )
    print_table(heads, rows)


def _print_figures(simulated: SimulatedWorkload, figures: Figures) -> None:
    ends = ", ".join(f"{count:,} {state}" for state, count in figures.ends.items())
    print(
        f"{figures.jobs:,} jobs of {simulated.workload}: {ends}; over after {format_duration(round(figures.seconds))}"
    )
    print(
        f"{figures.preemptions:,} preempted; fairness between queues {figures.fairness:.3f}; cost {figures.cost:,.2f}"
    )
    if figures.bursts:
        sent = ", ".join(f"{count:,} runs by {name}" for name, count in sorted(figures.bursts.items()))
        print(f"sent to public clusters: {sent}")
    print()
    groups = [("all", figures.waits)]
    if simulated.really is not None:
        groups.insert(0, ("what was", simulated.really))
    groups += [(name, one) for name, one in figures.by_queue.items() if len(figures.by_queue) > 1]
    groups += [(f"class {name}", one) for name, one in figures.by_class.items() if len(figures.by_class) > 1]
    columns = ["WAIT OF", "JOBS", "MEAN", "P50", "P95", "LONGEST", "SLOWDOWN"]
    print_table(columns, [_waits_row(name, one) for name, one in groups])
    print()
    if rows := forecast_rows(figures):
        print_table(["FORECAST OF", "JOBS", "STARTED BY THE TIME OF HALF", "OF NINE TENTHS"], rows)
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
        note(f"{never:,} jobs never started")
    if simulated.left_out:
        note(f"{simulated.left_out:,} entries of the workload never ran and are left out")


def _waits_row(name: str, waits: Waits) -> list[object]:
    times = [format_duration(round(value)) for value in (waits.mean, waits.p50, waits.p95, waits.most)]
    return [name, f"{waits.started:,}", *times, f"{waits.slowdown:,.2f}"]
