"""Stored specifications, read row by row: one that cannot be read hides none of the others."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Row

from trainmaster_dispatcher.containment import Part, contained

_Parsed = TypeVar("_Parsed")


def readable(part: Part, rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], _Parsed]) -> list[_Parsed]:
    """Return what ``parse`` makes of the rows, which have a ``name``. Rows that cannot be read are noted and left out."""
    found: list[_Parsed] = []
    for row in rows:
        with contained(part, row.name):
            found.append(parse(row))
    return found
