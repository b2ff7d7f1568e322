"""Commands that tests fork are as those that are executed: their output, exit code, environment, session, parent and signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.preloaded import is_installed
from tests.waiting import eventually_sync
from trainmaster import __version__
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import free_port

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
BARE = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
pytestmark = pytest.mark.skipif(not is_installed(), reason="scripts/test --deep executes every command")


def test_output_and_exit_code_are_those_of_the_command() -> None:
    done = subprocess.run([*PROGRAM, "version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"trainmaster {__version__} ")
    wrong = subprocess.run([*PROGRAM, "no-such-command"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (Exit.USAGE, "")
    assert "no-such-command" in wrong.stderr


def test_the_environment_is_that_of_the_call_and_of_no_earlier_one() -> None:
    given = BARE | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TRAINMASTER_START_RETRY_SECONDS": "0"}
    for command in ("scheduler", "serve"):
        away = subprocess.run([*PROGRAM, command], env=given, capture_output=True, text=True, check=False)
        assert away.returncode == Exit.STORE_AWAY, away.stderr
        unset = subprocess.run([*PROGRAM, command], env=BARE, capture_output=True, text=True, check=False)
        assert unset.returncode == Exit.USAGE
        assert "set DATABASE_URL" in unset.stderr


def test_the_folder_is_that_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text("kind: Nonsense\n")
    command = [*PROGRAM, "submit", "--dry-run"]
    env = BARE | {"TRAINMASTER_URL": "http://127.0.0.1:1", "TRAINMASTER_API_KEY": "tmk_x"}
    by_name = subprocess.run(
        [*command, "here.yaml"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    elsewhere = subprocess.run([*command, "here.yaml"], env=env, capture_output=True, text=True, check=False)
    assert "'Nonsense' is not a Job" in by_name.stderr
    assert "cannot read here.yaml" in elsewhere.stderr


def test_it_is_a_child_with_a_session_that_can_be_signalled_and_waited_for() -> None:
    for options, how, code in (([], signal.SIGTERM, 0), (["-P"], signal.SIGKILL, -signal.SIGKILL)):
        port = free_port()
        command = [sys.executable, *options, "-m", "trainmaster_dispatcher.cli.fake_redis", str(port)]
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=_nice)
        child = psutil.Process(process.pid)
        assert child.ppid() == os.getpid()
        assert "tests.preloaded" in child.cmdline(), "it was executed, not forked"

        def listens(child: psutil.Process = child, port: int = port) -> bool:
            return any(at.laddr.port == port for at in child.net_connections() if at.status == psutil.CONN_LISTEN)

        eventually_sync(listens)
        assert os.getsid(process.pid) == process.pid
        assert child.nice() == os.nice(0) + 1
        process.send_signal(how)
        assert process.wait(30) == code


def _nice() -> None:
    os.nice(1)
