"""Arrows point one way, and what is pure never asks what time it is."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = (
    "dispatcher/trainmaster_dispatcher/domain",
    "dispatcher/trainmaster_dispatcher/scheduling",
    "trainmaster/cluster_model",
    "trainmaster/fake_cluster",
)
CLOCKS = {
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.clock_gettime",
    "time.sleep",
}
MODULES = sorted(path for folder in PURE for path in (ROOT / folder).rglob("*.py"))


def test_the_layers_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def readings(tree: ast.AST) -> Iterator[str]:
    """Yield the places where a module reads a clock, or imports one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if f"{owner}.{node.attr}" in CLOCKS:
                yield f"line {node.lineno}: {owner}.{node.attr}"
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "time" for alias in node.names):
            yield f"line {node.lineno}: import time"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield f"line {node.lineno}: from time import"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_time_is_a_parameter_of(path: Path) -> None:
    assert list(readings(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from time import time as now",
        "datetime.now(UTC)",
        "datetime.datetime.now()",
        "dt.date.today()",
        "clock = time.monotonic",
    ],
)
def test_a_clock_would_be_found(line: str) -> None:
    assert list(readings(ast.parse(line)))


@pytest.mark.parametrize(
    "module",
    [
        "trainmaster_dispatcher.api.app",
        "trainmaster_dispatcher.scheduler.loop",
        "trainmaster_dispatcher.worker.app",
        "trainmaster_dispatcher.worker.tasks",
        "trainmaster_agent.runtime.kubernetes.runtime",
        "trainmaster_agent.runtime.local.runtime",
    ],
)
def test_no_process_that_serves_loads_the_fake_cluster(module: str) -> None:
    code = f"import sys, {module}; print([one for one in sys.modules if '.fake_cluster' in one or '.whatif' in one])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
