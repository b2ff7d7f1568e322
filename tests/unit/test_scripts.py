"""The scripts of a developer's day: which tests a change may break, and an empty migration."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def changed_tests() -> dict[str, Any]:
    """The names of the script; it reads each file once."""
    return runpy.run_path(str(ROOT / "scripts/changed-tests"))


@pytest.fixture(scope="module")
def affected(changed_tests: dict[str, Any]) -> list[str]:
    """The tests that a change of the fair share may break."""
    files = [
        str(path.relative_to(ROOT))
        for top in ("dispatcher", "trainmaster", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    tests: list[str] = changed_tests["affected"](
        {"dispatcher/trainmaster_dispatcher/scheduling/quotas/fair_share.py"}, files
    )
    return tests


def test_a_changed_module_names_the_tests_that_import_it_through_others(affected: list[str]) -> None:
    assert "tests/unit/test_scheduling_order.py" in affected
    assert "tests/integration/test_cycle.py" in affected


def test_tests_that_do_not_import_it_are_not_named(affected: list[str]) -> None:
    assert "tests/unit/test_quantities.py" not in affected
    assert "tests/unit/test_job_machine.py" not in affected


def test_a_file_that_is_no_python_counts_for_the_tests_that_name_it(changed_tests: dict[str, Any]) -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")]
    assert "tests/unit/test_openapi.py" in changed_tests["affected"]({"scripts/rest-reference"}, files)


def test_a_page_counts_for_the_tests_of_all_pages(changed_tests: dict[str, Any]) -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")]
    tests = changed_tests["affected"]({"docs/how-to/keep-output.md"}, files)
    assert {"tests/unit/test_docs_blocks.py", "tests/e2e/test_pages.py"} <= set(tests)


def test_what_a_registry_imports_by_name_counts_for_the_tests_of_the_registry(changed_tests: dict[str, Any]) -> None:
    files = [str(path.relative_to(ROOT)) for top in ("dispatcher", "tests") for path in (ROOT / top).rglob("*.py")]
    money = "dispatcher/trainmaster_dispatcher/scheduling/selection/scores/money.py"
    assert "tests/unit/test_scheduling_money.py" in changed_tests["affected"]({money}, files)


def test_a_commit_that_does_not_exist_is_an_error() -> None:
    done = script("changed-tests", "no-such-commit")
    assert done.returncode == 2
    assert "no-such-commit" in done.stderr


def test_a_migration_follows_the_newest_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = runpy.run_path(str(ROOT / "scripts/migration"))
    folder = tmp_path / "migrations/trainmaster_migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "versions/0041_before.py").touch()
    (folder / "script.py.mako").write_text((found["FOLDER"] / "script.py.mako").read_text())
    monkeypatch.setitem(found["main"].__globals__, "FOLDER", folder)
    found["main"](["add_colour"])
    written = (folder / "versions/0042_add_colour.py").read_text()
    assert 'revision = "0042"' in written
    assert 'down_revision = "0041"' in written
    assert written.startswith('"""Add colour.')
    compile(written, "0042_add_colour.py", "exec")


@pytest.mark.parametrize("arguments", [[], ["Add Colour"], ["a", "b"], ["../x"]])
def test_a_migration_without_a_proper_name_is_refused(arguments: list[str]) -> None:
    done = script("migration", *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr
