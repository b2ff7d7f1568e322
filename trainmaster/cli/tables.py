"""Tables for people: columns where they fit, else a block of lines for each row. Never a broken heading, never a lost cell."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO

_GAP = 2
"""Spaces between two columns."""
_LONGEST_WORD = 24
"""Characters from which a word of a cell may be folded."""
_MOST_LINES = 6
"""Lines of a folded cell from which blocks are easier to read."""
_LEAST_WIDTH = 20
"""The least characters for a sentence beside its name."""


def terminal_width(file: IO[str] | None = None) -> int | None:
    """Return the columns of the terminal; None where the output goes elsewhere and need not fit. ``file``: stdout if None."""
    return shutil.get_terminal_size().columns if (file or sys.stdout).isatty() else None


def wrapped(text: str, width: int | None, begin: int = 0, indent: int | None = None) -> str:
    """Return a sentence broken between words so that it fits into ``width`` characters; None: it need not fit.

    It begins after ``begin`` characters of its line; its further lines are indented by ``indent``, which is ``begin`` unless it is
    given. Words are never broken, so that a path or a command can be copied.
    """
    if width is None or begin + len(text) <= width:
        return text
    further = begin if indent is None else indent
    lines = textwrap.wrap(
        text,
        max(width, max(begin, further) + _LEAST_WIDTH),
        initial_indent=" " * begin,
        subsequent_indent=" " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[begin:]


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int] | None:
    """Return the widths of the columns of a table in ``width`` characters; None where it does not fit legibly.

    The first column, which names the row, and words of up to 24 characters are not folded.
    """
    from rich.cells import cell_len

    by_column = [[row[index] for row in rows] for index in range(len(columns))]
    natural = [max(map(cell_len, (name, *cells))) for name, cells in zip(columns, by_column, strict=True)]
    left = None if width is None else width - _GAP * (len(columns) - 1)
    if left is None or sum(natural) <= left:
        return natural
    widths = [
        natural[index] if index == 0 else max(cell_len(name), *(_longest_word(cell) for cell in cells), 1)
        for index, (name, cells) in enumerate(zip(columns, by_column, strict=True))
    ]
    for _ in range(left - sum(widths)):
        neediest = max(range(len(widths)), key=lambda index: natural[index] / widths[index])
        widths[neediest] += natural[neediest] > widths[neediest]
    is_legible = all(size <= _MOST_LINES * given for size, given in zip(natural, widths, strict=True))
    return widths if sum(widths) <= left and is_legible else None


def _longest_word(cell: str) -> int:
    from rich.cells import cell_len

    return min(max(map(cell_len, cell.split()), default=0), _LONGEST_WORD)


def blocks(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of rows as blocks of ``NAME: value`` without empty values, with an empty line between two."""
    width = max(map(len, columns), default=0) + 1
    for index, row in enumerate(rows):
        if index:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            if cell.strip() not in ("", "-"):
                yield f"{name + ':':<{width}} {cell.strip()}"
