"""The three kinds of patch: JSON merge (RFC 7386), JSON patch (RFC 6902), and what strategic merge comes to here."""

from collections.abc import Callable
from typing import Any

from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, copied
from tests.fake_kube.resources import Resource

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

_LIST_KEYS = {"addresses": "type", "conditions": "type", "ownerReferences": "uid", "taints": "key"}
"""``patchMergeKey`` where it is not ``name``."""
_WHOLE_LISTS = ("tolerations", "args", "command")
_SETS = ("finalizers",)
_FROM_SET = "$deleteFromPrimitiveList/"


def apply_patch(resource: Resource, content_type: str, current: Object, patch: Any) -> Object:
    """Return the object with the patch applied; ``current`` is left alone.

    Raises ApiError: 415 for a kind of patch that the resource does not take, 400 for one that cannot be read, 422 for a
    JSON patch that does not apply (a failed ``test`` among them).
    """
    result = copied(current)
    if content_type == JSON:
        if not isinstance(patch, list):
            raise ApiError(400, "error decoding patch: a JSON patch is a list of operations")
        for operation in patch:
            _operate(result, operation)
        return result
    if content_type not in (MERGE, STRATEGIC) or (content_type == STRATEGIC and resource.is_custom):
        raise ApiError(
            415, f"the body of the request was in an unknown format - accepted media types include: {JSON}, {MERGE}"
        )
    if not isinstance(patch, dict):
        raise ApiError(400, "error decoding patch: a merge patch is an object")
    return merged(result, patch) if content_type == MERGE else strategically_merged(result, patch)


def merged(target: Object, patch: Object) -> Object:
    """Merge ``patch`` into ``target`` and return it (RFC 7386): null removes, objects merge, all else replaces."""
    for field, value in patch.items():
        if value is None:
            target.pop(field, None)
        elif isinstance(value, dict):
            inner = target.get(field)
            target[field] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            target[field] = value
    return target


def strategically_merged(target: Object, patch: Object) -> Object:
    """Return a merge in which lists of objects merge by their key, finalizers are a set, and ``$patch`` deletes or replaces."""
    if patch.get("$patch") == "replace":
        return {field: value for field, value in patch.items() if field != "$patch"}
    for field, value in patch.items():
        if field.startswith(_FROM_SET):
            name = field.removeprefix(_FROM_SET)
            target[name] = [one for one in target.get(name) or [] if one not in value]
        elif field.startswith("$"):
            continue
        elif value is None:
            target.pop(field, None)
        elif isinstance(value, dict):
            inner = target.get(field)
            target[field] = strategically_merged(inner if isinstance(inner, dict) else {}, value)
        elif isinstance(value, list):
            target[field] = _merged_list(field, target.get(field) or [], value)
        else:
            target[field] = value
    return target


def _merged_list(field: str, held: list[Any], patch: list[Any]) -> list[Any]:
    if field in _SETS:
        return [*held, *(one for one in patch if one not in held)]
    key = _LIST_KEYS.get(field, "name")
    if field in _WHOLE_LISTS or not patch or not all(isinstance(one, dict) and key in one for one in patch):
        return [one for one in patch if not (isinstance(one, dict) and "$patch" in one)]
    result = list(held)
    if any(one.get("$patch") == "replace" for one in patch):
        result = []
    for one in patch:
        place = next((index for index, old in enumerate(result) if old.get(key) == one[key]), None)
        if one.get("$patch") == "delete":
            if place is not None:
                del result[place]
        elif place is None:
            result.append(strategically_merged({}, one))
        else:
            result[place] = strategically_merged(dict(result[place]), one)
    return result


def _operate(document: Object, operation: Any) -> None:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise ApiError(400, "error decoding patch: an operation is an object with op and path")
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]] or [""]
    parent: Any = document
    for step in steps:
        parent = _inside(parent, step, operation)
    name = operation.get("op")
    if name not in _OPERATIONS:
        raise ApiError(400, f"Unexpected kind: {name}")
    if name != "remove" and name != "test" and "value" not in operation:
        raise ApiError(400, f"error decoding patch: {name} needs a value")
    _OPERATIONS[name](parent, last, operation)


def _inside(parent: Any, step: str, operation: Object) -> Any:
    if isinstance(parent, dict) and step in parent:
        return parent[step]
    if isinstance(parent, list) and step.isdecimal() and int(step) < len(parent):
        return parent[int(step)]
    raise _does_not_apply(f'{operation.get("op")} operation does not apply: doc is missing path: "{operation["path"]}"')


def _add(parent: Any, last: str, operation: Object) -> None:
    if isinstance(parent, dict):
        parent[last] = operation["value"]
    elif isinstance(parent, list) and last == "-":
        parent.append(operation["value"])
    elif isinstance(parent, list) and last.isdecimal() and int(last) <= len(parent):
        parent.insert(int(last), operation["value"])
    else:
        raise _does_not_apply(f'add operation does not apply: doc is missing path: "{operation["path"]}"')


def _remove(parent: Any, last: str, operation: Object) -> None:
    _inside(parent, last, operation)
    del parent[last if isinstance(parent, dict) else int(last)]


def _replace(parent: Any, last: str, operation: Object) -> None:
    _inside(parent, last, operation)
    parent[last if isinstance(parent, dict) else int(last)] = operation["value"]


def _test(parent: Any, last: str, operation: Object) -> None:
    wanted = operation.get("value")
    if wanted is None and isinstance(parent, dict) and parent.get(last) is None:
        return
    if _inside(parent, last, operation) != wanted:
        raise _does_not_apply(f"testing value {operation['path']} failed: test failed")


_OPERATIONS: dict[str, Callable[[Any, str, Object], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
}


def _does_not_apply(why: str) -> ApiError:
    return ApiError(422, f"the server rejected our request due to an error in our request: {why}")
