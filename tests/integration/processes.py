"""An api, a scheduler and an agent of a local cluster as processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import ADMIN_KEY
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.settings import Settings

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]


@dataclass
class Processes:
    """An api and a scheduler as processes of their own."""

    folder: Path
    env: dict[str, str]
    children: dict[str, "subprocess.Popen[bytes]"]
    ports: dict[str, int]

    def start(self, name: str, *words: str | Path, port: int) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen([*words], env=self.env, stdout=log, stderr=log)
        self.children[name], self.ports[name] = child, port
        wait_for_port(port, child, 60, name)

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        child.kill()
        child.wait()

    def log(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.log").read_text().splitlines()]

    def http(self, key: str = ADMIN_KEY) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.ports['api']}", headers=headers, timeout=60)


@contextmanager
def api_alone(database_url: str, redis_url: str, folder: Path, **variables: str) -> Iterator[Processes]:
    """Run an api with the cluster ``private`` and the queue ``default``; ``start_agent`` and ``start_scheduler`` add the others.

    ``variables``: more of the environment of all processes.
    """
    settings = Settings.model_validate({"database_url": database_url})
    clusters = [ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)]
    secrets = {"admin": ADMIN_KEY, "private": "tmk_private"}
    queue = QueueSpec(path="default", allowed_kinds=tuple(ClusterKind))
    asyncio.run(make_local_installation(settings, clusters, secrets, [queue]))
    env = os.environ | {"DATABASE_URL": database_url, "REDIS_URL": redis_url} | variables
    made = Processes(folder, env, {}, {})
    try:
        port = free_port()
        made.start("api", *PROGRAM, "serve", "--port", str(port), port=port)
        yield made
    finally:
        for name in list(made.children):
            made.kill(name)


def start_scheduler(processes: Processes) -> None:
    metrics = free_port()
    processes.start("scheduler", *PROGRAM, "scheduler", "--metrics-port", str(metrics), port=metrics)


def start_agent(processes: Processes) -> None:
    home, metrics = processes.folder / "agent", free_port()
    home.mkdir()
    nodes = [{"name": "node", "count": 1, "allocatable": {"cpu": "1", "memory": "1Gi"}}]
    (home / "cluster.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    (home / "key").write_text("tmk_private")
    options: dict[str, str | Path] = {
        "--url": f"http://127.0.0.1:{processes.ports['api']}",
        "--cluster": home / "cluster.yaml",
        "--state-dir": home / "state",
        "--key-file": home / "key",
        "--metrics-port": str(metrics),
    }
    words: list[str | Path] = [word for pair in options.items() for word in pair]
    processes.start("agent", *PROGRAM, "agent", "run", *words, port=metrics)
