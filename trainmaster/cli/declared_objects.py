"""Commands for declared objects of any kind: ``get``, ``delete``, ``patch``, ``export``, ``history`` and ``rollback``."""

import json
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.declared import show_object
from trainmaster.cli.effects import field_text, show_effect
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, age, clean, data_of, note, now, print_data, print_table
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.suggestions import did_you_mean, suggestion

if TYPE_CHECKING:
    from trainmaster.protocol.base import Strict
    from trainmaster.protocol.declarations import RevisionView
    from trainmaster.protocol.resource_kinds import ResourceKind

KindName = Annotated[str, typer.Argument(metavar="KIND", help="Such as queue, or burst-policy.", show_default=False)]
ObjectName = Annotated[str, typer.Argument(metavar="NAME", help="Name; the path of a queue.", show_default=False)]

_MOST_FIELDS = 3
"""The most fields that the table of a history shows of one change."""


def register(app: typer.Typer) -> None:
    for command in (get, delete, patch, export, history, rollback):
        app.command()(command)


def kind_of(text: str) -> "ResourceKind[Strict]":
    """Return the kind that a person names: Queue, queue or queues, BurstPolicy or burst-policies. Raises UsageError."""
    wanted = _letters(text)
    for kind in KINDS.values():
        if wanted in (_letters(kind.kind), _letters(kind.command)):
            return kind
    begun = [kind for kind in KINDS if wanted and _letters(kind).startswith(wanted)]
    near = f"; did you mean {begun[0]}?" if len(begun) == 1 else did_you_mean(text, KINDS)
    raise UsageError(f"{text!r} is no kind of declared object; there are: {', '.join(KINDS)}{near}")


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def get(
    ctx: typer.Context,
    kind: KindName,
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    output: OutputOption = Format.YAML,
) -> None:
    """Show one object of a kind, or all, as the API has them. For documents to apply again: trainmaster export"""
    wanted = kind_of(kind)
    if name is not None:
        show_object(ctx, wanted, name, output)
        return
    with config.connect(ctx) as client:
        found = client.objects(wanted.kind)
    print_data(found, output if output.is_data else Format.YAML)


def delete(ctx: typer.Context, kind: KindName, name: ObjectName, yes: Yes = False) -> None:
    """Remove one object; refused while it is in use. Asks first."""
    wanted = kind_of(kind)
    if not agreed(f"remove {wanted.name} {name}?", yes=yes):
        return
    with config.connect(ctx) as client:
        client.delete(wanted.kind, name)
    print(f"{wanted.kind} {clean(name)}  removed")


def patch(
    ctx: typer.Context,
    kind: KindName,
    name: ObjectName,
    fields: Annotated[
        str,
        typer.Option(
            "-p",
            "--patch",
            metavar="JSON",
            help="""Fields to change, such as '{"weight": 2}'; null sets one back to its default.""",
        ),
    ],
) -> None:
    """Change some fields of one object by a JSON merge patch (RFC 7396)."""
    wanted = kind_of(kind)
    try:
        value = json.loads(fields)
    except json.JSONDecodeError as error:
        example = """such as '{"weight": 2}'"""
        raise UsageError(f"--patch is not JSON, {example}: column {error.colno}: {error.msg.lower()}") from error
    if not isinstance(value, dict):
        raise UsageError("""--patch takes a JSON object such as '{"weight": 2}'""")
    if not value:
        raise UsageError("--patch names no field to change")
    with config.connect(ctx) as client:
        client.patch(wanted.kind, name, value)
    print(f"{wanted.kind} {clean(name)}  changed")


def export(
    ctx: typer.Context,
    kind: Annotated[str | None, typer.Argument(metavar="KIND", show_default=False)] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    output: OutputOption = Format.YAML,
) -> None:
    """Write the documents of all objects, of those of a kind, or of one: what apply takes, without states and counts."""
    wanted = None if kind is None else kind_of(kind)
    with config.connect(ctx) as client:
        found = client.export(() if wanted is None else (wanted.kind,))
    if wanted is not None and name is not None:
        known = [wanted.name_in(one) for one in found]
        found = [one for one in found if wanted.name_in(one) == name]
        if not found:
            from trainmaster.protocol.errors import Code, ProblemError

            raise ProblemError(Code.NOT_FOUND, f"there is no {wanted.name} {name!r}{suggestion(name, known)}")
    if not found:
        note("nothing is declared")
    elif output is Format.JSON:
        print_data(found, output)
    else:
        _print_documents(found)


def _print_documents(documents: Sequence[dict[str, Any]]) -> None:
    import yaml

    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False, allow_unicode=True)


def history(
    ctx: typer.Context,
    kind: KindName,
    name: ObjectName,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The most revisions to show.")] = 20,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show how an object came to be what it is, the latest change first; also that of a removed one. For admins."""
    wanted = kind_of(kind)
    with config.connect(ctx) as client:
        found = list(islice(client.history(wanted.kind, name, min(limit, 500)), limit))
    if output.is_data:
        print_data([data_of(one) for one in found], output)
        return
    if not found:
        note(f"no change of {wanted.name} {name} was recorded yet")
        return
    moment = now()
    wide = output is Format.WIDE
    rows = [
        [
            *(one.revision, age(one.at, moment), one.actor or "-", one.applier or "-", one.action),
            _changes(one, None if wide else _MOST_FIELDS),
        ]
        for one in found
    ]
    print_table(["REVISION", "WHEN", "BY", "OWNER", "ACTION", "CHANGES"], rows)


def _changes(one: "RevisionView", most: int | None) -> str:
    if one.spec is None:
        return "removed"
    shown = [field_text(field) for field in one.fields[:most]]
    more = len(one.fields) - len(shown)
    return ", ".join(shown + ([f"{more} more"] if more else [])) or "-"


def rollback(
    ctx: typer.Context,
    kind: KindName,
    name: ObjectName,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="REVISION",
            min=1,
            help="Revision to return to; by default the last one that differs.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Yes = False,
) -> None:
    """Return an object to an earlier revision, or create a removed one again. Shows the changes and asks first. For admins."""
    wanted = kind_of(kind)
    with config.connect(ctx) as client:
        shown = client.rollback(wanted.kind, name, to, dry_run=True)
        show_effect(shown.object)
        if shown.object.outcome == "unchanged":
            print(f"nothing to change: {wanted.name} {clean(name)} is as in revision {shown.revision}")
            return
        if dry_run or not agreed(f"return to revision {shown.revision}?", yes=yes):
            return
        client.rollback(wanted.kind, name, shown.revision)
    print(f"{wanted.kind} {clean(name)}  is as in revision {shown.revision}")
