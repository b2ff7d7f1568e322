"""The programs of a control plane as processes that never outlive the tests that started them."""

import ctypes
import os
import random
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from tests.waiting import eventually

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PORTS = range(20_000, 32_000)
"""Below the ports the kernel hands out: the port of a stopped server must not become another connection's own end."""


def _die_with_parent() -> None:
    """Let the kernel end this process with its parent, as a killed test run cannot. The parent is the thread that
    started the process."""
    _libc.prctl(_PR_SET_PDEATHSIG, SIGKILL)


def reserve_port() -> int:
    """Return a loopback port nobody listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Daemon:
    """One program in a process group of its own, whose output is added to ``log``.

    ``environment``: all of its variables; those of the tests if None.
    """

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = Path(command[0]).name
        self.log = log
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    def start(self) -> None:
        if self.alive:
            return
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=self._environment,
                preexec_fn=_die_with_parent,
            )

    def signal(self, number: Signals) -> None:
        if self.alive:
            os.killpg(self.pid, number)

    async def stop(self, number: Signals = SIGTERM) -> None:
        """Send the signal and return once the process is gone; one that ignores SIGTERM, or is paused, is killed."""

        async def gone() -> bool:
            return not self.alive

        self.signal(number)
        try:
            await eventually(gone, 1)
        except AssertionError:
            self.signal(SIGKILL)
            await eventually(gone)

    def last_words(self, lines: int = 15) -> str:
        """Return the end of the log, for messages."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
