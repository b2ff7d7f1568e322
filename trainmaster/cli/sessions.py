"""``shell``, ``jupyter``, ``vscode``, ``sessions`` and ``open``: jobs to work in, from their submission to their end."""

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config, filters, member_streams, overrides, run, watch
from trainmaster.cli.errors import UsageError
from trainmaster.cli.jobs import JobId
from trainmaster.cli.output import Format, OutputOption, age, clean, data_of, lasted, note, now, print_data, print_table
from trainmaster.cli.submit import send
from trainmaster.protocol.states import JobState

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.sessions import SessionView

_LOOK_SECONDS = 1.0
_STAY_SECONDS = 3.0
_SERVER_SECONDS = 300.0
"""The longest time for which a server of a session is waited for."""
_WAITING = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
"""The first process of a shell's session: it waits, and ends at once when it is told to."""
_SHELL = "command -v bash > /dev/null && exec bash -l || exec sh -l"
_JUPYTER = (
    'exec jupyter lab --ip 127.0.0.1 --port "$SESSION_PORT" --no-browser --allow-root --ServerApp.port_retries=0'
    " --ServerApp.allow_remote_access=True"
)
_VSCODE = (
    'exec openvscode-server --host 127.0.0.1 --port "$SESSION_PORT" --connection-token "$SESSION_TOKEN"'
    " --accept-server-license-terms"
)
_HOME = "/home/session"

