"""Files that declare simulated fleets, for the agent and for what-if studies."""

from pathlib import Path

import typer
import yaml
from pydantic import ValidationError

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.states import Exit
from trainmaster.protocol.validation_errors import mistakes_of


def read_fleet(path: Path) -> Fleet:
    """Return the fleet in a file; exit with the path of every mistake."""
    try:
        value = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _refuse(f"{path}: {error}") from error
    try:
        return Fleet.model_validate(value)
    except ValidationError as error:
        raise _refuse("\n".join(f"{path}: {one.path}: {one.message}" for one in mistakes_of(error))) from error


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(Exit.USAGE)
