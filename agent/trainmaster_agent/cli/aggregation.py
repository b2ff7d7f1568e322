"""``trainmaster agent extension-apiserver``: the dispatcher's Kubernetes API beside a cluster's own."""

import asyncio
import ssl
from pathlib import Path
from typing import Annotated

import typer

from trainmaster import process_logs
from trainmaster.cli.process import PlainLogs, end_at_interrupt, fail, until_stopped
from trainmaster.protocol.states import Exit
from trainmaster_agent.cli.beside_a_cluster import Context, KeyFile, Kubeconfig, Url, credentials


def extension_apiserver(
    url: Url,
    tls_certificate: Annotated[
        Path, typer.Option(help="File with the certificate of this server, PEM; a new one in its place is used, too.")
    ],
    tls_key: Annotated[Path, typer.Option(help="File with its private key, PEM.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - in a pod
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8443,
    key: Annotated[
        str,
        typer.Option(
            envvar="TRAINMASTER_API_KEY",
            help="An API key that may act on behalf of the cluster's users.",
            show_default=False,
        ),
    ] = "",
    key_file: KeyFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Serve the dispatcher's Kubernetes API as an extension API server of a cluster.

    By an APIService the cluster's API server sends it requests for the group trainmaster.dev. Each needs a right of its user by the
    cluster's RBAC. Any number may run.
    """
    end_at_interrupt()
    process_logs.set_up(json=not plain_logs)
    url, secret = credentials(url, key_file, key)
    from trainmaster_agent.aggregation.server import DispatcherAccess, ExtensionServer, Listening
    from trainmaster_agent.kube.access import open_access
    from trainmaster_agent.kube.client import ApiServer
    from trainmaster_agent.kube.errors import KubeError

    async def run(stop: asyncio.Event) -> None:
        async with ApiServer(await open_access(kubeconfig, context)) as api:
            server = ExtensionServer(
                api, DispatcherAccess(url, secret), Listening(host, port, tls_certificate, tls_key)
            )
            await server.run(stop)

    try:
        until_stopped(run)
    except ssl.SSLError as error:
        raise fail(f"cannot use {tls_certificate} with {tls_key}: {error}", Exit.USAGE) from error
    except OSError as error:
        raise fail(f"cannot serve: {error}", Exit.USAGE) from error
    except KubeError as error:
        raise fail(f"the cluster's API server: {error}", Exit.USAGE) from error
