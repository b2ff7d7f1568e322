"""Options of the processes that stand between one cluster's API server and the dispatcher."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.process import fail
from trainmaster.protocol.states import Exit

Url = Annotated[str, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher's api.")]
KeyFile = Annotated[Path | None, typer.Option(help="File with that API key.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Outside of the cluster: the kubeconfig to reach its API server with.")
]
Context = Annotated[str | None, typer.Option(help="With --kubeconfig: the context to use.")]


def credentials(url: str, key_file: Path | None, key: str) -> tuple[str, str]:
    """Return the dispatcher's address and the API key. Ends the process for what can be neither."""
    from trainmaster_agent.cli.run import read_address, read_secret

    address, secret = read_address(url), read_secret(key_file, key)
    if not secret:
        raise fail("give the API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    os.environ.pop("TRAINMASTER_API_KEY", None)
    return address, secret
