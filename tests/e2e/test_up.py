"""The life of a local installation: one process holds its folder, what cannot be is said at once, and Ctrl-C leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import psycopg
import pytest

from tests.waiting import eventually_sync
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import EmbeddedPostgres, free_port

PROGRAM = Path(sys.executable).with_name("trainmaster")
"""The installed program: ``tests.preloaded`` would start ``python -m`` without its imports, during which Ctrl-C may come."""
MARK = "TRAINMASTER_TEST_MARK"
DEEP = bool(os.environ.get("TRAINMASTER_DEEP"))
_LOOKS = 60
_PATIENCE = 120.0


@dataclass
class Starter:
    """Starts the program with an environment that all processes started by it inherit."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid4().hex)
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        dropped = ("DATABASE_URL", "REDIS_URL", "TRAINMASTER_URL", "TRAINMASTER_API_KEY", "TRAINMASTER_DATA")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {MARK: self.mark, "TRAINMASTER_CONFIG": str(self.folder / "config.yaml")}

    def start(self, *words: str | Path, **more: str) -> "subprocess.Popen[bytes]":
        """Start the program in a process group of its own, as a shell does."""
        return self._start(words, more, is_piped=False)

    def pipe(self, *words: str | Path) -> "subprocess.Popen[bytes]":
        """Start the program with a pipe for its output."""
        return self._start(words, {}, is_piped=True)

    def _start(
        self, words: tuple[str | Path, ...], more: dict[str, str], *, is_piped: bool
    ) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            command = [str(word) for word in (PROGRAM, *words)]
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env | more,
                stdout=subprocess.PIPE if is_piped else log,
                stderr=log,
                process_group=0,
            )
        self.started.append(process)
        return process

    def run(self, *words: str | Path, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [str(word) for word in (PROGRAM, *words)]
        return subprocess.run(
            command, env=self.env | more, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )

    def up(self, data: Path, port: int, *options: str, **more: str) -> "subprocess.Popen[bytes]":
        """Start ``up`` and wait until it says that it is up."""
        process = self.start("up", "--data", data, "--port", str(port), "--no-write-config", *options, **more)
        eventually_sync(lambda: "is up" in self.said(process) or process.poll() is not None, _PATIENCE)
        assert process.poll() is None, self.said(process)
        return process

    def said(self, process: "subprocess.Popen[bytes]") -> str:
        return (self.folder / f"{self.started.index(process)}.log").read_text()

    def living(self) -> list[psutil.Process]:
        """Return all processes that come from those started here."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    made = Starter(tmp_path)
    for name in ("redis", "typer", "trainmaster"):  # a working folder with such files changes nothing
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    for left in made.living():
        left.kill()


def interrupt(process: "subprocess.Popen[bytes]") -> int:
    """Send Ctrl-C as a terminal does, to the whole group. Return the exit code."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(_PATIENCE)


def is_ready(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success


def states_of_clusters(data: Path, port: int) -> dict[str, str]:
    key = (data / "keys" / "admin").read_text()
    answer = httpx.get(f"http://127.0.0.1:{port}/v1/clusters", headers={"Authorization": f"Bearer {key}"})
    return {one["name"]: one["state"] for one in answer.raise_for_status().json()["clusters"]}


def test_a_folder_has_one_installation_that_outlives_every_attempt_to_start_another(
    starter: Starter, tmp_path: Path
) -> None:
    data, port = tmp_path / "data", free_port()
    first = starter.up(data, port)
    assert states_of_clusters(data, port) == {"private": "ready", "public": "ready", "edge": "ready"}
    before = {path: path.stat().st_mtime_ns for path in [data / "lock", *(data / "keys").iterdir()]}
    for other in (port, free_port()):
        second = starter.run("up", "--data", data, "--port", str(other), "--no-write-config")
        assert second.returncode == Exit.CONFLICT
        assert (
            f"process {first.pid} (trainmaster up, http://127.0.0.1:{port}) works in the folder {data}" in second.stderr
        )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert is_ready(port), "the first one works on"
    os.kill(int((data / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    eventually_sync(lambda: "Postgres ended; it was started again" in starter.said(first), 30)
    eventually_sync(lambda: is_ready(port), 30)
    first.kill()
    first.wait()
    with psycopg.connect(EmbeddedPostgres(data / "postgres").running_url() or "") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,), "Postgres goes on without it"
    third = starter.pipe("up", "--data", data, "--port", str(port), "--no-write-config")
    assert third.stdout is not None
    assert any(b"is up" in line for line in third.stdout)
    assert is_ready(port)
    third.stdout.close()
    interrupt(third)
    eventually_sync(lambda: starter.living() == [], 30)  # also where nobody reads that it is stopping
    assert (data / "lock").read_text() == ""
    leave_a_newer_schema_alone(starter, data)


def leave_a_newer_schema_alone(starter: Starter, data: Path) -> None:
    """Check that a schema of a newer release is told and left alone."""
    postgres = EmbeddedPostgres(data / "postgres")
    try:
        with psycopg.connect(postgres.start()) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0999'")
            connection.execute("UPDATE schema_compatibility SET oldest_release = '0999'")
    finally:
        postgres.stop()
    ended = starter.run("up", "--data", data, "--port", "0", "--no-write-config")
    assert ended.returncode == Exit.CONFLICT, ended.stderr
    assert "revision 0999 of a newer release" in ended.stderr
    assert starter.living() == []


def test_a_port_that_is_taken_is_said_before_anything_is_started(starter: Starter, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = starter.run("up", "--data", tmp_path / "data", "--port", str(port), "--no-write-config")
        assert ended.returncode == Exit.USAGE
        assert f"port {port} cannot be used: Address already in use; choose another one with --port" in ended.stderr
        assert "is up" not in ended.stdout
        ended = starter.run(
            *("up", "--data", tmp_path / "data", "--port", "0", "--no-write-config"),
            TRAINMASTER_SCHEDULER_READ_PORT=str(port),
        )
        assert ended.returncode == Exit.USAGE
        assert (
            f"port {port} cannot be used: Address already in use; choose another one with TRAINMASTER_SCHE"
            in ended.stderr
        )
        two = starter.run("up", "--schedulers", "2", TRAINMASTER_SCHEDULER_READ_PORT=str(port))
        assert (two.returncode, "each of several schedulers needs a port of its own" in two.stderr) == (
            Exit.USAGE,
            True,
        )
        assert not (tmp_path / "data" / "postgres").exists()
        api = starter.run("serve", "--port", str(port), DATABASE_URL="postgresql://u@127.0.0.1:1/none")
        assert api.returncode == Exit.USAGE
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in api.stderr
        for words in (["scheduler"], ["worker"], ["beat"]):
            found = starter.run(*words, "--metrics-port", str(port), **stores_away())
            assert found.returncode in (Exit.USAGE, Exit.STORE_AWAY)
    assert starter.living() == []


def stores_away() -> dict[str, str]:
    nowhere = f"127.0.0.1:{free_port()}"
    return {
        "DATABASE_URL": f"postgresql://u@{nowhere}/none",
        "REDIS_URL": f"redis://{nowhere}/0",
        "TRAINMASTER_START_RETRY_SECONDS": "0",
    }


@pytest.mark.parametrize("kind", ["below a file", "of the kernel"])
def test_a_folder_that_cannot_be_used_is_said(starter: Starter, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    data = tmp_path / "file" / "data" if kind == "below a file" else Path("/proc/trainmaster")
    ended = starter.run("up", "--data", data, "--port", "0", "--no-write-config")
    assert ended.returncode == Exit.USAGE
    assert f"the folder {data} cannot be used: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert starter.living() == []


def test_a_path_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / ("long" * 30) / "pg")
    try:
        with psycopg.connect(postgres.start()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        postgres.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives Postgres a user of its own")
def test_folders_above_the_database_are_opened_for_passing_and_not_for_listing(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    postgres = EmbeddedPostgres(private / "pg")
    try:
        postgres.start()
    finally:
        postgres.stop()
    assert private.stat().st_mode & 0o777 == 0o711


def quietly(said: str) -> bool:
    return not any(word in said for word in ("Traceback", "bug in Trainmaster", "KeyboardInterrupt"))


def moments(longest: float) -> list[float]:
    parts = (0.0, 0.1, 0.2, 0.3, 0.42, 0.55, 0.7, 0.85, 1.0) if DEEP else (0.0, 0.3, 0.8)
    return [round(longest * part, 2) for part in parts]


def await_program(process: "subprocess.Popen[bytes]") -> None:
    """Wait until Python has started and runs the program, whose first step is to let SIGINT end it silently."""
    caught = 1 << (signal.SIGINT - 1)
    seen = 0
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        # Python itself catches it a few milliseconds before the program does.
        seen += bool(mask & caught)
        if seen > _LOOKS:
            return
        time.sleep(0.001)
    raise AssertionError("the program did not start")


def interrupt_at_many_moments(starter: Starter, start: Callable[[], "subprocess.Popen[bytes]"], longest: float) -> None:
    """Send Ctrl-C at moments from the first import on, to one when the process works."""
    for moment in moments(longest):
        process = start()
        await_program(process)
        time.sleep(moment)  # a moment of the start, whatever it does then
        code = interrupt(process)
        assert quietly(starter.said(process)), (moment, starter.said(process))
        assert code in (0, 128 + signal.SIGINT, -signal.SIGINT), (moment, code, starter.said(process))
        eventually_sync(lambda: starter.living() == [], 30)


def test_ctrl_c_during_the_start_of_an_installation_leaves_nothing_behind(starter: Starter, tmp_path: Path) -> None:
    words = ("up", "--data", tmp_path / "data", "--port", str(free_port()), "--no-write-config")
    interrupt_at_many_moments(starter, lambda: starter.start(*words), 4.0)
    assert interrupt(starter.up(tmp_path / "data", free_port())) == 0, "and no harm is done"


@pytest.mark.parametrize("name", ["serve", "scheduler", "worker", "beat", "agent"])
def test_ctrl_c_during_the_start_of_a_process_ends_it_quietly(
    starter: Starter, tmp_path: Path, database_url: str, redis_url: str, name: str
) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: node, count: 1, allocatable: {cpu: '1', memory: 1Gi}}]\n")
    agent = ("agent", "run", "--url", f"http://127.0.0.1:{free_port()}", "--cluster", tmp_path / "cluster.yaml")
    words: tuple[str | Path, ...] = {
        "serve": ("serve", "--port", str(free_port())),
        "agent": (*agent, "--state-dir", tmp_path / "state"),
    }.get(name, (name,))
    more = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "TRAINMASTER_API_KEY": "tmk_private"}
    interrupt_at_many_moments(starter, lambda: starter.start(*words, **more), 1.6)
