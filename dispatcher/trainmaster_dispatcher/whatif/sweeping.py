"""Values of a sweep over a field of burst policies, such as ``burst.after=none,0s,5m``. Pure."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.suggestions import similar
from trainmaster.protocol.validation_errors import mistakes_of, worded

_BURST = "burst."
NONE = "none"
"""Instead of a value: as if the policies were paused."""
_SHORT = {"after": "when.after", "expectedWait": "when.expectedWait", "jobs": "atMost.jobs", "nodes": "atMost.nodes"}


def is_burst(name: str) -> bool:
    """Return whether a setting is a field of burst policies."""
    return name.startswith(_BURST)


def with_burst(documents: Sequence[Document], name: str, value: str) -> list[Document]:
    """Return the documents with a field of their burst policies, named by its path, set to a value.

    Raises ProblemError, with the field as it is named here, also where the field or the value is wrong.
    """
    if not any(document.kind == "BurstPolicy" for document in documents):
        raise ProblemError(Code.INVALID_SPEC, f"{name} is a field of burst policies, and there is no burst policy")
    return [_changed(one, name, value) if one.kind == "BurstPolicy" else one for one in documents]


def _changed(document: Document, name: str, value: str) -> Document:
    if value == NONE:
        return replace(document, value={**document.value, "paused": True})
    path = name.removeprefix(_BURST)
    changed = with_field(document, path, value)
    before = _mistakes(document)
    for mistake in _mistakes(changed):
        if mistake not in before:
            if mistake.path != path:
                raise ProblemError(Code.INVALID_SPEC, f"{name}={value}: {worded(mistake)}")
            known = (*_SHORT, *(info.alias or field for field, info in BurstPolicySpec.model_fields.items()))
            near = similar(path, known)
            sentence = mistake.message.partition("; did you mean")[0]
            raise ProblemError(
                Code.INVALID_SPEC, f"{name}={value}: {sentence}{f'; did you mean {_BURST}{near}?' if near else ''}"
            )
    return changed


def _mistakes(document: Document) -> Sequence[Mistake]:
    try:
        BurstPolicySpec.model_validate(document.value)
    except ValidationError as error:
        return mistakes_of(error)
    return ()


def with_field(document: Document, path: str, value: str) -> Document:
    """Return a document with the field at a path set to a value, whether or not it has such a field."""
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
