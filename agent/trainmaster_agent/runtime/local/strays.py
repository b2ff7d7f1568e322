"""Members of runs of which this agent has no record, because its records were lost or another agent started them.

They are found by what the kernel knows of every process: a supervisor by the lock that it holds in its run's folder, a member by
its environment. Blocking. Manual page: proc(5).
"""

import json
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster.protocol.agent import StopRun
from trainmaster_agent.runtime.local import layout, process_table
from trainmaster_agent.runtime.local.layout import StopWish, boottime

_log = logging.getLogger(__name__)

INSTALLATION = "TRAINMASTER_INSTALLATION"
"""The variable that distinguishes members from those of another dispatcher's run with the same id."""

_PROC = Path("/proc")
_DELETED = " (deleted)"
_PATIENCE = 5.0
"""Seconds beyond the grace after which processes that were ordered to stop are killed."""
_SUPERVISOR = b"tm-keeper"
"""The process name of supervisors, those of earlier releases included: like the name of their lock it must not change."""


def place() -> str:
    """Return the identity that all processes visible to one agent share: boot, PID namespace and user."""
    namespace = (_PROC / "self/ns/pid").readlink()
    return f"{layout.boot_id()}/{namespace}/{os.geteuid()}"


@dataclass(slots=True)
class Family:
    """Processes of one run: a supervisor, where it lives, and its members.

    ``folder`` is that of the run; None where it was deleted. ``installation`` is None where it is unknown.
    """

    supervisor: int | None
    members: list[int] = field(default_factory=list)
    folder: Path | None = None
    installation: str | None = None


class Strays:
    """Searches for runs that have to stop; remembers since when each has had its order to stop."""

    def __init__(self) -> None:
        self._kill_at: dict[tuple[str, int], float] = {}

    def clear(self, stop: StopRun, installation: str) -> bool:
        """Return whether no member of the run is alive. Processes found are ordered to stop, and killed after the grace."""
        found = [one for one in families(stop.run) if one.installation in (None, installation)]
        if not found:
            self._kill_at = {key: moment for key, moment in self._kill_at.items() if key[0] != stop.run}
            return True
        key = stop.run, stop.generation
        is_first = key not in self._kill_at
        kill_at = self._kill_at.setdefault(key, boottime() + stop.longest + _PATIENCE)
        for family in found:
            if family.installation is None:
                _log.warning(
                    "left processes alone that may be members of run %s or of another dispatcher's run with that id",
                    stop.run,
                )
            elif family.supervisor is None or family.folder is None or boottime() >= kill_at:
                _kill(family)
            elif is_first:
                _log.warning(
                    "run %s is alive without a record here; its supervising process is told to stop it", stop.run
                )
                _tell(family.folder, stop)
        return False


def families(run: str) -> list[Family]:
    """Return all living processes of a run, by supervisor; members without a supervisor come last, each by itself."""
    everyone = [process for process in process_table.everyone() if process.lives]
    supervisors = {process.pid: folder for process in everyone for folder in _folders(process.pid, run)}
    parents = {process.pid: process.parent for process in everyone}
    found = {pid: Family(pid, folder=folder if folder.exists() else None) for pid, folder in supervisors.items()}
    alone: list[Family] = []
    marker = f"TRAINMASTER_RUN_ID={run}".encode()
    for process in everyone:
        environment = _environment(process.pid)
        supervisor = _supervisor_above(process.pid, parents, found)
        if supervisor is None and marker not in environment:
            continue
        if supervisor == process.pid:
            continue
        family = Family(None) if supervisor is None else found[supervisor]
        if supervisor is None:
            alone.append(family)
        family.members.append(process.pid)
        if marker in environment and family.installation is None:
            family.installation = _installation_in(environment)
    for family in found.values():
        if family.installation is None and family.folder is not None:
            family.installation = _recorded_installation(family.folder)
    return [*found.values(), *alone]


def _supervisor_above(pid: int, parents: dict[int, int], supervisors: dict[int, Family]) -> int | None:
    """Return the supervisor that a process descends from, or is."""
    seen = set[int]()
    while pid > 1 and pid not in seen:
        if pid in supervisors:
            return pid
        seen.add(pid)
        pid = parents.get(pid, 0)
    return None


def _folders(pid: int, run: str) -> Iterator[Path]:
    """Yield the folder of the run whose lock the process holds open, if it is a supervisor of that run."""
    try:
        if (_PROC / str(pid) / "comm").read_bytes().strip() != _SUPERVISOR:
            return
        for link in (_PROC / str(pid) / "fd").iterdir():
            target = Path(str(link.readlink()).removesuffix(_DELETED))
            if target.name == layout.SUPERVISOR_LOCK and target.parent.name == run:
                yield target.parent
                return
    except OSError:
        return


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _installation_in(environment: list[bytes]) -> str | None:
    prefix = f"{INSTALLATION}=".encode()
    return next((os.fsdecode(one[len(prefix) :]) for one in environment if one.startswith(prefix)), None)


def _recorded_installation(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / layout.RECORD).read_bytes())["start"]["installation"]) or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tell(folder: Path, stop: StopRun) -> None:
    """Write the stop order where the supervisor reads it, as the agent that started it would."""
    wish: StopWish = {
        "generation": stop.generation,
        "cause": str(stop.cause),
        "grace": stop.grace_seconds,
        "wait": stop.checkpoint_seconds,
        "signal": stop.checkpoint_signal,
    }
    layout.replace(folder / layout.STOP, json.dumps(wish).encode(), durable=False)
    layout.poke(folder / layout.CONTROL, b"!")


def _kill(family: Family) -> None:
    """Kill the supervisor first, so that it restarts nothing; the kernel kills its children with it."""
    _log.warning("killing processes %s of a run without a record", family.members or [family.supervisor])
    if family.supervisor is not None:
        process_table.send(family.supervisor, signal.SIGKILL)
    for member in family.members:
        process_table.send(member, signal.SIGKILL)
