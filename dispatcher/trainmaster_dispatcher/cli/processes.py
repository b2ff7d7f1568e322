"""Commands of the dispatcher: ``serve``, ``scheduler``, ``worker``, ``beat``, ``migrate``, ``admin``."""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from trainmaster import process_logs
from trainmaster.cli.errors import tell
from trainmaster.cli.process import (
    MetricsPort,
    PlainLogs,
    end_at_interrupt,
    fail,
    port_obstacle,
    serve_metrics,
    start_tracing,
    until_stopped,
)
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.api.audience import Audience

log = logging.getLogger(__name__)

admin_app = typer.Typer(help="Work on the store directly; needs DATABASE_URL.", no_args_is_help=True)

Made = TypeVar("Made")

_GC_YOUNG = 20_000
_TRACING = "trainmaster-dispatcher[tracing]"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(serve)
    app.command()(scheduler)
    app.command()(worker)
    app.command()(beat)
    app.command()(migrate)
    app.add_typer(admin_app, name="admin")


def _warn_of_mistyped_settings() -> None:
    """Print a warning for each environment variable that may be meant to be a setting."""
    from trainmaster_dispatcher.services.settings import mistyped

    for sentence in mistyped():
        typer.echo(f"warning: {sentence}", err=True)


def checked_settings() -> Any:
    """Return the settings of the environment, after a warning for each that may be mistyped. Ends the process if one is wrong."""
    from trainmaster_dispatcher.services.settings import Settings, mistakes_in

    _warn_of_mistyped_settings()
    try:
        return Settings()
    except ValidationError as error:
        *others, last = mistakes_in(error)
        for mistake in others:
            tell(mistake)
        raise fail(last, Exit.USAGE) from error


def _settings() -> Any:
    settings = checked_settings()
    if not settings.database_url:
        raise fail(
            "set DATABASE_URL, for example postgresql://user@host/trainmaster; or try 'trainmaster up'", Exit.USAGE
        )
    return settings


def _await_store(settings: Any, what: Callable[[], Made], name: str = "Postgres") -> Made:
    """Do something with a store, waiting for it as long as the settings allow; exit if it stays unreachable."""
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
    """Wait for the store and check that this code runs on its schema."""
    from trainmaster_dispatcher.store.schema import current_schema

    schema = _await_store(settings, lambda: current_schema(settings.database_url))
    if not schema.serves:
        raise fail(schema.obstacle, Exit.CONFLICT if schema.is_newer else Exit.USAGE)
    if schema.is_newer:
        log.warning(
            "the schema is at revision %s of a newer release; this one, %s, runs on it", schema.revision, schema.release
        )


def _check_redis(settings: Any) -> None:
    """Wait for Redis if one is configured: running without it is for outages, not for a wrong address."""
    from trainmaster_dispatcher.store.redis_channels import ping

    if settings.redis_url:
        try:
            _await_store(settings, lambda: ping(settings.redis_url), "Redis")
        except ValueError as error:
            raise fail(f"setting REDIS_URL: {error}", Exit.USAGE) from error


def _check_issuers(settings: Any) -> None:
    """Read the file with issuers, so that its mistakes are told before anything listens."""
    from trainmaster_dispatcher.services.issuers import IssuersFileError, read_issuers

    try:
        read_issuers(settings)
    except IssuersFileError as error:
        raise fail(str(error), Exit.USAGE) from error


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8470,
    audience: Annotated[
        Audience,
        typer.Option("--for", help="Whom it serves, so that apis for users and for agents can be scaled separately."),
    ] = Audience.ALL,
    tls_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port at which it serves the same over TLS.", show_default=False),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="File with the certificate for TLS, PEM.", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="File with its private key, PEM.", show_default=False)] = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Run an api: the REST interface for users and agents. Any number may run behind one address."""
    end_at_interrupt()
    settings = _settings()
    if (obstacle := port_obstacle(host, port)) is not None:
        raise fail(f"cannot listen at {host}, port {port}: {obstacle}; choose another one with --port", Exit.USAGE)
    tls = _tls_options(host, tls_port, tls_certificate, tls_key)
    process_logs.set_up(json=not plain_logs)
    start_tracing("api", _TRACING)
    _check_schema(settings)
    _check_redis(settings)
    if audience.includes(Audience.USERS):
        _check_issuers(settings)
    import uvicorn

    from trainmaster_dispatcher.api.app import make_app
    from trainmaster_dispatcher.http_connections import fit_open_files, serve_both, server_config

    app, bounds = make_app(settings, audience), fit_open_files(settings.connection_bounds)
    options: dict[str, Any] = {"host": host, "loop": "uvloop", "timeout_graceful_shutdown": 2, "backlog": 2048}
    config = server_config(app, bounds, web_sockets=True, port=port, lifespan="on", **options)
    # The collector would visit all modules again and again, and each time delay all calls for as long as ten of them
    # take.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, 20, 50)
    # uvicorn raises the signal once more when it has ended all calls; the process that sent it shall see success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if tls is None:
        uvicorn.Server(config).run()
    else:
        serve_both(config, server_config(app, bounds, web_sockets=True, lifespan="off", **tls, **options))


