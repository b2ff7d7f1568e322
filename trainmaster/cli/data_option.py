"""``--data``: the folder of ``trainmaster up``, the same for each command that has it."""

from pathlib import Path
from typing import Any

import typer

DATA_VARIABLE = "TRAINMASTER_DATA"
DEFAULT_DATA = Path("~/.trainmaster")
"""Below the home folder of whoever runs the command, not of whoever imported this."""


def _folder(given: str | Path) -> Path:
    """Return the folder of a text. Raises BadParameter for an empty one, which would stand for the current folder.

    The default, a path already, comes through here, too.
    """
    if not str(given).strip():
        raise typer.BadParameter(
            f"it is empty; name the folder of 'trainmaster up', or leave out --data and {DATA_VARIABLE} for {DEFAULT_DATA}"
        )
    return Path(given).expanduser()


def data_option(meaning: str) -> Any:
    """Return the option with its line of help. Its value is ``DEFAULT_DATA`` unless another folder is given."""
    return typer.Option(parser=_folder, metavar="<path>", envvar=DATA_VARIABLE, help=meaning)
