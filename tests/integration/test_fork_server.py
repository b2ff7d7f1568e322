"""Processes of a local installation are forked off one that has imported them, and are as executed ones are."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import eventually_sync
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.cli.fork_server import ForkedProcess, ForkServer, StartedProcess

PYTHON = [sys.executable, "-P", "-m"]
PROGRAM = [*PYTHON, "trainmaster.cli.main"]
SECRET = "postgresql://somebody:sesame@nowhere.invalid/db"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", SECRET)
        server = ForkServer()
    yield server
    server.close()


def env(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | more


def redis(server: ForkServer, folder: Path, **more: str) -> tuple[StartedProcess, int]:
    """Start the stand-in for Redis; return it once it listens, and its port."""
    port = free_port()
    command = [*PYTHON, "trainmaster_dispatcher.cli.fake_redis", str(port)]
    process = server.start(command, env(**more), folder / "redis.log")
    wait_for_port(port, process, 60, "Redis")
    return process, port


def test_a_fork_has_the_environment_and_the_log_that_it_is_given_and_its_exit_code_is_known(
    server: ForkServer, tmp_path: Path
) -> None:
    log = tmp_path / "scheduler.log"
    log.write_text("from before\n")
    process = server.start([*PROGRAM, "scheduler"], env(), log)
    assert isinstance(process, ForkedProcess)
    assert process.wait(60) == process.poll() == process.returncode == Exit.USAGE
    assert log.read_text().startswith("from before\n")
    assert "set DATABASE_URL" in log.read_text()
    wrong = env(DATABASE_URL="sqlite://", TRAINMASTER_LEASE_SECONDS="none")
    assert server.start([*PROGRAM, "scheduler"], wrong, log).wait(60) == Exit.USAGE
    assert "TRAINMASTER_LEASE_SECONDS" in log.read_text()
    assert server.start([*PROGRAM, "--version"], env(), tmp_path / "version.log").wait(60) == 0
    assert (tmp_path / "version.log").read_text().startswith("trainmaster")


def test_a_fork_has_a_session_and_a_name_of_its_own_and_nothing_else_of_who_starts_it(
    server: ForkServer, tmp_path: Path
) -> None:
    first, _ = redis(server, tmp_path)
    second, _ = redis(server, tmp_path)
    for process in (first, second):
        seen = psutil.Process(process.pid)
        assert seen.name() == "tm-redis"
        assert os.getsid(process.pid) == process.pid
        assert "DATABASE_URL" not in seen.environ()
        assert SECRET not in str(seen.environ())
        files = [str(one.readlink()) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert files.count(str(tmp_path / "redis.log")) == 2
        others = [one for one in files if one not in ("/dev/null", str(tmp_path / "redis.log"))]
        assert not [one for one in others if "pidfd" in one], others
        assert len([one for one in others if one.startswith("socket:")]) <= 2, "that at which it listens, and a probe"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_is_ended_by_signals(server: ForkServer, tmp_path: Path, sign: signal.Signals) -> None:
    process, _ = redis(server, tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    (process.terminate if sign is signal.SIGTERM else process.kill)()
    assert process.wait(30) == (0 if sign is signal.SIGTERM else -signal.SIGKILL)
    process.kill()  # of which nothing is left
    assert not psutil.pid_exists(process.pid)


def test_the_ends_of_many_are_told_apart(server: ForkServer, tmp_path: Path) -> None:
    lives, _ = redis(server, tmp_path)
    processes = [server.start([*PROGRAM, *words], env(), tmp_path / "log") for words in (["--version"], ["serve"]) * 5]
    lives.kill()
    assert [one.wait(60) for one in reversed(processes)] == [Exit.USAGE, 0] * 5
    assert lives.wait(30) == -signal.SIGKILL


def test_forks_end_with_the_server_and_after_that_processes_are_executed(tmp_path: Path) -> None:
    server = ForkServer()
    process, _ = redis(server, tmp_path)
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    parent.kill()
    assert process.wait(30) == -signal.SIGTERM, "nobody knows how it ended"
    eventually_sync(lambda: not psutil.pid_exists(process.pid), 30)
    again, _ = redis(server, tmp_path)
    assert isinstance(again, subprocess.Popen)
    again.terminate()
    assert again.wait(30) == 0


def test_forks_end_when_who_started_the_server_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from trainmaster_dispatcher.cli.fork_server import ForkServer
server = ForkServer()
command = [sys.executable, "-P", "-m", "trainmaster_dispatcher.cli.fake_redis", "{free_port()}"]
print(server.start(command, os.environ, Path("{tmp_path / "log"}")).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env()) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert psutil.pid_exists(pid)
        starter.kill()
        eventually_sync(lambda: not psutil.pid_exists(pid), 30)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ([*PROGRAM, "worker"], {}),
        ([sys.executable, "-c", "raise SystemExit(2)"], {}),
        ([*PROGRAM, "serve"], {"BIG": "x" * 100_000, "BIGGER": "x" * 110_000}),
        ([*PROGRAM, "serve"], {"PYTHONHASHSEED": "1"}),
    ],
    ids=["a worker", "another program", "a large environment", "other variables of Python"],
)
def test_what_cannot_be_forked_is_executed(
    server: ForkServer, tmp_path: Path, command: list[str], more: dict[str, Any]
) -> None:
    process = server.start(command, env(**more), tmp_path / "log")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == Exit.USAGE


def test_without_pidfd_processes_are_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    server = ForkServer()
    process = server.start([*PROGRAM, "--version"], env(), tmp_path / "log")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == 0
    server.close()
