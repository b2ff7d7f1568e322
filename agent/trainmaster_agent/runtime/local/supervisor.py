"""The supervisor: one process per run that starts its members, watches over them and ends them in time.

It outlives the agent. While it lives it alone writes the run's status; when it dies, the kernel kills the members.
It sleeps until an event: a child ends, a stop is ordered, a time limit has come.
Standard library only.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
from pathlib import Path
from typing import NamedTuple, cast

from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.results import RESULTS_VARIABLE
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster_agent.runtime.local import kernel
from trainmaster_agent.runtime.local.layout import (
    CONTROL,
    LIVES,
    PLAN,
    POKE,
    STARTED,
    STATUS,
    STOP,
    SUPERVISOR_LOCK,
    RunPlan,
    StopWish,
    boottime,
    poke,
    read_lease,
    replace,
)
from trainmaster_agent.runtime.local.member_processes import Member, MemberProcesses
from trainmaster_agent.runtime.local.output_bounds import MOST_OUTPUT, bound_output
from trainmaster_agent.runtime.local.results_file import ResultsFile

_SAY_AGAIN = 1.0
"""Seconds until another try to write a status, for example on a full disk."""
_TELL_AGAIN = 1.0
"""Seconds between checks for processes of ended members that missed the SIGTERM to all."""
_BOUND_AGAIN = 30.0
"""Seconds between checks of the size of output files: an agent that is there checks them every second."""
_KILL_AGAIN = 0.05
"""Seconds between SIGKILLs: a descendant may fork during the search."""


def claim(run_dir: Path) -> bool:
    """Return whether this process may start the members: only the first one ever to ask may, even if that one died."""
    try:
        lock = os.open(run_dir / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (run_dir / STARTED).exists():
            # All writes that need disk space come before the claim: on a full disk another supervisor may try later.
            with contextlib.suppress(FileExistsError):
                os.mkfifo(run_dir / CONTROL, 0o600)
        os.close(os.open(run_dir / STARTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        os.close(lock)
        return False
    return True


def keep(run_dir: Path) -> None:
    """Supervise a claimed run until it has ended."""
    kernel.set_name("tm-keeper")
    kernel.adopt_orphans()
    # Only a stop order ends a run. Blocked, not ignored: a SIGTERM that reaches a member before its exec must stay pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    Supervisor(run_dir, cast(RunPlan, json.loads((run_dir / PLAN).read_bytes()))).run()


class MembersEnd(NamedTuple):
    """The run's end, once every member is gone."""

    state: RunState
    message: str
    category: FailureCategory | None = None
    member: Member | None = None
    stopped: bool = False
    """Whether a stop order caused it; a later order may then change it."""


class Regroup:
    """A restart of all members together: all are being ended first."""

    def __init__(self, back_off: float, kill_at: float) -> None:
        self.back_off = back_off
        self.kill_at = kill_at
        self.start_at: float | None = None
        """Time of the restart; None until all of them have ended."""

    @property
    def next_at(self) -> float:
        return self.kill_at if self.start_at is None else self.start_at


