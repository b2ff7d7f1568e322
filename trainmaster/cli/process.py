"""Shared parts of commands that start processes: options, exits with a sentence, signals, the metrics page."""

import asyncio
import logging
import os
import pwd
import signal
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Annotated

import typer

from trainmaster.protocol.states import Exit

PlainLogs = Annotated[bool, typer.Option("--plain-logs", help="Write logs for people instead of JSON lines.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, show_default=False, help="Serve metrics for Prometheus at this port; 0: a free one."
    ),
]


def need(requirement: str, *modules: str) -> None:
    """Exit with a message if one of ``modules``, which ``requirement`` installs, is missing."""
    if any(find_spec(module) is None for module in modules):
        typer.echo(f"this command needs packages that are not installed: install {requirement}", err=True)
        raise typer.Exit(Exit.MISSING_EXTRA)


def fail(message: str, code: Exit) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(code)


def serve_metrics(port: int | None, process: str, is_alive: Callable[[], bool] | None = None) -> None:
    """Serve metrics of a process without an HTTP interface of its own; with port None, nothing."""
    if port is None:
        return
    from trainmaster.metrics.exporter import start_exporter
    from trainmaster.metrics.kinds import Process

    host = os.environ.get("TRAINMASTER_METRICS_HOST", "127.0.0.1")
    try:
        exporter = start_exporter(port, Process(process), host, is_alive=is_alive)
    except OSError as error:
        raise fail(f"cannot serve metrics at {host}, port {port}: {error}", Exit.USAGE) from error
    logging.getLogger(__name__).info("serving metrics at port %d", exporter.port, extra={"port": exporter.port})


def until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a coroutine until SIGTERM or SIGINT sets its event."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, stop.set)
        await run(stop)

    if find_spec("uvloop") is not None:
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def user_ids(name: str) -> tuple[int, int]:
    """Return the ids of a user and group that members can run as; exit where that is impossible."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise fail(f"--members-as: there is no user {name!r} on this machine", Exit.USAGE) from error
    if entry.pw_uid == 0:
        raise fail(
            "--members-as: members that run as root may do anything on this machine; name another user", Exit.USAGE
        )
    if os.geteuid() != 0:
        raise fail(
            "--members-as: only root may start processes of another user; run the agent as root, or leave the option out",
            Exit.USAGE,
        )
    return entry.pw_uid, entry.pw_gid
