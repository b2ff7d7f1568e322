"""Commands that start one process each: ``serve``, ``scheduler``, ``worker``, ``beat``, ``agent run``, ``migrate``, ``admin``."""

import asyncio
import gc
import logging
import os
import pwd
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer
import yaml
from pydantic import ValidationError

from trainmaster import process_logs
from trainmaster.cli.fleet import fleet, run_agents
from trainmaster.dispatcher.api.audience import Audience
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import Exit

log = logging.getLogger(__name__)

agent_app = typer.Typer(help="The agent of one cluster.", no_args_is_help=True)
agent_app.command("fleet")(fleet)
admin_app = typer.Typer(help="Work on the store directly; needs DATABASE_URL.", no_args_is_help=True)

Made = TypeVar("Made")

_GC_YOUNG = 20_000

PlainLogs = Annotated[bool, typer.Option("--plain-logs", help="Write logs for people instead of JSON lines.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(serve)
    app.command()(scheduler)
    app.command()(worker)
    app.command()(beat)
    app.command()(migrate)
    app.add_typer(agent_app, name="agent")
    app.add_typer(admin_app, name="admin")


MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, show_default=False, help="Serve metrics for Prometheus at this port; 0: a free one."
    ),
]


def need(extra: str, *modules: str) -> None:
    """Exit with a clear line when an extra is not installed."""
    if any(find_spec(module) is None for module in modules):
        typer.echo(f"this command needs more packages: install trainmaster[{extra}]", err=True)
        raise typer.Exit(Exit.MISSING_EXTRA)


def fail(message: str, code: Exit) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(code)


def _settings() -> Any:
    need("dispatcher", "sqlalchemy", "fastapi", "redis", "alembic", "psycopg")
    from trainmaster.dispatcher.services.settings import Settings

    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise fail(f"setting TRAINMASTER_{name}: {first['msg']}", Exit.USAGE) from error
    if not settings.database_url:
        raise fail(
            "set DATABASE_URL, for example postgresql://user@host/trainmaster; or try 'trainmaster up'", Exit.USAGE
        )
    return settings


def _await_store(settings: Any, what: Callable[[], Made], name: str = "Postgres") -> Made:
    """Do something with a store, waiting for it as long as the settings say; exits when it stays away."""
    ends = time.monotonic() + settings.start_retry_seconds
    pause = 0.2
    while True:
        try:
            return what()
        except ProblemError as error:
            if error.code is not Code.STORE_AWAY:
                raise
            left = ends - time.monotonic()
            if left <= 0:
                message = f"{name} did not answer for {settings.start_retry_seconds:.0f} s: {_root(error)}; giving up"
                raise fail(message, Exit.STORE_AWAY) from error
            typer.echo(f"waiting for {name} ({_root(error)}); giving up in {left:.0f} s", err=True)
            time.sleep(min(pause, max(left, 0)))
            pause = min(pause * 2, 5)


def _root(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause).strip().splitlines()[0]


def _check_schema(settings: Any) -> None:
    """Wait for the store and see that this code runs on its schema."""
    from trainmaster.dispatcher.store.migrate import current_schema

    schema = _await_store(settings, lambda: current_schema(settings.database_url))
    if not schema.serves:
        raise fail(schema.obstacle, Exit.CONFLICT if schema.is_newer else Exit.USAGE)
    if schema.is_newer:
        log.warning(
            "the schema is at revision %s of a newer release; this one, %s, runs on it", schema.revision, schema.release
        )


def _check_soft_state(settings: Any) -> None:
    """Wait for Redis where one is set: going on without it is for outages, not for a wrong address."""
    from trainmaster.dispatcher.store.soft import ping

    if settings.redis_url:
        try:
            _await_store(settings, lambda: ping(settings.redis_url), "Redis")
        except ValueError as error:
            raise fail(f"setting REDIS_URL: {error}", Exit.USAGE) from error


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8470,
    audience: Annotated[
        Audience,
        typer.Option("--for", help="Whom it serves, so that apis for users and for agents can be scaled apart."),
    ] = Audience.ALL,
    plain_logs: PlainLogs = False,
) -> None:
    """Run an api: the REST interface for users and agents. Any number may run behind one address."""
    settings = _settings()
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_soft_state(settings)
    import uvicorn

    from trainmaster.dispatcher.api.app import make_app
    from trainmaster.dispatcher.http_connections import fit_open_files, server_config

    config = server_config(
        make_app(settings, audience),
        fit_open_files(settings.connection_bounds),
        host=host,
        port=port,
        loop="uvloop",
        lifespan="on",
        timeout_graceful_shutdown=2,
        backlog=2048,
    )
    # The collector would look at all modules again and again, and each time hold up all calls for as long as ten of them take.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, 20, 50)
    # uvicorn raises the signal once more when it has ended all calls; whoever stopped the process shall see success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.Server(config).run()


