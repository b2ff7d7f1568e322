"""Docstrings say what code does in plain words: a verb first, no vague words, no stray literals, no retired names."""

# ruff: noqa: SIM905 -- lists of words are read more easily than one name a line

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

ROOT = Path(__file__).parents[2]
_FOLDERS = ("trainmaster", "agent", "dispatcher", "migrations", "tests", "bench", "examples", "scripts")

_CONNECTIVES = frozenset("What How Whether Of By Why Which Who When Where If As So In From With To For".split())
_NOUNS = frozenset(
    "A All An Another Any At Both Each Every Everything It Its No None Nothing One Some Such That The There These They This "
    "Those Two Members Nodes Jobs Runs".split()
)
"""Openings of a noun phrase. A verb in the third person is found by its ``s``."""
_VERBS_ENDING_IN_S = frozenset(
    ("Address", "Compress", "Discuss", "Dismiss", "Express", "Focus", "Miss", "Pass", "Process")
)
_NOT_ACTIONS = ("property", "fixture", "contextmanager", "command", "callback", "overload", "given", "validator")
"""Decorators of functions whose docstring may be a noun phrase or a sentence."""
_PREDICATE = re.compile(r"_?(is|has|can|may|needs|was|are)_")
_VAGUE = re.compile(r"\bso many\b|\balike\b|\b(it|they) (is|are) away\b|\b(is|are) not there\b", re.IGNORECASE)
_VAGUE_MESSAGES = re.compile(
    r"\b(is|are) not there\b|\bnobody knows\b|\bis there (twice|already)\b|\bmended\b|\bfor the (room|place)\b|\bthe room\b|\bsurely\b"
    r"|\b(it|they|which) (is|are) away\b|\b(been|be) (judged|heard from)\b|\bat work\b|\bhave gone\b|\bso many\b|\balike\b",
    re.IGNORECASE,
)
"""Words of messages that leave open what happened, to what, or what to do."""
_PRODUCTION = ("trainmaster/", "agent/", "dispatcher/")
_COMMENTS_OF_TABLES = "dispatcher/trainmaster_dispatcher/store/tables.py"
"""Its strings are comments in the database, which only a migration changes."""
_RETIRED_MODULES = frozenset(
    "anchors asking assess book books burial candidates carrier chance cluster_books costs crew ends facts fate fit floor "
    "following grow growth held hosts intake keeper lacks lines looks memory mistakes moments news observer older_anchors "
    "opening past places planning preempt preparing ranking reads room shortages sinks soft spending standings "
    "steer stopping suiting tails trial untrusted usual view weather windows zones zygote".split()
)
_RETIRED_CLASSES = frozenset(
    "Alike Anchors Book Books Burial Crew Evictions Exchange Fate Floor Held Intake Keeper Later Ledger Line Memory News Nodes "
    "Opening Room Rooms Side SoftState Tails Told Turns Usual View Weather Zygote".split()
)
_RETIRED_FUNCTIONS = frozenset("books bury crew fate parse_line weather zygote".split())
_RETIRED_IDENTIFIERS = frozenset("asked room told".split())
"""Words that do not say what a value is. Strings on the wire and in tables, such as ``"asked"``, are no identifiers."""
_RETIRED_WORDS = frozenset(
    "alike anchor anchors assess burial carrier crew fate intake keepers preparing shortages simulating sink sinks standings steer "
    "suiting untrusted weather zygote".split()
)
"""Earlier names of the glossary's terms, as any word of an identifier. Names of tests are sentences and may contain them."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mistake(NamedTuple):
    rule: str
    line: int
    words: str


class Source:
    """A file's syntax: all its nodes, and its functions with their docstrings."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.nodes = tuple(ast.walk(tree))
        functions = ((node, ast.get_docstring(node)) for node in self.nodes if isinstance(node, Function))
        self.functions = tuple((node, docstring) for node, docstring in functions if docstring)


def sources() -> Iterator[Source]:
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield Source(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))


def _first_word(docstring: str) -> str:
    return docstring.split(maxsplit=1)[0].rstrip(",.:;")


def openings(source: Source) -> Iterator[Mistake]:
    for node, docstring in source.functions:
        if _first_word(docstring) in _CONNECTIVES:
            yield Mistake("opening", node.lineno, f"{node.name}: {docstring[:60]}")


def _is_action(node: Function) -> bool:
    decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
    return not node.name.startswith(("test_", "__")) and not any(word in decorators for word in _NOT_ACTIONS)


def nouns(source: Source) -> Iterator[Mistake]:
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef) and source.path.startswith(_PRODUCTION):
            docstring = ast.get_docstring(node)
            if docstring and _first_word(docstring) in ("What", "How", "Whether", "Why"):
                yield Mistake("noun", getattr(node, "lineno", 1), docstring[:60])


def verbs(source: Source) -> Iterator[Mistake]:
    for node, docstring in source.functions:
        word = _first_word(docstring)
        ends_in_s = word.endswith("s") and word not in _VERBS_ENDING_IN_S
        if _is_action(node) and (word in _NOUNS or ends_in_s or not word[0].isupper()):
            yield Mistake("verb", node.lineno, f"{node.name}: {docstring[:60]}")


def predicates(source: Source) -> Iterator[Mistake]:
    for node, docstring in source.functions:
        is_bool = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        if is_bool and _PREDICATE.match(node.name) and not docstring.startswith("Return whether "):
            yield Mistake("predicate", node.lineno, f"{node.name}: {docstring[:60]}")


