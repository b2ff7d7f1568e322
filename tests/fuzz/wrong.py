"""Mistakes as people make them: good documents with one of them, as values, as YAML and JSON text, and as tables."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.fuzz.values import Path, changed, fields, without

Document = dict[str, Any]


@dataclass(frozen=True)
class Wrong:
    """A document with a mistake, as the bytes of a file or a body; ``what`` names the document and the mistake."""

    what: str
    data: bytes


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _typo(name: str, chance: random.Random) -> str:
    if (snake := _snake(name)) != name and chance.random() < 0.5:
        return snake
    place = chance.randrange(len(name))
    return chance.choice((name[:place] + name[place + 1 :] or "x", name.upper(), name.lower() + "s", f"{name}_"))


def _at(document: Any, path: Path) -> Any:
    for part in path:
        document = document[part]
    return document


def _mistyped_key(document: Document, chance: random.Random) -> Document:
    path = chance.choice([one for one in fields(document) if one and isinstance(one[-1], str)])
    above = _at(document, path[:-1])
    name = _typo(str(path[-1]), chance)
    new = {name if key == path[-1] else key: value for key, value in above.items()}
    return copy.deepcopy(changed(document, path[:-1], new))


def _other_type(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return chance.choice(("yes", 1, "true", [value]))
    if isinstance(value, int | float):
        return chance.choice((str(value), True, [value], {"value": value}, value + 0.5))
    if isinstance(value, str):
        return chance.choice((7, True, [value], {value: None}, None))
    if isinstance(value, list):
        return chance.choice((" ".join(map(str, value)), {"0": value}, 1, None))
    return chance.choice(("text", [value], 5, False))


def _wrong_type(document: Document, chance: random.Random) -> Any:
    path = chance.choice(list(fields(document)))
    return changed(document, path, _other_type(_at(document, path), chance))


def _deleted(document: Document, chance: random.Random) -> Document:
    made: Document = without(document, chance.choice([one for one in fields(document) if one]))
    return made


UNITS = (
    "10 minutes",
    "5 GB",
    "1:30:00",
    "1.5.2",
    "-3",
    "99999999999999999999Ei",
    "1h 30m",
    "4gb",
    "12hours",
    "",
    " ",
    "٣",
)
RANGES = (-1, 10**9, 10**30, 2**63, -(2**40), 0, 0.0001, 1e300)


def _wrong_unit(document: Document, chance: random.Random) -> Any:
    path = chance.choice([one for one in fields(document) if isinstance(_at(document, one), str | int | float)])
    return changed(document, path, chance.choice((*UNITS, *RANGES)))


def _wrong_nesting(document: Document, chance: random.Random) -> Document:
    deep = [one for one in fields(document) if len(one) > 1 and isinstance(one[-1], str)]
    if not deep:
        return {"spec": document}
    path = chance.choice(deep)
    moved = {**without(document, path), path[-1]: _at(document, path)}
    return moved if chance.random() < 0.7 else {"spec": document, "kind": document.get("kind")}


VALUES: dict[str, Callable[[Document, random.Random], Any]] = {
    "mistyped key": _mistyped_key,
    "wrong type": _wrong_type,
    "deleted field": _deleted,
    "wrong unit or range": _wrong_unit,
    "wrong nesting": _wrong_nesting,
}


def _twice(text: str, chance: random.Random) -> str:
    """Return JSON text with one of its fields twice."""
    places = [index for index, letter in enumerate(text) if letter == "{" and text[index + 1] == '"']
    place = chance.choice(places) + 1
    key = text[place : text.index('"', place + 1) + 1]
    return f"{text[:place]}{key}: null, {text[place:]}"


JSON: dict[str, Callable[[str, random.Random], bytes]] = {
    "a key twice": lambda text, chance: _twice(text, chance).encode(),
    "a byte order mark": lambda text, _: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text, _: text.encode("utf-16"),
    "nothing": lambda _text, _: b"",
    "cut off": lambda text, chance: text[: chance.randrange(1, len(text))].encode(),
    "a comma too many": lambda text, _: (text[:-1] + ",}").encode(),
    "single quotes": lambda text, _: text.replace('"', "'").encode(),
    "YAML": lambda text, _: yaml.safe_dump(json.loads(text)).encode(),
    "huge": lambda text, _: text.replace("{", '{"description": "' + "x" * 200_000 + '", ', 1).encode(),
    "many": lambda text, _: f"[{text}, {text}]".encode(),
}


def _line_changed(text: str, chance: random.Random, change: Callable[[str], str]) -> bytes:
    lines = text.splitlines()
    place = chance.randrange(len(lines))
    lines[place] = change(lines[place])
    return "\n".join(lines).encode()


YAML: dict[str, Callable[[str, random.Random], bytes]] = {
    "a line moved in": lambda text, chance: _line_changed(text, chance, lambda line: "   " + line),
    "a line moved out": lambda text, chance: _line_changed(text, chance, str.lstrip),
    "a tab": lambda text, chance: _line_changed(text, chance, lambda line: "\t" + line),
    "a line twice": lambda text, chance: _line_changed(text, chance, lambda line: f"{line}\n{line}"),
    "no colon": lambda text, chance: _line_changed(text, chance, lambda line: line.replace(":", "", 1)),
    "an open quote": lambda text, chance: _line_changed(text, chance, lambda line: line.replace(": ", ': "', 1)),
    "a byte order mark": lambda text, _: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text, _: text.encode("utf-16"),
    "Latin 1": lambda text, _: text.encode() + b"description: caf\xe9\n",
    "nothing": lambda _text, _: b"",
    "comments": lambda _text, _: b"# nothing\n---\n# here\n",
    "a bomb": lambda text, _: (
        b"a: &a ["
        + b", ".join([b"x"] * 10)
        + b"]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 10)) for n in b"abcdef")
        + text.encode()
    ),
    "a document too many": lambda text, _: f"{text}---\n{text}".encode(),
    "a list": lambda text, _: b"- just\n- words\n",
    "words": lambda _text, _: b"please run my job\n",
}

TABLES: dict[str, Callable[[str, random.Random], bytes]] = {
    "a byte order mark": lambda text, _: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text, _: text.encode("utf-16"),
    "a column twice": lambda text, _: text.replace("seed", "lr", 1).encode(),
    "a column that is not used": lambda text, _: text.replace("seed", "sed", 1).encode(),
    "a column without a name": lambda text, _: text.replace("seed", "", 1).encode(),
    "semicolons": lambda text, _: text.replace(",", ";").encode(),
    "a line that is short": lambda text, chance: _line_changed(text, chance, lambda line: line.rpartition(",")[0]),
    "a line that is long": lambda text, chance: _line_changed(text, chance, lambda line: line + ",7"),
    "nothing": lambda _text, _: b"",
    "a heading alone": lambda text, _: text.splitlines()[0].encode(),
    "an open quote": lambda text, _: text.replace("0.1", '"0.1').encode(),
    "a NUL": lambda text, _: text.replace("0.1", "0\0").encode(),
    "good": lambda text, _: text.encode(),
}


def wrong_values(documents: dict[str, Document], count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield ``count`` documents with a mistake in their values, by what was done to them."""
    chance = random.Random(seed)
    for number in range(count):
        name = list(documents)[number % len(documents)]
        what = list(VALUES)[number // len(documents) % len(VALUES)]
        yield f"{what}: {name}", VALUES[what](copy.deepcopy(documents[name]), chance)


def wrong_texts(
    documents: dict[str, Document],
    count: int,
    seed: int,
    kinds: dict[str, Callable[[str, random.Random], bytes]],
    write: Callable[[Document], str],
) -> Iterator[Wrong]:
    """Yield ``count`` documents as text with a mistake in the text."""
    chance = random.Random(seed)
    for number in range(count):
        what = list(kinds)[number % len(kinds)]
        name = chance.choice(list(documents))
        yield Wrong(f"{what}: {name}", kinds[what](write(documents[name]), chance))
