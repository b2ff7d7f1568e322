"""A store in one file, and back: of one moment, whole or not at all, and never into a store that somebody uses."""

import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Service
from tests.integration.rows import execute, value
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli import backup_archive
from trainmaster_dispatcher.services import recovery
from trainmaster_dispatcher.store.scheduling import Cursor, read_feed
from trainmaster_dispatcher.store.schema import newest_revision

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]


def run(url: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"DATABASE_URL": url}
    command = [*PROGRAM, *[str(word) for word in words]]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)


def done(url: str, *words: str | Path) -> str:
    ended = run(url, *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def filled(database_url: str) -> str:
    """A store with a queue, a class and a thousand jobs."""
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO queues (path, spec) VALUES ('q', '{}')")
        connection.execute(
            "INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state)"
            " SELECT 'job', 1, 1, 1, 1, 1, 'queued' FROM generate_series(1, 1000)"
        )
        connection.execute("INSERT INTO events (job_id, seq, kind) SELECT id, 1, 'submitted' FROM jobs")
    return database_url


@pytest.fixture
def backup(filled: str, tmp_path: Path) -> Path:
    path = tmp_path / "store.backup"
    assert "1000 jobs" in done(filled, "backup", "--out", path)
    return path


def test_a_wrong_setting_is_said_before_anything_is_restored(
    backup: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_KEEP_OUTPUT", "soon")
    ended = run(empty_database_url, "restore", backup)
    assert ended.returncode == Exit.USAGE
    assert ended.stderr.startswith("error: setting TRAINMASTER_KEEP_OUTPUT: 'soon' is not a duration")
    assert query(empty_database_url, "SELECT 1 FROM pg_class WHERE relname = 'jobs'") == []


def test_a_backup_comes_back_whole_with_a_recovery_on(backup: Path, filled: str, empty_database_url: str) -> None:
    assert backup.stat().st_mode & 0o777 == 0o600
    said = done(empty_database_url, "restore", backup)
    assert "store epoch 2: nothing starts before every cluster's agent has reported" in said
    same = (
        "SELECT id, name, state FROM jobs ORDER BY id",
        "SELECT path FROM queues",
        "SELECT job_id, seq, kind, at FROM events ORDER BY job_id",
        "SELECT id FROM installation",
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 't' ORDER BY relname",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname",
    )
    for sql in same:
        assert query(empty_database_url, sql) == query(filled, sql), sql
    (found,) = query(empty_database_url, "SELECT store_epoch, recovering_since IS NOT NULL FROM installation")
    assert found == (2, True)
    ((next_key,),) = query(empty_database_url, "SELECT nextval(pg_get_serial_sequence('jobs', 'id'))")
    assert isinstance(next_key, int)
    assert next_key > 1_000_000, "keys that were given out after the backup are not given out again"
    ((action, actor),) = query(empty_database_url, "SELECT action, actor FROM audit")
    assert (action, actor) == ("restore backup", "local")
    again = done(empty_database_url, "restore", backup, "--replace")
    assert "store epoch 2" in again


def test_the_manifest_says_of_what_it_is(backup: Path, filled: str) -> None:
    with zipfile.ZipFile(backup) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    ((installation,),) = query(filled, "SELECT id::text FROM installation")
    assert (manifest["revision"], manifest["installation"], manifest["epoch"]) == (newest_revision(), installation, 1)
    assert manifest["rows"]["jobs"] == 1000
    said = done(filled, "restore", backup, "--check")
    assert "1000 jobs of installation" in said
    assert "checksums match" in said


def test_a_backup_is_of_one_moment_while_jobs_come(filled: str, tmp_path: Path, empty_database_url: str) -> None:
    """Each transaction adds as many events as jobs: a backup of two moments would show them apart."""
    stop = threading.Event()
    counted: list[int] = []

    def submit() -> None:
        with psycopg.connect(filled) as connection:
            while not stop.is_set():
                with connection.transaction():
                    connection.execute(
                        "WITH made AS (INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state)"
                        " SELECT 'more', 1, 1, 1, 1, 1, 'queued' FROM generate_series(1, 50) RETURNING id)"
                        " INSERT INTO events (job_id, seq, kind) SELECT id, 1, 'submitted' FROM made"
                    )
                counted.append(50)

    writer = threading.Thread(target=submit)
    writer.start()
    try:
        done(filled, "backup", "--out", tmp_path / "busy")
    finally:
        stop.set()
        writer.join()
    done(empty_database_url, "restore", tmp_path / "busy")
    ((jobs, events),) = query(empty_database_url, "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM events)")
    assert jobs == events
    assert backup_archive.read_backup(tmp_path / "busy").rows["jobs"] == jobs
    assert 1000 <= int(str(jobs)) < 1000 + sum(counted), "and jobs came after it"


def test_a_file_that_exists_is_not_overwritten(backup: Path, filled: str) -> None:
    before = backup.read_bytes()
    ended = run(filled, "backup", "--out", backup)
    assert (ended.returncode, backup.read_bytes()) == (Exit.USAGE, before)
    assert "exists already" in ended.stderr


def test_nothing_is_left_of_a_backup_that_failed(tmp_path: Path, empty_database_url: str) -> None:
    ended = run(empty_database_url, "backup", "--out", tmp_path / "out")
    assert ended.returncode == Exit.USAGE
    assert "the database has no schema of Trainmaster" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0.3, 0.6])
