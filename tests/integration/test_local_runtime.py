"""The local runtime: the conformance suite, and what is its own: processes, environments, crashes of its parts."""

import asyncio
import contextlib
import errno
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runtime_suite import (
    RUNS,
    SAVES,
    STUBBORN,
    SUCCEEDS,
    WAITS_FOR_GATE,
    A,
    B,
    Behaviour,
    Does,
    Part,
    RuntimeConformance,
    eventually,
    start_run,
    stop_run,
    until,
    until_over,
    until_state,
)
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster_agent.runtime.local import fork_server, layout, process_table
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_agent.runtime.port import Runtime, RuntimeAwayError, RuntimeRefusedError

CLUSTER = LocalCluster.model_validate(
    {"nodes": [{"name": "cpu", "count": 2, "allocatable": {"cpu": "4", "memory": "8Gi"}}]}
)
ROOMY = LocalCluster.model_validate({"nodes": [{"allocatable": {"cpu": "100"}}]})
AGENT = Path(__file__).with_name("local_agent.py")


class LocalLab:
    """A state directory, the runtime that is open on it, and queries of this machine's processes."""

    def __init__(self, folder: Path, cluster: LocalCluster = CLUSTER) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.cluster = cluster
        self.local = LocalRuntime(self.state_dir, cluster)
        (folder / "gates").mkdir()

    @property
    def runtime(self) -> Runtime:
        return self.local

    async def restart(self) -> None:
        await self.local.close()
        await self.reopen()

    async def reopen(self) -> None:
        self.local = LocalRuntime(self.state_dir, self.cluster)
        await self.local.open()

    async def end(self) -> None:
        """Stop what still runs, so that no test leaves processes behind."""
        for run in self.local.held():
            await self.local.stop(stop_run(run, grace=0, generation=1000))
            await until_over(self, run)
        await self.local.close()

    def template(self, run: str, behaviour: Behaviour) -> dict[str, Any]:
        gate = self.folder / "gates" / run
        scripts = {
            Does.SUCCEED: "exit 0",
            Does.EXIT: f"exit {behaviour.code}",
            Does.DIE_BY_SIGNAL: f"kill -{behaviour.code} $$",
            Does.PRINT: 'printf %s "$TEXT"',
            Does.RETURN: f'[ -z "$TRAINMASTER_RESULTS" ] || printf %s "$TEXT" >"$TRAINMASTER_RESULTS"; exit {behaviour.code}',
            Does.RUN: ": >ready; exec sleep 3600",
            Does.RUN_STUBBORNLY: "trap '' TERM; : >ready; exec sleep 3600",
            Does.LEAVE_IN_PEACE: "trap 'exit 0' TERM; : >ready; sleep 3600 & wait",
            Does.SAVE_STATE: (
                "trap 'echo saved' USR1; trap 'echo ended; exit 0' TERM; : >ready; while :; do sleep 3600 & wait; done"
            ),
            Does.FAIL_AT_FIRST: f'[ "$TRAINMASTER_RESTARTS" -ge {behaviour.times} ] || exit {behaviour.code}',
            Does.WAIT_FOR_GATE: f": >ready; until [ -e '{gate}' ]; do sleep 0.02; done",
        }
        return {"command": ["sh", "-c", scripts[behaviour.does]], "env": {"TEXT": behaviour.text}}

    def open_gate(self, run: str) -> None:
        (self.folder / "gates" / run).touch()

    def run_dir(self, run: str) -> Path:
        return self.state_dir / layout.RUNS / run

    def living(self, run: str) -> int:
        return len({self.member_of(pid) for pid in process_table.of_run(run, self.run_dir(run))} - {None})

    def member_of(self, pid: int) -> str | None:
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ")
            deadline = time.monotonic() + 1.0
            # It is empty for a moment while a process becomes another program.
            while not (content := environment.read_bytes()) and time.monotonic() < deadline:
                time.sleep(0.005)
            for item in content.split(b"\0"):
                if item.startswith(b"TRAINMASTER_MEMBER="):
                    return item.decode().partition("=")[2]
        return None

    def ready(self, run: str) -> int:
        return len(list(self.run_dir(run).glob("*/ready")))

    def now(self) -> float:
        return layout.boottime()

    def output(self, run: str, member: str = "worker-0") -> str:
        return (self.run_dir(run) / f"{member}.log").read_text()

    def supervisor(self, run: str) -> int:
        """Return the process id of a run's supervisor: the parent of its members."""
        pid, _ = (self.run_dir(run) / layout.PROCESSES).read_text().split()[:2]
        member = process_table.look(int(pid))
        assert member is not None
        return member.parent


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LocalLab]:
    lab = LocalLab(tmp_path)
    await lab.local.open()
    try:
        yield lab
    finally:
        await lab.end()


