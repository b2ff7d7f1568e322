"""``usage``: what was used, and what it cost."""

import csv
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.output import Format, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from trainmaster.protocol.usage import Per, UsageAnswer, UsageRow


_BLOCKS = " ▏▎▍▌▋▊▉█"
_LEAST_BAR, _MOST_LABEL = 10, 40


def register(app: typer.Typer) -> None:
    app.command()(usage)


class UsageFormat(StrEnum):
    TABLE = "table"
    CHART = "chart"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


class Split(StrEnum):
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    ALL = "all"


def usage(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(help="Start: a date, a time, or a duration ago, such as 12h or 7d.")] = "30d",
    until: Annotated[
        str | None, typer.Option(help="End, written in the same way; now by default.", show_default=False)
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Group by queue (the default), user, cluster, kind or label:KEY. May be repeated, or a list with commas.",
            show_default=False,
        ),
    ] = None,
    per: Annotated[Split, typer.Option(help="Split by hour, day or month, in UTC.")] = Split.ALL,
    queue: Annotated[str | None, typer.Option(help="Only of this queue and all below it.", show_default=False)] = None,
    output: Annotated[UsageFormat, typer.Option("-o", "--output", help="Output format.")] = UsageFormat.TABLE,
) -> None:
    """Show used resources and their cost: core-hours, GiB-hours of memory, device-hours, money. Running jobs count until now."""
    moment = now()
    begin, end = moment_of(since, moment, "--since"), moment if until is None else moment_of(until, moment, "--until")
    dimensions = _dimensions(by)
    split: Per = per.value
    with config.connect(ctx) as client:
        found = client.usage(begin, end, per=split, by=dimensions, queue=queue)
    if output in (UsageFormat.JSON, UsageFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is UsageFormat.CSV:
        _print_csv(found, dimensions)
    elif not found.rows:
        note(f"nothing ran from {_text(found.begin)} to {_text(found.end)}")
    elif output is UsageFormat.CHART:
        _print_chart(found, split)
    else:
        _print_table(found, dimensions, split)


def _dimensions(by: Sequence[str] | None) -> list[str]:
    from trainmaster.protocol.usage import check_dimension

    wanted = [one.strip() for text in by or ["queue"] for one in text.split(",") if one.strip()]
    for one in wanted:
        try:
            check_dimension(one)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--by") from error
    return list(dict.fromkeys(wanted))


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _begin(row: "UsageRow", split: "Per") -> str:
    form = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m", "all": "%Y-%m-%d %H:%M"}[split]
    return row.since.astimezone(UTC).strftime(form)


def money(amount: Decimal, currency: str = "") -> str:
    """Return an amount to the cent; one of less than a cent is not shown as 0."""
    cent = Decimal("0.01")
    text = f"{amount:,.2f}" if amount == 0 or amount >= cent else f"{amount.normalize():f}"
    return f"{text} {currency}".rstrip()


def _hours(amount: float) -> str:
    """Return an amount with three significant digits."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _devices(row: "UsageRow") -> str:
    return ", ".join(f"{name} {_hours(hours)}" for name, hours in row.devices.items()) or "-"


def _print_table(found: "UsageAnswer", dimensions: Sequence[str], split: "Per") -> None:
    columns = [*([] if split == "all" else [split.upper()]), *(one.upper() for one in dimensions)]
    columns += ["RUNS", "CORE-HOURS", "GIB-HOURS", "DEVICE-HOURS", f"COST {found.currency}"]
    rows = [_row(row, dimensions, split) for row in found.rows]
    if len(rows) > 1:
        names = ["total", *("" for _ in columns[:-6])] if len(columns) > 5 else []
        rows.append([*names, *_amounts(found.total)])
    print_table(columns, rows)
    note(f"{_text(found.begin)} to {_text(found.end)} UTC; an estimate from the price books, including running jobs")


def _row(row: "UsageRow", dimensions: Sequence[str], split: "Per") -> list[object]:
    names = [row.of.get(one) or "-" for one in dimensions]
    return [*([] if split == "all" else [_begin(row, split)]), *names, *_amounts(row)]


def _amounts(row: "UsageRow") -> list[object]:
    return [row.runs, _hours(row.cpu), _hours(row.memory), _devices(row), money(row.cost)]


def _print_csv(found: "UsageAnswer", dimensions: Sequence[str]) -> None:
    devices = sorted({name for row in found.rows for name in row.devices})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = ["runs", "core_hours", "gib_hours", "member_hours", *(f"hours:{name}" for name in devices)]
    writer.writerow(["since", *dimensions, *names, f"cost_{found.currency.lower()}"])
    for row in found.rows:
        amounts = [row.runs, row.cpu, row.memory, row.members, *(row.devices.get(name, 0.0) for name in devices)]
        of = [row.of.get(one, "") for one in dimensions]
        writer.writerow([row.since.isoformat().replace("+00:00", "Z"), *of, *amounts, f"{row.cost:f}"])


def _print_chart(found: "UsageAnswer", split: "Per") -> None:
    """Print a bar for each row: its cost or, where nothing costs anything, its core-hours."""
    is_free = found.total.cost == 0
    values = [row.cpu if is_free else float(row.cost) for row in found.rows]
    labels = []
    for row in found.rows:
        parts = [*([] if split == "all" else [_begin(row, split)]), *(text or "-" for text in row.of.values())]
        labels.append("  ".join(parts)[:_MOST_LABEL])
    texts = [f"{_hours(row.cpu)} core-hours" if is_free else money(row.cost, found.currency) for row in found.rows]
    label_width, text_width = max(map(len, labels)), max(map(len, texts))
    width = max(_LEAST_BAR, shutil.get_terminal_size().columns - label_width - text_width - 4)
    most = max(values) or 1.0
    for label, value, text in zip(labels, values, texts, strict=True):
        print(f"{label:<{label_width}}  {_bar(value / most, width):<{width}}  {text:>{text_width}}".rstrip())


def _bar(part: float, width: int) -> str:
    eighths = round(part * width * 8)
    whole, rest = divmod(eighths, 8)
    return _BLOCKS[8] * whole + (_BLOCKS[rest] if rest else "")
