"""``series``: how a metric of clusters, queues or burst policies went over time."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of, seconds_of

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.series import SeriesAnswer

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
"""Characters of a line of bars."""


class SeriesFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


class SeriesLabel(StrEnum):
    CLUSTER = "cluster"
    QUEUE = "queue"
    PRODUCT = "product"
    POLICY = "policy"
    NONE = "none"


def register(app: typer.Typer) -> None:
    app.command()(series)


def series(
    ctx: typer.Context,
    metric: Annotated[
        str | None, typer.Argument(help="The metric; without one, all are listed.", show_default=False)
    ] = None,
    by: Annotated[
        list[SeriesLabel] | None,
        typer.Option("--by", help="Label to keep, others are added up; may be repeated. none adds up all."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("-c", "--cluster", help="Only of this cluster.", autocompletion=completion.clusters),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("-q", "--queue", help="Only of this queue or below it.", autocompletion=completion.queues),
    ] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=0, help="The most levels below the queue.")] = None,
    product: Annotated[str | None, typer.Option("--product", help="Only of this product; all: of all.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Only of this burst policy.", autocompletion=completion.policies)
    ] = None,
    since: Annotated[str, typer.Option("--since", help="Begin of the time: a duration ago, or a date.")] = "6h",
    until: Annotated[str | None, typer.Option("--until", help="End of the time; by default now.")] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="Length of a step, such as 10m; by default as the time is long.")
    ] = None,
    output: Annotated[SeriesFormat, typer.Option("-o", "--output", help="Output format.")] = SeriesFormat.TABLE,
) -> None:
    """Show how a metric went over time: capacity, use, guarantees, waits, nodes and cost. Each bar is relative to the highest one."""
    with config.connect(ctx) as client:
        if metric is None:
            _list_metrics(client, output)
            return
        moment = now()
        seconds = None if step is None else seconds_of(step, "--step")
        if seconds is not None and seconds != int(seconds):
            raise UsageError("--step: must be whole seconds, a multiple of 60s")
        found = client.series(
            metric,
            by=[one.value for one in by or ()],
            cluster=cluster,
            queue=queue,
            depth=depth,
            product=product,
            policy=policy,
            since=moment_of(since, moment, "--since"),
            until=None if until is None else moment_of(until, moment, "--until"),
            step=None if seconds is None else int(seconds),
        )
    if output in (SeriesFormat.JSON, SeriesFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is SeriesFormat.CSV:
        _print_csv(found)
    else:
        _print_bars(found)
    if found.left_out:
        note(f"{found.left_out} more series; --by, --cluster, --queue and --depth show fewer")


def _list_metrics(client: "Client", output: SeriesFormat) -> None:
    found = client.series_metrics()
    columns = ["METRIC", "UNIT", "LABELS", "WHAT"]
    rows = [[one.name, one.unit, ", ".join(one.labels), one.help] for one in found]
    if output is SeriesFormat.CSV:
        print_csv([column.lower() for column in columns], rows)
    elif output is SeriesFormat.TABLE:
        print_table(columns, rows)
    else:
        print_data([data_of(one) for one in found], Format(output.value))


def _print_csv(found: "SeriesAnswer") -> None:
    names = list(found.series[0].labels) if found.series else []
    rows = (
        [
            (found.start + timedelta(seconds=place * found.step)).isoformat(),
            *one.labels.values(),
            "" if value is None else value,
        ]
        for one in found.series
        for place, value in enumerate(one.values)
    )
    print_csv(["time", *names, "value"], rows)


def _print_bars(found: "SeriesAnswer") -> None:
    if not found.series:
        note(f"nothing is known of {found.metric} in this time, or it was 0 all the time")
        return
    names = [name.upper() for name in found.series[0].labels]
    rows: list[list[object]] = []
    for one in found.series:
        known = [value for value in one.values if value is not None]
        last = next((value for value in reversed(one.values) if value is not None), None)
        numbers = [last, min(known, default=None), max(known, default=None)]
        rows.append([*one.labels.values(), *(_number(value, found.unit) for value in numbers), bars(one.values)])
    print_table([*names, "LAST", "LEAST", "MOST", f"FROM {found.start:%Y-%m-%dT%H:%MZ}"], rows)


def _number(value: float | None, unit: str) -> str:
    from trainmaster.protocol.durations import format_duration
    from trainmaster.protocol.quantities import format_quantity

    if value is None:
        return "-"
    if unit == "bytes":
        return format_quantity("memory", round(value))
    if unit == "seconds":
        return format_duration(round(value))
    return f"{value:.2f}".rstrip("0").rstrip(".")


def bars(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """Return a line of bars, at most ``width``, each the highest of its values; a space where nothing is known."""
    highest = max((value for value in values if value is not None), default=0.0)
    many = min(width, len(values))
    out = []
    for place in range(many):
        part = values[place * len(values) // many : (place + 1) * len(values) // many]
        known = [value for value in part if value is not None]
        if not known:
            out.append(" ")
        else:
            out.append(_BARS[round(max(known) / highest * (len(_BARS) - 1))] if highest > 0 else _BARS[0])
    return "".join(out)
