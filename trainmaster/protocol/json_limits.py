"""Reading of JSON of unknown shape: a wrong shape becomes a mistake at its path, never an exception.

As in Kubernetes, a null is the same as a missing field, except in mappings whose keys are data (labels).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.suggestions import did_you_mean

_LONGEST_PATH = 300
_MOST_VALUES = 5_000
_LONGEST_VALUE = 60
_LONGEST_KEY = 100
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_@=-]+")
_LARGE = 10**18
_STRUCTURE = (b",", b":", b"{", b"[")
_STRING = rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z)'
"""A string of JSON text; one that does not end is matched to the end, so that the search takes linear time."""
_STRINGS = re.compile(_STRING, re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]*+' + _STRING + rb"){1,4096}+", re.DOTALL)
"""A piece of JSON text that ends with a string."""


def is_too_large(document: object) -> bool:
    """Return whether a document has more than 5,000 values: no honest pod has, and checking them would cost too much."""
    rest: list[object] = [document]
    count = 0
    while rest and count <= _MOST_VALUES:
        value = rest.pop()
        count += 1
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count > _MOST_VALUES


def has_more_marks(body: bytes, most: int) -> bool:
    """Return whether JSON text has more than ``most`` commas, colons and opening brackets outside its strings.

    Each value and each key has one of them, but for the first in a list. It takes linear time, and hardly any for a text of at
    most ``most`` bytes or with few such characters in all; parsed values take up to 90 bytes each.
    """
    if len(body) <= most or _marks(body) <= most:  # also counts what strings hold
        return False
    count = end = 0
    while count <= most and (piece := _PIECE.match(body, end)):
        end = piece.end()
        count += _marks(_STRINGS.sub(b"", piece.group()))
    return count + _marks(body, end) > most


def check_values(body: bytes, most: int) -> None:
    """Check, before JSON text is parsed, that it has at most about ``most`` values: each takes far more memory than its text.

    Raises ProblemError BODY_TOO_LARGE.
    """
    if has_more_marks(body, 2 * most):  # a field has a colon and a comma
        raise ProblemError(Code.BODY_TOO_LARGE, f"the body has more than {most} values, the most that it may have")


def _marks(body: bytes, start: int = 0) -> int:
    return sum(body.count(mark, start) for mark in _STRUCTURE)


def shown(value: object) -> str:
    """Return a value as a message may quote it: short and printable, whatever a tenant sent."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = repr(value[: _LONGEST_VALUE + 1])
    elif isinstance(value, int | float):
        text = str(value) if abs(value) < _LARGE else f"{value:.3g}" if isinstance(value, float) else "a huge number"
    elif isinstance(value, Mapping):
        text = "a mapping"
    elif isinstance(value, list | tuple | set | frozenset):
        text = "a list"
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def path_step(part: str | int, *, is_first: bool) -> str:
    """Return a further step of a path as a person writes it: ``[0]``, ``.cpu``, or ``["nvidia.com/gpu"]`` where quotes are needed."""
    if isinstance(part, int):
        return f"[{part}]"
    key = part[:_LONGEST_KEY]
    if _PLAIN_KEY.fullmatch(key):
        return key if is_first else f".{key}"
    # Lone surrogates, which JSON's escapes can produce, cannot be sent as UTF-8.
    quoted = json.dumps(key.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return f"[{quoted}]"


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value and its path. All nodes of one document share one list of mistakes."""

    value: object
    path: str
    mistakes: list[Mistake]

    def refuse(self, message: str) -> None:
        # Mistakes are sent as UTF-8, which has no lone surrogates; JSON's escapes can produce them.
        path = self.path[:_LONGEST_PATH].encode("utf-8", "replace").decode()
        self.mistakes.append(Mistake(path=path, message=message))

    @property
    def is_set(self) -> bool:
        return self.value is not None

    def get(self, key: str) -> "JsonNode":
        """Return a field of this mapping; an unset node if it is missing."""
        if isinstance(self.value, dict):
            return self._at(key, self.value.get(key))
        self._pairs()
        return self._at(key, None)

    def fields(self) -> list[tuple[str, "JsonNode"]]:
        """Return the fields that are set, by name."""
        return [(key, self._at(key, value)) for key, value in self._pairs() if value is not None]

    def entries(self) -> list[tuple[str, "JsonNode"]]:
        """Return all entries of a mapping whose keys are data; as in Kubernetes, null values count here."""
        return [(key, self._at(key, value)) for key, value in self._pairs()]

    def items(self) -> list["JsonNode"]:
        """Return the elements of this list."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self.refuse(f"must be a list, not {shown(self.value)}")
            return []
        return [JsonNode(item, f"{self.path}[{index}]", self.mistakes) for index, item in enumerate(self.value)]

    def text(self) -> str | None:
        if self.value is None or isinstance(self.value, str):
            return self.value
        self.refuse(f"must be a text, not {shown(self.value)}")
        return None

    def must_be_text(self) -> None:
        if not isinstance(self.value, str):
            self.refuse(f"must be a text, not {shown(self.value)}")

    def flag(self) -> bool | None:
        if self.value is None or isinstance(self.value, bool):
            return self.value
        self.refuse(f"must be true or false, not {shown(self.value)}")
        return None

    def whole(self) -> int | None:
        if self.value is None or (isinstance(self.value, int) and not isinstance(self.value, bool)):
            return self.value
        self.refuse(f"must be a whole number, not {shown(self.value)}")
        return None

    def only(self, known: frozenset[str]) -> None:
        """Refuse fields outside ``known``: a field that nobody checks is a security hole."""
        for name, node in self.fields():
            if name not in known:
                node.refuse(f"is an unknown field{did_you_mean(name, known)}")

    def _pairs(self) -> list[tuple[str, object]]:
        if self.value is None:
            return []
        if not isinstance(self.value, dict):
            self.refuse(f"must be a mapping, not {shown(self.value)}")
            return []
        pairs = [(key, value) for key, value in self.value.items() if isinstance(key, str)]
        if len(pairs) < len(self.value):
            self.refuse("has a field whose name is not a text")
        return pairs

    def _at(self, key: str, value: object) -> "JsonNode":
        return JsonNode(value, self.path + path_step(key, is_first=not self.path), self.mistakes)
