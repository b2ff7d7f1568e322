"""Output of commands: tables for people, JSON and YAML for programs, notes on stderr."""

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console


class Format(StrEnum):
    """Output format."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        return self in (Format.JSON, Format.YAML)


OutputOption = Annotated[
    Format,
    typer.Option(
        "-o", "--output", help="Output format: wide shows more; json and yaml are for programs.", show_choices=True
    ),
]

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
    from trainmaster.protocol.durations import format_duration

    if begin is None or end is None:
        return "-"
    seconds = (end - begin).total_seconds()
    return format_duration(round(seconds) if seconds >= 1 else max(seconds, 0))


def clean(text: str) -> str:
    """Return foreign text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def data_of(model: "BaseModel") -> dict[str, Any]:
    """Return an answer's model as the API wrote it."""
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


def print_data(data: Any, output: Format) -> None:
    if output is Format.YAML:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table without lines. Cells are plain text; states are coloured on a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        cells = [clean(str(cell)) for cell in row]
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.partition(" ")[0], "")) for cell in cells))
    console = _console(sys.stdout)
    with console.capture() as drawn:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print one line for each pair that has a value."""
    given = [(name, clean(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        print(f"{name:<{width}}  {styled(value)}")


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
    print(styled(clean(text), "dim", sys.stderr), file=sys.stderr, flush=True)


def hint(*commands: tuple[str, str]) -> None:
    """Print suggested next commands, on stderr so that stdout has only the requested output."""
    width = max(len(what) for what, _ in commands)
    for what, command in commands:
        print(f"  {styled(f'{what:<{width}}', 'dim', sys.stderr)}  trainmaster {command}", file=sys.stderr)


def _console(file: IO[str]) -> "Console":
    """Return a console that truncates nothing when the output is not a terminal."""
    from rich.console import Console

    width = None if file.isatty() else 10_000
    return Console(file=file, width=width, highlight=False, markup=False, no_color=not is_coloured(file))
