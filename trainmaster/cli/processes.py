"""Commands that start one process of the system each: ``serve``, ``scheduler``, ``agent run``, ``migrate``, ``admin``."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml
from pydantic import ValidationError

from trainmaster import process_logs
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.states import Exit

agent_app = typer.Typer(help="The agent of one cluster.", no_args_is_help=True)
admin_app = typer.Typer(help="Work on the store directly; needs DATABASE_URL.", no_args_is_help=True)

PlainLogs = Annotated[bool, typer.Option("--plain-logs", help="Write logs for people instead of JSON lines.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(serve)
    app.command()(scheduler)
    app.command()(migrate)
    app.add_typer(agent_app, name="agent")
    app.add_typer(admin_app, name="admin")


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


def _await_store(settings: Any, what: Callable[[], str], name: str = "Postgres") -> str:
    """Do something with a store, waiting for it as long as the settings say; exits when it stays away."""
    ends = time.monotonic() + settings.start_retry_seconds
    pause = 0.2
    while True:
        try:
            return what()
        except ProblemError as error:
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
    """Wait for the store and see that its schema is the one this code needs."""
    from trainmaster.dispatcher.store.migrate import current_revision, newest_revision

    revision = _await_store(settings, lambda: current_revision(settings.database_url))
    if revision != newest_revision():
        has = f"revision {revision}" if revision else "no schema"
        raise fail(
            f"the database has {has}, this version needs {newest_revision()}; run: trainmaster migrate", Exit.USAGE
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
    plain_logs: PlainLogs = False,
) -> None:
    """Run an api: the REST interface for users and agents. Any number may run behind one address."""
    settings = _settings()
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_soft_state(settings)
    import uvicorn

    from trainmaster.dispatcher.api.app import make_app

    config = uvicorn.Config(
        make_app(settings),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
        backlog=2048,
    )
    uvicorn.Server(config).run()


def scheduler(plain_logs: PlainLogs = False) -> None:
    """Run a scheduler. One leads, any others stand by and take over within seconds."""
    settings = _settings()
    process_logs.set_up(json=not plain_logs)
    _check_schema(settings)
    _check_soft_state(settings)
    from trainmaster.dispatcher.scheduler.loop import Scheduler
    from trainmaster.dispatcher.services.stores import Stores

    async def run(stop: asyncio.Event) -> None:
        stores = Stores.open(settings)
        try:
            await Scheduler(stores).run(stop)
        finally:
            await stores.close()

    until_stopped(run)


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
    """Bring the database at DATABASE_URL to the newest schema. Safe to run again, and from several places at once."""
    settings = _settings()
    from trainmaster.dispatcher.store.migrate import migrate as run

    revision = _await_store(settings, lambda: run(settings.database_url))
    typer.echo(f"the schema is at revision {revision}")


@admin_app.command("first-key")
def first_key(name: Annotated[str, typer.Option(help="Name of the key.")] = "admin") -> None:
    """Make an admin's API key in the store itself, for a new installation; prints it once."""
    settings = _settings()
    from trainmaster.dispatcher.services.bootstrap import make_first_key

    def run() -> str:
        return asyncio.run(make_first_key(settings, name))

    typer.echo(_await_store(settings, run))


@agent_app.command("run")
def agent_run(
    url: Annotated[str, typer.Option(envvar="TRAINMASTER_URL", help="Address of the dispatcher's api.")],
    cluster: Annotated[Path, typer.Option(help="YAML file that declares the local cluster's nodes.")],
    state_dir: Annotated[Path, typer.Option(help="Folder of this agent's own records and the members' output.")],
    key: Annotated[
        str, typer.Option(envvar="TRAINMASTER_API_KEY", help="The agent's API key.", show_default=False)
    ] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with the agent's API key.")] = None,
    trust_submitters: Annotated[
        bool, typer.Option("--trust-submitters", help="Run commands of an api that listens beyond this machine.")
    ] = False,
    plain_logs: PlainLogs = False,
) -> None:
    """Run the agent of a local cluster: members are processes of this machine, run as this user."""
    process_logs.set_up(json=not plain_logs)
    secret = key_file.read_text().strip() if key_file is not None else key
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
    _run_agent(url, secret, LocalRuntime(state_dir, declared))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _run_agent(url: str, secret: str, runtime: Any) -> None:
    from trainmaster.agent.runtime.port import RuntimeRefusedError
    from trainmaster.agent.sync import Agent, SupersededError
    from trainmaster.client.aio import AgentClient

    async def run(stop: asyncio.Event) -> None:
        await runtime.open()
        client = AgentClient(url, secret)
        try:
            await Agent(client, runtime).run(stop)
        finally:
            await client.aclose()
            await runtime.close()

    try:
        until_stopped(run)
    except SupersededError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
    except RuntimeRefusedError as error:
        typer.echo(f"{error}", err=True)
        sys.exit(Exit.CONFLICT)
