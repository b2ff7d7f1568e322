"""The agent's hold on its zygote: asks it for keepers, and starts another one when it dies."""

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
    """One zygote at a time. ``on_refusal`` hears of runs without a keeper, ``on_death`` that requests may be lost."""

    def __init__(self, state_dir: Path, on_refusal: Callable[[str, str], None], on_death: Callable[[], None]) -> None:
        self._state_dir = state_dir
        self._on_refusal = on_refusal
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._backlog: deque[bytes] = deque()

    async def start(self) -> None:
        """Starts a zygote once no earlier one, and no keeper of it that has not made its claim, is left.

        Raises RuntimeRefusedError when an earlier one does not go away, which takes a stopped process.
        """
        for tries_left in range(_LOCK_TRIES, -1, -1):
            try:
                lock = lock_file(self._state_dir / layout.ZYGOTE_LOCK, "an earlier zygote has not ended yet")
                break
            except RuntimeRefusedError:
                if tries_left == 0:
                    raise
            await asyncio.sleep(_LOCK_PAUSE)
        try:
            self._popen(lock)
        finally:
            os.close(lock)  # the zygote has its own copy of the locked descriptor

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
        """Asks for a keeper. It comes, or `on_refusal` or `on_death` is called."""
        self._backlog.append(os.fsencode(run_dir))
        self._send()

    def _send(self) -> None:
        if self._socket is None:
            self._backlog.clear()  # whoever is told of the death asks again
            return
        loop = asyncio.get_running_loop()
        while self._backlog:
            try:
                self._socket.send(self._backlog[0])
            except BlockingIOError:
                loop.add_writer(self._socket.fileno(), self._send)
                return
            except OSError:
                return  # its death is heard next
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
        """Waits for the end of a zygote that was let go or has died."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        """Lets the zygote end once it has served what it was asked; keepers go on."""
        self._let_go()
        await self.reap()
