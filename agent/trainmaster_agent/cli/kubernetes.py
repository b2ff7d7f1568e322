"""``trainmaster agent run --kubernetes``: the agent of a Kubernetes cluster, one of several replicas."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainmaster.cli.errors import UsageError
from trainmaster.cli.yaml_files import read_config
from trainmaster.protocol.states import Exit
from trainmaster_agent.containment import run_for_ever

if TYPE_CHECKING:
    from trainmaster_agent.arrays.server import ArrayListener
    from trainmaster_agent.runtime.kubernetes.config import ArraysConfig, KubernetesCluster

log = logging.getLogger(__name__)

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_USUAL_NAMESPACE = "trainmaster-agent"
_RETRY_SECONDS = 5.0
_STUCK_SECONDS = 60.0
"""Seconds without a turn of the event loop after which the process counts as unhealthy."""


def read_cluster(path: Path) -> "KubernetesCluster":
    """Return the agent's configuration; exit with the path of every mistake."""
    from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster

    try:
        return read_config(KubernetesCluster, path)
    except UsageError as error:
        raise _refuse(str(error)) from error


class Pulse:
    """Heartbeat of the event loop, which the pod's probes check."""

    def __init__(self) -> None:
        self._beat_at = time.monotonic()
        self._lock = threading.Lock()

    async def beat(self) -> None:
        """Record a heartbeat every second, for ever."""
        while True:
            with self._lock:
                self._beat_at = time.monotonic()
            await asyncio.sleep(1.0)

    def is_alive(self) -> bool:
        with self._lock:
            return time.monotonic() - self._beat_at < _STUCK_SECONDS


async def run_kubernetes_agent(
    config: "KubernetesCluster",
    url: str,
    secret: str,
    stop: asyncio.Event,
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    on_renewal: Callable[[Any], None] | None = None,
    pulse: Pulse | None = None,
) -> None:
    """Wait for the Lease, then act until ``stop``.

    Raises LeaseLostError when another replica acts, AccessError, PlacementUnavailableError, RecordsExposedError and SupersededError.
    """
    from trainmaster.client.aio import AgentClient
    from trainmaster_agent.arrays.server import ArrayServer
    from trainmaster_agent.kube.access import open_access
    from trainmaster_agent.kube.client import ApiServer
    from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
    from trainmaster_agent.runtime.kubernetes.served_placement import PlacementChangedError
    from trainmaster_agent.sync import Agent, boot_time

    config.home(own_namespace(config))
    access = await open_access(kubeconfig, context)

    async def act(api: ApiServer) -> None:
        runtime = KubernetesRuntime(api, config, namespace=own_namespace(config), clock=boot_time)
        if not await _open(runtime, stop):
            return
        client = AgentClient(url, secret)
        agent = Agent(
            client,
            runtime,
            cluster=config.cluster,
            on_renewal=on_renewal,
            use_seconds=config.use_seconds,
            arrays=None if config.arrays is None else ArrayServer(_listener(config, config.arrays), client),
        )
        acting = asyncio.create_task(agent.run(stop), name="agent")
        watching = asyncio.create_task(runtime.watch_over(), name="watch-over")
        try:
            done, _ = await asyncio.wait((acting, watching), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (acting, watching):
                task.cancel()
            await asyncio.gather(acting, watching, return_exceptions=True)
            await client.aclose()
            await runtime.close()

    async with asyncio.TaskGroup() as group, ApiServer(access, parallel=config.parallel) as api:
        beating = group.create_task(run_for_ever("pulse", (pulse or Pulse()).beat))
        try:
            while not stop.is_set():
                try:
                    await act(api)
                except PlacementChangedError as error:
                    log.warning("the agent begins anew: %s", error)
                else:
                    return
        finally:
            beating.cancel()


def _listener(cluster: "KubernetesCluster", config: "ArraysConfig") -> "ArrayListener":
    """Return where members that are pods find the agent."""
    from trainmaster_agent.arrays.members import of_pods
    from trainmaster_agent.arrays.server import ArrayListener
    from trainmaster_agent.files.members import in_pods
    from trainmaster_agent.runtime.kubernetes.entry_point_container import FILE

    files = None if cluster.files is None else in_pods
    program = of_pods("" if config.image_entry_points is None else FILE)
    return ArrayListener(config.host or None, config.port, config.url, program, files)


async def _open(runtime: Any, stop: asyncio.Event) -> bool:
    """Open the runtime, with as many tries as it takes; return False when the process is stopped meanwhile."""
    from trainmaster_agent.kube.errors import KubeError
    from trainmaster_agent.kube.lease import LeaseLostError

    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            opening = asyncio.create_task(runtime.open())
            await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                await runtime.close()
                return False
            try:
                opening.result()
                return True
            except Exception as error:
                await runtime.close()
                if isinstance(error, LeaseLostError) or not isinstance(error, KubeError | TimeoutError):
                    raise
                log.warning(
                    "cannot read the state of the cluster, trying again: %s",
                    error or "the API server did not answer in time",
                )
                await asyncio.wait((stopping,), timeout=_RETRY_SECONDS)
        return False
    finally:
        stopping.cancel()


def own_namespace(config: "KubernetesCluster") -> str:
    """Return this pod's namespace; outside a cluster, that of the Lease, or the one where the chart usually installs the agent."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            return _OWN_NAMESPACE.read_text().strip()
        except OSError:
            pass
    return config.lease.namespace or config.record_namespace or _USUAL_NAMESPACE


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(Exit.USAGE)
