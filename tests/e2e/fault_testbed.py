"""The testbed of the fault tests on Kubernetes: the whole dispatcher, and clusters with real control planes and agent processes.

Each cluster is a ``Site``. Whatever the product says is compared with two other witnesses: the kubelet's records, which are what
really ran, and the objects in the API server.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.api import ApiClient, ApiError
from tests.cluster.chart import JOBS, NAMESPACE, Installed, install_agent
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import need_programs
from tests.cluster.kubelet import Kubelet
from tests.cluster.sandbox import Life, overlaps
from trainmaster.client.http import Client
from trainmaster.protocol.answers import ClusterView
from trainmaster.protocol.errors import ProblemError, UnreachableError
from trainmaster.protocol.states import RunState
from trainmaster.protocol.tenants import JobView, RunView
from trainmaster_dispatcher.cli.fork_server import StartedProcess

PATIENCE = 120.0
"""Seconds for what takes a few on an idle machine."""
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2"
_KINDS = {"pods": "/api/v1", "configmaps": "/api/v1", "services": "/api/v1", "podgroups": POD_GROUPS}
_RECORDS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_NOT_OURS = frozenset(("kube-root-ca.crt",))
_SETTINGS = {"TRAINMASTER_LEASE_SECONDS": "6", "TRAINMASTER_COOL_DOWN_FACTOR": "0.1"}
RUN_LABEL = "trainmaster.dev/run"
RESTART_MEMBER = {"action": "restartMember", "limit": 3, "backOff": "100ms"}


async def until(look: Callable[[], Any], what: str, within: float = PATIENCE) -> None:
    """Call ``look``, a function or a coroutine function, until its result is true; fail the test after ``within`` seconds."""
    ends = time.monotonic() + within
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < ends, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.05)


class Site:
    """One cluster: its control plane, its nodes, and its agents."""

    def __init__(self, name: str, plane: ControlPlane, kubelet: Kubelet, api: ApiClient, installed: Installed) -> None:
        self.name = name
        self.plane = plane
        self.kubelet = kubelet
        self.api = api
        self.installed = installed

    async def objects(self, kind: str, run: str | None = None) -> list[dict[str, Any]]:
        """Return what exists of a kind; ``records`` are in the agent's namespace, all others in that of the jobs."""
        selectors = ["trainmaster.dev/anchor"] if kind == "records" else []
        selectors += [] if run is None else [f"{RUN_LABEL}={run}"]
        query = {"labelSelector": ",".join(selectors)}
        items: list[dict[str, Any]] = (await self.api.get(path_of(kind), query))["items"]
        return [one for one in items if one["metadata"]["name"] not in _NOT_OURS]

    async def left(self) -> dict[str, list[str]]:
        """Return the names of the objects that exist for runs, by kind."""
        found = {kind: [one["metadata"]["name"] for one in await self.objects(kind)] for kind in (*_KINDS, "records")}
        return {kind: names for kind, names in found.items() if names}

    async def until_empty(self, within: float = PATIENCE) -> None:
        """Wait until no object that was made for a run exists."""

        async def empty() -> bool:
            return not await self.left()

        try:
            await until(empty, "the namespace of the jobs is empty", within)
        except AssertionError as error:
            raise AssertionError(f"leaked: {await self.left()}") from error

    def starts(self, run: str) -> Counter[str]:
        """Return how often each member of a run has started."""
        return Counter(life.name for life in self.kubelet.started({RUN_LABEL: run}))

    def doubled(self) -> list[tuple[Life, Life]]:
        """Return pairs of lives of one member that overlap: two copies that lived at one moment."""
        return overlaps(self.kubelet.starts, key=lambda life: (life.namespace, life.name))

    def living(self, run: str) -> list[Life]:
        return self.kubelet.living({RUN_LABEL: run})

    async def seen(self, kind: str, count: int, within: float = PATIENCE) -> None:
        """Wait until ``count`` more objects of the kind have been created; the watch begins with this call."""
        version = (await self.api.get(path_of(kind), {"limit": 1}))["metadata"]["resourceVersion"]
        async with asyncio.timeout(within):
            async for event in self.api.watch(path_of(kind), version):
                if event["type"] == "ADDED" and event["object"]["metadata"]["name"] not in _NOT_OURS:
                    count -= 1
                if count <= 0:
                    return

    async def apply(self, method: str, path: str, body: object = None) -> None:
        """Make a change by hand; if it was made already, that is no error."""
        try:
            await self.api.request(method, path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def path_of(kind: str, name: str = "") -> str:
    """Return the path of objects of a kind: in the namespace of the jobs, except for records."""
    if kind == "records":
        return f"{_RECORDS}{'/' if name else ''}{name}"
    return f"{_KINDS[kind]}/namespaces/{JOBS}/{kind}{'/' if name else ''}{name}"


class Environment:
    """The dispatcher with its clusters; ``sites`` by name."""

    def __init__(self, stage: KubeStage, sites: Mapping[str, Site]) -> None:
        self.stage = stage
        self.sites = sites
        self.client = Client(stage.urls[0], ADMIN_KEY)

    @property
    def site(self) -> Site:
        """The site of a testbed that has only one."""
        (site,) = self.sites.values()
        return site

    # -- jobs

    async def submit(self, job: dict[str, Any]) -> str:
        return (await asyncio.to_thread(self.client.submit, job))[0]

    async def job(self, job: str) -> JobView:
        return await asyncio.to_thread(self.client.job, job)

    async def runs(self, job: str) -> list[RunView]:
        return sorted((await self.job(job)).runs, key=lambda run: run.attempt)

    async def until_job(self, job: str, *states: str, within: float = PATIENCE) -> JobView:
        """Return the job, once it is in one of these states."""
        ends = time.monotonic() + within
        while True:
            found = await self._job(job)
            if found is not None and found.state in states:
                return found
            said = None if found is None else (found.state, found.message, [(r.state, r.message) for r in found.runs])
            assert time.monotonic() < ends, f"not {states} within {within:g} s: {said}"
            await asyncio.sleep(0.1)

    async def _job(self, job: str) -> JobView | None:
        try:
            return await self.job(job)
        except (UnreachableError, ProblemError):
            return None

    async def until_run(self, job: str, state: RunState, attempt: int = 1, within: float = PATIENCE) -> RunView:
        found: list[RunView] = []

        async def reached() -> bool:
            found[:] = [run for run in await self.runs(job) if run.attempt == attempt]
            return bool(found) and found[0].state is state

        try:
            await until(reached, f"run {attempt} of {job} is {state}", within)
        except AssertionError as error:
            reported = [(run.state, run.message) for run in found]
            raise AssertionError(f"{error}; it is {reported}, the job {(await self.job(job)).state}") from error
        return found[0]

    async def cluster(self, name: str) -> ClusterView:
        return await asyncio.to_thread(self.client.cluster, name)

    async def until_cluster(self, name: str, meets: Callable[[ClusterView], bool], within: float = PATIENCE) -> None:
        async def so() -> bool:
            return meets(await self.cluster(name))

        try:
            await until(so, f"cluster {name} is as wanted", within)
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self.cluster(name)}") from error

    # -- agents

    def process(self, agent: str) -> StartedProcess:
        """Return the process of ``agent-NAME`` or of a replica."""
        process = self.stage.children[agent].process
        assert process is not None
        return process

    def kill(self, agent: str) -> None:
        """Kill the agent's process, and wait for its end."""
        process = self.process(agent)
        process.kill()
        process.wait()

    def start(self, agent: str) -> None:
        self.stage.children[agent].start()

    def replica(self, site: str, name: str) -> None:
        """Start one more agent of the same cluster."""
        cluster = next(one for one in self.stage.clusters if one.name == site)
        self.stage.add(name, self.stage.agent_command(cluster))

    def log(self, agent: str) -> str:
        return self.stage.children[agent].log.read_text(errors="replace")

    async def until_said(self, agent: str, words: str, within: float = PATIENCE) -> float:
        """Wait until the agent's log contains ``words``; return the seconds that it took."""
        began = time.monotonic()
        await until(lambda: words in self.log(agent), f"{agent} says {words!r}", within)
        return time.monotonic() - began

    def stop(self) -> None:
        for child in self.stage.children.values():
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
        self.stage.stop()
        self.client.close()


