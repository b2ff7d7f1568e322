"""`Spawner`: requests supervisors from the fork server, and starts another fork server when it dies."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from trainmaster_agent.runtime.local import fork_server, layout
from trainmaster_agent.runtime.local.records import lock_file
from trainmaster_agent.runtime.port import RuntimeRefusedError

_LOCK_TRIES = 2000
_LOCK_PAUSE = 0.005


class Spawner:
    """Owns one fork server at a time. Calls ``on_refusal`` for runs without a supervisor, ``on_death`` when requests may be lost."""

    def __init__(self, state_dir: Path, on_refusal: Callable[[str, str], None], on_death: Callable[[], None]) -> None:
        self._state_dir = state_dir
        self._on_refusal = on_refusal
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._backlog: deque[bytes] = deque()

    async def start(self) -> None:
        """Start a fork server once no earlier one, and no supervisor of it without a claim, is left.

        Raises RuntimeRefusedError when an earlier one does not end, for example because it was stopped by a signal.
        """
        for tries_left in range(_LOCK_TRIES, -1, -1):
            try:
                lock = lock_file(
                    self._state_dir / layout.FORK_SERVER_LOCK,
                    "an earlier fork server (the process tm-fork-server) has not ended yet; if it was stopped by a signal, kill it",
                )
                break
            except RuntimeRefusedError:
                if tries_left == 0:
                    raise
            await asyncio.sleep(_LOCK_PAUSE)
        try:
            self._popen(lock)
        finally:
            os.close(lock)  # the fork server has its own copy of the locked descriptor

    def _popen(self, lock: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (self._state_dir / "zygote.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *fork_server.COMMAND, str(theirs.fileno()), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"LANG": "C.UTF-8"},
                start_new_session=True,
                pass_fds=(theirs.fileno(), lock),
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{self._process.pid}\n".encode("ascii"), 0)
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear)

    def ask(self, run_dir: Path) -> None:
        """Request a supervisor. It is started, or `on_refusal` or `on_death` is called."""
        self._backlog.append(os.fsencode(run_dir))
        self._send()

    def _send(self) -> None:
        if self._socket is None:
            self._backlog.clear()  # `on_death` makes its receiver ask again
            return
        loop = asyncio.get_running_loop()
        while self._backlog:
            try:
                self._socket.send(self._backlog[0])
            except BlockingIOError:
                loop.add_writer(self._socket.fileno(), self._send)
                return
            except OSError:
                return  # its death is noticed next
            self._backlog.popleft()
        loop.remove_writer(self._socket.fileno())

    def _hear(self) -> None:
        if self._socket is None:
            return
        try:
            packet = self._socket.recv(8192)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            run, _, message = os.fsdecode(packet).partition(" ")
            self._on_refusal(run, message)
            return
        self._let_go()
        self._on_death()

    def _let_go(self) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._backlog.clear()

    async def reap(self) -> None:
        """Wait for the end of a fork server that was closed or has died."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        """Let the fork server end after its pending requests; supervisors go on."""
        self._let_go()
        await self.reap()
