"""Names say one thing: no class name, public, private or nested, is defined in two modules of production code, but for those listed
here with their reason."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGES = (
    "trainmaster",
    "dispatcher/trainmaster_dispatcher",
    "agent/trainmaster_agent",
    "migrations/trainmaster_migrations",
)
_ALLOWED = {
    "Retries": "how often a job is tried again, as users write it; and what the SDK repeats: both are public names",
    "Xid8": "a column type: migrations are frozen and import nothing of the store",
}


def definitions() -> dict[str, set[str]]:
    """Return the files that define each class, by its name; also those inside classes and functions."""
    found = defaultdict[str, set[str]](set)
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(str(path.relative_to(ROOT)))
    return found


def test_no_class_name_is_defined_in_two_places() -> None:
    twice = {name: sorted(files) for name, files in definitions().items() if len(files) > 1 and name not in _ALLOWED}
    assert not twice


def test_what_is_allowed_is_still_defined_twice() -> None:
    found = definitions()
    assert {name for name in _ALLOWED if len(found[name]) > 1} == set(_ALLOWED)
