"""Known names that a mistyped one may be meant to be. Only failures pay for the search."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 60
"""The longest name for which similar ones are searched."""
_SIMILAR = 0.75
"""Part of two names that has to agree, as ``difflib`` counts it."""
_SIMILAR_NAMES = 0.6
"""The same of names that people chose."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known word that is most similar; empty if none is."""
    found = similar(name, known)
    return f"; did you mean {found}?" if found else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name of an object that is most similar to ``name``; empty if none is."""
    found = similar(name, known, _SIMILAR_NAMES)
    return f"; did you mean {found!r}?" if found and found != name else ""


def similar(name: str, known: Iterable[str], cutoff: float = _SIMILAR) -> str | None:
    """Return the known name that is most similar to a mistyped one, however its words are joined.

    The last part of a name is enough: ``gpu`` of ``nvidia.com/gpu``, or ``vision`` of ``research/vision``.
    """
    if not 1 < len(name) <= LONGEST_NAME:
        return None
    by_plain = {plain(one): one for one in known}
    ending = plain(name).rstrip("s")
    by_ending = next((one for one in by_plain.values() if "/" in one and plain(one).rpartition("/")[2] == ending), None)
    if by_ending is not None:
        return by_ending
    close = get_close_matches(plain(name), by_plain, n=1, cutoff=cutoff)
    if close:
        return by_plain[close[0]]
    return next((known for text, known in by_plain.items() if _has_swapped(plain(name), text)), None)


def _has_swapped(one: str, other: str) -> bool:
    """Return whether two words differ by two neighbouring letters that have changed places, as ``Jbo`` and ``Job``."""
    swapped = (one[:at] + one[at + 1] + one[at] + one[at + 2 :] for at in range(len(one) - 1))
    return len(one) == len(other) and other in swapped


def plain(name: str) -> str:
    """Return a name in small letters and without what joins its words."""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()
