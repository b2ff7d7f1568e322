"""``doctor``: what is wrong with an installation, seen from here: each finding with what it means and what to do."""

import os
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster import __version__
from trainmaster.cli import config, tables
from trainmaster.cli.data_option import DEFAULT_DATA, data_option
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, clean, data_of, print_data, styled
from trainmaster.client.address import checked_address
from trainmaster.client.config import KEY_VARIABLE, TOKEN_FILE_VARIABLE, URL_VARIABLE
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.config import Context
    from trainmaster.protocol.health import HealthCheck, HealthReport

STORE_CHECKS = "trainmaster.checks"
"""Entry points of functions that check the stores which the environment names."""
_PATIENCE_SECONDS = 10.0
_LEAST_FREE_BYTES = 2 * 1024**3
_LEAST_FREE_PART = 0.05
_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(doctor)


def doctor(
    ctx: typer.Context,
    data: Annotated[
        Path,
        data_option("Folder of 'trainmaster up', if there is one here."),
    ] = DEFAULT_DATA,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check the way to the dispatcher and, with an admin's key, its stores, processes and agents. Changes nothing.

    Each line says what was found and what to do. The exit code is 18 if something does not work.

    Example: trainmaster doctor -o json
    """
    checks = examine(ctx.obj if isinstance(ctx.obj, config.Flags) else config.Flags(), data)
    states = {check.state.value for check in checks}
    worst = next((state for state in ("error", "warning") if state in states), "ok")
    if output.is_data:
        print_data({"state": worst, "checks": [data_of(check) for check in checks]}, output)
    else:
        _print(checks)
    if worst == "error":
        raise typer.Exit(Exit.UNHEALTHY)


def examine(flags: config.Flags, data: Path) -> "list[HealthCheck]":
    """Return all checks that can be made from here."""
    return list(_examine(flags, data))


def _examine(flags: config.Flags, data: Path) -> "Iterator[HealthCheck]":
    from trainmaster.client.errors import ConfigurationError
    from trainmaster.client.reach import examine_way
    from trainmaster.protocol.health import HealthState, error

    report, usable = None, ""
    try:
        context = config.load(flags)
    except (ConfigurationError, UsageError) as problem:
        address = flags.url or os.environ.get(URL_VARIABLE) or ""
        with suppress(ConfigurationError):
            usable = checked_address(address)
        yield error("configuration", str(problem), f"trainmaster login {usable or 'URL'}")
        if usable:
            yield from examine_way(usable)
    else:
        yield from _configuration(flags, context)
        is_reached = True
        for check in examine_way(context.url):
            is_reached = is_reached and check.state is not HealthState.ERROR
            yield check
        if is_reached:
            report = yield from _ask_api(context)
    yield from _folder(data)
    if report is not None and report.checks:
        yield from report.checks
    else:
        for point in entry_points(group=STORE_CHECKS):
            yield from point.load()()


def _configuration(flags: config.Flags, context: "Context") -> "Iterator[HealthCheck]":
    from trainmaster.protocol.health import fine, warning

    path = config.config_path()
    from_file = str(path)
    sources = []
    key_name = TOKEN_FILE_VARIABLE if context.token_file else KEY_VARIABLE
    for given, name, option in ((flags.url, URL_VARIABLE, "--url"), (flags.key, key_name, "--key")):
        sources.append(option if given else name if os.environ.get(name) else from_file)
    yield fine("configuration", f"address {context.url} from {sources[0]}, key from {sources[1]}")
    if from_file in sources and path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warning("configuration file", f"others on this machine can read the key in {path}", f"chmod 600 {path}")


def _ask_api(context: "Context") -> "Generator[HealthCheck, None, HealthReport | None]":
    """Ask the api; yield what it says of the key and of releases, and return its report."""
    from trainmaster.client.core import Retries
    from trainmaster.client.http import Client
    from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
    from trainmaster.protocol.health import error, fine, warning

    try:
        with Client(context.url, context.key, retries=Retries(deadline_seconds=_PATIENCE_SECONDS)) as client:
            report: HealthReport = client.doctor()
    except ProblemError as problem:
        if problem.code is Code.UNAUTHENTICATED:
            yield error("key", f"the api does not take it: {problem.detail}", "ask an admin for another one")
        elif problem.code is Code.NOT_FOUND:
            yield warning(
                "release", "the api is of an older release, or serves agents only", "upgrade the dispatcher first"
            )
        elif problem.code is Code.FORBIDDEN:
            yield error("key", problem.detail, "use a key of a person; an agent's log says how the agent is served")
        else:
            yield error("api", str(problem), "look at the api's log")
        return None
    except TrainmasterError as problem:
        yield error("api", str(problem), "try again; look at the api's log")
        return None
    key = report.key
    where = f", for the queues {', '.join(key.queues)}" if key.queues else ""
    where = f", for the clusters {', '.join(key.clusters)}" if key.clusters else where
    yield fine("key", f"{key.name}, role {key.role}{where}")
    if report.release == __version__:
        yield fine("release", f"{__version__}, here and at the api")
    else:
        yield warning("release", f"{__version__} here, {report.release} at the api", "install the same release here")
    return report


def _folder(data: Path) -> "Iterator[HealthCheck]":
    from trainmaster.protocol.health import fine, warning

    if not data.is_dir():
        return
    disk = shutil.disk_usage(data)
    message = f"{data} has {disk.free / 1024**3:.1f} GiB left on its disk"
    if disk.free < _LEAST_FREE_BYTES or disk.free < _LEAST_FREE_PART * disk.total:
        yield warning("disk", message, "free some: without space the database stops")
    else:
        yield fine("disk", message)


def _print(checks: "list[HealthCheck]") -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = styled(f"{check.state.value:<7}", _STYLES[check.state.value])
        indent = len(f"{'':<7}  {'':<{width}}  ")
        message = tables.wrapped(clean(check.message), tables.terminal_width(), indent)
        print(f"{state}  {clean(check.name):<{width}}  {message}")
        if check.advice:
            advice = tables.wrapped(clean(check.advice), tables.terminal_width(), indent + 3)
            print(f"{'':<{indent}}-> {advice}")
