"""Strategic merge patches, by which clients change objects of kinds that Kubernetes itself has. Pure.

Lists of objects whose items have a key are merged item by item; other lists are replaced. Rules and directives:
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from collections.abc import Mapping, Sequence
from typing import Any

Wire = dict[str, Any]

_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""By field: the key of the items of its list, as in the types of pods and Jobs."""
_MERGED = frozenset(("finalizers",))
"""Fields whose lists of texts are merged."""
_PATCH, _RETAIN = "$patch", "$retainKeys"
_ORDER, _DELETED = "$setElementOrder/", "$deleteFromPrimitiveList/"


class StrategicMergeError(ValueError):
    """A patch that means nothing; the message says why."""


def merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> Wire:
    """Return an object after a patch. Raises StrategicMergeError."""
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {field: value for field, value in patch.items() if field != _PATCH}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise StrategicMergeError(f"{_PATCH} must be replace, merge or delete, not {str(directive)[:100]!r}")
    after = _without_deleted(before, patch)
    for field, value in patch.items():
        if field.startswith("$"):
            continue
        if value is None:
            after.pop(field, None)
        elif isinstance(value, Mapping):
            old = after.get(field)
            after[field] = merged(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list):
            after[field] = _merged_list(field, after.get(field), value)
        else:
            after[field] = value
    for field in patch:
        if field.startswith(_ORDER):
            name = field.removeprefix(_ORDER)
            if isinstance(after.get(name), list):
                after[name] = _ordered(name, after[name], _list_of(patch, field))
    return after


def _without_deleted(before: Mapping[str, Any], patch: Mapping[str, Any]) -> Wire:
    """Return an object without the fields that a patch does not retain, and without the texts that it deletes from lists."""
    kept = _list_of(patch, _RETAIN) if _RETAIN in patch else before
    after = {field: value for field, value in before.items() if field in kept}
    for field in patch:
        if field.startswith(_DELETED):
            gone = _list_of(patch, field)
            name = field.removeprefix(_DELETED)
            after[name] = [one for one in _list_of(after, name) if one not in gone]
    return after


def _merged_list(field: str, old: Any, patch: list[Any]) -> list[Any]:
    known = old if isinstance(old, list) else []
    if field in _MERGED:
        return [*known, *(one for one in patch if one not in known)]
    key = _KEYS.get(field)
    if key is None or not all(isinstance(one, Mapping) for one in (*known, *patch)):
        return list(patch)
    if any(one.get(_PATCH) == "replace" for one in patch):
        return [
            {name: value for name, value in one.items() if name != _PATCH}
            for one in patch
            if len(one) > 1 or _PATCH not in one
        ]
    found = [dict(one) for one in known]
    for one in patch:
        if key not in one:
            raise StrategicMergeError(f"an item of {field} has no {key}, by which items are merged")
        at = next((index for index, item in enumerate(found) if item.get(key) == one[key]), None)
        if one.get(_PATCH) == "delete":
            found = [item for item in found if item.get(key) != one[key]]
        elif at is None:
            found.append(merged({}, one))
        else:
            found[at] = merged(found[at], one)
    return found


def _ordered(field: str, items: list[Any], order: Sequence[Any]) -> list[Any]:
    """Return items in an order; those that it does not name stay behind the items that they follow."""
    key = _KEYS.get(field)

    def name_of(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, Mapping) else item

    places = {repr(name_of(one)): place for place, one in enumerate(order)}
    ranked, last = [], -1
    for index, item in enumerate(items):
        last = places.get(repr(name_of(item)), last)
        ranked.append((last, index, item))
    return [item for _, _, item in sorted(ranked, key=lambda one: one[:2])]


def _list_of(value: Mapping[str, Any], field: str) -> list[Any]:
    found = value.get(field) or []
    if not isinstance(found, list):
        raise StrategicMergeError(f"{field} must be a list")
    return found