def script(text: str, **extra: Any) -> dict[str, Any]:
    """Return fields of a template that make a member run shell ``text``, and ``extra`` fields."""
    return {"command": ["sh", "-c", text], **extra}


def python(text: str, **extra: Any) -> dict[str, Any]:
    return {"command": ["python", "-c", text], **extra}


class TestLocalRuntime(RuntimeConformance):
    """The suite, on real processes."""

    not_offered = frozenset({"exclusiveNodes"})


# What members find


async def test_members_know_their_gang_by_environment(lab: LocalLab) -> None:
    show = script("env", ports=[{"name": "http", "port": 80}, {"name": "grpc-in", "port": 90}], env={"MINE": "yes"})
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, count=2, extra=show), Part(SUCCEEDS, name="ps")))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    env = dict(line.split("=", 1) for line in lab.output(A, "worker-1").splitlines())
    assert env["TRAINMASTER_RUN_ID"] == A
    assert (env["TRAINMASTER_ROLE"], env["TRAINMASTER_ROLE_INDEX"], env["TRAINMASTER_RANK"]) == ("worker", "1", "1")
    assert env["TRAINMASTER_WORLD_SIZE"] == "3"
    assert env["TRAINMASTER_PORT"] == env["TRAINMASTER_PORT_HTTP"]
    assert env["TRAINMASTER_PORT_GRPC_IN"] not in (env["TRAINMASTER_PORT"], "90")
    assert env["TRAINMASTER_ADDRESS_WORKER_1"] == f"127.0.0.1:{env['TRAINMASTER_PORT']}"
    assert len(set(env["TRAINMASTER_ADDRESSES"].split(","))) == 3
    assert env["MINE"] == "yes"
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)


async def test_members_see_none_of_the_agents_secrets(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_KEY", "secret-1")
    monkeypatch.setenv("CLOUD_TOKEN", "secret-2")
    peek = script("cat /proc/self/environ /proc/$PPID/environ | tr '\\0' '\\n'")
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=peek)))
    await until_over(lab, A)
    assert "secret" not in lab.output(A)


async def test_members_inherit_no_open_files(lab: LocalLab) -> None:
    show = python(
        "import os\n"
        "for fd in range(1024):\n"
        "    try: print(fd, os.readlink(f'/proc/self/fd/{fd}'))\n"
        "    except FileNotFoundError: pass"
    )
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=show)))
    await until_over(lab, A)
    log = lab.run_dir(A) / "worker-0.log"
    assert lab.output(A).splitlines() == ["0 /dev/null", f"1 {log}", f"2 {log}"]


async def test_members_reach_each_other_by_their_addresses(lab: LocalLab) -> None:
    listen = python(
        "import os, socket; s = socket.create_server((os.environ['TRAINMASTER_HOST'], int(os.environ['TRAINMASTER_PORT'])));"
        "s.accept()[0].sendall(b'hello')"
    )
    connect = python(
        "import os, socket, time\n"
        "while True:\n"
        "    try: s = socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); break\n"
        "    except ConnectionRefusedError: time.sleep(0.01)\n"
        "print(s.recv(5).decode())"
    )
    await lab.runtime.start(
        start_run(lab, A, Part(SUCCEEDS, extra=listen), Part(SUCCEEDS, name="guest", extra=connect))
    )
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    assert lab.output(A, "guest-0") == "hello\n"


async def test_each_member_has_a_working_directory_of_its_own_unless_it_names_one(lab: LocalLab) -> None:
    named = script("pwd", workingDir=str(lab.folder / "gates"))
    await lab.runtime.start(
        start_run(lab, A, Part(SUCCEEDS, extra=script("pwd")), Part(SUCCEEDS, name="named", extra=named))
    )
    await until_over(lab, A)
    assert lab.output(A).strip() == str(lab.run_dir(A) / "worker-0")
    assert lab.output(A, "named-0").strip() == str(lab.folder / "gates")


# What members leave


async def test_only_the_last_life_of_the_first_member_leaves_results(lab: LocalLab) -> None:
    text = '[ "$TRAINMASTER_RESTARTS" = 1 ] || { echo "{\\"old\\": 1}" >"$TRAINMASTER_RESULTS"; exit 3; }'
    again = {"memberFailure": {"action": "restartMember"}}
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(text), of_role=again)))
    await lab.runtime.start(start_run(lab, B, Part(SUCCEEDS, extra=script(text))))
    status = await until_over(lab, A)
    assert (status.state, status.results, status.results_error) == (RunState.SUCCEEDED, None, "")
    assert (await until_over(lab, B)).results == {"old": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('yes 12345678 | head -c 5000 >"$TRAINMASTER_RESULTS"', "have more than 4096 bytes"),
        ('echo "{}" >new; mv new "$TRAINMASTER_RESULTS"', "their file was removed or replaced"),
    ],
)
async def test_results_that_are_too_long_or_not_in_their_file_are_told(lab: LocalLab, text: str, words: str) -> None:
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(text))))
    status = await until_over(lab, A)
    assert (status.state, status.results) == (RunState.SUCCEEDED, None)
    assert status.results_error.startswith("the results of worker-0 ")
    assert words in status.results_error


# What cannot run


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"command": ["no-such-command"]}, "the command 'no-such-command' was not found"),
        ({"command": ["/etc/passwd"]}, "cannot be executed: Permission denied"),
        (
            {"command": ["true"], "workingDir": "/no/such/place"},
            "the working directory '/no/such/place' does not exist",
        ),
        ({"command": [], "image": "busybox"}, "role worker has no command"),
    ],
    ids=["unknown command", "no program", "no working directory", "only an image"],
)
async def test_what_is_written_wrong_fails_with_category_config(
    lab: LocalLab, extra: dict[str, Any], message: str
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2), Part(SUCCEEDS, extra=extra, name="worker2")))
    status = await until_over(lab, A)
    assert status.state is RunState.FAILED
    assert status.end is not None
    assert status.end.category is FailureCategory.CONFIG
    assert message.replace("role worker ", "role worker2 ") in status.end.message
    assert lab.living(A) == 0


async def test_a_pod_template_is_returned(lab: LocalLab) -> None:
    run = start_run(lab, A, Part(SUCCEEDS))
    run.spec["roles"][0] = {"name": "worker", "podTemplate": {"spec": {"containers": [{"name": "main"}]}}}
    await lab.runtime.start(run)
    status = await until_over(lab, A)
    assert (status.state, "podTemplate" in status.message) == (RunState.RETURNED, True)


async def test_a_run_id_that_is_no_file_name_is_refused(lab: LocalLab) -> None:
    with pytest.raises(RuntimeRefusedError, match="not a run id"):
        await lab.runtime.start(start_run(lab, "../../tmp-r1", Part(SUCCEEDS)))


# Members that fail alone


async def test_a_failed_member_starts_again_alone_and_knows_it(lab: LocalLab) -> None:
    third_time_lucky = script('echo "$TRAINMASTER_RESTARTS $TRAINMASTER_PORT"; [ "$TRAINMASTER_RESTARTS" = 2 ]')
    run = start_run(
        lab,
        A,
        Part(SUCCEEDS, extra=third_time_lucky),
        Part(SUCCEEDS, name="other", extra=script("echo once")),
        memberFailure={"action": "restartMember", "limit": 2},
    )
    await lab.runtime.start(run)
    status = await until_over(lab, A)
    assert status.state is RunState.SUCCEEDED
    assert {one.role: one.restarts for one in status.members} == {"worker": 2, "other": 0}
    lines = [line.split() for line in lab.output(A).splitlines()]
    assert [line[0] for line in lines] == ["0", "1", "2"]
    assert len({line[1] for line in lines}) == 1, "the others know its address"
    assert lab.output(A, "other-0") == "once\n"


async def test_a_member_that_fails_too_often_fails_the_run(lab: LocalLab) -> None:
    run = start_run(
        lab,
        A,
        Part(RUNS),
        Part(SUCCEEDS, name="bad", extra=script("exit 5")),
        memberFailure={"action": "restartMember", "limit": 1},
    )
    await lab.runtime.start(run)
    status = await until_over(lab, A)
    assert status.state is RunState.FAILED
    assert status.end is not None
    assert (status.end.exit_code, status.end.member) == (5, "bad-0")
    assert "after 1 restart" in status.message


