"""Processes as /proc shows them: ancestry, and remains of a dead supervisor. Standard library only.

Manual page: proc(5).
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainmaster_agent.runtime.local.layout import PROCESSES

_PROC = Path("/proc")
_INDEX = b"TRAINMASTER_ROLE_INDEX"


class ProcessRow(NamedTuple):
    """Fields of /proc/<pid>/stat. ``born`` (ticks since boot) tells a process from a later one with the same id.

    ``ticks``: clock ticks that it has used; ``ended_ticks``: those of its ended children, as far as it has waited for them.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    born: int
    ticks: int
    ended_ticks: int

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"


def look(pid: int) -> ProcessRow | None:
    """Return the process ``pid``; None if it does not exist."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in front may hold spaces and parentheses
    ticks, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return ProcessRow(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), ticks, ended)


def dies_of(pid: int, number: signal.Signals) -> bool:
    """Return whether a process neither handles nor ignores a signal that would end it."""
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    masks = dict(line.split(":", 1) for line in text.splitlines() if line.startswith(("SigIgn:", "SigCgt:")))
    return not any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())


def everyone() -> Iterator[ProcessRow]:
    """Yield all processes, except those that end during the call."""
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all we need, and there may be thousands
        if entry.isdecimal() and (process := look(int(entry))) is not None:
            yield process


def descendants(root: int) -> list[int]:
    """Return all living descendants of ``root``, parents before their children."""
    children: dict[int, list[int]] = {}
    for process in everyone():
        if process.lives:
            children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    generation = children.get(root, [])
    while generation:
        found += generation
        generation = [child for pid in generation for child in children.get(pid, [])]
    return found


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Signal a group by its leader's id; only the leader if it has not created its group yet."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        send(group, number)
    except PermissionError:
        pass


def of_run(run: str, run_dir: Path) -> list[int]:
    """Return living processes that belong to a run: by environment, output, or a recorded session whose leader still lives.

    Each sign alone is enough, and no foreign process can show one: a reused process id has another start
    time.
    """
    marker = f"TRAINMASTER_RUN_ID={run}".encode()
    sessions = {pid for pid, born in recorded(run_dir) if (leader := look(pid)) is not None and leader.born == born}
    me = os.getpid()
    return [
        process.pid
        for process in everyone()
        if process.lives
        and process.pid != me
        and (
            process.session in sessions
            or process.group in sessions
            or marker in _environment(process.pid)
            or _writes_into(process.pid, run_dir)
        )
    ]


def kill_leftovers(run: str, run_dir: Path) -> None:
    """Kill every process of a run without a supervisor, repeatedly until none is left: they may fork meanwhile."""
    while left := of_run(run, run_dir):
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.002)


def recorded(run_dir: Path) -> list[tuple[int, int]]:
    """Return process ids and start times of the members' first processes, as their supervisor wrote them down."""
    try:
        lines = (run_dir / PROCESSES).read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return []
    pairs = (line.split() for line in lines)
    return [(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(one.isdigit() for one in pair)]


def member_of(pid: int, run_dir: Path) -> tuple[str, int] | None:
    """Return role and index of the member whose first process this is; None where neither environment nor output shows it."""
    variables = dict(one.split(b"=", 1) for one in _environment(pid) if b"=" in one)
    role, index = variables.get(b"TRAINMASTER_ROLE", b"").decode("ascii", "replace"), variables.get(_INDEX, b"")
    if role and index.isdigit():
        return role, int(index)
    try:
        target = (_PROC / str(pid) / "fd" / "1").readlink()
    except OSError:
        return None
    role, _, number = target.stem.rpartition("-")
    return (role, int(number)) if target.parent == run_dir and role and number.isdecimal() else None


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _writes_into(pid: int, run_dir: Path) -> bool:
    for number in ("1", "2"):
        try:
            target = (_PROC / str(pid) / "fd" / number).readlink()
        except OSError:
            continue
        if target.parent == run_dir and target.suffix == ".log":
            return True
    return False
