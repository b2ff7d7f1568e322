"""``trainmaster agent submissions``: objects of a cluster that name the dispatcher as their manager become jobs."""

import asyncio
from typing import Annotated

import typer

from trainmaster import process_logs
from trainmaster.cli.process import MetricsPort, PlainLogs, end_at_interrupt, fail, serve_metrics, until_stopped
from trainmaster.protocol.states import Exit
from trainmaster_agent.cli.beside_a_cluster import Context, KeyFile, Kubeconfig, Url, credentials


def submissions(
    url: Url,
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
    key_file: KeyFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Submit the objects of a cluster whose managedBy is trainmaster.dev/dispatcher, and write the status of their jobs to them.

    It keeps nothing: it may end and start again at any time, and more than one does no harm.
    """
    end_at_interrupt()
    process_logs.set_up(json=not plain_logs)
    url, secret = credentials(url, key_file, key)
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
