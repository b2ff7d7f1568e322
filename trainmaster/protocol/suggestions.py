"""Suggestions for names that do not exist. Pure."""

from collections.abc import Iterable

_LEAST_LIKENESS = 0.6
"""Part of two names that has to agree, as ``difflib`` counts it."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name that is nearest to ``given``; empty where none is near."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(given, names, 1, _LEAST_LIKENESS)
    if not near and "/" not in given:
        # Of a path, people often give the last part only.
        near = [name for name in names if name.rpartition("/")[2] == given][:1]
    return f"; did you mean {near[0]!r}?" if near and near[0] != given else ""