def test_a_damaged_file_is_refused_and_changes_nothing(backup: Path, empty_database_url: str, place: float) -> None:
    content = bytearray(backup.read_bytes())
    content[int(len(content) * place)] ^= 0xFF
    backup.write_bytes(content)
    ended = run(empty_database_url, "restore", backup)
    assert ended.returncode == Exit.USAGE
    assert "is damaged" in ended.stderr
    assert query(empty_database_url, "SELECT to_regclass('jobs')") == [(None,)]


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04"])
def test_a_file_that_is_no_backup_is_said(tmp_path: Path, empty_database_url: str, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    ended = run(empty_database_url, "restore", tmp_path / "file")
    assert ended.returncode == Exit.USAGE
    assert "is no backup of Trainmaster" in ended.stderr


def rewrite(path: Path, **changes: object) -> None:
    """Change the manifest of a backup."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"]) | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (parts | {"manifest.json": json.dumps(manifest).encode()}).items():
            archive.writestr(name, data)


def test_a_backup_of_a_newer_schema_is_refused(backup: Path, empty_database_url: str) -> None:
    rewrite(backup, revision="0999", release="9.0.0")
    ended = run(empty_database_url, "restore", backup)
    assert ended.returncode == Exit.CONFLICT
    assert "the backup has schema revision 0999 of release 9.0.0" in ended.stderr


def test_what_is_in_the_database_is_removed_only_on_request(backup: Path, filled: str) -> None:
    with psycopg.connect(filled) as connection:
        connection.execute("DELETE FROM jobs WHERE id NOT IN (SELECT id FROM jobs ORDER BY id LIMIT 10)")
    ended = run(filled, "restore", backup)
    assert ended.returncode == Exit.CONFLICT
    assert "the database holds an installation already; --replace removes it" in ended.stderr
    assert query(filled, "SELECT count(*) FROM jobs") == [(10,)]
    done(filled, "restore", backup, "--replace")
    assert query(filled, "SELECT count(*) FROM jobs") == [(1000,)]


def test_tables_of_others_are_never_removed(backup: Path, empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE theirs (id int)")
    ended = run(empty_database_url, "restore", backup, "--replace")
    assert ended.returncode == Exit.CONFLICT
    assert "tables that are not Trainmaster's (theirs)" in ended.stderr


async def test_a_dispatcher_that_runs_is_not_restored_over(service: Service, tmp_path: Path) -> None:
    url = service.settings.database_url
    await service.submit()
    done(url, "backup", "--out", tmp_path / "busy")
    ended = run(url, "restore", tmp_path / "busy", "--replace")
    assert ended.returncode == Exit.CONFLICT
    assert "processes of the dispatcher are connected to this database" in ended.stderr
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 1
    assert await value(service.stores, "SELECT store_epoch FROM installation") == 1


def test_a_restore_that_is_killed_changes_nothing(backup: Path, filled: str) -> None:
    """Cut off in the middle of the dump: the end of psql's input must not commit what it has."""
    from trainmaster_dispatcher.cli.backup import _programs
    from trainmaster_dispatcher.store.backup import EMPTYING, client_environment

    parts: list[bytes] = []
    backup_archive.copy_dump(backup, parts.append)
    dump = b"".join(parts)
    command: list[str | Path] = [
        _programs() / "psql",
        "--no-psqlrc",
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "--file",
        "-",
    ]
    cut = b"BEGIN;\n" + EMPTYING.encode() + dump[: len(dump) // 2]
    subprocess.run(command, input=cut, env=os.environ | client_environment(filled), capture_output=True, check=False)
    assert query(filled, "SELECT count(*) FROM jobs") == [(1000,)]
    assert query(filled, "SELECT store_epoch FROM installation") == [(1,)]


async def test_rows_of_the_feed_that_another_server_has_numbered_are_not_awaited(service: Service) -> None:
    """A dump that is restored into a younger server has transaction numbers of its future, and schedulers never came to rest."""
    await service.submit()
    far = 2**40
    await execute(service.stores, f"UPDATE events SET xid = '{far}'::xid8")
    await execute(service.stores, f"INSERT INTO changes (kind, ref, xid) VALUES ('queue', 1, '{far}'::xid8)")

    async def is_unsettled() -> bool:
        async with service.stores.database.transaction() as tx:
            return (await read_feed(tx, Cursor(1))).unsettled

    assert await is_unsettled()
    await recovery.begin(service.stores)
    late = await value(
        service.stores,
        "SELECT (SELECT count(*) FROM events WHERE xid >= pg_current_xact_id())"
        " + (SELECT count(*) FROM changes WHERE xid > pg_current_xact_id())",
    )
    assert late == 0
