"""Lists: snapshots at a version, pages of them, and the tokens between pages."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from tests.fake_kube import errors
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object
from tests.fake_kube.resources import Resource
from tests.fake_kube.selectors import Selector, read_field_selector, read_label_selector
from tests.fake_kube.store import ExpiredError, Key, Store

_PRESENT = -1
"""Version in the token that a 410 for an expired one offers: go on with what exists now, consistent or not."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a list or a watch asks for, of one namespace or (empty) of all."""

    resource: Resource
    namespace: str
    options: Mapping[str, str]

    def selector(self) -> Selector:
        """Return the selector. Raises ApiError 400 for selectors that cannot be parsed."""
        labels = read_label_selector(self.options.get("labelSelector", ""))
        fields = read_field_selector(self.options.get("fieldSelector", ""), self.resource)
        namespace = self.namespace
        return lambda value: (
            (not namespace or value["metadata"]["namespace"] == namespace) and fields(value) and labels(value)
        )

    @property
    def selects(self) -> bool:
        return bool(self.options.get("labelSelector") or self.options.get("fieldSelector"))

    def number(self, name: str) -> int:
        """Return a whole number of the query, 0 where it is not given; raises ApiError 400."""
        text = self.options.get(name) or "0"
        if not text.isdecimal():
            raise ApiError(400, f"invalid {'resource version' if name == 'resourceVersion' else name}: {text!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.options.get(name) in ("1", "true")


def read_list(store: Store, query: Query) -> Object:
    """Return a list, or a page of one. Raises ApiError: 400, 410 when its version is forgotten, 504 when it is not reached yet."""
    token, version = query.options.get("continue", ""), query.number("resourceVersion")
    if token and version:
        raise ApiError(400, "specifying resource version is not allowed when using continue")
    check_reached(store, version)
    start: tuple[str, str] | None = None
    if token:
        at, start = _read_token(token)
    else:
        at = version if query.options.get("resourceVersionMatch") == "Exact" else _PRESENT
    if at == _PRESENT:
        at = store.version
    selected, limit = query.selector(), query.number("limit")
    rows = sorted(_snapshot(store, query.resource, at, start).items(), key=lambda row: _place(row[0]))
    rows = [(key, value) for key, value in rows if (start is None or _place(key) > start) and selected(value)]
    metadata: Object = {"resourceVersion": str(at)}
    if limit and len(rows) > limit:
        metadata["continue"] = _write_token(at, _place(rows[limit - 1][0]))
        if not query.selects:
            metadata["remainingItemCount"] = len(rows) - limit
        rows = rows[:limit]
    return as_list(query.resource, [value for _, value in rows], metadata)


def as_list(resource: Resource, values: list[Object], metadata: Object) -> Object:
    """Return the list's form; items of built-in kinds do not name their kind, as in a real answer."""
    if not resource.is_custom:
        values = [{name: part for name, part in one.items() if name not in ("kind", "apiVersion")} for one in values]
    return {"kind": f"{resource.kind}List", "apiVersion": resource.group_version, "metadata": metadata, "items": values}


def check_reached(store: Store, version: int) -> None:
    """Check a version. Raises ApiError 504 for a version of the future."""
    if version > store.version:
        details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
        message = f"Too large resource version: {version}, current: {store.version}"
        raise ApiError(504, message, details=details, retry_after=1)


def _snapshot(store: Store, resource: Resource, version: int, start: tuple[str, str] | None) -> dict[Key, Object]:
    try:
        return store.at(resource.id, version)
    except ExpiredError as error:
        if start is None:
            raise errors.expired(version, error.oldest) from error
        message = (
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder"
        )
        raise ApiError(410, message, proceed=_write_token(_PRESENT, start)) from error


def _place(key: Key) -> tuple[str, str]:
    return key.namespace, key.name


def _write_token(version: int, last: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "last": last})).decode()


def _read_token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        token = orjson.loads(base64.urlsafe_b64decode(text))
        namespace, name = token["last"]
        return int(token["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(400, "continue key is not valid") from error
