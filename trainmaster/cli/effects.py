"""Output of what applied documents change, object by object and field by field."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainmaster.cli.output import clean, note, styled

if TYPE_CHECKING:
    from trainmaster.protocol.declarations import AppliedObject, ChangedField
    from trainmaster.protocol.resource_kinds import Kind

_MARKS = {
    "created": ("+", "green", "create"),
    "changed": ("~", "yellow", "change"),
    "unchanged": ("=", "dim", "unchanged"),
    "removed": ("-", "red", "remove"),
}

_NAMED = 3
"""Objects that are named in one warning."""


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


def show_warnings(warnings: "Iterable[tuple[Kind, str, str]]") -> None:
    """Print findings on declared objects on stderr, objects of a kind with the same finding in one line.

    ``warnings``: the kind of an object, its name or path, and the finding.
    """
    from trainmaster.protocol.resource_kinds import KINDS, QUEUE

    objects: dict[tuple[Kind, str], list[str]] = {}
    for kind, name, message in warnings:
        objects.setdefault((kind, message), []).append(name)
    for (kind, message), names in objects.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        one = KINDS[kind].name
        plural = f"{one}es" if one.endswith("s") else f"{one}s"
        whose = f"{plural if len(names) > 1 else one} {', '.join(names[:_NAMED])}{more}"
        end = "; the part of a guarantee beyond that cannot be honoured" if kind == QUEUE.kind else ""
        note(f"warning: {whose}: {message}{end}")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "(unset)" if value is None else str(value).lower() if isinstance(value, bool) else clean(str(value))
