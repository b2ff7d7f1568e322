"""The members of one run as children of its supervisor: forked together, released together, reaped one by one.

Standard library only: it runs in supervisors.
"""

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Any

from trainmaster_agent.runtime.local import kernel, process_table
from trainmaster_agent.runtime.local.layout import PROCESSES, MemberPlan, RunPlan, replace, sync_directory

_MOST_OF_A_MESSAGE = 1000
_RESET_SIGNALS = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGTERM,
    signal.SIGXFSZ,
)


class Member:
    """One member and its state."""

    def __init__(self, plan: MemberPlan) -> None:
        self.plan = plan
        self.name = f"{plan['role']}-{plan['index']}"
        self.pid = 0
        self.state = "pending"
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.restarts = 0
        self.own_restarts = 0
        """Number of ``restarts`` in which this member alone was restarted."""
        self.again_at: float | None = None
        """Time of its restart alone; None unless one is due."""
        self.message = ""
        self.leaves_by: float | None = None
        """Time at which it is killed; None unless it has to leave the run."""
        self.refused = False
        """Whether its command could not be executed; ``message`` says why."""

    def take_exit(self, code: int) -> None:
        """Note the exit ``code``, in subprocess' form: negative for a signal."""
        self.exit_code, self.signal = (code, None) if code >= 0 else (None, -code)
        if not self.message:
            self.message = f"member {self.name} " + (
                f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
            )

    def report(self) -> dict[str, Any]:
        """Return the wire form of a ``MemberReport``."""
        return {
            "role": self.plan["role"],
            "index": self.plan["index"],
            "state": self.state,
            "node": self.plan["node"],
            "group": self.plan["group"],
            "exitCode": self.exit_code,
            "signal": self.signal,
            "restarts": self.restarts,
            "message": self.message,
        }


