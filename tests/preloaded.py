"""Starts Trainmaster's commands by forking a process that has imported them already.

A run of all tests starts hundreds of processes, and each imports a thousand modules, which takes a second or more of CPU.
``install`` makes ``subprocess.Popen`` fork the commands ``PYTHON [-P] -m MODULE ...`` of this environment off a process that has
done so. All else of ``Popen`` is as always: the forked process is a child of the caller, with the standard streams,
environment, folder and session that were asked for. Everything else is executed, and so is all of ``scripts/test --deep``.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MODULES = ("trainmaster.cli.main", "trainmaster.cli.start", "trainmaster_dispatcher.cli.fake_redis")
_FIRST = ("trainmaster.cli.main", "trainmaster_dispatcher.cli.processes", "trainmaster_dispatcher.services.settings")
_IMPORTS = {
    "worker": (
        *_FIRST,
        *(
            "celery.apps.worker",
            "celery.concurrency.prefork",
            "celery.fixups",
            "celery.loaders.app",
            "kombu.transport.redis",
        ),
        *(
            "trainmaster_dispatcher.services.backlog",
            "trainmaster_dispatcher.whatif.scenario",
            "redis.asyncio",
            "httpx",
        ),
        *(
            "trainmaster_dispatcher.store.runs",
            "trainmaster_dispatcher.services.workload_export",
            "opentelemetry.trace",
        ),
    ),
    "others": (
        *_FIRST,
        *(
            "trainmaster_dispatcher.api.app",
            "trainmaster_dispatcher.http_connections",
            "trainmaster_dispatcher.scheduler.loop",
        ),
        *(
            "trainmaster_dispatcher.worker.app",
            "trainmaster_agent.cli.run",
            "fakeredis",
            "uvloop",
            "uvicorn.lifespan.on",
        ),
    ),
}
"""What each server imports. A worker decides where its metrics are kept before it imports a module that has some, so the
worker's server imports none of those."""
SAME_PREFIXES = ("PYTHON", "LD_", "MALLOC_", "PROMETHEUS_")
"""Variables that are read when a process starts or a module is imported; where they differ, the command is executed."""
_UNBUFFERED = "PYTHONUNBUFFERED"
"""The one among them that a forked process heeds."""
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST = 200_000
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Server:
    """The process that is forked, seen from the one that asks for forks."""

    def __init__(self, imports: str) -> None:
        self.same = _start_variables(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, imports, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self._socket = ours
        self._lock = threading.Lock()

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Return the id of a new child of this process."""
        with self._lock:
            # Forked twice, it becomes a child of the nearest process above that takes orphans in.
            _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                answer = self._socket.recv(_LONGEST)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the process that Trainmaster's commands are forked off has ended")
        return int(answer)


_servers: dict[tuple[str, str], _Server] = {}
"""By what they import, and the network namespace in which they, and so their forks, are."""


def install() -> None:
    """Let ``subprocess.Popen`` fork Trainmaster's commands off a process that has imported them."""
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    parameters = inspect.signature(execute)

    def execute_or_fork(self: "subprocess.Popen[bytes]", *given: Any, **named: Any) -> None:
        wanted = parameters.bind(self, *given, **named).arguments
        request = _request(wanted)
        if request is None:
            execute(self, *given, **named)
            return
        server = _server("worker" if request["words"][:1] == ["worker"] else "others")
        if _start_variables(request["env"]) != server.same:
            execute(self, *given, **named)
            return
        ends = [wanted[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        try:
            self.pid = server.fork(request, streams)
            self._child_created = True  # type: ignore[attr-defined]
        finally:
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*[wanted[name] for name in pipes])  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]


def is_installed() -> bool:
    return str(subprocess.Popen._execute_child.__module__) == __name__  # type: ignore[attr-defined]


def _request(wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return what to fork, or None if it is something else or asks for what a fork does not do."""
    words = wanted["args"]
    if not isinstance(words, list | tuple) or wanted["shell"] or wanted["pass_fds"]:
        return None
    words = [os.fspath(word) for word in words]
    is_safe_path = words[1:2] == ["-P"]
    if is_safe_path:
        del words[1]
    if len(words) < 3 or words[:2] != [sys.executable, "-m"] or words[2] not in _MODULES:
        return None
    if wanted["executable"] is not None:
        return None
    if any(wanted[name] is not None for name in ("gid", "gids", "uid")) or wanted.get("process_group", -1) not in (
        -1,
        None,
    ):
        return None
    first = wanted["preexec_fn"]
    if first is not None and not (isinstance(first, FunctionType) and first.__qualname__ == first.__name__):
        return None
    request = {
        "module": words[2],
        "words": words[3:],
        "env": dict(os.environ if wanted["env"] is None else wanted["env"]),
        "cwd": os.fspath(wanted["cwd"] or Path.cwd()),
        "is_safe_path": is_safe_path,
        "umask": wanted["umask"],
        "new_session": bool(wanted["start_new_session"]),
        "first": None if first is None else [first.__module__, first.__name__],
        "parent": os.getpid(),
    }
    return request if len(json.dumps(request)) <= _LONGEST else None


def _server(imports: str) -> _Server:
    network = Path("/proc/thread-self/ns/net")
    key = (imports, network.readlink().name if network.is_symlink() else "")
    if key not in _servers:
        _servers[key] = _Server(imports)
    return _servers[key]


def _start_variables(env: Any) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(SAME_PREFIXES) and name != _UNBUFFERED}


def _serve(listening: socket.socket) -> dict[str, Any]:
    """Fork on request until nobody asks any more, and return the request in each forked process."""
    while True:
        message, streams, _, _ = socket.recv_fds(listening, _LONGEST, 3)
        if not message:
            os._exit(0)
        reads, writes = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for end in (reads, writes):
                    os.close(end)
                listening.close()
                return _settle(json.loads(message), streams)
            os.write(writes, str(child).encode())
            os._exit(0)
        os.close(writes)
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        listening.send(os.read(reads, 64))
        os.close(reads)


def _settle(request: dict[str, Any], streams: list[int]) -> dict[str, Any]:
    """Make this process what was asked for."""
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    if request["umask"] >= 0:
        os.umask(request["umask"])
    if request["new_session"]:
        os.setsid()
    if request["first"] is not None:
        module, name = request["first"]
        first: Callable[[], None] = getattr(importlib.import_module(module), name)
        first()
    sys.path[:1] = [] if request["is_safe_path"] else [request["cwd"]]
    sys.argv = ["", *request["words"]]
    for text in (sys.stdin, sys.stdout, sys.stderr):
        is_at_once = bool(os.environ.get(_UNBUFFERED))
        # The buffer below a text keeps what is written through to it, so that each line is flushed instead.
        text.reconfigure(line_buffering=is_at_once or text is sys.stderr or text.isatty(), write_through=is_at_once)  # type: ignore[union-attr]
    return request


def main() -> None:
    """Import, and fork on request; in each forked process, run its module."""
    imports, descriptor = sys.argv[1:]
    for name in _IMPORTS[imports]:
        importlib.import_module(name)
    assert imports != "worker" or "prometheus_client" not in sys.modules, "the worker's server has imported metrics"
    listening = socket.socket(fileno=int(descriptor))
    gc.collect()
    gc.freeze()
    request = _serve(listening)
    sys.modules.pop(request["module"], None)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
