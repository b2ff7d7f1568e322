"""Clients that others generate from the OpenAPI document of a running system: they submit, follow and cancel jobs.

The scripts are those of ``docs/how-to/generate-a-client.md``. The generators have an environment of their own, ``clients`` in that of
the tests: one of them needs an older version of a package that the system has.
"""

import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests import image
from tests.waiting import eventually_sync
from trainmaster_dispatcher.cli.embedded import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/generate-a-client.md"
LOCK = ROOT / "requirements/clients.txt"
PLACE = Path(sys.prefix) / "clients"
_HARMLESS = ("OpenAPI 3.1 support is still in beta", "Failed to get the schema name: null")
"""What OpenAPI Generator says of documents of version 3.1 whatever is in them."""

pytestmark = pytest.mark.wheel


def run(*words: str | Path, **options: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def generators() -> Path:
    """Install the generators when their list has changed; return the folder of their programs."""
    mark = PLACE / ".installed"
    if not mark.exists() or mark.read_text() != LOCK.read_text():
        venv.create(PLACE, with_pip=False, clear=True)
        install = (image.UV, "pip", "install", "--quiet", "--python", PLACE / "bin/python")
        run(*install, "--no-deps", "--require-hashes", "-r", LOCK)
        mark.write_text(LOCK.read_text())
    return PLACE / "bin"


@dataclass(frozen=True)
class Installation:
    """A running ``trainmaster up``."""

    url: str
    key: str


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("up")
    log, config = folder / "up.log", folder / "config.yaml"
    command = [sys.executable, "-m", "trainmaster.cli.main", "up", "--data", folder / "data", "--port", free_port()]
    with log.open("wb") as out:
        up = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=os.environ | {"TRAINMASTER_CONFIG": str(config)},
            stdout=out,
            stderr=out,
        )
    try:
        eventually_sync(lambda: "Trainmaster is up" in log.read_text() or up.poll() is not None, 200)
        assert up.poll() is None, log.read_text()
        context = yaml.safe_load(config.read_text())
        yield Installation(context["url"], context["key"])
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, log.read_text()


@pytest.fixture
def document(installation: Installation, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_bytes(httpx.get(f"{installation.url}/openapi.json").raise_for_status().content)
    return path


def follow(python: Path, script: str, folder: Path, installation: Installation) -> list[str]:
    """Run a script of the page where the generated client can be imported; return the lines that it prints."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"TRAINMASTER_URL": installation.url, "TRAINMASTER_API_KEY": installation.key, "PYTHONPATH": str(folder)}
    (folder / "script.py").write_text(script)
    return run(python, folder / "script.py", cwd=folder, env=env).splitlines()


def scripts() -> tuple[str, str]:
    """Return the Python scripts of the page."""
    first, second = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return first, second


def check(lines: list[str]) -> None:
    hello, events, sleeper = lines
    assert hello == "hello succeeded"
    assert sleeper == "sleeper cancelled"
    assert {"submitted", "succeeded"} <= set(re.findall(r"\w+", events))


@pytest.mark.deep
def test_a_client_of_openapi_python_client(
    generators: Path, installation: Installation, document: Path, tmp_path: Path
) -> None:
    env = os.environ | {"PATH": f"{generators}:{os.environ['PATH']}"}  # it calls ruff
    words = ("generate", "--path", document, "--meta", "none", "--output-path", tmp_path / "trainmaster_client")
    said = run(generators / "openapi-python-client", *words, "--fail-on-warning", cwd=tmp_path, env=env)
    assert "warning" not in said.lower(), said
    check(follow(generators / "python", scripts()[0], tmp_path, installation))


@pytest.mark.deep
def test_a_client_of_openapi_generator(
    generators: Path, installation: Installation, document: Path, tmp_path: Path
) -> None:
    # Without a Java of the machine: the package brings one.
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": "/usr/bin:/bin"}
    env["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it runs once, for seconds
    words = ("-i", document, "-g", "python", "--package-name", "trainmaster_api", "-o", tmp_path / "generated")
    options = "--global-property=apiTests=false,modelTests=false,apiDocs=false,modelDocs=false"
    said = run(generators / "openapi-generator-cli", "generate", *words, options, cwd=tmp_path, env=env)
    warned = [line for line in said.splitlines() if re.search(r"WARN|ERROR|Exception", line)]
    assert [line for line in warned if not any(one in line for one in _HARMLESS)] == []
    check(follow(generators / "python", scripts()[1], tmp_path / "generated", installation))
