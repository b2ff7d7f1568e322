"""``simulations``: those that the installation runs in the background."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import config
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, age, data_of, note, print_data, print_table
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.simulations import SimulationSpec, SimulationView

simulations_app = typer.Typer(help="Simulations in the background: list, show, cancel and remove them.")
Id = Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)]


def register(app: typer.Typer) -> None:
    app.add_typer(simulations_app, name="simulations")


@simulations_app.callback(invoke_without_command=True)
def simulations(
    ctx: typer.Context,
    most: Annotated[int, typer.Option("--most", min=1, help="The most simulations to list, the latest first.")] = 20,
    output: OutputOption = Format.TABLE,
) -> None:
    """List simulations. To start one: trainmaster simulate WORKLOAD --background"""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        found = [one for one, _ in zip(client.simulations(), range(most), strict=False)]
    if output.is_data:
        print_data([data_of(one) for one in found], output)
        return
    if not found:
        note("there is no simulation; trainmaster simulate WORKLOAD --background asks for one")
        return
    columns = ["ID", "TITLE", "STATE", "PROGRESS", "AGE", "TOOK", "BY"]
    print_table(columns, [_row(one) for one in found])


def _row(one: "SimulationView") -> list[object]:
    from trainmaster.protocol.durations import format_duration

    took = "-"
    if one.started_at is not None and one.ended_at is not None:
        took = format_duration(round((one.ended_at - one.started_at).total_seconds()))
    return [one.id, one.title or "-", one.state.value, _progress(one), age(one.created_at), took, one.created_by]


def _progress(one: "SimulationView") -> str:
    progress = one.progress
    if one.state.is_terminal or not progress.cases:
        return one.message or "-"
    return f"case {progress.case} of {progress.cases}, {progress.jobs_ended:,} of {progress.jobs:,} jobs"


@simulations_app.command()
def show(
    ctx: typer.Context,
    simulation: Id,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended; the exit code shows how, as for jobs.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the report with charts to this file.", show_default=False),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one simulation and, once it has succeeded, its result."""
    from trainmaster.protocol.simulations import SimulationState

    with config.connect(ctx) as client:
        found = follow(client, simulation) if wait else client.simulation(simulation)
        tell(found, output)
        if html is not None:
            write_report(client, simulation, html)
    if wait and found.result is None:
        raise typer.Exit(Exit.JOB_CANCELLED if found.state is SimulationState.CANCELLED else Exit.JOB_FAILED)


@simulations_app.command()
def cancel(ctx: typer.Context, simulation: Id) -> None:
    """Cancel a simulation that is queued or running."""
    with config.connect(ctx) as client:
        client.cancel_simulation(simulation)
    print(f"simulation {simulation} is cancelled")


@simulations_app.command()
def remove(ctx: typer.Context, simulation: Id) -> None:
    """Remove a simulation that has ended, with its report."""
    with config.connect(ctx) as client:
        client.remove_simulation(simulation)
    print(f"simulation {simulation} is removed")


def follow(client: "Client", simulation: int) -> "SimulationView":
    """Wait until the simulation has ended, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("queued", total=None)
        for one in client.watch_simulation(simulation):
            jobs = max(1, one.progress.jobs * one.progress.cases)
            done = one.progress.jobs * max(0, one.progress.case - 1) + one.progress.jobs_ended
            text = _progress(one) if one.progress.cases else one.state.value
            bar.update(task, description=text, total=jobs if one.progress.cases else None, completed=done)
            found = one
    return found


def tell(found: "SimulationView", output: Format) -> None:
    if output.is_data:
        print_data(data_of(found), output)
        return
    if found.result is None:
        title = f" ({found.title})" if found.title else ""
        print(f"simulation {found.id}{title} is {found.state.value}: {_progress(found)}")
        return
    from trainmaster_dispatcher.cli.simulation_tables import SimulatedWorkload, print_simulated
    from trainmaster_dispatcher.whatif.report import Case
    from trainmaster_dispatcher.whatif.values import from_data, waits_from

    result = found.result
    really = waits_from(result["whatWas"]) if "whatWas" in result else None
    cases = [Case(one["name"], from_data(one)) for one in result["cases"]]
    print_simulated(SimulatedWorkload(result["workload"], result["leftOut"], really, cases))


def write_report(client: "Client", simulation: int, path: Path) -> None:
    """Write the report. Raises ProblemError if there is none, UsageError if it cannot be written."""
    page = client.simulation_report(simulation)
    try:
        path.write_text(page)
    except OSError as error:
        raise UsageError(f"{path}: {error}") from error
    note(f"the report is in {path}")


def ask(ctx: typer.Context, spec: "SimulationSpec") -> None:
    """Queue a simulation, and print what to do next."""
    with config.connect(ctx) as client:
        made = client.simulate(spec)
    print(made.id)
    note(f"simulation {made.id} is queued; follow it with: trainmaster simulations show {made.id} --wait")


def text_of(path: Path) -> str:
    """Return a workload as text. Raises UsageError."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", errors="replace") as lines:
                return lines.read()
        return path.read_text(errors="replace")
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def swept(sweep: str | None) -> tuple[str, Sequence[str]] | None:
    """Return the field and the values of a sweep that can run in the background. Raises UsageError."""
    if sweep is None:
        return None
    name, _, values = sweep.partition("=")
    if not name.startswith("burst.") or not values:
        raise UsageError("in the background, --sweep takes fields of burst policies, such as burst.after=none,5m,1h")
    return name, [value.strip() for value in values.split(",")]
