"""The file of a backup: a zip with the dump, a manifest with checksums, and, if asked for, keys. Knows nothing of databases.

    manifest.json    what the backup is of, and the SHA-256 of every other part
    store.sql        the dump, as Postgres's own pg_dump writes it
    keys/NAME        the keys of the folder of ``trainmaster up``

The manifest is written last, with the checksums of what was really written, and only a whole file gets the name that was asked for.
"""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainmaster.protocol.errors import TrainmasterError

FORMAT = 1
DUMP = "store.sql"
MANIFEST = "manifest.json"
KEYS = "keys/"
_KIND = "trainmaster-backup"
_CHUNK = 1024 * 1024
_LEVEL = 1
"""Of zlib: a dump under load shall not take the processors from the dispatcher, and this level makes it small enough."""


class BackupFileError(TrainmasterError):
    """A file is no backup, or is damaged."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The manifest of a backup."""

    release: str
    revision: str
    installation: str
    epoch: int
    taken_at: str
    server: str
    rows: Mapping[str, int]
    files: Mapping[str, str]
    """SHA-256 of each part."""

    @property
    def keys(self) -> list[str]:
        """The names of the keys in it."""
        return [name.removeprefix(KEYS) for name in self.files if name.startswith(KEYS)]


class Writer:
    """Writes the parts of one backup."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._files: dict[str, str] = {}

    def add(self, name: str, chunks: Iterator[bytes]) -> int:
        """Write a part from its chunks; return its size in bytes."""
        digest, size = hashlib.sha256(), 0
        with self._archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as part:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                part.write(chunk)
        self._files[name] = digest.hexdigest()
        return size

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write the manifest. ``about``: what the backup is of."""
        manifest = {"kind": _KIND, "format": FORMAT, **about, "files": self._files}
        self._archive.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(manifest, indent=2) + "\n")


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """Yield a writer of a new file that its owner alone can read. The file appears when it is whole. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    file = os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    try:
        with file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
                yield Writer(archive)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_backup(path: Path) -> Backup:
    """Return the manifest of a backup. Raises BackupFileError."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(MANIFEST))
            names = set(archive.namelist()) - {MANIFEST}
    except OSError as error:
        raise BackupFileError(f"{path}: {error.strerror}") from error
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BackupFileError(f"{path} is no backup of Trainmaster: it has no manifest of one") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise BackupFileError(f"{path} is no backup of Trainmaster")
    if manifest["format"] != FORMAT:
        raise BackupFileError(
            f"{path} has the format {manifest['format']}, this release reads {FORMAT}: use release {manifest['release']}"
        )
    if names != set(manifest["files"]) or DUMP not in names:
        raise BackupFileError(f"{path} is damaged: its parts are not those of its manifest")
    return Backup(
        **{
            name: manifest[name] for name in ("release", "revision", "installation", "epoch", "server", "rows", "files")
        },
        taken_at=manifest["takenAt"],
    )


def verify(path: Path, backup: Backup) -> None:
    """Read every part of a backup and compare its checksum. Raises BackupFileError."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name, expected in backup.files.items():
                digest = hashlib.sha256()
                with archive.open(name) as part:
                    for chunk in chunks_of(part):
                        digest.update(chunk)
                if digest.hexdigest() != expected:
                    raise BackupFileError(f"{path} is damaged: the checksum of {name} is wrong")
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise BackupFileError(f"{path} is damaged: {error}") from error


def copy_dump(path: Path, write: Callable[[bytes], object]) -> None:
    """Pass the dump of a backup on, piece by piece."""
    with zipfile.ZipFile(path) as archive, archive.open(DUMP) as part:
        for chunk in chunks_of(part):
            write(chunk)


def read_key(path: Path, name: str) -> str:
    """Return a key in a backup."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(KEYS + name).decode()


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's content piece by piece."""
    while chunk := file.read(_CHUNK):
        yield chunk
