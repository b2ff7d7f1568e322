"""The whole system with two real nodes: dispatcher, agent by its chart's role, control plane, DNS; and what users do and see."""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY, PROGRAM
from tests.cluster.chart import JOBS, install_agent
from tests.cluster.control_plane import API_SERVER, CONTROLLER_MANAGER, ControlPlane
from tests.cluster.schedulers import installed
from tests.cluster.shipped import Installed
from tests.image_registry import ImageRegistry, serving_images
from tests.nodes.dns import ClusterDns
from tests.nodes.images import AGENT, BUSYBOX, ENTRY_POINT, static_busybox, write_archives
from tests.nodes.machine import LEASE_SECONDS, Machine, Parts
from tests.nodes.network import GATEWAY, separate_network
from trainmaster.client.http import Client
from trainmaster.protocol.tenants import JobView
from trainmaster_dispatcher.cli.embedded import free_port

NODES = 2
TOLERATION_SECONDS = 5
"""Pods of a node that is silent are evicted after this time."""
_GRACE_SECONDS = LEASE_SECONDS + 2
_FLAGS = {
    API_SERVER: (
        "--bind-address=0.0.0.0",
        f"--advertise-address={GATEWAY}",
        "--authorization-mode=Node",  # beside RBAC
        "--enable-admission-plugins=NodeRestriction",
        f"--default-not-ready-toleration-seconds={TOLERATION_SECONDS}",
        f"--default-unreachable-toleration-seconds={TOLERATION_SECONDS}",
    ),
    CONTROLLER_MANAGER: (
        "--controllers=endpointslice-controller,root-ca-certificate-publisher-controller,persistentvolume-binder-controller",
    ),  # beside the others
}
_OF_THE_WHOLE_MACHINE = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
                         "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")  # fmt: skip
"""What kubelets set, in whichever namespace they are."""
SETTINGS = {"TRAINMASTER_COOL_DOWN_FACTOR": "0.1"}
MAY_MOUNT = {"claims": ["shared-*"], "secrets": ["wandb"], "configMaps": ["settings"]}
"""The admission policy of the agent, and of the queue of a test that mounts these."""
CONFIG = {"tombstone": "2s", "patience": {"image": "15s", "container": "10s"}, "admission": MAY_MOUNT}
USE_SECONDS = 10
"""Time between two reports of what members use."""
PATIENCE = 90.0


