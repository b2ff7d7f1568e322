"""``trainmaster agent``: runs the agent of a local, simulated or Kubernetes cluster."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster import process_logs
from trainmaster.cli.errors import UsageError
from trainmaster.cli.process import (
    MetricsPort,
    PlainLogs,
    end_at_interrupt,
    fail,
    serve_metrics,
    start_tracing,
    until_stopped,
    user_ids,
)
from trainmaster.cli.yaml_files import read_config
from trainmaster.client.address import checked_address
from trainmaster.client.config import KEY_VARIABLE, checked_key, is_this_machine, plain_http_warning
from trainmaster.client.errors import ConfigurationError
from trainmaster.protocol.states import Exit
from trainmaster_agent.cli.aggregation import extension_apiserver
from trainmaster_agent.cli.fleet import fleet, run_agents
from trainmaster_agent.cli.submissions import submissions

log = logging.getLogger(__name__)
agent_app = typer.Typer(help="The agent of one cluster.", no_args_is_help=True)
agent_app.command("fleet")(fleet)
agent_app.command("extension-apiserver")(extension_apiserver)
agent_app.command("submissions")(submissions)


@agent_app.command("run")
def agent_run(
    url: Annotated[str, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher's api.")],
    cluster: Annotated[Path | None, typer.Option(help="YAML file that declares the local cluster's nodes.")] = None,
    simulated: Annotated[
        Path | None, typer.Option(help="YAML file that declares a fleet of simulated clusters; instead of --cluster.")
    ] = None,
    kubernetes: Annotated[
        Path | None,
        typer.Option(help="YAML file with the configuration of a Kubernetes cluster's agent; instead of --cluster."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="With --kubernetes, outside of the cluster: the kubeconfig to reach it with.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="With --kubeconfig: the context to use.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder of this agent's own records and the members' output.")
    ] = None,
    key: Annotated[
        str, typer.Option(envvar="TRAINMASTER_API_KEY", help="The agent's API key.", show_default=False)
    ] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with the agent's API key.")] = None,
    trust_submitters: Annotated[
        bool,
        typer.Option(
            "--trust-submitters",
            help="Accept an api on another machine: whoever may submit jobs there can run any command here.",
        ),
    ] = False,
    members_as: Annotated[
        str | None, typer.Option(metavar="USER", help="With --cluster, as root: the user that members run as.")
    ] = None,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Run the agent of a local cluster, whose members are processes of this machine.

    Whoever may submit jobs there runs any code as this user or, with --members-as, which needs root, as that one.

    With --simulated, run the agents of a whole fleet that exists in memory only. With --kubernetes, run a replica of the agent of a
    Kubernetes cluster: one of them acts.
    """
    end_at_interrupt()
    process_logs.set_up(json=not plain_logs)
    start_tracing("agent", "trainmaster-agent[tracing]")
    url = read_address(url)
    secret = read_secret(key_file, key)
    if kubernetes is not None:
        if simulated is not None or cluster is not None:
            raise fail("give only one of --cluster, --simulated and --kubernetes", Exit.USAGE)
        _run_on_kubernetes(kubernetes, url, secret, kubeconfig, context, metrics_port)
        return
    if kubeconfig is not None or context is not None:
        raise fail("--kubeconfig and --context are of --kubernetes; leave them out", Exit.USAGE)
    if simulated is not None and cluster is None:
        os.environ.pop("TRAINMASTER_API_KEY", None)
        serve_metrics(metrics_port, "agent")
        _until_superseded(partial(run_agents, simulated, url, secret, state_dir))
        return
    if simulated is not None or cluster is None or state_dir is None:
        raise fail("give either --cluster and --state-dir, or --simulated, or --kubernetes", Exit.USAGE)
    if not secret:
        raise fail("give the agent's API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    if not trust_submitters and not is_this_machine(url):
        raise fail(
            f"{url} is not on this machine: whoever may submit there could run any command here as this user; "
            "if all of them are trusted, add --trust-submitters",
            Exit.USAGE,
        )
    from trainmaster_agent.runtime.local.config import LocalCluster
    from trainmaster_agent.runtime.local.runtime import LocalRuntime

    try:
        declared = read_config(LocalCluster, cluster)
    except UsageError as error:
        raise fail(str(error), Exit.USAGE) from error
    os.environ.pop("TRAINMASTER_API_KEY", None)
    serve_metrics(metrics_port, "agent")
    user = None if members_as is None else user_ids(members_as)
    runtime = LocalRuntime(state_dir, declared, user)
    _run_agent(url, secret, runtime, declared.use_seconds, state_dir, measured=metrics_port is not None)


def read_address(url: str) -> str:
    """Return the dispatcher's address. Ends the process for what can be none, and warns of a key that is sent without TLS."""
    try:
        found = checked_address(url)
    except ConfigurationError as error:
        raise fail(f"--url (TRAINMASTER_URL): {error}", Exit.USAGE) from error
    if warning := plain_http_warning(found):
        log.warning("%s", warning)
    return found


def read_secret(key_file: Path | None, key: str) -> str:
    """Return the agent's key; empty where none is given. Ends the process for what cannot be a key."""
    try:
        found = key_file.read_text() if key_file is not None else key
        if key_file is None and not found.strip():
            return ""
        return checked_key(found, str(key_file or KEY_VARIABLE))
    except OSError as error:
        raise fail(f"{key_file}: {error.strerror}", Exit.USAGE) from error
    except UnicodeDecodeError as error:
        raise fail(f"{key_file}: this is no text, and no API key, which looks like tmk_...", Exit.USAGE) from error
    except ConfigurationError as error:
        raise fail(str(error), Exit.USAGE) from error


def _run_on_kubernetes(
    path: Path, url: str, secret: str, kubeconfig: Path | None, context: str | None, metrics_port: int | None
) -> None:
    if not secret:
        raise fail("give the agent's API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    from trainmaster_agent.cli.kubernetes import Pulse, read_cluster, run_kubernetes_agent
    from trainmaster_agent.kube.access import AccessError
    from trainmaster_agent.kube.lease import LeaseLostError
    from trainmaster_agent.placement.choose import PlacementUnavailableError
    from trainmaster_agent.runtime.kubernetes.config import RecordsExposedError

    config = read_cluster(path)
    os.environ.pop("TRAINMASTER_API_KEY", None)
    pulse = Pulse()
    serve_metrics(metrics_port, "agent", is_alive=pulse.is_alive)

    async def run(stop: asyncio.Event) -> None:
        try:
            await run_kubernetes_agent(
                config,
                url,
                secret,
                stop,
                kubeconfig=kubeconfig,
                context=context,
                on_renewal=_renewals(measured=metrics_port is not None),
                pulse=pulse,
            )
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    try:
        _until_superseded(run, keeps_unread=True)
    except LeaseLostError as error:
        raise fail(f"another replica of this agent has taken over: {error}", Exit.CONFLICT) from error
    except (AccessError, PlacementUnavailableError, RecordsExposedError) as error:
        raise fail(str(error), Exit.USAGE) from error


def _run_agent(url: str, secret: str, runtime: Any, use_seconds: int, state_dir: Path, *, measured: bool) -> None:
    from trainmaster.client.aio import AgentClient
    from trainmaster_agent.arrays.server import ArrayServer, listener_of_processes
    from trainmaster_agent.sync import Agent

    on_renewal = _renewals(measured=measured)

    async def run(stop: asyncio.Event) -> None:
        await runtime.open()
        client = AgentClient(url, secret)
        arrays = ArrayServer(listener_of_processes(state_dir), client)
        try:
            await Agent(client, runtime, on_renewal=on_renewal, use_seconds=use_seconds, arrays=arrays).run(stop)
        finally:
            await client.aclose()
            await runtime.close()

    _until_superseded(run)


def _renewals(*, measured: bool) -> Callable[[Any], None] | None:
    if not measured:
        return None
    from trainmaster.metrics.renewals import note_contained, note_renewal
    from trainmaster_agent.containment import observe

    observe(note_contained)
    return note_renewal


def _until_superseded(run: Callable[[asyncio.Event], Awaitable[None]], *, keeps_unread: bool = False) -> None:
    """Run an agent until it is stopped, as ``until_stopped`` does; exit when another agent has taken its place."""
    from trainmaster_agent.runtime.port import RuntimeRefusedError
    from trainmaster_agent.sync import SupersededError

    try:
        until_stopped(run, keeps_unread=keeps_unread)
    except SupersededError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
    except RuntimeRefusedError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
