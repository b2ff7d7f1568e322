"""The agent's side of a state directory: durable records of runs, and locks against other processes.

Blocking; `layout` has the names of the files.
"""

import errno
import fcntl
import json
import os
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import Field

from trainmaster.protocol.agent import RunReport, StartRun, StopRun
from trainmaster.protocol.base import Lenient
from trainmaster.protocol.states import StopCause
from trainmaster_agent.containment import contain
from trainmaster_agent.runtime.local import layout
from trainmaster_agent.runtime.local.layout import RunPlan, StopWish
from trainmaster_agent.runtime.port import RunStatus, RuntimeRefusedError


class NoSpaceError(OSError):
    """The disk of the records is full; nothing of the run was recorded."""


class LocalRecord(Lenient):
    """A run as accepted. ``accepted_at`` is a time of CLOCK_BOOTTIME in the boot ``boot``."""

    start: StartRun
    accepted_at: float
    boot: str
    damage: str = Field(default="", exclude=True)
    """Unreadable files of the run, because of which it must never be started from them."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """Result of one reading of a run's files."""

    changed_at: int
    """Time of the last write of its status, in nanoseconds; 0: never."""
    kept: bool
    """Whether a supervisor was ever started for it."""
    alive: bool
    """Whether that supervisor still lives."""


