"""Nothing is left behind: production code uses every top-level function, class and constant that it defines."""

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_FOLDERS = (".", "dispatcher", "agent", "migrations")
_PACKAGES = ("trainmaster", "trainmaster_dispatcher", "trainmaster_agent", "trainmaster_migrations")
_REGISTERING = frozenset("get post put patch delete head api_route websocket command callback signal".split())  # noqa: SIM905
"""Decorators whose last word is one of these hand their function to FastAPI, Typer or Celery, which call it."""
_FOUND_BY_NAME = (
    "__all__ __getattr__ __dir__".split()  # noqa: SIM905 -- by Python
    + "revision down_revision branch_labels depends_on upgrade downgrade".split()  # noqa: SIM905 -- by Alembic
    + ["register"]  # by the command line, in each module of commands and at each entry point
    + ["SCORE"]  # by the registry of scores, in the module of each
)
_ALLOWED = {
    "trainmaster_dispatcher.cli.checks.store_checks": "for doctor, which finds it by its entry point",
    "trainmaster.cli.kubectl_plugin.main": "of the program kubectl-trainmaster, by pyproject.toml",
    "trainmaster.cli.interrupts.interruptible": "for the demo and the examples, which are programs of their own",
    "trainmaster.client.webhooks.is_genuine": "for receivers of webhooks, by docs/reference/webhooks.md",
    "trainmaster_agent.runtime.local.fork_server.main": "of the fork server, named in the arguments of its process",
    "trainmaster.metrics.exporter.share_between_processes": "for worker processes of one's own, by docs/how-to/monitor.md",
    "trainmaster.metrics.exporter.start_shared_exporter": "for worker processes of one's own, by docs/how-to/monitor.md",
}


class Definition(NamedTuple):
    module: str
    name: str
    line: int
    own: frozenset[int]
    """The ids of the nodes of the definition itself: a recursive call is no use."""


class Module(NamedTuple):
    name: str
    tree: ast.Module


def modules() -> Iterator[Module]:
    for folder, package in zip(_FOLDERS, _PACKAGES, strict=True):
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield Module(".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text()))


def _is_registered(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    words = (ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2] for one in decorators)
    return any(word in _REGISTERING for word in words)


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [] if _is_registered(node) else [node.name]
        case ast.Assign(value=ast.Call(func=ast.Name(id="Table"))):
            return []  # SQLAlchemy's metadata has it; statements name tables as text
        case ast.Assign():
            every = (one for target in node.targets for one in ast.walk(target))
            return [one.id for one in every if isinstance(one, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def definitions(module: Module) -> Iterator[Definition]:
    for node in module.tree.body:
        for name in _names_of(node):
            if name not in _FOUND_BY_NAME:
                yield Definition(module.name, name, node.lineno, frozenset(map(id, ast.walk(node))))


def _uses(module: Module, modules_by_name: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the module and the name of what a module uses, and the id of the node that uses it."""
    imported: dict[str, str] = {}
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                imported |= {one.asname or one.name: one.name for one in node.names}
            case ast.ImportFrom(module=str(source)):
                for one in node.names:
                    imported[one.asname or one.name] = f"{source}.{one.name}"
                    yield source, one.name, id(node)
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name() | ast.Attribute()):
                owner = imported.get(node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value))
                if owner is not None and owner in modules_by_name:
                    yield owner, node.attr, id(node)
            case ast.Name(ctx=ast.Load()):
                yield module.name, node.id, id(node)
            case ast.Constant(value=str(text)) if text.isidentifier():  # a type that is named before it is defined
                yield module.name, text, id(node)


def unused(every: Iterable[Module]) -> list[Definition]:
    """Return the definitions that neither another module nor other code of their own module uses."""
    every = list(every)
    names, users = {module.name for module in every}, defaultdict[tuple[str, str], set[int]](set)
    for module in every:
        for source, name, user in _uses(module, names):
            users[source, name].add(user)
    return [one for module in every for one in definitions(module) if not users[one.module, one.name] - one.own]


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return {f"{one.module}.{one.name}": one.line for one in unused(modules())}


def test_all_code_is_used(found: dict[str, int]) -> None:
    left = [f"{name}, line {line}" for name, line in found.items() if name not in _ALLOWED]
    assert not left, "\n".join(left)


def test_what_is_allowed_is_still_unused(found: dict[str, int]) -> None:
    assert _ALLOWED.keys() <= found.keys()


def test_what_is_used_by_itself_alone_is_found() -> None:
    code = "def a():\n    return a()\nB = 1\nC = B\n_D: int = 2\n@app.get('/')\ndef e(): ...\ndef f(): ...\ng.f\nx.C\n"
    assert [one.name for one in unused([Module("m", ast.parse(code))])] == ["a", "C", "_D", "f"]
    other = Module("n", ast.parse("import m\nfrom m import a\nprint(C, m.f)"))
    assert [one.name for one in unused([Module("m", ast.parse(code)), other])] == ["C", "_D"]