def scheduler(metrics_port: MetricsPort = None, plain_logs: PlainLogs = False) -> None:
    """Run a scheduler. One leads, any others stand by and take over within seconds."""
    settings = _settings()
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_soft_state(settings)
    from trainmaster.dispatcher.scheduler.loop import Scheduler
    from trainmaster.dispatcher.scheduler.reads import CannotListenError
    from trainmaster.dispatcher.services.stores import Stores

    serve_metrics(metrics_port, "scheduler")

    async def run(stop: asyncio.Event) -> None:
        stores = Stores.open(settings)
        try:
            await Scheduler(stores).run(stop)
        finally:
            await stores.close()

    try:
        until_stopped(run)
    except CannotListenError as error:
        raise fail(str(error), Exit.USAGE) from error


def worker(
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="How many side jobs at the same time.")] = 3,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Run a worker: brings out webhook messages and removes what is old. Any number may run."""
    settings = _side_settings(plain_logs=plain_logs)
    from trainmaster.dispatcher.worker.app import run_worker
    from trainmaster.metrics.tasks import watch_tasks

    watch_tasks()
    serve_metrics(metrics_port, "worker")
    raise typer.Exit(run_worker(settings, concurrency))


def beat(metrics_port: MetricsPort = None, plain_logs: PlainLogs = False) -> None:
    """Run a beat: tells the workers when to look. One is enough, several do no harm."""
    settings = _side_settings(plain_logs=plain_logs)
    from trainmaster.dispatcher.worker.app import run_beat

    serve_metrics(metrics_port, "beat")

    def stop_with(stop: Callable[[], None]) -> None:
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: stop())

    run_beat(settings, stop_with)


def _side_settings(*, plain_logs: bool) -> Any:
    """What worker and beat begin with: settings, logs, and both stores, without which they can do nothing."""
    settings = _settings()
    need("dispatcher", "celery")
    if not settings.redis_url:
        raise fail("set REDIS_URL, for example redis://host/0: workers are told through it what to do", Exit.USAGE)
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_soft_state(settings)
    return settings


def serve_metrics(port: int | None, process: str, is_alive: Callable[[], bool] | None = None) -> None:
    """Serve the metrics of a process that has no HTTP interface of its own; with port None, nothing."""
    if port is None:
        return
    need("agent" if process == "agent" else "dispatcher", "prometheus_client")
    from trainmaster.metrics.exporter import start_exporter
    from trainmaster.metrics.kinds import Process

    host = os.environ.get("TRAINMASTER_METRICS_HOST", "127.0.0.1")
    try:
        exporter = start_exporter(port, Process(process), host, is_alive=is_alive)
    except OSError as error:
        raise fail(f"metrics cannot be served at {host}, port {port}: {error}", Exit.USAGE) from error
    if process == "worker":
        from trainmaster.metrics.tasks import watch_tasks

        watch_tasks()
    logging.getLogger(__name__).info("metrics are served at port %d", exporter.port, extra={"port": exporter.port})


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


def migrate() -> None:
    """Bring the database at DATABASE_URL to the newest schema. Safe to run again, and from several places at once.

    A schema of a newer release stays as it is, if this release runs on it.
    """
    settings = _settings()
    from trainmaster.dispatcher.store.migrate import IncompatibleSchemaError
    from trainmaster.dispatcher.store.migrate import migrate as run

    try:
        schema = _await_store(settings, lambda: run(settings.database_url))
    except IncompatibleSchemaError as error:
        raise fail(str(error), Exit.CONFLICT) from error
    newer = f" of a newer release, on which this one, {schema.release}, runs: nothing to do" if schema.is_newer else ""
    typer.echo(f"the schema is at revision {schema.revision}{newer}")


@admin_app.command("first-key")
def first_key(name: Annotated[str, typer.Option(help="Name of the key.")] = "admin") -> None:
    """Make an admin's API key in the store itself, for a new installation; prints it once."""
    settings = _settings()
    from trainmaster.dispatcher.services.bootstrap import make_first_key

    def run() -> str:
        return asyncio.run(make_first_key(settings, name))

    typer.echo(_await_store(settings, run))


