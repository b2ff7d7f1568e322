"""``scripts/build-web``: it builds the dashboard once for the same sources, and says so where it cannot."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NPM = """#!/bin/sh
echo "$@" >> "$CALLS"
for word; do
  case "$before" in --outDir) mkdir -p "$word"; cat src.js > "$word/index.html" ;; esac
  before="$word"
done
case "$1" in ci) mkdir -p node_modules; echo x > node_modules/made ;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/build-web", folder / "scripts")
    web = folder / "dispatcher/web"
    web.mkdir(parents=True)
    (folder / "dispatcher/trainmaster_dispatcher/web").mkdir(parents=True)
    for name, text in {"package.json": "{}", "package-lock.json": "{}", "src.js": "1"}.items():
        (web / name).write_text(text)
    return folder


def build(checkout: Path, node: str = "exit 0") -> "subprocess.CompletedProcess[str]":
    """Run the script with a stand-in for npm, and for node one that answers whether it is new enough."""
    programs = checkout.parent / "programs"
    programs.mkdir(exist_ok=True)
    for name, text in {"node": f"#!/bin/sh\n{node}\n", "npm": _NPM, "python3": "#!/bin/sh\nexit 1\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(checkout.parent / "calls")}
    return subprocess.run(
        ["bash", checkout / "scripts/build-web"], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def calls(checkout: Path) -> list[str]:
    return [line.split()[0] for line in (checkout.parent / "calls").read_text().splitlines()]


def test_it_builds_again_once_a_source_has_changed(checkout: Path) -> None:
    assets = checkout / "dispatcher/trainmaster_dispatcher/web/assets"
    first = build(checkout)
    assert (first.returncode, first.stdout) == (0, "the dashboard was built: 2 files\n"), first.stderr
    assert (assets / "index.html").read_text() == "1"
    again = build(checkout)
    assert (again.returncode, again.stdout) == (0, "the dashboard is built\n")
    assert calls(checkout) == ["ci", "run"]
    (checkout / "dispatcher/web/src.js").write_text("2")
    assert build(checkout).returncode == 0
    assert (assets / "index.html").read_text() == "2"
    assert calls(checkout) == ["ci", "run", "run"], "the packages are those of before"
    (checkout / "dispatcher/web/package-lock.json").write_text("{ }")
    assert build(checkout).returncode == 0
    assert calls(checkout)[3:] == ["ci", "run"]
    assert not assets.with_name("assets.new").exists()


def test_it_says_what_is_missing(checkout: Path) -> None:
    done = build(checkout, node="exit 1")
    assert done.returncode == 1
    assert "needs node 20.19 or newer" in done.stderr
    assert not (checkout / "dispatcher/trainmaster_dispatcher/web/assets").exists()


def test_a_checkout_without_sources_builds_nothing(checkout: Path) -> None:
    shutil.rmtree(checkout / "dispatcher/web")
    done = build(checkout)
    assert (done.returncode, done.stdout) == (0, "the dashboard has no sources here: dispatcher/web\n")
