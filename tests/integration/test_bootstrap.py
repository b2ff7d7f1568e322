"""``trainmaster admin bootstrap``: makes what is missing, and leaves alone what exists."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store.database import driver_url

TENANTS = """
kind: Queue
path: lab/vision
defaultPriorityClass: urgent
---
kind: Queue
path: lab
---
kind: PriorityClass
name: urgent
value: 1000
---
kind: Cluster
name: north
"""
Bootstrap = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bootstrap(database_url: str, tmp_path: Path) -> Bootstrap:
    """Runs the command with these tenants; keys go to ``keys``."""

    def run(tenants: str = TENANTS, out: str = "keys") -> "subprocess.CompletedProcess[str]":
        (tmp_path / "tenants.yaml").write_text(tenants)
        command = [sys.executable, "-m", "trainmaster.cli.main", "admin", "bootstrap"]
        return subprocess.run(
            [*command, "--out", str(tmp_path / out), "--file", str(tmp_path / "tenants.yaml")],
            env=os.environ | {"DATABASE_URL": database_url, "REDIS_URL": ""},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run


def rows(url: str, sql: str) -> list[tuple[object, ...]]:
    engine = create_engine(driver_url(url))
    with engine.begin() as connection:
        done = connection.execute(text(sql))
        found = [tuple(row) for row in done] if done.returns_rows else []
    engine.dispose()
    return found


def test_a_new_installation_gets_tenants_and_keys(bootstrap: Bootstrap, database_url: str, tmp_path: Path) -> None:
    done = bootstrap()
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {
        "made priority class urgent",
        "made cluster north",
        "made queue lab",
        "made queue lab/vision",
        "made key admin",
        "made key agent-north",
    }
    for name, role in (("admin", "admin"), ("agent-north", "agent")):
        path = tmp_path / "keys" / name / "key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = rows(
            database_url, f"SELECT role::text FROM api_keys WHERE hash = '\\x{hash_key(path.read_text()).hex()}'"
        )
        assert found == [(role,)]


def test_the_second_time_it_changes_nothing(bootstrap: Bootstrap, database_url: str, tmp_path: Path) -> None:
    bootstrap()
    rows(database_url, "UPDATE api_keys SET revoked_at = now() WHERE name = 'agent-north'")
    kept = {path: path.read_text() for path in tmp_path.glob("keys/*/key")}
    done = bootstrap(TENANTS.replace("value: 1000", "value: 5"))
    assert (done.returncode, done.stdout) == (0, "nothing is missing\n")
    assert {path: path.read_text() for path in tmp_path.glob("keys/*/key")} == kept
    assert rows(database_url, "SELECT value FROM priority_classes WHERE name = 'urgent'") == [(1000,)]
    assert rows(database_url, "SELECT count(*) FROM api_keys WHERE revoked_at IS NULL") == [(1,)], (
        "revoked stays revoked"
    )


def test_a_removed_key_file_is_a_wish_for_a_new_key(bootstrap: Bootstrap, tmp_path: Path) -> None:
    bootstrap()
    path = tmp_path / "keys/agent-north/key"
    before = path.read_text()
    path.unlink()
    assert bootstrap().stdout == "made key agent-north\n"
    assert path.read_text() != before


def test_keys_of_a_database_that_is_gone_work_in_the_new_one(
    bootstrap: Bootstrap, database_url: str, tmp_path: Path
) -> None:
    bootstrap()
    before = (tmp_path / "keys/admin/key").read_text()
    rows(database_url, "DELETE FROM api_keys")
    assert set(bootstrap().stdout.splitlines()) == {"made key admin", "made key agent-north"}
    assert (tmp_path / "keys/admin/key").read_text() == before


@pytest.mark.parametrize(
    ("tenants", "code", "said"),
    [
        (
            "kind: Job\nname: a",
            Exit.USAGE,
            f"kind must be one of {', '.join(KINDS)}, not 'Job'",
        ),
        ("kind: Queue\npath: lab\nweight: -1", Exit.BAD_REQUEST, "weight"),
        ("kind: Queue\npath: lab/vision", Exit.BAD_REQUEST, "there is no queue 'lab'; make the parent first"),
    ],
)
def test_a_mistake_is_said_at_once_and_nothing_is_stored(
    bootstrap: Bootstrap, database_url: str, tenants: str, code: Exit, said: str
) -> None:
    done = bootstrap(tenants)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "waiting" not in done.stderr
    assert rows(database_url, "SELECT count(*) FROM api_keys") == [(0,)]


def test_a_folder_that_cannot_be_written_is_named(bootstrap: Bootstrap, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = bootstrap(out="file")
    assert done.returncode == Exit.USAGE
    assert f"cannot keep keys in {tmp_path / 'file'}" in done.stderr
