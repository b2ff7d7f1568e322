"""The agents of a whole simulated fleet on one event loop: each has its own runtime, session and key."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from trainmaster.client.config import checked_key
from trainmaster.client.errors import ConfigurationError
from trainmaster.fake_cluster.fleet import Fleet, FleetCluster, Keyed
from trainmaster.fake_cluster.seeded_random import draw
from trainmaster_agent.containment import run_for_ever
from trainmaster_agent.runtime.port import RuntimeRefusedError
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime
from trainmaster_agent.sync import Agent, Dispatcher, SupersededError

log = logging.getLogger(__name__)

_SECONDS_EACH = 0.02
_MOST_STAGGER = 10.0


class FleetClient(Dispatcher, Protocol):
    """A client of the dispatcher that is closed when its agent ends."""

    async def aclose(self) -> None: ...


class NoKeyError(Exception):
    """A cluster of the fleet has no API key, or what cannot be one; the message names the places that were tried."""


def read_key(fleet: Fleet, cluster: FleetCluster, folder: Path, fallback: str = "") -> str:
    """Return a cluster's API key: its own, else by the fleet's pattern, else ``fallback``. Raises NoKeyError.

    Relative paths start at ``folder``.
    """
    own = _read(cluster, cluster.name, folder, is_pattern=False)
    key = own or _read(fleet, cluster.name, folder, is_pattern=True) or fallback
    if not key:
        raise NoKeyError(
            f"cluster {cluster.name} has no API key: give key, keyFile or keyEnv for the cluster or for the fleet"
        )
    try:
        return checked_key(key, f"cluster {cluster.name}")
    except ConfigurationError as error:
        raise NoKeyError(str(error)) from error


def _read(where: Keyed, name: str, folder: Path, *, is_pattern: bool) -> str:
    def fill(text: str) -> str:
        return text.replace("{name}", name) if is_pattern else text

    if where.key_file:
        path = folder / fill(where.key_file)
        try:
            return path.read_text().strip()
        except OSError as error:
            raise NoKeyError(f"cluster {name}: {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise NoKeyError(f"cluster {name}: {path}: this is no text, and no API key") from error
    if where.key_env:
        variable = where.key_env.replace("{name}", name.upper().replace("-", "_")) if is_pattern else where.key_env
        if not os.environ.get(variable):
            raise NoKeyError(f"cluster {name}: the environment variable {variable} is not set")
        return os.environ[variable]
    return fill(where.key)


async def run_fleet(
    fleet: Fleet,
    client_of: Callable[[FleetCluster], FleetClient],
    stop: asyncio.Event,
    *,
    state_dir: Path | None = None,
    stagger: float | None = None,
) -> Sequence[str]:
    """Run an agent for each cluster until ``stop``; return the clusters whose session was superseded.

    Agents start spread over ``stagger`` seconds. A superseded agent ends alone; the call ends early when all are superseded.
    Raises RuntimeRefusedError when another process uses the records in ``state_dir``.
    """
    spread = min(_MOST_STAGGER, _SECONDS_EACH * len(fleet.clusters)) if stagger is None else stagger
    superseded: list[str] = []

    def new_agent(client: FleetClient, runtime: SimulatedRuntime, cluster: FleetCluster) -> Agent:
        return Agent(client, runtime, cluster=cluster.name, use_seconds=fleet.use_seconds)

    async def run(cluster: FleetCluster) -> None:
        folder = None if state_dir is None else state_dir / cluster.name
        runtime = SimulatedRuntime(cluster, seed=fleet.seed, state_dir=folder)
        await runtime.open()
        client = client_of(cluster)
        try:
            if await _stops_within(stop, spread * draw(fleet.seed, cluster.name, "stagger")):
                return
            await run_for_ever("agent", lambda: new_agent(client, runtime, cluster).run(stop), SupersededError)
        except SupersededError as error:
            log.warning("the agent of cluster %s ends: %s", cluster.name, error)
            superseded.append(cluster.name)
        finally:
            await client.aclose()
            await runtime.close()

    try:
        async with asyncio.TaskGroup() as group:
            for cluster in fleet.clusters:
                group.create_task(run(cluster), name=f"agent-{cluster.name}")
    except* RuntimeRefusedError as errors:
        raise errors.exceptions[0] from errors
    return superseded


async def _stops_within(stop: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()
