"""Two clusters of one dispatcher, each a control plane with a real node; the first one's agent reaches the dispatcher by a cable."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import PROGRAM
from tests.cluster.chart import install_agent
from tests.cluster.control_plane import ControlPlane
from tests.nodes.images import static_busybox, write_archives
from tests.nodes.machine import Machine, Parts
from tests.nodes.network import DISPATCHER, GATEWAY, Uplink, separate_network
from tests.nodes.system import CONFIG, SETTINGS, NodeSystem, booted, kept_settings, running_plane
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port

NORTH, SOUTH = "north", "south"
LEASE_SECONDS = 3
_LOOK_SECONDS = 0.05
_MARK = b"TRAINMASTER_RUN_ID="


class FleetStage(KubeStage):
    """A stage with an api at the uplink, which only the agent of ``north`` uses."""

    def __init__(self, folder: Path, uplink: Uplink, clusters: list[KubeCluster]) -> None:
        super().__init__(folder, clusters, env={**SETTINGS, "TRAINMASTER_LEASE_SECONDS": str(LEASE_SECONDS)})
        self._uplink = uplink
        self._port = free_port()

    def agent_command(self, cluster: KubeCluster) -> list[str]:
        command = super().agent_command(cluster)
        if cluster.name != NORTH:
            return command
        command[command.index("--url") + 1] = f"http://{DISPATCHER}:{self._port}"
        return [*self._uplink.enter, *command]

    def _start_agents(self) -> None:
        everywhere = "0.0.0.0"  # noqa: S104 -- of this network namespace, which leads nowhere else
        command = [*PROGRAM, "serve", "--for", "agents", "--host", everywhere, "--port", str(self._port)]
        api = self.add("api-uplink", command)
        assert api.process is not None
        wait_for_port(self._port, api.process, 120, "api-uplink")
        super()._start_agents()


@dataclass(frozen=True)
class Fleet:
    """Both clusters, as their users see them, and the cable of the first one's agent."""

    north: NodeSystem
    south: NodeSystem
    uplink: Uplink


class Witness:
    """The runs of a job that have a living process on this machine, looked at again and again, whatever agents and API servers say."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"witness-{job}")
        self.looks: list[frozenset[str]] = []
        """The attempts that lived at each look, as far as they differ from the look before."""

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            found = frozenset(run for run in _living_runs() if run.rpartition("-r")[0] == self._job)
            if not self.looks or self.looks[-1] != found:
                self.looks.append(found)


def _living_runs() -> Iterator[str]:
    """Yield the runs of all processes of this machine that have one in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended since
        yield from (one.removeprefix(_MARK).decode() for one in variables if one.startswith(_MARK))


@contextmanager
def open_fleet(folder: Path, programs: Path) -> Iterator[Fleet]:
    """Provide both clusters with their nodes ready; this thread is in their network meanwhile."""
    busybox = static_busybox()
    assert busybox is not None
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("KUBEBUILDER_ASSETS", str(programs))
        stack.enter_context(kept_settings())
        stack.enter_context(separate_network())
        archives = write_archives(busybox, folder)
        uplink = Uplink(folder)
        stack.callback(uplink.close)
        clusters: list[KubeCluster] = []
        planes: dict[str, ControlPlane] = {}
        nodes: dict[str, dict[int, Machine]] = {}
        for number, name in enumerate((NORTH, SOUTH), start=1):
            planes[name] = stack.enter_context(running_plane(folder / name))
            parts = Parts(planes[name], programs, archives)
            nodes[name] = stack.enter_context(booted(parts, folder, [number]))
            agent = asyncio.run(install_agent(planes[name], name))
            if name == NORTH:
                _go_by_the_bridge(agent.kubeconfig, planes[name])
            clusters.append(KubeCluster(name, agent.kubeconfig, {**agent.config, **CONFIG}))
        stage = FleetStage(folder / "stage", uplink, clusters)
        stack.callback(stage.stop)
        north, south = (NodeSystem(planes[name], nodes[name], stage, None) for name in (NORTH, SOUTH))
        for system in (north, south):
            stack.callback(system.client.close)
            system.until_ready()
        stage.start()
        yield Fleet(north, south, uplink)


def _go_by_the_bridge(kubeconfig: Path, plane: ControlPlane) -> None:
    """Let a kubeconfig name the API server's address at the bridge, in place of this process's loopback."""
    config: dict[str, Any] = orjson.loads(kubeconfig.read_bytes())
    port = plane.url.rpartition(":")[2]
    config["clusters"][0]["cluster"]["server"] = f"https://{GATEWAY}:{port}"
    kubeconfig.write_bytes(orjson.dumps(config))
