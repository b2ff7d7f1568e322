"""What lies where in a state directory, and the forms that agent and keeper read from each other.

    agent.lock        held by the one agent that acts on this directory
    zygote.lock       held while a start may be under way that the agent has asked for
    holder            the identity of these records
    lease             when the dispatcher was last asked and answered, see `Lease`
    poke              FIFO: keepers write the name of their run when its status has changed
    runs/<run>/
        record.json   the run as accepted; durable before anything else happens
        plan.json     what the keeper does: `RunPlan`
        started       made by the one keeper that may ever start members; durable before they start
        keeper.lock   held by the keeper for its life
        processes     process groups of the members, each with its start time
        status.json   the run as it is; written by the keeper while it lives, by the agent before and after
        stop.json     the latest wish to stop: `StopWish`
        control       FIFO: a byte makes the keeper look at stop.json
        <role>-<index>/, <role>-<index>.log    a member's working directory and output
    trash/            directories of forgotten runs on their way out

Standard library only, and little of it: the zygote imports this.
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
KEEPER_LOCK = "keeper.lock"
PROCESSES = "processes"
STATUS = "status.json"
STOP = "stop.json"
CONTROL = "control"

AGENT_LOCK = "agent.lock"
ZYGOTE_LOCK = "zygote.lock"
HOLDER = "holder"
LEASE = "lease"
POKE = "poke"
RUNS = "runs"
TRASH = "trash"


class MemberPlan(TypedDict):
    """How to start one member. ``env`` is what it has beside the variables that all members share."""

    role: str
    index: int
    node: str
    group: str
    """Of nodes, as reported."""
    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    """A directory that the user named; None: the member's own."""


class FailurePlan(TypedDict):
    """What the failure of a member of a role means."""

    action: str
    """As ``MemberFailure.action``."""
    limit: int
    back_off: float


class RunPlan(TypedDict):
    """What a keeper needs to know. Times are seconds, moments are seconds of CLOCK_BOOTTIME."""

    run: str
    generation: int
    seq: int
    """Of the last status before the keeper's first."""
    resized: bool
    """Whether the run was ever asked to have other sizes. A plan of a higher generation takes the place of the one before."""
    env: dict[str, str]
    members: list[MemberPlan]
    used: dict[str, dict[str, int]]
    """Resources by node, for the agent's own accounts."""
    ports: list[int]
    """Handed out to the members, for the agent's own accounts."""
    time_limit: float | None
    stop_grace: float
    failures: dict[str, FailurePlan]
    """By role."""
    success: str | None
    """The role whose members decide that the run has succeeded; None: all members do."""
    disconnect: float | None
    contact: float
    """Counts as the last contact as long as the lease says nothing."""
    boot: str
    user: NotRequired[list[int]]
    """Ids of the user and the group that members run as; else those of the agent."""


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
    """Whether what was read is a plan of this run, as far as those who read plans go by it."""
    if not isinstance(data, dict) or data.get("run") != run:
        return False
    if not all(isinstance(data.get(name), of) for name, of in _PLAN_TYPES.items()):
        return False
    used = all(isinstance(one, dict) and all(isinstance(n, int) for n in one.values()) for one in data["used"].values())
    members = all(isinstance(one, dict) and {"role", "index", "node", "group"} <= one.keys() for one in data["members"])
    return used and members and all(isinstance(port, int) for port in data["ports"])


class StopWish(TypedDict):
    """A stop as the keeper reads it."""

    generation: int
    cause: str
    grace: float
    wait: float
    """Between the signal to save their state and SIGTERM; 0: no such signal."""
    signal: str


def boottime() -> float:
    """Seconds of the clock that goes on while the machine sleeps; the two clocks of the design count on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The identity of this boot: moments of another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def replace(path: Path, data: bytes, *, durable: bool) -> None:
    """Writes a file so that readers see the old or the new one whole; ``durable``: also after a power cut."""
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
    """Makes names made in or taken from a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_lease(state_dir: Path, asked_at: float, boot: str) -> None:
    replace(state_dir / LEASE, f"{asked_at:.6f} {boot}\n".encode("ascii"), durable=False)


def read_lease(state_dir: Path, boot: str) -> float | None:
    """The moment the last answered sync was sent; None if there was none in this boot."""
    try:
        asked_at, of_boot = (state_dir / LEASE).read_text(encoding="ascii").split()
        moment = float(asked_at)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return None
    return moment if of_boot == boot and isfinite(moment) else None


def poke(fifo: Path, message: bytes) -> bool:
    """Writes to whoever reads a FIFO; False when nobody does. A full FIFO is fine: its reader will look anyway."""
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
