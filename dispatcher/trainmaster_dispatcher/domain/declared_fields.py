"""Fields of declared objects by path, and who owns them, as in Kubernetes' server-side apply. Knows no kind and no store.

A path leads through mappings to a leaf: each quota of a queue and each label is a field of its own, a list is one field. Objects are
in wire form: JSON without the fields that have their defaults.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

FieldPath = tuple[str, ...]
Wire = Mapping[str, Any]
Owners = Mapping[str, frozenset[FieldPath]]
"""The paths of the fields that each applier has set."""

MOST_DEPTH = 30


def is_too_deep(value: Any) -> bool:
    """Return whether mappings and lists are nested deeper than any specification."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def leaves(value: Wire, *, without: Iterable[str] = ()) -> dict[FieldPath, Any]:
    """Return all leaves by path, but for the top-level fields ``without``. An empty mapping is a leaf."""
    left_out = frozenset(without)
    return {path: leaf for path, leaf in _leaves(value, ()) if path[0] not in left_out}


def _leaves(value: Wire, prefix: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    for key, inner in value.items():
        path = (*prefix, str(key))
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, path)
        else:
            yield path, inner


def value_at(value: Any, path: FieldPath) -> Any:
    """Return the value at a path; None where there is none."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def is_known(full: Any, path: FieldPath) -> bool:
    """Return whether a path leads somewhere in an object that has all its fields."""
    for key in path:
        if not isinstance(full, Mapping):
            return full is None  # the mapping is missing as a whole
        if key not in full:
            return False
        full = full[key]
    return True


def overlaid(below: Any, above: Wire) -> dict[str, Any]:
    """Return ``below`` with the fields of ``above`` in place of its own; mappings are merged."""
    out = dict(below) if isinstance(below, Mapping) else {}
    for key, value in above.items():
        out[key] = overlaid(out.get(key), value) if isinstance(value, Mapping) else value
    return out


def without_field(value: Wire, path: FieldPath) -> dict[str, Any]:
    """Return an object without the field at ``path``, and without the mappings that are empty then."""
    out = dict(value)
    head, rest = path[0], path[1:]
    inner = out.get(head)
    if rest and isinstance(inner, Mapping):
        left = without_field(inner, rest)
        if left or not inner:
            out[head] = left
        else:
            del out[head]
    elif not rest:
        out.pop(head, None)
    return out


def merge_patched(target: Any, patch: Any) -> Any:
    """Return ``target`` after a JSON merge patch (RFC 7396): null removes a field."""
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    out = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge_patched(out.get(key), value)
    return out


def changed_fields(before: Wire, after: Wire, *, without: Iterable[str] = ()) -> list[FieldPath]:
    """Return the paths of the leaves that differ between two objects in wire form, those of ``after`` first."""
    old, new = leaves(before, without=without), leaves(after, without=without)
    missing = object()
    paths = [*new, *(path for path in old if path not in new)]
    return [path for path in paths if old.get(path, missing) != new.get(path, missing)]


@lru_cache(maxsize=128)
def _around(paths: frozenset[FieldPath]) -> frozenset[FieldPath]:
    """Return these paths and all that lead to them."""
    return frozenset(path[:length] for path in paths for length in range(1, len(path) + 1))


def overlaps(path: FieldPath, paths: frozenset[FieldPath]) -> bool:
    """Return whether a path is one of these, leads through one of them, or leads to one."""
    return path in _around(paths) or any(path[:length] in paths for length in range(1, len(path)))


def owners_of(path: FieldPath, owners: Owners, *, but: str | None) -> list[str]:
    """Return the appliers, other than ``but``, that have set this field, one around it, or one inside it."""
    return sorted(applier for applier, paths in owners.items() if applier != but and overlaps(path, paths))


def given_up(stated: Iterable[FieldPath], owners: Owners, applier: str | None) -> list[FieldPath]:
    """Return the fields that ``applier`` owns and states no more, and that nobody else owns: they get their defaults."""
    now = frozenset(stated)
    return sorted(
        path
        for path in owners.get(applier or "", ())
        if not overlaps(path, now) and not owners_of(path, owners, but=applier)
    )


def owners_after(
    owners: Owners, applier: str | None, stated: Iterable[FieldPath], changed: Iterable[FieldPath]
) -> dict[str, frozenset[FieldPath]]:
    """Return who owns what after ``applier`` has stated these fields: others lose those that changed, and keep those that are equal.

    ``applier`` None owns nothing: an object that the system itself has made is anybody's.
    """
    differing = frozenset(changed)
    out = {other: frozenset(path for path in paths if not overlaps(path, differing)) for other, paths in owners.items()}
    if applier is not None:
        out[applier] = frozenset(stated)
    return out


def written(path: FieldPath) -> str:
    """Return a path as people read it, such as ``resources.cpu.limit``."""
    return ".".join(path)