class Supervisor:
    """Each step checks everything again: children, the stop order, the time limits. Then it reports what has changed."""

    def __init__(self, run_dir: Path, plan: RunPlan) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._state_dir = run_dir.parent.parent
        self._processes = MemberProcesses(plan, run_dir)
        self._generation, self._seq = plan["generation"], plan["seq"]
        self._is_launched = False
        self._first = self._processes.members[0]
        """The member of rank 0, which never leaves the run."""
        self._results: ResultsFile | None = None
        self._planned = plan["generation"]
        """Generation of the current plan."""
        self._state = RunState.PENDING
        self._verdict: MembersEnd | None = None
        self._regroup: Regroup | None = None
        self._regroups = 0
        self._limit_at: float | None = None
        self._term_at: float | None = None
        """Time at which members that save their state are ordered to end."""
        self._kill_at: float | None = None
        self._rest_at: float | None = None
        """Time of the next check for processes that ended members have left behind."""
        self._is_killing = False
        """Whether all are being killed already."""
        self._say_at: float | None = None
        self._bound_at = boottime() + _BOUND_AGAIN
        self._dirty = False
        self._contact = self._last_contact()
        self._timer = kernel.BootTimer()
        self._children, wakeup = os.pipe()
        os.set_blocking(self._children, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._control = os.open(run_dir / CONTROL, os.O_RDWR | os.O_NONBLOCK)

    def run(self) -> None:
        self._heed_stop()
        self._heed_clocks()
        if self._verdict is None:
            self._launch()
        while not self._step():
            self._sleep()
        if self._results is not None:
            self._results.remove()

    def _launch(self) -> None:
        self._is_launched = True
        try:
            self._results = ResultsFile(self._run_dir, self._first.name, self._plan.get("user"))
            self._first.plan["env"][RESULTS_VARIABLE] = str(self._results.path)
            self._processes.launch(self._processes.members)
        except OSError as error:
            self._conclude(
                MembersEnd(RunState.RETURNED, f"the members could not be started: {error.strerror}"), grace=0
            )
            return
        limit = self._plan["time_limit"]
        self._limit_at = None if limit is None else boottime() + limit

    def _step(self) -> bool:
        """Take one step; return whether the run is over and reported."""
        self._heed_children()
        self._heed_stop()
        self._heed_clocks()
        self._heed_children()
        state = self._state_now()
        if state != self._state:
            self._state, self._dirty = state, True
        if self._dirty and (self._say_at is None or boottime() >= self._say_at):
            self._say()
        return state.is_terminal and not self._dirty

    def _state_now(self) -> RunState:
        if self._verdict is None:
            return RunState.RUNNING if not self._processes.launches else self._state
        return self._verdict.state if self._processes.childless else RunState.STOPPING

    def _heed_children(self) -> None:
        ended = self._processes.reap()
        if ended and (self._verdict is not None or self._regroup is not None) and not self._processes.childless:
            self._rest_at = boottime()
        for member, code in ended:
            self._dirty = True
            member.take_exit(code)
            if member.leaves_by is not None:
                self._processes.members.remove(member)
            elif self._verdict is not None:
                member.state = "stopped"
            elif self._regroup is not None:
                member.state = "pending"
            elif code == 0:
                member.state = "succeeded"
            elif not self._start_again(member):
                member.state = "failed"
                self._conclude(self._failure(member), grace=self._plan["stop_grace"])
        if self._verdict is None and self._regroup is None and self._has_succeeded():
            is_early = self._plan["success"] is not None
            self._conclude(MembersEnd(RunState.SUCCEEDED, ""), grace=self._plan["stop_grace"] if is_early else 0)
        if self._regroup is not None and self._regroup.start_at is None and self._processes.childless:
            self._regroup.start_at = boottime() + self._regroup.back_off

    def _has_succeeded(self) -> bool:
        """Return whether all members that decide have succeeded; without members of the deciding role, all decide."""
        deciding = [one for one in self._processes.members if one.plan["role"] == self._plan["success"]]
        return all(member.state == "succeeded" for member in deciding or self._processes.members)

    def _start_again(self, member: Member) -> bool:
        """Restart the failed member, alone or with all others, if its policy says so; return whether it restarts."""
        policy = self._plan["failures"][member.plan["role"]]
        if member.refused:
            return False
        if policy["action"] == "restartGang" and self._regroups < policy["limit"]:
            self._begin_regroup(member, policy["back_off"])
            return True
        if policy["action"] != "restartMember" or member.own_restarts >= policy["limit"]:
            return False
        member.own_restarts += 1
        if policy["back_off"] > 0:
            member.state, member.again_at = "pending", boottime() + policy["back_off"]
            return True
        return self._launch_again([member])

    def _launch_again(self, members: list[Member]) -> bool:
        for member in members:
            member.restarts += 1
            member.again_at = None
            self._note_life(member)
        try:
            if self._results is not None and self._first in members:
                self._results.empty()
            self._processes.launch(members)
        except OSError:
            return False
        self._dirty = True
        return True

    def _note_life(self, member: Member) -> None:
        """Note where the output of the member's next life begins. A life that is not noted counts with the one before."""
        output = self._run_dir / f"{member.name}.log"
        with contextlib.suppress(OSError), (self._run_dir / f"{member.name}{LIVES}").open("a") as lives:
            lives.write(f"{output.stat().st_size}\n")

    def _begin_regroup(self, member: Member, back_off: float) -> None:
        """End all members; they restart together once all have ended."""
        self._regroups += 1
        self._dirty = True
        self._regroup = Regroup(back_off, kill_at=boottime() + self._plan["stop_grace"])
        for one in self._processes.members:
            one.again_at = None
            if one.state != "running" or one is member:
                one.state = "pending"
        if not self._processes.childless:
            self._processes.terminate()

    def _mind_restarts(self, now: float) -> None:
        """Kill members that delay a restart, and perform the restarts that are due."""
        due = [one for one in self._processes.members if one.again_at is not None and now >= one.again_at]
        for member in due:
            if not self._launch_again([member]):
                member.state = "failed"
                self._conclude(self._failure(member), grace=self._plan["stop_grace"])
                return
        regroup = self._regroup
        if regroup is None:
            return
        if regroup.start_at is None and now >= regroup.kill_at:
            self._processes.kill()
            regroup.kill_at = now + _KILL_AGAIN
        if regroup.start_at is not None and now >= regroup.start_at:
            # No process that was ordered to end is left; later ones have no such order.
            self._regroup = self._rest_at = None
            if not self._launch_again(self._processes.members):
                self._conclude(MembersEnd(RunState.FAILED, "its members could not be started again"), grace=0)

    def _failure(self, member: Member) -> MembersEnd:
        if member.refused:
            category = FailureCategory.CONFIG
        else:
            category = FailureCategory.EXIT if member.signal is None else FailureCategory.SIGNAL
        again = f", after {member.restarts} restarts" if member.restarts else ""
        return MembersEnd(RunState.FAILED, member.message + again, category, member)

    def _heed_stop(self) -> None:
        is_woken = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._control, 4096):
                is_woken = True
        if is_woken:
            self._heed_plan()
        try:
            wish = cast(StopWish, json.loads((self._run_dir / STOP).read_bytes()))
            generation, cause = wish["generation"], StopCause(wish["cause"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return  # an unreadable order is written again: the dispatcher repeats it until the run has ended
        if generation < self._generation:
            return
        if wish["generation"] > self._generation:
            self._generation, self._dirty = wish["generation"], True
        verdict = MembersEnd(cause.ends_as, f"stopped: {cause}", stopped=True)
        wait = wish.get("wait", 0.0)
        if self._verdict is None and wait > 0 and self._regroup is None:
            self._save_state(
                verdict, wait, wish["grace"], signal.Signals.__members__.get(wish["signal"], signal.SIGUSR1)
            )
        elif self._verdict is None or (self._verdict.stopped and self._verdict != verdict):
            self._conclude(verdict, grace=wish["grace"])
        else:
            now = boottime()
            if self._term_at is not None:
                self._term_at = min(self._term_at, now + wait)
            self._hasten(now + wait + wish["grace"])

    def _heed_plan(self) -> None:
        """Follow a new plan: members that it no longer has leave, its new ones start."""
        with contextlib.suppress(OSError, ValueError):
            plan = cast(RunPlan, json.loads((self._run_dir / PLAN).read_bytes()))
            if plan["generation"] > self._planned and self._verdict is None:
                self._resize(plan)

    def _resize(self, plan: RunPlan) -> None:
        self._plan, self._planned, self._dirty = plan, plan["generation"], True
        self._generation = max(self._generation, plan["generation"])
        wanted = {(one["role"], one["index"]) for one in plan["members"]}
        there = {(member.plan["role"], member.plan["index"]) for member in self._processes.members}
        leaving = [one for one in self._processes.members if (one.plan["role"], one.plan["index"]) not in wanted]
        for member in leaving:
            if member.state == "running":
                member.leaves_by = boottime() + plan["stop_grace"]
                self._processes.send(member, signal.SIGTERM)
            else:
                self._processes.members.remove(member)  # it has ended by itself
        coming = [Member(one) for one in plan["members"] if (one["role"], one["index"]) not in there]
        self._processes.members += coming
        if not coming or not self._is_launched or self._regroup is not None:
            return  # the next launch is for all of them
        try:
            self._processes.launch(coming)
        except OSError:
            # The forked ones wait at a gate that stays shut, and end; the run goes on without them.
            for member in coming:
                if member.pid:
                    member.state, member.leaves_by = "running", boottime()
                else:
                    self._processes.members.remove(member)

    def _heed_clocks(self) -> None:
        now = boottime()
        for member in self._processes.members:
            if member.leaves_by is not None and now >= member.leaves_by:
                self._processes.send(member, signal.SIGKILL)
                member.leaves_by = now + _KILL_AGAIN
        if self._verdict is None:
            self._mind_restarts(now)
        if self._verdict is None and self._limit_at is not None and now >= self._limit_at:
            message = f"the time limit of {self._plan['time_limit']:g} s is over"
            self._conclude(
                MembersEnd(RunState.FAILED, message, FailureCategory.DEADLINE), grace=self._plan["stop_grace"]
            )
        latest = self._latest()
        if latest is not None and now >= latest:
            self._contact = self._last_contact()
            latest = self._latest()
            if latest is not None and now >= latest:
                self._lose_contact(now)
        if now >= self._bound_at:
            self._bound_at = now + _BOUND_AGAIN
            for member in self._processes.members:
                with contextlib.suppress(OSError):
                    bound_output(self._run_dir / f"{member.name}.log", MOST_OUTPUT)
        if self._term_at is not None and now >= self._term_at:
            self._terminate()
        if self._rest_at is not None and now >= self._rest_at:
            self._rest_at = now + _TELL_AGAIN if self._processes.terminate_rest() else None
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all(now)

    def _kill_all(self, now: float) -> None:
        """Kill all members, and again until none is left."""
        self._is_killing = True
        if self._processes.childless:
            self._kill_at = None
            return
        self._processes.kill()
        self._kill_at = now + _KILL_AGAIN

    def _last_contact(self) -> float:
        lease = read_lease(self._state_dir, self._plan["boot"])
        return self._plan["contact"] if lease is None else lease

    def _latest(self) -> float | None:
        """Return the latest time to stop the members, or to kill those already stopping, if the dispatcher stays silent.

        A tenth of the time to the deadline, at most a second, is reserved for the kernel to end them; the grace is at most half of
        it, so that a job with a long grace does not stop for a short silence.
        """
        limit = self._plan["disconnect"]
        if limit is None or self._is_killing:
            return None
        kill_at = self._contact + limit - min(1.0, limit / 10)
        if self._verdict is None or self._term_at is not None:
            return kill_at - min(self._plan["stop_grace"], limit / 2)
        return kill_at if self._kill_at is None or self._kill_at > kill_at else None

    def _lose_contact(self, now: float) -> None:
        if self._term_at is not None:
            self._terminate()
            return
        if self._verdict is not None:
            self._kill_at = now
            return
        limit = self._plan["disconnect"] or 0.0
        message = (
            f"no contact with the dispatcher: after {limit:g} s the job may start elsewhere, so it was stopped here"
        )
        grace = min(self._plan["stop_grace"], limit / 2)
        kill_at = self._contact + limit - min(1.0, limit / 10)
        self._conclude(MembersEnd(RunState.LOST, message), grace=min(grace, max(0.0, kill_at - now)))

    def _conclude(self, verdict: MembersEnd, grace: float) -> None:
        """Decide how the run ends, and end its living members."""
        is_ending = self._regroup is not None or (self._verdict is not None and self._term_at is None)
        self._verdict, self._dirty = verdict, True
        self._start_none_again()
        if self._processes.childless:
            return
        if grace > 0 and not is_ending:
            self._terminate()
        self._hasten(boottime() + grace)

    def _save_state(self, verdict: MembersEnd, wait: float, grace: float, number: signal.Signals) -> None:
        """Decide how the run ends, and send its members the checkpoint signal before they are ordered to end."""
        self._verdict, self._dirty = verdict, True
        self._start_none_again()
        if self._processes.childless:
            return
        self._processes.signal(number)
        now = boottime()
        self._term_at = now + wait
        self._hasten(now + wait + grace)

    def _start_none_again(self) -> None:
        for member in self._processes.members:
            if member.again_at is not None or (self._regroup is not None and member.state == "pending"):
                member.state, member.again_at = "stopped", None
        self._regroup = None

    def _terminate(self) -> None:
        self._term_at = None
        self._processes.terminate()

    def _hasten(self, kill_at: float) -> None:
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _sleep(self) -> None:
        moments = (
            self._limit_at if self._verdict is None else None,
            self._latest(),
            self._term_at,
            self._kill_at,
            self._rest_at,
            self._say_at,
            self._bound_at,
            *(member.leaves_by for member in self._processes.members),
            *(member.again_at for member in self._processes.members),
            None if self._regroup is None else self._regroup.next_at,
        )
        self._timer.arm(min((moment for moment in moments if moment is not None), default=None))
        poller = select.poll()
        for fd in (self._children, self._control, self._timer.fd, *self._processes.launches):
            poller.register(fd, select.POLLIN)
        poller.poll()
        for fd in (self._children, self._timer.fd):
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)

    def _say(self) -> None:
        """Write the status for this agent and later ones; the end of a run is durable first."""
        data = json.dumps(self._report(self._seq + 1)).encode()
        try:
            replace(self._run_dir / STATUS, data, durable=self._state.is_terminal)
        except OSError:
            self._say_at = boottime() + _SAY_AGAIN
            # A run whose folder somebody has removed has nobody left to hear of its end.
            self._dirty = not self._state.is_terminal or self._run_dir.exists()
            return
        self._seq, self._say_at, self._dirty = self._seq + 1, None, False
        poke(self._state_dir / POKE, os.fsencode(self._run_dir.name) + b"\n")

    def _report(self, seq: int) -> dict[str, object]:
        """Return the wire form of a ``RunReport``."""
        verdict = self._verdict
        end = None
        left = self._results if self._state.has_results else None
        results, results_error = (None, "") if left is None else left.read()
        if verdict is not None and self._state.is_terminal:
            member = verdict.member
            end = {
                "category": verdict.category,
                "exitCode": None if member is None or member.refused else member.exit_code,
                "signal": None if member is None else member.signal,
                "member": None if member is None else member.name,
                "message": verdict.message,
            }
        return {
            "run": self._plan["run"],
            "generation": self._generation,
            "seq": seq,
            "state": self._state,
            "message": "" if verdict is None else verdict.message,
            "end": end,
            "placement": self._placement(),
            "members": [member.report() for member in self._processes.members],
            "sizes": self._sizes() if self._plan["resized"] else None,
            "results": results,
            "resultsError": results_error,
        }

    def _placement(self) -> MemberPlacement:
        """Return the number of members of each role by node group, those that still have to leave included."""
        groups: MemberPlacement = {}
        for member in self._processes.members:
            roles = groups.setdefault(member.plan["group"], {})
            roles[member.plan["role"]] = roles.get(member.plan["role"], 0) + 1
        return groups

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for member in self._processes.members:
            if member.leaves_by is None:
                sizes[member.plan["role"]] = sizes.get(member.plan["role"], 0) + 1
        return sizes