@admin_app.command()
def bootstrap(
    out: Annotated[Path, typer.Option(help="Folder for the keys: NAME/key for each, readable by this user only.")],
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Queues, priority classes and clusters in YAML. Repeatable."),
    ] = None,
) -> None:
    """Make what a new installation lacks: an admin's key, what files declare, a key for the agent of each cluster in them.

    What is there already stays as it is, so it may run at each start.
    """
    settings = _settings()
    from trainmaster.cli.bootstrap import make_installation, read_declared

    declared = read_declared(files or [])
    made = _await_store(settings, lambda: make_installation(settings, declared, out))
    for sentence in made or ["nothing is missing"]:
        typer.echo(sentence)


@admin_app.command()
def recovered(
    finish: Annotated[
        bool, typer.Option("--finish", help="End the recovery now, though agents have not told yet what they run.")
    ] = False,
) -> None:
    """Say that the store was restored from a backup. Run it before the dispatcher's processes start again.

    Until every cluster's agent has told what it runs, nothing starts: a job that the backup holds as queued may be running. What runs
    goes on; runs of waiting jobs are taken up again, and those of jobs that the backup does not have are quarantined and shown.
    """
    settings = _settings()
    from trainmaster.dispatcher.services import recovery
    from trainmaster.dispatcher.services.stores import Stores

    async def work() -> str:
        stores = Stores.open(settings)
        try:
            if finish:
                was_on = await recovery.finish(stores)
                return "the recovery has ended: jobs start again" if was_on else "no recovery is on"
            epoch = await recovery.begin(stores)
        finally:
            await stores.close()
        return (
            f"store epoch {epoch}: nothing starts before every cluster's agent has told what it runs. Start the dispatcher's"
            " processes now; trainmaster clusters shows which clusters are waited for"
        )

    typer.echo(_await_store(settings, lambda: asyncio.run(work())))


