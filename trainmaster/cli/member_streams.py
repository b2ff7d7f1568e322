"""``exec``, ``attach`` and ``port-forward``: streams to members, wherever they run."""

import contextlib
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trainmaster.cli import completion, config, errors, talk
from trainmaster.cli.output import note
from trainmaster.client.config import plain_http_warning

if TYPE_CHECKING:
    from trainmaster.client.web_sockets import BlockingLine

_MEMBER = re.compile(r"(?P<job>[^/]+)(?:/(?P<role>[a-z0-9]([-a-z0-9]*[a-z0-9])?)-(?P<index>[0-9]{1,6}))?")
_PORT = re.compile(r"(?:(?P<local>[0-9]{1,5})?:)?(?P<remote>[0-9]{1,5})")
_MOST_PORTS = 65_535
_PIECE = 65_536
_AWAY_SECONDS = 30.0
"""Seconds for which a connection to a forwarded port waits for the dispatcher."""
_PAUSE_SECONDS = 0.3

Member = Annotated[
    str,
    typer.Argument(
        metavar="ID[/ROLE-INDEX]",
        show_default=False,
        autocompletion=completion.jobs,
        help="The job, and the member of it.",
    ),
]
Stdin = Annotated[bool, typer.Option("-i", "--stdin", help="Pass standard input on.")]
Tty = Annotated[bool, typer.Option("-t", "--tty", help="Give the command a terminal.")]
Container = Annotated[
    str | None, typer.Option("-c", "--container", help="Container of the member's pod; the first one by default.")
]
Attempt = Annotated[int | None, typer.Option(min=1, help="The run with this number; the newest by default.")]


def register(app: typer.Typer) -> None:
    # Everything behind ``--`` is the command, also what looks like an option.
    app.command("exec")(exec_)
    app.command()(attach)
    app.command("port-forward")(port_forward)


class _NamedMember(NamedTuple):
    """A member as the user named it."""

    job: str
    query: list[tuple[str, str]]


def _place_of(member: str, attempt: int | None) -> _NamedMember:
    """Parse ``ID`` or ``ID/ROLE-INDEX``. Raises UsageError."""
    found = _MEMBER.fullmatch(member)
    if found is None:
        raise errors.UsageError(f"{member!r} names no member; it looks like bert-7k2p9xq or bert-7k2p9xq/worker-0")
    query = [(name, found[name]) for name in ("role", "index") if found[name]]
    return _NamedMember(found["job"], query + ([("attempt", str(attempt))] if attempt else []))


def exec_(
    ctx: typer.Context,
    member: Member,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", show_default=False)],
    stdin: Stdin = False,
    tty: Tty = False,
    container: Container = None,
    attempt: Attempt = None,
) -> None:
    """Run a command in a running member, wherever it runs; its exit code is that of this command.

    Without a member: in the job's first one.
    """
    place = _place_of(member, attempt)
    query = [*place.query, *(("command", one) for one in command), *_flags(stdin=stdin, tty=tty, container=container)]
    talk.Talk(_opener(ctx, f"{place.job}/exec", query), talk.OneConnection(), stdin=stdin, tty=tty).run()


def attach(
    ctx: typer.Context,
    member: Member,
    stdin: Stdin = False,
    tty: Tty = False,
    container: Container = None,
    attempt: Attempt = None,
) -> None:
    """Attach to the first process of a running member: see its output from now on, and with -i give it input."""
    place = _place_of(member, attempt)
    query = [*place.query, *_flags(stdin=stdin, tty=tty, container=container)]
    position = talk.AttachedPosition(place.job, _end_check(ctx, place.job))
    talk.Talk(_opener(ctx, f"{place.job}/attach", query), position, stdin=stdin, tty=tty).run()


def port_forward(
    ctx: typer.Context,
    member: Member,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]PORT...", show_default=False, help="Port of the member; before it the local one."
        ),
    ],
    address: Annotated[str, typer.Option(help="Address of this machine to listen at.")] = "127.0.0.1",
    attempt: Attempt = None,
) -> None:
    """Connect ports of this machine to ports of a running member, until Ctrl-C."""
    place = _place_of(member, attempt)
    wanted = [_ports_of(one) for one in ports]
    connect = connector(ctx, place.job, place.query)
    listeners = [listen(address, local) for local, _ in wanted]
    for listener, (_, remote) in zip(listeners, wanted, strict=True):
        port = listener.getsockname()[1]
        typer.echo(f"{address}:{port} is connected to port {remote} of {member}")
        forward_connections(listener, remote, connect)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    for listener in listeners:
        listener.close()


