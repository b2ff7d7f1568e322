"""Unknown fields of objects, which a client may have left out with a warning instead of being refused (``fieldValidation``). Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD

_STEP = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')


def steps_of(path: str) -> list[str | int] | None:
    """Return the keys and indexes of a path as mistakes have it; None for one that is cut off."""
    found: list[str | int] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return None
        name, index, quoted = step.groups()
        found.append(name if name is not None else int(index) if index is not None else json.loads(quoted))
        at = step.end()
    return found


def without_unknown(item: Any, mistakes: Iterable[Mistake]) -> list[str]:
    """Remove from an object the unknown fields that mistakes are about; return the paths of those that were removed."""
    removed = []
    for one in mistakes:
        steps = steps_of(one.path) if one.message.startswith(UNKNOWN_FIELD) else None
        if steps and _remove(item, steps):
            removed.append(one.path)
    return removed


def _remove(item: Any, steps: Sequence[str | int]) -> bool:
    for step in steps[:-1]:
        inside = dict(enumerate(item)) if isinstance(item, list) else item
        if not isinstance(inside, dict) or step not in inside:
            return False
        item = inside[step]
    if not isinstance(item, dict) or steps[-1] not in item:
        return False
    del item[steps[-1]]
    return True
