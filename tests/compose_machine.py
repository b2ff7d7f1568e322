"""The services of docker-compose.yml as processes of this machine. Starts no container."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import compose_file
from tests.compose_file import ROOT
from tests.waiting import eventually_sync
from trainmaster.protocol.durations import parse_duration
from trainmaster_dispatcher.cli.embedded import free_port

PORTS = ("8470", "9470")
"""Ports inside the containers: of apis, and of what Prometheus reads from all others."""


class Machine:
    """Runs services as processes: their volumes are folders, their names and ports become ports of this machine.

    ``program`` returns the words before a service's command; the folder of the first one also has the ``python`` of health checks.
    ``image`` is what the image sets in the environment of each process, ``stores`` what replaces values that the file sets, and
    ``more`` what users would add to the environment of all processes of the dispatcher.
    """

    def __init__(
        self,
        folder: Path,
        program: Callable[[str], list[str]],
        stores: Mapping[str, str],
        image: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        every = compose_file.with_variables(compose_file.read()["services"], {"POSTGRES_PASSWORD": "secret"})
        self.services: dict[str, dict[str, Any]] = {
            name: every[name] for name in compose_file.starting_order(every) if compose_file.is_ours(every[name])
        }
        self.ports = {name: {port: str(free_port()) for port in PORTS} for name in self.services}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._program, self._stores, self._image, self._more = program, stores, dict(image or {}), dict(more or {})
        for sub in ("logs", "tmp"):
            (folder / sub).mkdir()

    @property
    def lasting(self) -> list[str]:
        """The services that run until they are stopped."""
        return [name for name, service in self.services.items() if "healthcheck" in service]

    def start(self, name: str) -> None:
        """Start a service once all that it waits for is as its ``depends_on`` says."""
        for other, wait in self.services[name].get("depends_on", {}).items():
            if other in self.services and wait["condition"] == "service_healthy":
                self._await_health(other)
            elif other in self.services:
                assert self.processes[other].wait(60) == 0, self.log(other)
        env = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ} | self._image
        if environment := self.services[name].get("environment"):
            env |= {key: self._stores.get(key, value) for key, value in environment.items()} | self._more
        with (self.folder / "logs" / name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*self._program(name), *self.command(name)], env=env, cwd=self.folder / "tmp", stdout=log, stderr=log
            )

    def start_all(self) -> None:
        """Start all services in their order and wait until each that lasts is healthy."""
        for name in self.services:
            self.start(name)
        for name in self.lasting:
            self._await_health(name)

    def _await_health(self, name: str) -> None:
        eventually_sync(lambda: self.is_healthy(name), 60, every=0.5)  # each look starts a Python

    def stop_all(self) -> None:
        """Stop all services as Compose does. Fails the test when one does not end with 0."""
        ends = {name: self.stop(name) for name in reversed(self.lasting)}
        assert ends == dict.fromkeys(self.lasting, 0), {
            name: self.log(name)[-2000:] for name, code in ends.items() if code
        }

    def command(self, name: str) -> list[str]:
        return [self._here(name, word) for word in self.services[name]["command"]]

    def _here(self, name: str, word: str) -> str:
        """Return a word of a service's command as it is on this machine."""
        if word == "0.0.0.0":  # noqa: S104 - only compared
            return "127.0.0.1"
        if word.startswith("/"):
            return f"{self.root(name)}{word}"
        for other, ports in self.ports.items():
            for port, here in ports.items():
                word = word.replace(f"{other}:{port}", f"127.0.0.1:{here}")
        return self.ports[name].get(word, word)

    def root(self, name: str) -> Path:
        """Return a folder in which the service finds its volumes where they are in its container."""
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
        """Return whether the service's own health check succeeds. Fails the test when the service has ended."""
        assert self.processes[name].poll() is None, f"{name} has ended: {self.log(name)}"
        kind, program, *words = self.services[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        for port, here in self.ports[name].items():
            words = [word.replace(f":{port}/", f":{here}/") for word in words]
        python = Path(self._program(name)[0]).with_name("python")
        return subprocess.run([python, *words], capture_output=True, timeout=60, check=False).returncode == 0

    @property
    def keys(self) -> list[Path]:
        """The files of keys that the bootstrap has written."""
        return sorted(path for path in self.folder.glob("volumes/key-*/*") if path.is_file())

    def client(self, program: list[str]) -> Callable[..., str]:
        """Return a function that runs a command of an admin against the api for users and returns its standard output."""
        env = os.environ | {
            "TRAINMASTER_URL": f"http://127.0.0.1:{self.ports['api-users']['8470']}",
            "TRAINMASTER_API_KEY": next(key for key in self.keys if key.parent.name == "key-admin").read_text(),
        }

        def ask(*words: str, stdin: str | None = None) -> str:
            done = subprocess.run(
                [*program, *words], env=env, input=stdin, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        return ask

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text()

    def stop(self, name: str) -> int:
        """Stop a service as Compose does; return its exit code. Fails the test when its grace is over before."""
        process = self.processes[name]
        process.terminate()
        return process.wait(parse_duration(self.services[name]["stop_grace_period"]))

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