async def test_children_of_members_that_started_again_are_not_told_to_end(lab: LocalLab) -> None:
    """Those of the members before were, and one of them took its time."""
    child = "trap 'sleep 0.3; exit 0' TERM; touch child; while :; do sleep 0.05; done"
    worker = script(
        'if [ "$TRAINMASTER_RESTARTS" = 0 ]; then setsid sh -c "$CHILD" & sleep 3600; fi; '
        "sleep 1.6 & wait $!; echo $? > ended",
        env={"CHILD": child},
    )
    bad = script('[ "$TRAINMASTER_RESTARTS" = 1 ] || { until [ -e ../worker-0/child ]; do sleep 0.01; done; exit 1; }')
    parts = (Part(SUCCEEDS, extra=worker), Part(SUCCEEDS, name="bad", extra=bad))
    again = {"action": "restartGang", "limit": 1}
    await lab.runtime.start(start_run(lab, A, *parts, memberFailure=again, stopGrace="5s"))
    status = await until_over(lab, A)
    assert (status.state, [one.restarts for one in status.members]) == (RunState.SUCCEEDED, [1, 1])
    assert (lab.run_dir(A) / "worker-0" / "ended").read_text() == "0\n"


# Nothing is left behind

DAEMON = "setsid sh -c 'trap \"\" TERM HUP; touch daemon; exec sleep 3600' & until [ -e daemon ]; do sleep 0.01; done; "
NAMELESS = (
    "env -i PATH=$PATH setsid sh -c 'touch nameless; exec sleep 3600' & until [ -e nameless ]; do sleep 0.01; done; "
)


async def test_what_members_left_running_is_gone_when_the_run_has_succeeded(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(DAEMON + NAMELESS + "exit 0"))))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    assert process_table.of_run(A, lab.run_dir(A)) == []


async def test_children_get_the_grace_though_the_member_itself_has_ended(lab: LocalLab) -> None:
    saves = "(trap 'sleep 0.2; echo saved; exit' TERM; touch ready; while :; do sleep 0.01; done) & wait"
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(saves))))
    await eventually(lambda: lab.ready(A) == 1, "the child is at work")
    await lab.runtime.stop(stop_run(A))
    await until_state(lab, A, RunState.CANCELLED)
    assert "saved" in lab.output(A)


async def test_the_signal_to_save_state_comes_once_and_before_sigterm(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(SAVES, count=2)))
    await eventually(lambda: lab.ready(A) == 2, "both members are at work")
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=0.3))
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=0.3))
    await until_state(lab, A, RunState.SUSPENDED)
    assert [lab.output(A, f"worker-{index}") for index in range(2)] == ["saved\nended\n"] * 2


async def test_what_members_have_started_is_not_told_to_save_state(lab: LocalLab) -> None:
    family = (
        "trap 'echo saved' USR1; (trap 'echo child saved' USR1; touch ready; while :; do sleep 0.01; done) & wait; wait"
    )
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(family))))
    await eventually(lambda: lab.ready(A) == 1, "the child is at work")
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=0.3))
    await until_state(lab, A, RunState.SUSPENDED)
    assert lab.output(A) == "saved\n"


async def test_a_run_whose_members_end_once_their_state_is_saved_waits_no_longer(lab: LocalLab) -> None:
    saves = "trap 'echo saved; exit 0' USR1; touch ready; while :; do sleep 0.01; done"
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, count=2, extra=script(saves))))
    await eventually(lambda: lab.ready(A) == 2, "both members are at work")
    await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, save=3600))
    assert (await until_over(lab, A)).state is RunState.PREEMPTED


async def test_a_taken_over_run_goes_on_saving_its_state(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(SAVES)))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=1.0))
    await until_state(lab, A, RunState.STOPPING)
    await lab.restart()
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, save=1.0))
    assert (await until_over(lab, A)).state is RunState.SUSPENDED
    assert lab.output(A) == "saved\nended\n"


async def test_what_a_member_starts_while_it_is_told_to_end_is_told_too(lab: LocalLab) -> None:
    leaves_one = "trap 'sleep 3600 & exit 0' TERM; touch ready; sleep 3600 & wait"
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(leaves_one))))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    await lab.runtime.stop(stop_run(A, StopCause.CANCEL, grace=3600))
    assert (await until_over(lab, A)).state is RunState.CANCELLED