def _tls_options(host: str, port: int | None, certificate: Path | None, key: Path | None) -> dict[str, Any] | None:
    """Return uvicorn's options for TLS; None where it is not wanted. Ends the process if they cannot be used."""
    import ssl

    if (port, certificate, key) == (None, None, None):
        return None
    if port is None or certificate is None or key is None:
        raise fail("--tls-port, --tls-certificate and --tls-key need each other", Exit.USAGE)
    if (obstacle := port_obstacle(host, port)) is not None:
        raise fail(f"cannot listen at {host}, port {port}: {obstacle}; choose another one with --tls-port", Exit.USAGE)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise fail(f"cannot use {certificate} with {key}: {error}", Exit.USAGE) from error
    return {"port": port, "ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


def scheduler(metrics_port: MetricsPort = None, plain_logs: PlainLogs = False) -> None:
    """Run a scheduler. One leads, any others stand by and take over within seconds."""
    end_at_interrupt()
    settings = _settings()
    process_logs.set_up(json=not plain_logs)
    start_tracing("scheduler", _TRACING)
    _check_schema(settings)
    _check_redis(settings)
    from trainmaster_dispatcher.http_connections import CannotListenError
    from trainmaster_dispatcher.scheduler.loop import Scheduler
    from trainmaster_dispatcher.services.context import Stores

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
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="The most side jobs at the same time.")] = 3,
    metrics_port: MetricsPort = None,
    plain_logs: PlainLogs = False,
) -> None:
    """Run a worker: it sends webhook messages, counts usage and removes old data. Any number may run."""
    settings = _side_settings(plain_logs=plain_logs)
    from trainmaster_dispatcher.worker.app import run_worker
    from trainmaster_dispatcher.worker.task_metrics import watch_tasks

    watch_tasks()
    serve_metrics(metrics_port, "worker")
    raise typer.Exit(run_worker(settings, concurrency))


def beat(metrics_port: MetricsPort = None, plain_logs: PlainLogs = False) -> None:
    """Run a beat: it triggers the workers' periodic tasks. One is enough, several do no harm."""
    settings = _side_settings(plain_logs=plain_logs)
    from trainmaster_dispatcher.worker.app import run_beat

    serve_metrics(metrics_port, "beat")

    def stop_with(stop: Callable[[], None]) -> None:
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: stop())

    run_beat(settings, stop_with)


def _side_settings(*, plain_logs: bool) -> Any:
    """Return the settings of worker and beat, after setting up logs and waiting for both stores, without which they can do nothing."""
    end_at_interrupt()
    settings = _settings()
    if not settings.redis_url:
        raise fail("set REDIS_URL, for example redis://host/0: workers get their tasks through Redis", Exit.USAGE)
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_redis(settings)
    return settings


def migrate() -> None:
    """Bring the database at DATABASE_URL to the newest schema. Safe to run again, and from several places at once.

    A schema of a newer release stays as it is, if this release runs on it.
    """
    end_at_interrupt()
    settings = _settings()
    from trainmaster_dispatcher.store.migrate import migrate as run
    from trainmaster_dispatcher.store.schema import IncompatibleSchemaError

    try:
        schema = _await_store(settings, lambda: run(settings.database_url))
    except IncompatibleSchemaError as error:
        raise fail(str(error), Exit.CONFLICT) from error
    newer = f" of a newer release, on which this one, {schema.release}, runs: nothing to do" if schema.is_newer else ""
    typer.echo(f"the schema is at revision {schema.revision}{newer}")


@admin_app.command("first-key")
def first_key(name: Annotated[str, typer.Option(help="Name of the key.")] = "admin") -> None:
    """Create an admin's API key in the store, for a new installation; prints it once.

    Where a valid key has the name already, it is refused: give another --name if that key is lost.
    """
    settings = _settings()
    _check_schema(settings)
    from trainmaster_dispatcher.services.bootstrap import make_first_key

    def run() -> str:
        return asyncio.run(make_first_key(settings, name))

    typer.echo(_await_store(settings, run))


@admin_app.command()
def bootstrap(
    out: Annotated[Path, typer.Option(help="Folder for the keys: NAME/key for each, readable by this user only.")],
    files: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="YAML file with objects to declare, such as queues and clusters. May be repeated.",
        ),
    ] = None,
) -> None:
    """Create what does not exist yet: an admin's key, the objects in the files, a key for the agent of each cluster in them.

    Existing objects and keys are not changed, so it may run at each start.
    """
    settings = _settings()
    from trainmaster_dispatcher.cli.bootstrap import make_installation, read_declared

    declared = read_declared(files or [])
    made = _await_store(settings, lambda: make_installation(settings, declared, out))
    for sentence in made or ["nothing is missing"]:
        typer.echo(sentence)


@admin_app.command()
def recovered(
    finish: Annotated[
        bool, typer.Option("--finish", help="End the recovery now, before all agents have reported what they run.")
    ] = False,
) -> None:
    """Say that the store was restored from a backup. Run it before the dispatcher's processes start again.

    Until every cluster's agent has reported what it runs, nothing starts: a job that the backup holds as queued may be running. Live
    runs continue; runs of waiting jobs are adopted, and those of jobs that the backup does not have are quarantined and shown.
    """
    settings = _settings()
    from trainmaster_dispatcher.services import recovery
    from trainmaster_dispatcher.services.context import Stores

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
            f"store epoch {epoch}: nothing starts before every cluster's agent has reported what it runs. Start the"
            " dispatcher's processes now; trainmaster clusters shows which clusters have not reported yet"
        )

    typer.echo(_await_store(settings, lambda: asyncio.run(work())))
