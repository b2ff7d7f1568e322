"""Who manages which fields of an object of the Kubernetes API: ``metadata.managedFields``, and server-side apply. Pure.

As in Kubernetes, each field is labelled with its managers; to apply an object sets the fields that it has, gives up those that the
manager applied before and states no more, and conflicts where it changes a field of another manager. A list is one field, as in
custom resources without a list type. https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from trainmaster_dispatcher.domain.declared_fields import (
    FieldPath,
    Wire,
    changed_fields,
    given_up,
    leaves,
    overlaid,
    owners_after,
    owners_of,
    without_field,
    written,
)

_LONGEST_MANAGER = 128
_FIELD = "f:"


class Operation(StrEnum):
    APPLY = "Apply"
    UPDATE = "Update"


class Manager(NamedTuple):
    """A manager, which manages what it applies apart from what it changes otherwise."""

    name: str
    operation: Operation

    @property
    def key(self) -> str:
        return f"{self.operation}:{self.name}"

    @classmethod
    def of(cls, key: str) -> "Manager":
        operation, _, name = key.partition(":")
        return cls(name, Operation(operation))


class Managed(NamedTuple):
    """The fields of a manager, and when it changed them last: in UTC, without fractions of a second."""

    fields: frozenset[FieldPath]
    time: str


Managers = Mapping[str, Managed]
"""By ``Manager.key``."""


class FieldConflict(NamedTuple):
    """A field that an apply would change, and its other managers."""

    path: FieldPath
    managers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManagedObject:
    """The fields of an object after a change, and its managers."""

    value: Wire
    managers: Managers


def read(entries: Sequence[Mapping[str, Any]] | None) -> Managers:
    """Return the managers in ``metadata.managedFields``; entries that mean nothing here are left out."""
    found = {}
    for one in entries or ():
        if one.get("operation") in tuple(Operation) and isinstance(one.get("fieldsV1"), Mapping):
            manager = Manager(str(one.get("manager", "")), Operation(one["operation"]))
            found[manager.key] = Managed(frozenset(_paths(one["fieldsV1"], ())), str(one.get("time", "")))
    return found


def _paths(fields: Mapping[str, Any], before: FieldPath) -> Iterator[FieldPath]:
    for key, inner in fields.items():
        if not key.startswith(_FIELD):
            continue
        path = (*before, key[len(_FIELD) :])
        if isinstance(inner, Mapping) and any(one.startswith(_FIELD) for one in inner):
            yield from _paths(inner, path)
        else:
            yield path


def write(managers: Managers, api_version: str) -> list[dict[str, Any]]:
    """Return managers as ``metadata.managedFields``."""
    found = []
    for key, managed in sorted(managers.items()):
        if managed.fields:
            manager = Manager.of(key)
            found.append(
                {
                    "manager": manager.name,
                    "operation": manager.operation.value,
                    "apiVersion": api_version,
                    **({"time": managed.time} if managed.time else {}),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": _tree(managed.fields),
                }
            )
    return found


def _tree(paths: Iterable[FieldPath]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path in sorted(paths):
        level = root
        for step in path:
            level = level.setdefault(f"{_FIELD}{step}", {})
    return root


def name_of(manager: str, agent: str) -> str:
    """Return the name of a manager: as it is given, or the first word of the client's ``User-Agent``, as in Kubernetes."""
    return (manager or agent.split("/")[0].strip() or "unknown")[:_LONGEST_MANAGER]


def updated(before: Wire, after: Wire, managers: Managers, name: str, now: str) -> ManagedObject:
    """Return an object after a change that is no apply: the manager has the fields that it changed, and nobody else has."""
    changed = changed_fields(before, after)
    if not changed:
        return ManagedObject(after, managers)
    there = leaves(after)
    own = Manager(name, Operation.UPDATE).key
    kept = managers[own].fields if own in managers else frozenset()
    stated = {path for path in kept if path in there} | {path for path in changed if path in there}
    return ManagedObject(after, _managers_after(managers, own, stated, changed, now))


def applied(
    before: Wire, given: Wire, managers: Managers, name: str, now: str, *, is_forced: bool
) -> ManagedObject | list[FieldConflict]:
    """Return an object after an apply of ``given``, or the conflicts that prevent it."""
    own = Manager(name, Operation.APPLY).key
    owners = {key: managed.fields for key, managed in managers.items()}
    stated = {path for path, value in leaves(given).items() if value != {}}
    base: Wire = before
    for path in given_up(stated, owners, own):
        base = without_field(base, path)
    after = overlaid(base, given)
    changed = changed_fields(before, after)
    if not is_forced:
        found = [
            FieldConflict(path, tuple(Manager.of(one).name for one in others))
            for path in changed
            if path in stated and (others := owners_of(path, owners, but=own))
        ]
        if found:
            return found
    return ManagedObject(after, _managers_after(managers, own, stated, changed, now))


def _managers_after(
    managers: Managers, own: str, stated: Iterable[FieldPath], changed: Sequence[FieldPath], now: str
) -> Managers:
    """Return the managers after a change; the time of those whose fields stay is kept, unless a value changed."""
    after = owners_after({key: one.fields for key, one in managers.items()}, own, stated, changed)
    found = {}
    for key, fields in after.items():
        was = managers.get(key)
        is_same = was is not None and was.fields == fields and not (key == own and changed)
        found[key] = was if was is not None and is_same else Managed(fields, now)
    return found


def conflict_message(conflicts: Sequence[FieldConflict]) -> str:
    """Return conflicts in the words that Kubernetes has for them."""
    parts = [
        f"conflict{'s' if len(one.managers) > 1 else ''} with {', '.join(map(repr, one.managers))}: .{written(one.path)}"
        for one in conflicts
    ]
    many = "conflict" if len(parts) == 1 else "conflicts"
    return f"Apply failed with {len(parts)} {many}: {'; '.join(parts)}"
