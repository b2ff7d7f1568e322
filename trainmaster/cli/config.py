"""The dispatcher's address and the API key, from flags, else the environment, else a file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from trainmaster.client.config import Context, config_path, plain_http_warning, write_context
from trainmaster.client.config import load as load_context

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.errors import TrainmasterError

__all__ = ["Context", "Flags", "config_path", "connect", "load", "open_client", "write_context"]

_DEADLINE_SECONDS = 30.0
"""Seconds that a call is retried: a person sees each retry and may press Ctrl-C; a script has to survive an api's restart."""


@dataclass(frozen=True, slots=True)
class Flags:
    """Values of ``--url`` and ``--key`` or their environment variables."""

    url: str | None = None
    key: str | None = None


def load(flags: Flags) -> Context:
    """Return the context in use. Raises ConfigurationError that says what is missing."""
    return load_context(flags.url, flags.key, given_as=("--url", "--key"))


def connect(ctx: typer.Context) -> "Client":
    """Return a client for the context in use. Raises ConfigurationError."""
    return open_client(load(ctx.obj if isinstance(ctx.obj, Flags) else Flags()))


def open_client(context: Context) -> "Client":
    from trainmaster.client.core import Retries
    from trainmaster.client.http import Client

    if warning := plain_http_warning(context.url):
        from trainmaster.cli.output import note

        note(warning)
    return Client(context.url, context.key, retries=Retries(deadline_seconds=_DEADLINE_SECONDS), on_retry=_tell_retry)


def _tell_retry(error: "TrainmasterError", seconds: float) -> None:
    from trainmaster.cli.output import note

    note(f"{error}; trying again in {seconds:.1f} s")
