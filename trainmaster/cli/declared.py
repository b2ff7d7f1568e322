"""Commands of declared objects, made of ``protocol.resource_kinds``: list, show and remove, such as ``trainmaster price-books``.

Queues, clusters and burst policies have commands of their own, which are in ``admin``, ``clusters`` and ``burst``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.output import Format, OutputOption, note, now, print_data, print_table
from trainmaster.protocol.resource_kinds import BURST_POLICY, CLUSTER, KINDS, PRICE_BOOK, QUEUE, RESERVATION, Kind

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.base import Strict
    from trainmaster.protocol.resource_kinds import Column, ResourceKind

Rows = list[list[object]]
Objects = Sequence[Mapping[str, Any]]
Table = Callable[["Client", Objects, bool], tuple[list[str], Rows]]
"""Takes the client, the objects and whether the wide form is wanted; returns headings and rows."""
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def register(app: typer.Typer) -> None:
    for kind in KINDS.values():
        if kind not in (QUEUE, CLUSTER, BURST_POLICY):
            app.add_typer(_group_of(kind), name=kind.command)


def list_objects(ctx: typer.Context, kind: "ResourceKind[Strict]", output: Format, table: Table) -> None:
    """Print all objects of a kind, or say that there are none."""
    with config.connect(ctx) as client:
        found = client.objects(kind.kind)
        if output.is_data:
            print_data(found, output)
            return
        if not found:
            note(kind.nothing or f"there is no {kind.name}; an admin makes one with: trainmaster apply -f FILE")
            return
        headings, rows = table(client, found, output is Format.WIDE)
    print_table(headings, rows)


def show_object(ctx: typer.Context, kind: "ResourceKind[Strict]", name: str, output: Format) -> None:
    """Print one object as data."""
    with config.connect(ctx) as client:
        found = client.get_object(kind.kind, name)
    print_data(found, output if output.is_data else Format.YAML)


def remove_object(ctx: typer.Context, kind: "ResourceKind[Strict]", name: str, *, yes: bool) -> None:
    """Ask, and remove one object."""
    if not agreed(f"remove {kind.name} {name}?", yes=yes):
        return
    with config.connect(ctx) as client:
        client.delete(kind.kind, name)
    print(f"{name}  removed")


def _group_of(kind: "ResourceKind[Strict]") -> typer.Typer:
    group = typer.Typer(help=f"List, show and remove {kind.plural}.")
    table = _TABLES.get(kind.kind) or _fields_table(kind.columns)

    @group.callback(invoke_without_command=True)
    def listing(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
        if ctx.invoked_subcommand is None:
            list_objects(ctx, kind, output, table)

    @group.command(help=f"Show one {kind.name}.")
    def show(ctx: typer.Context, name: Name, output: OutputOption = Format.YAML) -> None:
        show_object(ctx, kind, name, output)

    @group.command(help=kind.deletes)
    def remove(ctx: typer.Context, name: Name, yes: Yes = False) -> None:
        remove_object(ctx, kind, name, yes=yes)

    return group


def _fields_table(columns: "Sequence[Column]") -> Table:
    """Return the table that shows fields as they are."""

    def table(_client: "Client", found: Objects, wide: bool) -> tuple[list[str], Rows]:
        shown = [column for column in columns if wide or not column.is_wide]
        rows: Rows = [[_cell(one.get(column.field), column.empty) for column in shown] for one in found]
        return [column.heading for column in shown], rows

    return table


def _cell(value: object, empty: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return empty if value is None or value == "" else str(value)


def _books_table(client: "Client", found: Objects, _wide: bool) -> tuple[list[str], Rows]:
    """Return price books with the clusters that name them."""
    clusters = client.objects(CLUSTER.kind)
    headings = ["NAME", "CORE-HOUR", "GIB-HOUR", "DEVICE-HOUR", "SPOT", "CLUSTERS"]
    return headings, [_book_row(book, clusters) for book in found]


def _book_row(book: Mapping[str, Any], clusters: Objects) -> list[object]:
    prices, spot = book["onDemand"], book.get("spot")
    devices = ", ".join(f"{name} {price}" for name, price in prices["devices"].items()) or "-"
    users = ", ".join(cluster["name"] for cluster in clusters if cluster.get("priceBook") == book["name"]) or "-"
    return [
        *(book["name"], prices.get("cpu") or "-", prices.get("memory") or "-", devices),
        *("yes" if spot else "-", users),
    ]


def _reservations_table(_client: "Client", found: Objects, wide: bool) -> tuple[list[str], Rows]:
    """Return reservations, and which of them hold now."""
    headings = ["NAME", "QUEUE", "NODES", "CLUSTERS", "START", "END", "STATE"]
    headings += ["NODE SELECTOR", "DESCRIPTION"] if wide else []
    moment = now()
    return headings, [_reservation_row(one, moment, wide=wide) for one in found]


def _reservation_row(one: Mapping[str, Any], moment: "datetime", *, wide: bool) -> list[object]:
    spec = RESERVATION.spec.model_validate({key: value for key, value in one.items() if key != "kind"})
    state = "over" if spec.end <= moment else "now" if spec.start <= moment else "to come"
    row: list[object] = [spec.name, spec.queue, spec.nodes, ",".join(spec.clusters) or "all", one["start"], one["end"]]
    row.append(state)
    if wide:
        row += [",".join(f"{key}={value}" for key, value in spec.node_selector.items()) or "-", spec.description or "-"]
    return row


_TABLES: Mapping[Kind, Table] = {PRICE_BOOK.kind: _books_table, RESERVATION.kind: _reservations_table}
"""Of kinds whose table shows more than fields."""
