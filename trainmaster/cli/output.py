"""Output of commands: tables for people, JSON and YAML for programs, notes on stderr."""

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmaster.cli import tables

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console


class Format(StrEnum):
    """Output format."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    ID = "id"
    NAME = "name"

    @property
    def is_data(self) -> bool:
        """Return whether the output is for programs."""
        return self not in (Format.TABLE, Format.WIDE)

    @property
    def is_listing(self) -> bool:
        """Return whether the output has only one word for each object."""
        return self in (Format.ID, Format.NAME)


def _with_secret(output: Format) -> Format:
    if output.is_listing:
        raise typer.BadParameter(f"{output} would leave out the secret, which is shown only once; use json")
    return output


_OUTPUT_HELP = (
    "Output format: wide shows more; json and yaml are for programs; id and name print one word for each object."
)
OutputOption = Annotated[Format, typer.Option("-o", "--output", help=_OUTPUT_HELP, show_choices=True)]
SecretOutputOption = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        help="Output format: json and yaml are for programs.",
        show_choices=True,
        callback=_with_secret,
    ),
]
"""Of commands whose answer has a secret that is shown only once."""

_COLOURS = {
    "succeeded": "green",
    "ready": "green",
    "running": "cyan",
    "dispatched": "cyan",
    "failed": "red",
    "unreachable": "red",
    "lost": "red",
    "held": "yellow",
    "cancelling": "yellow",
    "suspending": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "closed": "red",
}


def now() -> datetime:
    return datetime.now(UTC)


def age(moment: datetime | None, reference: datetime | None = None) -> str:
    """Return how long ago a moment was, as text for people."""
    if moment is None:
        return "-"
    return f"{took(moment, reference or now())} ago"


def took(begin: datetime | None, end: datetime | None) -> str:
    """Return the time between two moments as text; ``-`` when one is missing."""
    return lasted(None if begin is None or end is None else (end - begin).total_seconds())


def lasted(seconds: float | None) -> str:
    """Return a time as text; ``-`` for None."""
    from trainmaster.protocol.durations import format_duration

    if seconds is None:
        return "-"
    return format_duration(round(seconds) if seconds >= 1 else max(seconds, 0))


def clean(text: str) -> str:
    """Return foreign text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def data_of(model: "BaseModel") -> dict[str, Any]:
    """Return an answer's model as the API wrote it."""
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


def print_data(data: Any, output: Format) -> None:
    """Print data as JSON or YAML, or the id or name of each object in it. Raises UsageError where objects have none."""
    if output.is_listing:
        text = "".join(f"{word}\n" for word in _words_of(data, output))
    elif output is Format.YAML:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(text)


_NAMING = {
    Format.ID: ("id", "job", "run", "path", "name"),
    Format.NAME: ("name", "path", "id", "job", "run"),
}
"""Fields that name an object, the first one that it has."""


def _words_of(data: Any, output: Format) -> list[str]:
    items = data if isinstance(data, list) else [data]
    if isinstance(data, dict) and _NAMING[output][0] not in data:
        # Such as the previews of a burst, beside which only the currency stands.
        items = next((value for value in data.values() if isinstance(value, list)), items)
    words = [next((str(item[name]) for name in _NAMING[output] if item.get(name) is not None), "") for item in items]
    if not all(words):
        from trainmaster.cli.errors import UsageError

        raise UsageError(f"-o {output}: what this command shows has no {output}; use -o json")
    return words


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table without lines; where the terminal is too narrow for it, a block of lines for each row.

    Cells are plain text; states are coloured on a terminal.
    """
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    widths = tables.column_widths(columns, cells, tables.terminal_width())
    if widths is None:
        sys.stdout.write("".join(f"{line}\n" for line in tables.blocks(columns, cells)))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, overflow="fold", width=width)
    for row in cells:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.partition(" ")[0], "")) for cell in row))
    console = _console(sys.stdout, sum(widths) + 2 * len(widths))
    with console.capture() as drawn:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print one line for each pair that has a value."""
    given = [(name, clean(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        print(f"{name:<{width}}  {styled(tables.wrapped(value, tables.terminal_width(), width + 2))}")


def print_sentence(text: str, indent: int = 0) -> None:
    """Print a foreign sentence, broken between words where the terminal is too narrow for it."""
    print(" " * indent + tables.wrapped(clean(text), tables.terminal_width(), indent))


def styled(text: str, style: str | None = None, file: IO[str] | None = None) -> str:
    """Return text in its colour, or in ``style`` (``dim``, ``bold``), when it goes to a terminal."""
    code = {"green": 32, "cyan": 36, "red": 31, "yellow": 33, "dim": 2, "bold": 1}.get(
        style or _COLOURS.get(text.partition(" ")[0], "")
    )
    return f"\x1b[{code}m{text}\x1b[0m" if code and is_coloured(file or sys.stdout) else text


def is_coloured(file: IO[str]) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """Print additional information: dimmed, on stderr."""
    words = tables.wrapped(clean(text), tables.terminal_width(sys.stderr))
    print(styled(words, "dim", sys.stderr), file=sys.stderr, flush=True)


def hint(*commands: tuple[str, str]) -> None:
    """Print suggested next commands, on stderr so that stdout has only the requested output."""
    width = max(len(what) for what, _ in commands)
    for what, command in commands:
        print(f"  {styled(f'{what:<{width}}', 'dim', sys.stderr)}  trainmaster {command}", file=sys.stderr)


def _console(file: IO[str], width: int) -> "Console":
    """Return a console of this width, without any escape sequence where the output is not coloured."""
    from rich.console import Console

    colours: Literal["auto"] | None = "auto" if is_coloured(file) else None
    return Console(file=file, width=width, highlight=False, markup=False, color_system=colours)
