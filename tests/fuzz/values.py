"""Values that no honest sender sends, and documents with one of them in each field.

``NASTY`` are Python values, for code that is called directly; ``to_json`` writes documents that hold them as JSON text, together with
what Python cannot express (``Raw``): numbers of a million digits, ten thousand brackets, a key twice.
"""

import copy
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan
from typing import Any

IS_DEEP = os.environ.get("TRAINMASTER_DEEP") == "1"
MEGABYTE = 2**20
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Raw:
    """JSON text, or what pretends to be, in the place of a value."""

    text: str

    def __repr__(self) -> str:
        return f"Raw({self.text[:40]!r}, {len(self.text)} characters)"


def nested(depth: int) -> Any:
    """Return lists in mappings in lists, ``depth`` levels deep."""
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


NASTY: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus zero": -0.0,
    "one": 1,
    "minus one": -1,
    "a fraction": 0.5,
    "the least fraction": 5e-324,
    "a number of money": 0.1 + 0.2,
    "beyond 16 bits": 40_000,
    "32 bits": 2**31,
    "53 bits": 2**53 + 1,
    "62 bits": 2**62,
    "beyond 62 bits": 2**62 + 1,
    "64 bits": 2**63,
    "minus 64 bits": -(2**63) - 1,
    "beyond 64 bits": 2**64,
    "a hundred digits": 10**100,
    "a large float": 1e308,
    "infinity": inf,
    "minus infinity": -inf,
    "not a number": nan,
    "empty text": "",
    "a space": " ",
    "a line end": "\n",
    "a name and a line end": "main\n",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "a lone surrogate": "\ud800",
    "two lone surrogates the wrong way round": "\udc00\ud800",
    "beyond the basic plane": "\U0001f4a5",
    "right to left": "\u202etxt.exe",
    "other digits": "\u0661\u0662",
    "a number as text": "1",
    "nan as text": "nan",
    "infinity as text": "Infinity",
    "true as text": "true",
    "a duration": "10m",
    "ten years": "3650d",
    "a duration of digits": "1" * 60_000,
    "a quantity": "1Gi",
    "a negative quantity": "-1",
    "a large exponent": "1e999",
    "a path": "../../etc/passwd",
    "an option": "--help",
    "a statement": "'; DROP TABLE jobs; --",
    "a format": "%s%n{0}{__class__}${HOME}",
    "markup": "<script>alert(1)</script>",
    "a url": "http://169.254.169.254/latest",
    "slashes": "/" * 300,
    "stars": "*" * 300,
    "backslashes": "\\" * 301,
    "64 characters": "a" * 64,
    "300 characters": "a" * 300,
    "33,000 characters": "a" * 33_000,
    "empty list": [],
    "empty mapping": {},
    "a list of null": [None],
    "a list of lists": [[[]]],
    "a list of a mapping": [{}],
    "a list of numbers": [1, 2, 3],
    "a list of texts": ["a", "b"],
    "the same twice": ["a", "a"],
    "many texts": ["a"] * 20_000,
    "many mappings": [{}] * 5_000,
    "a mapping of null": {"a": None},
    "a mapping of an empty key": {"": ""},
    "a mapping of a number": {"a": 1},
    "a mapping of a surrogate": {"\ud800": "a"},
    "a mapping of NUL": {"\0": "\0"},
    "a mapping of many": {f"k{n}": "v" for n in range(5_000)},
    "a mapping of a long key": {"k" * 5_000: "v"},
    "constructor": {"__proto__": {}, "__class__": "x"},
    "deep": nested(150),
}
"""By what they are."""
LARGE: dict[str, Any] = {
    "a megabyte": "a" * MEGABYTE,
    "a megabyte of digits": "1" * MEGABYTE,
    "a megabyte of durations": "0s" * (MEGABYTE // 2),
    "a megabyte of slashes": "/" * MEGABYTE,
    "a megabyte of quotation marks": '"' * (MEGABYTE // 2),
    "a hundred thousand items": [1] * 100_000,
    "a hundred thousand keys": {f"k{n}": 1 for n in range(100_000)},
    "deeper than parsers go": nested(900),
}
RAW: dict[str, Raw] = {
    "nothing": Raw(""),
    "a number of a million digits": Raw("1" * MEGABYTE),
    "a number of 5,000 digits": Raw("9" * 5_000),
    "a fraction of 5,000 digits": Raw("0." + "3" * 5_000),
    "an exponent without end": Raw("1e999999999"),
    "Infinity": Raw("Infinity"),
    "-Infinity": Raw("-Infinity"),
    "NaN": Raw("NaN"),
    "ten thousand lists": Raw("[" * 10_000 + "]" * 10_000),
    "ten thousand mappings": Raw('{"a":' * 10_000 + "1" + "}" * 10_000),
    "a key twice": Raw('{"a": 1, "a": 2}'),
    "a list that is open": Raw("[1"),
    "a text that is open": Raw('"a'),
    "a comment": Raw("1 /* x */"),
    "a number with a plus": Raw("+1"),
    "hexadecimal": Raw("0x10"),
    "a control character": Raw('"\x01"'),
    "an escaped NUL": Raw('"\\u0000"'),
    "a backslash and an escaped NUL": Raw('"\\\\u0000"'),
    "half an escape": Raw('"\\u12"'),
    "an escaped surrogate": Raw('"\\ud800"'),
}


def to_json(document: Any) -> bytes:
    """Return a document with whatever it holds as JSON text; ``Raw`` stands as it is."""
    raws: list[str] = []

    def place(value: object) -> str:
        if not isinstance(value, Raw):
            raise TypeError(f"{type(value).__name__} is not of JSON")
        raws.append(value.text)
        return f"\0raw {len(raws) - 1}\0"

    text = json.dumps(document, default=place)
    for index, raw in enumerate(raws):
        text = text.replace(f'"\\u0000raw {index}\\u0000"', raw)
    return text.encode()


def fields(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of the document and of each value in it."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from fields(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from fields(value, (*path, index))


def changed(document: Any, path: Path, value: Any) -> Any:
    """Return a document with another value at this path; all else is shared with ``document``."""
    if not path:
        return value
    new = copy.copy(document)
    new[path[0]] = changed(document[path[0]], path[1:], value)
    return new


def without(document: Any, path: Path) -> Any:
    """Return a document without what is at this path, which is not the whole."""
    new = copy.copy(document)
    if len(path) == 1:
        del new[path[0]]
    else:
        new[path[0]] = without(document[path[0]], path[1:])
    return new


@dataclass(frozen=True)
class Mutant:
    """A document with a mistake; ``what`` names the mistake."""

    what: str
    document: Any


def mutants(documents: dict[str, Any], count: int, seed: int, values: dict[str, Any]) -> Iterator[Mutant]:
    """Yield ``count`` documents, each with one or two fields that hold one of these values, are missing, or are not known.

    Fields and values are drawn in pairs: each pair comes once before any comes twice.
    """
    chance = random.Random(seed)
    pairs = [
        (name, path, value) for name, document in documents.items() for path in fields(document) for value in values
    ]
    dealt: list[tuple[str, Path, str]] = []
    for number in range(count):
        if not dealt:
            dealt = chance.sample(pairs, len(pairs))
        name, path, value = dealt.pop()
        at = ".".join(map(str, path)) or "(whole)"
        mutant = changed(documents[name], path, values[value])
        what = f"{name}: {at} is {value}"
        if number % 10 == 1 and path:
            mutant, what = without(documents[name], path), f"{name}: no {at}"
        elif number % 10 == 2 and isinstance(mutant, dict):
            mutant, what = {**mutant, "unknown": values[value]}, f"{what}; unknown is {value}"
        elif number % 10 == 3:
            second, other = chance.choice(list(fields(documents[name]))), chance.choice(list(values))
            if second[: len(path)] != path and path[: len(second)] != second:
                mutant = changed(mutant, second, values[other])
                what = f"{what}; {'.'.join(map(str, second))} is {other}"
        yield Mutant(what, mutant)