@agent_app.command("run")
def agent_run(
    url: Annotated[str, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher's api.")],
    cluster: Annotated[Path | None, typer.Option(help="YAML file that declares the local cluster's nodes.")] = None,
    simulated: Annotated[
        Path | None, typer.Option(help="YAML file that declares a fleet of simulated clusters, instead of --cluster.")
    ] = None,
    kubernetes: Annotated[
        Path | None, typer.Option(help="YAML file of the agent of a Kubernetes cluster, instead of --cluster.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="With --kubernetes: how to reach the cluster; inside it, not needed.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="With --kubeconfig: the context in it.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder of this agent's own records and the members' output.")
    ] = None,
    key: Annotated[
        str, typer.Option(envvar="TRAINMASTER_API_KEY", help="The agent's API key.", show_default=False)
    ] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with the agent's API key.")] = None,
    trust_submitters: Annotated[
        bool, typer.Option("--trust-submitters", help="Run commands of an api that listens beyond this machine.")
    ] = False,
    members_as: Annotated[
        str | None, typer.Option(metavar="USER", help="With --cluster, as root: the user that members run as.")
    ] = None,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Run the agent of a local cluster, whose members are processes of this machine.

    Whoever may submit jobs there runs any code as this user or, with --members-as, which needs root, as that one.

    With --simulated, run the agents of a whole fleet that exists in memory only. With --kubernetes, run a replica of the agent of a
    Kubernetes cluster: one of them acts.
    """
    process_logs.set_up(json=not plain_logs)
    secret = _read_secret(key_file, key)
    if kubernetes is not None:
        if simulated is not None or cluster is not None:
            raise fail("give only one of --cluster, --simulated and --kubernetes", Exit.USAGE)
        _run_on_kubernetes(kubernetes, url, secret, kubeconfig, context, metrics_port)
        return
    if simulated is not None and cluster is None:
        os.environ.pop("TRAINMASTER_API_KEY", None)
        serve_metrics(metrics_port, "agent")
        _until_superseded(partial(run_agents, simulated, url, secret, state_dir))
        return
    if simulated is not None or cluster is None or state_dir is None:
        raise fail("give either --cluster and --state-dir, or --simulated, or --kubernetes", Exit.USAGE)
    if not secret:
        raise fail("give the agent's API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    if not trust_submitters and not _is_loopback(url):
        raise fail(
            f"{url} is not on this machine: whoever may submit there could run any command here as this user; "
            "if all of them are trusted, add --trust-submitters",
            Exit.USAGE,
        )
    from trainmaster.agent.runtime.local.config import LocalCluster
    from trainmaster.agent.runtime.local.runtime import LocalRuntime

    try:
        declared = LocalCluster.model_validate(yaml.safe_load(cluster.read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise fail(f"{cluster}: {error}", Exit.USAGE) from error
    os.environ.pop("TRAINMASTER_API_KEY", None)
    serve_metrics(metrics_port, "agent")
    user = None if members_as is None else user_ids(members_as)
    _run_agent(url, secret, LocalRuntime(state_dir, declared, user), measured=metrics_port is not None)


def user_ids(name: str) -> tuple[int, int]:
    """Return the ids of a user and its group that members can run as; ends the process where they cannot."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise fail(f"--members-as: there is no user {name!r} on this machine", Exit.USAGE) from error
    if entry.pw_uid == 0:
        raise fail("--members-as: members that run as root may do anything here; name another user", Exit.USAGE)
    if os.geteuid() != 0:
        raise fail("--members-as needs root, which alone may start processes of another user", Exit.USAGE)
    return entry.pw_uid, entry.pw_gid


def _read_secret(key_file: Path | None, key: str) -> str:
    try:
        return key_file.read_text().strip() if key_file is not None else key
    except OSError as error:
        raise fail(f"{key_file}: {error.strerror}", Exit.USAGE) from error


def _run_on_kubernetes(
    path: Path, url: str, secret: str, kubeconfig: Path | None, context: str | None, metrics_port: int | None
) -> None:
    need("agent", "kubernetes", "aiohttp")
    if not secret:
        raise fail("give the agent's API key with --key-file or TRAINMASTER_API_KEY", Exit.USAGE)
    from trainmaster.agent.kube.access import AccessError
    from trainmaster.agent.kube.lease import LeaseLostError
    from trainmaster.agent.placement.choose import PlacementUnavailableError
    from trainmaster.agent.runtime.kubernetes.config import RecordsExposedError
    from trainmaster.cli.kubernetes_agent import Pulse, read_cluster, run_kubernetes_agent

    config = read_cluster(path)
    os.environ.pop("TRAINMASTER_API_KEY", None)
    pulse = Pulse()
    serve_metrics(metrics_port, "agent", is_alive=pulse.is_alive)

    async def run(stop: asyncio.Event) -> None:
        try:
            await run_kubernetes_agent(
                config,
                url,
                secret,
                stop,
                kubeconfig=kubeconfig,
                context=context,
                on_renewal=_renewals(measured=metrics_port is not None),
                pulse=pulse,
            )
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    try:
        _until_superseded(run)
    except LeaseLostError as error:
        raise fail(f"another replica acts now: {error}", Exit.CONFLICT) from error
    except (AccessError, PlacementUnavailableError, RecordsExposedError) as error:
        raise fail(str(error), Exit.USAGE) from error


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _run_agent(url: str, secret: str, runtime: Any, *, measured: bool) -> None:
    from trainmaster.agent.sync import Agent
    from trainmaster.client.aio import AgentClient

    on_renewal = _renewals(measured=measured)

    async def run(stop: asyncio.Event) -> None:
        await runtime.open()
        client = AgentClient(url, secret)
        try:
            await Agent(client, runtime, on_renewal=on_renewal).run(stop)
        finally:
            await client.aclose()
            await runtime.close()

    _until_superseded(run)


def _renewals(*, measured: bool) -> Callable[[Any], None] | None:
    if not measured:
        return None
    from trainmaster.agent.containment import observe
    from trainmaster.metrics.renewals import note_contained, note_renewal

    observe(note_contained)
    return note_renewal


def _until_superseded(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run an agent until it is stopped, or exit when another one has taken its place."""
    from trainmaster.agent.runtime.port import RuntimeRefusedError
    from trainmaster.agent.sync import SupersededError

    try:
        until_stopped(run)
    except SupersededError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
    except RuntimeRefusedError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
