"""The programs of Prometheus for tests with the marker ``prometheus``, and what its expressions name."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "trainmaster.json"
DASHBOARDS = tuple(sorted(DASHBOARD.parent.glob("*.json")))
"""Those of the control plane, of users and of admins."""


@dataclass(frozen=True)
class Programs:
    """Where the programs are."""

    folder: Path

    def promtool(self, *words: str | Path, cwd: Path = RULES) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.folder / "promtool", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture(scope="session")
def programs() -> Programs:
    """``prometheus`` and ``promtool``; the test is skipped where they cannot be had, with the reason."""
    found = subprocess.run([ROOT / "scripts" / "prometheus"], capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    return Programs(Path(found.stdout.strip()))


_NAME = re.compile(r"(?<![\w:])(trainmaster[\w:]+|process_\w+)(?!\w)")


def names_in(expression: str) -> set[str]:
    """Return the metrics and recorded series that an expression names; what is inside quotes does not count."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))
