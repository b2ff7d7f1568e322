"""What leaves the store has a type: no function gives out rows that anything may be read from, and nobody else knows the driver's."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_names import ROOT

_DISPATCHER = ROOT / "dispatcher" / "trainmaster_dispatcher"
_STORE = sorted((_DISPATCHER / "store").glob("*.py"))
_READERS = sorted(
    path for part in ("services", "api", "scheduler", "worker", "cli") for path in (_DISPATCHER / part).rglob("*.py")
)
_UNTYPED = {"all", "first", "one"}
"""Methods of a transaction whose rows are for use inside one function."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _public_functions(tree: ast.Module) -> Iterator[_Function]:
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        for one in inner:
            if isinstance(one, _Function) and not one.name.startswith("_"):
                yield one


def _annotations(function: _Function) -> Iterator[ast.expr]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (one.annotation for one in every if one is not None and one.annotation is not None)
    if function.returns is not None:
        yield function.returns


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {
        one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)
    }


def _gives_anything(annotation: ast.expr) -> bool:
    """Return whether ``Any`` is in an annotation, but for the values of a dict: those are JSON that is parsed where it is used."""
    if isinstance(annotation, ast.Subscript):
        of = annotation.value
        if isinstance(of, ast.Name) and of.id in ("dict", "Mapping"):
            return False
        return _gives_anything(annotation.slice)
    if isinstance(annotation, ast.BinOp):
        return _gives_anything(annotation.left) or _gives_anything(annotation.right)
    if isinstance(annotation, ast.Tuple):
        return any(_gives_anything(one) for one in annotation.elts)
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def _hands_rows_on(function: _Function) -> bool:
    """Return whether a function returns what ``tx.all``, ``tx.first`` or ``tx.one`` gives as it is, so that its
    annotation is not checked."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Return) or not isinstance(node.value, ast.Await):
            continue
        call = node.value.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _UNTYPED:
            return True
    return False


def faults(source: str) -> list[str]:
    """Return the public functions of a module of the store whose rows have no type."""
    tree = ast.parse(source)
    return [
        function.name
        for function in _public_functions(tree)
        if any("Row" in _names(annotation) for annotation in _annotations(function))
        or (function.returns is not None and _gives_anything(function.returns))
        or _hands_rows_on(function)
    ]


@pytest.mark.parametrize(
    ("source", "has_fault"),
    [
        ("async def page(tx: Transaction) -> Sequence[Row[Any]]: ...", True),
        ("def view(row: 'x', other: sqlalchemy.Row[Any]) -> int: ...", True),
        ("async def page(tx: Transaction) -> Sequence[Any]: ...", True),
        ("async def find(tx: Transaction) -> Any | None: ...", True),
        ("async def page(tx: Transaction) -> Sequence[Job]:\n    return await tx.all('SELECT 1')", True),
        ("class Store:\n    async def page(self) -> Any: ...", True),
        ("async def page(tx: Transaction) -> Sequence[Job]:\n    return await tx.all_of(Job, 'SELECT 1')", False),
        ("async def spec(tx: Transaction) -> dict[int, dict[str, Any]]: ...", False),
        ("async def has(tx: Transaction) -> bool:\n    return await tx.first('SELECT 1') is not None", False),
        ("def _record(row: Any) -> Any: ...", False),
    ],
)
def test_the_rule_finds_rows_without_a_type(source: str, has_fault: bool) -> None:
    assert bool(faults(source)) is has_fault


@pytest.mark.parametrize("path", [path for path in _STORE if path.name != "database.py"], ids=lambda path: path.stem)
def test_no_row_without_a_type_leaves_the_store(path: Path) -> None:
    assert not faults(path.read_text())


def test_only_the_store_knows_rows_of_the_driver() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in _READERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and any(name.name == "Row" for name in node.names)
    ]
    assert not found
