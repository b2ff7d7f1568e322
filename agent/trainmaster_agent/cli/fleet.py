"""Simulated fleets: ``agent fleet`` writes a fleet's document, ``agent run --simulated`` runs its agents."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import yaml

from trainmaster.cli.fleet_file import read_fleet
from trainmaster.fake_cluster.generate import fleet_of_openb, make_fleet, tenants_of
from trainmaster.protocol.states import ClusterKind, Exit


async def run_agents(path: Path, url: str, secret: str, state_dir: Path | None, stop: asyncio.Event) -> None:
    """Run the agents of the fleet in the file ``path`` until ``stop``; ``secret`` is for clusters that name no key.

    Raises SupersededError when all agents were superseded, and RuntimeRefusedError.
    """
    from trainmaster.client.pool import AgentPool
    from trainmaster_agent.runtime.simulated.fleet import NoKeyError, read_key, run_fleet
    from trainmaster_agent.sync import SupersededError

    declared = read_fleet(path)
    try:
        keys = {cluster.name: read_key(declared, cluster, path.parent, secret) for cluster in declared.clusters}
    except NoKeyError as error:
        raise _refuse(f"{path}: {error}") from error
    pool = AgentPool(url)
    superseded = await run_fleet(declared, lambda cluster: pool.client(keys[cluster.name]), stop, state_dir=state_dir)
    if len(superseded) == len(declared.clusters):
        raise SupersededError("newer sessions have taken over all clusters of the fleet")


def fleet(
    clusters: Annotated[int, typer.Option(min=1, max=10_000, help="Number of clusters.")] = 3,
    nodes: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of nodes of each cluster; edge clusters have a tenth.")
    ] = 50,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same fleet.")] = 0,
    mix: Annotated[str, typer.Option(help="Shares of the kinds of clusters.")] = "private=6,public=3,edge=1",
    openb: Annotated[
        Path | None, typer.Option(help="Node list (CSV: sn,cpu_milli,memory_mib,gpu,model) to make one cluster from.")
    ] = None,
    tenants: Annotated[
        bool, typer.Option("--tenants", help="Write the clusters and a queue for `trainmaster apply -f` instead.")
    ] = False,
) -> None:
    """Write the document of a simulated fleet to stdout."""
    try:
        if openb is not None:
            with openb.open(newline="") as lines:
                made = fleet_of_openb(lines)
        else:
            made = make_fleet(clusters, nodes, seed, _parse_mix(mix))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise _refuse(f"{openb}: {error}" if openb is not None else str(error)) from error
    documents = tenants_of(made) if tenants else [made.to_wire()]
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, width=120), nl=False)


def _parse_mix(text: str) -> dict[ClusterKind, int]:
    mix = {}
    for item in text.split(","):
        kind, _, part = item.strip().partition("=")
        if kind not in set(ClusterKind) or not part.isdigit():
            raise ValueError(f"--mix is written as private=6,public=3,edge=1; {item!r} is not part of that")
        mix[ClusterKind(kind)] = int(part)
    return mix


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(Exit.USAGE)
