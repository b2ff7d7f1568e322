"""The whole system as real processes on this machine, with simulated clusters: what the benchmarks of load run on."""

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml

from trainmaster.client.http import Client
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import EmbeddedPostgres, free_port, redis_command, wait_for_port
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.migrate import migrate

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
ADMIN_KEY = "tmk_bench_admin"


class Stage:
    """Postgres, Redis, apis for users and for agents, schedulers, and one agent process for all simulated clusters."""

    def __init__(
        self,
        folder: Path,
        fleet: Sequence[dict[str, Any]],
        *,
        user_apis: int = 1,
        agent_apis: int = 1,
        schedulers: int = 1,
        side_jobs: bool = False,
        durable_agents: bool = False,
        queues: Sequence[str] = ("default",),
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.fleet = fleet
        self.children: dict[str, Child] = {}
        self.user_ports = [free_port() for _ in range(user_apis)]
        self.agent_ports = [free_port() for _ in range(agent_apis)]
        self._schedulers = schedulers
        self._side_jobs = side_jobs
        self._durable_agents = durable_agents
        self._queues = queues
        self._env = env or {}
        self.postgres = EmbeddedPostgres(folder / "postgres")
        self.database_url = ""

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.user_ports]

    def start(self) -> None:
        """Start everything and wait until each cluster is ready."""
        (self.folder / "logs").mkdir(parents=True)
        self.database_url = self.postgres.start()
        migrate(self.database_url)
        redis_port = free_port()
        self.env = {
            **os.environ,
            "DATABASE_URL": self.database_url,
            "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
            "TRAINMASTER_DEFAULT_REQUESTS": "",  # jobs take what their benchmark says
            **self._env,
        }
        self._make_tenants()
        redis = self.add("redis", redis_command(redis_port))
        wait_for_port(redis_port, _process(redis), 60, "Redis")
        for kind, ports in (("users", self.user_ports), ("agents", self.agent_ports)):
            for number, port in enumerate(ports):
                self.add(f"api-{kind}-{number}", [*PROGRAM, "serve", "--for", kind, "--port", str(port)])
        for number in range(self._schedulers):
            self.add(f"scheduler-{number}", [*PROGRAM, "scheduler"])
        if self._side_jobs:
            self.add("worker", [*PROGRAM, "worker"])
            self.add("beat", [*PROGRAM, "beat"])
        for name, child in self.children.items():
            if name.startswith("api-"):
                wait_for_port(int(child.command[-1]), _process(child), 120, name)
        self._start_agents()

    def _make_tenants(self) -> None:
        settings = Settings.model_validate({"database_url": self.database_url})
        clusters = [
            ClusterSpec(name=cluster["name"], cluster_kind=ClusterKind(cluster.get("kind", "private")))
            for cluster in self.fleet
        ]
        secrets = {"admin": ADMIN_KEY} | {cluster.name: f"tmk_{cluster.name}" for cluster in clusters}
        queues = [QueueSpec(path=path, allowed_kinds=tuple(ClusterKind)) for path in self._queues]
        asyncio.run(make_local_installation(settings, clusters, secrets, queues))

    def _start_agents(self) -> None:
        """Distribute clusters over as many agent processes as there are apis for agents."""
        if not self.fleet:
            return
        many = len(self.agent_ports)
        for number, port in enumerate(self.agent_ports):
            path = self.folder / f"fleet-{number}.yaml"
            clusters = [dict(cluster) for cluster in self.fleet[number::many]]
            path.write_text(yaml.safe_dump({"key": "tmk_{name}", "clusters": clusters}))
            command = [*PROGRAM, "agent", "run", "--simulated", str(path), "--url", f"http://127.0.0.1:{port}"]
            if self._durable_agents:
                command += ["--state-dir", str(self.folder / f"agents-{number}")]
            self.add(f"agents-{number}", command)
        with Client(self.urls[0], ADMIN_KEY) as client:
            ends = time.monotonic() + 120
            while any(cluster.state != "ready" for cluster in client.clusters()):
                if time.monotonic() > ends:
                    raise TimeoutError("not every cluster connected; see the logs")
                time.sleep(0.2)

    def add(self, name: str, command: list[str]) -> Child:
        """Start one more process."""
        child = Child(name, command, self.env, self.folder / "logs" / f"{name}.log")
        self.children[name] = child
        child.start()
        return child

    def kill(self, name: str) -> None:
        """Kill a process and what it has started, and start it again."""
        child = self.children[name]
        for process in _tree(_process(child).pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _process(child).wait()
        child.start()

    def stop(self) -> None:
        for child in self.children.values():
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        self.postgres.stop("immediate")

    @contextmanager
    def sql(self) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            yield connection

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds used until now by each kind of process, including children; ``load`` is the benchmark itself."""
        out: dict[str, float] = {"load": _cpu(psutil.Process())}
        for name, child in self.children.items():
            if child.process is not None and child.process.poll() is None:
                out[name] = _cpu_tree(child.process.pid)
        out["postgres"] = _cpu_tree(self._postmaster())
        return out

    def rss_bytes(self) -> dict[str, int]:
        """Return the resident memory of each process with its children; of Postgres without what its backends share."""
        out = {
            name: sum(_rss(one) for one in _tree(child.process.pid))
            for name, child in self.children.items()
            if child.process is not None and child.process.poll() is None
        }
        out["postgres"] = sum(_private(one) for one in _tree(self._postmaster()))
        return out

    def _postmaster(self) -> int:
        return int((self.folder / "postgres" / "postmaster.pid").read_text().split()[0])


def _process(child: Child) -> Any:
    assert child.process is not None
    return child.process


def _tree(pid: int) -> Iterable[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _cpu_tree(pid: int) -> float:
    """Return the CPU seconds of a process, its living children, and those that have ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended = float(times.children_user + times.children_system)
    return ended + sum(_cpu(one) for one in _tree(pid))


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _private(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)