async def test_what_was_told_to_end_is_not_told_twice(lab: LocalLab) -> None:
    child = "trap 'echo told' TERM; touch ready; n=0; while [ $n -lt 40 ]; do sleep 0.02; n=$((n+1)); done"
    family = f"trap 'exit 0' TERM; ({child}) & wait"
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, extra=script(family))))
    await eventually(lambda: lab.ready(A) == 1, "the child is at work")
    await lab.runtime.stop(stop_run(A, StopCause.CANCEL, grace=3600))
    assert (await until_over(lab, A)).state is RunState.CANCELLED
    assert lab.output(A).count("told") == 1


async def test_stopped_members_are_killed_too(lab: LocalLab) -> None:
    await lab.runtime.renew(lab.now())
    await lab.runtime.start(start_run(lab, A, Part(RUNS), disconnect=1.5))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    for pid in process_table.of_run(A, lab.run_dir(A)):
        os.kill(pid, signal.SIGSTOP)
    await until_state(lab, A, RunState.LOST)
    assert process_table.of_run(A, lab.run_dir(A)) == []


@pytest.mark.parametrize("agent", ["present", "absent"])
async def test_a_killed_supervisor_leaves_nothing_and_the_run_has_failed(lab: LocalLab, agent: str) -> None:
    family = script(DAEMON + NAMELESS + "touch ready; exec sleep 3600")
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS, count=2, extra=family)))
    await eventually(lambda: lab.ready(A) == 2, "both members have children")
    await until_state(lab, A, RunState.RUNNING)
    supervisor = lab.supervisor(A)
    if agent == "absent":
        await lab.local.close()
    os.kill(supervisor, signal.SIGKILL)
    killed_at = lab.now()
    if agent == "absent":
        await lab.reopen()
    status = await until_over(lab, A)
    assert status.state is RunState.FAILED
    assert status.end is not None
    assert status.end.category is FailureCategory.NODE_LOST
    assert lab.now() - killed_at < 3
    assert process_table.of_run(A, lab.run_dir(A)) == []
    assert {one.state for one in status.members} == {"stopped"}


async def test_a_stopped_run_whose_supervisor_is_killed_has_stopped(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(STUBBORN)))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    await until_state(lab, A, RunState.RUNNING)
    supervisor = lab.supervisor(A)
    await lab.runtime.stop(stop_run(A, StopCause.SUSPEND, grace=3600))
    await until_state(lab, A, RunState.STOPPING)
    os.kill(supervisor, signal.SIGKILL)
    assert (await until_over(lab, A)).state is RunState.SUSPENDED


async def test_a_forgotten_run_leaves_no_file(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS)))
    await until_over(lab, A)
    await lab.runtime.forget(A)
    assert list((lab.state_dir / layout.RUNS).iterdir()) == []
    assert list((lab.state_dir / layout.TRASH).iterdir()) == []


# Crashes of the agent and of the fork server


class KilledAgents:
    """Agent processes that tests kill."""

    def __init__(self, lab: LocalLab) -> None:
        self._lab = lab
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *runs: StartRun) -> subprocess.Popen[str]:
        orders = self._lab.folder / "orders"
        orders.write_text("".join(run.model_dump_json(by_alias=True) + "\n" for run in runs))
        arguments = (str(self._lab.state_dir), self._lab.cluster.model_dump_json(by_alias=True), str(orders))
        process = subprocess.Popen([sys.executable, str(AGENT), *arguments], stdout=subprocess.PIPE, text=True)
        self._started.append(process)
        return process

    def kill_after(self, process: subprocess.Popen[str], accepted: int) -> None:
        """Kill an agent at the moment it has accepted this many runs."""
        assert process.stdout is not None
        for _ in range(accepted):
            assert process.stdout.readline().startswith("accepted")
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
async def orphaned(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """A lab whose state directory no runtime of this process has open yet."""
    lab = LocalLab(tmp_path, ROOMY)
    try:
        yield lab
    finally:
        await lab.end()


@pytest.fixture
def agents(orphaned: LocalLab) -> Iterator[KilledAgents]:
    agents = KilledAgents(orphaned)
    yield agents
    agents.end()


async def test_members_survive_the_kill_of_their_agent_and_a_new_one_finds_them(
    orphaned: LocalLab, agents: KilledAgents
) -> None:
    lab = orphaned
    agent = agents.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2)))
    await eventually(lambda: lab.ready(A) == 2, "both members are at work")
    agents.kill_after(agent, 1)
    await lab.reopen()
    assert lab.living(A) == 2
    await until_state(lab, A, RunState.RUNNING)
    lab.open_gate(A)
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED


async def test_a_run_that_ends_without_any_agent_is_found_ended(orphaned: LocalLab, agents: KilledAgents) -> None:
    lab = orphaned
    agent = agents.start(start_run(lab, A, Part(WAITS_FOR_GATE)))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    agents.kill_after(agent, 1)
    lab.open_gate(A)
    await eventually(lambda: lab.living(A) == 0, "the member has ended")
    await lab.reopen()
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED


async def test_members_of_a_dead_agent_are_dead_before_the_disconnect_limit(
    orphaned: LocalLab, agents: KilledAgents
) -> None:
    lab = orphaned
    agent = agents.start(start_run(lab, A, Part(STUBBORN), disconnect=10.0))
    await eventually(lambda: lab.ready(A) == 1, "the member is at work")
    agents.kill_after(agent, 1)
    lease = layout.read_lease(lab.state_dir, layout.boot_id())
    assert lease is not None
    await eventually(lambda: lab.living(A) == 0, "the member is dead", within=10.5)
    assert lab.now() < lease + 10.0
    await lab.reopen()
    assert (await until_over(lab, A)).state is RunState.LOST


@pytest.mark.parametrize("accepted", [1, 2, 5, 9, 15, 20])
async def test_wherever_the_agent_is_killed_each_accepted_run_starts_exactly_once(
    orphaned: LocalLab, agents: KilledAgents, accepted: int
) -> None:
    lab = orphaned
    counts = script('echo x >> "$STARTS/$TRAINMASTER_RUN_ID"', env={"STARTS": str(lab.folder)})
    runs = [start_run(lab, f"many-{number:07d}-r1", Part(SUCCEEDS, extra=counts)) for number in range(20)]
    agents.kill_after(agents.start(*runs), accepted)
    await lab.reopen()
    held = lab.runtime.held()
    assert {run.run for run in runs[:accepted]} <= set(held)
    for run in held:
        assert (await until_over(lab, run)).state is RunState.SUCCEEDED
        assert (lab.folder / run).read_text() == "x\n"


async def test_another_fork_server_takes_the_place_of_one_that_was_killed(lab: LocalLab) -> None:
    for number in range(5):
        run = f"next-{number:07d}-r1"
        os.kill(int((lab.state_dir / layout.FORK_SERVER_LOCK).read_text()), signal.SIGKILL)
        await lab.runtime.start(start_run(lab, run, Part(SUCCEEDS)))
        assert (await until_over(lab, run)).state is RunState.SUCCEEDED


async def test_no_process_of_ours_outlives_the_agent_when_nothing_runs(
    orphaned: LocalLab, agents: KilledAgents
) -> None:
    lab = orphaned
    agents.kill_after(agents.start(start_run(lab, A, Part(SUCCEEDS))), 1)
    await lab.reopen()
    await until_over(lab, A)
    fork_server_pid = int((lab.state_dir / layout.FORK_SERVER_LOCK).read_text())
    await lab.local.close()
    assert process_table.look(fork_server_pid) is None
    await lab.reopen()


async def test_two_agents_on_one_directory_are_refused(lab: LocalLab) -> None:
    second = LocalRuntime(lab.state_dir, CLUSTER)
    with pytest.raises(RuntimeRefusedError, match=f"locked by process {os.getpid()}"):
        await second.open()


async def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, file / "below", Path("/proc/foo")):
        with pytest.raises(
            RuntimeRefusedError, match=f"the folder {wrong} cannot be used: .*; give this agent another --state-dir"
        ):
            await LocalRuntime(wrong, CLUSTER).open()


# Restarts of the machine


def pretend_reboot(lab: LocalLab, run: str) -> None:
    """Make the records say that they are of an earlier boot."""
    for name in (layout.RECORD, layout.PLAN):
        path = lab.run_dir(run) / name
        if path.exists():
            path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "earlier"}))


