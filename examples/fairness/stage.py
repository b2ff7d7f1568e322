"""What the example runs on: Postgres, Redis, api and scheduler as real processes, and an agent with two simulated clusters."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml

from trainmaster.client.http import Client
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster_dispatcher.cli.embedded import (
    EmbeddedError,
    EmbeddedPostgres,
    free_port,
    private_file,
    redis_command,
    wait_for_port,
)
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.migrate import migrate

NODES = {"north": 4, "south": 2}
"""By cluster: how many nodes it has."""
NODE_CPUS = 4
FLEET_CPUS = NODE_CPUS * sum(NODES.values())

_PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
_PATIENCE_SECONDS = 60.0


class Stage:
    """Everything in one folder; ``stop`` may be called at any time, however far ``start`` has come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.key = "tmk_" + secrets.token_urlsafe(32)
        self._port = port
        self._env: dict[str, str] = {}
        self._children: list[Child] = []
        self._postgres: EmbeddedPostgres | None = None

    def start(self) -> None:
        """Start all of it and wait until both clusters are ready. Raises EmbeddedError or ProblemError."""
        (self.folder / "logs").mkdir()
        self._postgres = EmbeddedPostgres(self.folder / "postgres")
        database_url = self._postgres.start()
        migrate(database_url)
        redis_port = free_port()
        self._env = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
            "TRAINMASTER_URL": self.url,
            "TRAINMASTER_API_KEY": self.key,
        }
        self._make_clusters(database_url)
        wait_for_port(redis_port, self._add("redis", redis_command(redis_port)), _PATIENCE_SECONDS, "Redis")
        api = self._add("api", [*_PROGRAM, "serve", "--port", str(self._port)])
        self._add("scheduler", [*_PROGRAM, "scheduler"])
        fleet = str(self.folder / "fleet.yaml")
        self._add("agent", [*_PROGRAM, "agent", "run", "--simulated", fleet, "--url", self.url])
        wait_for_port(self._port, api, _PATIENCE_SECONDS, "the api")
        with self.client() as client:
            ends = time.monotonic() + _PATIENCE_SECONDS
            while any(cluster.state != "ready" for cluster in client.clusters()):
                if time.monotonic() > ends:
                    raise EmbeddedError("the simulated clusters did not connect")
                time.sleep(0.05)

    def client(self) -> Client:
        return Client(self.url, self.key)

    def command(self, *words: str) -> str:
        """Return what ``trainmaster WORDS`` prints here. Raises CalledProcessError."""
        done = subprocess.run([*_PROGRAM, *words], env=self._env, capture_output=True, text=True, check=True)
        return done.stdout.rstrip()

    def stop(self) -> None:
        """Stop the processes, all at once, then Postgres."""
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()
        for child in self._children:
            child.stop()
        # The same Ctrl-C may have stopped it.
        if self._postgres is not None:
            with suppress(subprocess.CalledProcessError):
                self._postgres.stop()

    def _make_clusters(self, database_url: str) -> None:
        """Create the clusters with their agent's keys, and an admin's key; the queues are applied later, as a person would."""
        keys = {name: "tmk_" + secrets.token_urlsafe(32) for name in NODES}
        for name, key in keys.items():
            private_file(self.folder / "keys" / name, key)
        node = {"cpu": str(NODE_CPUS), "memory": "16Gi"}
        clusters = [
            {"name": name, "groups": [{"name": "cpu", "count": count, "resources": node}]}
            for name, count in NODES.items()
        ]
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump({"keyFile": "keys/{name}", "clusters": clusters}))
        settings = Settings.model_validate({"database_url": database_url, "redis_url": None})
        declared = [ClusterSpec(name=name) for name in NODES]
        asyncio.run(make_local_installation(settings, declared, {"admin": self.key, **keys}, []))

    def _add(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        child = Child(name, command, self._env, self.folder / "logs" / f"{name}.log")
        self._children.append(child)
        child.start()
        assert child.process is not None  # just started
        return child.process
