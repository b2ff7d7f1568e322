"""Starts the processes of a local installation as forks of one process, which has imported what they need: a third of the time.

    up ── request, log ──▶ server ── fork ──▶ api, scheduler, beat, agents, Redis
       ◀── ids and ends ──

A new interpreter takes a second or more of CPU to import a command. The server imports all of them once, while Postgres starts. Its
forks are as executed programs are: they have the environment and the log that they are given, a session of their own, and no other
open file; they end when the server ends, and that ends when ``up`` does. What the server cannot fork is executed: the worker, which
decides where its metrics are kept before it imports a module that has some, and everything where Linux has no ``pidfd``.
"""

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

_MODULES = ("trainmaster.cli.main", "trainmaster_dispatcher.cli.fake_redis")
"""Modules whose ``main`` is forked."""
_EXECUTED = ("worker",)
_IMPORTS = (
    *("trainmaster.cli.main", "trainmaster_dispatcher.cli.processes", "trainmaster_dispatcher.services.settings"),
    *("trainmaster_dispatcher.api.app", "trainmaster_dispatcher.http_connections", "uvloop", "uvicorn.lifespan.on"),
    *("trainmaster_dispatcher.scheduler.loop", "trainmaster_dispatcher.worker.app", "trainmaster_agent.cli.run"),
    "fakeredis",
)
_NAMES = ("PATH", "HOME", "LANG", "TZ")
_PREFIXES = ("PYTHON", "LD_", "LC_", "MALLOC_", "PROMETHEUS_")
"""Variables that are read when a process starts or imports, with which the server starts. The others may be secrets of the processes,
which get them by their requests."""
_LONGEST = 200_000
"""Bytes of a request; Linux takes a little more in a message. A longer one, of a large environment, is executed."""
_START_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)


class StartedProcess(Protocol):
    """A process that was started: the part of ``subprocess.Popen`` that an installation uses."""

    pid: int
    returncode: Any

    def poll(self) -> int | None:
        """Return the exit code, minus the signal that killed it, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""


class ForkedProcess:
    """A fork of the server. ``returncode`` is as that of ``subprocess.Popen``."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._descriptor: int | None = None
        with suppress(ProcessLookupError):  # it has ended already
            self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal that killed it, or None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None and self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, sig)

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and (self._descriptor is None or _is_readable(self._descriptor, seconds)):
            self.returncode = self._server.code_of(self.pid)
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        return self.returncode


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    looks = select.poll()
    looks.register(descriptor, select.POLLIN)
    return bool(looks.poll(None if seconds is None else 1000 * seconds))


class ForkServer:
    """The process that is forked, seen from the one that asks for forks. It imports from now on."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if not _has_pidfd():
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env=_start_variables(os.environ),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        ours.settimeout(_START_SECONDS)
        self._socket = ours

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> StartedProcess:
        """Start a command with this environment whose output goes to the end of a file: forked, or else executed."""
        request = _request(command, env, log)
        if request is not None and self._socket is not None:
            try:
                self._socket.send(request)
                return ForkedProcess(self, self._started())
            except OSError:
                self.close()
        return execute(command, env, log)

    def close(self) -> None:
        """End the server; its forks end with it."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._socket = None
            self._process.kill()
            self._process.wait()

    def code_of(self, pid: int) -> int:
        """Return the exit code of a fork that has ended; SIGTERM's where nobody knows it, as the server has ended."""
        while pid not in self._codes and self._socket is not None:
            self._receive()
        return self._codes.pop(pid, -signal.SIGTERM)

    def _started(self) -> int:
        while self._socket is not None:
            if (pid := self._receive().get("started")) is not None:
                return int(pid)
        raise ConnectionResetError("the process that others are forked off has ended")

    def _receive(self) -> dict[str, Any]:
        """Return the next message of the server, and remember the end that it may be of. Where there is none, the server is closed."""
        received = b""
        if self._socket is not None:
            with suppress(OSError):
                received = self._socket.recv(_LONGEST)
        if not received:
            self.close()
            return {}
        message: dict[str, Any] = json.loads(received)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
        return message


def execute(command: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a command with this environment whose output goes to the end of a file, as a new program."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _start_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in _NAMES or name.startswith(_PREFIXES)}


def _request(command: Sequence[str], env: Mapping[str, str], log: Path) -> bytes | None:
    """Return the request for a fork, or None for what has to be executed."""
    if tuple(command[:3]) != (sys.executable, "-P", "-m") or command[3] not in _MODULES:
        return None
    if command[4] in _EXECUTED or _start_variables(env) != _start_variables(os.environ):
        return None
    request = json.dumps({"module": command[3], "words": command[4:], "env": dict(env), "log": str(log)}).encode()
    return request if len(request) <= _LONGEST else None


def end_with_parent() -> None:
    """Let this process be sent SIGTERM when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _serve(requests: socket.socket) -> Mapping[str, Any]:
    """Fork on request and report the ends of forks until nobody asks any more; in each fork, return its request."""
    server, forks = os.getpid(), dict[int, int]()
    looks = select.poll()
    looks.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in looks.poll():
            if descriptor in forks:
                looks.unregister(descriptor)
                os.close(descriptor)
                ended, status = os.waitpid(forks.pop(descriptor), 0)
                requests.send(json.dumps({"ended": ended, "code": os.waitstatus_to_exitcode(status)}).encode())
                continue
            request = requests.recv(_LONGEST)
            if not request:
                os._exit(0)  # which ends the forks
            pid = os.fork()
            if pid == 0:
                for one in (requests.detach(), *forks):
                    os.close(one)
                return _settled(json.loads(request), server)
            requests.send(json.dumps({"started": pid}).encode())
            forks[os.pidfd_open(pid)] = pid
            looks.register(next(reversed(forks)), select.POLLIN)


def _settled(request: Mapping[str, Any], server: int) -> Mapping[str, Any]:
    """Make this process the one that is requested."""
    end_with_parent()
    if os.getppid() != server:
        os._exit(0)
    os.setsid()
    # The kernel's name of a process, of up to 15 bytes, by which ``top`` and ``pgrep`` know it; its command line is the server's.
    _libc.prctl(_PR_SET_NAME, f"tm-{Path(request['log']).stem}".encode()[:15])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    return MappingProxyType(request)


def main() -> None:
    """Import, and fork on request; in each fork, run its command."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTS:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = _serve(requests)
    sys.argv = ["trainmaster", *request["words"]]
    importlib.import_module(request["module"]).main()


if __name__ == "__main__":
    main()