Idle = Annotated[
    str | None,
    typer.Option("--idle-timeout", metavar="TIME", help="Time without use after which it is ended.", show_default="1h"),
]
Life = Annotated[
    str | None,
    typer.Option(
        "--longest-life", metavar="TIME", help="Time after which it is ended in any case.", show_default="12h"
    ),
]
Home = Annotated[
    str | None,
    typer.Option(
        metavar="CLAIM[:PATH]",
        help=f"PersistentVolumeClaim for the home folder, by default at {_HOME}.",
        show_default=False,
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Let the session go on when this command ends.")]
LocalPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of this machine; by default the same one, or any that is free."),
]
RemotePort = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the member at which it listens.")]


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_interspersed_args": False})(shell)
    for program in _PROGRAMS:
        app.command(program.name, help=program.help)(_served(program))
    app.command()(sessions)
    app.command("open")(open_port)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A session to be started: what its first process runs, and the options of the command."""

    name: str
    command: Sequence[str]
    changes: overrides.Overrides
    idle: str | None = None
    life: str | None = None
    home: str | None = None
    env: Mapping[str, str] | None = None
    ports: Sequence[Mapping[str, Any]] = ()

    def spec(self) -> dict[str, Any]:
        """Return the specification. Raises UsageError."""
        template: dict[str, Any] = {"command": list(self.command)}
        if self.env:
            template["env"] = dict(self.env)
        if self.home is not None:
            claim, _, path = self.home.partition(":")
            template |= {"volumes": [{"path": path or _HOME, "claim": claim}], "workingDir": path or _HOME}
            template["env"] = {**template.get("env", {}), "HOME": path or _HOME}
        terms: dict[str, Any] = {}
        if self.ports:
            terms["ports"] = list(self.ports)
        terms |= {
            name: text for name, text in (("idleTimeout", self.idle), ("longestLife", self.life)) if text is not None
        }
        role = {"name": "main", "template": template}
        first = {"kind": "Job", "name": self.name, "session": terms, "roles": [role]}
        return run.in_order(self.changes.applied(first))


def shell(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="What runs in the terminal; by default a shell.", show_default=False),
    ] = None,
    gpus: overrides.Gpus = None,
    cpus: overrides.Cpus = None,
    memory: overrides.Memory = None,
    image: overrides.Image = None,
    queue: overrides.Queue = None,
    name: overrides.JobName = None,
    priority_class: overrides.PriorityClass = None,
    label: overrides.LabelPairs = None,
    env: overrides.EnvPairs = None,
    kind: overrides.Kinds = None,
    cluster: overrides.Clusters = None,
    home: Home = None,
    idle_timeout: Idle = None,
    longest_life: Life = None,
    keep: Keep = False,
) -> None:
    """Start a session and open a terminal in it. It is cancelled when the terminal ends, unless with --keep.

    Its exit code is that of the terminal. Where the connection is cut, the session goes on.
    """
    changes = overrides.overrides(
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        image=image,
        queue=queue or os.environ.get("TRAINMASTER_QUEUE") or None,
        name=name,
        priority_class=priority_class,
        labels=label,
        env=env,
        kinds=kind,
        clusters=cluster,
    )
    wanted = _Wanted("shell", ("sh", "-c", _WAITING), changes, idle_timeout, longest_life, home)
    with config.connect(ctx) as client:
        job = _start(client, wanted)
        with _ending(client, job, again=f"exec -it {job} -- sh", keep=keep):
            _wait_until_running(client, job)
            _tell_warnings(ctx, job)
            member_streams.run_in_terminal(ctx, job, command or ("sh", "-c", _SHELL))


def run_in_session(ctx: typer.Context, changes: overrides.Overrides, name: str, command: Sequence[str]) -> None:
    """Run a command in a terminal, in a session of its own, which is cancelled when it ends. Raises UsageError."""
    with config.connect(ctx) as client:
        job = _start(client, _Wanted(name, ("sh", "-c", _WAITING), changes))
        with _ending(client, job, again=f"exec -it {job} -- sh", keep=False):
            _wait_until_running(client, job)
            _tell_warnings(ctx, job)
            member_streams.run_in_terminal(ctx, job, tuple(command))


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that browsers use: ``server`` is its command of sh, ``path`` its first page, with the token in it."""

    name: str
    help: str
    port: int
    server: str
    path: str
    token_variables: tuple[str, ...] = ("SESSION_TOKEN",)


_PROGRAMS = (
    _Program(
        "jupyter",
        "Start a session with JupyterLab, and print the address to open. It is cancelled with Ctrl-C, unless with --keep.\n\n"
        "The image, or on local clusters the machine, has to have the program jupyter.",
        8888,
        _JUPYTER,
        "/lab?token={token}",
        ("SESSION_TOKEN", "JUPYTER_TOKEN"),
    ),
    _Program(
        "vscode",
        "Start a session with an editor for browsers, and print the address to open. It is cancelled with Ctrl-C, unless with"
        " --keep.\n\nBy default it is openvscode-server, which the image, or on local clusters the machine, has to have.",
        3000,
        _VSCODE,
        "/?tkn={token}",
    ),
)


def _served(program: _Program) -> Callable[..., None]:
    """Return the command that starts a session with a program for browsers."""

    def command(
        ctx: typer.Context,
        gpus: overrides.Gpus = None,
        cpus: overrides.Cpus = None,
        memory: overrides.Memory = None,
        image: overrides.Image = None,
        queue: overrides.Queue = None,
        name: overrides.JobName = None,
        priority_class: overrides.PriorityClass = None,
        label: overrides.LabelPairs = None,
        env: overrides.EnvPairs = None,
        kind: overrides.Kinds = None,
        cluster: overrides.Clusters = None,
        home: Home = None,
        idle_timeout: Idle = None,
        longest_life: Life = None,
        keep: Keep = False,
        port: RemotePort = program.port,
        local_port: LocalPort = None,
        serve: Annotated[
            str | None,
            typer.Option(
                "--command",
                help="Command of sh that serves at port SESSION_PORT, with the token SESSION_TOKEN.",
                show_default=False,
            ),
        ] = None,
    ) -> None:
        changes = overrides.overrides(
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            image=image,
            queue=queue or os.environ.get("TRAINMASTER_QUEUE") or None,
            name=name,
            priority_class=priority_class,
            labels=label,
            env=env,
            kinds=kind,
            clusters=cluster,
        )
        token = secrets.token_hex(16)
        variables = {"SESSION_PORT": str(port)} | dict.fromkeys(program.token_variables, token)
        server = ("sh", "-c", serve or program.server)
        path = program.path.format(token=token)
        if serve is not None:
            path = f"/?{path.partition('?')[2]}"  # another server has its first page there
        ports = [{"name": "web", "port": port, "path": path}]
        wanted = _Wanted(program.name, server, changes, idle_timeout, longest_life, home, variables, ports)
        _serve(ctx, wanted, port, local_port, path, keep=keep)

    return command


def _serve(ctx: typer.Context, wanted: _Wanted, port: int, local: int | None, path: str, *, keep: bool) -> None:
    """Start a session with a server, and forward a port of this machine to it until Ctrl-C, or until the session has ended."""
    with config.connect(ctx) as client:
        job = _start(client, wanted)
        with _ending(client, job, again=f"port-forward {job} {port}", keep=keep):
            _wait_until_running(client, job)
            connect = member_streams.connector(ctx, job)
            _wait_for_server(client, job, connect, port)
            listener = _listener(port, local)
            member_streams.forward_connections(listener, port, connect)
            print(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
            _tell_warnings(ctx, job)
            note("until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                _stay(client, job)
            listener.close()


def _start(client: "Client", wanted: _Wanted) -> str:
    """Submit a session, and return its id. Raises ProblemError."""
    from trainmaster.protocol.documents import Document

    spec = wanted.spec()
    if "queue" not in spec:
        spec = run.in_order(spec | {"queue": run.only_queue(client)})
    run.check_options(spec)
    (job,) = send(client, [Document(spec, "")])
    note(f"session {job}")
    return job


@contextmanager
def _ending(client: "Client", job: str, *, again: str, keep: bool) -> Iterator[None]:
    """Cancel a session when the block ends, unless it is kept or the connection to it was cut."""
    from trainmaster.protocol.errors import TrainmasterError, UnreachableError

    try:
        yield
    except UnreachableError:
        keep = True
        raise
    finally:
        if keep:
            note(f"{job} goes on; come back with: trainmaster {again}; end it with: trainmaster cancel {job}")
        else:
            with contextlib.suppress(TrainmasterError):
                client.cancel(job)


def _wait_until_running(client: "Client", job: str) -> None:
    """Wait until a session runs, and show why it waits. Exits where it ends before."""
    said = ""
    while True:
        item = client.job(job)
        if item.state is JobState.RUNNING:
            return
        if item.state.is_terminal:
            watch.print_ended(item)
            raise typer.Exit(watch.exit_for(item))
        if item.state is not JobState.DISPATCHED:
            sentence = clean(client.why(job).sentence)
            if sentence != said:
                said = sentence
                note(f"it waits: {sentence}")
        time.sleep(_LOOK_SECONDS)


def _wait_for_server(client: "Client", job: str, connect: member_streams.Connect, port: int) -> None:
    """Wait until something answers at a port of a session. Exits where it ends before. Raises UsageError after some minutes."""
    from trainmaster.protocol.errors import ProblemError, UnreachableError

    until = time.monotonic() + _SERVER_SECONDS
    while True:
        try:
            connect(port).close()
        except ProblemError as error:
            why = error.detail
        except UnreachableError as error:
            why = str(error)
        else:
            return
        item = client.job(job)
        if item.state.is_terminal:
            watch.print_ended(item)
            raise typer.Exit(watch.exit_for(item))
        if time.monotonic() > until:
            raise UsageError(f"nothing answers at port {port} of {job}: {why}; see: trainmaster logs {job}")
        time.sleep(_LOOK_SECONDS)


def _listener(port: int, local: int | None) -> socket.socket:
    """Return a listener at a local port: the wanted one, or the member's, or where that is in use any that is free."""
    if local is not None:
        return member_streams.listen("127.0.0.1", local)
    try:
        return member_streams.listen("127.0.0.1", port)
    except UsageError:
        return member_streams.listen("127.0.0.1", 0)


def _stay(client: "Client", job: str) -> None:
    """Wait until a session has ended, and exit with the code for that. A dispatcher that is away is waited for."""
    from trainmaster.protocol.errors import UnreachableError

    while True:
        try:
            item = client.job(job)
        except UnreachableError as error:
            note(f"{error}; trying again")
            continue
        if item.state.is_terminal:
            watch.print_ended(item)
            raise typer.Exit(watch.exit_for(item))
        time.sleep(_STAY_SECONDS)


def _tell_warnings(ctx: typer.Context, job: str) -> None:
    """Print warnings before the end of a session as they come, in the background; a terminal in use needs its lines ended its way."""

    def tell() -> None:
        from trainmaster.protocol.errors import TrainmasterError

        with contextlib.suppress(TrainmasterError), config.connect(ctx) as client:
            for item in client.watch(job):
                if getattr(item, "kind", "") == "session.warning":
                    message = clean(str(getattr(item, "message", "")))
                    print(f"\r\n{message}\r\n", end="", file=sys.stderr, flush=True)

    threading.Thread(target=tell, name="session-warnings", daemon=True).start()


def sessions(
    ctx: typer.Context,
    everybody: Annotated[bool, typer.Option("-A", "--all", help="Of all users.")] = False,
    queue: filters.QueueOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show your sessions that have not ended, and when each ends by itself."""
    with config.connect(ctx) as client:
        user = None if everybody else client.whoami().name
        found = client.sessions(queue=queue, user=user, limit=1000)
        if output.is_data:
            print_data([data_of(one) for one in found], output)
            return
        if not found:
            note("there is no session; start one with: trainmaster shell")
            return
        columns = ["JOB", "STATE", "CLUSTER", "STARTED", "IDLE", "ENDS IN", "PORTS"]
        if everybody or output is Format.WIDE:
            columns += ["QUEUE", "BY"]
        moment = now()
        rows = [_row(one, moment) for one in found]
        print_table(columns, [row[: len(columns)] for row in rows])


def _row(one: "SessionView", moment: "datetime") -> list[str]:
    """Return the cells of a session."""
    idle = None if one.active_at is None else (moment - one.active_at).total_seconds()
    ends = min((end for end in (one.idle_ends_at, one.life_ends_at) if end is not None), default=None)
    left = None if ends is None else max(0.0, (ends - moment).total_seconds())
    ports = ", ".join(f"{port.name}={port.port}" for port in one.ports)
    started = age(one.began_at, moment)
    return [
        *(one.job, one.state, one.cluster or "-", started, lasted(idle), lasted(left), ports or "-"),
        *(one.queue, one.user or "-"),
    ]


def open_port(
    ctx: typer.Context,
    job: JobId,
    port: Annotated[
        str | None,
        typer.Argument(help="Number or name of the port; by default the session's first one.", show_default=False),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in the browser of this machine, too.")] = False,
) -> None:
    """Print an address at which a browser opens a port of a session, through the dispatcher. It counts once, and for a minute."""
    with config.connect(ctx) as client:
        link = client.session_link(job, port or _first_port(client, job))
    print(link.url)
    if browser:
        import webbrowser

        webbrowser.open(link.url)


def _first_port(client: "Client", job: str) -> str:
    """Return the name of the first named port of a session. Raises UsageError where there is none."""
    terms = (client.job(job).spec or {}).get("session") or {}
    names = [str(one["name"]) for one in terms.get("ports") or ()]
    if not names:
        raise UsageError(f"which port? {job} has no named ones: trainmaster open {job} PORT")
    return names[0]
