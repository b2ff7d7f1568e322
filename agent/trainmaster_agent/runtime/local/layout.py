"""Files of a state directory, and the formats that agent and supervisor read from each other.

    agent.lock        held by the one agent that uses this directory
    zygote.lock       held by the fork server while a requested start may be in progress
    holder            identity of these records
    lease             time of the last answered sync, see `Lease`
    poke              FIFO: supervisors write the name of their run when its status has changed
    runs/<run>/
        record.json   the run as accepted; durable before anything else happens
        plan.json     the supervisor's orders: `RunPlan`
        started       created by the one supervisor that may start members; durable before they start
        keeper.lock   held by the supervisor for its life
        processes     process groups of the members, each with its start time
        status.json   the run's status; written by the supervisor while it lives, by the agent before and after
        stop.json     the latest stop order: `StopWish`
        control       FIFO: a byte makes the supervisor read stop.json
        <role>-<index>/, <role>-<index>.log    a member's working directory and output
        <role>-<index>.results  results of the member of rank 0; a link where members run as another user, see ``results_file``
        <role>-<index>.lives    length of the output at each of its restarts, a line each; written by the supervisor
        commands/     sockets of commands that users run beside members and that outlast a lost connection
    trash/            directories of forgotten runs that are being deleted

``keeper.lock``, ``zygote.lock`` and ``zygote.log`` are names of earlier releases, kept for upgrades: an agent finds the supervisors
and the fork server of an older one by these locks. Standard library only, and little of it: the fork server imports this.
"""

import os
import re
import time
from math import isfinite
from pathlib import Path
from typing import NotRequired, TypedDict

RECORD = "record.json"
PLAN = "plan.json"
STARTED = "started"
SUPERVISOR_LOCK = "keeper.lock"
PROCESSES = "processes"
STATUS = "status.json"
STOP = "stop.json"
CONTROL = "control"
LIVES = ".lives"
COMMANDS = "commands"

AGENT_LOCK = "agent.lock"
FORK_SERVER_LOCK = "zygote.lock"
HOLDER = "holder"
LEASE = "lease"
POKE = "poke"
RUNS = "runs"
TRASH = "trash"


class MemberPlan(TypedDict):
    """Start parameters of one member. ``env``: its variables beside those that all members share."""

    role: str
    index: int
    node: str
    group: str
    """Node group, as reported."""
    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    """The working directory that the user named; None: the member's own folder."""


class FailurePlan(TypedDict):
    """Consequence of the failure of a role's member."""

    action: str
    """As ``MemberFailure.action``."""
    limit: int
    back_off: float


class RunPlan(TypedDict):
    """A supervisor's orders. Durations are in seconds, moments in seconds of CLOCK_BOOTTIME."""

    run: str
    generation: int
    seq: int
    """Sequence number of the last status before the supervisor's first."""
    resized: bool
    """Whether the run was ever resized. A plan of a higher generation replaces the one before."""
    env: dict[str, str]
    members: list[MemberPlan]
    used: dict[str, dict[str, int]]
    """Resources by node, for the agent's accounting."""
    ports: list[int]
    """Ports given to the members, for the agent's accounting."""
    time_limit: float | None
    stop_grace: float
    failures: dict[str, FailurePlan]
    """By role."""
    success: str | None
    """The role whose members decide that the run has succeeded; None: all members do."""
    disconnect: float | None
    contact: float
    """Time that counts as the last contact while there is no lease."""
    boot: str
    user: NotRequired[list[int]]
    """Ids of the user and the group that members run as; None: those of the agent."""


RUN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_PLAN_TYPES: dict[str, type | tuple[type, ...]] = {
    "generation": int,
    "seq": int,
    "env": dict,
    "members": list,
    "used": dict,
    "ports": list,
    "time_limit": (int, float, type(None)),
    "stop_grace": (int, float),
    "failures": dict,
    "success": (str, type(None)),
    "disconnect": (int, float, type(None)),
    "contact": (int, float),
    "boot": str,
}


def is_plan(data: object, run: str) -> bool:
    """Return whether ``data`` is a plan of this run, checking only the fields that readers of plans use."""
    if not isinstance(data, dict) or data.get("run") != run:
        return False
    if not all(isinstance(data.get(name), of) for name, of in _PLAN_TYPES.items()):
        return False
    used = all(isinstance(one, dict) and all(isinstance(n, int) for n in one.values()) for one in data["used"].values())
    members = all(isinstance(one, dict) and {"role", "index", "node", "group"} <= one.keys() for one in data["members"])
    return used and members and all(isinstance(port, int) for port in data["ports"])


class StopWish(TypedDict):
    """A stop order as the supervisor reads it."""

    generation: int
    cause: str
    grace: float
    wait: float
    """Seconds between the checkpoint signal and SIGTERM; 0: no checkpoint signal."""
    signal: str


def boottime() -> float:
    """Return the seconds of CLOCK_BOOTTIME, which goes on while the machine sleeps; lease and disconnect limit use it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the identity of this boot: times of another boot cannot be compared with this one's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def replace(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file so that readers see the whole old or the whole new one; ``durable``: also after a power failure."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make creations and removals in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_lease(state_dir: Path, asked_at: float, boot: str) -> None:
    replace(state_dir / LEASE, f"{asked_at:.6f} {boot}\n".encode("ascii"), durable=False)


def read_lease(state_dir: Path, boot: str) -> float | None:
    """Return the time at which the last answered sync was sent; None if there was none in this boot."""
    try:
        asked_at, of_boot = (state_dir / LEASE).read_text(encoding="ascii").split()
        moment = float(asked_at)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return None
    return moment if of_boot == boot and isfinite(moment) else None


def poke(fifo: Path, message: bytes) -> bool:
    """Write to the reader of a FIFO; return False when there is none. A full FIFO is fine: its reader will look anyway."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, message)
    except BlockingIOError:
        pass
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