def _ports_of(text: str) -> tuple[int, int]:
    """Parse ``PORT``, ``LOCAL:PORT`` or ``:PORT``, for which any free local port is taken. Raises UsageError."""
    found = _PORT.fullmatch(text)
    if found is None or not 1 <= int(found["remote"]) <= _MOST_PORTS or int(found["local"] or 0) > _MOST_PORTS:
        raise errors.UsageError(f"{text!r} is no port; it looks like 8080, 9000:8080 or :8080 (any free local port)")
    remote = int(found["remote"])
    return (int(found["local"] or 0) if ":" in text else remote), remote


Connect = Callable[[int], "BlockingLine"]
"""Connects to a port of a member. Raises ProblemError, and UnreachableError."""


def connector(ctx: typer.Context, job: str, member: Sequence[tuple[str, str]] = ()) -> Connect:
    """Return what connects to ports of a member, by default of the job's first one."""
    context = config.load(config.flags_of(ctx))

    def connect(port: int) -> "BlockingLine":
        from trainmaster.client.web_sockets import BlockingLine
        from trainmaster.protocol.member_streams import PORTS

        query = [*member, ("ports", str(port))]
        return BlockingLine.open(context.url, context.key, f"/v1/jobs/{job}/portforward", query, PORTS[:1])

    return connect


def forward_connections(listener: socket.socket, port: int, connect: Connect) -> None:
    """Connect whatever comes to a listener to a port of a member, in the background, until the listener is closed."""
    threading.Thread(target=_accept, args=(listener, port, connect), daemon=True).start()


def run_in_terminal(ctx: typer.Context, job: str, command: Sequence[str]) -> None:
    """Run a command in the first member of a job with the terminal of this one, if there is any.

    Raises typer.Exit with its exit code, and UnreachableError where the connection is lost and the command with it.
    """
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    query = [*(("command", one) for one in command), *_flags(stdin=True, tty=tty, container=None)]
    position = talk.LastingPosition(job, _end_check(ctx, job))
    talk.Talk(_opener(ctx, f"{job}/exec", query), position, stdin=True, tty=tty).run()


def listen(address: str, port: int) -> socket.socket:
    """Return a listener. Raises UsageError."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise errors.UsageError(
            f"cannot listen at {address}, port {port}: {error.strerror}; choose another local one with LOCAL:PORT"
        ) from error


def _accept(listener: socket.socket, port: int, connect: Connect) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_forward, args=(client, port, connect), daemon=True).start()


def _connected(connect: Connect, port: int) -> "BlockingLine":
    """Connect to a port of a member; wait for a dispatcher that is away for a moment. Raises TrainmasterError."""
    from trainmaster.client.core import is_passing
    from trainmaster.protocol.errors import TrainmasterError

    until = time.monotonic() + _AWAY_SECONDS
    while True:
        try:
            return connect(port)
        except TrainmasterError as error:
            if not is_passing(error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SECONDS)


def _forward(client: socket.socket, port: int, connect: Connect) -> None:
    """Copy one connection both ways. Its channels begin with the port's number, two bytes each."""
    from trainmaster.protocol.errors import TrainmasterError

    with client:
        try:
            line = _connected(connect, port)
        except TrainmasterError as error:
            note(str(error))
            return

        def send() -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(_PIECE):
                    line.send(b"\0" + data)
            line.close()

        threading.Thread(target=send, daemon=True).start()
        begun: set[int] = set()
        with contextlib.suppress(OSError):
            while (frame := line.receive()) is not None:
                channel, data = frame[0], frame[1:]
                if channel not in begun:
                    begun.add(channel)
                    data = data[2:]
                if channel == 0:
                    client.sendall(data)
                elif data:
                    note(f"port {port}: {data.decode(errors='replace').strip()}")
        if line.end:
            note(f"port {port}: {line.end}")
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        line.close()


def _flags(*, stdin: bool, tty: bool, container: str | None) -> list[tuple[str, str]]:
    flags = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    chosen = [(name, "true" if is_set else "false") for name, is_set in flags.items()]
    return chosen + ([("container", container)] if container else [])


def _opener(ctx: typer.Context, path: str, query: Sequence[tuple[str, str]]) -> talk.Open:
    """Return what connects to a command or an attached process, as often as needed."""
    context = config.load(config.flags_of(ctx))
    if warning := plain_http_warning(context.url):
        note(warning)

    def opened(position: Sequence[tuple[str, str]]) -> "BlockingLine":
        from trainmaster.client.web_sockets import BlockingLine
        from trainmaster.protocol.member_streams import COMMANDS

        return BlockingLine.open(context.url, context.key, f"/v1/jobs/{path}", [*query, *position], COMMANDS)

    return opened


def _end_check(ctx: typer.Context, job: str) -> Callable[[], bool]:
    def has_ended() -> bool:
        with config.connect(ctx) as client:
            return client.job(job).state.is_terminal

    return has_ended
