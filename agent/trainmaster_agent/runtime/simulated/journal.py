"""The durable form of a simulated cluster: its state at one time, and a journal of the calls since then.

The model is a function of its calls and of time, so replaying the calls gives the same cluster. When the journal has grown, the
owner writes the whole state and the journal starts again; so the files stay as small as the cluster. A restart of the machine
invalidates them, and so does another declaration of the cluster or another release.
"""

import fcntl
import os
import pickle
import uuid
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from trainmaster import __version__
from trainmaster_agent.runtime.port import RuntimeRefusedError

_ENTRIES = "simulated.jsonl"
_STATE = "simulated.state"


class Handover(NamedTuple):
    """The stored start of an owner. ``state`` is its last state, or None if it never wrote one."""

    state: Any
    entries: list[dict[str, Any]]


class Journal:
    """Two files; an exclusive lock on the entries keeps a second agent from both."""

    def __init__(self, state_dir: Path, boot: str, cluster: str) -> None:
        self._path = state_dir / _ENTRIES
        self._state_path = state_dir / _STATE
        self._world = [boot, cluster, __version__]
        """Boot, declaration and release of the files; files of another one are dropped."""
        self._file: FileIO | None = None
        self._size = 0
        self._part = 0
        """Number of the journal's part: entries of an earlier part than the state's are in the state already."""
        self.entries = 0
        self.holder = ""
        self.began_at = 0.0
        """Time of the first entry, for an owner without a state."""

    def open(self, now: float) -> Handover:
        """Lock the journal and return its entries, oldest first.

        Raises RuntimeRefusedError when another agent uses these records.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise RuntimeRefusedError(
                f"another agent uses the records in {self._path.parent}; stop it, or give this one another --state-dir"
            ) from error
        whole, _, _ = (file.readall() or b"").rpartition(b"\n")
        head, *entries = [orjson.loads(line) for line in whole.split(b"\n")] if whole else [{}]
        part, holder, state = self._read_state()
        if part and head.get("part") != part:
            # The process died after it wrote the state and before it dropped the entries that the state includes.
            self._part, self.holder = part, holder
            self._begin(now)
            return Handover(state, [])
        if head.get("world") != self._world:
            self._part, self.holder = 0, uuid.uuid4().hex
            self._state_path.unlink(missing_ok=True)
            self._begin(now)
            return Handover(None, [])
        # A line that a crash cut off must not swallow the next one.
        self._size = len(whole) + 1
        file.truncate(self._size)
        self._part, self.holder, self.began_at, self.entries = head["part"], head["holder"], head["at"], len(entries)
        return Handover(state, entries)

    def write(self, at: float, what: str, value: Any) -> None:
        """Add an entry, durable against a crash of this process once this returns.

        Raises OSError when the disk is full; the entry was not added then.
        """
        if self._file is not None:
            self._append(orjson.dumps({"at": at, what: value}) + b"\n")
            self.entries += 1

    def replace(self, state: Any, now: float) -> None:
        """Replace all entries so far by ``state``, which includes them.

        A crash at any time leaves either the state or the entries. Raises OSError when the disk is full; the entries stay then.
        """
        if self._file is None:
            return
        head = {"holder": self.holder, "part": self._part + 1, "world": self._world}
        draft = self._state_path.with_suffix(".draft")
        draft.write_bytes(orjson.dumps(head) + b"\n" + pickle.dumps(state))
        draft.replace(self._state_path)
        self._part += 1
        self._begin(now)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_state(self) -> tuple[int, str, Any]:
        try:
            line, _, state = self._state_path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return 0, "", None
        head = orjson.loads(line)
        if head["world"] != self._world:
            return 0, "", None
        # Unpickling is safe: the file is this agent's own, in a directory that only its owner may write, and of this release.
        return head["part"], head["holder"], pickle.loads(state)  # noqa: S301

    def _begin(self, now: float) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._size, self.entries, self.began_at = 0, 0, now
            head = {"at": now, "holder": self.holder, "part": self._part, "world": self._world}
            self._append(orjson.dumps(head) + b"\n")

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        written = self._file.write(line) or 0
        if written < len(line):
            self._file.truncate(self._size)
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(self._path))
        self._size += written
