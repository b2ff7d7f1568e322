"""Output of what applied documents change, object by object and field by field."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainmaster.cli.output import clean, note, styled

if TYPE_CHECKING:
    from trainmaster.protocol.declarations import AppliedObject, ChangedField

_MARKS = {
    "created": ("+", "green", "create"),
    "changed": ("~", "yellow", "change"),
    "unchanged": ("=", "dim", "unchanged"),
    "removed": ("-", "red", "remove"),
}

_NAMED = 3
"""Queues that are named in one warning."""


def show_effect(one: "AppliedObject") -> None:
    """Print what becomes of an object, with the fields that change."""
    mark, colour, word = _MARKS[one.outcome]
    print(f"{styled(mark, colour)} {one.kind} {clean(one.name)}  {word}")
    if one.outcome == "removed":
        return
    for field in one.fields:
        print(f"    {field_text(field, is_new=one.outcome == 'created')}")


def field_text(field: "ChangedField", *, is_new: bool = False) -> str:
    """Return a field before and after a change as text; for a new object only its value."""
    name = clean(field.field)
    if is_new:
        return f"{name}: {_value(field.after)}"
    return f"{name}: {_value(field.before)} -> {_value(field.after)}"


def show_warnings(warnings: Iterable[tuple[str, str]]) -> None:
    """Print on stderr where guarantees of queues exceed the existing resources, queues with the same finding in one line.

    ``warnings``: the path of a queue, and the finding.
    """
    queues: dict[str, list[str]] = {}
    for path, message in warnings:
        queues.setdefault(message, []).append(path)
    for message, paths in queues.items():
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        names = f"queue{'s' if len(paths) > 1 else ''} {', '.join(paths[:_NAMED])}{more}"
        note(f"warning: {names}: {message}; the part of a guarantee beyond that cannot be honoured")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else clean(str(value))
