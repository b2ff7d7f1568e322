"""``usage``: what was used, and what it cost."""

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config, filters
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, data_of, note, now, print_data, print_table
from trainmaster.cli.overrides import pairs_of
from trainmaster.cli.time_arguments import moment_of
from trainmaster.protocol.states import ClusterKind

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.usage import Per, UsageAnswer, UsageRow


_BLOCKS = " ▏▎▍▌▋▊▉█"
_LEAST_BAR, _MOST_LABEL = 10, 40


def register(app: typer.Typer) -> None:
    app.command()(usage)


class UsageFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
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
            help="Group by queue (the default), user, cluster, kind, class or label:KEY. May be repeated, or a list with commas.",
            show_default=False,
        ),
    ] = None,
    per: Annotated[Split, typer.Option(help="Split by hour, day or month, in UTC.")] = Split.ALL,
    queue: filters.QueueOption = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Only of jobs with this label, by which usage is counted; may be repeated."
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only of jobs that the key of this name submitted.")] = None,
    cluster: filters.ClusterOption = None,
    kind: Annotated[ClusterKind | None, typer.Option(help="Only on clusters of this kind.")] = None,
    output: Annotated[UsageFormat, typer.Option("-o", "--output", help="Output format.")] = UsageFormat.TABLE,
) -> None:
    """Show used resources and their cost: core-hours, GiB-hours of memory, device-hours, money. Running jobs count until now."""
    moment = now()
    begin, end = moment_of(since, moment, "--since"), moment if until is None else moment_of(until, moment, "--until")
    dimensions = _dimensions(by)
    split: Per = per.value
    narrowed = {f"label:{key}": value for key, value in pairs_of(label, "--label").items()}
    narrowed |= {name: value for name, value in (("user", user), ("cluster", cluster), ("kind", kind)) if value}
    with config.connect(ctx) as client:
        every = list(dict.fromkeys((*dimensions, *narrowed)))
        found = client.usage(begin, end, per=split, by=every, queue=queue)
        if narrowed:
            found = narrowed_to(found, narrowed, dimensions)
        if cluster is not None and not found.rows:
            _check_cluster(client, cluster)
    if output in (UsageFormat.JSON, UsageFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is UsageFormat.CSV:
        _print_csv(found, dimensions)
    elif not found.rows:
        note(f"nothing ran from {_text(found.begin)} to {_text(found.end)}")
    elif output is UsageFormat.CHART:
        _print_chart(found, split)
    else:
        _print_table(found, dimensions, split, wide=output is UsageFormat.WIDE)


def _check_cluster(client: "Client", name: str) -> None:
    """Raise ProblemError where a cluster without usage does not exist."""
    from trainmaster.protocol.errors import Code, ProblemError
    from trainmaster.protocol.suggestions import suggestion

    known = [one.name for one in client.clusters()]
    if name not in known:
        raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}{suggestion(name, known)}")


def narrowed_to(found: "UsageAnswer", wanted: Mapping[str, str], dimensions: Sequence[str]) -> "UsageAnswer":
    """Return the rows of which each dimension has the wanted value, added up by ``dimensions``, and their total."""
    rows: dict[tuple[object, ...], UsageRow] = {}
    chosen = [row for row in found.rows if all(row.of.get(name) == value for name, value in wanted.items())]
    for row in chosen:
        of = {name: row.of[name] for name in dimensions if name in row.of}
        key = (row.since, *of.values())
        rows[key] = _sum(rows.get(key), row).model_copy(update={"of": of})
    total = found.total.model_copy(update={"runs": 0, "cpu": 0.0, "memory": 0.0, "members": 0.0, "devices": {}})
    total = total.model_copy(update={"cost": Decimal(0), "charge": None})
    for row in chosen:
        total = _sum(total, row).model_copy(update={"since": found.total.since, "of": found.total.of})
    return found.model_copy(update={"rows": tuple(rows.values()), "total": total})


def _sum(one: "UsageRow | None", other: "UsageRow") -> "UsageRow":
    if one is None:
        return other
    names = dict.fromkeys((*one.devices, *other.devices))
    devices = {name: one.devices.get(name, 0.0) + other.devices.get(name, 0.0) for name in names}
    added = {name: getattr(one, name) + getattr(other, name) for name in ("runs", "cpu", "memory", "members", "cost")}
    charges = [charge for charge in (one.charge, other.charge) if charge is not None]
    return one.model_copy(update={**added, "devices": devices, "charge": sum(charges) if charges else None})


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


def _charge(row: "UsageRow") -> Decimal:
    return row.cost if row.charge is None else row.charge


def _devices(row: "UsageRow") -> str:
    return ", ".join(f"{name} {_hours(hours)}" for name, hours in row.devices.items()) or "-"


def _print_table(found: "UsageAnswer", dimensions: Sequence[str], split: "Per", *, wide: bool) -> None:
    columns = [*([] if split == "all" else [split.upper()]), *(one.upper() for one in dimensions)]
    amounts = [
        "RUNS",
        "CORE-HOURS",
        "GIB-HOURS",
        *(["MEMBER-HOURS"] if wide else []),
        "DEVICE-HOURS",
        f"COST {found.currency}",
    ]
    charges = any(_charge(row) != row.cost for row in found.rows)
    amounts += [f"CHARGE {found.currency}"] if charges else []
    rows = [_row(row, dimensions, split, wide=wide, charges=charges) for row in found.rows]
    if len(rows) > 1:
        names = ["total", *("" for _ in columns[1:])] if columns else []
        rows.append([*names, *_amounts(found.total, wide=wide, charges=charges)])
    columns += amounts
    print_table(columns, rows)
    note(f"{_text(found.begin)} to {_text(found.end)} UTC; an estimate from the price books, including running jobs")


def _row(row: "UsageRow", dimensions: Sequence[str], split: "Per", *, wide: bool, charges: bool) -> list[object]:
    names = [row.of.get(one) or "-" for one in dimensions]
    return [*([] if split == "all" else [_begin(row, split)]), *names, *_amounts(row, wide=wide, charges=charges)]


def _amounts(row: "UsageRow", *, wide: bool, charges: bool) -> list[object]:
    members, charged = [_hours(row.members)] if wide else [], [money(_charge(row))] if charges else []
    return [row.runs, _hours(row.cpu), _hours(row.memory), *members, _devices(row), money(row.cost), *charged]


def _print_csv(found: "UsageAnswer", dimensions: Sequence[str]) -> None:
    devices = sorted({name for row in found.rows for name in row.devices})
    names = ["runs", "core_hours", "gib_hours", "member_hours", *(f"hours:{name}" for name in devices)]
    rows = []
    for row in found.rows:
        amounts = [row.runs, row.cpu, row.memory, row.members, *(row.devices.get(name, 0.0) for name in devices)]
        of = [row.of.get(one, "") for one in dimensions]
        rows.append([row.since.isoformat().replace("+00:00", "Z"), *of, *amounts, f"{row.cost:f}", f"{_charge(row):f}"])
    print_csv(
        ["since", *dimensions, *names, *(f"{name}_{found.currency.lower()}" for name in ("cost", "charge"))], rows
    )


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
