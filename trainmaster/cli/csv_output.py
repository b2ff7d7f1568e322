"""Tables as CSV, for spreadsheets and programs."""

import csv
import sys
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet may read as a formula, which can run programs and send data away."""


def harmless(cell: object) -> object:
    """Return a cell that a spreadsheet shows as it is: a text that may be a formula gets an apostrophe in front."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with a header, row by row as the rows come."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([harmless(column) for column in columns])
    for row in rows:
        writer.writerow([harmless(cell) for cell in row])
