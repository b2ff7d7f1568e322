"""The stage of the fault tests: all processes of the system, each of which can be killed, frozen, cut off and started again."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.conftest import NO_TLS
from tests.faults.link import Link
from tests.waiting import eventually_sync
from trainmaster.protocol.states import ClusterKind, JobState
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import EmbeddedPostgres, free_port, redis_command, wait_for_port
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.migrate import migrate

LEASE = 1.0
LIMIT = 4.0
"""L and D of design section 11."""
_PATIENCE = 60.0
"""Seconds for what takes a second or two; a machine that is shared may be many times slower for a while."""
FAR_LIMIT = 600.0
"""A D that no fault outlasts, on however slow a machine."""
LASTING = 8.0
"""Seconds for which a lasting job runs that is to be there when a fault has outlasted D."""
CLUSTERS = ("private", "public", "edge")
MEMBER = Path(__file__).with_name("member.py")
_ADMIN = {"Authorization": "Bearer tmk_admin"}


@dataclass(slots=True)
class Expected:
    """How a job must end. ``may_rerun``: it asked to be started elsewhere when its cluster is out of contact for a D that a fault
    may outlast."""

    state: str
    attempts: int | None
    """None: the test that submitted it looks after that itself."""
    may_rerun: bool


class Stage:
    """Two apis, two schedulers, three agents with the local runtime, Postgres and Redis, all real processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = folder / "members"
        self.children: dict[str, Child] = {}
        self.links: dict[str, Link] = {}
        self.api_ports = [free_port(), free_port()]
        self.redis_port = free_port()
        self.postgres = EmbeddedPostgres(folder / "pg")
        self.expected: dict[str, Expected] = {}
        self.http = httpx.Client(timeout=10, verify=NO_TLS)

    # -- building up and tearing down

    def start(self) -> None:
        """Start everything and wait until every cluster is ready."""
        for sub in ("logs", "members", "agents"):
            (self.folder / sub).mkdir(parents=True)
        url = self.postgres.start()
        self.env = {
            **os.environ,
            "DATABASE_URL": url,
            "REDIS_URL": f"redis://127.0.0.1:{self.redis_port}/0",
            "TRAINMASTER_LEASE_SECONDS": str(LEASE),
            "TRAINMASTER_LOST_MARGIN_SECONDS": "0.5",
            "TRAINMASTER_LEADER_SECONDS": "2",
            "TRAINMASTER_COOL_DOWN_FACTOR": "0.1",
        }
        migrate(url)
        settings = Settings.model_validate({"database_url": url})
        clusters = [ClusterSpec(name=kind.value, cluster_kind=kind) for kind in ClusterKind]
        secrets = {"admin": "tmk_admin"} | {name: f"tmk_{name}" for name in CLUSTERS}
        queue = QueueSpec(path="default", allowed_kinds=tuple(ClusterKind))
        asyncio.run(make_local_installation(settings, clusters, secrets, [queue]))
        self._add("redis", redis_command(self.redis_port)).start()
        program = [sys.executable, "-m", "trainmaster.cli.main"]
        for number, port in enumerate(self.api_ports):
            self._add(f"api-{number}", [*program, "serve", "--port", str(port)]).start()
        for number in range(2):
            self._add(f"scheduler-{number}", [*program, "scheduler"]).start()
        for number, port in enumerate(self.api_ports):
            process = self.children[f"api-{number}"].process
            assert process is not None
            wait_for_port(port, process, _PATIENCE, f"api-{number}")
        for number, name in enumerate(CLUSTERS):
            self._start_agent(program, name, self.api_ports[number % 2 :] + self.api_ports[: number % 2])
        eventually_sync(lambda: self.cluster_states() == {"ready"}, _PATIENCE)

    def _add(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, self.env, self.folder / "logs" / f"{name}.log")
        self.children[name] = child
        return child

    def _start_agent(self, program: list[str], name: str, targets: list[int]) -> None:
        self.links[name] = Link(targets)
        home = self.folder / "agents" / name
        home.mkdir()
        (home / "key").write_text(f"tmk_{name}")
        nodes = [{"name": "node", "count": 4, "allocatable": {"cpu": "4", "memory": "16Gi"}}]
        (home / "cluster.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
        self._add(f"agent-{name}", self._agent_command(program, name, home / "state")).start()

    def _agent_command(self, program: list[str], name: str, state_dir: Path) -> list[str]:
        home = self.folder / "agents" / name
        options = {
            "--url": f"http://127.0.0.1:{self.links[name].port}",
            "--cluster": str(home / "cluster.yaml"),
            "--state-dir": str(state_dir),
            "--key-file": str(home / "key"),
        }
        return [*program, "agent", "run", *[word for pair in options.items() for word in pair]]

    def state_dir(self, name: str) -> Path:
        """Return where the agent of a cluster has its records now."""
        command = self.children[f"agent-{name}"].command
        return Path(command[command.index("--state-dir") + 1])

    def use_folder(self, name: str, folder: str) -> None:
        """Give the agent of a cluster another folder for its records, from its next start on."""
        command = self.children[f"agent-{name}"].command
        command[command.index("--state-dir") + 1] = str(self.folder / "agents" / name / folder)

    def add_rival(self, name: str, folder: str) -> str:
        """Start another agent with the key of a cluster and a folder of its own; return its name among the children."""
        program = self.children[f"agent-{name}"].command[:3]
        rival = f"rival-{name}-{folder}"
        self._add(rival, self._agent_command(program, name, self.folder / "agents" / name / folder)).start()
        return rival

    def supervise(self, names: list[str], seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Restart whichever of these processes ends, for ``seconds`` and ``until`` something holds, a minute at most."""
        began = time.monotonic()
        while time.monotonic() - began < seconds or (not until() and time.monotonic() - began < 60.0):
            for name in names:
                process = self.children[name].process
                if process is None or process.poll() is not None:
                    self.revive(name)
            time.sleep(0.1)

    def log_of(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def stop(self) -> None:
        for child in self.children.values():
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
                child.process.kill()
                child.process.wait()
        self.http.close()
        for link in self.links.values():
            link.close()
        for process in self.member_processes():
            process.kill()
        self.postgres.stop("immediate")

    # -- faults

    def kill(self, name: str) -> None:
        process = self.children[name].process
        assert process is not None
        process.kill()
        process.wait()

    def revive(self, name: str) -> None:
        self.children[name].start()

    def freeze(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, sign: signal.Signals) -> None:
        process = self.children[name].process
        assert process is not None
        process.send_signal(sign)

    def restart_postgres(self, mode: str) -> None:
        self.postgres.stop(mode)
        self.postgres.restart()

    def flush_redis(self) -> None:
        subprocess.run([sys.executable, "-c", _FLUSH, str(self.redis_port)], check=True)

    # -- jobs

    def submit(
        self, name: str, seconds: float, *, failures: int = 0, replicas: int = 1, requeue_after: float | None = None
    ) -> str:
        """Submit a job, again and again with the same idempotency key until it is acknowledged; return its id."""
        command = [sys.executable, "-I", "-S", str(MEMBER), str(self.members), str(seconds), str(failures)]
        spec: dict[str, Any] = {
            "kind": "Job",
            "name": name,
            "queue": "default",
            "stopGrace": "1s",
            "retries": {"limit": failures, "backOff": "100ms"},
            "roles": [
                {"name": "main", "replicas": replicas, "template": {"command": command, "resources": {"cpu": "500m"}}}
            ],
        }
        if requeue_after is not None:
            spec["onDisconnect"] = {"requeueAfter": f"{requeue_after:.0f}s"}
        answer = self.request(
            "POST", "/v1/jobs", json=spec, headers={"Idempotency-Key": f"{name}-{os.urandom(8).hex()}"}
        )
        assert answer.status_code == 201, answer.text
        job_id = str(answer.json()["id"])
        self.expected[job_id] = Expected("succeeded", failures + 1, requeue_after == LIMIT)
        return job_id

    def submit_lasting(
        self,
        name: str,
        seconds: float,
        *,
        cpu: str = "500m",
        replicas: int = 1,
        priority_class: str | None = None,
        expected: str = "cancelled",
    ) -> str:
        """Submit a job for cluster ``private`` that waits for its cluster whatever happens to it; return its id."""
        command = [sys.executable, "-I", "-S", str(MEMBER), str(self.members), str(seconds), "0"]
        spec = {
            "kind": "Job",
            "name": name,
            "queue": "default",
            "stopGrace": "1s",
            "onDisconnect": "wait",
            "placement": {"clusters": ["private"]},
            "roles": [
                {"name": "main", "replicas": replicas, "template": {"command": command, "resources": {"cpu": cpu}}}
            ],
        } | ({"priorityClass": priority_class} if priority_class else {})
        answer = self.request("POST", "/v1/jobs", json=spec)
        assert answer.status_code == 201, answer.text
        job_id = str(answer.json()["id"])
        self.expected[job_id] = Expected(expected, None, may_rerun=False)
        return job_id

    def act(self, path: str) -> None:
        answer = self.request("POST", f"/v1/{path}", json={})
        assert answer.status_code == 200, answer.text

    def job(self, job_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.request("GET", f"/v1/jobs/{job_id}").json()
        return shown

    def cluster(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.request("GET", f"/v1/clusters/{name}").json()
        return shown

    def until(self, job_id: str, state: str) -> None:
        """Wait until a job is in a state."""
        try:
            eventually_sync(lambda: self.job(job_id)["state"] == state, _PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"not {state}: {self.job(job_id)}") from error

    def starts(self, job_id: str, attempt: int) -> int:
        """Return how many members of one run of a job have started."""
        lines = [line for file in self.members.glob(f"{job_id}.*.starts") for line in file.read_text().splitlines()]
        return lines.count(f"{job_id}-r{attempt}")

    def no_copies_met(self) -> None:
        overlaps = self.members / "overlaps"
        assert not overlaps.exists(), overlaps.read_text()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask either api, until one answers with something else than 503."""
        headers = _ADMIN | options.pop("headers", {})
        ends = time.monotonic() + _PATIENCE
        number = 0
        while True:
            port = self.api_ports[number % 2]
            number += 1
            try:
                answer = self.http.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, **options)
                if answer.status_code != 503:
                    return answer
                assert "retry-after" in answer.headers
            except httpx.TransportError:
                pass
            assert time.monotonic() < ends, f"no api answered {method} {path} for {_PATIENCE:.0f} s"
            time.sleep(0.05)

    def cluster_states(self) -> set[str]:
        return {cluster["state"] for cluster in self.request("GET", "/v1/clusters").json()["clusters"]}

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return all jobs, by id."""
        out: dict[str, dict[str, Any]] = {}
        cursor = ""
        while True:
            page = self.request("GET", f"/v1/jobs?limit=1000{cursor}").json()
            out |= {job["id"]: job for job in page["jobs"]}
            if page["next"] is None:
                return out
            cursor = f"&cursor={page['next']}"

    # -- what must hold afterwards

    def await_a_lasting_run(self, cluster: str | None = None) -> None:
        """Wait until a lasting job runs that asked to be started elsewhere, on this cluster if one is named."""

        def running() -> bool:
            jobs = self.request("GET", "/v1/jobs?state=running&limit=1000").json()["jobs"]
            return any(
                job["name"].startswith("lasting-")
                and self.expected[job["id"]].may_rerun
                and cluster in (None, job["cluster"])
                for job in jobs
                if job["id"] in self.expected
            )

        eventually_sync(running, _PATIENCE)

    def await_all_ended(self, seconds: float = 2 * _PATIENCE) -> None:
        states = "&".join(f"state={state}" for state in JobState if not state.is_terminal)

        def ended() -> bool:
            return not self.request("GET", f"/v1/jobs?limit=1&{states}").json()["jobs"]

        try:
            eventually_sync(ended, seconds)
        except AssertionError as error:
            left = {
                key: (job["shownState"], job.get("message"), job.get("cluster")) for key, job in self.jobs().items()
            }
            late = {key: value for key, value in left.items() if value[0] not in ("succeeded", "failed", "cancelled")}
            raise AssertionError(f"not ended: {late}") from error

    def check(self, *, reruns_allowed: bool) -> None:
        """Check that each job ended exactly as it should, none was lost or doubled, nothing is left, and no two copies met."""
        self.await_all_ended()
        jobs = self.jobs()
        assert jobs.keys() == self.expected.keys(), "jobs lost or doubled"
        for job_id, expected in self.expected.items():
            job = jobs[job_id]
            assert job["state"] == expected.state, (job_id, job)
            if expected.attempts is None:
                continue
            if reruns_allowed and expected.may_rerun:
                assert job["attempt"] >= expected.attempts, (job_id, job)
            else:
                assert job["attempt"] == expected.attempts, (
                    f"{job_id} was stopped though nobody asked: {self.history(job_id)}"
                )
        eventually_sync(lambda: not self.member_processes(), 30)
        self.no_copies_met()

    def reruns(self) -> int:
        """Return how many jobs took more runs than their failures explain."""
        jobs = self.jobs()
        return sum(
            jobs[job_id]["attempt"] > expected.attempts
            for job_id, expected in self.expected.items()
            if expected.attempts is not None
        )

    def history(self, job_id: str) -> Any:
        return self.request("GET", f"/v1/jobs/{job_id}/events").json()

    def member_processes(self) -> list[psutil.Process]:
        """Return the living processes of members of this stage."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if str(self.members) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found


_FLUSH = "import sys, redis; redis.Redis(port=int(sys.argv[1])).flushall()"


@dataclass
class Flow:
    """Submits jobs of all sorts from a thread of its own, evenly over some seconds."""

    stage: Stage
    jobs: int
    seconds: float
    outlasts_limit: bool = False
    """Whether the fault outlasts D: half of the jobs ask to be started elsewhere then. Without it, D is far off."""
    _thread: threading.Thread = field(init=False)
    _error: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> "Flow":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(5 * _PATIENCE)
        assert not self._thread.is_alive(), "submitting did not come to an end"
        if self._error:
            raise self._error[0]

    def _run(self) -> None:
        try:
            began = time.monotonic()
            for number in range(self.jobs):
                time.sleep(max(0.0, began + self.seconds * number / self.jobs - time.monotonic()))
                self._submit(number)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._error.append(error)

    def _submit(self, number: int) -> None:
        """Submit a job, mostly a short one: one in 10 fails once first, one in 8 is a gang, one in 20 lasts, half have a D."""
        lasting = number % 20 == 7 or (self.outlasts_limit and number % 20 == 12)
        long = LASTING if self.outlasts_limit else LIMIT + 2
        self.stage.submit(
            f"lasting-{number}" if lasting else f"j{number}",
            seconds=long if lasting else 0.1 + number % 5 * 0.1,
            failures=1 if number % 10 == 3 else 0,
            replicas=3 if number % 8 == 1 else 1,
            requeue_after=None if number % 2 else LIMIT if self.outlasts_limit else FAR_LIMIT,
        )


@contextmanager
def started(folder: Path) -> Iterator[Stage]:
    """Start a stage in a folder, and stop it at the end."""
    built = Stage(folder)
    try:
        built.start()
        yield built
    finally:
        built.stop()
