"""The dispatcher's address and the API key, from flags, else the environment, else a file."""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from trainmaster.client.config import Context, config_path, plain_http_warning, write_context
from trainmaster.client.config import load as load_context

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.errors import TrainmasterError

__all__ = ["Context", "Flags", "config_path", "connect", "load", "load_context", "open_client", "write_context"]

_DEADLINE_SECONDS = 30.0
"""Seconds that a call is retried: a person sees why and may press Ctrl-C; a script has to survive an api's restart."""
_QUIET_SECONDS = 10.0
"""Seconds for which the same reason of a retry is not printed again."""
_NAMED_SECONDS = 1.0
"""The shortest pause before a retry that is named."""


@dataclass(frozen=True, slots=True)
class Flags:
    """Values of ``--url``, ``--key`` and ``--context``."""

    url: str | None = None
    key: str | None = None
    context: str | None = None


def load(flags: Flags) -> Context:
    """Return the context in use. Raises ConfigurationError that says what is missing."""
    return load_context(flags.url, flags.key, flags.context, given_as=("--url", "--key"))


def flags_of(ctx: typer.Context) -> Flags:
    return ctx.obj if isinstance(ctx.obj, Flags) else Flags()


def connect(ctx: typer.Context) -> "Client":
    """Return a client for the context in use. Raises ConfigurationError."""
    return open_client(load(flags_of(ctx)))


def open_client(context: Context) -> "Client":
    """Return a client that prints why a call is tried again, the same words at most every ten seconds. Raises ConfigurationError."""
    from trainmaster.cli.output import note
    from trainmaster.client.core import Retries
    from trainmaster.client.errors import CutError
    from trainmaster.client.http import Client
    from trainmaster.client.wire import check_plain

    if warning := plain_http_warning(context.url):
        note(warning)
    is_checked = False
    printed_at: dict[str, float] = {}

    def tell_retry(error: "TrainmasterError", seconds: float) -> None:
        nonlocal is_checked
        if isinstance(error, CutError) and not is_checked:
            is_checked = True
            check_plain(context.url)
        now = time.monotonic()
        if now - printed_at.get(str(error), -math.inf) >= _QUIET_SECONDS:
            printed_at[str(error)] = now
            note(f"{error}; trying again" + (f" in {seconds:.0f} s" if seconds >= _NAMED_SECONDS else ""))

    return Client(context.url, context.key, retries=Retries(deadline_seconds=_DEADLINE_SECONDS), on_retry=tell_retry)
