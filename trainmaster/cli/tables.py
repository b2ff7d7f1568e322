"""What the lists of declared objects have in common."""

from typing import TYPE_CHECKING, Any

import typer

from trainmaster.cli import config
from trainmaster.cli.output import Format, note, print_data

if TYPE_CHECKING:
    from trainmaster.protocol.resource_kinds import Kind


def objects_for_table(ctx: typer.Context, kind: "Kind", output: Format, nothing: str) -> list[dict[str, Any]]:
    """All objects of a kind, for a table; empty where they were printed as data, or there are none and ``nothing`` was said."""
    with config.connect(ctx) as client:
        found = client.objects(kind)
    if output.is_data:
        print_data(found, output)
        return []
    if not found:
        note(nothing)
    return found
