"""Lists as tables, which kubectl asks for and prints: kind Table of the group ``meta.k8s.io``. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from trainmaster.protocol.durations import format_duration
from trainmaster_dispatcher.api.kube.objects import ListMetadata

Wire = dict[str, Any]


class Included(StrEnum):
    """The part of its object that a row has beside its cells: the parameter ``includeObject``."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


class TableColumn(NamedTuple):
    """A column: its heading, how its cell is read from an object, and whether ``-o wide`` alone shows it."""

    heading: str
    cell: Callable[[Mapping[str, Any]], Any]
    description: str
    is_wide: bool = False


def at(*path: str, empty: str = "<none>") -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that reads a field of an object for people."""

    def cell(value: Mapping[str, Any]) -> Any:
        found: Any = value
        for step in path:
            found = found.get(step) if isinstance(found, Mapping) else None
        return empty if found in (None, "", [], {}) else shown(found)

    return cell


def age(written: str | None, now: datetime) -> str:
    """Return the time since a moment, as kubectl shows ages: of two units at most."""
    if written is None:
        return "<unknown>"
    passed = (now - datetime.fromisoformat(written).astimezone(UTC)).total_seconds()
    return format_duration(float(max(0, int(passed))))


def shown(value: Any) -> Any:
    """Return a value as a cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={shown(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ",".join(str(shown(one)) for one in value)
    return value


def table_of(columns: Sequence[TableColumn], items: Sequence[Wire], included: Included, metadata: ListMetadata) -> Wire:
    """Return objects as a table."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata.written(),
        "columnDefinitions": [
            {
                "name": column.heading,
                "type": "string",
                "format": "name" if column.heading == "Name" else "",
                "description": column.description,
                "priority": int(column.is_wide),
            }
            for column in columns
        ],
        "rows": [
            {"cells": [column.cell(item) for column in columns], "object": _included(item, included)} for item in items
        ],
    }


def _included(item: Wire, included: Included) -> Wire | None:
    if included is Included.NONE:
        return None
    if included is Included.OBJECT:
        return item
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}
