"""The folder of a local installation: one process at a time works in it, and says who it is. Starts and stops nothing."""

import errno
import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainmaster.protocol.errors import TrainmasterError

_LOCK = "lock"
_LEAST_FREE_BYTES = 256 * 1024 * 1024
"""For a new database and its log; with less it would fail in the middle of its creation."""


class FolderInUseError(TrainmasterError):
    """Another process works in the folder."""


class FolderUnusableError(TrainmasterError):
    """No installation can work in the folder."""


@dataclass(frozen=True, slots=True)
class FolderHolder:
    """The process that works in a folder, as it says itself."""

    pid: int
    does: str
    """What it does there, such as the address that it serves."""


class DataFolder:
    """A folder with its lock, which the kernel releases when its holder ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def create(self) -> None:
        """Create the folder where it is missing. Raises FolderUnusableError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        free = shutil.disk_usage(self.path).free
        if free < _LEAST_FREE_BYTES and not (self.path / "postgres" / "PG_VERSION").exists():
            raise FolderUnusableError(
                f"the disk of {self.path} has {free >> 20} MiB left, and a new installation needs"
                f" {_LEAST_FREE_BYTES >> 20} MiB; free some, or choose a folder on another disk with --data"
            )

    def hold(self, does: str) -> FolderHolder | None:
        """Take the lock until this process ends or ``release``; return the holder before, if it did not release the lock itself.

        Raises FolderInUseError, without changing anything, while another process has it, and FolderUnusableError.
        """
        try:
            file = os.fdopen(os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        except OSError as error:
            raise self._unusable(error) from error
        before = _read(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise self._unusable(error) from error
            who = "another process" if before is None else f"process {before.pid} ({before.does})"
            raise FolderInUseError(
                f"{who} works in the folder {self.path}; stop it first, or choose another folder with --data"
            ) from error
        try:
            _write(file, f"{os.getpid()}\n{does}\n")
        except OSError as error:
            file.close()
            raise self._unusable(error) from error
        self._file = file
        return before

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._file is not None:
            _write(self._file, "")
            self._file.close()
            self._file = None

    def _unusable(self, error: OSError) -> FolderUnusableError:
        return FolderUnusableError(
            f"the folder {self.path} cannot be used: {error.strerror}; choose another one with --data"
        )


def _read(file: IO[str]) -> FolderHolder | None:
    pid, _, rest = file.read(4096).partition("\n")
    return FolderHolder(int(pid), rest.strip()) if pid.isdigit() else None


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
