"""Shared parts of commands that start processes: options, exits with a sentence, signals, the metrics page."""

import asyncio
import atexit
import logging
import os
import pwd
import signal
import socket
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Annotated

import typer

from trainmaster.cli.errors import tell
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
    tell(message)
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


def check_tracing(requirement: str) -> None:
    """Exit if the environment asks for traces in a way that is not possible. ``requirement``: what to install for them."""
    from trainmaster.tracing import recording

    try:
        if recording.is_wanted(os.environ):
            recording.check(os.environ)
    except recording.TracingMissingError as error:
        raise fail(f"{error}: install {requirement}, or leave the variable out", Exit.MISSING_EXTRA) from error
    except recording.TracingError as error:
        raise fail(str(error), Exit.USAGE) from error


def start_tracing(process: str, requirement: str) -> None:
    """Record spans of this process, if the environment asks for it; exit where that is not possible."""
    from trainmaster.tracing import recording

    def count(reason: str, many: int) -> None:
        from trainmaster.metrics.definitions import dropped_spans

        dropped_spans.labels(reason).inc(many)

    check_tracing(requirement)
    if recording.set_up(process, count):
        atexit.register(recording.shut_down)
        logging.getLogger(__name__).info("spans are exported")


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once and silently, until its command handles signals itself.

    For the start of commands that have nothing to clean up yet; Python's own handler would raise an error at any place.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def port_obstacle(host: str, port: int) -> str | None:
    """Return why nothing can listen at an address now, or None."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def until_stopped(run: Callable[[asyncio.Event], Awaitable[None]], *, keeps_unread: bool = False) -> None:
    """Run a coroutine until SIGTERM or SIGINT sets its event.

    ``keeps_unread``: what a TLS connection has received is read to its end though its peer has closed it. uvloop drops that where
    reading is paused at that moment (its issue 661), so Python's own loop is used.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, stop.set)
        await run(stop)

    end_at_interrupt()
    try:
        if find_spec("uvloop") is not None and not keeps_unread:
            import uvloop

            uvloop.run(main())
        else:
            asyncio.run(main())
    finally:
        # The loop leaves Python's own handler behind, which would write a stack trace while the interpreter ends.
        end_at_interrupt()


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
