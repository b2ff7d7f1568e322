"""The whole system with agents on real control planes: for benchmarks and for the tests of the whole system."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.stage import ADMIN_KEY, PROGRAM, Stage
from trainmaster.client.http import Client


@dataclass(frozen=True)
class KubeCluster:
    """A cluster whose agent is to be started, by which kubeconfig it acts, and what its ``agent.yaml`` says."""

    name: str
    kubeconfig: Path
    config: Mapping[str, Any]
    kind: str = "private"


class KubeStage(Stage):
    """Postgres, Redis, an api, schedulers, and an agent process for each cluster."""

    def __init__(self, folder: Path, clusters: Sequence[KubeCluster], **options: Any) -> None:
        super().__init__(folder, [{"name": one.name, "kind": one.kind} for one in clusters], **options)
        self.clusters = clusters

    def agent_command(self, cluster: KubeCluster) -> list[str]:
        """Return the command that starts the agent of a cluster; a second process is another replica."""
        path = self.folder / f"{cluster.name}.yaml"
        path.write_text(yaml.safe_dump(dict(cluster.config)))
        key = self.folder / f"{cluster.name}.key"
        key.write_text(f"tmk_{cluster.name}")
        port = self.agent_ports[0]
        return [
            *PROGRAM,
            *("agent", "run", "--kubernetes", str(path), "--kubeconfig", str(cluster.kubeconfig)),
            *("--url", f"http://127.0.0.1:{port}", "--key-file", str(key)),
        ]

    def _start_agents(self) -> None:
        for cluster in self.clusters:
            self.add(f"agent-{cluster.name}", self.agent_command(cluster))
        self.until_ready()

    def until_ready(self, seconds: float = 60.0) -> None:
        """Wait until every cluster can take jobs."""
        with Client(self.urls[0], ADMIN_KEY) as client:
            ends = time.monotonic() + seconds
            while any(cluster.state != "ready" for cluster in client.clusters()):
                if time.monotonic() > ends:
                    raise TimeoutError(f"not every cluster connected; see {self.folder / 'logs'}")
                time.sleep(0.1)
