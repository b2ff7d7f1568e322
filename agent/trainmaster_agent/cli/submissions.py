"""``trainmaster agent submissions``: objects of a cluster that name the dispatcher as their manager become jobs."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from trainmaster import process_logs
from trainmaster.cli.process import MetricsPort, PlainLogs, end_at_interrupt, fail, serve_metrics, until_stopped
from trainmaster.protocol.states import Exit


def submissions(
    url: Annotated[str, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher's api.")],
    cluster: Annotated[
        str, typer.Option(help="Name of this cluster, by which its jobs are known; it must stay the same.")
    ],
    key: Annotated[
        str,
        typer.Option(
            envvar="TRAINMASTER_API_KEY",
            help="An API key of the role user, for the queues that the cluster may submit to.",
            show_default=False,
        ),
    ] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with that API key.")] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Outside of the cluster: the kubeconfig to reach its API server with.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="With --kubeconfig: the context to use.")] = None,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Submit the objects of a cluster whose managedBy is trainmaster.dev/dispatcher, and write the status of their jobs to them.

    It keeps nothing: it may end and start again at any time, and more than one does no harm.
    """
    end_at_interrupt()
    process_logs.set_up(json=not plain_logs)
    from trainmaster_agent.cli.run import read_address, read_secret

    url, secret = read_address(url), read_secret(key_file, key)
    if not secret:
        raise fail("give the API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    os.environ.pop("TRAINMASTER_API_KEY", None)
    from trainmaster_agent.kube.access import KeyAccess, open_access
    from trainmaster_agent.kube.client import ApiServer
    from trainmaster_agent.kube.errors import KubeError
    from trainmaster_agent.submissions.controller import Submissions

    serve_metrics(metrics_port, "agent")

    async def run(stop: asyncio.Event) -> None:
        access = await open_access(kubeconfig, context)
        async with ApiServer(access) as local, ApiServer(KeyAccess(url.rstrip("/"), secret)) as dispatcher:
            await Submissions(local, dispatcher, cluster).run(stop)

    try:
        until_stopped(run)
    except KubeError as error:
        raise fail(f"the cluster's API server: {error}", Exit.USAGE) from error
