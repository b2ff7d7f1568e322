"""Files that declare simulated fleets, for the agent and for what-if studies."""

from pathlib import Path

import typer

from trainmaster.cli.errors import UsageError
from trainmaster.cli.yaml_files import read_config
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.states import Exit


def read_fleet(path: Path) -> Fleet:
    """Return the fleet in a file; exit with the path of every mistake."""
    try:
        return read_config(Fleet, path)
    except UsageError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Exit.USAGE) from error
