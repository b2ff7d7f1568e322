"""Streams of the command line while apis, schedulers and the agent are killed: each goes on by itself, without gaps or repeats.

One session prints a number each tenth of a second and serves pages. Its output is attached to and followed, a second process that
prints numbers runs in a terminal, its port is forwarded, and a page is opened as browsers do.
"""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import NO_TLS
from tests.faults.stage import Stage
from tests.waiting import eventually_sync
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import free_port

pytestmark = pytest.mark.faults

KILLS = 25 if os.environ.get("TRAINMASTER_DEEP") else 8
_BACK_SECONDS = 10.0
"""Seconds after the return of what was killed in which each stream goes on; ``eventually_sync`` waits longer on a busy machine."""
_KILLED = ("api-0", "api-1", "scheduler-0", "scheduler-1", "agent-private")
_DOMAIN = "sessions.localhost"
_COUNT = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done"
_SERVE = """
import http.server, sys, threading, time
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for number in range(10**9):
    print(number, flush=True)
    time.sleep(0.1)
"""


@dataclass
class Command:
    """A running command of the command line, and the numbers that it has printed."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            word = line.split()[-1] if line.split() else ""
            if word.isdecimal():
                self.numbers.append(int(word))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def check(self) -> None:
        """Check that it goes on, and that no number is missing or repeated."""
        assert self.process.poll() is None, self.errors
        following = list(range(self.numbers[0], self.numbers[0] + len(self.numbers)))
        wrong = [due for due, number in zip(following, self.numbers, strict=True) if due != number]
        near = (
            [line for line in self.lines if any(str(due) in line for due in range(wrong[0] - 3, wrong[0] + 4))]
            if wrong
            else []
        )
        assert not wrong, (
            f"{wrong[0]} is missing or repeated in {near} of {self.process.args!r}, which said {self.errors}"
        )


@contextlib.contextmanager
def command(stage: Stage, *words: str) -> Iterator[Command]:
    """Run a command of the command line, at the first api, while the block runs."""
    url = f"http://127.0.0.1:{stage.api_ports[0]}"
    program = [sys.executable, "-m", "trainmaster.cli.main", "--url", url, "--key", "tmk_admin", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1, env=stage.env
    ) as process:
        try:
            yield Command(process)
        finally:
            process.kill()


def going_on(stack: contextlib.ExitStack, stage: Stage, *words: str) -> Command:
    """Return a running command of the command line once it prints numbers; a busy agent may refuse the first ones."""
    for _ in range(5):
        found = stack.enter_context(command(stage, *words))
        eventually_sync(lambda one=found: len(one.numbers) > 3 or one.process.poll() is not None, 60)  # type: ignore[misc]
        if found.process.poll() is None:
            return found
    raise AssertionError(f"{words}: {found.errors}")


def session(stage: Stage, port: int) -> str:
    """Start a session on cluster private that prints numbers and serves pages; return its id once it answers."""
    template = {"command": [sys.executable, "-I", "-c", _SERVE, str(port)], "resources": {"cpu": "100m"}}
    body = {
        "kind": "Session",
        "name": "desk",
        "queue": "default",
        "placement": {"clusters": ["private"]},
        "roles": [{"name": "main", "template": template}],
        "session": {"ports": [{"name": "web", "port": port}]},
    }
    answer = stage.request("POST", "/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job = str(answer.json()["id"])
    stage.until(job, "running")
    eventually_sync(lambda: answers(port), 60)
    return job


def answers(port: int, host: str = "", cookie: str = "") -> bool:
    headers = {"Host": host, "Cookie": cookie} if host else {}
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/", headers=headers, timeout=5, verify=NO_TLS).status_code == 200
    return False


def open_page(stage: Stage, job: str) -> tuple[str, str]:
    """Open a port of a session as a browser does; return the host and the cookie."""
    with command(stage, "open", job, "web") as opening:
        assert opening.process.wait(60) == 0, opening.errors
    link = stage.request("POST", f"/v1/jobs/{job}/session-links", json={"port": "web"}).json()["url"]
    parts = urlsplit(link)
    url = f"http://127.0.0.1:{stage.api_ports[0]}{parts.path}?{parts.query}"
    answer = httpx.get(url, headers={"Host": str(parts.netloc)}, verify=NO_TLS)
    assert answer.status_code == 303, answer.text
    return str(parts.netloc), answer.headers["set-cookie"].partition(";")[0]


def serve_sessions(stage: Stage) -> None:
    """Give the apis a domain for sessions."""
    stage.env["TRAINMASTER_SESSIONS_DOMAIN"] = _DOMAIN
    for name in ("api-0", "api-1"):
        stage.kill(name)
        stage.revive(name)
    eventually_sync(lambda: stage.cluster_states() == {"ready"}, 60)


def stop(stage: Stage, name: str) -> None:
    process = stage.children[name].process
    assert process is not None
    process.terminate()
    process.wait(60)


def await_more(streams: Sequence[Command], before: Sequence[int]) -> None:
    """Wait until each has printed a few more numbers than ``before``."""

    def have_more() -> bool:
        return all(len(one.numbers) > many + 3 for one, many in zip(streams, before, strict=True))

    eventually_sync(have_more, _BACK_SECONDS)


def test_streams_go_on_whoever_is_killed(stage: Stage) -> None:
    chance = random.Random(5)
    serve_sessions(stage)
    port, local = free_port(), free_port()
    job = session(stage, port)
    host, cookie = open_page(stage, job)
    with contextlib.ExitStack() as stack:
        attached = going_on(stack, stage, "attach", job)
        logs = going_on(stack, stage, "logs", "-f", "--tail", "1", job)
        shell = going_on(stack, stage, "shell", "--cluster", "private", "--", "sh", "-c", _COUNT)
        forwarded = stack.enter_context(command(stage, "port-forward", job, f"{local}:{port}"))
        streams = (attached, logs, shell)
        eventually_sync(lambda: answers(local), 60)
        took = []
        for number in range(KILLS):
            name = chance.choice(_KILLED) if number > 2 else ("agent-private", "api-0", "agent-private")[number]
            if number == 2:
                stop(stage, name)  # as for an upgrade
            else:
                stage.kill(name)
            time.sleep(chance.random())
            before = [len(one.numbers) for one in streams]
            stage.revive(name)
            began = time.monotonic()
            await_more(streams, before)
            eventually_sync(lambda: answers(local), _BACK_SECONDS)
            eventually_sync(lambda: answers(stage.api_ports[0], host, cookie), _BACK_SECONDS)
            took.append(f"{name} {time.monotonic() - began:.1f} s")
            time.sleep(chance.random() * 2)
        print("streams were back after:", ", ".join(took))
        for one in streams:
            one.check()
        assert forwarded.process.poll() is None
        for one in (attached, shell):
            assert any("the connection was lost" in line for line in one.errors)
            assert any("the connection is there again" in line for line in one.errors)
    assert stage.job(job)["attempt"] == 1


def test_a_command_whose_connection_is_lost_says_so(stage: Stage) -> None:
    job = session(stage, free_port())
    with contextlib.ExitStack() as stack:
        ran = going_on(stack, stage, "exec", job, "--", "sh", "-c", _COUNT)
        stage.kill("agent-private")
        assert ran.process.wait(30) == Exit.UNREACHABLE
        eventually_sync(
            lambda: any("the command was bound to it and has been ended" in line for line in ran.errors), 10
        )
        stage.revive("agent-private")
    assert stage.job(job)["state"] == "running"