def a_gang(name: str, size: int, *words: str, cpu: str = "1", role: Mapping[str, Any] | None = None, **job: Any) -> Any:
    """Return a job of ``size`` members that do ``sim WORDS``."""
    template = {"image": "sim", "command": ["sim", *words], "resources": {"cpu": cpu}}
    worker = {"name": "worker", "replicas": size, "template": template, **(role or {})}
    return {"name": name, "queue": "default", "roles": [worker], **job}


@asynccontextmanager
async def open_testbed(
    folder: Path,
    nodes: Mapping[str, tuple[int, Mapping[str, str]]],
    *,
    placement: str = "native",
    lease: str = "3s",
    tombstone: str = "2s",
    flags: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Environment]:
    """Provide a testbed where everything runs and all clusters are ready; ``nodes``: their number by cluster, and what each has."""
    async with AsyncExitStack() as stack:
        sites: dict[str, Site] = {}
        clusters = []
        for name, (count, allocatable) in nodes.items():
            plane = await ControlPlane.start(folder / name, flags=flags)
            stack.push_async_callback(plane.stop)
            kubelet = await stack.enter_async_context(await Kubelet.start(plane))
            await kubelet.add_nodes("node", count, allocatable=allocatable)
            api = await stack.enter_async_context(plane.client())
            installed = await install_agent(plane, name)
            config = {**installed.config, "tombstone": tombstone}
            config["lease"] = {**config.get("lease", {}), "duration": lease}
            config["placement"] = {**config.get("placement", {}), "scheduler": placement}
            sites[name] = Site(name, plane, kubelet, api, installed)
            clusters.append(KubeCluster(name, installed.kubeconfig, config))
        stage = KubeStage(folder / "stage", clusters, env={**_SETTINGS, **(settings or {})})
        testbed = Environment(stage, sites)
        stack.callback(testbed.stop)
        await asyncio.to_thread(stage.start)
        yield testbed


async def kubectl(site: Site, *words: str) -> str:
    """Run kubectl as a person would; return the output. Does not wait for deletions to end."""
    program = need_programs() / "kubectl"
    wait = ("--wait=false",) if words[0] == "delete" else ()
    process = await asyncio.create_subprocess_exec(
        program,
        *("--kubeconfig", str(site.plane.kubeconfig), "--namespace", JOBS, *words, *wait),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
