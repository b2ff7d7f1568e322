"""``efficiency``: what runs used beside what they requested, and requests that would suit recurring jobs."""

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config, filters
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from trainmaster.protocol.efficiency import EfficiencyAnswer, EfficiencyRow


class EfficiencyFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


class EfficiencyBy(StrEnum):
    QUEUE = "queue"
    USER = "user"
    CLUSTER = "cluster"
    JOB = "job"


def register(app: typer.Typer) -> None:
    app.command()(efficiency)


def efficiency(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(help="Begin: a date, a time or a duration ago; 30d by default.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="End, written in the same way; now by default.", show_default=False)
    ] = None,
    by: Annotated[EfficiencyBy, typer.Option("--by", help="Sums of the runs of each.")] = EfficiencyBy.QUEUE,
    queue: filters.QueueOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The most rows, and suggestions.")] = 20,
    output: Annotated[EfficiencyFormat, typer.Option("-o", "--output", help="Output format.")] = EfficiencyFormat.TABLE,
) -> None:
    """Show what runs used beside what they requested, and what recurring jobs should request instead.

    Runs count whole, by the time of their last sample. A - is unknown. A suggestion needs 3 runs with the same requests.
    """
    moment = now()
    begin = moment - timedelta(days=30) if since is None else moment_of(since, moment, "--since")
    end = moment if until is None else moment_of(until, moment, "--until")
    with config.connect(ctx) as client:
        found = client.efficiency(begin, end, by=by.value, queue=queue, limit=limit)
    if output in (EfficiencyFormat.JSON, EfficiencyFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is EfficiencyFormat.CSV:
        print_csv(
            [
                by.value,
                "runs",
                "core_hours_requested",
                "core_hours_used",
                "cpu_percent",
                "gpu_hours_held",
                "gpu_hours_busy",
                "gpu_percent",
                "memory_p95_percent",
                "memory_peak_percent",
                "oom_kills",
            ],
            [["" if cell is None else cell for cell in _cells(one)] for one in found.rows],
        )
    elif not found.rows:
        note("nothing is known of what runs used in this time")
    else:
        _print_tables(found, by)


def _cells(one: "EfficiencyRow") -> tuple[object, ...]:
    return (
        *(one.of, one.runs, one.core_hours_requested, one.core_hours_used, one.cpu_percent),
        *(one.gpu_hours_held, one.gpu_hours_busy, one.gpu_percent),
        *(one.memory_p95_percent, one.memory_peak_percent, one.oom_kills),
    )


def _print_tables(found: "EfficiencyAnswer", by: EfficiencyBy) -> None:
    rows = [
        [
            one.of or "-",
            one.runs,
            f"{one.core_hours_used:.2f}/{one.core_hours_requested:.2f}{_percent(one.cpu_percent)}",
            f"{one.gpu_hours_busy:.2f}/{one.gpu_hours_held:.2f}{_percent(one.gpu_percent)}"
            if one.gpu_hours_held
            else "-",
            "-" if one.memory_p95_percent is None else f"{one.memory_p95_percent:.0f}%",
            "-" if one.memory_peak_percent is None else f"{one.memory_peak_percent:.0f}%",
            one.oom_kills,
        ]
        for one in found.rows
    ]
    print_table([by.upper(), "RUNS", "CORE HOURS", "GPU HOURS", "MEMORY P95", "MEMORY PEAK", "OOM"], rows)
    for one in found.suggestions:
        money = "" if one.saved is None else f" (would have saved {one.saved} {found.currency})"
        note(f"{one.queue}, {one.job}{f' of {one.user}' if one.user else ''}: {one.sentence}{money}")
    if few := found.too_few_runs:
        jobs = "1 recurring job has" if few == 1 else f"{few} recurring jobs have"
        note(f"{jobs} no suggestion: it needs 3 runs of which the use is known")


def _percent(value: float | None) -> str:
    return "" if value is None else f" ({value:.0f}%)"
