"""``audit``: changes and refused calls, with who made them."""

import json
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, age, clean, data_of, note, now, print_data, print_table
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.protocol.answers import AuditEntry


class AuditFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


_MOST_SHOWN = 100
"""Characters of the details in the table."""


def register(app: typer.Typer) -> None:
    app.command()(audit)


def audit(
    ctx: typer.Context,
    actor: Annotated[str | None, typer.Option(help="Only by the key of this name.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as 'submit', 'put queue' or 'refused'.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only on this object, such as a job's id or a queue.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from then on: a date, a time, or a duration ago, such as 12h or 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only until then, written in the same way.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most entries to show, the newest first.")] = 50,
    output: Annotated[AuditFormat, typer.Option("-o", "--output", help="Output format.")] = AuditFormat.TABLE,
) -> None:
    """List changes and refused calls with who made them, the newest first. For admins, and for the owners of clusters.

    With -o csv, cells that a spreadsheet could take for a formula begin with an apostrophe.
    """
    moment = now()
    begin = None if since is None else moment_of(since, moment, "--since")
    end = None if until is None else moment_of(until, moment, "--until")
    with config.connect(ctx) as client:
        entries = islice(client.audit(target=target, actor=actor, action=action, since=begin, until=end), limit)
        if output is AuditFormat.CSV:
            print_csv(_CSV_COLUMNS, map(_csv_row, entries))
            return
        found = list(entries)
    if output in (AuditFormat.JSON, AuditFormat.YAML):
        print_data([data_of(entry) for entry in found], Format(output.value))
        return
    if not found:
        note("no entry of the audit matches")
        return
    wide = output is AuditFormat.WIDE
    columns = ["AGE", "ACTOR", "ACTION", "TARGET", "ADDRESS", *(["REQUEST", "DETAILS"] if wide else [])]
    print_table(columns, [_row(entry, moment, wide=wide) for entry in found])


_CSV_COLUMNS = ("at", "actor", "action", "target", "address", "request_id", "details")


def _csv_row(entry: "AuditEntry") -> list[object]:
    details = json.dumps(entry.details, ensure_ascii=False) if entry.details else ""
    at = entry.at.isoformat().replace("+00:00", "Z")
    return [at, entry.actor, entry.action, entry.target, entry.address, entry.request_id, details]


def _row(entry: "AuditEntry", moment: "datetime", *, wide: bool) -> list[object]:
    row: list[object] = [age(entry.at, moment), clean(entry.actor) or "-", entry.action, clean(entry.target)]
    row.append(entry.address or "-")
    if wide:
        details = json.dumps(entry.details, ensure_ascii=False) if entry.details else "-"
        row += [
            entry.request_id or "-",
            clean(details if len(details) <= _MOST_SHOWN else f"{details[:_MOST_SHOWN]}..."),
        ]
    return row