async def test_a_run_that_never_started_starts_after_a_reboot_only_if_it_cannot_be_elsewhere(lab: LocalLab) -> None:
    C, D = "gone-0000003-r1", "stay-0000004-r1"  # noqa: N806 - as A and B
    await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2, cpu="4")))
    await lab.runtime.start(start_run(lab, C, Part(SUCCEEDS), disconnect=3600.0))
    await lab.runtime.start(start_run(lab, D, Part(SUCCEEDS)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.local.close()
    pretend_reboot(lab, C)
    pretend_reboot(lab, D)
    await lab.reopen()
    assert (await until_over(lab, C)).state is RunState.LOST
    lab.open_gate(A)
    assert (await until_over(lab, D)).state is RunState.SUCCEEDED


async def test_a_run_cut_off_by_a_reboot_has_failed_and_its_sequence_has_risen(lab: LocalLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    before = await until_state(lab, A, RunState.RUNNING)
    await lab.local.close()
    os.kill(lab.supervisor(A), signal.SIGKILL)
    pretend_reboot(lab, A)
    await lab.reopen()
    after = await until_over(lab, A)
    assert after.state is RunState.FAILED
    assert "restarted" in after.message
    assert after.seq > before.seq


# Size


async def test_hundreds_of_runs_at_a_time(tmp_path: Path) -> None:
    lab = LocalLab(tmp_path, LocalCluster.model_validate({"nodes": [{"allocatable": {"cpu": "1000"}}]}))
    await lab.local.open()
    try:
        runs = [f"mass-{number:07d}-r1" for number in range(200)]
        await asyncio.gather(*(lab.runtime.start(start_run(lab, run, Part(RUNS))) for run in runs))
        for run in runs:
            await until_state(lab, run, RunState.RUNNING, within=60)
        for run in runs:
            await lab.runtime.stop(stop_run(run))
        for run in runs:
            await until(lab, run, lambda status: status.state is RunState.CANCELLED, within=60)
    finally:
        await lab.end()


def test_the_fork_server_stays_light() -> None:
    check = "import sys; sys.path += sys.argv[1].split(':'); import trainmaster_agent.runtime.local.fork_server; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", check, fork_server.COMMAND[-1]], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert not loaded & {"asyncio", "pydantic", "socket", "subprocess", "threading", "inspect", "logging"}


# An unexpected error while one run is handled


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("run_registry", "admit"),
        ("run_registry", "make_plan"),
        ("local_capacity.LocalCapacity", "find"),
        ("local_capacity.LocalCapacity", "use"),
    ],
    ids=lambda value: value,
)
async def test_a_run_whose_handling_raises_has_failed_and_the_next_one_starts(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    place = f"trainmaster_agent.runtime.local.{owner}.{name}"
    original = pkgutil.resolve_name(
        place.replace(".local_capacity.LocalCapacity", ".local_capacity:LocalCapacity").replace(
            ".run_registry.", ".run_registry:"
        )
    )

    def broken(*args: Any, **kwargs: Any) -> Any:
        if any(getattr(one, "name", "") == "odd" or _spec_name(one) == "odd" for one in args):
            raise LookupError(f"an injected fault in {name}")
        return original(*args, **kwargs)

    monkeypatch.setattr(place, broken)
    await lab.local.start(start_run(lab, A, Part(SUCCEEDS)).model_copy(update={"spec": _named(lab, "odd")}))
    await lab.local.start(start_run(lab, B, Part(SUCCEEDS)))
    over = await until_over(lab, A)
    assert (over.state, over.end and over.end.category) == (RunState.FAILED, FailureCategory.CONFIG)
    assert f"LookupError: an injected fault in {name}" in over.message
    assert (await until_over(lab, B)).state is RunState.SUCCEEDED
    await lab.restart()
    assert lab.local.held()[A].state is RunState.FAILED


def _named(lab: LocalLab, name: str) -> dict[str, Any]:
    return {**start_run(lab, A, Part(SUCCEEDS)).spec, "name": name}


def _spec_name(value: Any) -> str:
    start = getattr(getattr(value, "start", value), "spec", None)
    return start.get("name", "") if isinstance(start, dict) else ""


async def test_looks_go_on_after_one_that_raises(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = lab.local._registry.mind_clocks

    def broken(lease: float | None) -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise LookupError("an injected fault")
        original(lease)

    monkeypatch.setattr(lab.local._registry, "mind_clocks", broken)
    await eventually(lambda: len(calls) > 3, "there are further looks")


async def test_a_run_that_the_disk_does_not_take_is_asked_for_again(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lab.local._records, "create", full)
    with pytest.raises(RuntimeAwayError, match="No space left on device"):
        await lab.local.start(start_run(lab, A, Part(SUCCEEDS)))
    monkeypatch.undo()
    await lab.local.start(start_run(lab, A, Part(SUCCEEDS)))
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
