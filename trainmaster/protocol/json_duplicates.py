"""Keys that an object of JSON text has twice: parsers keep the last of them silently, and the other is lost."""

import json
from collections import Counter
from typing import Any

import orjson

from trainmaster.protocol.json_limits import path_step

_COLON = b":"
_MOST_FIELDS = 10_000
_ESCAPED = (b"\\u003a", b"\\u003A")


def duplicate_key(text: bytes, value: Any) -> str | None:
    """Return the path of the first key that an object has twice, given the JSON text and what was parsed of it; None if there is none.

    A key that is lost takes its colon with it: where the text has as many colons as the value written again, no key was lost. This
    costs a fraction of parsing; the text is parsed again only where the numbers differ. Text that is nested too deep for Python to
    parse counts as having none: no specification is.
    """
    if isinstance(value, dict) and len(value) > _MOST_FIELDS:
        return None  # refused for its unknown fields: no body has that many
    if not _may_have_lost(text, value):
        return None
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:
        return None
    return _first_twice(pairs)


def _may_have_lost(text: bytes, value: Any) -> bool:
    if any(escaped in text for escaped in _ESCAPED):
        return True
    try:
        return text.count(_COLON) != orjson.dumps(value).count(_COLON)
    except orjson.JSONEncodeError:  # nested deeper than can be written
        return True


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in their order."""


def _first_twice(value: Any) -> str | None:
    todo: list[tuple[Any, str]] = [(value, "")]
    while todo:
        inner, path = todo.pop()
        if isinstance(inner, _Pairs):
            (key, count), *_ = Counter(key for key, _ in inner).most_common(1) or [("", 0)]
            if count > 1:
                return path + path_step(key, is_first=not path)
            todo += [(one, path + path_step(key, is_first=not path)) for key, one in reversed(inner)]
        elif isinstance(inner, list):
            todo += [(one, f"{path}[{index}]") for index, one in reversed(list(enumerate(inner)))]
    return None