class LocalRecords:
    """The runs of one agent under ``state_dir``."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir.resolve()
        self._runs = self.state_dir / layout.RUNS
        self._lock: int | None = None

    def open(self) -> str:
        """Lock the directory for this process alone and return the identity of the records.

        Raises RuntimeRefusedError when another agent holds the lock, and where nothing can be written.
        """
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock_file(
                self.state_dir / layout.AGENT_LOCK,
                "two agents must never act on the same runs; stop that process first, or give this agent another --state-dir",
            )
        except OSError as error:
            raise RuntimeRefusedError(
                f"the folder {self.state_dir} cannot be used: {error.strerror}; give this agent another --state-dir"
            ) from error
        try:
            self._runs.mkdir(exist_ok=True)
            trash = self.state_dir / layout.TRASH
            if trash.is_dir() and not trash.is_symlink():
                shutil.rmtree(trash, ignore_errors=True)
            else:
                trash.unlink(missing_ok=True)
            trash.mkdir(exist_ok=True)
            return self._holder()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _holder(self) -> str:
        path = self.state_dir / layout.HOLDER
        try:
            known = path.read_text(encoding="ascii").strip()
            if known and known.isprintable():
                return known
            raise ValueError(f"{path} is empty or damaged: it has to hold the identity of these records")
        except FileNotFoundError:
            pass
        except ValueError as error:
            contain("record", error, str(path))
        fresh = str(uuid.uuid4())
        layout.replace(path, f"{fresh}\n".encode("ascii"), durable=True)
        return fresh

    def directory(self, run: str) -> Path:
        return self._runs / run

    def create(self, record: LocalRecord) -> None:
        """Write the record durably; without it nothing is done for a run.

        Raises NoSpaceError when the disk is full and no record remains: this run will never start from these records.
        """
        try:
            self._create(record)
        except OSError as error:
            path = self.directory(record.start.run) / layout.RECORD
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and not path.exists():
                raise NoSpaceError(error.errno, os.strerror(error.errno), str(path)) from error
            raise

    def _create(self, record: LocalRecord) -> None:
        directory = self.directory(record.start.run)
        directory.mkdir(exist_ok=True)
        data = record.model_dump_json(by_alias=True).encode()
        layout.replace(directory / layout.RECORD, data, durable=True)
        layout.sync_directory(self._runs)

    def load(self) -> list[LocalRecord]:
        """Return all records, oldest first. A directory without one was never acknowledged, and is deleted.

        A run with an unreadable record is held all the same: its supervisor may be running, so nobody may start it elsewhere. What
        is known of it comes from its other files, and ``damage`` names what cannot be read. Names that no run can have are ignored.
        """
        found = []
        for directory in self._runs.iterdir():
            if layout.RUN_NAME.fullmatch(directory.name) is None or not directory.is_dir():
                contain("record", ValueError("this is not the folder of a run; it is ignored"), str(directory))
                continue
            path = directory / layout.RECORD
            if not path.exists() and not path.is_symlink() and not (directory / layout.STARTED).exists():
                shutil.rmtree(directory, ignore_errors=True)
                continue
            try:
                found.append(self._read(path))
            except (OSError, ValueError) as error:
                contain("record", error, str(path), run=directory.name)
                found.append(self._rebuilt(directory.name))
        return sorted(found, key=lambda record: (record.accepted_at, record.start.run))

    def _read(self, path: Path) -> LocalRecord:
        if not path.is_file():
            raise ValueError(f"{path.name} is not a file")
        record = LocalRecord.model_validate_json(path.read_bytes())
        if record.start.run != path.parent.name:
            raise ValueError(f"{path.name} is that of run {record.start.run}")
        unreadable = [
            name
            for name, read in ((layout.STATUS, self.status), (layout.STOP, self.stop))
            if (path.parent / name).exists() and read(record.start.run) is None
        ]
        for name in unreadable:
            contain("record", ValueError(f"{name} cannot be read"), str(path.parent), run=record.start.run)
        return record.model_copy(update={"damage": ", ".join(unreadable)})

    def _rebuilt(self, run: str) -> LocalRecord:
        """Return what is known of a run whose record cannot be read."""
        status, plan = self.status(run), self.plan(run)
        sizes = dict(Counter(member["role"] for member in plan["members"])) if plan is not None else {}
        job, _, attempt = run.rpartition("-r")
        start = StartRun(
            run=run,
            job=job or run,
            queue="",
            attempt=int(attempt) if attempt.isdigit() else 1,
            placement_timeout_seconds=0.0,
            generation=status.generation if status is not None else plan["generation"] if plan is not None else 1,
            token=0,
            spec={},
            sizes=sizes,
            disconnect_seconds=None if plan is None else plan["disconnect"],
        )
        boot = layout.boot_id() if plan is None else plan["boot"]
        return LocalRecord(start=start, accepted_at=0.0, boot=boot, damage=layout.RECORD)

    def discard(self, run: str) -> None:
        """Delete everything of a run. The folder is renamed first: half a record must never look like a run to start."""
        trash = self.state_dir / layout.TRASH / run
        if not self.directory(run).exists():
            return  # it was refused before anything could be written
        self.directory(run).rename(trash)
        layout.sync_directory(self._runs)
        shutil.rmtree(trash, ignore_errors=True)

    def status(self, run: str) -> RunStatus | None:
        """Return the last written status; None if it is missing or unreadable, for example after a power failure."""
        try:
            data = (self.directory(run) / layout.STATUS).read_bytes()
            report = RunReport.model_validate_json(data)
        except (FileNotFoundError, IsADirectoryError, ValueError):
            return None
        if report.run != run:
            return None
        return RunStatus(
            run=report.run,
            generation=report.generation,
            seq=report.seq,
            state=report.state,
            message=report.message,
            end=report.end,
            placement=report.placement,
            members=report.members,
            sizes=report.sizes,
            results=report.results,
            results_error=report.results_error,
        )

    def write_status(self, status: RunStatus) -> None:
        """Write the status; for the agent, before a supervisor was started and after it has died."""
        report = RunReport(
            run=status.run,
            generation=status.generation,
            seq=status.seq,
            state=status.state,
            message=status.message,
            end=status.end,
            placement=status.placement,
            members=status.members,
            sizes=status.sizes,
            results=None if status.results is None else dict(status.results),
            results_error=status.results_error,
        )
        path = self.directory(status.run) / layout.STATUS
        layout.replace(path, report.model_dump_json(by_alias=True).encode(), durable=status.state.is_terminal)

    def plan(self, run: str) -> RunPlan | None:
        try:
            plan = json.loads((self.directory(run) / layout.PLAN).read_bytes())
        except (FileNotFoundError, IsADirectoryError, ValueError):
            return None
        return cast(RunPlan, plan) if layout.is_plan(plan, run) else None

    def write_plan(self, plan: RunPlan) -> None:
        layout.replace(self.directory(plan["run"]) / layout.PLAN, json.dumps(plan).encode(), durable=False)

    def tell_plan(self, plan: RunPlan) -> None:
        """Write a new plan and notify the supervisor."""
        self.write_plan(plan)
        self.poke(plan["run"])

    def poke(self, run: str) -> None:
        """Make a run's supervisor read its orders."""
        layout.poke(self.directory(run) / layout.CONTROL, b"!")

    def stop(self, run: str) -> StopRun | None:
        try:
            wish = cast(StopWish, json.loads((self.directory(run) / layout.STOP).read_bytes()))
            return StopRun(
                run=run,
                generation=wish["generation"],
                cause=StopCause(wish["cause"]),
                grace_seconds=wish["grace"],
                checkpoint_seconds=wish.get("wait", 0.0),
                checkpoint_signal=wish.get("signal", ""),
            )
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write_stop(self, stop: StopRun) -> None:
        """Write the stop order and notify the supervisor; a later one reads it before it starts anything."""
        wish: StopWish = {
            "generation": stop.generation,
            "cause": str(stop.cause),
            "grace": stop.grace_seconds,
            "wait": stop.checkpoint_seconds,
            "signal": stop.checkpoint_signal,
        }
        directory = self.directory(stop.run)
        layout.replace(directory / layout.STOP, json.dumps(wish).encode(), durable=False)
        layout.poke(directory / layout.CONTROL, b"!")

    def forbid_start(self, run: str) -> bool:
        """Take the sole right to start away from all future supervisors; return False when one has it already."""
        try:
            os.close(os.open(self.directory(run) / layout.STARTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def look(self, run: str) -> RecordState:
        directory = self.directory(run)
        try:
            changed_at = (directory / layout.STATUS).stat().st_mtime_ns
        except FileNotFoundError:
            changed_at = 0
        # Only once the marker exists: earlier, this check could take the lock from a supervisor that is about to claim it.
        kept = (directory / layout.STARTED).exists()
        return RecordState(changed_at, kept, kept and _is_locked(directory / layout.SUPERVISOR_LOCK))


def lock_file(path: Path, why: str) -> int:
    """Lock a file for this process, write its process id into it, and return the descriptor.

    Raises RuntimeRefusedError naming the process that holds the lock.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise RuntimeRefusedError(f"{path} is locked by process {holder}: {why}") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
    return fd


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
