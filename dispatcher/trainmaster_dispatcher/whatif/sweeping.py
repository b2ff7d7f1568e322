"""Values of a sweep over a field of burst policies, such as ``burst.after=none,0s,5m``. Pure."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import Code, ProblemError

_BURST = "burst."
NONE = "none"
"""Instead of a value: as if the policies were paused."""
_SHORT = {"after": "when.after", "expectedWait": "when.expectedWait", "jobs": "atMost.jobs", "nodes": "atMost.nodes"}


def is_burst(name: str) -> bool:
    """Return whether a setting is a field of burst policies."""
    return name.startswith(_BURST)


def with_burst(documents: Sequence[Document], name: str, value: str) -> list[Document]:
    """Return the documents with a field of their burst policies, named by its path, set to a value. Raises ProblemError."""
    if not any(document.kind == "BurstPolicy" for document in documents):
        raise ProblemError(Code.INVALID_SPEC, f"{name} is a field of burst policies, and there is no burst policy")
    return [_changed(one, name, value) if one.kind == "BurstPolicy" else one for one in documents]


def _changed(document: Document, name: str, value: str) -> Document:
    if value == NONE:
        return replace(document, value={**document.value, "paused": True})
    path = name.removeprefix(_BURST)
    changed = dict(document.value)
    into = changed
    *above, last = _SHORT.get(path, path).split(".")
    for part in above:
        inner = into.get(part)
        into[part] = dict(inner) if isinstance(inner, dict) else {}
        into = into[part]
    into[last] = _scalar(value)
    return replace(document, value=changed)


def _scalar(text: str) -> Any:
    """Return a number or a truth value if the text is one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
