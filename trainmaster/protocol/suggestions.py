"""Known names that a mistyped one may be meant to be. Only failures pay for the search."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 60
"""The longest name for which similar ones are searched."""
_SIMILAR = 0.75
_LEAST_LIKENESS = 0.6
"""Part of two names that has to agree, as ``difflib`` counts it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known name that is most similar; empty if none is."""
    found = similar(name, known)
    return f"; did you mean {found}?" if found else ""


def similar(name: str, known: Iterable[str], cutoff: float = _SIMILAR) -> str | None:
    """Return the known name that is most similar to a mistyped one, however its words are joined."""
    if not 1 < len(name) <= LONGEST_NAME:
        return None
    by_plain = {plain(one): one for one in known}
    close = get_close_matches(plain(name), by_plain, n=1, cutoff=cutoff)
    return by_plain[close[0]] if close else None


def plain(name: str) -> str:
    """Return a name in small letters and without what joins its words."""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name that is nearest to ``given``; empty where none is near."""
    names = list(known)
    near = get_close_matches(given, names, 1, _LEAST_LIKENESS)
    if not near and "/" not in given:
        # Of a path, people often give the last part only.
        near = [name for name in names if name.rpartition("/")[2] == given][:1]
    return f"; did you mean {near[0]!r}?" if near and near[0] != given else ""