class MemberProcesses:
    """All members of a run.

    ``launches`` are pipes that members hold from fork to exec: a member that cannot be executed reports that there, and the end of
    the pipe means that all have been executed.
    """

    def __init__(self, plan: RunPlan, run_dir: Path) -> None:
        self.members = [Member(member) for member in plan["members"]]
        self.launches: set[int] = set()
        self.childless = False
        """Whether no descendant of this process is left: orphaned ones become its children."""
        self._env = plan["env"]
        self._user = plan.get("user")
        self._can_restart = any(one["action"] != "failRun" for one in plan["failures"].values())
        self._run_dir = run_dir
        self._by_pid: dict[int, Member] = {}
        self._terminated: set[tuple[int, int]] = set()
        """Process ids and start times of the descendants that existed when SIGTERM was sent to all."""

    def launch(self, members: list[Member]) -> None:
        """Fork the members, make the start durable, then release all at once.

        Raises OSError when one cannot be forked; then none of the members runs.
        """
        gate, opener = os.pipe()
        launch, refusals = os.pipe()
        os.set_blocking(launch, False)
        try:
            for member in members:
                member.pid = self._fork(member, gate, opener, refusals)
                self._by_pid[member.pid] = member
            self._record_processes()
            for member in members:
                member.state, member.message, member.exit_code, member.signal = "running", "", None, None
            os.write(opener, b"." * len(members))
            self.launches.add(launch)
            self.childless = False
        except OSError:
            os.close(launch)  # the gate stays shut: every process that waits at it ends
            raise
        finally:
            for fd in (gate, opener, refusals):
                os.close(fd)

    def reap(self) -> list[tuple[Member, int]]:
        """Return the members that ended since the last call, with their exit codes (negative for a signal)."""
        ended: list[tuple[Member, int]] = []
        self._listen()
        while True:
            try:
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.childless = True
                return ended
            if waiting is None:
                return ended
            pid = waiting.si_pid
            self._listen()  # a member that could not be executed has reported that before it ended
            member = self._by_pid.pop(pid, None)
            if member is not None and (self._can_restart or member.leaves_by is not None):
                # Before the process id is free again: a restarted member must not meet remains of its predecessor.
                process_table.send_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if member is not None:
                ended.append((member, os.waitstatus_to_exitcode(status)))

    def send(self, member: Member, number: signal.Signals) -> None:
        """Send a signal to all processes of one member; a stopped one is continued so that it gets the signal."""
        if member.pid not in self._by_pid:
            return  # it has ended, and its process id may belong to another process
        outside = process_table.descendants(member.pid)
        process_table.send_group(member.pid, number)
        process_table.send_group(member.pid, signal.SIGCONT)
        for pid in outside:
            process_table.send(pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the members' own processes only; they pass it on to the processes they started."""
        for pid in self._by_pid:
            process_table.send(pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to each member's group and each descendant outside of them; stopped ones are continued."""
        self._terminated = {(pid, born) for pid, born, _ in self._descendants()}
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in self._by_pid:
                process_table.send_group(pid, number)
        for pid, _, group in self._descendants():
            if group not in self._by_pid:
                self._end(pid)

    def terminate_rest(self) -> bool:
        """Send SIGTERM to descendants that have not had it; return whether any but the members are left.

        These are descendants started by a member before it handled its own SIGTERM, and those that lost theirs, as a process may
        between its fork and its exec. Those that handle SIGTERM get no second one, which many programs take as an order to hurry.
        Call again while it returns True.
        """
        rest = [one for one in self._descendants() if one[0] not in self._by_pid] if self._terminated else []
        for pid, born, _ in rest:
            if (pid, born) not in self._terminated or process_table.dies_of(pid, signal.SIGTERM):
                self._end(pid)
        return bool(rest)

    def _end(self, pid: int) -> None:
        process_table.send(pid, signal.SIGTERM)
        process_table.send(pid, signal.SIGCONT)

    def _descendants(self) -> list[tuple[int, int, int]]:
        """Return process id, start time and process group of each descendant."""
        looked = ((pid, process_table.look(pid)) for pid in process_table.descendants(os.getpid()))
        return [(pid, process.born, process.group) for pid, process in looked if process is not None]

    def kill(self) -> None:
        """Send SIGKILL to every descendant. One that forks meanwhile leaves an orphan: call again until none is left."""
        for pid in self._by_pid:
            process_table.send_group(pid, signal.SIGKILL)
        for pid in process_table.descendants(os.getpid()):
            process_table.send(pid, signal.SIGKILL)

    def _listen(self) -> None:
        for launch in tuple(self.launches):
            self._read_launch(launch)

    def _read_launch(self, launch: int) -> None:
        while True:
            try:
                text = os.read(launch, 1 << 16)
            except BlockingIOError:
                return
            if not text:
                os.close(launch)
                self.launches.discard(launch)
                return
            for line in text.decode("utf-8", "replace").splitlines():
                pid, message = line.split(" ", 1)
                member = self._by_pid.get(int(pid))
                if member is not None:
                    member.refused, member.message = True, message

    def _record_processes(self) -> None:
        """Write down the process groups and, once and for all, that this run was started."""
        lines = [f"{pid} {process.born}\n" for pid in self._by_pid if (process := process_table.look(pid)) is not None]
        replace(self._run_dir / PROCESSES, "".join(lines).encode("ascii"), durable=False)
        sync_directory(self._run_dir)

    def _fork(self, member: Member, gate: int, opener: int, refusals: int) -> int:
        supervisor = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                os.close(opener)  # else the supervisor's end would not end the wait at the gate
                _become(member, self._env, self._run_dir, gate, supervisor, self._user)
            except BaseException as error:  # noqa: BLE001 - nothing may return into the supervisor's code
                line = f"{os.getpid()} {_why(member, error)}"[:_MOST_OF_A_MESSAGE].replace("\n", " ")
                os.write(refusals, line.encode("utf-8", "replace") + b"\n")
            finally:
                os._exit(127)
        return child


def _become(
    member: Member, common: dict[str, str], run_dir: Path, gate: int, supervisor: int, user: list[int] | None
) -> None:
    """Turn this fresh child into the member: own session, nothing inherited, killed when its supervisor ends."""
    os.setsid()
    kernel.die_with_parent(supervisor)
    signal.set_wakeup_fd(-1)
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    output = os.open(run_dir / f"{member.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    folder = member.plan["cwd"]
    if folder is None:
        own = run_dir / member.name
        own.mkdir(exist_ok=True)
        folder = str(own)
    env = {**common, **member.plan["env"], "TRAINMASTER_RESTARTS": str(member.restarts)}
    if user is not None and member.plan["cwd"] is None:
        os.chown(folder, *user)
        env |= {} if "HOME" in member.plan["env"] else {"HOME": folder}
    if os.read(gate, 1):  # nothing to read: the supervisor has ended
        if member.plan["cwd"] is None:
            os.chdir(folder)  # while it may still pass through the agent's folders
        if user is not None:
            _give_up_rights(*user)
            kernel.die_with_parent(supervisor)  # which the kernel clears when the user changes
        if member.plan["cwd"] is not None:
            os.chdir(folder)
        os.execvpe(member.plan["argv"][0], member.plan["argv"], env)  # noqa: S606 - this is what members are


def _give_up_rights(user: int, group: int) -> None:
    """Change the user of this process, which is root's, for good."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    os.umask(0o022)


def _why(member: Member, error: BaseException) -> str:
    """Return why a member could not start, as a sentence for the author of the job."""
    folder = member.plan["cwd"]
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if folder is not None and not _is_folder(folder):
        return f"member {member.name}: the working directory {folder!r} does not exist"
    command = member.plan["argv"][0]
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return f"member {member.name}: the command {command!r} was not found"
    return f"member {member.name}: the command {command!r} cannot be executed: {reason}"


def _is_folder(name: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(name).is_dir()
    return False


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
