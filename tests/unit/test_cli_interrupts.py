"""Ctrl-C at any moment of a command, also while modules are imported: exit code 130, at most one line, no stack trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AT_IMPORT = """
import os, signal, sys
left = int(sys.argv.pop(1))
def watch(event, _):
    global left
    if event == "import":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGINT)
sys.argv[0] = "trainmaster"
from trainmaster.cli import start
sys.addaudithook(watch)
start.main()
"""
"""Sends Ctrl-C at the import with the number of the first argument."""

AT_CALL = """
import os, signal, sys
import httpx
from trainmaster.cli import start
def request(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
httpx.Client.send = request
sys.argv[0] = "trainmaster"
start.main()
"""

DROPPED = """
import os, signal, sys, weakref
from trainmaster.cli import main, start
class Thing: pass
def dropped():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT) or [None for _ in range(1000)])
    del thing
    while True:
        pass
for command in main.app.registered_commands:
    if command.callback is main.version:
        command.name, command.callback = "version", dropped
start.main()
"""
"""Sends it inside a callback of a weak reference, where Python drops every exception."""

AT_CLASS = """
import signal, sys
from trainmaster.cli import main
class Field:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGINT)
def make():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    class Made:
        field = Field()
main._add_commands = make
sys.argv[0] = "trainmaster"
main.main()
"""
"""Sends it where the commands of other distributions are imported, while a class is made: Python raises a RuntimeError for it."""


def run(code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {"TRAINMASTER_URL": "http://127.0.0.1:1", "TRAINMASTER_API_KEY": "k"}
    env = os.environ | variables | {"TRAINMASTER_CONFIG": str(folder / "none.yaml")}
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("number", [1, 60, 150, 250, 350, 450])
def test_while_modules_are_imported(tmp_path: Path, number: int) -> None:
    done = run(AT_IMPORT, str(number), "jobs", folder=tmp_path)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr


def test_while_a_class_is_made_for_the_commands_of_other_distributions(tmp_path: Path) -> None:
    done = run(AT_CLASS, "beat", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["jobs", "job bert-7k2p9xq", "queues --watch", "whoami"])
def test_during_a_call(tmp_path: Path, command: str) -> None:
    done = run(AT_CALL, *command.split(), folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_one_that_python_would_drop(tmp_path: Path) -> None:
    done = run(DROPPED, "version", folder=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
