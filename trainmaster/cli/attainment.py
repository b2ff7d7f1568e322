"""``attainment``: how far the waits that priority classes promise were kept."""

from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config, filters
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from trainmaster.protocol.attainment import AttainmentAnswer, AttainmentRow


class AttainmentFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


def register(app: typer.Typer) -> None:
    app.command()(attainment)


def attainment(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(
            help="First month: a date or a time in it, or a duration ago, such as 90d; the last month by default.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last month, written in the same way; this month by default.", show_default=False)
    ] = None,
    queue: filters.QueueOption = None,
    output: Annotated[AttainmentFormat, typer.Option("-o", "--output", help="Output format.")] = AttainmentFormat.TABLE,
) -> None:
    """Show by month how many jobs started within the wait that their class promises (longestWait), and how late the others."""
    moment = now()
    begin = None if since is None else moment_of(since, moment, "--since")
    end = None if until is None else moment_of(until, moment, "--until")
    with config.connect(ctx) as client:
        found = client.attainment(begin, end, queue=queue)
    if output in (AttainmentFormat.JSON, AttainmentFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is AttainmentFormat.CSV:
        _print_csv(found)
    elif not found.rows:
        note("no job of a class with a longestWait started or waits in this time")
    else:
        columns = [
            "MONTH",
            "QUEUE",
            "CLASS",
            "PROMISE",
            "MET",
            "MISSED",
            "ATTAINED",
            "MEAN LATE",
            "MOST LATE",
            "WAITING",
            "OVERDUE",
        ]
        print_table(columns, [_line(row) for row in found.rows])
        note("from submission to the first nodes; jobs that had been held, and were late, are left out")


def _month(row: "AttainmentRow") -> str:
    return row.since.astimezone(UTC).strftime("%Y-%m")


def _span(seconds: float | None) -> str:
    from trainmaster.protocol.durations import format_duration

    return "-" if seconds is None else format_duration(seconds)


def _line(row: "AttainmentRow") -> list[object]:
    attained = "-" if row.attained is None else f"{row.attained:.1%}"
    late = [_span(row.mean_seconds_late), _span(row.most_seconds_late)]
    return [
        *(_month(row), row.queue or "-", row.priority_class or "-", row.promise or "-"),
        *(row.met, row.missed, attained, *late, row.waiting, row.overdue),
    ]


def _print_csv(found: "AttainmentAnswer") -> None:
    names = ["month", "queue", "class", "promise", "met", "missed", "held", "attained"]
    names += ["mean_seconds_late", "most_seconds_late", "waiting", "overdue"]
    rows = [
        [
            *(_month(row), row.queue, row.priority_class, row.promise or "", row.met, row.missed, row.held),
            *("" if value is None else value for value in (row.attained, row.mean_seconds_late, row.most_seconds_late)),
            *(row.waiting, row.overdue),
        ]
        for row in found.rows
    ]
    print_csv(names, rows)
