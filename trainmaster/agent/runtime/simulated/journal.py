"""The durable form of a simulated cluster: what it was told and when, in one file that only grows.

The model is a function of what it is told and of time, so telling it again gives the same cluster. The file begins anew
whenever no run is held, and after a restart of the machine, which ends the world that it describes.
"""

import fcntl
import os
import uuid
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from trainmaster.agent.runtime.port import RuntimeRefusedError

_FILE = "simulated.jsonl"


class Journal:
    """One file; an exclusive lock keeps a second agent from it."""

    def __init__(self, state_dir: Path, boot: str, cluster: str) -> None:
        self._path = state_dir / _FILE
        self._boot = boot
        self._cluster = cluster
        """What was declared: of another cluster nothing is left."""
        self._file: FileIO | None = None
        self._entries = 0
        self.holder = ""
        self.began_at = 0.0

    def open(self, now: float) -> list[dict[str, Any]]:
        """The entries so far, oldest first.

        Raises RuntimeRefusedError when another agent acts on these records.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise RuntimeRefusedError(f"another agent acts on the records in {self._path.parent}") from error
        whole, _, _ = (file.readall() or b"").rpartition(b"\n")
        head, *entries = [orjson.loads(line) for line in whole.split(b"\n")] if whole else [{}]
        if (head.get("boot"), head.get("cluster")) != (self._boot, self._cluster):
            self.holder = uuid.uuid4().hex
            self._begin(now)
            return []
        # What a crash cut off must not swallow the next line.
        file.truncate(len(whole) + 1)
        self.holder, self.began_at, self._entries = head["holder"], head["at"], len(entries)
        return entries

    def write(self, at: float, what: str, value: Any) -> None:
        """Add an entry. It survives a crash of this process once this returns."""
        if self._file is not None:
            self._entries += 1
            self._file.write(orjson.dumps({"at": at, what: value}) + b"\n")

    def begin_anew(self, now: float) -> None:
        """Nothing is held: what was told until now matters no more."""
        if self._entries:
            self._begin(now)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, now: float) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._entries, self.began_at = 0, now
            head = {"at": now, "holder": self.holder, "boot": self._boot, "cluster": self._cluster}
            self._file.write(orjson.dumps(head) + b"\n")