class NodeSystem:
    """What the tests use: machines by number, the command line, kubectl, and jobs."""

    def __init__(
        self, plane: ControlPlane, machines: dict[int, Machine], stage: KubeStage, scheduler: Installed | None
    ) -> None:
        self.plane = plane
        self.machines = machines
        self.stage = stage
        self.scheduler = scheduler
        """The programs of the scheduler of another project that places the gangs; None: that of Kubernetes places them."""
        self.client = Client(stage.urls[0], ADMIN_KEY)
        self.explained: dict[str, list[str]] = {}
        """Sentences of ``why`` that tests waited for, by job."""

    # Commands

    def trainmaster(self, *words: str, check: bool = True) -> str:
        """Run the command line as a user; return what it prints. Fails the test if it fails, unless ``check`` is false."""
        code, printed = self.call(*words)
        assert not check or code == 0, printed
        return printed

    def call(self, *words: str) -> tuple[int, str]:
        """Run the command line as a user; return its exit code and what it prints."""
        done = subprocess.run(
            [*PROGRAM, *words],
            env=self._user_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout

    def _user_env(self) -> dict[str, str]:
        user = {
            "TRAINMASTER_URL": self.stage.urls[0],
            "TRAINMASTER_API_KEY": ADMIN_KEY,
            "COLUMNS": "500",
            "TERM": "dumb",
        }
        return {**os.environ, **user}

    @contextmanager
    def running(self, *words: str) -> "Iterator[subprocess.Popen[str]]":
        """Run the command line as a user while the block runs."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*PROGRAM, *words], env=self._user_env(), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def why(self, job: str) -> str:
        """Return what ``trainmaster why`` prints, with single spaces."""
        return re.sub(r"\s+", " ", self.trainmaster("why", job))

    def kubectl(self, *words: str, check: bool = True) -> str:
        """Run kubectl as the administrator; return what it prints. Fails the test if it fails, unless ``check`` is false."""
        program = Path(os.environ["KUBEBUILDER_ASSETS"]) / "kubectl"
        command = [str(program), "--kubeconfig", str(self.plane.kubeconfig), *words]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=180
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    # Jobs

    def submit(self, name: str, script: str, **job: Any) -> str:
        """Submit a job of one role ``main`` whose members run a shell script; return its id."""
        return self.submit_template(name, {"command": ["sh", "-c", script]}, **job)

    def submit_template(self, name: str, template: dict[str, Any], replicas: int = 1, **job: Any) -> str:
        """Submit a job of one role ``main``; its members are small busybox containers, unless ``template`` says else."""
        whole = {"image": BUSYBOX, "resources": {"cpu": "100m", "memory": "64Mi"}, **template}
        role = {"name": "main", "replicas": replicas, "template": whole}
        return self.client.submit({"name": name, "queue": "default", "roles": [role], **job})[0]

    def until_state(self, job: str, *states: str, seconds: float = PATIENCE) -> JobView:
        """Return the job once it is in one of these states."""
        self.until(lambda: self.client.job(job).state in states, lambda: self.describe(job), seconds)
        return self.client.job(job)

    def until_ended(self, job: str, seconds: float = PATIENCE) -> JobView:
        return self.until_state(job, "succeeded", "failed", "cancelled", seconds=seconds)

    def until_why(self, job: str, pattern: str, seconds: float = PATIENCE) -> str:
        """Return what ``why`` prints once the regular expression is found in it."""
        found = [""]

        def fits() -> bool:
            found[0] = self.why(job)
            return re.search(pattern, found[0]) is not None

        self.until(fits, lambda: f"{pattern!r} is not in {found[0]!r}", seconds)
        self.explained.setdefault(job, []).append(self.client.why(job).sentence)
        return found[0]

    def until_printed(self, job: str, text: str) -> None:
        self.until(
            lambda: text in self.output(job),
            lambda: f"{text!r} is not in {self.output(job)!r}; {self.describe(job)}",
            PATIENCE,
        )

    def output(self, job: str, *options: str) -> str:
        """Return what ``trainmaster logs`` prints of the job."""
        return self.trainmaster("logs", job, *options, check=False)

    def describe(self, job: str) -> str:
        """Return the state of a job, for messages."""
        view = self.client.job(job)
        runs = [(run.state, run.category, run.message) for run in view.runs]
        return f"{view.state}, {view.message!r}, {runs}; why: {self.why(job)}\n{self.kubectl('get', 'pods', '-A', '-o', 'wide')}"

    # Nodes and pods

    def pods(self, job: str, namespace: str = JOBS) -> list[dict[str, Any]]:
        """Return the pods of the job's latest run, as the API server has them."""
        run = max(self.client.job(job).runs, key=lambda one: one.attempt).id
        listing = orjson.loads(
            self.kubectl("-n", namespace, "get", "pods", "-l", f"trainmaster.dev/run={run}", "-o", "json")
        )
        items: list[dict[str, Any]] = listing["items"]
        return items

    def machine_of(self, job: str) -> Machine:
        """Return the machine on which the only pod of a job is."""
        (pod,) = self.pods(job)
        return self.machines[int(pod["spec"]["nodeName"].rpartition("-")[2])]

    def until_ready(self, *machines: Machine) -> None:
        for machine in machines or self.machines.values():
            self.until(partial(self._is_ready, machine.name), machine.last_words, PATIENCE)

    def _is_ready(self, node: str) -> bool:
        return "Ready" in self._conditions(node)

    def has_pressure(self, machine: Machine) -> bool:
        """Return whether a node says that it lacks disk."""
        return "DiskPressure" in self._conditions(machine.name)

    def _conditions(self, node: str) -> set[str]:
        """Return the conditions of a node that are true; none if it does not exist."""
        found = self.kubectl("get", "node", node, "--ignore-not-found", "-o", "json")
        conditions = orjson.loads(found)["status"].get("conditions", ()) if found else ()
        return {one["type"] for one in conditions if one["status"] == "True"}

    @staticmethod
    def until(look: Callable[[], bool], message: Callable[[], str], seconds: float) -> None:
        """Wait until ``look`` is true; fail the test with the message after ``seconds``."""
        ends = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < ends, message()
            time.sleep(0.3)


@contextmanager
def kept_settings() -> Iterator[None]:
    """Give back at the end what kubelets set for the whole machine."""
    before = {name: (Path("/proc/sys") / name).read_text() for name in _OF_THE_WHOLE_MACHINE}
    try:
        yield
    finally:
        for name, value in before.items():
            (Path("/proc/sys") / name).write_text(value)


@contextmanager
def running_scheduler(name: str, plane: ControlPlane, folder: Path) -> Iterator[Installed]:
    """Run the scheduler of another project on the control plane. Its programs and webhooks are in the network of this thread."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(installed(name, plane, folder)))
        finally:
            runner.run(stack.aclose())


@contextmanager
def running_plane(folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane for real nodes."""
    plane = asyncio.run(ControlPlane.start(folder, node_grace_seconds=_GRACE_SECONDS, flags=_FLAGS))
    try:
        yield plane
    finally:
        asyncio.run(plane.stop())


@contextmanager
def booted(parts: Parts, folder: Path, numbers: Iterable[int]) -> Iterator[dict[int, Machine]]:
    """Provide machines that have booted, by number; their nodes are ready some seconds later."""
    with ExitStack() as stack:
        machines = {number: Machine(number, folder / f"node-{number}", parts) for number in numbers}
        for machine in machines.values():
            stack.callback(machine.remove)
            machine.boot()
        yield machines


@contextmanager
def open_system(
    folder: Path, programs: Path, scheduler: str = "", values: Sequence[str] = (), queues: Sequence[str] = ("default",)
) -> Iterator[NodeSystem]:
    """Provide the system with all nodes ready; this thread is in the network of the nodes meanwhile.

    ``scheduler``: of another project, which places the gangs; empty: that of Kubernetes. ``values``: further ones of the
    agent's chart.
    """
    busybox = static_busybox()
    assert busybox is not None
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("KUBEBUILDER_ASSETS", str(programs))
        stack.enter_context(kept_settings())
        stack.enter_context(separate_network())
        plane = stack.enter_context(running_plane(folder / "plane"))
        parts = Parts(plane, programs, write_archives(busybox, folder))
        machines = stack.enter_context(booted(parts, folder, range(1, NODES + 1)))
        stack.callback(ClusterDns(plane, GATEWAY).close)
        site = None
        if scheduler:
            (folder / scheduler).mkdir()
            site = stack.enter_context(running_scheduler(scheduler, plane, folder / scheduler))
        agent = asyncio.run(install_agent(plane, "north", "checkpoint.enabled=true", "use.source=kubelet", *values))
        port = free_port()
        config = {**agent.config, **CONFIG, "arrays": {"port": port, "url": f"http://{GATEWAY}:{port}"}}
        config["files"] = {"image": AGENT, "uploadTime": "30s"}
        config["useSeconds"] = USE_SECONDS
        images = stack.enter_context(serving_images(ImageRegistry(), GATEWAY))
        images.add_image({"config": ENTRY_POINT}, "1")
        config["arrays"]["imageEntryPoints"] = {"image": AGENT, "registries": {"registry.example.com": images.url}}
        if site is not None:
            config["placement"] = {**config.get("placement", {}), **site.placement}
        clusters = [KubeCluster("north", agent.kubeconfig, config)]
        settings = {**SETTINGS, "TRAINMASTER_FILES_STORE": f"file://{folder / 'files'}"}
        stage = KubeStage(folder / "stage", clusters, env=settings, queues=queues)
        stack.callback(stage.stop)
        system = NodeSystem(plane, machines, stage, site)
        stack.callback(system.client.close)
        system.until_ready()
        stage.start()
        yield system
