"""Reading of YAML in which a scalar is what a person means by it.

Beside mappings and lists, YAML holds texts, decimal numbers, true, false and null. What YAML 1.1 reads in a surprising way is text
here: ``1:30:00`` (5400 to YAML 1.1), ``010`` (8), ``0x1F``, ``1_000``, ``2026-11-28``, ``yes``, ``on``. A key that a mapping has
twice is a mistake, as are aliases that expand a small file to a large document.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

_MOST_EXPANDED = 1024 * 1024
"""The most characters that the aliases of a document add to it."""
_TAGS = "tag:yaml.org,2002:"
_NOT_TAKEN_OVER = frozenset(f"{_TAGS}{name}" for name in ("bool", "int", "float", "timestamp", "value"))


def load(text: str) -> Any:
    """Return the value of one YAML document. Raises yaml.YAMLError, and RecursionError for one that is nested too deep."""
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader


def load_all(text: str) -> Iterator[Any]:
    """Yield the values of YAML documents. Raises as ``load`` does."""
    yield from yaml.load_all(text, _Loader)


def place_of(error: Exception) -> str:
    """Return the line, the column and the sentence of an error of reading."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {_sentence(error.problem or error.context or '')}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"it has the character U+{error.character:04X}, which text may not have"
    return str(error)


_SENTENCES = (
    ("found character '\\t'", "a tab cannot indent YAML; write spaces"),
    (
        "mapping values are not allowed",
        "a ':' is not expected here; is the line indented wrongly, or a text not in quotes?",
    ),
    (
        "could not find expected ':'",
        "a ':' is missing after a key; is the line indented wrongly, or a text not in quotes?",
    ),
    ("expected <block end>", "the line is not indented like those above it"),
    ("expected the node content", "a value is missing"),
    ("expected ',' or ']'", "a ',' or ']' is missing"),
    ("expected ',' or '}'", "a ',' or '}' is missing"),
    ("expected <document start>", "a document begins here without '---' before it"),
    ("could not determine a constructor for the tag", "the tag is not known; documents hold plain values only"),
    ("found unhashable key", "a key has to be a text"),
    ("found unexpected end of stream", "a quote or a bracket is not closed"),
    ("while scanning a quoted scalar", "a quote is not closed"),
)
"""Beginnings of the parser's messages, and what they mean to a person."""


def _sentence(problem: str) -> str:
    known = next((sentence for begin, sentence in _SENTENCES if problem.startswith(begin)), None)
    return known or problem.replace("<", "").replace(">", "")


class _Loader(yaml.SafeLoader):
    """The loader; see the module."""

    def compose_mapping_node(self, name: Any) -> yaml.MappingNode:
        """Read a mapping. Raises ConstructorError at a key that it has twice; keys of merged mappings do not count."""
        node: yaml.MappingNode = super().compose_mapping_node(name)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refuse("a key has to be a text", key)
            if key.value in lines:
                raise _refuse(f"the key {key.value!r} is given twice, first in line {lines[key.value]}", key)
            lines[key.value] = key.start_mark.line + 1
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the value of a document. Raises ConstructorError if its aliases make it much larger than the file."""
        whole = _expanded(node, {}, set())
        if whole - _written(node, set()) > _MOST_EXPANDED:
            raise _refuse(f"aliases expand this document to {whole:,} characters, far more than it has", node)
        return super().construct_document(node)


def _refuse(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _inner(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _own(node: yaml.Node) -> int:
    return 2 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)


def _expanded(node: yaml.Node, sizes: dict[int, int], above: set[int]) -> int:
    """Return the size of a node with each of its aliases in full. Raises ConstructorError if it contains itself."""
    key = id(node)
    if key in above:
        raise _refuse("an alias stands for what it is a part of", node)
    if key not in sizes:
        above.add(key)
        sizes[key] = _own(node) + sum(_expanded(one, sizes, above) for one in _inner(node))
        above.discard(key)
    return sizes[key]


def _written(node: yaml.Node, seen: set[int]) -> int:
    """Return the size of a node with each of its parts once."""
    if id(node) in seen:
        return 0
    seen.add(id(node))
    return _own(node) + sum(_written(one, seen) for one in _inner(node))


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in pairs if tag not in _NOT_TAKEN_OVER]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAGS}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAGS}int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAGS}float",
    re.compile(
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