def _is_literal(statement: ast.stmt) -> TypeGuard[ast.Expr]:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _documents(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.Expr, bool]]:
    """Yield every string that stands as a statement, and whether it documents something: its block, or the field before it."""
    for node in nodes:
        for block in ("body", "orelse", "finalbody"):
            before: ast.AST | None = None
            for statement in () if isinstance(node, ast.IfExp | ast.Lambda) else getattr(node, block, ()):
                if _is_literal(statement):
                    opens = (
                        before is None and block == "body" and isinstance(node, ast.Module | ast.ClassDef | Function)
                    )
                    yield statement, opens or isinstance(before, ast.Assign | ast.AnnAssign)
                before = statement


def vague_words(source: Source) -> Iterator[Mistake]:
    for statement, _ in _documents(source.nodes):
        assert isinstance(statement.value, ast.Constant)
        found = _VAGUE.search(" ".join(str(statement.value.value).split()))
        if found:
            yield Mistake("vague", statement.lineno, found[0])


def vague_messages(source: Source) -> Iterator[Mistake]:
    if not source.path.startswith(_PRODUCTION) or source.path == _COMMENTS_OF_TABLES:
        return
    documents = {id(statement.value) for statement, _ in _documents(source.nodes)}
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            found = _VAGUE_MESSAGES.search(" ".join(node.value.split()))
            if found:
                yield Mistake("message", node.lineno, found[0])


def stray_literals(source: Source) -> Iterator[Mistake]:
    for statement, documents in _documents(source.nodes):
        if not documents:
            yield Mistake("literal", statement.lineno, ast.unparse(statement)[:60])


def retired_names(source: Source) -> Iterator[Mistake]:
    stem = Path(source.path).stem
    if stem in _RETIRED_MODULES:
        yield Mistake("name", 1, f"module {stem}")
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and node.name in _RETIRED_CLASSES:
            yield Mistake("name", node.lineno, f"class {node.name}")
        if isinstance(node, Function) and node.name.lstrip("_") in _RETIRED_FUNCTIONS:
            yield Mistake("name", node.lineno, f"function {node.name}")


def _identifiers(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the names of variables, parameters, arguments, attributes, functions, classes and imports."""
    for node in nodes:
        for field in ("id", "arg", "attr", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 1), name


def retired_identifiers(source: Source) -> Iterator[Mistake]:
    for line, name in _identifiers(source.nodes):
        if name.strip("_").lower() in _RETIRED_IDENTIFIERS:
            yield Mistake("identifier", line, name)


def retired_words(source: Source) -> Iterator[Mistake]:
    for line, name in _identifiers(source.nodes):
        if not name.startswith("test_") and not _RETIRED_WORDS.isdisjoint(map(str.lower, _WORD.findall(name))):
            yield Mistake("word", line, name)


RULES: dict[str, Callable[[Source], Iterator[Mistake]]] = {
    "opening": openings,
    "noun": nouns,
    "verb": verbs,
    "predicate": predicates,
    "vague": vague_words,
    "message": vague_messages,
    "literal": stray_literals,
    "name": retired_names,
    "identifier": retired_identifiers,
    "word": retired_words,
}


@pytest.fixture(scope="module", name="everything")
def _everything() -> tuple[Source, ...]:
    return tuple(sources())


@pytest.mark.parametrize("rule", RULES)
def test_every_docstring_keeps_the_rule(rule: str, everything: tuple[Source, ...]) -> None:
    found = [
        f"{source.path}:{mistake.line} {mistake.words}" for source in everything for mistake in RULES[rule](source)
    ]
    assert not found, "\n".join(found)


WRONG = {
    "opening": 'def f() -> int:\n    """What it is."""',
    "noun": 'class C:\n    """What it is."""',
    "verb": 'def f() -> int:\n    """The size."""',
    "predicate": 'def is_open() -> bool:\n    """True if it is open."""',
    "vague": 'def f(many: int) -> None:\n    """Drop so many."""',
    "message": "raise fail('the queue is not there')",
    "literal": 'f()\n"""Says nothing about anything."""',
    "name": "class Keeper:\n    pass",
    "identifier": "class Phase(Enum):\n    ASKED = auto()",
    "word": "from agent import OrderIntake",
}
RIGHT = {
    "opening": 'def f() -> int:\n    """Return what it is."""',
    "noun": 'class C:\n    """The size of it."""',
    "verb": '@property\ndef size() -> int:\n    """The size."""\ndef f() -> None:\n    """Pass it on."""',
    "predicate": 'def is_open() -> bool:\n    """Return whether it is open."""',
    "vague": 'def f(many: int) -> None:\n    """Drop ``many`` items."""',
    "message": "raise fail('the queue does not exist')",
    "literal": 'size = 1\n"""Number of items."""\nclass C:\n    """A class."""\n    of: int\n    """A field."""',
    "name": "class Supervisor:\n    pass",
    "identifier": 'class Phase(Enum):\n    REQUESTED = "asked"\ndef has_room() -> None:\n    pass',
    "word": "def test_an_anchor_is_moved() -> None:\n    anchored = 1",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: str) -> None:
    assert len(list(RULES[rule](Source("agent/b.py", ast.parse(WRONG[rule]))))) == 1
    assert not list(RULES[rule](Source("agent/b.py", ast.parse(RIGHT[rule]))))
    third_person = ast.parse('def f() -> None:\n    """Writes it down."""')
    assert len(list(verbs(Source("agent/b.py", third_person)))) == 1
