"""Results of a run: one small JSON object that its member of rank 0 writes, and that the dispatcher stores with the run's end.

Standard library only: the supervisors of the local runtime import it.
"""

import json
import re
from math import isfinite
from typing import Any, NoReturn

RESULTS_VARIABLE = "TRAINMASTER_RESULTS"
"""Variable of the member of rank 0 with the path of the file for its results."""
MOST_RESULTS_BYTES = 4096
"""The most bytes of results: as many as a kubelet passes on of a termination message."""
MOST_RESULTS = 64
"""The most names of results."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_DEEPEST = 32
_LARGEST = 2**63 - 1
_SHOWN = 80
"""The most characters of a wrong name in a sentence."""


def read_results(text: str | bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the results that a text has, and the predicate of a sentence on why it has none; for a blank text neither."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if not raw.strip():
        return None, ""
    if len(raw) > MOST_RESULTS_BYTES:
        return None, f"have more than {MOST_RESULTS_BYTES} bytes"
    try:
        found = json.loads(raw.decode(), parse_constant=_refuse)
    except RecursionError:
        return None, f"are nested deeper than {_DEEPEST} levels"
    except ValueError as error:
        is_cut = len(raw) == MOST_RESULTS_BYTES
        return None, f"are not a JSON object: {error}" + ("; a longer text is cut to this length" if is_cut else "")
    if not isinstance(found, dict):
        return None, "are not a JSON object but another JSON value"
    wrong = mistake_in(found)
    return (None, wrong) if wrong else (found, "")


def mistake_in(results: dict[str, Any]) -> str:
    """Return what is wrong with the names and values of results, as the predicate of a sentence; empty if nothing is."""
    if len(results) > MOST_RESULTS:
        return f"have {len(results)} names, at most {MOST_RESULTS} are allowed"
    for name in results:
        if not _NAME.fullmatch(name):
            shown = json.dumps(name[:_SHOWN])
            return f"have the name {shown}: a name has letters, digits and _, at most 63, no digit first"
    for name, value in results.items():
        if wrong := _mistake_in_value(value):
            return f"have a value that cannot be stored: {name} {wrong}"
    return ""


def _mistake_in_value(value: Any) -> str:
    level = [value]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for one in level:
            if wrong := _mistake_in_scalar(one):
                return wrong
            if isinstance(one, dict):
                inner += (*one, *one.values())
            elif isinstance(one, list):
                inner += one
        if not inner:
            return ""
        level = inner
    return f"is nested deeper than {_DEEPEST} levels"


def _mistake_in_scalar(value: Any) -> str:
    if isinstance(value, str):
        is_storable = "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
        return "" if is_storable else "has a NUL character, or half of a surrogate pair"
    if isinstance(value, float) and not isfinite(value):
        return "has a number that is too large"
    return "has a whole number of more than 64 bits" if isinstance(value, int) and abs(value) > _LARGEST else ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
